"""How many compiled functions a call outside `jit` runs, and that a machine in one piece is a machine in three."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise import _jax
from lanewise.grow import growing
from lanewise.grow.memory import FIRST_DEPTH

STARTS = np.array([7, 1, 27, 6], np.int32)
LENGTHS = np.array([16, 0, 111, 8], np.int32)


def steps_to_one() -> lw.ProgramFunction:
    """Made anew for each test: what is compiled is counted."""

    @lw.program
    def steps(n):
        count = jnp.int32(0)
        while n != 1:
            assert n > 0, "no path to one"
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        return count

    return steps


def sums() -> lw.ProgramFunction:
    @lw.program
    def total(n):
        if n == 0:
            return jnp.int32(0)
        return n + total(n - 1)

    return total


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the compiled functions that are called from now on, if they are made from now on."""
    made: list[str] = []
    real = jax.jit

    def jit(fun: Callable[..., Any], **how: Any) -> Callable[..., Any]:
        compiled = real(fun, **how)
        name = getattr(fun, "__name__", type(fun).__name__)

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            # While something is traced, a compiled function becomes part of it.
            if _jax.outside_traces():
                made.append(name)
            return compiled(*args, **kwargs)

        return call

    monkeypatch.setattr(jax, "jit", jit)
    return made


@pytest.mark.parametrize("options", [{}, {"lanes": 2}], ids=["as many lanes", "refill"])
def test_a_short_run_by_ticks_is_one_call(calls: list[str], options: dict[str, Any]) -> None:
    run = lw.vmap(steps_to_one(), carrier="ticks", **options)
    for _ in range(3):
        calls.clear()
        np.testing.assert_array_equal(run(STARTS), LENGTHS)
        assert calls == ["_at_once"]


def test_a_recursion_that_fits_is_one_call(calls: list[str]) -> None:
    run = lw.vmap(sums(), carrier="ticks")
    np.testing.assert_array_equal(run(jnp.array([3, 0, 10])), [6, 0, 55])
    assert calls == ["_at_once"]


@needs.on_cpu
@needs.compiler
@pytest.mark.parametrize("make", [steps_to_one, sums])
def test_a_run_of_lanes_by_themselves_is_one_call(
    calls: list[str], make: Callable[[], lw.ProgramFunction]
) -> None:
    run = lw.vmap(make(), carrier="native")
    run(STARTS)
    calls.clear()
    run(STARTS)
    assert len(calls) == 1


def test_a_long_run_goes_on_in_what_is_compiled_already(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "MOST_FIRST_TICKS", 3)
    monkeypatch.setattr(growing, "SOON_SECONDS", 0.0)
    traced: list[int] = []
    at_once = growing.Growing._at_once

    def counted(self: growing.Growing, *args: Any) -> Any:
        traced.append(1)
        return at_once(self, *args)

    monkeypatch.setattr(growing.Growing, "_at_once", counted)
    run = lw.vmap(steps_to_one(), carrier="ticks")
    np.testing.assert_array_equal(run(STARTS), LENGTHS)
    assert len(calls) >= LENGTHS.max() / 3
    assert len(set(calls)) == 1
    assert len(traced) == 1


def test_failed_lanes_are_reported(calls: list[str]) -> None:
    run = lw.vmap(steps_to_one(), carrier="ticks", throw=False)
    answers, outcomes = run(np.array([7, 0, -1], np.int32))
    assert calls == ["_at_once"]
    assert outcomes.ok().tolist() == [True, False, False]
    assert int(answers[0]) == 16


# Packed as long as they are small: never, at first alone, for as long as they grow.
@pytest.mark.parametrize("most_packed", [0, 5000, 1 << 30])
@pytest.mark.parametrize("lanes", [None, 2])
def test_stacks_grow_in_one_piece_and_in_three(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, most_packed: int, lanes: int | None
) -> None:
    monkeypatch.setattr(growing, "MOST_PACKED_BYTES", most_packed)
    deep = 10 * FIRST_DEPTH
    run = lw.vmap(sums(), carrier="ticks", lanes=lanes)
    n = np.array([deep, 3, 0, 70, 1], np.int32)
    for _ in range(2):
        calls.clear()
        np.testing.assert_array_equal(run(n), n * (n + 1) // 2)
    # The room that was made is kept for the next call.
    assert len(calls) == (1 if most_packed > 5000 else 3)
    assert calls[0] == ("_at_once" if most_packed > 5000 else "_start")


def test_what_is_watched_is_reported_once(calls: list[str], capsys: Any) -> None:
    run = lw.vmap(steps_to_one(), carrier="ticks", progress=True)
    np.testing.assert_array_equal(run(STARTS), LENGTHS)
    jax.effects_barrier()
    assert "_at_once" not in calls
    assert capsys.readouterr().err.count("4 of 4 examples") == 1
