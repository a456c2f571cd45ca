"""Writes that happen where a mask holds: those of lanes that are elsewhere change nothing. And calls of the host."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import lanewise as lw
from lanewise import _jax
from lanewise.blocks.equations import masked_update
from lanewise.core.errors import TransformError

SIZE = 300
NUMBERS = lax.ScatterDimensionNumbers((), (0,), (0,))


def write(kind: str) -> Any:
    own: Any = {"allow_negative_indices": False}
    if kind == "slice":
        return lambda a, i, x: [lax.dynamic_update_slice(a, x[None], (i,), **own)]
    return lambda a, i, x: [lax.scatter(a, i[None], x, NUMBERS, mode=kind)]


@pytest.mark.parametrize("kind", ["slice", "clip", "drop"])
def test_every_type_of_index(kind: str) -> None:
    """Expected is what NumPy says: XLA itself clips to another place where the type is too narrow for the array."""
    fun, before = write(kind), np.arange(SIZE, dtype=np.float32)
    with jax.enable_x64(True):
        for name in "int8 uint8 int16 uint16 int32 uint32 int64 uint64".split():
            info = np.iinfo(name)
            avals = [_jax.aval_of(jnp.zeros(shape, d)) for shape, d in ((SIZE, "f4"), ((), name))]
            (eqn,) = _jax.trace(fun, [*avals, _jax.aval_of(jnp.float32(0))]).jaxpr.eqns[-1:]
            for place in {0, 7, 100, info.max, info.min, max(info.min, -5), min(info.max, SIZE)}:
                one = jnp.asarray(np.array(place, name))
                index = one if kind == "slice" else one[None]
                value = jnp.float32(-1.0)
                args = [before, value[None], index] if kind == "slice" else [before, index, value]
                for mask in (True, False):
                    expected = before.copy()
                    at = min(max(place, 0), SIZE - 1)
                    if mask and (kind != "drop" or at == place):
                        expected[at] = -1.0
                    found = masked_update(eqn, [jnp.asarray(a) for a in args], jnp.bool_(mask))
                    np.testing.assert_array_equal(found, expected, f"{name} {place} {mask}")


def called(x: Any) -> Any:
    """Calls back lane by lane, as the callback does not say how it batches: in a loop that all lanes run alike, too."""
    like = jax.ShapeDtypeStruct((), x.dtype)

    def grown(x: Any) -> Any:
        return jax.pure_callback(lambda x: np.asarray(1.5 * x), like, x)

    x = lax.while_loop(lambda x: x < 5.0, lambda x: grown(x) + 0.5, x)
    return lax.fori_loop(0, 3, lambda _, x: grown(x), x)


@pytest.mark.parametrize("schedule", ["auto", "sweep", "plain"])
def test_callbacks_are_called_lane_by_lane(schedule: str) -> None:
    xs = jnp.array([0.3, 1.2, 9.5])
    want = [jax.jit(called)(x) for x in xs]
    np.testing.assert_allclose(lw.vmap(called, schedule=schedule)(xs), want, rtol=1e-6)


@pytest.mark.parametrize("gives", [False, True], ids=["nothing", "a value"])
def test_effects_of_lanes_that_part_ways_are_refused_at_their_line(gives: bool) -> None:
    def told(x: Any) -> Any:
        def step(x: Any) -> Any:
            like = jax.ShapeDtypeStruct((), x.dtype) if gives else None
            found = io_callback(lambda x: x if gives else None, like, x)
            return 2.0 * (found if gives else x)

        return lax.while_loop(lambda x: x < 5.0, step, x)

    with pytest.raises(TransformError, match=r"io_callback has an effect.*test_equations\.py:\d+"):
        lw.vmap(told)(jnp.array([1.0, 2.0]))
