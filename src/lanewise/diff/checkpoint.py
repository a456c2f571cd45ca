"""What a loop saves so that its iterations can be run backwards.

`"all"`: what the reverse of each iteration reads. `"sqrt"`: a state for each strip of about √n iterations; a strip is
run again, saving all, when its turn comes. A number `k`: at most `k` states at a time, whatever the length.
`"auto"`: all for a loop of known length (a `scan`) unless that is too large, a number for a `while`, which then keeps
results of products beside its states (`iteration.py`). What a `while` saves under "all" has room for `tape` iterations;
under "sqrt" it has slots for twice the root of that.

A `scan` knows its length, so strips are cut ahead, and strips of strips where `k` states do not do (`strip`). A
`while` does not. Its forward sweep keeps states at even distances; when the slots are full, every second one is
dropped and the distance doubles. No state is moved for that: a list says which slot holds the first, the second and
so on, and the slots of those dropped come next in it. Of an odd number of slots the forward sweep leaves one free.
Its reverse sweep goes from the last iteration to the first; the state it needs is reached from the nearest kept state
before it, and on the way there states are kept in the slots that have become free, at the distances of binomial
checkpointing (Griewank 1992, *Achieving logarithmic growth of temporal and spatial complexity in reverse automatic
differentiation*; Stumm and Walther 2010 for lengths that are not known). With `k` slots and `n` iterations each is
run again about log n / log k times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise.core.options import Checkpointing

# A `while` under "auto" has slots for this many bytes of state, within bounds.
AUTO_BYTES = 2**15
FEWEST_SLOTS, MOST_SLOTS = 32, 256
# A `scan` under "auto" whose tape is larger is cut into strips.
MOST_TAPE_BYTES = 2**30
# Records of a tape of unknown length where no host can make it longer, unless `tape` says otherwise.
RECORDS_INSIDE_JIT = 1024
# A tape that is full is made this many times as long, up to a bound.
TAPE_GROWTH = 4
MOST_RECORDS = 2**24
# Of iterations, as a power of two: farther apart than any two.
FARTHEST = 30


@dataclass(frozen=True)
class Checkpoints:
    """The setting, as rules ask for it.

    `records` is how many iterations or frames a tape of unknown length holds; `grows`: a host may make it longer.
    `offload`: what a `scan` saves is in the host's memory between the sweeps. `filled`: tapes hold zeros where
    nothing was written. `numbered`: the records of a recursion are read by their places, not in order.
    """

    setting: Checkpointing = "auto"
    records: int = RECORDS_INSIDE_JIT
    offload: bool = False
    grows: bool = False
    filled: bool = False
    numbered: bool = False

    @property
    def can_grow(self) -> bool:
        return self.grows and self.records < MOST_RECORDS

    def larger(self) -> Checkpoints:
        """The same with longer tapes."""
        return replace(self, records=self.records * TAPE_GROWTH)

    def strip(self, length: int, tape_bytes: int) -> int:
        """How many iterations are a strip of a loop of known length; 0 to save all.

        >>> Checkpoints("sqrt").strip(10_000, 0), Checkpoints(64).strip(1_000_000, 0), Checkpoints(64).strip(60, 0)
        (100, 15625, 0)
        """
        setting = self.setting
        if setting == "auto":
            setting = "sqrt" if tape_bytes > MOST_TAPE_BYTES and not self.offload else "all"
        if setting == "all" or length < 4:
            return 0
        if setting == "sqrt":
            return math.ceil(math.sqrt(length))
        return math.ceil(length / max(int(setting), 2)) if length > int(setting) else 0

    def slots(self, state_bytes: int) -> int:
        """How many states of a loop of unknown length are kept at a time, beside the one that runs.

        >>> Checkpoints(1).slots(4), Checkpoints(7).slots(4), Checkpoints("auto").slots(4)
        (1, 7, 256)
        """
        if isinstance(self.setting, int):
            number = self.setting
        elif self.setting == "sqrt":
            number = 2 * math.isqrt(self.records)
        else:
            number = min(max(AUTO_BYTES // max(state_bytes, 1), FEWEST_SLOTS), MOST_SLOTS)
        return max(number, 1)


def next_kept(distance: Any, free: Any) -> Any:
    """How far ahead the next state is kept, of `distance` iterations to go with this many free slots: binomially.

    >>> int(next_kept(jnp.int32(6), jnp.int32(2))), int(next_kept(jnp.int32(3), jnp.int32(8)))
    (3, 1)
    """

    def reaches(counts: Any) -> Any:
        # With a slot for each iteration, as is often so, there is nothing to work out.
        reach, _, _ = counts
        return (reach < distance) & (free > 0) & (free < distance)

    start = (jnp.float32(1), jnp.float32(1), jnp.int32(0))
    _, before, _ = lax.while_loop(reaches, lambda counts: _further(free, counts), start)
    return jnp.where(free > 0, jnp.clip(before.astype(jnp.int32), 1, distance), distance)


def recomputed(length: int, checkpoints: int) -> int:
    """How many iterations of a `while` are run again by its gradient, with this many states at a time.

    The count of the scheme that the reverse sweep follows: besides these, each of the `length` iterations runs once
    ahead and once in reverse.

    >>> recomputed(64, 64), recomputed(1000, 64), recomputed(1_000_000, 64)
    (0, 1083, 4805789)
    """
    number = Checkpoints(checkpoints).slots(1)
    ahead = number - number % 2
    distance = 1 if ahead else length
    while length > ahead * distance and ahead:
        distance *= 2
    places = list(range(0, length, max(distance, 1)))
    count = 0
    for wanted in range(length - 1, -1, -1):
        if places[-1] > wanted:
            places.pop()
        at = places[-1]
        while at < wanted:
            free = number - len(places)
            target = at + _next_kept(wanted - at, free)
            count += target - at
            at = target
            if free:
                places.append(at)
    return count


def _next_kept(distance: int, free: int) -> int:
    """`next_kept`, of plain numbers."""
    if not free:
        return distance
    counts = (1.0, 1.0, 0)
    while counts[0] < distance:
        counts = _further(free, counts)
    return min(max(int(counts[1]), 1), distance)


def _further(free: Any, counts: Any) -> Any:
    """From (free + times over times) to the same with `times` one more; as floats, for it may be large."""
    reach, _, times = counts
    return reach * (free + times + 1) / (times + 1), reach, times + 1


# As plain slices: JAX's own functions for this come wrapped in `jit`, where a machine by ticks does not see that one
# entry is written, and writes all of them.


def write(buffer: Any, value: Any, place: Any) -> Any:
    """A buffer with one entry written."""
    entry = lax.expand_dims(value, (0,))
    return lax.dynamic_update_slice(buffer, entry, _at(buffer, place), allow_negative_indices=False)


def read(buffer: Any, place: Any) -> Any:
    """One entry of a buffer."""
    sizes = (1, *buffer.shape[1:])
    entry = lax.dynamic_slice(buffer, _at(buffer, place), sizes, allow_negative_indices=False)
    return lax.squeeze(entry, (0,))


def write_if(wanted: Any, buffer: Any, value: Any, place: Any) -> Any:
    """A buffer with one entry written, or as it was."""
    return write(buffer, lax.select(_like(wanted, value), value, read(buffer, place)), place)


def _like(flag: Any, value: Any) -> Any:
    return lax.broadcast(flag, value.shape)


def _at(buffer: Any, place: Any) -> list[Any]:
    return [place, *[jnp.int32(0)] * (buffer.ndim - 1)]
