"""Values from outside are read when a program is traced: one that changes later is warned of, once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.core.errors import CapturedValueWarning

RATE = 2.0
TABLE: Any = np.ones(3, np.float32)
SETTINGS = {"rate": 3.0}


def helper(x: Any) -> Any:
    return x * RATE


def named(x: Any) -> Any:
    while x < 10.0:
        x = x * RATE
    return x


def through_a_helper(x: Any) -> Any:
    return helper(x) if x > 0 else x


def by_table(x: Any) -> Any:
    return x + TABLE[0] if x > 0 else x


def by_settings(x: Any) -> Any:
    return x * SETTINGS["rate"] if x > 0 else x


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = dict(globals())
    yield
    globals().update(before)
    SETTINGS["rate"] = 3.0


def change(name: str, value: Any) -> None:
    globals()[name] = value


@pytest.mark.parametrize(
    ("fun", "name", "new"),
    [
        (named, "RATE", 3.0),
        (through_a_helper, "RATE", 3.0),
        (through_a_helper, "helper", lambda x: x - 1.0),
        (by_table, "TABLE", np.zeros(3, np.float32)),
    ],
)
@pytest.mark.parametrize("call", ["lone", "vmap", "jax.vmap"])
def test_a_global_that_changes_is_warned_of_once(fun: Any, name: str, new: Any, call: str) -> None:
    program = lw.program(fun)
    calls: dict[str, Any] = {
        "lone": program,
        "vmap": lw.vmap(program),
        "jax.vmap": jax.vmap(program),
    }
    run, x = calls[call], jnp.float32(1.0) if call == "lone" else jnp.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = run(x)
        run(x)
    change(name, new)
    with pytest.warns(CapturedValueWarning, match=f"`{name}` has changed.*argument") as caught:
        assert np.array_equal(run(x), first)  # the old value counts
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(x)


def test_closures_containers_and_what_is_equal() -> None:
    rate = 2.0

    @lw.program
    def closed(x: Any) -> Any:
        return x * rate if x > 0 else x

    inside = lw.program(by_settings)

    @lw.program
    def outer(x: Any) -> Any:
        return inside(x) + 1.0

    closed(1.0)
    outer(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rate = float("2.0")  # another object, the same value
        assert closed(1.0) == 2.0
    rate = 5.0
    with pytest.warns(CapturedValueWarning, match=r"`rate` has changed.*2\.0 then, 5\.0 now"):
        assert closed(1.0) == 2.0
    SETTINGS["rate"] = 7.0
    with pytest.warns(CapturedValueWarning, match="`SETTINGS` has changed"):
        assert outer(1.0) == 4.0
    # A new signature is traced anew, and reads what is there now.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert closed(jnp.float16(1.0)) == 5.0


def test_an_object_that_has_every_attribute_is_no_function() -> None:
    anything = Mock()

    @lw.program
    def doubled(x: Any) -> Any:
        return x if anything is None else 2.0 * x

    assert doubled(1.0) == 2.0


def test_a_function_made_again_is_the_same_and_counting_traces_is_no_change() -> None:
    traces: list[int] = []

    def made() -> Any:
        def double(x: Any) -> Any:
            return 2.0 * x

        return double

    double = made()

    @lw.program
    def doubled(x: Any) -> Any:
        traces.append(1)
        return double(x) if x > 0 else x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        doubled(1.0)
        double = made()
        assert doubled(1.0) == 2.0 and len(traces) == 1
        doubled(jnp.float16(1.0))  # traced again, and counted
        assert doubled(1.0) == 2.0 and len(traces) == 2
