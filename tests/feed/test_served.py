"""Lanes of `native` that a stream feeds one by one, while they run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from by_hand import compilations
from lanewise.api.stream import Streaming
from lanewise.cpp.toolchain import feeding, foreign

pytestmark = [needs.compiler, needs.on_cpu]
several_cores = pytest.mark.skipif(foreign.cores() < 2, reason="one core runs one lane")
WEIGHT = np.random.default_rng(0).normal(size=(96, 96)).astype("float32") / 8


@lw.program
def counted(n, x):
    """Not one loop of scalars: lanes are no tile. It never ends below zero."""
    total = jnp.uint32(1)
    while n != 0:
        total = total * jnp.uint32(1664525) + x[n % 4]
        n -= 1
    return total, x


@lw.program
def multiplied(n, x):
    """Lanes meet at the product, so that one core runs several."""
    while n != 0:
        x = jnp.tanh(x @ WEIGHT)
        n -= 1
    return x


def example(n: int) -> tuple[np.int32, np.ndarray]:
    return np.int32(n), np.arange(4, dtype=np.uint32) + np.uint32(abs(n) % 7)


def wide(n: int) -> tuple[np.int32, np.ndarray]:
    return np.int32(n), np.full(96, 1 / (1 + abs(n)), np.float32)


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "cores", lambda: 1)


def serving_threads() -> int:
    return sum("_serve" in thread.name for thread in threading.enumerate())


def test_it_is_what_a_stream_feeds() -> None:
    program = counted.with_options(lanes=4, throw=False, carrier="native")
    streaming = Streaming(program, iter([example(3)]), False, None)
    next(streaming.answers())
    assert streaming.first is not None
    assert type(streaming.first.fed).__name__ == "InSlots"


@pytest.mark.parametrize("program, given", [(counted, example), (multiplied, wide)])
@pytest.mark.parametrize("lanes", [1, 3, 40])
def test_answers_are_those_of_one_at_a_time(program: Any, given: Any, lanes: int) -> None:
    lengths = np.random.default_rng(1).integers(0, 60, 100).tolist()
    examples = [given(n) for n in lengths]
    found = dict(lw.stream(program, iter(examples), lanes=lanes, carrier="native"))
    assert sorted(found) == list(range(100))
    columns = [np.stack(column) for column in zip(*examples, strict=True)]
    alone = lw.vmap(program, carrier="native")(*columns)
    for index, answer in found.items():
        for ours, theirs in zip(*map(jax.tree.leaves, (answer, alone)), strict=True):
            np.testing.assert_array_equal(ours, theirs[index])


def answered_first(program: Any, examples: Any) -> int:
    answers = lw.stream(program, examples, lanes=2, carrier="native")
    index, _ = next(answers)
    answers.close()
    return index


@several_cores
def test_an_answer_leaves_when_it_has_ended() -> None:
    assert answered_first(counted, [example(-1), example(3)]) == 1
    assert serving_threads() == 0


@pytest.mark.usefixtures("one_core")
def test_one_core_answers_too_where_lanes_meet() -> None:
    assert answered_first(multiplied, [wide(-1), wide(3)]) == 1
    assert serving_threads() == 0


@pytest.mark.usefixtures("one_core")
def test_an_example_joins_those_that_run() -> None:
    """The second comes when the first, which never ends, is under way."""
    asked = 0

    def source() -> Iterator[Any]:
        nonlocal asked
        yield wide(-1)
        for asked in range(20):
            yield lw.NOT_YET
        yield wide(5)
        while True:
            yield lw.NOT_YET

    assert answered_first(multiplied, source()) == 1 and asked == 19


def test_an_example_that_fails_is_reported_alone() -> None:
    @lw.program
    def inverse(n, x):
        assert n != 2
        while n > 0:
            x = x + x[n % 4]
            n -= 1
        return x

    found = dict(lw.stream(inverse, map(example, range(5)), lanes=2, carrier="native"))
    assert [isinstance(found[n], lw.Failure) for n in range(5)] == [n == 2 for n in range(5)]
    again = dict(lw.stream(counted, [example(9)] * 3, lanes=2, carrier="native", max_steps=4))
    assert all(isinstance(answer, lw.Failure) for answer in again.values())


def test_nothing_is_compiled_for_other_numbers_of_examples() -> None:
    dict(lw.stream(counted, map(example, range(3)), lanes=8, carrier="native"))
    with compilations() as found:
        for count in (1, 2, 7, 33):
            dict(lw.stream(counted, map(example, range(count)), lanes=8, carrier="native"))
    assert not found


def test_a_stream_that_is_left_leaves_no_thread() -> None:
    answers = lw.stream(counted, iter(lambda: example(50), None), lanes=4, carrier="native")
    next(answers)
    assert serving_threads() > 0
    answers.close()
    until = time.monotonic() + 30
    while serving_threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert serving_threads() == 0
