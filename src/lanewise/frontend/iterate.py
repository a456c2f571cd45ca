"""What a `for` can be staged over: ranges with traced bounds, arrays, and `zip`, `enumerate` and
`reversed` of these. Everything else is iterated by Python itself."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanewise import _jax
from lanewise.core import promotion
from lanewise.core.errors import LoopTypeError
from lanewise.core.objects import Items
from lanewise.frontend import values
from lanewise.frontend.site import Site

Item = Callable[[Any, Sequence[Any]], Any]


@dataclass(frozen=True)
class Stageable:
    """A sequence that a staged loop can step through.

    `item(k, slices)` is the k-th item, given the k-th slice of each of `xs`; `counts` tells whether it
    looks at `k`. `length` is a plain int, or traced. `python` is what plain Python would iterate, where
    the length is plain: short ones and stubborn bodies are unrolled over it.
    """

    length: Any
    item: Item
    xs: tuple[Any, ...] = ()
    counts: bool = False
    python: Callable[[], Any] | None = None


def index_type() -> Any:
    """Python's int as JAX has it: weakly typed."""
    return _jax.aval_of(0)


def _index(value: Any, site: Site) -> Any:
    if not values.is_traced(value):
        return value.__index__()
    aval = _jax.aval_of(value)
    if aval.shape != () or not jnp.issubdtype(aval.dtype, jnp.integer):
        raise LoopTypeError(
            f"`range` is given {values.type_text(aval)}; it takes integer scalars. "
            "Convert it with `.astype(int)`",
            site.location,
        )
    wanted = index_type()
    return promotion.convert(value, wanted)


def range_(site: Site, *args: Any) -> Any:
    """`range`, with any of its arguments traced."""
    if len(args) == 1:
        start, stop, step = 0, args[0], 1
    elif len(args) in (2, 3):
        start, stop, step = args[0], args[1], args[2] if len(args) == 3 else 1
    else:
        return range(*args)
    if not any(map(values.is_traced, args)):
        return range(*args)
    start, stop, step = (_index(value, site) for value in (start, stop, step))
    return Stageable(_range_length(start, stop, step), _range_item(start, step), counts=True)


def _range_item(start: Any, step: Any) -> Item:
    def item(k: Any, slices: Sequence[Any]) -> Any:
        del slices
        scaled = k if _is(step, 1) else k * step
        return scaled if _is(start, 0) else scaled + start

    return item


def _is(value: Any, number: int) -> bool:
    return not values.is_traced(value) and value == number


def _range_length(start: Any, stop: Any, step: Any) -> Any:
    """How many items; may come out negative where there are none."""
    if values.is_traced(step):
        up = lax.div(stop - start + step - 1, jnp.maximum(step, 1))
        down = lax.div(start - stop - step - 1, jnp.maximum(-step, 1))
        return jnp.where(step > 0, up, down)
    if step == 0:
        raise ValueError("range() arg 3 must not be zero")
    distance = stop if _is(start, 0) and step > 0 else (stop - start if step > 0 else start - stop)
    return distance if abs(step) == 1 else (distance + (abs(step) - 1)) // abs(step)


def array_(array: Any) -> Stageable:
    return Stageable(array.shape[0], lambda k, slices: slices[0], (array,), python=lambda: array)


def static_range(numbers: range) -> Stageable:
    item = _range_item(numbers.start, numbers.step)
    return Stageable(len(numbers), item, counts=True, python=lambda: numbers)


def as_stageable(iterable: Any) -> Stageable | None:
    """See an iterable as something to step through by index, if it is one."""
    if isinstance(iterable, Stageable):
        return iterable
    if isinstance(iterable, Items):
        return Stageable(iterable._lw_length(), lambda k, _: iterable._lw_item(k), counts=True)
    if isinstance(iterable, range):
        return static_range(iterable)
    if isinstance(iterable, jax.Array) and iterable.ndim > 0:
        return array_(iterable)
    if isinstance(iterable, np.ndarray) and iterable.ndim > 0 and values.is_array(iterable):
        return array_(iterable)
    return None


def _any_array(parts: Sequence[Any]) -> bool:
    return any(isinstance(part, jax.Array | Stageable | Items) for part in parts)


def zip_(*parts: Any, strict: bool = False) -> Any:
    seen = [as_stageable(part) for part in parts]
    known = [part for part in seen if part is not None]
    if not _any_array(parts) or len(known) < len(parts):
        return zip(*map(_plain, parts), strict=strict)
    traced = [part.length for part in known if values.is_traced(part.length)]
    plain = [part.length for part in known if not values.is_traced(part.length)]
    if strict and len(set(plain)) > 1:
        raise ValueError(f"zip(strict=True): the lengths differ: {plain}")
    length = min(plain) if plain else None
    for other in traced:
        length = other if length is None else jnp.minimum(length, other)
    offsets = [0]
    for part in known:
        offsets.append(offsets[-1] + len(part.xs))

    def item(k: Any, slices: Sequence[Any]) -> Any:
        return tuple(
            part.item(k, slices[offsets[i] : offsets[i + 1]]) for i, part in enumerate(known)
        )

    xs = tuple(x[: min(plain)] if not traced else x for part in known for x in part.xs)
    python = None if traced else lambda: zip(*map(_plain, known), strict=False)
    return Stageable(length, item, xs, any(part.counts for part in known), python)


def enumerate_(part: Any, start: Any = 0) -> Any:
    seen = as_stageable(part)
    if seen is None or not _any_array([part]):
        return enumerate(_plain(part), start)

    def item(k: Any, slices: Sequence[Any]) -> Any:
        return (k if _is(start, 0) else k + start, seen.item(k, slices))

    python = None if seen.python is None else lambda: enumerate(_plain(seen), start)
    return Stageable(seen.length, item, seen.xs, True, python)


def reversed_(part: Any) -> Any:
    seen = as_stageable(part)
    if seen is None or not _any_array([part]):
        return reversed(part)
    flipped = tuple(jnp.flip(x, 0) if not values.is_traced(seen.length) else x for x in seen.xs)
    if seen.counts:
        return Stageable(
            seen.length, lambda k, slices: seen.item(seen.length - 1 - k, slices), flipped, True
        )
    return Stageable(seen.length, seen.item, flipped, False, python=lambda: reversed(part))


def _plain(part: Any) -> Any:
    if isinstance(part, Stageable):
        if part.python is None:
            raise LoopTypeError(
                "a range with traced bounds cannot be paired with a Python sequence; stack the "
                "sequence into an array"
            )
        return part.python()
    return part


def call(site: Site, fun: Any, *args: Any, **kwargs: Any) -> Any:
    """Call what stands in the place of `range`, `zip`, `enumerate` or `reversed` in a `for`."""
    if fun is builtins.range and not kwargs:
        return range_(site, *args)
    if fun is builtins.zip:
        return zip_(*args, **kwargs)
    if fun is builtins.enumerate:
        return enumerate_(*args, **kwargs)
    if fun is builtins.reversed and not kwargs:
        return reversed_(*args)
    return fun(*args, **kwargs)
