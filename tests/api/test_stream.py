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
from lanewise.api.stream import MOST_HELD, Streaming
from lanewise.core.errors import OptionError, Outcome, TransformError
from lanewise.feed.batches import BATCH_LANES, InBatches, size_for
from lanewise.feed.segments import Segments
from programs.small import collatz, depth, positive_root

# What runs lanes together, and what runs each separately, on this device.
CARRIERS = ("ticks", "kernel" if jax.default_backend() == "gpu" else "native")
every_carrier = pytest.mark.parametrize("carrier", CARRIERS)


NUMBERS = list(range(1, 200))


def expected() -> list[int]:
    return jax.vmap(collatz)(jnp.asarray(NUMBERS)).tolist()


@every_carrier
@pytest.mark.parametrize("lanes", [1, 16, 500])
@pytest.mark.parametrize("ordered", [False, True])
def test_answers_do_not_depend_on_lanes_or_order(lanes: int, ordered: bool, carrier: str) -> None:
    some = NUMBERS[:20] if lanes == 1 else NUMBERS
    found = list(lw.stream(collatz, iter(some), lanes=lanes, carrier=carrier, ordered=ordered))
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
    found = list(lw.stream(count, lengths, lanes=4, carrier="ticks"))
    assert found[-1] == (0, 500_000)
    assert sorted(found) == list(enumerate(lengths))
    assert list(lw.stream(count, lengths, lanes=4, ordered=True)) == list(enumerate(lengths))


@every_carrier
def test_nothing_to_do(carrier: str) -> None:
    assert list(lw.stream(collatz, [], lanes=4, carrier=carrier)) == []


@every_carrier
def test_several_arguments_and_pytrees(carrier: str) -> None:
    def iterate(state, times):
        def body(carry):
            return {"x": carry["x"] * 2, "left": carry["left"] - 1}

        out = lax.while_loop(lambda c: c["left"] > 0, body, {"x": state["x"], "left": times})
        return {"x": out["x"], "kind": state["kind"]}

    examples = [({"x": np.full(3, i, np.float32), "kind": "even"}, i % 5) for i in range(30)]
    found = dict(lw.stream(iterate, examples, lanes=4, carrier=carrier))
    for i, (state, times) in enumerate(examples):
        np.testing.assert_array_equal(found[i]["x"], state["x"] * 2**times)
        assert found[i]["kind"] == "even"


@every_carrier
def test_a_tuple_of_one_is_a_lone_tuple(carrier: str) -> None:
    pairs = [((1.0, 2.0),), ((3.0, 4.0),)]
    assert dict(lw.stream(lambda pair: pair[0] + pair[1], pairs, lanes=2, carrier=carrier)) == {
        0: 3.0,
        1: 7.0,
    }


@every_carrier
def test_keys(carrier: str) -> None:
    def rejected(key):
        def body(state):
            key, _ = state
            key, sub = jax.random.split(key)
            return key, jax.random.uniform(sub)

        return lax.while_loop(lambda s: s[1] < 0.8, body, (key, 0.0))

    keys = jax.random.split(jax.random.key(0), 11)
    found = dict(lw.stream(rejected, keys, lanes=3, carrier=carrier))
    for i, key in enumerate(keys):
        last, value = rejected(key)
        assert found[i][1] == value
        assert (jax.random.key_data(found[i][0]) == jax.random.key_data(last)).all()


@every_carrier
def test_shared_values_are_closed_over(carrier: str) -> None:
    weights = jnp.eye(3) * 2

    def grow(x):
        return lax.while_loop(lambda y: jnp.sum(y) < 100, lambda y: weights @ y, x)

    xs = [np.full(3, i + 1, np.float32) for i in range(9)]
    found = dict(lw.stream(grow, xs, lanes=2, carrier=carrier))
    for i, x in enumerate(xs):
        np.testing.assert_array_equal(found[i], grow(x))
    assert float(weights.sum()) == 6


@every_carrier
def test_recursion_grows_its_stacks(carrier: str) -> None:
    deep = [5, 200, 3, 90, 40, 0] * 5
    assert dict(lw.stream(depth, deep, lanes=4, carrier=carrier)) == dict(enumerate(deep))
    found = dict(lw.stream(depth, deep, lanes=4, carrier=carrier, max_depth=50))
    for i, n in enumerate(deep):
        assert found[i] == (lw.Failure(Outcome.STACK_OVERFLOW) if n > 50 else n)


@every_carrier
def test_a_failing_example_carries_its_outcome_and_the_stream_goes_on(carrier: str) -> None:
    xs = [-1.0 if i % 7 == 3 else float(i) for i in range(40)]
    found = dict(lw.stream(positive_root, xs, lanes=4, carrier=carrier))
    assert sorted(found) == list(range(40))
    for i, x in enumerate(xs):
        if x < 0:
            assert found[i].outcome is Outcome.ASSERTION_FAILED
            assert "no root of a negative number" in str(found[i])
        else:
            assert found[i] == positive_root(x)


