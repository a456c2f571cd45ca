"""Random numbers from keys that JAX does not batch key by key.

JAX's `rbg` and `unsafe_rbg` keys are for XLA's own generator, which draws for one key. Under `jax.vmap` JAX draws for
the whole batch from the first key: a lane's numbers would depend on its neighbours. So before a program runs,
each equation that draws from such a key is wrapped in `draw`, whose batching rule draws for one lane after the other,
as a lone call would. Keys of threefry, JAX's default, need none of this: they are hashed by ordinary arithmetic.

This happens where a program runs, and not where it is traced, so that derivatives are JAX's own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise._jax import JaxprEqn, batching, mlir
from lanewise.core.options import Options
from lanewise.core.primitives.facts import facts_of
from lanewise.core.program import (
    Program,
    program_p,
    with_equations,
    with_options_inside,
    without_part,
)


@dataclass(frozen=True, eq=False)
class Draw:
    """The equation that draws."""

    eqn: JaxprEqn


draw_p = _jax.primitive("draw")


def as_it_runs(program: Program, options: Options) -> Program:
    """The program with what is inside it run with these options, and random numbers drawn lane by lane."""
    return drawing_by_lane(with_options_inside(program, options.unwatched()))


@functools.lru_cache(maxsize=512)
def drawing_by_lane(program: Program, parts: bool = False) -> Program:
    """The same program, with numbers drawn for each lane separately; the same object if it does so already.

    `parts`: what has a name keeps it. A program with places is run by `place/`; elsewhere a part is the code it holds.
    """

    def change(eqn: JaxprEqn) -> JaxprEqn:
        if eqn.primitive is program_p:
            inner = drawing_by_lane(eqn.params["program"], parts)
            same = inner is eqn.params["program"]
            return eqn if same else eqn.replace(params={**eqn.params, "program": inner})
        if not _draws(eqn):
            return eqn if parts else without_part(eqn)
        return eqn.replace(primitive=draw_p, params={"draw": Draw(eqn)})

    return with_equations(program, change)


def _draws(eqn: JaxprEqn) -> bool:
    """Whether an equation draws from a key that has to be drawn from separately."""
    if eqn.primitive.name == "rng_bit_generator":
        return True
    if not facts_of(eqn).draws or not _jax.is_key(eqn.invars[0].aval):
        return False
    return _jax.key_implementation(eqn.invars[0].aval.dtype) != "threefry2x32"


def _drawn(*args: Any, draw: Draw) -> list[Any]:
    return _jax.run_eqn(draw.eqn, args)


draw_p.def_impl(_drawn)
mlir.register_lowering(draw_p, mlir.lower_fun(_drawn, multiple_results=True))


@draw_p.def_abstract_eval
def _draw_abstract(*args: Any, draw: Draw) -> list[Any]:
    return _jax.varying_as([var.aval for var in draw.eqn.outvars], args)


def _one_lane_after_the_other(
    axis_data: Any, args: Sequence[Any], dims: Sequence[int | None], *, draw: Draw
) -> tuple[list[Any], list[int]]:
    del axis_data
    moved = [jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True) if d is not None]

    def one(own: list[Any]) -> list[Any]:
        lane = iter(own)
        values = [x if d is None else next(lane) for x, d in zip(args, dims, strict=True)]
        return draw_p.bind(*values, draw=draw)

    outs = lax.map(one, moved)
    return outs, [0] * len(outs)


batching.fancy_primitive_batchers[draw_p] = _one_lane_after_the_other


def _jvp_draw(primals: Sequence[Any], tangents: Sequence[Any], *, draw: Draw) -> Any:
    moves = [type(t) is not _jax.ad.Zero for t in tangents]
    run, own = _jax.restricted(functools.partial(_drawn, draw=draw), primals, moves)
    return jax.jvp(run, own, list(itertools.compress(tangents, moves)))


_jax.ad.primitive_jvps[draw_p] = _jvp_draw
