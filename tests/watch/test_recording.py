"""What is recorded of a run is what it did: counts that are known by other means come out the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.blocks.form import Block
from lanewise.core import events
from lanewise.machine import observe
from lanewise.watch.figures import (
    TickFigures,
    depths_of,
    lives_of,
    outcomes_of,
    steps_of,
    tick_figures,
)
from lanewise.watch.recording import Recording, Run
from programs.small import collatz, fib
from watch.programs import NUMBERS, STEPS, SWEPT, decay


@contextmanager
def recording() -> Iterator[Recording]:
    recorder = Recording()
    with events.recording(recorder):
        yield recorder
    recorder.close()


def recorded(fun: Any, *args: Any) -> Run:
    with recording() as recorder:
        fun(*args)
    (run,) = recorder.runs
    assert run.seconds is not None and run.seconds >= 0
    return run


def by_ticks(run: Run) -> TickFigures:
    figures = tick_figures(run)
    assert figures is not None
    return figures


def advanced_by(figures: TickFigures, note: str) -> float:
    """How many lanes the blocks with this note advanced, in all."""
    order = figures.linked.order
    return sum(
        float(figures.advanced[:, pc].sum())
        for pc, item in enumerate(order)
        if isinstance(item, Block) and item.note == note
    )


@pytest.mark.parametrize("schedule", ["sweep", "most"])
def test_every_lane_that_a_block_advanced_is_counted(schedule: str) -> None:
    run = recorded(lw.vmap(collatz, carrier="ticks", schedule=schedule), NUMBERS)
    figures = by_ticks(run)
    assert advanced_by(figures, "body") == STEPS.sum()
    assert figures.advanced[:, 0].sum() == 40  # the entry
    assert figures.room.sum() == 40 * figures.ticks
    assert figures.ended[-1] == 40 and (np.diff(figures.ended) >= 0).all()
    assert (figures.taken == 40).all()
    if schedule == "sweep":
        # A step a tick, and the first before the first tick: a lane is busy as long as it has steps.
        assert figures.ticks == STEPS.max()
        assert figures.busy.sum() == STEPS.sum()
        lives = lives_of(run)
        assert lives is not None
        np.testing.assert_array_equal(lives.died[STEPS[lives.number] > 0], STEPS[STEPS > 0])


@pytest.mark.parametrize("options", [SWEPT, {"carrier": "native"}], ids=str)
def test_steps_of_each_example(options: dict[str, Any]) -> None:
    run = recorded(lw.vmap(collatz, max_steps=1000, **options), NUMBERS)
    steps = steps_of(run)
    assert steps is not None
    # One for the call, and one for every iteration.
    np.testing.assert_array_equal(steps, STEPS + 1)
    assert outcomes_of(run) == {"done": 40}


def test_refill_is_recorded_through_all_widths() -> None:
    run = recorded(lw.vmap(collatz, carrier="ticks", lanes=8), NUMBERS)
    figures = by_ticks(run)
    assert advanced_by(figures, "body") == STEPS.sum()
    assert figures.taken[0] >= 8 and figures.taken[-1] == 40 and figures.ended[-1] == 40
    assert figures.widths[0] == 8 and figures.widths.min() < 8
    assert (figures.busy <= figures.room).all()
    lives = lives_of(run)
    assert lives is not None
    np.testing.assert_array_equal(lives.number, np.arange(40))
    assert (lives.ticks >= STEPS).all() and lives.born.max() > 0
    np.testing.assert_array_equal(lives.steps, STEPS + 1)


def test_long_runs_are_summed_in_fewer_bins() -> None:
    n = jnp.array([5, 3 * observe.BINS + 7])
    run = recorded(lw.vmap(decay, **SWEPT), jnp.ones(2), n)
    figures = by_ticks(run)
    assert figures.ticks == n.max() and figures.stride == 4
    assert len(figures.busy) == -(-figures.ticks // 4) <= observe.BINS
    assert advanced_by(figures, "body") == n.sum()
    assert figures.edges[-1] == figures.ticks
    assert (np.diff(figures.seconds) >= 0).all()


def test_stacks_are_recorded_as_they_grow() -> None:
    @lw.program
    def depth(n):
        return 0 if n == 0 else 1 + depth(n - 1)

    n = jnp.array([3, 80])
    figures = by_ticks(recorded(lw.vmap(depth, carrier="ticks"), n))
    assert figures.depth.max() == 80
    deepest = depths_of(recorded(lw.vmap(depth, carrier="native"), n))
    assert deepest is not None
    assert deepest.tolist() == [3, 80]


def test_failed_lanes_are_counted() -> None:
    with recording() as recorder:
        lw.vmap(fib, carrier="ticks", max_steps=6, throw=False)(jnp.array([1, 2, 9]))
    assert outcomes_of(recorder.runs[0]) == {"done": 2, "steps exhausted": 1}


def test_inside_jit_every_execution_is_a_run() -> None:
    batches = NUMBERS.reshape(4, 10)
    with recording() as recorder:
        answers = jax.jit(lambda n: jax.lax.map(lw.vmap(collatz, **SWEPT), n))(batches)
        np.testing.assert_array_equal(answers.reshape(-1), STEPS)
    figures = [by_ticks(run) for run in recorder.runs]
    expected = STEPS.reshape(4, 10).sum(1)
    assert sorted(advanced_by(each, "body") for each in figures) == sorted(expected)
    assert len({run.info for run in recorder.runs}) == 1


def test_a_stream_is_a_run_of_its_own() -> None:
    run = recorded(lambda: list(lw.stream(collatz, range(1, 41), lanes=8, carrier="ticks")))
    figures = by_ticks(run)
    assert run.examples == 40 and figures.taken[-1] == 40 and figures.ended[-1] == 40
    assert advanced_by(figures, "body") == STEPS.sum()


def test_what_is_compiled_before_is_recorded_inside_and_untouched_after() -> None:
    traced = []

    def counted(n: Any) -> Any:
        traced.append(n)
        return lw.vmap(collatz, **SWEPT)(n)

    run = jax.jit(counted)
    run(NUMBERS)
    with recording() as recorder:
        run(NUMBERS)
        run(NUMBERS)
    assert len(recorder.runs) == 2
    assert len(traced) == 2
    run(NUMBERS)
    lw.vmap(collatz, **SWEPT)(NUMBERS)
    assert len(traced) == 2 and len(recorder.runs) == 2


def test_other_threads_are_left_alone() -> None:
    with recording() as recorder:
        thread = threading.Thread(target=lambda: lw.vmap(collatz, **SWEPT)(NUMBERS))
        thread.start()
        thread.join()
    assert not recorder.runs


def test_the_plan_is_the_one_without_a_recording() -> None:
    found = recorded(lw.vmap(collatz), NUMBERS).info.plan
    plan = lw.inspect(collatz, NUMBERS).plan
    assert (found.carrier, found.path, found.why) == (plan.carrier, plan.path, plan.why)


def test_compilation_is_distinguished_from_running() -> None:
    @lw.program
    def fresh(n):
        while n < 100:
            n = n * 3 + 1
        return n

    with recording() as recorder:
        lw.vmap(fresh, **SWEPT)(NUMBERS)
    (run,) = recorder.runs
    call = recorder.call_of(run)
    assert call is not None and run.seconds is not None
    assert 0 < recorder.compiling_within(call) <= call.seconds
    assert any(span.what.startswith("compile") for span in recorder.compilations)
    assert run.seconds + recorder.compiling_within(call) <= call.seconds