@every_carrier
def test_throw_raises_at_the_failing_example(carrier: str) -> None:
    answers = lw.stream(
        positive_root, [4.0, 9.0, -1.0, 1.0], lanes=2, carrier=carrier, ordered=True, throw=True
    )
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


@every_carrier
@pytest.mark.parametrize("ordered", [False, True])
def test_an_endless_source_is_read_as_needed(ordered: bool, carrier: str) -> None:
    source = Counted(iter(itertools.count(1)))
    answers = lw.stream(collatz, source, lanes=8, carrier=carrier, ordered=ordered)
    assert source.taken == 0
    for got, _ in enumerate(itertools.islice(answers, 100), 1):
        # In the lanes (or a batch), waiting, and just finished.
        held = 8 if carrier == "ticks" else BATCH_LANES * 8
        assert source.taken <= got + 3 * held + (MOST_HELD * 8 if ordered else 0)
    answers.close()
    before = source.taken
    assert list(answers) == [] and source.taken == before


@every_carrier
def test_ordered_answers_do_not_pile_up_behind_a_slow_one(carrier: str) -> None:
    def count(n):
        return lax.while_loop(lambda i: i < n, lambda i: i + 1, 0)

    source = Counted(iter(itertools.chain([3_000_000], itertools.repeat(1))))
    answers = lw.stream(count, source, lanes=4, carrier=carrier, ordered=True)
    assert next(answers) == (0, 3_000_000)
    assert source.taken <= (MOST_HELD + 1) * 4
    answers.close()


@every_carrier
def test_an_interrupt_hands_over_what_has_finished(carrier: str) -> None:
    def interrupted() -> Iterator[int]:
        yield from NUMBERS[:100]
        raise KeyboardInterrupt

    for ordered in (False, True):
        found = []
        with pytest.raises(KeyboardInterrupt):
            for pair in lw.stream(
                collatz, interrupted(), lanes=8, carrier=carrier, ordered=ordered
            ):
                found.append(pair)
        # All but those that wait or run.
        held = 8 if carrier == "ticks" else BATCH_LANES * 8
        assert 100 - 2 * held <= len(found) <= 100
        assert len(dict(found)) == len(found)
        assert all(steps == expected()[index] for index, steps in found)
        if ordered:
            assert found == sorted(found)


def test_an_interrupt_while_the_machine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = Segments.run, itertools.count()

    def interrupted_once(self: Any, *args: Any) -> Any:
        if next(calls) == 6:
            raise KeyboardInterrupt
        return run(self, *args)

    monkeypatch.setattr(Segments, "run", interrupted_once)
    found = []
    with pytest.raises(KeyboardInterrupt):
        for pair in lw.stream(collatz, NUMBERS, lanes=8, carrier="ticks"):
            found.append(pair)
    assert 0 < len(found) < len(NUMBERS)
    assert all(steps == expected()[index] for index, steps in found)


@pytest.mark.parametrize("ended", [False, True])
def test_an_interrupt_while_a_batch_runs(monkeypatch: pytest.MonkeyPatch, ended: bool) -> None:
    finish, calls = InBatches.ended, itertools.count()

    def interrupted_once(self: Any) -> Any:
        if next(calls) == 2:
            if ended:
                jax.block_until_ready(self.out)
            else:
                monkeypatch.setattr(InBatches, "ready", lambda self: False)
            raise KeyboardInterrupt
        return finish(self)

    monkeypatch.setattr(InBatches, "ended", interrupted_once)
    found = []
    with pytest.raises(KeyboardInterrupt):
        for pair in lw.stream(collatz, NUMBERS, lanes=8, carrier=CARRIERS[1]):
            found.append(pair)
    # Two batches, and the third if it had ended: nothing of what has finished is lost, and nothing is waited for.
    assert len(found) == (3 if ended else 2) * BATCH_LANES * 8
    assert all(steps == expected()[index] for index, steps in found)


def test_auto_streams_as_vmap_runs() -> None:
    def fed_for(fun: Any, example: Any) -> str:
        program = lw.lift(fun).with_options(lanes=4, throw=False)
        streaming = Streaming(program, iter([example]), False, None)
        next(streaming.answers())
        assert streaming.first is not None
        return type(streaming.first.fed).__name__

    weights = jnp.eye(64)

    def products(x: Any) -> Any:
        return lax.while_loop(lambda y: jnp.sum(y) < 100, lambda y: 2 * weights @ y, x)

    assert fed_for(collatz, 6) == "InBatches"
    assert fed_for(products, np.ones(64, np.float32)) == "InLanes"


def test_batches_grow_while_they_are_short_and_are_filled_up() -> None:
    sizes = []
    start = InBatches.start

    def noted(self: Any, waiting: Any) -> bool:
        sizes.append(min(len(waiting), self.wanted))
        return start(self, waiting)

    numbers = list(range(1, 2001))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InBatches, "start", noted)
        found = dict(lw.stream(collatz, numbers, lanes=200, carrier=CARRIERS[1]))
    assert found == dict(enumerate(jax.vmap(collatz)(jnp.asarray(numbers)).tolist()))
    assert max(sizes) <= BATCH_LANES * 200 and sum(sizes) == 2000
    for count in range(1, 300):
        assert count <= size_for(count) <= max(count + 1, 1.25 * count)


