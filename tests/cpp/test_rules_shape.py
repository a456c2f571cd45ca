"""Rules of what moves elements."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from cpp.cases import INTS, Case, check, numbers

PADDINGS = (
    ((1, 2, 0), (0, 1, 2)),
    ((-1, -1, 1), (2, -2, 1)),
    ((-2, 0, 0), (0, -3, 0)),
    ((0, 0, 0), (0, 0, 3)),
    ((-3, 0, 0), (0, 0, 0)),
    ((1, -2, 0), (-1, 1, 1)),
)


def _moves(dtype: str) -> list[Case]:
    x = numbers(dtype, 3, 4)
    cases = {
        "broadcast": lambda x: jnp.broadcast_to(x[:, None], (3, 2, 4)),
        "broadcast of one axis": lambda x: jnp.broadcast_to(x[:1], (3, 4)) * 1,
        "reshape": lambda x: x.reshape(2, 6),
        "reshape of a transposition": lambda x: x.T.reshape(6, 2).reshape(3, 1, 4),
        "reshape in another order": lambda x: lax.reshape(x, (12,), (1, 0)),
        "squeeze": lambda x: x[None, :, None].squeeze(0),
        "transpose": lambda x: jnp.transpose(x.reshape(3, 2, 2), (2, 0, 1)),
        "rev": lambda x: lax.rev(x, (0, 1)) + lax.rev(x, (1,)),
        "slice": lambda x: (x[::2, 1:3], x[2, 3], x[1:1]),
        "split": lambda x: jnp.split(x, [1, 3], axis=1),
        "unstack": lambda x: jnp.unstack(x, axis=1),
        "stack": lambda x: jnp.stack([x[0], x[1] * 2, x[2]], axis=1),
        "tile": lambda x: jnp.tile(x, (2, 3)),
        "concatenate": lambda x: jnp.concatenate([x, x[:, :1] + 1, x[:, :0], x], axis=1),
        "one element": lambda x: jnp.concatenate([x[0, :1], x[1, :1]]).reshape(2, 1, 1),
    }
    return [Case(name, function, (x,), ulps=0) for name, function in cases.items()]


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
def test_elements_are_only_moved(dtype: str) -> None:
    check(_moves(dtype))


def test_padding_is_negative_and_inside() -> None:
    x = numbers("float32", 3, 4)
    check(
        [Case(f"pad {c}", lambda x, c=c: lax.pad(x, np.float32(7), c), (x,), 0) for c in PADDINGS]
    )


def test_keys_move_as_other_elements_do() -> None:
    keys = jax.random.split(jax.random.key(0), (3, 4))
    moved = lambda k: (k[::-1], k.reshape(2, 2).T, jnp.concatenate([k, k[:1]]), k[2])  # noqa: E731
    check([Case("keys", moved, (keys,))])


def test_iota_of_every_dtype() -> None:
    kinds = [*INTS, "float16", "bfloat16", "float32", "float64", "complex64"]
    with jax.enable_x64(True):
        check(
            [
                Case(
                    kind, lambda x, k=kind: lax.broadcasted_iota(k, (3, 5), 1) + x, (numbers(kind),)
                )
                for kind in kinds
            ]
        )


def test_large_arrays_are_loops_not_text() -> None:
    x = numbers("float32", 300, 40)
    function = lambda x: jnp.pad(jnp.concatenate([x.T[::-1], x.T], 1), 1)[::2]  # noqa: E731
    check([Case("large", function, (x,), ulps=0)])


def test_derivatives_of_diagonals() -> None:
    """JAX puts scalars of no value where a branch for another platform has nothing to give."""
    x = numbers("float32", 4, 4)
    functions = {
        "diagonal": lambda x: jnp.sum(jnp.diagonal(x) ** 3),
        "above": lambda x: jnp.sum(jnp.diagonal(x, 1) * x[0, :3]),
        "diag": lambda x: jnp.sum(jnp.diag(x @ x)),
    }
    check([Case(name, jax.grad(function), (x,)) for name, function in functions.items()])
