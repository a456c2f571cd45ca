"""Lanes of placed programs end each by itself: the outcomes and answers of the same batch in one piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.place.placement import placement_from
from lanewise.place.prepared import ask
from lanewise.place.project import dry_run

TWO = {"first": 0, "second": 1}


def first(x: Any) -> Any:
    return lw.placed(lambda x: jnp.sin(x) + x, "first")(x)


def second(x: Any) -> Any:
    return lw.placed(lambda x: jnp.cos(x) * 0.5, "second")(x)


@lw.program
def straight(x):
    y = first(x)
    assert x > 0, "not positive"
    z = second(y)
    assert z < 0.3, "too large"
    return y + z


@lw.program
def halves(x):
    """A lane below 0 would never end, and one that is at 1 asserts later than the others end."""
    turns = 0
    while x > 1e-3 or x < 0:
        assert x >= 0, "below"
        x = second(x) * first(x) / (1 + x)
        turns += 1
        assert turns < 40, "too many turns"
    return x, turns


@lw.program
def in_a_branch(x):
    total = 0.0
    for k in range(4):
        if x > k:
            total = total + first(x - k)
            if x > 3:
                assert total < 6, "a large sum"
        else:
            total = second(total)
    return total


@lw.program
def root(x):
    """Does not end below 0, nor at NaN."""
    y = x + 1
    while not jnp.abs(y * y - x) < 1e-3 * (1 + x):
        y = 0.5 * (y + x / y)
    return y


@lw.program
def calls_a_machine(x):
    y = first(x)
    assert x > 0.4, "small"
    return second(y) + lw.placed(root, "second")(x - 0.1) + root(x - 0.3)


@lw.program
def size(n):
    if n < 2:
        assert n > -2, "no size"
        return 1
    return size(n - 1) + size(n - 2)


@lw.program
def calls_a_recursion(x):
    y = first(x)
    assert x < 3.5, "too large for a tree"
    n = size((2 * x).astype(jnp.int32))
    return second(y) + n


@lw.program
def inner(x):
    y = first(x)
    assert y < 3, "a large sine"
    return second(y)


@lw.program
def of_programs(x):
    total = x
    for k in range(3):
        total = total + inner(x + k * 0.5)
        assert total > -0.5, "negative"
    return total


@lw.program
def asserts_in_a_test(x):
    turns = 0
    while inner(x) > 0.1 and turns < 5:
        x = first(x)
        turns += 1
    return x, turns


@lw.program
def asserts_in_a_part(x):
    x = lw.placed(lambda x: of_programs(x) + inner(x), "first")(x)
    return second(x) + root(x + 1)


@lw.program
def draws(x):
    """From a key that JAX does not batch key by key."""
    key = jax.random.key(jnp.int32(10 * x), impl="rbg")
    for k in range(2):
        noise = jax.random.uniform(jax.random.fold_in(key, k))
        x = first(x + noise)
        assert x < 3, "large"
    return second(x + jax.random.normal(key))


@lw.program
def never_fails(x):
    return second(first(x))


CASES: list[Any] = [
    straight,
    halves,
    in_a_branch,
    calls_a_machine,
    calls_a_recursion,
    of_programs,
    asserts_in_a_test,
    asserts_in_a_part,
    draws,
    never_fails,
]
X = jnp.array([0.5, -1.0, 1.0, 4.0, 0.3, -0.2, 2.5])


def run_placed(fun: Callable[..., Any], *args: Any) -> tuple[Any, list[Any], Any]:
    """What a function gives when it is divided, the codes and sites that it throws, and what it was divided into."""
    leaves, tree = jax.tree.flatten((args, {}))
    asked = ask(fun, "f", placement_from(TWO), leaves, tree)
    prepared = asked.divided(False)
    _, outs = dry_run(prepared.actions, prepared.placement.everywhere, [*asked.captured, *leaves])
    count = asked.out_tree.num_leaves
    return jax.tree.unflatten(asked.out_tree, outs[:count]), outs[count:], prepared


def same(one: Any, other: Any) -> None:
    for mine, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("program", CASES, ids=lambda program: program.__name__)
def test_outcomes_are_those_of_the_batch_in_one_piece(program: Any) -> None:
    batch = lw.vmap(program, throw=False)
    want, (got, throws, _) = batch(X), run_placed(batch, X)
    same(got, want)
    assert got[1].sites == want[1].sites and throws == []
    code, site = want[1].code, want[1].site
    _, throws, prepared = run_placed(lw.vmap(program), X)
    assert len({place for step in prepared.actions.computes() for place in step.places}) == 2
    assert not throws or (throws[0].tolist(), throws[1].tolist()) == (code.tolist(), site.tolist())
    assert bool(throws) == bool((code != 0).any()) == (program is not never_fails)


@pytest.mark.parametrize("program", [straight, halves], ids=lambda program: program.__name__)
def test_a_single_call_gives_its_outcome(program: Any) -> None:
    one = program.with_options(throw=False)
    for x in X[:3]:
        same(run_placed(one, x)[0], one(x))


def test_an_assertion_in_a_counted_loop_costs_no_message_in_it() -> None:
    def moves(limit: float | None) -> int:
        @lw.program
        def counted(x, n):
            for _ in range(n):
                x = first(x)
                if limit is not None:
                    with lw.on("first"):
                        assert jnp.all(x < limit), "large"
                x = second(x)
            return x

        whole = lw.vmap(counted, in_axes=(0, None))
        _, throws, prepared = run_placed(whole, X, 5)
        assert len(throws) == (0 if limit is None else 2)
        return len(prepared.actions.moves())

    # How lanes ended goes to the other process once, after the loop.
    assert moves(100.0) == moves(None) + 2


def test_programs_in_plain_control_flow_say_how_each_lane_ended() -> None:
    batch = lw.vmap(straight)

    def plain(x, flag):
        def step(x, t):
            return x, batch(x + t)

        _, rows = jax.lax.scan(step, x, jnp.arange(3.0), reverse=True)
        y = jax.lax.cond(flag, lambda: batch(x), lambda: x)
        return rows, jax.lax.switch(0, [lambda: batch(first(y)), lambda: batch(y)])

    outcomes = jax.vmap(lambda t: lw.vmap(straight, throw=False)(X + t)[1].code)(jnp.arange(3.0))
    once = lw.vmap(straight, throw=False)
    for flag in (True, False):
        _, throws, _ = run_placed(plain, X, flag)
        given = once(X)[1].code if flag else jnp.zeros(7, int)
        y = jnp.where(given == 0, once(X)[0], X) if flag else X
        after = once(first(y))[1].code if not flag else throws[4]
        assert [t.tolist() for t in throws[::2]] == [
            x.tolist() for x in (outcomes, given, after, jnp.zeros(7, int))
        ]


def test_gradients_of_a_batch_with_assertions() -> None:
    good = jnp.array([0.5, 1.0, 0.3, 2.5])

    def loss(x):
        return jnp.sum(lw.vmap(of_programs)(x))

    slope, throws, _ = run_placed(jax.grad(loss), good[:3] * 0.5)
    same(slope, jax.grad(loss)(good[:3] * 0.5))
    assert throws and not any(code.any() for code in throws[::2])
