"""Small values that travel together: they arrive as they left, whatever their types."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanewise.place.packing import MOST_BYTES, packed, struct_of, unpacked
from lanewise.place.placement import placement_from
from lanewise.place.prepared import ask

DTYPES = (
    jnp.bool_,
    jnp.int4,
    jnp.int8,
    jnp.uint16,
    jnp.int32,
    jnp.int64,
    jnp.bfloat16,
    jnp.float8_e4m3fn,
    jnp.float16,
    jnp.float32,
    jnp.float64,
    jnp.complex64,
    jnp.complex128,
)


def bits(value: Any) -> bytes:
    return np.asarray(value).tobytes()


def test_every_type_arrives_as_it_left() -> None:
    with jax.enable_x64(True):
        values = [jnp.asarray([[-2.0, 0.0, 1.0]]).astype(dtype) for dtype in DTYPES]
        values += [jnp.float32(3), jnp.zeros((0, 2)), jnp.asarray([jnp.nan, -jnp.inf, -0.0])]
        structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in values]
        words = jax.jit(packed)(values)
        assert (words.shape, words.dtype) == (struct_of(structs).shape, struct_of(structs).dtype)
        found = jax.jit(lambda words: unpacked(words, structs))(words)
        for mine, value in zip(found, values, strict=True):
            assert (mine.shape, mine.dtype) == (value.shape, value.dtype)
            assert bits(mine) == bits(value), value.dtype


def several(count: int, size: int) -> Any:
    import lanewise as lw

    def f(x):
        many = lw.placed(lambda x: tuple(x + i for i in range(count)), "first")(x)
        return lw.placed(lambda *xs: sum(xs), "second")(*many)

    return ask(
        f,
        "f",
        placement_from({"first": 0, "second": 1}),
        *jax.tree.flatten(((jnp.zeros(size),), {})),
    ).divided(False)


@pytest.mark.parametrize(
    ("size", "messages"), [(8, 1), (MOST_BYTES // 4, 1), (MOST_BYTES // 4 + 1, 3)]
)
def test_small_values_travel_together(size: int, messages: int) -> None:
    actions = several(3, size).actions
    assert len(actions.moves()) == 3
    assert [message.edge for message in actions.messages()] == [(0, 1)] * messages
    # An edge has room for all that `in_flight` iterations send over it.
    assert actions.credits(2) == {(0, 1): 2 * messages}
    numbers = [move.number for move in actions.moves()]
    assert numbers == sorted(set(numbers))


def test_a_value_is_not_sent_on_before_it_came() -> None:
    """Three places want what the second made; where one has it from another, its message comes after that one's."""
    import lanewise as lw

    def f(x):
        y, z = lw.placed(lambda x: (x + 1, x * 2), "b")(x)
        return [lw.placed(lambda y, z: y * z, name)(y, z) for name in ("a", "c", "d")]

    places = placement_from({"a": 0, "b": 1, "c": 2, "d": 3})
    found = ask(f, "f", places, *jax.tree.flatten(((jnp.zeros(2),), {}))).divided(False)
    here = {move.var: {1} for move in found.actions.moves()}
    for message in found.actions.messages():
        source, target = message.edge
        assert len(message.moves) == 2
        assert all(source in here[move.var] for move in message.moves)
        for move in message.moves:
            here[move.var].add(target)
    assert all(places == {0, 1, 2, 3} for places in here.values())
