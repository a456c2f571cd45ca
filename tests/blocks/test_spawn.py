"""Loops of calls are cut in two where no call waits for another, and mean what they meant."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import lanewise as lw
from comparing import assert_same
from lanewise.blocks.flatten import flatten
from lanewise.blocks.fork import forked, widest_fork
from lanewise.blocks.form import BlockProgram, Collect, Spawn, verify
from lanewise.blocks.reference import interpret
from lanewise.blocks.simplify import simplify
from lanewise.blocks.text import print_program
from lanewise.core.errors import Outcome


def blocks_of(fun: Any, *args: Any) -> tuple[BlockProgram, list[Any]]:
    staged, operands = fun.stage(*args)
    varying = [True] * len(staged.program.operand_avals)
    return simplify(flatten(staged.program, varying), check=verify), list(operands)


def check(fun: Any, *args: Any) -> BlockProgram:
    """The forked program of a function, after it was seen to mean the same."""
    program, operands = blocks_of(fun, *args)
    found = forked(program, check=verify)
    one, other = interpret(program, operands), interpret(found, operands)
    assert one.outcome is Outcome.DONE
    assert_same(other.values, one.values, 0)
    assert (other.steps, other.deepest) == (one.steps, one.deepest)
    return found


def spawn_of(program: BlockProgram) -> Spawn:
    ends = [block.terminator for _, block in program.all_blocks()]
    (found,) = [end for end in ends if isinstance(end, Spawn)]
    return found


@lw.program
def weighted(x, n):
    """What a turn has before its call and needs after it: a number, a vector made of it, a product."""
    if n <= 0:
        return x
    total = jnp.zeros_like(x)
    for k in range(n):
        scaled = x * (1.0 + k)
        turned = jnp.outer(x, x) @ scaled
        total = 0.5 * total + weighted(jnp.sin(scaled), n - 1 - k) * scaled + turned
    return total


def test_a_call_has_luggage_and_the_rest_is_computed_again() -> None:
    found = check(weighted, jnp.linspace(0.1, 0.7, 5), jnp.int32(4))
    (call,) = spawn_of(found).calls
    known = {var for f in found.functions.values() for var in f.params}
    luggage = [var for var, _ in call.arguments if var not in known]
    # The product is kept, and the number of the turn; the vector is made of that again.
    assert sorted(var.aval.shape for var in luggage) == [(), (5,)]


def test_text_and_drawings_show_both_halves() -> None:
    text = print_program(check(weighted, jnp.linspace(0.1, 0.7, 5), jnp.int32(2)))
    assert "spawn weighted" in text.replace("(", " ") and "collect " in text
    assert "spawn weighted" in str(
        lw.inspect(weighted.with_options(schedule="fork"), jnp.ones((2, 5)), jnp.arange(2))
    ).replace("(", " ")


@lw.program
def searched(x, n):
    """A loop that ends early, by a value that no call gives, and one whose first test is made in the loop."""
    if n <= 0:
        return x
    total, k = 0.0 * x, 0
    while True:
        if k >= n or x * k > 1.7:
            break
        total += searched(x + 0.1 * k, n - 2)
        k += 1
    return total + k


@lw.program
def nested(x, n):
    """A loop of calls inside a loop: the inner one is cut, once for each turn of the outer one."""
    if n <= 0:
        return x
    total = 0.0 * x
    for i in range(2):
        for k in range(n):
            total = 0.9 * total + nested(x + 0.1 * k + i, n - 1 - k)
        total = jnp.sin(total)
    return total


@lw.program
def two_loops(x, n):
    """The second loop's calls take what the first loop's gave."""
    if n <= 0:
        return x
    low = 0.0 * x
    for k in range(n):
        low += two_loops(x * 0.5 + k, n - 2)
    high = 0.0 * x
    for k in range(2):
        high = jnp.maximum(high, two_loops(low + k, n - 3))
    return low - high


@lw.program
def doubled(x, n):
    """Two calls a turn, of two functions."""
    if n <= 0:
        return x
    best = jnp.full_like(x, -jnp.inf)
    for k in range(n):
        best = jnp.maximum(best, doubled(x + k, n - 1) - halved(x, n - 1 - k))
    return best


@lw.program
def halved(x, n):
    if n <= 0:
        return -x
    return 0.5 * doubled(x, n - 2)


@pytest.mark.parametrize("fun", [searched, nested, two_loops, doubled], ids=lambda f: f.__name__)
def test_loops_of_all_kinds(fun: Any) -> None:
    found = check(fun, jnp.float32(0.3), jnp.int32(4))
    assert widest_fork(found) == math.inf
    check(fun, jnp.float32(0.3), jnp.int32(0))


@lw.program
def fed(x, n):
    """A turn's call takes what the turn before got."""
    if n <= 0:
        return x
    for k in range(n):
        x = jnp.sin(fed(x, n - 1 - k))
    return x


@lw.program
def stopped(x, n):
    """What a call gives decides whether there is another."""
    if n <= 0:
        return x
    total, k = 0.0 * x, 0
    while k < n and total < 1.0:
        total += stopped(x, n - 1 - k)
        k += 1
    return total


@lw.program
def delayed(x, n):
    """The same one turn later: the state of the loop waits, though no turn's own call does."""
    if n <= 0:
        return x
    total, before = 0.0 * x, 0.0 * x
    for k in range(n):
        now = delayed(x + jnp.minimum(before, 0.5), n - 1 - k)
        total, before = total + now, total
    return total


@lw.program
def guarded(x, n):
    """An assertion on what a call gave: in order, no call is made after one that fails it."""
    if n <= 0:
        return x
    total = 0.0 * x
    for k in range(n):
        found = guarded(x, n - 1 - k)
        assert found < 100.0, "too many"
        total += found
    return total


@pytest.mark.parametrize("fun", [fed, stopped, delayed, guarded], ids=lambda f: f.__name__)
def test_loops_that_wait_stay_in_order(fun: Any) -> None:
    assert widest_fork(check(fun, jnp.float32(0.3), jnp.int32(4))) == 1


def test_stacked_results_keep_their_places() -> None:
    @lw.program
    def stacked(x, n):
        if n <= 0:
            return jnp.full((3,), x)
        _, rows = lax.scan(
            lambda c, y: (c, stacked(y, n - 1)), 0, x + jnp.arange(3.0), reverse=True
        )
        return rows[:, 0] - rows[::-1, 2] * jnp.arange(3.0)

    check(stacked, jnp.float32(0.5), jnp.int32(2))


def test_the_verifier_knows_what_is_collected() -> None:
    program, _ = blocks_of(weighted, jnp.ones(5), jnp.int32(2))
    found = forked(program)
    for _, block in found.all_blocks():
        if isinstance(block.terminator, Collect):
            (own,) = block.terminator.copies
            twice = Collect(((*own, own[0]),), block.terminator.target, block.terminator.done)
            object.__setattr__(block, "terminator", twice)
    with pytest.raises(lw.errors.InternalError, match="collects into a variable twice"):
        verify(found)


def test_keys_go_along() -> None:
    @lw.program
    def drawn(key, n):
        if n <= 0:
            return jax.random.uniform(key)
        total = jnp.float32(0)
        for k in range(n):
            own = jax.random.fold_in(key, k)
            total += drawn(own, n - 1 - k) * jax.random.uniform(own)
        return total

    check(drawn, jax.random.key(3), jnp.int32(3))
