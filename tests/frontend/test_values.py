"""How two types meet: weak types give way, strong ones must be equal, shapes never change."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanewise import _jax
from lanewise.frontend import values

WEAK = {kind: _jax.aval_of(kind(1)) for kind in (int, float, complex)}


def strong(dtype: Any, *shape: int) -> Any:
    return _jax.shaped(shape, jnp.dtype(dtype))


@pytest.mark.parametrize(
    "number, dtype",
    [
        (int, "int8"),
        (int, "uint8"),
        (int, "int32"),
        (int, "bfloat16"),
        (int, "float16"),
        (int, "complex64"),
        (float, "bfloat16"),
        (float, "float16"),
        (float, "float32"),
        (float, "complex64"),
        (complex, "complex64"),
    ],
)
def test_a_weak_type_becomes_the_strong_type_it_meets(number: type, dtype: str) -> None:
    wanted = strong(dtype)
    assert values.join(WEAK[number], wanted) == wanted
    assert values.join(wanted, WEAK[number]) == wanted
    # JAX's own arithmetic agrees.
    assert (number(1) + jnp.ones((), dtype)).dtype == wanted.dtype


@pytest.mark.parametrize(
    "number, dtype",
    [
        (int, "bool"),
        (float, "bool"),
        (float, "int8"),
        (float, "uint8"),
        (float, "int32"),
        (complex, "bfloat16"),
        (complex, "float32"),
    ],
)
def test_a_strong_type_never_changes(number: type, dtype: str) -> None:
    assert values.join(WEAK[number], strong(dtype)) is None
    assert values.join(strong(dtype), WEAK[number]) is None


@pytest.mark.parametrize(
    "first, second, wanted",
    [
        (int, int, int),
        (int, float, float),
        (float, int, float),
        (float, complex, complex),
        (complex, int, complex),
    ],
)
def test_two_weak_types_promote_and_stay_weak(first: type, second: type, wanted: type) -> None:
    joined = values.join(WEAK[first], WEAK[second])
    assert joined == WEAK[wanted]
    assert joined is not None and joined.weak_type


@pytest.mark.parametrize(
    "first, second",
    [
        ("int8", "int32"),
        ("uint8", "int8"),
        ("bfloat16", "float16"),
        ("float16", "float32"),
        ("int32", "float32"),
        ("bool", "int32"),
    ],
)
def test_two_strong_types_must_be_equal(first: str, second: str) -> None:
    assert values.join(strong(first), strong(second)) is None
    assert values.join(strong(first), strong(first)) == strong(first)


def test_the_strong_one_of_two_equal_dtypes_wins() -> None:
    for kind, weak in WEAK.items():
        dtype = jnp.result_type(kind)
        assert values.join(weak, strong(dtype)) == strong(dtype)
        assert values.join(strong(dtype), weak) == strong(dtype)


def test_shapes_must_be_equal_and_are_kept() -> None:
    assert values.join(strong("float32", 3), strong("float32", 4)) is None
    assert values.join(strong("float32", 3), strong("float32")) is None
    assert values.join(WEAK[int], strong("int8", 1)) is None
    weak_row = _jax.shaped((3,), WEAK[int].dtype, True)
    assert values.join(weak_row, strong("int8", 3)) == strong("int8", 3)
    assert values.join(weak_row, weak_row) == weak_row


def test_keys_join_keys_of_their_own_kind_only() -> None:
    key = _jax.aval_of(jax.random.key(0))
    assert values.join(key, key) == key
    assert values.join(key, WEAK[int]) is None
    assert values.join(strong("uint32"), key) is None
    assert values.join(key, _jax.aval_of(jax.random.key(0, impl="rbg"))) is None


def test_convert_gives_the_type_weakness_included() -> None:
    for aval in (strong("int8"), strong("bfloat16"), WEAK[int], WEAK[float]):
        assert _jax.aval_of(values.convert(np.int32(1), aval)) == aval
