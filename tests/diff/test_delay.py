"""Writes that wait for the next iteration."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from lanewise import _jax
from lanewise.diff import delay
from lanewise.diff.delay import delayed

SIZE = 64


def iteration(kind: str) -> Any:
    """Code that reads an array and writes it, with another use of what it read."""

    def run(array: Any, total: Any, place: Any) -> list[Any]:
        read = lax.dynamic_slice(array, (place,), (1,))[0]
        if kind == "slice":
            array = lax.dynamic_update_slice(array, jnp.reshape(2.0 * total, 1), (place,))
        elif kind == "scatter":
            array = array.at[place].set(2.0 * total)
        elif kind == "add":
            array = array.at[place].add(2.0 * total)
        else:
            array = array.at[place].set(2.0 * total, mode="clip")
        return [array, total + read]

    return run


def traced(kind: str, dtype: Any = jnp.int32, size: int = SIZE) -> _jax.Jaxpr:
    avals = [jnp.zeros(size), jnp.float32(0), jnp.zeros((), dtype)]
    return _jax.trace(iteration(kind), [_jax.aval_of(x) for x in avals]).jaxpr


@pytest.mark.parametrize("dtype", ["int32", "uint32", "uint8", "int8"])
@pytest.mark.parametrize("kind", ["slice", "scatter", "add"])
def test_the_loop_means_the_same(kind: str, dtype: str) -> None:
    code = delayed(traced(kind, dtype), [(0, 0), (1, 1)])
    assert len(code.writes) == 1
    places = np.random.default_rng(0).integers(0, 8, 6).astype(dtype)
    array, total = jnp.linspace(0.0, 1.0, SIZE), jnp.float32(0.5)
    outs, left = [array, total], code.start([array, total, None])
    expected = [array, total]
    for place in places:
        outs, left = code.run([*outs, place], left)
        expected = iteration(kind)(*expected, place)
    for found, want in zip(code.finish(outs, left), expected, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-6)


def test_a_write_waits_only_if_its_index_can_be_outside() -> None:
    """The first iteration has nothing to write: its index is out of range."""
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))

    def run(array: Any, place: Any) -> list[Any]:
        read = lax.dynamic_slice(array, (place,), (1,))[0]
        return [lax.scatter(array, place[None], 2.0 * read, numbers, mode="drop"), read]

    for dtype, size, waits in (("uint8", 300, 0), ("uint8", 200, 1), ("int8", 300, 1)):
        avals = [_jax.aval_of(jnp.zeros(size)), _jax.aval_of(jnp.zeros((), dtype))]
        assert len(delayed(_jax.trace(run, avals).jaxpr, [(0, 0)]).writes) == waits


def test_several_writes_wait_together() -> None:
    """The reverse of a recurrence reads an adjoint, clears it, and adds to it and to its neighbour."""

    def run(array: Any, place: Any) -> list[Any]:
        read = array[place]
        array = array.at[place].set(0.0)
        for at, value in ((place, 0.5 * read), (place - 1, 2.0 * read + 1.0)):
            old = lax.dynamic_slice(array, (at,), (1,))
            array = lax.dynamic_update_slice(array, old + value, (at,))
        return [array]

    avals = [_jax.aval_of(x) for x in (jnp.zeros(SIZE), jnp.int32(0))]
    code = delayed(_jax.trace(run, avals).jaxpr, [(0, 0)])
    assert [len(writes.each) for writes in code.writes] == [3]
    array = expected = jnp.linspace(0.0, 1.0, SIZE)
    outs, left = [array], code.start([array, None])
    for place in np.random.default_rng(1).integers(1, 8, 30).astype(np.int32):
        outs, left = code.run([*outs, place], left)
        (expected,) = run(expected, place)
    np.testing.assert_allclose(code.finish(outs, left)[0], expected, rtol=1e-6)


def test_what_cannot_wait_does_not() -> None:
    # An index that is clipped into range cannot be one that is dropped.
    assert not delayed(traced("clip"), [(0, 0), (1, 1)]).writes

    def read_for_the_write(array: Any, place: Any) -> list[Any]:
        old = lax.dynamic_slice(array, (place,), (1,))[0]
        return [lax.dynamic_update_slice(array, jnp.reshape(old * 2.0, 1), (place,))]

    avals = [_jax.aval_of(x) for x in (jnp.zeros(SIZE), jnp.int32(0))]
    assert not delayed(_jax.trace(read_for_the_write, avals).jaxpr, [(0, 0)]).writes


@lw.program
def fill(x):
    array = jnp.zeros(x.shape)
    for i in jnp.arange(x.shape[0]):
        array = array.at[i].set(jnp.sin(x[i]))
    return (array * array).sum()


@lw.program
def recurrence(x):
    for i in jnp.arange(1, x.shape[0]):
        x = x.at[i].set(jnp.sin(x[i - 1]) + x[i])
    return (x * x).sum()


def copies(program: lw.ProgramFunction, size: int) -> int:
    """How many arrays of this size the loops of a compiled gradient copy."""
    text = jax.jit(jax.grad(program)).lower(jnp.zeros(size)).compile().as_text() or ""
    inside, _, entry = text.partition("ENTRY")
    assert entry
    return inside.count(f"f32[{size}]{{0}} copy(")


@pytest.mark.parametrize("program", [fill, recurrence])
def test_the_gradient_of_writes_copies_no_array_in_its_loops(
    program: lw.ProgramFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert copies(program, 5000) == 0
    monkeypatch.setattr(delay, "FEWEST_ELEMENTS", 10**9)
    assert copies(program, 5001) > 0
