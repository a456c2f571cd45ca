"""Derivatives of a gradient that was taken by levels: those of the reverse of a table.

The reverse of a table is compiled code with loops in it, and what it reads was saved by other such code; JAX could
take its derivatives forwards, and not backwards. There is no need to. Let `J(p)` be the derivative of a program at its
operands, so that the reverse gives `J(p)ᵀ c` for adjoints `c` of the answers. By the symmetry of second derivatives

    d(J(p)ᵀ c) = J(p)ᵀ dc + ∇ₚ⟨c, J(p) dp⟩,

where `p` are all operands, whichever of them the gradient is by. `p ↦ J(p) v` is a program (`diff/jvp.py`) with the
control of the first, so that it is run by levels like any other, and so is its gradient. The transpose of that map
takes `u` to `∇ₚ⟨c, J(p) u⟩` for `dp` and to `J(p) u` for `dc`: the same parts again. So there are derivatives of any
order.

What a table's forward run saves is a function of `p` too. The formula does not need its derivative.

Two primitives: `adjoints_p` is the reverse where a derivative of it is to be taken, `second_p` the linear map above.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import ad, batching
from lanewise.job.job import Job, Params, with_axes
from lanewise.rules.tangents import push_forward


class Reversed(Protocol):
    """What was run by levels; `active` are the operands with tangents."""

    @property
    def job(self) -> Job: ...

    @property
    def active(self) -> tuple[bool, ...]: ...

    @property
    def out_active(self) -> tuple[bool, ...]: ...

    def reverse(
        self,
        primals: Sequence[Any],
        saved: Sequence[Any],
        cts: Sequence[Any],
        wanted: Sequence[bool],
    ) -> list[Any]:
        """Adjoints of the active operands that are wanted, of those of answers; these have all lane axes."""
        ...


@dataclass(frozen=True)
class Groups:
    """How operands divide: those of the program, what is saved, adjoints of answers; then tangents, those of the
    operands of the program that are `active` and of adjoints (`second_p`).

    `sizes` are those of axes that `jax.vmap` has added, outermost first; `flags` says for each operand of
    `adjoints_p` which of them it has, in front. Tangents have all of them.
    """

    of: Any  # a `Reversed`
    wanted: tuple[bool, ...]
    flags: tuple[tuple[bool, ...], ...]
    sizes: tuple[int, ...] = ()
    active: tuple[int, ...] = ()

    @property
    def moved(self) -> list[int]:
        """The numbers of the operands that adjoints are wanted of."""
        numbers = itertools.compress(range(len(self.of.active)), self.of.active)
        return list(itertools.compress(numbers, self.wanted))

    def apart(self, values: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        """Operands of the program, what is saved, adjoints of answers, and tangents."""
        first, third = len(self.of.active), len(self.flags)
        second = third - sum(self.of.out_active)
        return values[:first], values[first:second], values[second:third], values[third:]

    def with_active(self, nonzero: Sequence[bool]) -> Groups:
        """The same for operands of which these have tangents; others than those that adjoints are wanted of may."""
        return replace(self, active=tuple(itertools.compress(range(len(self.of.active)), nonzero)))

    def tangents(self, given: Sequence[Any]) -> list[Any]:
        """The tangents that `second_p` takes, of those of all."""
        whole = (True,) * len(self.sizes)
        numbers = [*self.active, *self.apart(range(len(self.flags)))[2]]
        return [
            with_axes(ad.instantiate_zeros(given[i]), self.flags[i], whole, self.sizes)
            for i in numbers
        ]

    def batched(self, run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """A function for the values of one batch entry, for all of them."""

        def whole(*values: Any) -> list[Any]:
            found = run
            more = len(values) - len(self.flags)
            flags = [*self.flags, *[(True,) * len(self.sizes)] * more]
            for level in reversed(range(len(self.sizes))):
                axes = [0 if has[level] else None for has in flags]
                found = jax.vmap(found, axes, axis_size=self.sizes[level])
            return found(*values)

        return whole

    def with_axis(self, size: int, dims: Sequence[Any]) -> Groups:
        """The same with one more axis, in front."""
        pairs = zip(dims, self.flags, strict=False)
        flags = tuple((d is not None, *has) for d, has in pairs)
        return replace(self, flags=flags, sizes=(size, *self.sizes))


adjoints_p = _jax.primitive("table_adjoints")
second_p = _jax.primitive("table_second")


def adjoints(
    of: Reversed,
    primals: Sequence[Any],
    saved: Sequence[Any],
    cts: Sequence[Any],
    wanted: Sequence[bool],
) -> list[Any]:
    """The reverse of a table; where a derivative of it is to be taken, as a primitive that has one."""
    if not any(map(_jax.has_derivative, (*primals, *cts))):
        return of.reverse(primals, saved, cts, wanted)
    # The formula has no place for derivatives of what is saved.
    values = [*primals, *jax.lax.stop_gradient(list(saved)), *cts]
    return adjoints_p.bind(*values, groups=Groups(of, tuple(wanted), ((),) * len(values)))


def _adjoints(*values: Any, groups: Groups) -> list[Any]:
    def one(*values: Any) -> list[Any]:
        primals, saved, cts, _ = groups.apart(values)
        return groups.of.reverse(primals, saved, cts, groups.wanted)

    return groups.batched(one)(*values)


def _second(*values: Any, groups: Groups) -> list[Any]:
    """`J(p)ᵀ dc + ∇ₚ⟨c, J(p) dp⟩`."""

    def one(*values: Any) -> list[Any]:
        primals, saved, cts, moved = groups.apart(values)
        tangents, moved_cts = moved[: len(groups.active)], moved[len(groups.active) :]
        first = adjoints_p.bind(*primals, *saved, *moved_cts, groups=alone)
        second = _of_tangents(primals, cts, tangents, groups.active, groups.moved, groups)
        return [a + b for a, b in zip(first, second, strict=True)]

    alone = replace(groups, flags=((),) * len(groups.flags), sizes=())
    return groups.batched(one)(*values)


def _of_tangents(
    primals: Sequence[Any],
    cts: Sequence[Any],
    tangents: Sequence[Any],
    along: Sequence[int],
    by: Sequence[int],
    groups: Groups,
) -> list[Any]:
    """`∇⟨c, J(p) dp⟩` by some operands; the tangents are those along others, or the same."""

    if not (along and by):
        return [jnp.zeros_like(primals[i]) for i in by]

    def pushed(*moved: Any) -> list[Any]:
        own = dict(zip(by, moved, strict=True))
        given = [own.get(i, x) for i, x in enumerate(primals)]
        return _pushed(given, tangents, along, groups)

    _, pull = jax.vjp(pushed, *(primals[i] for i in by))
    return list(pull(list(cts)))


def _pushed(
    primals: Sequence[Any], tangents: Sequence[Any], along: Sequence[int], groups: Groups
) -> list[Any]:
    """`J(p) dp` with all lane axes."""
    job: Job = groups.of.job
    active = tuple(i in along for i in range(len(primals)))
    axes = tuple(job.mapped[i] for i in along)
    params = Params(job.program, job.lanes, job.mapped, job.options)
    _, moved, _ = push_forward(primals, tangents, active, params, axes, job.mapped)
    found = params.answer_axes
    whole = (True,) * len(job.lanes)
    return [
        with_axes(x, has, whole, job.lanes)
        for x, has, flag in zip(moved, found, groups.of.out_active, strict=True)
        if flag
    ]


def _transpose_second(cts: Sequence[Any], *values: Any, groups: Groups) -> list[Any]:
    """Adjoints of tangents: `∇ₚ⟨c, J(p) u⟩` of `dp`, and `J(p) u` of `dc`."""

    def one(*values: Any) -> list[Any]:
        primals, _, given, own = groups.apart(values)
        first = _of_tangents(primals, given, own, groups.moved, groups.active, groups)
        return [*first, *_pushed(primals, own, groups.moved, groups)]

    known = values[: len(groups.flags)]
    own = [ad.instantiate_zeros(ct) for ct in cts]
    found = groups.batched(one)(*known, *own)
    wanted = map(ad.is_undefined_primal, values[len(known) :])
    return [*[None] * len(known), *(x if w else None for x, w in zip(found, wanted, strict=True))]


ad.primitive_transposes[second_p] = _transpose_second


def _jvp_adjoints(primals: Sequence[Any], tangents: Sequence[Any], *, groups: Groups) -> Any:
    outs = adjoints_p.bind(*primals, groups=groups)
    groups = groups.with_active([type(t) is not ad.Zero for t in tangents])
    return outs, second_p.bind(*primals, *groups.tangents(tangents), groups=groups)


def _linearize_adjoints(nonzero: Sequence[bool], *primals: Any, groups: Groups) -> Any:
    outs = adjoints_p.bind(*primals, groups=groups)
    groups = groups.with_active(nonzero)

    def tangents_of(residuals: Sequence[Any], *tangents: Any) -> list[Any]:
        return second_p.bind(*residuals, *groups.tangents(tangents), groups=groups)

    return outs, [True] * len(outs), list(primals), tangents_of


ad.primitive_jvps[adjoints_p] = _jvp_adjoints
_jax.on_linearize(adjoints_p, _linearize_adjoints)


# Of a third order on.
_jax.differentiated_as(second_p, _second)


def _run_as(primitive: Any, run: Callable[..., list[Any]]) -> None:
    """Have a primitive run, batched, staged and lowered as this function is."""
    primitive.def_impl(run)

    @primitive.def_abstract_eval
    def _(*avals: Any, groups: Groups) -> list[Any]:
        shapes = [avals[i].shape[sum(groups.flags[i]) :] for i in groups.moved]
        dtypes = [avals[i].dtype for i in groups.moved]
        return [_jax.shaped((*groups.sizes, *s), d) for s, d in zip(shapes, dtypes, strict=True)]

    def batched(
        axis_data: Any, values: Sequence[Any], dims: Sequence[Any], *, groups: Groups
    ) -> Any:
        if all(d is None for d in dims):
            outs = primitive.bind(*values, groups=groups)
            return outs, [None] * len(outs)
        values = [jnp.moveaxis(x, d, 0) if d else x for x, d in zip(values, dims, strict=True)]
        num, size = len(groups.flags), axis_data.size
        # Tangents have all axes.
        tangents = [
            x if d is not None else jnp.broadcast_to(x, (size, *x.shape))
            for x, d in zip(values[num:], dims[num:], strict=True)
        ]
        outs = primitive.bind(*values[:num], *tangents, groups=groups.with_axis(size, dims))
        return outs, [0] * len(outs)

    batching.fancy_primitive_batchers[primitive] = batched
    _jax.lowered_as(primitive, run)


_run_as(adjoints_p, _adjoints)
_run_as(second_p, _second)
