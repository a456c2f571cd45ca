"""The transport `tcp`: places are processes, on one machine or several.

Inside a machine values go by Unix sockets where there are any (`nearby.py`); all else goes by TCP.
"""

from __future__ import annotations

import numpy as np

from lanewise.core.errors import OptionError
from lanewise.place.transports import compiled, plain_tcp
from lanewise.place.transports.interface import Opening, Session
from lanewise.place.transports.rendezvous import Meeting, met
from lanewise.place.transports.traceable import Traceable

# How often in its timeout a place gives a sign of life, and the seconds between two at most.
BEATS = 6
MOST_SECONDS = 1.0


class Tcp(Traceable):
    """Places of several processes, which meet as `meeting` says; place and rank are the same number."""

    def __init__(self, meeting: Meeting, *, by_callback: bool | None = None) -> None:
        super().__init__(by_callback)
        self.meeting = meeting

    def open(self, opening: Opening) -> Session:
        """Meet the other processes, compare programs, connect."""
        if (opening.me, opening.size) != (self.meeting.rank, self.meeting.size):
            raise OptionError(
                f"place {opening.me} of {opening.size} is opened by rank {self.meeting.rank} of {self.meeting.size}:"
                " a process is the place of its rank."
            )
        peers = met(opening, self.meeting)
        beat = min(opening.timeout / BEATS, MOST_SECONDS)
        core = plain_tcp if self.by_callback else compiled
        link = core.connected(opening.me, opening.size, peers, opening.timeout, beat)
        # A session stays open between runs, and only a run holds a thread.
        return Session(np.asarray(link.handle, np.int32), opening, link)
