"""Rules of indexing at run time, with indices inside and outside, of every width."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from cpp.cases import EXAMPLES, Case, check, numbers

INDICES = {
    "int32": [[0, 2, 1], [-1, 5, 2], [1, 1, 1]],
    "int8": [[-128, 0, 3], [2, 127, -3], [0, 0, 2]],
    "uint8": [[255, 1, 0], [2, 3, 2], [4, 0, 128]],
    "int64": [[3, -7, 100], [0, 1, 2**40], [-(2**63), 2, 2]],
    "uint64": [[2**63 + 5, 1, 2], [0, 2, 1], [2**64 - 1, 0, 0]],
}


def _indices() -> list[tuple[str, np.ndarray]]:
    return [(kind, np.array(rows, kind)) for kind, rows in INDICES.items()]


@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
def test_gather(mode: str) -> None:
    def rows(x: Any, i: Any) -> Any:
        get = {"mode": mode}
        return (
            x.at[i].get(**get),
            x.at[:, i].get(**get),
            x.at[i[0]].get(**get),
            x.at[i, i].get(**get),
            x.at[i[1], i[0]].get(**get),
            x.at[i[1], 1:3].get(**get),
        )

    with jax.enable_x64(True):
        cases = []
        for kind, i in _indices():
            cases.append(Case(kind, rows, (numbers("float32", 3, 4), i), 0))
        i = _indices()[0][1]
        for kind in ("int16", "uint32", "bool", "bfloat16", "complex64"):
            take = lambda x, i: x.at[i].get(mode=mode)  # noqa: E731
            cases.append(Case(f"of {kind}", take, (numbers(kind, 3), i), 0))
        if mode == "fill":
            given = lambda x, i: x.at[i].get(mode=mode, fill_value=-5)  # noqa: E731
            cases.append(Case("fill value", given, (numbers("int32", 3), i)))
        check(cases)


@pytest.mark.parametrize("mode", ["drop", "clip", "promise_in_bounds"])
def test_scatter(mode: str) -> None:
    def written(x: Any, i: Any, how: str) -> Any:
        put = {"mode": mode}
        return (
            getattr(x.at[i], how)(x[:1] * 2, **put),
            getattr(x.at[:, i], how)(x[0, 0], **put),
            getattr(x.at[i[0], 1:3], how)(x[1, 1:3], **put),
            getattr(x.at[i, i], how)(x[0, :3] + 1, **put),
        )

    with jax.enable_x64(True):
        cases = []
        for how in ("set", "add", "multiply", "min", "max"):
            for kind, i in _indices() if how == "set" else _indices()[:1]:
                x = numbers("float32", 3, 4, special=how in ("set", "min", "max"))
                cases.append(Case(f"{how} {kind}", lambda x, i, h=how: written(x, i, h), (x, i), 4))
            i = _indices()[0][1]
            for kind in ("int8", "uint32", "bfloat16"):
                x = numbers(kind, 3, 4)
                cases.append(
                    Case(f"{how} of {kind}", lambda x, i, h=how: written(x, i, h), (x, i), 4)
                )
        x, i = numbers("float32", 3, 4, special=False), _indices()[0][1]
        cases += [
            Case("apply", lambda x, i: x.at[i].apply(lambda y: y * y + 1, mode=mode), (x, i)),
            Case("subtract", lambda x, i: x.at[i].subtract(2.0, mode=mode), (x, i)),
            Case("bool", lambda b, i: b.at[i].set(True, mode=mode), (numbers("bool", 3), i)),
        ]
        check(cases)


def test_dynamic_slices() -> None:
    def read(x: Any, i: Any) -> Any:
        return (
            lax.dynamic_slice(x, (i[0], i[1]), (2, 3)),
            lax.dynamic_slice(x, (i[2], i[1]), (1, 1)),
            lax.dynamic_slice(x, (i[2], i[1]), (3, 4)),
            lax.dynamic_index_in_dim(x, i[1], 1),
        )

    def write(x: Any, i: Any) -> Any:
        return (
            lax.dynamic_update_slice(x, x[:2, :3] * 2, (i[0], i[1])),
            lax.dynamic_update_slice(x, x[::-1], (i[0], i[1])),
            lax.dynamic_update_slice(x, x[:0], (i[0], i[1])),
        )

    with jax.enable_x64(True):
        x = numbers("float32", 3, 4)
        check(
            [
                Case(f"{f.__name__} {kind}", f, (x, i), 0)
                for kind, i in _indices()
                for f in (read, write)
            ]
        )


def test_batched_windows_and_batching_axes() -> None:
    x, i = numbers("float32", 3, 4), np.array([[0, 5, -3], [1, 2, 3], [-4, 4, 0]], np.int32)
    along = np.array([[[-6, 1], [3, 0], [2, 2]]] * EXAMPLES, np.int32)
    check(
        [
            Case("take along", lambda x, i: jnp.take_along_axis(x, i, 1), (x, along), 0),
            Case("rows' own element", jax.vmap(lambda r, i: r[i]), (x, i), 0),
            Case("rows' own update", jax.vmap(lambda r, i: r.at[i].add(1.0)), (x, i), 0),
            Case(
                "rows' own window",
                jax.vmap(lambda r, i: lax.dynamic_slice(r, (i,), (2,))),
                (x, i),
                0,
            ),
            Case(
                "rows' own window written",
                jax.vmap(lambda r, i: lax.dynamic_update_slice(r, r[:2], (i,))),
                (x, i),
                0,
            ),
            Case(
                "put along",
                lambda x, i: jnp.put_along_axis(x, i, 9.0, 1, inplace=False),
                (x, along),
                0,
            ),
            Case("search", lambda x: jnp.searchsorted(jnp.sort(x[0]), x[1]), (x,)),
        ]
    )


def test_the_last_of_several_updates_counts() -> None:
    i = np.array([[1, 1, 3, 1]] * EXAMPLES, np.int32)
    updates = np.arange(4, dtype=np.float32)
    both = lambda x, i: (x.at[i].set(updates), x.at[i].add(updates))  # noqa: E731
    check([Case("twice the same", both, (numbers("float32", 5, special=False), i), 4)])


def test_an_update_may_read_what_it_writes_over() -> None:
    def shifted(x: Any) -> Any:
        y = x * 2
        return y.at[1:].set(y[:-1]), (x + 1).at[jnp.array([0, 1])].add((x + 1)[jnp.array([1, 0])])

    def chained(x: Any, i: Any) -> Any:
        y = x + 1
        z = y.at[i].set(5.0)
        return y.at[i + 1].add(z[i]), z

    x, i = numbers("float32", 5, special=False), np.array([0, 1, 3], np.int32)
    check([Case("shifted", shifted, (x,), 4), Case("chained", chained, (x, i), 4)])
