"""Streams: any iterable through a fixed number of lanes, answers as they finish, nothing lost on the way."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from lanewise.errors import OptionError, Outcome, TransformError
from programs.small import collatz, depth, positive_root

stream_module = sys.modules["lanewise.stream"]


NUMBERS = list(range(1, 200))


def expected() -> list[int]:
    return jax.vmap(collatz)(jnp.asarray(NUMBERS)).tolist()


@pytest.mark.parametrize("lanes", [1, 16, 500])
@pytest.mark.parametrize("ordered", [False, True])
def test_answers_do_not_depend_on_lanes_or_order(lanes: int, ordered: bool) -> None:
    some = NUMBERS[:20] if lanes == 1 else NUMBERS
    found = list(lw.stream(collatz, iter(some), lanes=lanes, ordered=ordered))
    assert len(found) == len(some)
    assert [steps for _, steps in sorted(found)] == expected()[: len(some)]
    if ordered:
        assert [index for index, _ in found] == list(range(len(some)))


@pytest.mark.parametrize("schedule", ["sweep", "most", "lowest"])
def test_schedules(schedule: str) -> None:
    found = dict(lw.stream(collatz, NUMBERS, lanes=16, schedule=schedule))
    assert [found[i] for i in range(len(NUMBERS))] == expected()


def test_short_examples_overtake_long_ones() -> None:
    @lw.program
    def count(n):
        i = 0
        while i < n:
            i += 1
        return i

    lengths = [500_000, *[3] * 40]
    found = list(lw.stream(count, lengths, lanes=4))
    assert found[-1] == (0, 500_000)
    assert sorted(found) == list(enumerate(lengths))
    assert list(lw.stream(count, lengths, lanes=4, ordered=True)) == list(enumerate(lengths))


def test_nothing_to_do() -> None:
    assert list(lw.stream(collatz, [], lanes=4)) == []


def test_several_arguments_and_pytrees() -> None:
    def iterate(state, times):
        def body(carry):
            return {"x": carry["x"] * 2, "left": carry["left"] - 1}

        out = lax.while_loop(lambda c: c["left"] > 0, body, {"x": state["x"], "left": times})
        return {"x": out["x"], "kind": state["kind"]}

    examples = [({"x": np.full(3, i, np.float32), "kind": "even"}, i % 5) for i in range(30)]
    found = dict(lw.stream(iterate, examples, lanes=4))
    for i, (state, times) in enumerate(examples):
        np.testing.assert_array_equal(found[i]["x"], state["x"] * 2**times)
        assert found[i]["kind"] == "even"


def test_a_tuple_of_one_is_a_lone_tuple() -> None:
    pairs = [((1.0, 2.0),), ((3.0, 4.0),)]
    assert dict(lw.stream(lambda pair: pair[0] + pair[1], pairs, lanes=2)) == {0: 3.0, 1: 7.0}


def test_keys() -> None:
    def rejected(key):
        def body(state):
            key, _ = state
            key, sub = jax.random.split(key)
            return key, jax.random.uniform(sub)

        return lax.while_loop(lambda s: s[1] < 0.8, body, (key, 0.0))

    keys = jax.random.split(jax.random.key(0), 11)
    found = dict(lw.stream(rejected, keys, lanes=3))
    for i, key in enumerate(keys):
        last, value = rejected(key)
        assert found[i][1] == value
        assert (jax.random.key_data(found[i][0]) == jax.random.key_data(last)).all()


def test_shared_values_are_closed_over() -> None:
    weights = jnp.eye(3) * 2

    def grow(x):
        return lax.while_loop(lambda y: jnp.sum(y) < 100, lambda y: weights @ y, x)

    xs = [np.full(3, i + 1, np.float32) for i in range(9)]
    found = dict(lw.stream(grow, xs, lanes=2))
    for i, x in enumerate(xs):
        np.testing.assert_array_equal(found[i], grow(x))
    assert float(weights.sum()) == 6


def test_recursion_grows_its_stacks() -> None:
    deep = [5, 200, 3, 90, 40, 0] * 5
    assert dict(lw.stream(depth, deep, lanes=4)) == dict(enumerate(deep))
    found = dict(lw.stream(depth, deep, lanes=4, max_depth=50))
    for i, n in enumerate(deep):
        assert found[i] == (lw.Failure(Outcome.STACK_OVERFLOW) if n > 50 else n)


def test_a_failing_example_carries_its_outcome_and_the_stream_goes_on() -> None:
    xs = [-1.0 if i % 7 == 3 else float(i) for i in range(40)]
    found = dict(lw.stream(positive_root, xs, lanes=4))
    assert sorted(found) == list(range(40))
    for i, x in enumerate(xs):
        if x < 0:
            assert found[i].outcome is Outcome.ASSERTION_FAILED
            assert "no root of a negative number" in str(found[i])
        else:
            assert found[i] == positive_root(x)


def test_throw_raises_at_the_failing_example() -> None:
    answers = lw.stream(positive_root, [4.0, 9.0, -1.0, 1.0], lanes=2, ordered=True, throw=True)
    assert [index for index, _ in itertools.islice(answers, 2)] == [0, 1]
    with pytest.raises(lw.LaneError, match=r"negative number.* in example 2"):
        next(answers)


class Counted:
    """An iterator that knows how much of it was taken."""

    def __init__(self, source: Iterator[Any]) -> None:
        self.source = source
        self.taken = 0

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> Any:
        self.taken += 1
        return next(self.source)


@pytest.mark.parametrize("ordered", [False, True])
def test_an_endless_source_is_read_as_needed(ordered: bool) -> None:
    source = Counted(iter(itertools.count(1)))
    answers = lw.stream(collatz, source, lanes=8, ordered=ordered)
    assert source.taken == 0
    for got, _ in enumerate(itertools.islice(answers, 100), 1):
        # In the lanes, waiting for one, and just finished.
        assert source.taken <= got + 3 * 8 + (stream_module.MOST_HELD * 8 if ordered else 0)
    answers.close()
    before = source.taken
    assert list(answers) == [] and source.taken == before


def test_ordered_answers_do_not_pile_up_behind_a_slow_one() -> None:
    def count(n):
        return lax.while_loop(lambda i: i < n, lambda i: i + 1, 0)

    source = Counted(iter(itertools.chain([3_000_000], itertools.repeat(1))))
    answers = lw.stream(count, source, lanes=4, ordered=True)
    assert next(answers) == (0, 3_000_000)
    assert source.taken <= (stream_module.MOST_HELD + 1) * 4
    answers.close()


def test_an_interrupt_hands_over_what_has_finished() -> None:
    def interrupted() -> Iterator[int]:
        yield from NUMBERS[:100]
        raise KeyboardInterrupt

    for ordered in (False, True):
        found = []
        with pytest.raises(KeyboardInterrupt):
            for pair in lw.stream(collatz, interrupted(), lanes=8, ordered=ordered):
                found.append(pair)
        # All but those that wait or run.
        assert 100 - 2 * 8 <= len(found) <= 100
        assert len(dict(found)) == len(found)
        assert all(steps == expected()[index] for index, steps in found)
        if ordered:
            assert found == sorted(found)


def test_an_interrupt_while_the_machine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = stream_module.Segments.run, itertools.count()

    def interrupted_once(self: Any, *args: Any) -> Any:
        if next(calls) == 6:
            raise KeyboardInterrupt
        return run(self, *args)

    monkeypatch.setattr(stream_module.Segments, "run", interrupted_once)
    found = []
    with pytest.raises(KeyboardInterrupt):
        for pair in lw.stream(collatz, NUMBERS, lanes=8):
            found.append(pair)
    assert 0 < len(found) < len(NUMBERS)
    assert all(steps == expected()[index] for index, steps in found)


def test_a_source_that_raises_loses_nothing() -> None:
    def broken() -> Iterator[int]:
        yield from NUMBERS[:30]
        raise RuntimeError("no more today")

    found = []
    with pytest.raises(RuntimeError, match="no more today"):
        for pair in lw.stream(collatz, broken(), lanes=4):
            found.append(pair)
    assert [steps for _, steps in sorted(found)] == expected()[:30]


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (np.ones(4, np.float32), r"example 3, array 0: it has shape \(4,\).* example 0 has shape"),
        (np.ones(3, np.int32), r"example 3, array 0: .* type int32"),
        ([np.ones(3, np.float32)], "example 3 has another structure than example 0"),
    ],
)
def test_examples_that_differ_are_named(odd: Any, message: str) -> None:
    examples = [np.ones(3, np.float32)] * 3 + [odd]
    found = []
    with pytest.raises(OptionError, match=message):
        for pair in lw.stream(jnp.sum, examples, lanes=2):
            found.append(pair)
    assert sorted(found) == [(0, 3.0), (1, 3.0), (2, 3.0)]


def test_python_numbers_take_the_type_of_the_first() -> None:
    found = dict(lw.stream(lambda x: x * 2, [0.5, 1, 2.0], lanes=2))
    assert found == {0: 1.0, 1: 2.0, 2: 4.0} and found[1].dtype == np.float32
    with pytest.raises(OptionError, match=r"example 1, array 0: .* type float32"):
        list(lw.stream(lambda x: x * 2, [1, 0.5], lanes=2))


def test_what_is_refused() -> None:
    with pytest.raises(OptionError, match="takes a function"):
        lw.stream(3, [1])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="cannot be iterated"):
        lw.stream(collatz, 3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="lanes=0"):
        lw.stream(collatz, [1], lanes=0)
    with pytest.raises(OptionError, match="fixed number"):
        lw.stream(collatz, [1], lanes=None)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="stats=True"):
        lw.stream(collatz, [1], stats=True)
    with pytest.raises(OptionError, match="a stream is run by"):
        lw.stream(collatz, [1], carrier="native")
    with pytest.raises(OptionError, match="'lane' is not an option"):
        lw.stream(collatz, [1], lane=2)
    with pytest.raises(TransformError, match="inside jit, use lanewise"):
        jax.jit(lambda n: list(lw.stream(collatz, [n], lanes=1)))(3)


def test_a_second_stream_traces_nothing() -> None:
    traces = []

    def count(n):
        traces.append(n)
        return lax.while_loop(lambda i: i < n, lambda i: i + 1, 0)

    program = lw.lift(count)
    assert dict(lw.stream(program, [1, 2, 3], lanes=2)) == {0: 1, 1: 2, 2: 3}
    before = len(traces)
    assert dict(lw.stream(program, [4, 5, 6], lanes=2)) == {0: 4, 1: 5, 2: 6}
    assert len(traces) == before


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    xs = [-1.0, 4.0, 9.0]
    assert len(list(lw.stream(positive_root, xs, lanes=2, progress=True))) == 3
    assert "3 of 3 done, 1 failed" in written.getvalue().split("\r")[-1]


def test_progress_is_seldom_and_never_raises() -> None:
    written = io.StringIO()
    shown = stream_module._Progress(written, None)
    for done in range(1000):
        shown.show(done, 0)
    shown.show(1000, 0, last=True)
    assert written.getvalue().count("\r") < 100
    assert "1000 done" in written.getvalue()
    written.close()
    shown.show(1001, 0, last=True)
