"""Tapes grow outside `jit`: by ticks lanes go on where they stopped, run separately only the full ones run again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise.blocks.link import link
from lanewise.core.errors import Outcome
from lanewise.core.options import Options
from lanewise.diff.checkpoint import TAPE_GROWTH, Checkpoints
from lanewise.diff.vjp import vjp_program
from lanewise.grow import growing
from lanewise.grow.larger import counterparts
from lanewise.grow.memory import FIRST_DEPTH
from lanewise.grow.rerun import RerunLarger
from lanewise.job.job import blocks_of
from lanewise.rules.forward import FIRST_RECORDS

pytestmark = needs.on_cpu  # it asks for `native`


@lw.program
def sines(x, n):
    """As deep as it is long: stacks and tapes both grow."""
    if n <= 0:
        return x
    return jnp.sin(sines(x * 1.01, n - 1)) + 0.5 * x


@lw.program
def turns(x, n):
    while n > 0:
        x = jnp.sin(x) + 0.5
        n = n - 1
    return x


ONCE, TWICE = FIRST_RECORDS + 10, FIRST_RECORDS * TAPE_GROWTH + 10
XS = jnp.array([0.7, 0.4, 0.3, -0.3, 0.1])


def lengths(longest: int) -> Any:
    return jnp.array([3, longest, 0, FIRST_RECORDS + 6, 2])


def expected(program: Any, longest: int) -> Any:
    """Forward mode, which has no tapes."""

    def slope(x: Any, n: Any) -> Any:
        own = program.with_options(carrier="native")
        return jax.jvp(lambda x: own(x, n), (x,), (jnp.ones_like(x),))[1]

    return jax.vmap(slope)(XS, lengths(longest))


def gradients(program: Any, longest: int) -> tuple[Any, Any]:
    def total(xs: Any) -> Any:
        values, stats = jax.vmap(program.with_options(stats=True))(xs, lengths(longest))
        return values.sum(), jax.tree.map(lambda count: count[0], stats)

    return jax.grad(total, has_aux=True)(XS)


@pytest.mark.parametrize(
    ("program", "longest", "times", "around"), [(sines, ONCE, 1, 2), (turns, TWICE, 2, 1)]
)
def test_by_ticks_nothing_is_run_again(
    program: Any, longest: int, times: int, around: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def seen(smaller: Any, larger: Any) -> Any:
        made.append(counterparts(smaller, larger))
        return made[-1]

    monkeypatch.setattr(growing, "counterparts", seen)
    ticks = program.with_options(carrier="ticks", checkpoints="all")
    slopes, stats = gradients(ticks, longest)
    np.testing.assert_allclose(slopes, expected(program, longest), rtol=2e-4)
    assert len(made) == times and None not in made  # each time resumed
    # A step for each call or iteration of each lane, and `around` for what is around them: none was taken twice.
    assert int(stats.steps) == int(jnp.sum(lengths(longest) + around))
    if program is sines:
        assert int(stats.deepest) > FIRST_DEPTH  # stacks grew, too
    again, _ = gradients(ticks, longest)
    assert len(made) == times  # remembered
    np.testing.assert_array_equal(slopes, again)


def test_growth_under_refill_and_inside_vmap() -> None:
    few, ns = turns.with_options(carrier="ticks", checkpoints="all", lanes=2), lengths(ONCE)
    slopes = jax.grad(lambda xs: jax.vmap(few)(xs, ns).sum())(XS)
    np.testing.assert_allclose(slopes, expected(turns, ONCE), rtol=2e-4)
    own = jax.vmap(jax.grad(sines.with_options(carrier="native")))(XS, ns)
    np.testing.assert_allclose(own, expected(sines, ONCE), rtol=2e-4)


def test_a_lone_call_grows() -> None:
    slope = lw.grad(turns, checkpoints="all")(XS[1], ONCE)
    np.testing.assert_allclose(slope, expected(turns, ONCE)[1], rtol=2e-4)


def test_by_themselves_only_full_lanes_run_again() -> None:
    """A record for each unit of a lane's length; a tape of 4 records, or of 16."""
    ran: list[tuple[int, int]] = []

    def saved(lengths: Any, records: int) -> list[Any]:
        ran.append((len(lengths), records))
        tape = np.where(np.arange(records) < lengths[:, None], lengths[:, None], 0)
        code = np.where(lengths > records, int(Outcome.TAPE_FULL), 0)
        return [jnp.asarray(x) for x in (tape, code, np.full(lengths.shape, -1), records)]

    grows = RerunLarger(
        lambda operands: saved(operands[0], 4),
        lambda operands: saved(operands[0], 16),
        lambda operands, rows: saved(operands[0][rows], 16),
        codes=1,
    )
    lengths = np.array([1, 9, 2, 3, 4, 16, 0, 7])
    tape, code, _, records = grows.run_growing([lengths])
    assert ran == [(8, 4), (4, 16)]  # three lanes were full; a fourth fills up to a power of two
    assert tape.shape == (8, 16) and not code.any() and records == 16
    np.testing.assert_array_equal((tape != 0).sum(1), lengths)
    grows.run_growing([lengths])
    assert ran[2:] == [(8, 16)]


def test_what_does_not_correspond_is_distinguished() -> None:
    def linked(fun: Any, records: int) -> Any:
        program = fun.stage(0.5, 3)[0].program
        setting = Checkpoints("all", records, grows=True)
        forward = vjp_program(program, (True, False), setting).forward.program
        return link(blocks_of(forward, (True, True), Options()), (True, True))

    assert counterparts(linked(turns, 64), linked(turns, 256)) is not None
    assert counterparts(linked(turns, 64), linked(sines, 64)) is None


@lw.program
def steep(x, n, m):
    """A gradient with a tape of its own, inside a program whose gradient has another."""
    y = lw.grad(turns, checkpoints="all", tape=8)(x, n)
    while m > 0:
        y = jnp.sin(y) + x
        m = m - 1
    return y


@pytest.mark.parametrize("carrier", needs.in_turns(["ticks", "native"]))
def test_a_tape_of_fixed_length_inside_does_not_grow(carrier: str) -> None:
    slope = jax.grad(steep.with_options(carrier=carrier, checkpoints="all"))
    _, expected = jax.jvp(lambda x: steep(x, 5, FIRST_RECORDS + 10), (0.3,), (1.0,))
    np.testing.assert_allclose(slope(0.3, 5, FIRST_RECORDS + 10), expected, rtol=1e-4)
    with pytest.raises(lw.LaneError, match="tape full"):
        slope(0.3, 20, FIRST_RECORDS + 10)


@lw.program
def rounds(x, n):
    """A record for each iteration, and for each call."""
    while n > 0:
        x = jnp.sin(0.5 * x) + x
        n = n - 1
        if n % 3 == 1:
            x, n = rounds(x, n)
    return x, n


@lw.program
def rounds_in_a_loop(x, n):
    """The loop is run again in the reverse sweep, with the recursion inside."""
    while n > 0:
        x, n = rounds(x, n)
    return x


@pytest.mark.parametrize("carrier", ["native", "ticks"])
def test_a_recursion_inside_a_loop_has_room_in_the_reverse_sweep(carrier: str) -> None:
    """No host makes tapes longer there."""
    run = lw.vmap(rounds_in_a_loop, carrier=carrier)
    found = jax.grad(lambda xs: run(xs, lengths(ONCE)).sum())(XS)
    slopes = expected(rounds_in_a_loop, ONCE)
    np.testing.assert_allclose(found, slopes, rtol=1e-3, atol=1e-6)
