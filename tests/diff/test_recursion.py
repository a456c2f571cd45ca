"""Reverse mode through recursion: what frames push, the reverse pops, whatever calls what."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from lanewise import _jax
from lanewise.core.errors import Outcome
from lanewise.diff.checkpoint import Checkpoints
from lanewise.diff.lift import lifted
from lanewise.diff.vjp import vjp_program
from lanewise.rules.forward import FIRST_RECORDS
from programs.small import up


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)


def check(ours: lw.ProgramFunction, plain: Any, xs: Any, ns: Any, **options: Any) -> None:
    """Gradients of a batch, compiled, against the plain form of each example."""
    lone = [jax.grad(plain)(x, int(n)) for x, n in zip(xs, ns, strict=True)]
    close(jax.jit(jax.vmap(jax.grad(ours.with_options(**options))))(xs, ns), jnp.stack(lone))


XS, NS = jnp.array([0.7, 0.4, 1.1, -0.3]), jnp.array([0, 4, 1, 3])


def plain_up(x, n):
    return x if n <= 0 else jnp.sin(plain_down(x * 2.0, n - 1))


def plain_down(y, n):
    return y * y if n <= 0 else plain_up(y + 1.0, n - 1) * y


def test_mutual_recursion() -> None:
    check(up, plain_up, XS, NS)


def test_results_used_twice_once_and_not_at_all() -> None:
    @lw.program
    def pair(x, n):
        if n == 0:
            return x, x * x, 3
        a, b, count = pair(x * 0.9, n - 1)
        _, c, _ = pair(jnp.cos(x), n - 2) if n > 1 else (x, x, 0)
        pair(x + 1.0, n - 1)  # nothing reads what it gives
        return a * a + a * b, jnp.sin(c), count + 1

    def plain(x, n):
        if n == 0:
            return x, x * x, 3
        a, b, count = plain(x * 0.9, n - 1)
        _, c, _ = plain(jnp.cos(x), n - 2) if n > 1 else (x, x, 0)
        return a * a + a * b, jnp.sin(c), count + 1

    first = lw.lift(lambda x, n: pair(x, n)[0] * 2.0 + pair(x, n)[1])
    check(first, lambda x, n: plain(x, n)[0] * 2.0 + plain(x, n)[1], XS, NS)


def test_loops_that_call_and_loops_that_do_not() -> None:
    @lw.program
    def branching(x, n):
        total = x
        i = 0
        while i < n:  # of calls
            total = total + branching(x * 0.5 + 0.1 * i, n - 1 - i) * total
            i += 1
        j = 0
        while j < n:  # of none
            total = jnp.sin(total) * x
            j += 1
        return total

    def plain(x, n):
        total = x
        for i in range(n):
            total = total + plain(x * 0.5 + 0.1 * i, n - 1 - i) * total
        for _ in range(n):
            total = jnp.sin(total) * x
        return total

    check(branching, plain, XS, NS)


def test_calls_in_the_body_of_a_scan() -> None:
    @lw.program
    def scanned(x, n):
        if n <= 0:
            return jnp.cos(x)

        def step(total, weight):
            own = scanned(total * weight, n - 2)
            return total + own, own * weight

        total, each = lax.scan(step, x, jnp.array([0.5, -1.0]))
        return total + jnp.sum(each * each)

    def plain(x, n):
        if n <= 0:
            return jnp.cos(x)
        total, each = x, []
        for weight in (0.5, -1.0):
            own = plain(total * weight, n - 2)
            each.append(own * weight)
            total = total + own
        return total + sum(e * e for e in each)

    check(scanned, plain, XS, NS, checkpoints="all")


def test_what_is_closed_over_moves() -> None:
    """A number and an array; the recursion is over an index alone."""

    def polynomial(x: Any, table: Any, n: Any) -> Any:
        @lw.program
        def tail(i):
            if i >= n:
                return table[i]
            return table[i] + x * tail(i + 1)

        return tail(0)

    table = jnp.array([0.5, -1.0, 2.0, 0.25, -0.75])
    by_x, by_table = jax.jit(jax.vmap(jax.grad(polynomial, (0, 1)), (0, None, 0)))(XS, table, NS)
    powers = jnp.arange(5)
    live = powers <= NS[:, None]
    close(by_table, jnp.where(live, XS[:, None] ** powers, 0.0))
    close(by_x, jnp.sum(jnp.where(live, table * powers * XS[:, None] ** (powers - 1.0), 0.0), 1))
    whole = jax.grad(lambda t: jax.vmap(polynomial, (0, None, 0))(XS, t, NS).sum())(table)
    close(whole, by_table.sum(0))


@lw.program
def countdown(x, n):
    """A tail call."""
    if n == 0:
        return x
    return countdown(jnp.sin(x) + 0.5, n - 1)


def plain_countdown(x, n):
    return lax.fori_loop(0, n, lambda _, x: jnp.sin(x) + 0.5, x)


def test_arrays_that_all_frames_share_are_not_saved() -> None:
    """Handed on under another name, by another function, from outside; and one that a call makes, which is saved."""
    outside = jnp.linspace(0.5, 1.5, 33)

    def turn(first, second, n):
        if n == 0:
            return first[3] * second[4]
        other = leave(outside, first * 0.5, second, n - 1)
        return first[n] * jnp.sin(turn(second, first, n - 1)) + other

    def leave(weights, made, given, n):
        if n == 0:
            return weights[7] * made[2] ** 2
        return jnp.sum(weights * made) * turn(weights, given, n - 1)

    first, second = jnp.linspace(-1.0, 1.0, 33), jnp.linspace(0.3, 2.0, 33)
    expected = jax.grad(turn, argnums=(0, 1))(first, second, 3)
    turn, leave = lw.program(turn), lw.program(leave)
    for carrier in ("ticks", "native"):
        own = turn.with_options(carrier=carrier)
        found = jax.jit(jax.grad(own, argnums=(0, 1)))(first, second, 3)
        for mine, theirs in zip(found, expected, strict=True):
            close(mine, theirs)
    staged = turn.stage(first, second, 3)[0].program
    active = tuple(_jax.has_tangent(a) for a in staged.operand_avals)
    made = vjp_program(staged, active, Checkpoints(records=5))
    tapes = [a.shape for a in made.forward.program.out_avals if a.shape[1:] == (33,)]
    # A record of `leave` holds the array that `turn` made for it, and no other.
    assert tapes == [(5, 33)]
    swapped = lifted(staged, active[: staged.num_captures])
    assert {name.split(".")[0]: f.fixed for name, f in swapped.items()} == {
        "turn": (True, True, False),
        "leave": (True, False, True, False),
    }


def test_deep_recursion_grows_its_tape() -> None:
    """More frames than the first tape has room for."""
    expected = jax.jvp(lambda x: plain_countdown(x, FIRST_RECORDS + 50), (0.3,), (1.0,))[1]
    close(jax.grad(countdown)(0.3, FIRST_RECORDS + 50), expected)


def test_a_full_tape_is_an_outcome() -> None:
    small = up.with_options(tape=4, throw=False)

    @jax.jit
    def run(xs: Any, ns: Any) -> Any:
        def total(xs: Any) -> Any:
            values, outcomes = jax.vmap(small)(xs, ns)
            return jnp.sum(jnp.where(outcomes.code == Outcome.DONE, values, 0.0)), outcomes.code

        return jax.grad(total, has_aux=True)(xs)

    ns = jnp.array([1, 40, 2])
    slopes, codes = run(XS[:3], ns)
    assert codes.tolist() == [Outcome.DONE, Outcome.TAPE_FULL, Outcome.DONE]
    expected = jnp.stack([jax.grad(plain_up)(x, n) for x, n in ((XS[0], 1), (XS[2], 2))])
    close(slopes[::2], expected)
    with pytest.raises(lw.LaneError, match="tape"):
        jax.grad(up.with_options(tape=4))(0.3, 40)