@every_carrier
def test_a_source_that_raises_loses_nothing(carrier: str) -> None:
    def broken() -> Iterator[int]:
        yield from NUMBERS[:30]
        raise RuntimeError("no more today")

    found = []
    with pytest.raises(RuntimeError, match="no more today"):
        for pair in lw.stream(collatz, broken(), lanes=4, carrier=carrier):
            found.append(pair)
    assert [steps for _, steps in sorted(found)] == expected()[:30]


@every_carrier
@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (np.ones(4, np.float32), r"example 3, array 0: it has shape \(4,\).* example 0 has shape"),
        (np.ones(3, np.int32), r"example 3, array 0: .* type int32"),
        ([np.ones(3, np.float32)], "example 3 has another structure than example 0"),
    ],
)
def test_examples_that_differ_are_named(odd: Any, message: str, carrier: str) -> None:
    examples = [np.ones(3, np.float32)] * 3 + [odd]
    found = []
    with pytest.raises(OptionError, match=message):
        for pair in lw.stream(jnp.sum, examples, lanes=2, carrier=carrier):
            found.append(pair)
    assert sorted(found) == [(0, 3.0), (1, 3.0), (2, 3.0)]


@every_carrier
def test_python_numbers_take_the_type_of_the_first(carrier: str) -> None:
    found = dict(lw.stream(lambda x: x * 2, [0.5, 1, 2.0], lanes=2, carrier=carrier))
    assert found == {0: 1.0, 1: 2.0, 2: 4.0} and found[1].dtype == np.float32
    with pytest.raises(OptionError, match=r"example 1, array 0: .* type float32"):
        list(lw.stream(lambda x: x * 2, [1, 0.5], lanes=2, carrier=carrier))


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
    absent = "native" if jax.default_backend() == "gpu" else "kernel"
    with pytest.raises(OptionError, match=f"carrier='{absent}' runs on a"):
        list(lw.stream(collatz, [1], carrier=absent))
    with pytest.raises(OptionError, match="'lane' is not an option"):
        lw.stream(collatz, [1], lane=2)
    with pytest.raises(TransformError, match=r"traced value.*Use lanewise\.vmap"):
        jax.jit(lambda n: list(lw.stream(collatz, [n], lanes=1)))(3)


@every_carrier
def test_a_second_stream_traces_nothing(carrier: str) -> None:
    traces = []

    def count(n):
        traces.append(n)
        return lax.while_loop(lambda i: i < n, lambda i: i + 1, 0)

    program = lw.lift(count)
    assert dict(lw.stream(program, [1, 2, 3], lanes=2, carrier=carrier)) == {0: 1, 1: 2, 2: 3}
    before = len(traces)
    assert dict(lw.stream(program, [4, 5, 6], lanes=2, carrier=carrier)) == {0: 4, 1: 5, 2: 6}
    assert len(traces) == before


@every_carrier
def test_progress(monkeypatch: pytest.MonkeyPatch, carrier: str) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    xs = [-1.0, 4.0, 9.0]
    assert len(list(lw.stream(positive_root, xs, lanes=2, carrier=carrier, progress=True))) == 3
    last = written.getvalue().splitlines()[-1]
    assert last.startswith("positive_root: 3 of 3 examples") and last.endswith("failed 1")


def test_no_gradient_goes_through_a_stream() -> None:
    def closed_over(w: Any) -> Any:
        return sum(value for _, value in lw.stream(lambda x: x * w, [1.0, 2.0]))

    def given(w: Any) -> Any:
        return sum(value for _, value in lw.stream(lambda x: x * 2.0, [w, w]))

    for fun, who in ((closed_over, "closes over"), (given, "example 0 holds")):
        for transformed in (jax.grad(fun), jax.jit(fun)):
            with pytest.raises(
                TransformError, match=rf"{who} a traced value.*no gradient.*lanewise\.vmap"
            ):
                transformed(2.0)


@every_carrier
def test_a_source_with_nothing_at_the_moment_does_not_hold_up_what_runs(carrier: str) -> None:
    """The source gives its last examples only when the first ones have been answered."""
    answered: list[int] = []
    asked = 0

    def source() -> Iterator[Any]:
        nonlocal asked
        yield lw.NOT_YET
        yield from NUMBERS[:3]
        while len(answered) < 3:
            asked += 1
            assert asked < 100_000, "three examples were never answered"
            yield lw.NOT_YET
        yield from NUMBERS[3:6]

    found = {}
    for index, steps in lw.stream(collatz, source(), lanes=4, carrier=carrier):
        answered.append(index)
        found[index] = int(steps)
    assert [found[i] for i in range(6)] == expected()[:6]
    assert sorted(answered[:3]) == [0, 1, 2]


def test_nothing_at_the_moment_is_no_example_of_plain_python() -> None:
    with jax.disable_jit():
        assert list(lw.stream(collatz, [lw.NOT_YET, 6, lw.NOT_YET, 1], lanes=2)) == [(0, 8), (1, 0)]
