"""What the pieces of a program are, what keeps it from having any, and when `auto` runs it by levels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise import _jax
from lanewise.core.primitives.facts import eqn_cost
from lanewise.dynamic.levels import by_levels
from lanewise.dynamic.pieces import MOVED_BYTE, Kind
from lanewise.errors import OptionError
from lanewise.plan import choose
from lanewise.plan.choose import FEWEST_LANES_BY_LEVELS

WIDTH = 16


@lw.record
class Tree:
    word: int
    left: Tree | None = None
    right: Tree | None = None


def weights(width: int = WIDTH) -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(width), jnp.float32)

    names = ("leaf", "i", "f", "u", "left", "right")
    return {"words": matrix(9, width)} | {name: matrix(width, width) for name in names}


def forest(lanes: int = 3) -> Any:
    some = [Tree(1), Tree(2, Tree(3), Tree(4)), Tree(5, Tree(6, Tree(7), Tree(8)), Tree(1))]
    return lw.pack([some[i % 3] for i in range(lanes)])


def inspected(program: Any, *args: Any, **options: Any) -> Any:
    axes = (0, *[None] * (len(args) - 1))
    return lw.inspect(program.with_options(**options), *args, in_axes=axes)


def kinds(program: Any, *args: Any) -> list[Kind]:
    job = inspected(program, *args, schedule="levels").plan.job
    return list(by_levels(job.program, job.varying, None).pieces.kinds.values())


def primitives(kind: Kind) -> list[str]:
    return [eqn.primitive.name for eqn in kind.piece.code.eqns]


def same(program: Any, *args: Any) -> None:
    axes = (0, *[None] * (len(args) - 1))

    def loss(w: Any, **options: Any) -> Any:
        return jnp.sum(lw.vmap(program, in_axes=axes, **options)(*args[:-1], w) ** 2)

    pairs = [
        jax.value_and_grad(loss)(args[-1], **options)
        for options in ({"schedule": "levels"}, {"carrier": "native"})
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), *pairs)


@lw.program
def gated(tree, w):
    """Three products of each word, one after the other, before the calls."""
    x = w["words"][tree.word]
    i, f, u = jax.nn.sigmoid(x @ w["i"]), jax.nn.sigmoid(x @ w["f"]), jnp.tanh(x @ w["u"])
    if tree.left is None:
        return i * u
    return i * u + f * (gated(tree.left, w) @ w["left"] + gated(tree.right, w) @ w["right"])


def test_products_of_payload_are_one_and_come_first() -> None:
    found = kinds(gated, forest(), weights())
    # What is looked up and multiplied waits for nothing; what adds the children waits for them.
    first = [k for k in found if not k.rows]
    assert len(first) == 1
    assert primitives(first[0]).count("dot_general") == 1
    assert "concatenate" in primitives(first[0])
    later = [k for k in found if k.rows and "dot_general" in primitives(k)]
    assert [primitives(k).count("dot_general") for k in later] == [2]
    same(gated, forest(), weights())


@lw.program
def light(tree, w):
    """What is looked up before a branch is part of both sides."""
    x = w["words"][tree.word]
    if tree.left is None:
        return x
    return jnp.tanh(light(tree.left, w) * x + light(tree.right, w))


def test_cheap_work_sinks_into_branches() -> None:
    found = kinds(light, forest(), weights())
    assert len(found) == 2
    assert sorted(len(k.rows) for k in found) == [0, 2]
    assert all(len(k.payload) == 1 for k in found)
    same(light, forest(), weights())


@lw.program
def choosing(tree, w):
    """A branch that depends on values and makes no call: both sides run."""
    if tree.left is None:
        return w["words"][tree.word]
    h = jnp.tanh(choosing(tree.left, w) @ w["left"] + choosing(tree.right, w) @ w["right"])
    if h[0] > 0:
        h = jnp.sin(h)
    return h


def test_a_branch_on_values_is_one_equation() -> None:
    found = kinds(choosing, forest(), weights())
    assert any("cond" in primitives(k) for k in found)
    same(choosing, forest(), weights())


@lw.program
def parsing(tree, w):
    if tree.left is None:
        return w["words"][tree.word]
    h = parsing(tree.left, w) @ w["left"]
    if h[0] > 0:
        h = h + parsing(tree.right, w)
    return h


def test_control_that_depends_on_values_is_named() -> None:
    args = forest(), weights()
    with pytest.raises(OptionError) as error:
        lw.vmap(parsing, in_axes=(0, None), schedule="levels")(*args)
    lines = [i for i, text in enumerate(open(__file__), 1) if "parsing(tree.left, w) @" in text]
    assert "control depends on values: the test of the branch at" in str(error.value)
    assert f"dot_general at {__file__}:{lines[0]}" in str(error.value)
    levels = inspected(parsing, *args).levels
    assert levels.startswith("not batched inside each lane: control depends on values")


@lw.program
def iterating(tree, w):
    h = w["words"][tree.word] @ w["leaf"]
    while jnp.sum(h**2) > 0.5:
        h = h * 0.5 if tree.left is None else h * iterating(tree.left, w)
    return h


def test_a_loop_on_values_that_makes_calls_is_an_obstacle() -> None:
    with pytest.raises(OptionError, match="the test of the loop at"):
        lw.vmap(iterating, in_axes=(0, None), schedule="levels")(forest(), weights())


def test_effects_are_an_obstacle() -> None:
    @lw.program
    def printing(n, w):
        jax.debug.print("{}", n)
        return w * n if n < 2 else printing(n - 1, w) * w

    with pytest.raises(OptionError, match="has an effect"):
        lw.vmap(printing, in_axes=(0, None), schedule="levels")(jnp.arange(3), 2.0)


def test_inspect_shows_the_slice_and_the_pieces() -> None:
    found = inspected(gated, forest(), weights(), schedule="levels")
    assert found.plan.schedule == "levels"
    assert "3 lanes, control first" in found.work
    assert "pieces" in found.levels
    assert "int32[] of control" in found.levels
    assert "slice of gated" in str(found)


@lw.program
def mixed(words, w, wide, flags):
    """Payload of several types: a loop over an array, a number of 64 bits or 32, a flag, a small array."""
    total, i = w["words"][0], 0
    while words[i] > 0:
        pair = jnp.array([words[i], i])
        high = wide + words[i]
        flag = flags[i]
        if flag:
            total = jnp.tanh(total + w["words"][pair[0]] * pair[1])
        else:
            total = total * high.astype(total.dtype) / 1000
        i += 1
    return total, i, flag_count(flags, i)


def flag_count(flags: Any, i: Any) -> Any:
    return jnp.sum(jnp.where(jnp.arange(flags.shape[0]) < i, flags, False))


@pytest.mark.parametrize("wide", [False, True])
def test_payload_of_all_integers(wide: bool) -> None:
    with jax.enable_x64(wide):
        w = {"words": jnp.asarray(weights()["words"])}
        words = jnp.array([[3, 2, 0, 0], [1, 8, 4, 0], [0, 0, 0, 0]])
        number = jnp.asarray(3_000_000_000 if wide else 3_000_000, int)
        flags = jnp.array([[True, False, True, True]] * 3)
        args = words, w, number, flags
        axes = (0, None, None, 0)
        found = lw.vmap(mixed, in_axes=axes, schedule="levels")(*args)
        expected = lw.vmap(mixed, in_axes=axes, carrier="native")(*args)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_auto_picks_levels_for_large_products_alone() -> None:
    lanes = FEWEST_LANES_BY_LEVELS
    wide, narrow = weights(320), weights()
    assert inspected(gated, forest(lanes), wide).plan.schedule == "levels"
    assert inspected(gated, forest(lanes), narrow).plan.schedule != "levels"
    assert inspected(gated, forest(lanes // 2), wide).plan.schedule != "levels"
    assert inspected(gated, forest(lanes), wide, schedule="sweep").plan.schedule == "sweep"
    refused = inspected(parsing, forest(lanes), wide).plan
    assert refused.schedule != "levels"
    assert "not by levels: control depends on values" in refused.why


@lw.program
def turned(tree, w):
    """A matrix at each node: its product with the shared one is over as many rows already."""
    if tree.left is None:
        return w["words"][tree.word] * w["leaf"]
    return jnp.tanh(turned(tree.left, w) @ w["left"] + turned(tree.right, w) @ w["right"])


def test_products_with_rows_of_their_own_are_no_reason_for_levels() -> None:
    some, w = forest(FEWEST_LANES_BY_LEVELS), weights(64)
    plan = inspected(turned, some, w).plan
    job = inspected(turned, some, w, schedule="levels").plan.job
    pieces = by_levels(job.program, job.varying, None).pieces
    most = max(
        sum(eqn_cost(eqn).products for eqn in kind.piece.code.eqns)
        for kind in pieces.kinds.values()
    )
    # By operations alone, less the matrix that is written, levels would be picked.
    assert most - MOVED_BYTE * 4 * 64 * 64 > plan.job.profile.level_products > pieces.products
    assert plan.schedule != "levels"


def test_auto_differentiates_by_levels_and_inside_jit_otherwise() -> None:
    some, w = forest(FEWEST_LANES_BY_LEVELS), weights(320)

    def loss(w: Any, some: Any, **options: Any) -> Any:
        return jnp.sum(lw.vmap(gated, in_axes=(0, None), **options)(some, w) ** 2)

    value, grads = jax.value_and_grad(loss)(w, some)
    by_levels, expected = jax.value_and_grad(lambda w: loss(w, some, schedule="levels"))(w)
    assert float(value) == float(by_levels)
    jax.tree.map(np.testing.assert_array_equal, grads, expected)
    jitted = jax.jit(loss)(w, some)
    np.testing.assert_allclose(jitted, value, rtol=1e-4)


def test_a_gpu_takes_levels_if_control_has_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    some, w = forest(FEWEST_LANES_BY_LEVELS), weights(64)
    job = replace(inspected(gated, some, w).plan.job, platform="gpu")
    # Lanes would meet where there is a GPU to compile for.
    monkeypatch.setattr(choose, "meets_at_products", lambda found: True)
    by_levels_if_better = choose._by_levels_if_better.__wrapped__
    assert by_levels_if_better(job, None).schedule == "levels"
    assert by_levels_if_better(replace(job, platform="cpu"), None).schedule != "levels"
    monkeypatch.setattr(_jax, "has_platform", lambda platform: platform != "cpu")
    without = by_levels_if_better(job, None)
    assert without.schedule != "levels" and "JAX has no CPU here" in without.why
