"""What a lazy block records, and how it is run: calls, payload, shared arrays, and the values of earlier flushes.

Calls are appended to two lists (the piece, the operands), payload to one list for each type. A *flush* makes a table
of these and runs it; its values stay in the arenas of the run, from which later ones read them. To the table of a
later flush they are carried rows, so gradients go through.

Values are numbered through all flushes of a recorder. A piece and the arrays that it is called with are a *kind*.
Kinds are put in an order that does not depend on which was called first, so that the next minibatch has the same
pieces.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.core.errors import LanewiseError
from lanewise.dynamic.envelope import COARSE, bucket
from lanewise.dynamic.order import known_order
from lanewise.dynamic.run import Answer, run
from lanewise.dynamic.table import Piece, Table, Type


class LazyError(LanewiseError, RuntimeError):
    """A lazy value, or a call of an op, that cannot be what was asked.

    No `TypeError`: JAX catches those of arguments and says that they are no arrays.
    """


# Types are numbered, as hashing one takes as long as recording a call.
TYPES: list[Type] = []
_NUMBERS: dict[Any, int] = {}


def type_number(shape: tuple[int, ...], dtype: Any) -> int:
    """The number of a row's type, with the dtype that JAX would give an array of it."""
    wide = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    found = _NUMBERS.get((shape, dtype, wide))
    if found is None:
        known = Type(shape, np.dtype(jax.dtypes.canonicalize_dtype(dtype)))
        found = _NUMBERS.get(known)
        if found is None:
            # In this order: an interrupt between the two leaves a type without a number, and no number without one.
            found = len(TYPES)
            TYPES.append(known)
            _NUMBERS[known] = found
        _NUMBERS[shape, dtype, wide] = found
    return found


@dataclass(frozen=True, eq=False)
class Kind:
    """A piece and the shared arrays it is called with, of one recorder. `serial` orders pieces as they were
    traced."""

    number: int
    piece: Piece
    serial: int
    shared: tuple[int, ...]
    results: tuple[int, ...]  # numbers of types
    tree: Any  # of the results, or None for one


class Tag:
    """What the values of one type of one recorder have in common."""

    __slots__ = ("kind", "recorder")

    def __init__(self, recorder: Recorder, kind: int) -> None:
        self.recorder = recorder
        self.kind = kind


class Way:
    """The quick way to record calls of an op with this many arguments, in one recorder (`quick.py`)."""

    __slots__ = ("many", "recorder", "run")

    def __init__(self, recorder: Any, many: int, run: Any) -> None:
        self.recorder = recorder
        self.many = many
        self.run = run


# Of no recorder, that is: of none that records.
NO_WAY = Way(object(), -1, None)


class Homes:
    """Where each value that was computed is: its type's number, the flush, and the position in that flush's arena."""

    def __init__(self) -> None:
        self.rows = np.zeros((3, 256), np.int64)
        self.count = 0

    def add(self, kinds: np.ndarray, flush: int, positions: np.ndarray) -> None:
        need = self.count + len(kinds)
        if need > self.rows.shape[1]:
            larger = np.zeros((3, 2 * need), np.int64)
            larger[:, : self.count] = self.rows[:, : self.count]
            self.rows = larger
        part = self.rows[:, self.count : need]
        part[0], part[1], part[2] = kinds, flush, positions
        self.count = need

    def move(self, values: np.ndarray, flush: int, positions: np.ndarray) -> None:
        self.rows[1, values] = flush
        self.rows[2, values] = positions


@jax.jit
def _picked(arenas: tuple[Any, ...], which: Any, at: Any) -> Any:
    """Rows of several arenas: row i is at `at[i]` of arena `which[i]`."""
    rows = arenas[0].at[at].get(mode="clip")
    for i, arena in enumerate(arenas[1:], 1):
        mine = (which == i).reshape(-1, *[1] * (rows.ndim - 1))
        rows = jnp.where(mine, arena.at[at].get(mode="clip"), rows)
    return rows


