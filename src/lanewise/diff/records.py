"""How the records of a recursion are stored on tapes.

A record is what the reverse of a frame reads: some numbers, flags, perhaps arrays. Every call of the forward and of the
reverse functions takes the tapes and gives them on, and where they are differentiated again each has an adjoint that
goes along and tapes of its own: with a tape for each value of each record, code grows with the square of what is saved,
at each order anew. So there are few tapes. All elements of small arrays are one after another on the tape of their
dtype, and a record writes and reads its own as one piece. A larger array is not copied into such a piece; those of a
type have a tape whose entries are whole arrays. Functions share tapes: records are popped in the opposite order of that
in which they were pushed, whichever function pushed them.

Or a record is found by its places: the caller keeps them, and gives them to the call's reverse. Then the
order of calls does not matter, so that calls may run at the same time (`machine/fork.py`). It costs a number for each
tape in each record, and so it is done only where calls do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise.core.push import push
from lanewise.diff.checkpoint import read, write
from lanewise.diff.tape import check_room, unfilled

# Arrays of at most this many elements are among the numbers of a record.
SMALL = 16

Record = tuple[_jax.ShapedArray, ...]
"""The types of what a record holds."""

_Entry = tuple[tuple[int, ...], Any]
"""The shape and the dtype of an entry of a tape."""


@dataclass(frozen=True)
class Tape:
    """A tape of entries of one type; a record has at most `width` of them."""

    shape: tuple[int, ...]
    dtype: Any
    width: int


@dataclass(frozen=True)
class Tapes:
    """The tapes of some kinds of records, with room for a number of each; `grows`: a host may make them longer."""

    each: tuple[Tape, ...]
    records: int
    grows: bool = False

    @staticmethod
    def of(kinds: Iterable[Record], records: int, grows: bool = False) -> Tapes:
        """Tapes for these kinds of records.

        >>> number, flag = _jax.shaped((), jnp.float32.dtype), _jax.shaped((), jnp.bool_.dtype)
        >>> [tape.width for tape in Tapes.of([(number, flag, number), (flag,)], records=8).each]
        [2, 1]
        """
        widths: dict[_Entry, int] = {}
        for record in kinds:
            own: dict[_Entry, int] = {}
            for aval in record:
                if 0 in aval.shape:
                    continue
                own[_entry(aval)] = own.get(_entry(aval), 0) + _entries(aval)
            for entry, number in own.items():
                widths[entry] = max(widths.get(entry, 0), number)
        each = (Tape(shape, dtype, width) for (shape, dtype), width in widths.items())
        return Tapes(tuple(each), records, grows)

    @property
    def avals(self) -> list[_jax.ShapedArray]:
        """The types of all tapes: for each its entries, then how many there are."""
        found = []
        for tape in self.each:
            found.append(_jax.shaped((self.records * tape.width, *tape.shape), tape.dtype))
            found.append(_jax.shaped((), jnp.int32.dtype))
        return found

    def empty(self, *, zeros: bool) -> list[Any]:
        """The arrays of tapes that hold no record; `zeros`: entries that were not written are zero."""
        entries, numbers = self.avals[::2], self.avals[1::2]
        pairs = zip(entries, numbers, strict=True)
        return [x for a, n in pairs for x in (unfilled(a, zeros=zeros), _jax.zeros(n))]

    def pushed(self, values: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        """The arrays of all tapes with one more record."""
        arrays = list(arrays)
        own = self._own([_jax.aval_of(x) for x in values])
        after = {at: arrays[2 * at + 1] + number for at, (number, _) in own.items()}
        fit = [lax.le(x, jnp.int32(self.records * self.each[at].width)) for at, x in after.items()]
        if fit:
            check_room(functools.reduce(lax.bitwise_and, fit), self.grows)
        for at, (_, places) in own.items():
            mine = [values[i] for i in places]
            arrays[2 * at] = _written(self.each[at], arrays[2 * at], mine, arrays[2 * at + 1])
            arrays[2 * at + 1] = after[at]
        return arrays

    def kept(self, values: Sequence[Any], arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The same, by places that are kept: of each tape the place of this record, 0 where it has none."""
        arrays = list(arrays)
        places: list[Any] = [jnp.int32(0)] * len(self.each)
        fit = []
        for at, (_, own) in self._own([_jax.aval_of(x) for x in values]).items():
            entries = _as_entries(self.each[at], [values[i] for i in own])
            pushed = push(arrays[2 * at], arrays[2 * at + 1], entries)
            arrays[2 * at], arrays[2 * at + 1], places[at], fits = pushed
            fit.append(fits)
        if fit:
            check_room(functools.reduce(lax.bitwise_and, fit), self.grows)
        return arrays, places

    def read_at(self, record: Record, arrays: Sequence[Any], places: Sequence[Any]) -> list[Any]:
        """The values of a record of this kind at these places."""
        values: list[Any] = [_jax.zeros(a) if 0 in a.shape else None for a in record]
        for at, (_, own) in self._own(record).items():
            found = _read(self.each[at], arrays[2 * at], [record[i] for i in own], places[at])
            for i, value in zip(own, found, strict=True):
                values[i] = value
        return values

    def popped(self, record: Record, arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The values of the topmost record, which is of this kind, and the arrays of all tapes without it."""
        arrays = list(arrays)
        values: list[Any] = [_jax.zeros(a) if 0 in a.shape else None for a in record]
        for at, (number, places) in self._own(record).items():
            top = arrays[2 * at + 1] - number
            found = _read(self.each[at], arrays[2 * at], [record[i] for i in places], top)
            for i, value in zip(places, found, strict=True):
                values[i] = value
            arrays[2 * at + 1] = top
        return values, arrays

    def _own(self, record: Sequence[_jax.ShapedArray]) -> dict[int, tuple[int, list[int]]]:
        """Which tapes a record is on: how many entries it has there, and which of its values."""
        places = {(tape.shape, tape.dtype): at for at, tape in enumerate(self.each)}
        found: dict[int, tuple[int, list[int]]] = {}
        for i, aval in enumerate(record):
            if 0 in aval.shape:
                continue
            at = places[_entry(aval)]
            number, own = found.get(at, (0, []))
            found[at] = (number + _entries(aval), [*own, i])
        return found


def tops(tapes: Sequence[Any]) -> list[Any]:
    """How many entries each tape has: all that popping changes."""
    return list(tapes[1::2])


def with_tops(tapes: Sequence[Any], found: Sequence[Any]) -> list[Any]:
    """The same tapes with these numbers of entries."""
    return [x for pair in zip(tapes[::2], found, strict=True) for x in pair]


def _is_small(aval: _jax.ShapedArray) -> bool:
    return not _jax.is_extended(aval.dtype) and math.prod(aval.shape) <= SMALL


def _entry(aval: _jax.ShapedArray) -> _Entry:
    """The type of the entries that hold a value."""
    return ((), aval.dtype) if _is_small(aval) else (aval.shape, aval.dtype)


def _entries(aval: _jax.ShapedArray) -> int:
    return math.prod(aval.shape) if _is_small(aval) else 1


def _written(tape: Tape, array: Any, values: Sequence[Any], at: Any) -> Any:
    """A tape with values written from a place on."""
    if tape.shape or _jax.is_extended(tape.dtype):
        for i, value in enumerate(values):
            array = write(array, value, at + i)
        return array
    parts = [lax.reshape(x, (math.prod(x.shape),)) for x in values]
    piece = lax.concatenate(parts, 0) if len(parts) > 1 else parts[0]
    return lax.dynamic_update_slice(array, piece, [at], allow_negative_indices=False)


def _as_entries(tape: Tape, values: Sequence[Any]) -> Any:
    """Values as entries of a tape, one after another."""
    if tape.shape:
        parts = [lax.expand_dims(x, (0,)) for x in values]
    else:
        parts = [lax.reshape(x, (math.prod(x.shape),)) for x in values]
    return lax.concatenate(parts, 0) if len(parts) > 1 else parts[0]


def _read(tape: Tape, array: Any, avals: Sequence[_jax.ShapedArray], at: Any) -> list[Any]:
    """Values of these types from a place on."""
    if tape.shape or _jax.is_extended(tape.dtype):
        return [read(array, at + i) for i in range(len(avals))]
    sizes = [math.prod(a.shape) for a in avals]
    piece = lax.dynamic_slice(array, [at], [sum(sizes)], allow_negative_indices=False)
    parts = lax.split(piece, sizes) if len(sizes) > 1 else [piece]
    return [lax.reshape(x, a.shape) for x, a in zip(parts, avals, strict=True)]
