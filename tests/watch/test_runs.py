"""`progress=True`: how far a run is, reported from inside it, on every carrier and under every transformation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import lanewise as lw
from lanewise.core import events
from lanewise.core.errors import OptionError
from programs.small import collatz, fib
from watch.programs import NUMBERS, STEPS, SWEPT, decay


class Seen:
    """A bar that records its updates."""

    def __init__(self, total: int, label: str) -> None:
        self.total, self.label, self.done, self.closed = total, label, [0], False

    def update(self, done: int | None = None, *, total: int | None = None) -> None:
        self.total = total or self.total
        if done is not None:
            self.done.append(done)

    def close(self, finished: bool = True) -> None:
        self.closed = finished


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Seen]]:
    """Every bar that is shown, with a machine that calls at every tick."""
    made: list[Seen] = []

    def new_bar(total: int, label: str) -> Seen:
        made.append(Seen(total, label))
        return made[-1]

    monkeypatch.setattr(events, "_new_bar", [new_bar])
    monkeypatch.setattr(events, "BAR_SECONDS", 0.0)
    yield made


def check(bars: list[Seen], *totals: int) -> None:
    assert [bar.total for bar in bars] == list(totals)
    for bar in bars:
        assert bar.closed
        assert bar.done == sorted(bar.done)
        assert bar.done[-1] == bar.total


@pytest.mark.parametrize(
    "options",
    [
        SWEPT,
        {"carrier": "ticks", "schedule": "lowest"},
        {"carrier": "ticks", "lanes": 8},
        {"carrier": "native"},
        {"schedule": "plain"},
        {"schedule": "local"},
    ],
    ids=str,
)
def test_a_bar_goes_from_none_to_all(options: dict[str, Any], bars: list[Seen]) -> None:
    run = lw.vmap(collatz, progress=True, **options)
    np.testing.assert_array_equal(run(NUMBERS), STEPS)
    check(bars, 40)
    assert bars[0].label == "collatz"
    if options.get("carrier") == "ticks":
        # Updated at every tick, so at every number of examples that was ever left.
        assert len(set(bars[0].done)) > 10
    if options.get("schedule") != "local":
        np.testing.assert_array_equal(jax.jit(run)(NUMBERS), STEPS)
        check(bars, 40, 40)


def test_stacks_that_grow_keep_their_bar(bars: list[Seen]) -> None:
    @lw.program
    def depth(n):
        return 0 if n == 0 else 1 + depth(n - 1)

    assert lw.vmap(depth, carrier="ticks", progress=True)(jnp.array([3, 80])).tolist() == [3, 80]
    check(bars, 2)


def test_gradients_show_both_sweeps(bars: list[Seen]) -> None:
    def loss(x: Any, progress: bool) -> Any:
        return lw.vmap(decay, progress=progress, **SWEPT)(x, jnp.arange(5)).sum()

    x = jnp.linspace(0.5, 3.0, 5)
    np.testing.assert_allclose(jax.grad(loss)(x, True), jax.grad(loss)(x, False))
    check(bars, 5, 5)
    assert [bar.label.split("(")[0] for bar in bars] == ["forward", "reverse"]


def test_inside_shard_map(bars: list[Seen]) -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("devices",))
    spec = PartitionSpec("devices")
    run = lw.vmap(collatz, progress=True, **SWEPT)
    sharded = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec))
    np.testing.assert_array_equal(sharded(NUMBERS), STEPS)
    check(bars, 40)


def test_a_program_inside_another_is_part_of_its_bar(bars: list[Seen]) -> None:
    inner = collatz.with_options(progress=True)

    @lw.program
    def both(n):
        return collatz(n) + inner(n)

    np.testing.assert_array_equal(lw.vmap(both, **SWEPT)(NUMBERS), 2 * STEPS)
    assert not bars
    np.testing.assert_array_equal(lw.vmap(both, progress=True, **SWEPT)(NUMBERS), 2 * STEPS)
    check(bars, 40)


def test_a_run_that_fails_closes_its_bar(bars: list[Seen]) -> None:
    with pytest.raises(lw.LaneError):
        lw.vmap(fib, progress=True, max_steps=3, carrier="ticks")(jnp.arange(9))
    assert len(bars) == 1 and bars[0].closed
    assert not events.running()


def test_a_bar_that_breaks_breaks_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Breaks(Seen):
        def update(self, *args: Any, **figures: Any) -> None:
            raise OSError("the terminal is gone")

    monkeypatch.setattr(events, "_new_bar", [Breaks])
    ways: list[dict[str, Any]] = [SWEPT, {"carrier": "native"}]
    for options in ways:
        run = lw.vmap(collatz, progress=True, **options)
        np.testing.assert_array_equal(run(NUMBERS), STEPS)
        assert not events.running()
    # What that left behind does not keep the next from being shown.
    made: list[Seen] = []
    monkeypatch.setattr(events, "_new_bar", [lambda *about: made.append(Seen(*about)) or made[-1]])
    run = lw.vmap(collatz, progress=True, **SWEPT)
    np.testing.assert_array_equal(run(NUMBERS), STEPS)
    check(made, 40)


def test_nothing_is_reported_by_default() -> None:
    ways: list[dict[str, Any]] = [SWEPT, {"carrier": "ticks", "lanes": 8}, {"carrier": "native"}]
    for options in ways:
        quiet, reporting = (
            jax.jit(lw.vmap(collatz, progress=progress, **options)).lower(NUMBERS).as_text()
            for progress in (False, True)
        )
        assert "callback" not in quiet and "callback" in reporting


def test_what_is_no_answer_to_progress_is_refused() -> None:
    with pytest.raises(OptionError, match="progress='yes' must be True or False"):
        lw.vmap(collatz, progress="yes")
    with pytest.raises(OptionError, match="'recorded' is not an option"):
        lw.vmap(collatz, recorded=True)


def test_a_stream_of_a_program_that_shows_progress(capsys: pytest.CaptureFixture[str]) -> None:
    shown = collatz.with_options(progress=True)
    assert len(list(lw.stream(shown, range(1, 9), lanes=4, carrier="ticks"))) == 8
    assert "collatz: 8 of 8 examples" in capsys.readouterr().err
