"""How processes meet: programs are compared, then each pair that shares an edge connects.

Rank 0 listens at the address that all know. Each other rank listens at a port of its own, connects to rank 0 and says
its rank, what it runs and where it listens. When all are there rank 0 sends the table of addresses to all, and of each
pair that shares an edge the higher rank connects to the lower: for values by a Unix socket if they are on the same
machine (`nearby.py`), else by TCP. The connection with rank 0 stays, for signs of life, which always go by TCP. All
that waits has a deadline, and reports what it waited for.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lanewise.core.errors import PlaceError
from lanewise.place.transports.greeting import (
    GREETING_SECONDS,
    LOOK_SECONDS,
    Comers,
    Gone,
    Listener,
    Refused,
    come_in,
    heard,
    listening,
    say,
)
from lanewise.place.transports.interface import Opening, Peer
from lanewise.place.transports.nearby import connected_nearby, ready

VERSION = 1
RETRY_SECONDS = 0.05


@dataclass(frozen=True)
class Meeting:
    """Where processes meet: this process's rank, the address of rank 0, the secret of the run, and how long to wait.

    `run` distinguishes sessions that the same processes open at the same time. Without `nearby`, values go by TCP to
    processes of this machine too.
    """

    rank: int
    size: int
    host: str
    port: int
    secret: bytes = field(repr=False)
    run: str = ""
    patience: float = 120.0
    nearby: bool = True


# -- connecting ---------------------------------------------------------------------------------------


def _reached(
    host: str,
    port: int,
    meeting: Meeting,
    deadline: float,
    who: str,
    greeting: Callable[[socket.socket], Any],
) -> tuple[socket.socket, Any]:
    """A connection that the other side let in, and what it answered to the greeting; tried again until the deadline."""
    problem: Exception | str = "nothing listens there"
    while time.monotonic() < deadline:
        sock = None
        try:
            sock = socket.create_connection(
                (host, port), timeout=max(deadline - time.monotonic(), 0.1)
            )
            come_in(sock, meeting.secret)
            return sock, greeting(sock)
        except Refused:
            if sock is not None:
                sock.close()
            raise PlaceError(
                f"{who} at {host}:{port} refused this process: it has another secret (LANEWISE_SECRET), or is no"
                " process of this run.",
                meeting.rank,
                "failed",
            ) from None
        except (OSError, Gone) as error:
            problem = error
            if sock is not None:
                sock.close()
        except BaseException:
            if sock is not None:
                sock.close()
            raise
        time.sleep(RETRY_SECONDS)
    raise PlaceError(
        f"{who} was not reached at {host}:{port} within {meeting.patience:g} s: {problem}.",
        0,
        "died",
    )


def _reached_nearby(
    name: str, meeting: Meeting, greeting: Callable[[socket.socket], Any]
) -> socket.socket | None:
    """A connection inside this machine that the other side let in; None if there is none by this name."""
    try:
        sock = connected_nearby(name, GREETING_SECONDS)
    except OSError:
        return None
    try:
        come_in(sock, meeting.secret)
        greeting(sock)
    except (OSError, Gone, Refused):
        sock.close()
        return None
    except BaseException:
        sock.close()
        raise
    return sock


# -- the meeting ---------------------------------------------------------------------------------------


def met(opening: Opening, meeting: Meeting) -> list[Peer]:
    """The peers of a place, connected; a `PlaceError` that says what is wrong, and closes all, otherwise."""
    deadline = time.monotonic() + meeting.patience
    peers = {place: opening.peer(place) for place in opening.peers()}
    if meeting.rank and opening.size > 1:
        peers.setdefault(0, opening.peer(0))
    try:
        (_at_rank_0 if meeting.rank == 0 else _at_another)(opening, meeting, peers, deadline)
    except BaseException:
        for peer in peers.values():
            peer.close()
        raise
    for peer in peers.values():
        for sock in (peer.life, peer.values):
            if sock is not None:
                ready(sock)
    return [peers[place] for place in sorted(peers)]


def _hello(opening: Opening, meeting: Meeting, purpose: str, **more: Any) -> dict[str, Any]:
    return {
        "version": VERSION,
        "run": meeting.run,
        "rank": meeting.rank,
        "size": opening.size,
        "digest": opening.digest,
        "purpose": purpose,
        **more,
    }


def _at_rank_0(opening: Opening, meeting: Meeting, peers: dict[int, Peer], deadline: float) -> None:
    for place in range(1, opening.size):
        peers.setdefault(place, opening.peer(place))
    if opening.size == 1:
        return
    addresses: dict[int, tuple[str, int]] = {}
    with listening(meeting.host, meeting.port, meeting.secret) as listener:
        nearby = {0: listener.nearby if meeting.nearby else None}
        comers = listener.comers(meeting.run)
        try:
            while len(addresses) < opening.size - 1:
                missing = [place for place in range(1, opening.size) if place not in addresses]
                late = functools.partial(_late, opening, meeting, missing, listener)
                hello, sock = _next(comers, deadline, opening, peers, late)
                rank = hello.get("rank")
                problem = _problem(opening, hello, addresses)
                if problem is not None:
                    with contextlib.suppress(Gone), sock:
                        say(sock, {"error": problem})
                    raise PlaceError(problem, rank if rank in peers else None, "failed")
                assert isinstance(rank, int)
                peers[rank].life = sock
                addresses[rank] = (sock.getpeername()[0], int(hello["port"]))
                nearby[rank] = hello.get("nearby")
            _tell_all(opening, peers, {"table": addresses, "nearby": nearby})
            _await_higher(opening, meeting, peers, comers, deadline, listener)
            _await_ready(opening, meeting, peers, deadline)
            _tell_all(opening, peers, {"go": True})
        except BaseException as error:
            for place in addresses:
                life = peers[place].life
                assert life is not None
                with contextlib.suppress(Gone):
                    say(life, {"error": str(error) or f"rank 0 gave up ({type(error).__name__})"})
            raise


def _tell_all(opening: Opening, peers: dict[int, Peer], message: dict[str, Any]) -> None:
    for place, peer in peers.items():
        assert peer.life is not None
        try:
            say(peer.life, message)
        except Gone as error:
            raise _left(opening, place) from error


def _await_ready(
    opening: Opening, meeting: Meeting, peers: dict[int, Peer], deadline: float
) -> None:
    """Wait until all are connected with all that they need: heartbeats begin after that."""
    waiting = {place: peer.life for place, peer in peers.items() if peer.life is not None}
    while waiting:
        if time.monotonic() > deadline:
            raise _late(opening, meeting, sorted(waiting))
        readable, _, _ = select.select(list(waiting.values()), (), (), LOOK_SECONDS)
        for place, life in list(waiting.items()):
            if life not in readable:
                continue
            try:
                message = heard(life, deadline)
            except Gone as error:
                raise _left(opening, place) from error
            if "ready" not in message:
                raise PlaceError(str(message.get("error")), place, "failed")
            del waiting[place]


def _problem(opening: Opening, hello: dict[str, Any], addresses: dict[int, Any]) -> str | None:
    """Why a process that connects cannot take part."""
    rank, size, digest = (hello.get(name) for name in ("rank", "size", "digest"))
    if hello.get("version") != VERSION:
        return f"rank 0 and rank {rank} run different versions of Lanewise."
    if size != opening.size or not isinstance(rank, int) or not 0 < rank < opening.size:
        return f"rank 0 runs a program over {opening.size} places, and rank {rank} one over {size}."
    if rank in addresses:
        return f"two processes are rank {rank}; each needs a rank of its own (LANEWISE_RANK)."
    if digest != opening.digest:
        return (
            f"{opening.names[0]} and {opening.names[rank]} run different programs (hashes {opening.digest} and"
            f" {digest}); start all from the same script, with the same arguments and versions."
        )
    if not isinstance(hello.get("port"), int):
        return f"rank {rank} does not say where it listens."
    return None


def _left(opening: Opening, place: int) -> PlaceError:
    return PlaceError(f"{opening.names[place]} ended while the run was opened.", place, "died")


def _next(
    comers: Comers,
    deadline: float,
    opening: Opening,
    peers: dict[int, Peer],
    late: Callable[[], PlaceError],
) -> tuple[dict[str, Any], socket.socket]:
    """The process that comes next; an error if a peer that was there has left, or the time is over."""
    while True:
        try:
            return comers.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            pass
        for peer in peers.values():
            if peer.life is not None and _has_left(peer.life):
                raise _left(opening, peer.place)
        if 0 in peers:
            _hear_of_errors(peers[0], deadline)
        if time.monotonic() > deadline:
            raise late()


def _late(
    opening: Opening, meeting: Meeting, missing: list[int], listener: Listener | None = None
) -> PlaceError:
    away = 0 if listener is None else listener.turned_away
    more = f" ({away} that came had another secret)" if away else ""
    names = ", ".join(opening.names[place] for place in missing)
    return PlaceError(
        f"{names} did not connect to {opening.names[meeting.rank]} within {meeting.patience:g} s{more}.",
        missing[0],
        "died",
    )


def _hear_of_errors(first: Peer, deadline: float) -> None:
    """Before all are ready rank 0 has nothing to say but that something is wrong."""
    assert first.life is not None
    if select.select([first.life], (), (), 0)[0]:
        raise _refusal(heard(first.life, deadline))


def _refusal(answer: dict[str, Any]) -> PlaceError:
    return PlaceError(str(answer.get("error", "rank 0 gave up.")), 0, "failed")


def _has_left(sock: socket.socket) -> bool:
    sock.settimeout(0.0)
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _await_higher(
    opening: Opening,
    meeting: Meeting,
    peers: dict[int, Peer],
    comers: Comers,
    deadline: float,
    listener: Listener,
) -> None:
    """Higher ranks that share an edge connect for values and, but with rank 0, for signs of life."""
    higher = [place for place in opening.peers() if place > meeting.rank]
    while True:
        missing = [p for p in higher if peers[p].values is None or peers[p].life is None]
        if not missing:
            return
        late = functools.partial(_late, opening, meeting, missing, listener)
        hello, sock = _next(comers, deadline, opening, peers, late)
        rank, purpose = hello.get("rank"), hello.get("purpose")
        if (
            hello.get("digest") != opening.digest
            or rank not in missing
            or purpose not in ("life", "values")
        ):
            sock.close()
            continue
        assert isinstance(rank, int)
        setattr(peers[rank], purpose, sock)


def _at_another(
    opening: Opening, meeting: Meeting, peers: dict[int, Peer], deadline: float
) -> None:
    with contextlib.ExitStack() as stack:
        opened: dict[str, Listener] = {}

        def join(sock: socket.socket) -> dict[str, Any]:
            # Where it is reached from is known once it has reached rank 0.
            if "own" not in opened:
                host = sock.getsockname()[0]
                opened["own"] = stack.enter_context(listening(host, 0, meeting.secret))
            own = opened["own"]
            at = {"port": own.port, "nearby": own.nearby if meeting.nearby else None}
            say(sock, _hello(opening, meeting, "join", **at))
            return heard(sock, deadline)

        life, answer = _reached(meeting.host, meeting.port, meeting, deadline, "rank 0", join)
        peers[0].life = life
        if "table" not in answer:
            raise _refusal(answer)
        try:
            for place in opening.peers():
                if place > meeting.rank:
                    continue
                host, port = answer["table"][str(place)] if place else (meeting.host, meeting.port)
                for purpose in ("values",) if place == 0 else ("life", "values"):
                    greeting = _greeting(_hello(opening, meeting, purpose), peers[0], deadline)
                    sock, near = None, answer["nearby"][str(place)]
                    if purpose == "values" and meeting.nearby and near is not None:
                        sock = _reached_nearby(near, meeting, greeting)
                    if sock is None:
                        name = opening.names[place]
                        sock, _ = _reached(host, port, meeting, deadline, name, greeting)
                    setattr(peers[place], purpose, sock)
            listener = opened["own"]
            comers = listener.comers(meeting.run)
            _await_higher(opening, meeting, peers, comers, deadline, listener)
            say(life, {"ready": True})
            answer = heard(life, deadline)
        except Gone as error:
            raise _left(opening, 0) from error
        except BaseException as error:
            with contextlib.suppress(Gone):
                say(life, {"error": str(error) or f"rank {meeting.rank} gave up"})
            raise
        if "go" not in answer:
            raise _refusal(answer)


def _greeting(
    hello: dict[str, Any], first: Peer, deadline: float
) -> Callable[[socket.socket], None]:
    def greet(sock: socket.socket) -> None:
        _hear_of_errors(first, deadline)
        say(sock, hello)

    return greet
