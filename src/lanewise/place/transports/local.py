"""The transport `local`: places are devices of this process, each with a thread that runs its function."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from lanewise.core.errors import OptionError, PlaceError
from lanewise.place.transports import compiled, plain
from lanewise.place.transports.interface import Opening, Session
from lanewise.place.transports.threads import Held
from lanewise.place.transports.traceable import Traceable


class Local(Traceable):
    """Places of one process. One object connects the places of a run; they open in any order, from any thread.

    >>> import jax, jax.numpy as jnp
    >>> transport = Local()
    >>> ping, pong = (
    ...     transport.open(Opening(me, 2, {(0, 1): 1}, "digest", ("part a", "part b"), 10.0)) for me in (0, 1)
    ... )
    >>> sent = jax.jit(lambda token: transport.send(token, jnp.arange(3), target=1, number=0))(ping.token)
    >>> aval = jax.ShapeDtypeStruct((3,), jnp.int32)
    >>> token, value = jax.jit(lambda token: transport.receive(token, aval, source=0, number=0))(pong.token)
    >>> value
    Array([0, 1, 2], dtype=int32)
    >>> transport.close(ping), transport.close(pong)
    (None, None)
    """

    def __init__(self, *, by_callback: bool | None = None, patience: float = 60.0) -> None:
        super().__init__(by_callback)
        self._patience = patience
        self._guard = threading.Lock()
        self._group: Any = None
        self._held: Held | None = None
        self._opened: dict[int, Opening] = {}

    def open(self, opening: Opening) -> Session:
        """Join the places that are open, or begin a new group when this one is among them already."""
        with self._guard:
            if self._held is None or opening.me in self._opened:
                make = plain.Group if self.by_callback else compiled.Group
                self._held = Held(opening.size, self._patience)
                self._group, self._opened = make(opening.size, dict(opening.credits)), {}
            for other in self._opened.values():
                _compare(opening, other)
            self._opened[opening.me] = opening
            link, held = self._group.join(opening.me), self._held
            held.join(opening.me)
            if len(self._opened) == opening.size:
                self._group, self._held, self._opened = None, None, {}
        return Session(np.asarray(link.handle, np.int32), opening, link, held)


def _compare(mine: Opening, other: Opening) -> None:
    if mine.digest != other.digest:
        raise PlaceError(
            f"{mine.names[mine.me]} and {other.names[other.me]} run different programs (hashes {mine.digest} and"
            f" {other.digest}).",
            mine.me,
            "failed",
        )
    if mine.size != other.size or dict(mine.credits) != dict(other.credits):
        raise OptionError(
            f"{mine.names[mine.me]} and {other.names[other.me]} open sessions with other places or credits."
        )
