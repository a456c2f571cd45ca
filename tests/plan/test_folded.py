"""Axes of lanes that go inside of each lane: the answers are those of `jax.vmap`, and which axes go inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
import needs
from lanewise.cpp.toolchain import foreign
from lanewise.job.job import Job
from lanewise.plan.folded import FEWEST_LANES, MOST_INSIDE, Folded, folded
from lanewise.rules import run

pytestmark = needs.on_cpu  # it asks for `native`

LANES = FEWEST_LANES + 8
XS = jnp.linspace(0.1, 1.7, LANES)
WEIGHTS = jnp.array([0.3, -0.5, 0.2])
CARRIERS = ["auto", "ticks", *(["native"] if foreign.available() else [])]


def relax(x: Any, weights: Any) -> Any:
    """A loop whose length depends on `x` alone, and what is linear in the weights."""
    turns = jnp.int32(10 * x) + 1

    def turn(carry: Any) -> Any:
        y, total, i = carry
        return 0.5 * y + 0.1 * x, total + jnp.dot(weights, jnp.array([1.0, y, y * y])), i + 1

    y, total, i = lax.while_loop(lambda carry: carry[2] < turns, turn, (x, 0.0 * x, 0))
    return {"y": y, "total": total, "turns": i}


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Folded | None]]:
    """What was found for each program with several axes of lanes."""
    found: list[Folded | None] = []

    def seen(job: Job) -> Folded | None:
        fold = folded(job)
        if len(job.lanes) > 1:
            found.append(fold)
        return fold

    monkeypatch.setattr(run, "folded", seen)
    yield found


def same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def of_the_batch(vmap: Callable[..., Any], fun: Callable[..., Any]) -> Callable[..., Any]:
    """The directions outside of the lanes."""

    def run(xs: Any, weights: Any) -> Any:
        out = vmap(fun, in_axes=(0, None))(xs, weights)
        return {"y": out["y"], "total": out["total"]}, out["turns"]

    return jax.jacfwd(run, argnums=1, has_aux=True)


def of_each_lane(vmap: Callable[..., Any], fun: Callable[..., Any]) -> Callable[..., Any]:
    """The directions inside of the lanes, as axes of lanes that come first."""

    def one(x: Any, weights: Any) -> Any:
        out = fun(x, weights)
        return {"y": out["y"], "total": out["total"]}, out["turns"]

    return jax.vmap(jax.jacfwd(one, argnums=1, has_aux=True), in_axes=(0, None))


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("way", [of_the_batch, of_each_lane])
@pytest.mark.parametrize("inside_jit", [True, False], ids=["jit", "eager"])
def test_forward_jacobians(
    inside: list[Folded | None], way: Callable[..., Any], carrier: str, inside_jit: bool
) -> None:
    run = way(lw.vmap, lw.lift(relax, carrier=carrier))
    found = (jax.jit(run) if inside_jit else run)(XS, WEIGHTS)
    same(found, way(jax.vmap, relax)(XS, WEIGHTS))
    folds = [fold for fold in inside if fold is not None]
    assert folds
    assert all(fold.inner.lanes == (LANES,) for fold in folds)


def test_an_operand_with_both_axes_and_answers_with_either(inside: list[Folded | None]) -> None:
    def fun(x: Any, shift: Any, scale: Any) -> Any:
        out = relax(x, WEIGHTS)
        return out["y"], out["y"] * scale + shift, scale + 1.0, out["turns"]

    shifts, scales = jnp.arange(3.0 * LANES).reshape(3, LANES), jnp.array([1.0, -2.0, 0.5])

    def both(vmap: Callable[..., Any], fun: Callable[..., Any]) -> Any:
        lanes = vmap(fun, in_axes=(0, 0, None))
        return jax.vmap(lanes, in_axes=(None, 0, 0), out_axes=(None, 1, 0, None))

    expected = both(jax.vmap, fun)(XS, shifts, scales)
    same(jax.jit(both(lw.vmap, lw.lift(fun)))(XS, shifts, scales), expected)
    same(both(lw.vmap, lw.lift(fun))(XS, shifts, scales), expected)
    assert any(fold is not None for fold in inside)


@pytest.mark.parametrize("inside_jit", [True, False], ids=["jit", "eager"])
def test_outcomes_have_all_axes(inside: list[Folded | None], inside_jit: bool) -> None:
    lanes = lw.vmap(lw.lift(relax), in_axes=(0, None), throw=False)
    run = jax.vmap(lanes, in_axes=(None, 0))
    answers, outcomes = (jax.jit(run) if inside_jit else run)(XS, jnp.stack([WEIGHTS] * 3))
    assert any(fold is not None for fold in inside)
    assert outcomes.code.shape == outcomes.site.shape == (3, LANES)
    assert outcomes.ok().all()
    expected = jax.vmap(relax, in_axes=(0, None))(XS, WEIGHTS)
    same(answers, jax.tree.map(lambda x: jnp.stack([x] * 3), expected))


@pytest.mark.parametrize(
    ("lanes", "directions"), [(FEWEST_LANES - 1, 3), (LANES, MOST_INSIDE + 1)], ids=["few", "long"]
)
def test_left_outside(inside: list[Folded | None], lanes: int, directions: int) -> None:
    weights = jnp.zeros((directions, 3)) + WEIGHTS
    run = jax.vmap(lw.vmap(lw.lift(relax), in_axes=(0, None)), in_axes=(None, 0))
    found = jax.jit(run)(XS[:lanes], weights)
    assert inside
    assert not any(inside)
    expected = jax.vmap(relax, in_axes=(0, None))(XS[:lanes], WEIGHTS)
    np.testing.assert_allclose(found["total"][-1], expected["total"], rtol=1e-5)


def test_lanes_that_go_their_own_ways_stay_outside(inside: list[Folded | None]) -> None:
    def fun(x: Any, n: Any) -> Any:
        y, _ = lax.while_loop(lambda c: c[1] < n, lambda c: (0.5 * c[0], c[1] + 1), (x, 0))
        return y, 2 * x

    counts = jnp.array([0, 3, 1])
    found = jax.jit(jax.vmap(lw.vmap(lw.lift(fun), in_axes=(0, None)), in_axes=(None, 0)))(
        XS, counts
    )
    assert inside
    assert not any(inside)
    np.testing.assert_allclose(found[0], XS * 0.5 ** counts[:, None], rtol=1e-6)
    np.testing.assert_allclose(found[1], jnp.stack([2 * XS] * 3), rtol=1e-6)
