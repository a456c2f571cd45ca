"""Calls in branches of their own are spawned where none waits for another, and mean what they meant."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import pytest

import lanewise as lw
from comparing import assert_same
from lanewise.blocks.flatten import flatten
from lanewise.blocks.fork import forked, widest_fork
from lanewise.blocks.form import BlockProgram, Spawn, verify
from lanewise.blocks.reference import interpret
from lanewise.blocks.simplify import simplify
from lanewise.core.errors import Outcome


def check(fun: Any, *args: Any) -> BlockProgram:
    """The forked program of a function, after it was seen to mean the same."""
    staged, operands = fun.stage(*args)
    varying = [True] * len(staged.program.operand_avals)
    program = simplify(flatten(staged.program, varying), check=verify)
    found = forked(program, check=verify)
    one, other = interpret(program, operands), interpret(found, operands)
    assert one.outcome is Outcome.DONE
    assert_same(other.values, one.values, 0)
    assert (other.steps, other.deepest) == (one.steps, one.deepest)
    return found


@lw.program
def either(x, n):
    """Both, one of them, or none; what is between the calls takes what the first gave."""
    total = jnp.sin(x)
    if n % 3 != 0:
        total += 0.5 * either(x + 0.1, n - 1)
    if n > 0:
        total = jnp.cos(total) * either(x * 0.9, n - 2)
    return total


@lw.program
def within(x, n):
    """Branches inside a branch, with values of their own, and a number that is counted on the way."""
    if n <= 0:
        return x
    made = 0
    best = jnp.full_like(x, -1.0)
    scale = 1.0 + 0.1 * n
    if n % 2 == 0:
        y = jnp.sin(x * scale)
        made += 1
        if y > 0.2:
            best = jnp.maximum(best, within(y, n - 1))
            made += 1
        else:
            best = best - within(-y, n - 2) * made
    else:
        best = best * scale
    scale = scale * 2.0
    if x < 0.9:
        best += within(x + 0.2, n - 2) * scale + made
    return best


@lw.program
def three(x, n):
    """A fork of two, then one alone."""
    if n <= 0:
        return x
    total = three(x + 1.0, n - 1) - three(x * 0.5, n - 2)
    if n > 2:
        total += three(x - 1.0, n - 3)
    return total


@lw.program
def turns(x, n):
    """Branches inside a loop: each turn of it waits, and makes its calls at the same time."""
    total = 0.0 * x
    for k in range(n):
        low = total
        if k % 2 == 0:
            total += turns(x + k, n - 1 - k)
        if x < 5.0:
            total = total * 0.5 + turns(x - k, n - 2 - k) - low
    return total + x


@pytest.mark.parametrize("fun", [either, within, three, turns], ids=lambda f: f.__name__)
@pytest.mark.parametrize("n", [0, 3, 4])
def test_branches_of_all_kinds(fun: Any, n: int) -> None:
    for x in (0.3, 0.95):
        found = check(fun, jnp.float32(x), jnp.int32(n))
    assert widest_fork(found) == math.inf
    ends = [block.terminator for _, block in found.all_blocks()]
    calls = [call for end in ends if isinstance(end, Spawn) for call in end.calls]
    # A call is given what it takes, and nothing that is only in the frame.
    known = set(found.entry_function.params)
    assert {var for call in calls for var, _ in call.arguments} <= known


@lw.program
def fed(x, n):
    """The second call takes what the first gave."""
    total = x
    if n > 1:
        total += fed(x * 0.5, n - 1)
    if n > 0:
        total -= fed(total, n - 2)
    return total


@lw.program
def decided(x, n):
    """What the first gave decides about the second."""
    total = x
    if n > 1:
        total += decided(x * 0.5, n - 1)
    if total > 0.1 and n > 0:
        total -= decided(x, n - 2)
    return total


@lw.program
def guarded(x, n):
    """In order, an assertion that fails is met before the second call."""
    total = x
    if n > 1:
        total += guarded(x * 0.5, n - 1)
        assert total < 100.0, "too much"
    if n > 0:
        total -= guarded(x, n - 2)
    return total


@pytest.mark.parametrize("fun", [fed, decided, guarded], ids=lambda f: f.__name__)
def test_branches_that_wait_stay_in_order(fun: Any) -> None:
    assert widest_fork(check(fun, jnp.float32(0.3), jnp.int32(4))) == 1
