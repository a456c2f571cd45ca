"""Examples cut into chunks for the workers of a cluster: what a stream feeds there.

A chunk is a share of what is left: a 2·P-th of it for P workers. So chunks are large at first, when a message for each
would be a waste, and small in the end, when a large one would leave the other workers idle; an idle worker takes the
next. Guided self-scheduling takes a P-th (Polychronopoulos and Kuck 1987, IEEE Trans. Computers C-36(12)). With costs
as uneven as a `while` makes them the first chunks may then outlast all others, and factoring takes half of that
(Hummel, Schonberg and Flynn 1992, Comm. ACM 35(8)), in rounds of P chunks alike. Ours takes it anew at each chunk,
which needs no rounds. Where it is not known how many examples are left, chunks are as large as they may be until the
source has ended.

How large they may be is bounded (`most`): what is lost when a worker dies is a chunk, and the driver has to hold each
until its answers are there. Unless it is given it follows what chunks take, so that the largest take `CHUNK_SECONDS`;
and the smallest take as long as is worth a message.

A worker has two chunks, if there are enough: it begins the second when lanes are free, while the last examples of the
first run, and does not wait for the driver. A chunk whose answers are all there but one would leave it idle otherwise,
and where costs have heavy tails every chunk is like that.

So a driver holds at most two chunks a worker, those that wait to be run again (which were among them), and the
examples of the next chunks: `in_flight` and `wanted`.

A chunk that fails is run again, alone on any worker, before new ones. After `MOST_ATTEMPTS` it is cut in two, and so
is each half that fails, until an example fails alone, as often: that one is reported as not run, and the rest goes on.
Where nearly all of a chunk fails that would take long, so what is left of it is reported after as many pieces as
find `MOST_POISONED` examples. Each chunk is given to one worker at a time, and its answers are taken once: nothing is
lost, nothing comes twice.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lanewise.core.errors import Outcome
from lanewise.feed.fed import NONE_ENDED, Ended, Example
from lanewise.place.cluster.crew import Crew, Done, Failed
from lanewise.place.cluster.engine import Answers, Task
from lanewise.place.cluster.log import Log, runs_of

MOST_ATTEMPTS = 3
# How many examples of a chunk are found that fail alone.
MOST_POISONED = 8
# How long the largest chunks should take, in seconds, and the smallest: some ten times what a chunk costs.
CHUNK_SECONDS = 2.0
LEAST_SECONDS = 0.02
# The largest chunks are at most this many times the lanes of a worker, and begin with this many times.
MOST_LANES = 64
FIRST_LANES = 4
# How long the driver waits for answers before it looks around.
SECONDS = 0.05


@dataclass
class Search:
    """For the examples of a chunk that fail alone: how many of its pieces may still be cut."""

    cuts: int


@dataclass(eq=False)
class Chunk:
    """Examples that run together, and how often they failed. `search`: it is a piece of a chunk that did."""

    examples: list[Example]
    attempts: int = 0
    search: Search | None = None

    @property
    def suspect(self) -> bool:
        return self.attempts > 0 or self.search is not None

    def halves(self) -> list[Chunk]:
        """Its pieces, after it failed often enough; none if it is one example, or enough was cut.

        A piece is cut at its first failure, and only an example is tried as often as a chunk: by then its worker may
        have died of something else.
        """
        count = len(self.examples)
        search = self.search or Search(MOST_POISONED * count.bit_length())
        if count == 1 or search.cuts == 0:
            return []
        search.cuts -= 1
        parts = self.examples[: count // 2], self.examples[count // 2 :]
        return [Chunk(p, 0 if len(p) == 1 else MOST_ATTEMPTS - 1, search) for p in parts]


class Chunked:
    """Workers that a stream feeds, chunk by chunk.

    `avals`: the types of an example's arrays. `kept`: those of an answer's, as they are kept. `total`: how many
    examples there will be, if that is known. `session`: what distinguishes these examples from those of other streams
    of the crew.
    """

    def __init__(
        self,
        crew: Crew,
        avals: Sequence[Any],
        kept: Sequence[Any],
        *,
        lanes: int,
        most: int | None,
        total: int | None,
        shared: list[np.ndarray],
        session: int,
        log: Log | None,
    ) -> None:
        self.crew = crew
        self.avals = avals
        self.kept = kept
        self.lanes = lanes
        self.adapts = most is None
        self.most = most or FIRST_LANES * lanes
        self.least = 1
        self.total = total
        self.shared, self.session = shared, session
        self.log = log
        # Unlike other things that are fed, it wants to know when the source has ended: chunks become small then.
        self.expects_more = True
        self.seen = 0
        self.under_way: dict[int, Chunk] = {}
        self.again: deque[Chunk] = deque()
        self.found: list[Ended] = []

    # -- examples in -------------------------------------------------------------------------------

    @property
    def workers(self) -> int:
        return self.crew.engine.workers

    @property
    def in_flight(self) -> int:
        return 2 * self.workers * self.most

    @property
    def wanted(self) -> int:
        """Enough for a chunk for each worker that is idle, or for the next."""
        return self._size(0) * self._idle()

    def _idle(self) -> int:
        """How many workers have nothing to do, or else 1."""
        return max(1, sum(not tickets for tickets in self.crew.has.values()))

    def _size(self, waiting: int) -> int:
        """How many examples the next chunk is to have."""
        if not self.expects_more:
            left = waiting
        elif self.total is None:
            return self.most
        else:
            left = max(self.total - self.seen, waiting)
        return size_of_chunk(left, self.workers, self.least, self.most)

    def start(self, waiting: deque[Example]) -> bool:
        """Give chunks to workers that have room; True if anything is under way."""
        if self.log is not None:
            self._look_up(self.log, waiting)
        while self.again or waiting:
            size = self._size(len(waiting))
            worker = self.crew.with_room(alone=bool(self.again))
            if worker is None:
                break
            # Where fewer wait than are wanted, the idle workers share them.
            share = math.ceil(len(waiting) / self._idle())
            chunk = self.again.popleft() if self.again else self._cut(waiting, min(size, share))
            columns = [
                np.stack([example.rows[place] for example in chunk.examples])
                for place in range(len(self.avals))
            ]
            task = Task(len(chunk.examples), columns, self.shared, self.session)
            self.under_way[self.crew.give(worker, task, alone=chunk.suspect)] = chunk
        return bool(self.under_way or self.again or self.found or waiting)

    def _cut(self, waiting: deque[Example], size: int) -> Chunk:
        examples = [waiting.popleft() for _ in range(min(size, len(waiting)))]
        self.seen += len(examples)
        return Chunk(examples)

    def _look_up(self, log: Log, waiting: deque[Example]) -> None:
        """Answer from the log what is there. Examples wait in the order of their numbers."""
        if not waiting or waiting[0].index >= log.end:
            return
        rest = []
        for example in waiting:
            if example.index in log:
                self.found.append(log.answer(example))
                self.seen += 1
            else:
                rest.append(example)
        waiting.clear()
        waiting.extend(rest)

    # -- answers out -------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether anything has ended."""
        self._look(0.0)
        return bool(self.found)

    def ended(self) -> Ended:
        """What has ended, when anything has, or it is time to look for more examples."""
        if not self.found:
            self._look(SECONDS)
        return self._taken()

    def so_far(self) -> Ended:
        """What has ended, after an interrupt."""
        self._look(0.0)
        return self._taken()

    def close(self) -> None:
        """No more examples will come; the workers are the stream's to release."""

    def _look(self, seconds: float) -> None:
        for event in self.crew.wait(seconds):
            # It is of an earlier session that was interrupted: nothing reads it.
            chunk = self.under_way.pop(event.ticket, None)
            if chunk is None:
                continue
            match event:
                case Done(_, answers):
                    self._keep(chunk, answers)
                case Failed(_, why):
                    chunk.attempts += 1
                    again = [chunk] if chunk.attempts < MOST_ATTEMPTS else chunk.halves()
                    self.again.extend(again)
                    if not again:
                        self.found.append(self._given_up(chunk, why))

    def _keep(self, chunk: Chunk, answers: Answers) -> None:
        if self.log is not None:
            assert self.crew.carrier is not None
            self.log.begin(self.crew.carrier)
            self.log.add(chunk.examples, answers)
        index = np.array([example.index for example in chunk.examples])
        self.found.append(Ended(index, answers.columns, answers.code, answers.site))
        if self.adapts and answers.seconds:
            a_second = len(index) / answers.seconds
            # By halves and doubles at most: one chunk of a heavy tail says little of the next.
            fitting = min(max(int(CHUNK_SECONDS * a_second), self.most // 2), 2 * self.most)
            self.most = min(max(fitting, self.lanes), MOST_LANES * self.lanes)
            self.least = min(max(1, int(LEAST_SECONDS * a_second)), self.most)

    def _given_up(self, chunk: Chunk, why: str) -> Ended:
        index = np.array([example.index for example in chunk.examples])
        count = len(index)
        numbers = ", ".join(
            str(first) if number == 1 else f"{first} to {first + number - 1}"
            for first, number in runs_of(index.tolist())
        )
        what = f"example {numbers} failed {chunk.attempts} times"
        if count > 1:
            what = f"examples {numbers} failed together, and many beside them alone"
        text = f"{what}, the last time: {why}"
        columns = [np.zeros((count, *row.shape), row.dtype) for row in self.kept]
        code = np.full(count, int(Outcome.NOT_RUN))
        return Ended(index, columns, code, np.full(count, -1), dict.fromkeys(index.tolist(), text))

    def _taken(self) -> Ended:
        found, self.found = self.found, []
        if not found:
            return NONE_ENDED
        why = {number: text for part in found for number, text in part.why.items()}
        columns = [np.concatenate(parts) for parts in zip(*(part.columns for part in found))]
        index, code, site = (
            np.concatenate([getattr(part, name) for part in found])
            for name in ("index", "code", "site")
        )
        return Ended(index, columns, code, site, why)


def size_of_chunk(left: int, workers: int, least: int, most: int) -> int:
    """How many of the examples that are left the next chunk has.

    >>> [size_of_chunk(left, 4, least=2, most=100) for left in (10_000, 800, 400, 100, 10, 1)]
    [100, 100, 50, 13, 2, 2]
    """
    return max(least, min(most, math.ceil(left / (2 * workers))))
