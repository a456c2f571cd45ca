"""The reverse of a program, as one operation that is run later.

`jax.checkpoint` stages the transpose of what it holds, and then runs it, operation by operation. A program that is run
by levels has to know what decides its control. So its reverse is staged whole here, and taken when its operands are
there: the forward run again, which is what a checkpoint asks for, and the reverse of the table.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import batching
from lanewise.core.errors import OptionError, TransformError
from lanewise.core.program import Program
from lanewise.job.job import Params, with_axes

pulled_p = _jax.primitive("pulled")


def pulled(
    primals: Sequence[Any],
    cts: Sequence[Any],
    active: Sequence[bool],
    whole: int = 0,
    **params: Any,
) -> list[Any]:
    """Adjoints of the active operands, of those of all answers with tangents; `params` are those of `program_p`.

    Adjoints of answers have the first `whole` lane axes, and of the others those that the answers have.
    """
    return pulled_p.bind(*primals, *cts, active=tuple(active), whole=whole, **params)


@pulled_p.def_impl
def _run(*values: Any, active: tuple[bool, ...], whole: int, **params: Any) -> list[Any]:
    primals, cts = values[: len(active)], values[len(active) :]
    own = Params(**params)

    def run(*given: Any) -> list[Any]:
        outs = zip(own.bind(*given), own.answer_axes, own.program.out_avals)
        return [
            with_axes(x, has, (*(True,) * whole, *has[whole:]), own.lanes)
            for x, has, aval in outs
            if _jax.has_tangent(aval)
        ]

    of_moved, moved = _jax.restricted(run, primals, active)
    _, pull = jax.vjp(of_moved, *moved)
    return list(pull(list(cts)))


@pulled_p.def_abstract_eval
def _(*avals: Any, active: tuple[bool, ...], **params: Any) -> list[Any]:
    del params
    moved = itertools.compress(avals, active)
    return [_jax.shaped(aval.shape, aval.dtype) for aval in moved]


def _batched(
    axis_data: Any, values: Sequence[Any], dims: Sequence[Any], **params: Any
) -> tuple[list[Any], list[int]]:
    """One more lane axis. An active operand has an adjoint for each lane of it, so it is taken to differ."""
    size, active, num = axis_data.size, params["active"], len(params["active"])
    first = [jnp.moveaxis(x, d, 0) if d else x for x, d in zip(values, dims, strict=True)]
    has = [d is not None for d in dims]
    wanted = [*(a or b for a, b in zip(has, active, strict=False)), *[True] * (len(has) - num)]
    first = [
        jnp.broadcast_to(x, (size, *x.shape)) if want and not there else x
        for x, there, want in zip(first, has, wanted, strict=True)
    ]
    mapped = tuple((a, *axes) for a, axes in zip(wanted, params["mapped"], strict=False))
    changed = {"lanes": (size, *params["lanes"]), "mapped": mapped, "whole": params["whole"] + 1}
    outs = pulled_p.bind(*first, **{**params, **changed})
    return outs, [0] * len(outs)


def _to_derive(*values: Any, program: Program, **params: Any) -> list[Any]:
    """A derivative of the reverse is a program of other operands, which has to know its control at once."""
    try:
        return _run(*values, program=program, **params)
    except OptionError as error:
        raise TransformError(
            f"a derivative of a gradient of `{program.name}`, which is run by levels, inside jax.checkpoint, where no"
            ' values are known. Take jax.checkpoint away for it, or use schedule="sweep".'
        ) from error


batching.fancy_primitive_batchers[pulled_p] = _batched
_jax.differentiated_as(pulled_p, _to_derive)
_jax.lowered_as(pulled_p, _run)
