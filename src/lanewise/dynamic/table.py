"""Which piece of code runs on which rows: a table, and nothing else.

A *piece* is straight code for one row: it reads rows (values that belong to one call), shared operands (weights, the
same for every call) and gives rows. A *table* is a list of calls of pieces, in an order in which operands come before
their users. It is what a recorder leaves behind and what `order`, `layout` and `compute` read; it does not know what
recorded it, and it holds NumPy arrays only.

Values are numbered: the results of call 0, then those of call 1, and so on. An operand is

* `v >= 0`: the value of that number;
* `v < 0`: row `~v` of the inputs of the operand's type. Inputs are *payload* (plain numbers and small arrays of the
  instances, in the table) and then *carried* rows (results of an earlier table; the caller of `run` gives them, and
  they have gradients).

Flat arrays by call rather than one matrix for each piece: a recorder appends to two lists, and the matrices are made
by one index expression (`Table.calls_of`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from lanewise import _jax
from lanewise.core.errors import LanewiseError
from lanewise.dynamic.ending import may_not_end, with_programs


class TableError(LanewiseError, ValueError):
    """A table, or what was given to run one, does not fit together."""


class Type(NamedTuple):
    """The type of a row.

    >>> Type.of(np.zeros((3, 4), np.float32))
    float32[3,4]
    """

    shape: tuple[int, ...]
    dtype: Any

    @staticmethod
    def of(value: Any) -> Type:
        return Type(tuple(value.shape), np.dtype(value.dtype))

    @property
    def differentiable(self) -> bool:
        return _differentiable(self.dtype)

    def batch(self, size: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size, *self.shape), self.dtype)

    def __repr__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@functools.cache
def _differentiable(dtype: Any) -> bool:
    return _jax.has_tangent(_jax.shaped((), dtype))


@dataclass(frozen=True, eq=False)
class Piece:
    """Straight code for one row. The inputs of `code` are the shared operands, then the rows.

    Two pieces are the same only if they are one object, which the recorder keeps.
    """

    name: str
    code: _jax.Jaxpr
    shared: tuple[Type, ...]
    rows: tuple[Type, ...]
    results: tuple[Type, ...]

    @functools.cached_property
    def loops(self) -> bool:
        """Whether it must not run on rows that are not there."""
        return any(map(may_not_end, self.code.eqns))

    def __repr__(self) -> str:
        return f"Piece({self.name!r})"


def piece(
    fun: Callable[..., Any],
    shared: Sequence[Any] = (),
    rows: Sequence[Any] = (),
    name: str | None = None,
) -> Piece:
    """Trace `fun(*shared, *rows)`, code for one row, at operands like these (arrays or their types).

    >>> import jax.numpy as jnp
    >>> like = np.ones((4, 3), np.float32), np.ones(4, np.float32)
    >>> cell = piece(lambda w, x: jnp.tanh(x @ w), shared=like[:1], rows=like[1:], name="cell")
    >>> cell.rows, cell.results
    ((float32[4],), (float32[3],))
    """
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (*shared, *rows)]
    traced = _jax.trace(lambda *args: jax.tree.leaves(fun(*args)), structs)
    called = name or getattr(fun, "__name__", "piece")
    if traced.captures:
        raise TableError(
            f"piece {called!r} reads {len(traced.captures)} arrays from outside; give them as shared operands."
        )
    return Piece(
        called,
        with_programs(traced.jaxpr),
        tuple(map(Type.of, shared)),
        tuple(map(Type.of, rows)),
        tuple(Type(tuple(a.shape), np.dtype(a.dtype)) for a in traced.out_avals),
    )


class Calls(NamedTuple):
    """The calls of one piece: their numbers, the numbers of their first results, and a row of operands for each."""

    number: np.ndarray
    first: np.ndarray
    operands: np.ndarray


@dataclass(frozen=True, eq=False)
class Table:
    """Calls of pieces.

    `piece[i]` is the piece of call i, an index into `pieces`; `operands` are the operands of all calls, one after the
    other. `shared[p]` says which of the shared arrays are piece p's shared operands. `level[i]`, if the recorder has
    it, is the depth of call i.

    >>> import jax.numpy as jnp
    >>> add = piece(jnp.add, rows=[np.float32(0), np.float32(0)])
    >>> sums = Table((add,), ((),), [0, 0], [~0, ~1, 0, ~0], {Type((), np.dtype("f4")): np.float32([1, 2])})
    >>> len(sums), sums.num_values
    (2, 2)
    """

    pieces: tuple[Piece, ...]
    shared: tuple[tuple[int, ...], ...]
    piece: np.ndarray
    operands: np.ndarray
    payload: Mapping[Type, np.ndarray] = field(default_factory=dict)
    carried: Mapping[Type, int] = field(default_factory=dict)
    level: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("piece", "operands"):
            # Compiled passes take them by address.
            given = np.ascontiguousarray(getattr(self, name), np.int32).reshape(-1)
            object.__setattr__(self, name, given)

    def __len__(self) -> int:
        return len(self.piece)

    @functools.cached_property
    def arity(self) -> np.ndarray:
        """How many operands each piece has."""
        return np.array([len(p.rows) for p in self.pieces], np.int32)

    @functools.cached_property
    def num_results(self) -> np.ndarray:
        """How many results each piece has."""
        return np.array([len(p.results) for p in self.pieces], np.int32)

    @functools.cached_property
    def first_operand(self) -> np.ndarray:
        return _starts(self.arity[self.piece])

    @functools.cached_property
    def first_value(self) -> np.ndarray:
        return _starts(self.num_results[self.piece])

    @property
    def num_values(self) -> int:
        return int(self.first_value[-1])

    @functools.cached_property
    def caller(self) -> np.ndarray:
        """The call that makes each value."""
        return np.repeat(np.arange(len(self), dtype=np.int32), self.num_results[self.piece])

    @functools.cached_property
    def types(self) -> tuple[Type, ...]:
        """Every type of a row, in the order in which pieces name them."""
        named = (t for p in self.pieces for t in (*p.rows, *p.results))
        return tuple(dict.fromkeys(named))

    @functools.cached_property
    def calls_of(self) -> tuple[Calls, ...]:
        """The calls of each piece."""
        found = []
        for p, arity in enumerate(self.arity):
            number = np.flatnonzero(self.piece == p)
            at = self.first_operand[number]
            operands = self.operands[at[:, None] + np.arange(arity, dtype=np.int32)]
            found.append(Calls(number, self.first_value[number], operands))
        return tuple(found)

    def type_of(self, value: int) -> Type:
        call = int(self.caller[value])
        return self.pieces[self.piece[call]].results[value - int(self.first_value[call])]


def flat_operands(pieces: Sequence[Piece], piece: np.ndarray, calls_of: Iterable[Calls]) -> Any:
    """The operands of all calls one after the other, from those of each piece."""
    first = _starts(np.array([len(p.rows) for p in pieces], np.int32)[piece])
    flat = np.empty(int(first[-1]), np.int32)
    for calls in calls_of:
        arity = calls.operands.shape[1]
        flat[first[calls.number][:, None] + np.arange(arity, dtype=np.int32)] = calls.operands
    return flat


def _starts(counts: np.ndarray) -> np.ndarray:
    """Where each of these many begins, and where the last ends."""
    starts = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    return starts


def check(table: Table) -> Table:
    """The table, if it holds together: for recorders' tests, and for tables made by hand."""
    if len(table.operands) != table.first_operand[-1]:
        raise TableError(
            f"{table.first_operand[-1]} operands are needed by the calls, and {len(table.operands)} given."
        )
    for piece, calls, shared in zip(table.pieces, table.calls_of, table.shared, strict=True):
        if len(shared) != len(piece.shared):
            raise TableError(
                f"{piece} takes {len(piece.shared)} shared operands, {len(shared)} given."
            )
        for k, type_ in enumerate(piece.rows):
            given = calls.operands[:, k]
            rows = len(table.payload.get(type_, ())) + table.carried.get(type_, 0)
            if np.any(~given[given < 0] >= rows):
                raise TableError(f"operand {k} of {piece} names an input beyond the {rows} there.")
            values, users = given[given >= 0], calls.number[given >= 0]
            if np.any(values >= table.num_values) or np.any(table.caller[values] >= users):
                raise TableError(f"operand {k} of {piece} is made after it is read.")
            makers = table.piece[table.caller[values]]
            place = values - table.first_value[table.caller[values]]
            for q, j in {*zip(makers.tolist(), place.tolist())}:
                if table.pieces[q].results[j] != type_:
                    raise TableError(
                        f"operand {k} of {piece} is {type_}, and result {j} of {table.pieces[q]},"
                        f" which it reads, is {table.pieces[q].results[j]}."
                    )
    return table
