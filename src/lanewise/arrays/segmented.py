"""`segmented_reduce`, `segmented_scan`: sequences of different lengths, one after the other in one array.

The lengths (`sizes`) describe the segments. A scan carries, beside each value, whether a segment begins there: where
one does, what came before counts as the neutral element. That makes of any associative operator another one, so that
the blocked scan, its derivatives and its speed are those of a single sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise.arrays.bins import Layout, combine_bins
from lanewise.arrays.blocked import is_short, scan_leaves
from lanewise.arrays.operands import elements, indices_of
from lanewise.arrays.operators import Operator, operator_on
from lanewise.arrays.recurrences import scan_bilinear
from lanewise.arrays.scan import shifted
from lanewise.core.errors import OptionError


def segmented_reduce(
    operator: Callable[[Any, Any], Any], xs: Any, sizes: Any, *, neutral: Any = None
) -> Any:
    """Each segment of `xs` combined into one element: `sizes[k]` elements make segment `k`, in order.

    For operator, elements and derivatives see `reduce`. An empty segment gives the neutral element; the usual operators
    have one of their own. Sizes must add up to the length of `xs`; where they are traced that cannot be checked,
    elements beyond the last segment belong to none, and segments end where `xs` does.

    >>> import jax.numpy as jnp, lanewise as lw
    >>> lw.arrays.segmented_reduce(jnp.add, jnp.arange(6), jnp.array([2, 0, 3, 1])).tolist()
    [1, 0, 9, 5]
    """
    what = "segmented_reduce"
    given = elements(what, "xs", xs)
    lengths = _sizes(what, sizes, given.length)
    with _jax.our_transfers():
        op = operator_on(what, operator, given, neutral)
        start = op.neutral_for(what, "for empty segments")
        count = lengths.shape[0]
        if op.kinds is not None:
            owner, layout = _owners(lengths, given.length), Layout(count, ascending=True)
            return given.rebuilt(combine_bins(op, given.leaves, owner, layout))
        return given.rebuilt(reduce_segments(op, given.leaves, lengths, start))


def segmented_scan(
    operator: Callable[[Any, Any], Any],
    xs: Any,
    sizes: Any,
    *,
    neutral: Any = None,
    exclusive: bool = False,
    reverse: bool = False,
) -> Any:
    """A `scan` of each segment of `xs` separately: `sizes[k]` elements make segment `k`, in order.

    Where traced sizes do not add up to the length, what is beyond the last segment is a segment too.

    >>> import jax.numpy as jnp, lanewise as lw
    >>> lw.arrays.segmented_scan(jnp.add, jnp.ones(6), jnp.array([2, 0, 3, 1])).tolist()
    [1.0, 2.0, 1.0, 2.0, 3.0, 1.0]
    """
    what = "segmented_scan"
    given = elements(what, "xs", xs)
    lengths = _sizes(what, sizes, given.length)
    with _jax.our_transfers():
        op = operator_on(what, operator, given, neutral)
        start = op.neutral_for(what, "where a segment begins")
        if given.length == 0:
            return given.rebuilt(given.leaves)
        # Backwards a segment begins at its end.
        begins = _begins(lengths, given.length)
        leaves = list(given.leaves)
        if reverse:
            begins = jnp.flip(jnp.concatenate([begins[1:], jnp.ones_like(begins[:1])]))
            leaves = [jnp.flip(x, axis=0) for x in leaves]
        found = scan_segments(op, leaves, begins, start, flipped=reverse)
        if exclusive:
            found = [
                jnp.where(_spread(begins, x), e, shifted(e, x, reverse=False))
                for e, x in zip(start, found, strict=True)
            ]
        return given.rebuilt([jnp.flip(x, axis=0) for x in found] if reverse else found)


def scan_segments(
    op: Operator, leaves: Sequence[Any], begins: Any, neutral: Sequence[Any], flipped: bool = False
) -> list[Any]:
    """Inclusive prefixes since the last place where a segment begins."""
    if op.bilinear is not None and not is_short(leaves[0].shape[0]):
        known = op.bilinear.swapped if flipped else op.bilinear
        return scan_bilinear(known, leaves, neutral, begins)

    def combine(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        # The operand is chosen, not the result: a derivative that is not finite there is never computed.
        before = [jnp.where(b[0], e, x) for e, x in zip(neutral, a[1:], strict=True)]
        return [a[0] | b[0], *(op(b[1:], before) if flipped else op(before, b[1:]))]

    nothing = jnp.zeros((), bool)
    return scan_leaves(combine, [begins, *leaves], [nothing, *neutral])[1:]


def reduce_segments(
    op: Operator, leaves: Sequence[Any], sizes: Any, neutral: Sequence[Any]
) -> list[Any]:
    """Each segment combined, by any operator: the last prefix of each."""
    length = leaves[0].shape[0]
    if length == 0:
        return [jnp.broadcast_to(e, (sizes.shape[0], *e.shape)) for e in neutral]
    prefixes = scan_segments(op, leaves, _begins(sizes, length), neutral)
    ends = jnp.minimum(jnp.cumsum(sizes), length)
    some = (sizes > 0) & (ends > jnp.minimum(jnp.cumsum(sizes) - sizes, length))
    last = jnp.maximum(ends - 1, 0)
    return [
        jnp.where(_spread(some, x[last]), x[last], e)
        for e, x in zip(neutral, prefixes, strict=True)
    ]


def _begins(sizes: Any, length: int) -> Any:
    """Where in the array a segment begins; what is beyond the last is one too."""
    ends = jnp.cumsum(sizes)
    starts = jnp.concatenate([jnp.zeros(1, ends.dtype), ends])
    return jnp.zeros(length, bool).at[starts].set(True, mode="drop")


def _owners(sizes: Any, length: int) -> Any:
    """The segment of each element; the number of segments for those beyond the last."""
    ends = jnp.cumsum(sizes)
    return jnp.cumsum(jnp.zeros(length, jnp.int32).at[ends].add(1, mode="drop"))


def _sizes(what: str, sizes: Any, length: int) -> Any:
    found = indices_of(what, "sizes", sizes)
    if not isinstance(found, _jax.Tracer):
        values = _jax.to_host(found)
        if (values < 0).any():
            raise OptionError(
                f"`{what}`: `sizes` has a negative entry ({values.min()}). Give the number of elements of each segment."
            )
        if values.sum() != length:
            raise OptionError(
                f"`{what}`: `sizes` add up to {values.sum()}, `xs` has {length} elements."
                " Give sizes that add up to that."
            )
    with _jax.our_transfers():
        return found.astype(jnp.int32)


def _spread(flags: Any, like: Any) -> Any:
    return flags.reshape(-1, *(1,) * (like.ndim - 1))
