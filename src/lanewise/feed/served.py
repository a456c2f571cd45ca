"""Lanes of a kernel on a CPU that the host feeds one by one, while they run.

An example is handed over as soon as a slot is free, a lane takes it when it has ended another, and its answer leaves
when it has ended: no example waits for the rest of a batch. There are twice as many slots as lanes, so that a lane that
ends finds the next example. The kernel is compiled once, whatever comes (`cpp/toolchain/feeding.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from lanewise._jax import stored
from lanewise.core.errors import CompilerError
from lanewise.cpp.toolchain.feeding import Feed
from lanewise.feed.fed import NONE_ENDED, Ended, Example
from lanewise.job.plan import CPP, Plan

SLOTS_A_LANE = 2
# How long the host waits for answers before it looks around. If another example may have come, a lane may wait for it.
# If all that are wanted are there, lanes have enough to do, and the host looks when a part of them has ended: each look
# costs it as much time as some products cost a lane, and evicts what lanes need from the caches.
SECONDS = 0.02
LOOKING_SECONDS = 5e-4
PART = 2


class InSlots:
    """A kernel that a stream feeds, slot by slot."""

    def __init__(self, plan: Plan, captures: Sequence[Any]) -> None:
        job = plan.job
        assert plan.emitted is not None
        avals = job.program.operand_avals
        shared = [np.asarray(stored(x, aval)) for x, aval in zip(captures, avals)]
        self.avals = avals[len(captures) :]
        self.wanted = self.in_flight = job.width
        self.expects_more = False
        slots = SLOTS_A_LANE * job.width
        self.feed = Feed(plan.emitted, shared, slots, job.width)
        # The example of each slot, or -1.
        self.index = np.full(slots, -1)
        self.seen = np.zeros(0, np.int32)

    def start(self, waiting: deque[Example]) -> bool:
        """Hand over as many examples as there are free slots; True if any is under way."""
        free = np.flatnonzero(self.index < 0)[: len(waiting)]
        if len(free):
            examples = [waiting.popleft() for _ in free]
            self.index[free] = [example.index for example in examples]
            for place, rows in enumerate(self.feed.rows):
                rows[free] = np.stack([example.rows[place] for example in examples])
            self.feed.push(free)
        return bool((self.index >= 0).any())

    def ready(self) -> bool:
        """Whether an example has ended."""
        self._look(0.0)
        return bool(len(self.seen))

    def ended(self) -> Ended:
        """What has ended, once anything has, or once it is time to look for more examples."""
        if not len(self.seen):
            under_way = int((self.index >= 0).sum())
            if self.expects_more:
                free = under_way < len(self.index)
                self._look(LOOKING_SECONDS if free else SECONDS)
            else:
                self._look(SECONDS, -(-min(under_way, self.wanted) // PART))
        return self._taken()

    def so_far(self) -> Ended:
        """What has ended, after an interrupt."""
        self._look(0.0)
        return self._taken()

    def close(self) -> None:
        """No more examples will come."""
        self.feed.close()

    def _look(self, seconds: float, enough: int = 1) -> None:
        self.seen = np.concatenate([self.seen, self.feed.take(seconds, enough)])

    def _taken(self) -> Ended:
        slots, self.seen = self.seen, self.seen[:0]
        if not len(slots):
            return NONE_ENDED
        feed = self.feed
        columns = [answers[slots] for answers in feed.answers]
        found = Ended(self.index[slots], columns, feed.code[slots], feed.site[slots])
        self.index[slots] = -1
        return found


def in_slots(plan: Plan, captures: Sequence[Any]) -> InSlots | None:
    """The kernel of a plan, to be fed; None if it takes batches only.

    Stacks that grow need a run to end first, and observers see whole runs. A compiler that fails is reported when a
    batch runs, which does not need it.
    """
    job = plan.job
    if plan.path != CPP or job.program.recursive or job.options.watched:
        return None
    try:
        return InSlots(plan, captures)
    except CompilerError:
        return None
