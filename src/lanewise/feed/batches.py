"""Batches of examples from the host for a carrier that runs each lane on its own.

Such a carrier takes the next example when one ends, so all it needs is enough of them at a time. A batch runs while the
host prepares the next one and hands out the last one's answers. No answer of a batch is known before all of it has
ended, so batches start small, and grow as long as they are short: answers wait no longer than they must.

A batch is compiled for its size. There are four sizes for each power of two, and a number of examples between two of
them is padded with copies of its examples, whose answers are dropped. Considered: cutting it up into the existing sizes
runs nothing twice, but compiles up to a dozen of them for a stream that ends in the middle of a batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from lanewise._jax import loaded, our_transfers, stored
from lanewise.core.options import Options
from lanewise.core.program import Program
from lanewise.feed.fed import NONE_ENDED, Ended, Example

# A batch is at most this many times the lanes. Two of them are held: one runs and one waits.
BATCH_LANES = 4
FIRST_BATCH = 64
# How long a batch should take, in seconds, within a factor of `GROWTH`, which is how sizes change.
BATCH_SECONDS = 0.1
GROWTH = 4
# How long the host sleeps before it looks again whether a batch has ended; interrupts are handled then.
POLL_SECONDS = 2e-4


class InBatches:
    """A program that a stream feeds with batches: `run` runs `program_p` on the host."""

    def __init__(
        self,
        run: Callable[..., list[Any]],
        program: Program,
        captures: Sequence[Any],
        lanes: int,
        options: Options,
    ) -> None:
        self.run = run
        self.program = program
        self.captures = tuple(captures)
        # All of a batch may be in flight, and the stream knows what to do about one that fails.
        self.options = options.updated(lanes=None, throw=False)
        self.avals = program.operand_avals[len(self.captures) :]
        self.mapped = tuple((i >= program.num_captures,) for i in range(program.num_operands))
        self.in_flight = lanes
        self.most = BATCH_LANES * lanes
        self.wanted = min(FIRST_BATCH, self.most)
        self.expects_more = False
        self.index = np.zeros(0, int)
        self.out: list[Any] = []
        self.began = 0.0

    @our_transfers()
    def start(self, waiting: deque[Example]) -> bool:
        """Run the next batch, if there is one; True if anything runs."""
        count = min(len(waiting), self.wanted)
        if not count:
            return False
        taken = [waiting.popleft() for _ in range(count)]
        size = size_for(count)
        given = []
        for place, aval in enumerate(self.avals):
            rows = np.stack([example.rows[place] for example in taken])
            filled = np.resize(rows, (size, *rows.shape[1:]))
            given.append(loaded(jnp.asarray(filled), aval))
        # Imports what launches kernels: only where some run.
        from lanewise.cpp.toolchain.waiting import not_waiting

        with not_waiting():
            self.out = self.run(
                *self.captures,
                *given,
                program=self.program,
                lanes=(size,),
                mapped=self.mapped,
                options=self.options,
            )
        self.index = np.array([example.index for example in taken])
        self.began = time.perf_counter()
        return True

    def ready(self) -> bool:
        """Whether the batch has ended, so that its answers are there."""
        return self.out[-1].is_ready()

    @our_transfers()
    def ended(self) -> Ended:
        """The answers of the batch, when it has run."""
        if not self.ready():
            while not self.ready():
                time.sleep(POLL_SECONDS)
            self._adapt(time.perf_counter() - self.began)
        return self.so_far()

    @our_transfers()
    def so_far(self) -> Ended:
        """The answers of the batch if it has run."""
        if not self.out or not self.ready():
            return NONE_ENDED
        count = len(self.index)
        *values, code, site = self.out
        columns = []
        for value, aval in zip(values, self.program.out_avals, strict=True):
            column = np.asarray(stored(value, aval))
            # An answer that does not depend on the example comes once.
            if value.ndim == len(aval.shape):
                column = np.broadcast_to(column, (count, *column.shape))
            columns.append(column[:count])
        self.out = []
        return Ended(self.index, columns, np.asarray(code)[:count], np.asarray(site)[:count])

    def close(self) -> None:
        """No more examples will come; every batch has reported itself."""

    def _adapt(self, seconds: float) -> None:
        """Change the size of batches by what the last took. One that the host did not wait for shows nothing."""
        if len(self.index) < self.wanted:
            return
        if seconds * GROWTH < BATCH_SECONDS:
            self.wanted = min(GROWTH * self.wanted, self.most)
        elif seconds > GROWTH * BATCH_SECONDS:
            self.wanted = max(self.wanted // GROWTH, 1)


def size_for(count: int) -> int:
    """The least size that batches of `count` examples are compiled for.

    >>> [size_for(count) for count in (1, 3, 7, 8, 9, 11, 1000, 1024, 1025)]
    [1, 3, 7, 8, 10, 12, 1024, 1024, 1280]
    """
    step = max(1, (1 << (count - 1).bit_length()) // 8)
    return -(-count // step) * step
