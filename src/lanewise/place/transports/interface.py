"""What a transport is: four functions that carry values between places, whatever is between them.

A *place* is a device of this process or a process. Each place runs one compiled function, with sends and receives
inside, in the order of one token chain. All places take part in the same *moves* in the same order: move number k
carries a value from one place to another. So what is sent on an edge arrives in the order in which it is received,
and a receive that gets anything else has found a bug (`InternalError`).

The token is data: an `int32` that names the session. Compiled code serves every later session, after a fault too,
without another compilation.

**What a transport must guarantee.** No place waits for ever: this follows from the order of moves (`place/moves.py`)
and from three things: a send that has a credit ends though the receiver does nothing, however large the value is; a
credit comes back once the message was taken, whatever the receiver does next; and a place that waits takes no thread
away from one that computes.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax
import numpy as np

from lanewise import _jax
from lanewise.core.errors import InternalError, LanewiseError, OptionError, PlaceError
from lanewise.place.transports.threads import Held

Kind = Literal["died", "hangs", "failed", "interrupted", "internal"]


@dataclass(frozen=True)
class Opening:
    """What a place knows of a session before it opens.

    `credits`: how many messages may wait on each edge (source, target) that is used. `digest`: the hash of the whole
    placed program, the same everywhere. `names`: what each place is called in messages. `timeout`: a peer that
    gives no sign of life for this many seconds counts as hanging.
    """

    me: int
    size: int
    credits: Mapping[tuple[int, int], int]
    digest: str
    names: tuple[str, ...]
    timeout: float

    def __post_init__(self) -> None:
        if not 0 <= self.me < self.size or len(self.names) != self.size:
            raise OptionError(
                f"place {self.me} of {self.size}, with {len(self.names)} names: places are 0 to {self.size - 1},"
                " each with a name."
            )
        if not self.timeout > 0:
            raise OptionError(f"timeout={self.timeout}: it must be a positive number of seconds.")
        for (source, target), credits in self.credits.items():
            if source == target or not {source, target} <= set(range(self.size)) or credits < 1:
                raise OptionError(
                    f"the edge from place {source} to place {target} with {credits} credits: an edge leads from one"
                    f" place of 0 to {self.size - 1} to another and has a credit or more."
                )

    def peers(self) -> list[int]:
        """The places that this one shares an edge with."""
        edges = [edge for edge in self.credits if self.me in edge]
        return sorted({place for edge in edges for place in edge} - {self.me})

    def peer(self, place: int) -> Peer:
        """A peer that is not connected yet."""
        credit, limit = (self.credits.get(e, 0) for e in ((self.me, place), (place, self.me)))
        return Peer(place, credit, limit)


@dataclass(frozen=True)
class Fault:
    """Why a session ended before its time: the place at fault, in what way, and what is known of it.

    `number` is that of the requirement that did not hold, if it was one.
    """

    place: int
    kind: Kind
    message: str
    number: int | None = None


@dataclass
class Peer:
    """The connections with a peer: for signs of life, and for values if there is an edge.

    `credit`: how many messages may wait there. `limit`: how many of its own may wait here.
    """

    place: int
    credit: int = 0
    limit: int = 0
    life: socket.socket | None = None
    values: socket.socket | None = None

    def close(self) -> None:
        for one in (self.life, self.values):
            if one is not None:
                one.close()


class Link(Protocol):
    """A session, as a transport holds it."""

    def fault(self) -> Fault | None:
        """The first fault of the session, also when it is closed."""
        ...

    def fail(self, kind: Kind, message: str) -> None:
        """End the session here and, soon, everywhere."""
        ...

    def close(self) -> None:
        """Free all that the session has; without a fault, when the peers have ended, too."""
        ...


@dataclass(frozen=True, eq=False)
class Session:
    """A place that is connected with the others; `token` begins its token chain.

    `held`: the threads of XLA that a session holds as long as it is open, if it does.
    """

    token: np.ndarray
    opening: Opening
    link: Link
    held: Held | None = None

    def interrupt(self) -> None:
        """End the session, from any thread: a call that waits in it comes back with an error."""
        self.link.fail("interrupted", "it was interrupted")


class Transport(Protocol):
    """How values come from place to place."""

    def open(self, opening: Opening) -> Session:
        """Connect with the other places, and compare programs."""
        ...

    def send(self, token: jax.Array, value: Any, *, target: int, number: int) -> jax.Array:
        """Send a value, as traceable code; gives the token."""
        ...

    def receive(
        self, token: jax.Array, aval: jax.ShapeDtypeStruct, *, source: int, number: int
    ) -> tuple[jax.Array, jax.Array]:
        """Receive a value, as traceable code; gives the token and the value."""
        ...

    def require(self, token: jax.Array, ok: Any, *, number: int) -> jax.Array:
        """End the function with an error if `ok` is false, as traceable code; gives the token."""
        ...

    def close(self, session: Session, reason: str | None = None) -> None:
        """End a session: with a reason all places fail, with none when the peers end, too. Again does nothing."""
        ...


def close(session: Session, reason: str | None = None) -> None:
    """What all transports do to close a session."""
    if reason is not None:
        session.link.fail("failed", reason)
    try:
        session.link.close()
    finally:
        if session.held is not None:
            session.held.leave(session.opening.me)
    if session.link.fault() is not None:
        _jax.forget_failed_effects()


def explain(session: Session) -> Fault | None:
    """Why a session ended before its time; None if it did not."""
    return session.link.fault()


# What is said of a place after its name.
_SAYS: dict[Kind, str] = {
    "died": "died",
    "hangs": "hangs",
    "failed": "failed",
    "interrupted": "was interrupted",
    "internal": "broke the protocol",
}


def error(session: Session, fault: Fault) -> LanewiseError:
    """The error that says so to the user, with the names of the places."""
    name = session.opening.names[fault.place]
    message = f"{name} {_SAYS[fault.kind]}: {fault.message}"
    if fault.kind == "internal":
        return InternalError(message)
    if fault.place != session.opening.me:
        message += f" (seen by {session.opening.names[session.opening.me]})"
    return PlaceError(f"{message}.", fault.place, fault.kind)