def _picked_of_many(arenas: Sequence[Any], which: np.ndarray, at: np.ndarray) -> Any:
    """The same, so that little is compiled: how many arenas there are differs from flush to flush.

    Those of one size are read together, two, four, eight of them: the last one is repeated, and read by no row.
    """
    by_size: dict[int, list[int]] = {}
    for i, arena in enumerate(arenas):
        by_size.setdefault(arena.shape[0], []).append(i)
    parts, place = [], np.zeros(len(arenas), np.int32)
    for group in by_size.values():
        number = np.zeros(len(arenas), np.int32)
        number[group] = range(len(group))
        place[group] = len(parts)
        more = (1 << (len(group) - 1).bit_length()) - len(group)
        chosen = tuple(arenas[i] for i in group + group[-1:] * more)
        parts.append(_picked(chosen, number[which], at))
    if len(parts) == 1:
        return parts[0]
    rows = np.arange(len(which), dtype=np.int32)
    return _picked(tuple(parts), place[which], rows)


def _concrete(array: Any) -> np.ndarray:
    while isinstance(array, _jax.Tracer) and hasattr(array, "primal"):
        array = array.primal
    if isinstance(array, _jax.Tracer):
        raise LazyError(
            "a lazy value decides what runs next (`if`, `.item()`, `float()`), and inside `jax.jit` or `jax.vmap` it"
            " is not known. Call the function outside; `jax.grad` around it is fine."
        )
    return np.asarray(array)


