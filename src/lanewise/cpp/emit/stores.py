"""Stores that happen all at once.

The stores at the end of a block, or of a loop's body, read what was there before any of them. They are put in an order
in which none spoils what another still reads; where there is none (a swap), or where a value reads the place it goes to
out of step (a transposition), a copy is made first.
"""

from __future__ import annotations

from collections.abc import Sequence

from lanewise.cpp.emit.values import Mapped, Place, Scalar, Stored, Value
from lanewise.cpp.emit.writer import Writer

Pair = tuple[Place, Value]


def assign(w: Writer, pairs: Sequence[Pair]) -> None:
    """Store all values at once."""
    pending = [
        (place, value if in_step(value, place) else copied(w, value))
        for place, value in pairs
        if place != value
    ]
    while pending:
        free = [
            not any(place.roots & other.roots for j, (_, other) in enumerate(pending) if j != i)
            for i, (place, _) in enumerate(pending)
        ]
        if any(free):
            w.copy_all([pair for pair, now in zip(pending, free, strict=True) if now])
            pending = [pair for pair, now in zip(pending, free, strict=True) if not now]
        else:
            place, value = pending[0]
            pending[0] = (place, copied(w, value))


def apart(w: Writer, value: Value, pairs: Sequence[Pair]) -> Value:
    """The value, copied if the stores would spoil it."""
    written = {name for place, _ in pairs for name in place.roots}
    return copied(w, value) if value.roots & written else value


def copied(w: Writer, value: Value) -> Value:
    if not value.shape:
        return w.let(value.at(()), value.dtype)
    room = w.room(value.shape, value.dtype)
    w.copy(room, value)
    return room


def in_step(value: Value, place: Place) -> bool:
    """Whether the value can be stored element by element over a place it reads."""
    if not value.roots & place.roots or isinstance(value, Scalar | Stored):
        return True
    return isinstance(value, Mapped) and all(in_step(source, place) for source in value.sources)
