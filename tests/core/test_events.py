"""What watches a run cannot fail it."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.core import events
from lanewise.watch.recording import Recording
from programs.small import collatz


class Broken(Recording):
    def ended(self, run: int, now: float, arrays: Any) -> None:
        raise OSError("the disk is full")


@pytest.fixture
def first_failure() -> Any:
    known = events._failures[:]
    events._failures.clear()
    yield
    events._failures[:] = known


@pytest.mark.usefixtures("first_failure")
@pytest.mark.parametrize("carrier", ["ticks", "native"])
def test_a_recorder_that_fails_is_reported_once_and_fails_no_run(carrier: Any) -> None:
    numbers = jnp.arange(1, 5)
    run = lw.vmap(collatz, carrier=carrier)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with events.recording(Broken()):
            found = [jax.block_until_ready(run(numbers)) for _ in range(2)]
    assert [answer.tolist() for answer in found] == [[0, 1, 7, 2]] * 2
    messages = [str(w.message) for w in said if w.category is lw.errors.RecorderWarning]
    (message,) = messages
    assert "OSError: the disk is full" in message


@pytest.mark.usefixtures("first_failure")
def test_nor_does_it_where_warnings_are_errors() -> None:
    with warnings.catch_warnings(), events.recording(Broken()):
        warnings.simplefilter("error", lw.errors.RecorderWarning)
        answer = np.asarray(lw.vmap(collatz, carrier="ticks")(jnp.arange(1, 4)))
    assert answer.tolist() == [0, 1, 7] and len(events._failures) == 1
