"""Reverse mode over the corpus: what it gives is what forward mode, finite differences and JAX's own rules give.

In float64, so that the tolerance is tight enough to see a wrong term. Compiling is the cost: a program meets one
setting of `checkpoints` alone, another in a batch, or both, in turns, and `vmap(grad)` or `grad` of a sum over `vmap`.
LANEWISE_FULL=1 runs all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comparing import assert_same, lane_axes, lanes_of, take
from corpus import CORPUS, Case
from derivatives import inner, of_smooth, random_like, to_scalar

FULL = bool(os.environ.get("LANEWISE_FULL"))
SETTINGS = ("auto", "all", "sqrt", 3)
LANES = 4
STEP = 1e-6

# The derivative of `jnp.max` looks for the entry that is the maximum. Compiled without optimization, as the tests are,
# XLA rounds that entry once with and once without a fused multiply-add, and finds none: plain JAX gives NaN here too.
ROUNDED_APART = {"runge_kutta_45"}

CASES = [c for c in CORPUS if c.differentiable and c.name not in ROUNDED_APART]


def in_turns(first: int) -> Any:
    """Cases with settings: for each the next one, or all."""
    runs = [
        pytest.param(case, setting, id=f"{case.name}-{setting}")
        for at, case in enumerate(CASES)
        for turn, setting in enumerate(SETTINGS)
        if FULL or (turn == (at + first) % len(SETTINGS) and at % 3 == first)
    ]
    return pytest.mark.parametrize(("case", "setting"), runs)


def examples(case: Case) -> Any:
    """A small batch in float64."""
    found = case.examples(np.random.default_rng(1), LANES)
    wide = {np.dtype(np.float32): np.float64, np.dtype(np.complex64): np.complex128}
    return jax.tree.map(lambda x: jnp.asarray(x, wide.get(x.dtype, x.dtype)), found)


def of_moved(case: Case, fun: Callable[..., Any], args: Any) -> tuple[Callable[..., Any], Any]:
    """A number made of a case's answers, of the arguments by which it is differentiable; and those arguments."""

    def taking(*moved: Any) -> Any:
        given = list(args)
        for at, value in zip(case.differentiable, moved, strict=True):
            given[at] = value
        return fun(*given)

    return of_smooth(to_scalar(taking), tuple(args[at] for at in case.differentiable))


def jax_gradient(fun: Callable[..., Any], at: Any) -> Any:
    """JAX's gradient of a `jax.lax` form: in reverse, or forward where there is a loop it cannot reverse."""
    try:
        return jax.jit(jax.grad(fun))(at)
    except ValueError:
        return jax.jit(jax.jacfwd(fun))(at)


@in_turns(0)
def test_a_lone_call(case: Case, setting: Any) -> None:
    """Reverse mode gives what forward mode gives, and JAX for the form in `jax.lax`."""
    with jax.enable_x64(True):
        args = take(case.in_axes, examples(case), LANES - 1)
        scalar, smooth = of_moved(case, case.program.with_options(checkpoints=setting), args)
        direction = random_like(smooth, 2)

        @jax.jit
        def found(smooth: Any) -> Any:
            return jax.grad(scalar)(smooth), jax.jvp(scalar, (smooth,), (direction,))[1]

        gradient, forward = found(smooth)
        assert_same(inner(gradient, direction), forward, 1e-9)
        if case.lax_form:
            plain, _ = of_moved(case, case.lax_form, args)
            assert_same(gradient, jax_gradient(plain, smooth), max(1e-9, case.rtol * 1e-3))


@in_turns(1)
def test_a_batch(case: Case, setting: Any) -> None:
    """Lanes of different trip counts, against differences; what lanes share has the sum of their adjoints."""
    with jax.enable_x64(True):
        args = examples(case)
        assert lanes_of(case.in_axes, args) == LANES
        program = case.program.with_options(checkpoints=setting)
        axes = jax.tree.unflatten(jax.tree.structure(args), lane_axes(case.in_axes, args))
        moved = tuple(args[at] for at in case.differentiable)
        moved_axes = tuple(axes[at] for at in case.differentiable)
        directions = random_like(moved, 2)

        def one(moved: Any, args: Any) -> Any:
            scalar, _ = of_moved(case, program, args)
            return scalar(jax.tree.leaves(moved))

        each = jax.vmap(one, (moved_axes, axes))
        inside = CASES.index(case) % 2 or FULL

        @jax.jit
        def found(moved: Any, args: Any) -> Any:
            def along(t: Any) -> Any:
                return each(jax.tree.map(lambda x, d: x + t * d, moved, directions), args)

            ahead, behind = jax.lax.map(along, jnp.array([STEP, -STEP]))
            whole = rows = None
            if inside:
                rows = jax.vmap(jax.grad(one), (moved_axes, axes))(moved, args)
            if FULL or not inside:
                whole = jax.grad(lambda moved: each(moved, args).sum())(moved)
            return (ahead - behind) / (2 * STEP), rows, whole

        slopes, rows, whole = found(moved, args)
        if rows is not None:
            for lane in range(LANES):
                own = jax.tree.leaves(take(0, rows, lane))
                along = jax.tree.leaves(take(moved_axes, directions, lane))
                assert_same(inner(own, along), slopes[lane], 1e-5)
        if whole is not None:
            own = inner(jax.tree.leaves(whole), jax.tree.leaves(directions))
            assert_same(own, slopes.sum(), 1e-5)