class Recorder:
    """A lazy block in progress."""

    def __init__(self, order: str = "depth") -> None:
        self.order = known_order(order)
        self.kinds: dict[tuple[Any, ...], Kind] = {}
        self.calls: list[int] = []
        self.operands: list[int] = []
        self.columns: dict[int, list[Any]] = {}
        self.shared: dict[int, int] = {}  # by identity; `arrays` keeps them
        self.arrays: list[Any] = []
        self.count = 0  # values so far
        self.base = 0  # the first one that is not computed yet
        self.answers: list[Answer] = []  # of each flush
        self.homes = Homes()
        self.host: dict[tuple[int, int], np.ndarray] = {}  # arenas copied, by flush and type
        self.tags: dict[int, Tag] = {}
        self.quick: dict[Any, list[Way]] = {}  # by op, the last one first
        self.wait: Any = None  # what suspends an instance until others wait too

    def share(self, array: Any) -> int:
        """The number of a shared array."""
        number = self.shared.get(id(array))
        if number is None:
            number = self.shared[id(array)] = len(self.arrays)
            self.arrays.append(array)
        return number

    def close(self) -> None:
        """Nothing is recorded from now on. What refers back here goes, so that arenas are freed with the last value."""
        for op in self.quick:
            if op._last.recorder is self:
                op._last = NO_WAY
        self.quick.clear()
        self.tags.clear()

    def tag(self, kind: int) -> Tag:
        found = self.tags.get(kind)
        if found is None:
            found = self.tags[kind] = Tag(self, kind)
        return found

    def ordered(self) -> tuple[list[Kind], dict[int, int]]:
        """Kinds in a lasting order, and new numbers of the arrays they share.

        All that were met, in use now or not: flushes that differ in their kinds share one envelope.
        """
        kinds = sorted(self.kinds.values(), key=lambda k: (k.serial, k.number))
        arrays: dict[int, int] = {}
        for kind in kinds:
            for s in kind.shared:
                arrays.setdefault(s, len(arrays))
        return kinds, arrays

    def flush(self, wanted: Sequence[int] | None = None) -> Any:
        """Run what was recorded.

        With `wanted`, values that were not computed yet, these are all that remains of it: gives the rows of each
        type, by its number, in the order of `wanted`; there are more of them, in steps. Else all values can be read
        later.
        """
        if not self.calls:
            return {}
        kinds, arrays = self.ordered()
        renumbered = np.zeros(max(k.number for k in kinds) + 1, np.int32)
        renumbered[[k.number for k in kinds]] = range(len(kinds))
        calls = renumbered[np.array(self.calls, np.int32)]
        operands = np.array(self.operands, np.int32)
        old = self._old(operands) if self.base else {}
        carried = {TYPES[t]: self.rows(t, values) for t, values in old.items()}
        payload = {TYPES[t]: _column(t, values) for t, values in self.columns.items() if values}
        table = Table(
            tuple(k.piece for k in kinds),
            tuple(tuple(arrays[s] for s in k.shared) for k in kinds),
            calls,
            operands,
            payload,
            {TYPES[t]: len(values) for t, values in old.items()},
        )
        shared = [self.arrays[s] for s in arrays]
        types = _value_types(kinds, calls)
        want = None
        if wanted is not None:
            values = np.array(wanted, np.int64) - self.base
            of = types[values]
            want = [values[of == type_number(*t)] for t in table.types]
        answer = run(table, shared, want, carried=carried, order=self.order, trim=False)
        self.base = self.count
        # Emptied, not replaced: the quick ways hold them.
        self.calls.clear()
        self.operands.clear()
        for column in self.columns.values():
            column.clear()
        if want is None:
            flush = len(self.answers)
            self.answers.append(answer)
            assert answer.position is not None
            self.homes.add(types, flush, answer.position)
            # What was carried is here too, and is read from here next: from few arenas, most often from one.
            for t, values in old.items():
                first = answer.carried_from[answer.types.index(TYPES[t])]
                self.homes.move(values, flush, first + np.arange(len(values)))
            return {}
        return {type_number(*t): rows for t, rows in zip(answer.types, answer.rows, strict=True)}

    def _old(self, operands: np.ndarray) -> dict[int, np.ndarray]:
        """Values of earlier flushes that operands name, by type; `operands` is renumbered in place."""
        found: dict[int, np.ndarray] = {}
        old = (operands >= 0) & (operands < self.base)
        values = np.unique(operands[old])
        types = self.homes.rows[0, values]
        place = np.zeros(len(values), np.int64)
        for t in np.unique(types).tolist():
            mine = types == t
            found[t] = values[mine]
            place[mine] = np.arange(len(found[t])) + len(self.columns.get(t, ()))
        operands[old] = ~place[np.searchsorted(values, operands[old])]
        made = operands >= self.base
        operands[made] -= self.base
        return found

    def rows(self, kind: int, values: np.ndarray) -> Any:
        """Rows of values of one type that were computed; the array is longer, in steps."""
        flush, at = self.homes.rows[1, values], self.homes.rows[2, values]
        flushes, which = np.unique(flush, return_inverse=True)
        index = np.zeros((2, bucket(len(values), COARSE)), np.int32)
        index[0, : len(values)], index[1, : len(values)] = which, at
        arenas = [self.answers[f].of(TYPES[kind]) for f in flushes.tolist()]
        if len(arenas) == 1:
            return _picked(tuple(arenas), index[0], index[1])
        return _picked_of_many(arenas, index[0], index[1])

    def concrete(self, value: int) -> np.ndarray:
        """One value on the host; all of its type and flush are copied the first time."""
        kind, flush, at = self.homes.rows[:, value].tolist()
        if (flush, kind) not in self.host:
            self.host[flush, kind] = _concrete(self.answers[flush].of(TYPES[kind]))
        return self.host[flush, kind][at]


class _State(threading.local):
    """The recorder of the block that a thread is in."""

    recorder: Recorder | None = None


STATE = _State()


def _value_types(kinds: Sequence[Kind], calls: np.ndarray) -> np.ndarray:
    """The type's number of each value of these calls."""
    counts = np.array([len(k.results) for k in kinds])
    flat = np.array([t for k in kinds for t in k.results], np.int64)
    begin = np.cumsum(counts) - counts
    number = counts[calls]
    first = np.repeat(begin[calls] - (np.cumsum(number) - number), number)
    return flat[first + np.arange(len(first))]


def _column(kind: int, values: list[Any]) -> np.ndarray:
    """Payload of one type as an array."""
    type_ = TYPES[kind]
    try:
        return np.array(values, type_.dtype).reshape(len(values), *type_.shape)
    except OverflowError as error:
        raise LazyError(
            f"a number given to an op does not fit into {type_.dtype}: {error}."
        ) from error


@functools.lru_cache(maxsize=1)
def greenlets() -> Any:
    """The greenlet module, or None where it is not installed."""
    try:
        import greenlet
    except ImportError:
        return None
    return greenlet
