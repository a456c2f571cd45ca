"""How two processes find out that they belong together, before anything else is read.

The side that accepts a connection sends 32 random bytes; the one that connects answers with 32 of its own and the
keyed hash (HMAC-SHA256) of both under the run's secret, and gets such a hash in return. Until then nothing else is
read, and a process without such a hash is turned away: other programs that connect do not disturb a run. The secret
never travels. After that come messages of at most `MOST_BYTES`, as JSON with a length before it; nothing is ever
unpickled. There is no encryption: the network is trusted with the values.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import queue
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

from lanewise.core.errors import PlaceError
from lanewise.place.transports.nearby import listening_nearby

NONCE_BYTES = 32
# The answer to a process that is turned away.
NO = bytes(NONCE_BYTES)
MOST_BYTES = 1 << 22
# How long a connection has to show that it knows the secret.
GREETING_SECONDS = 10.0
LOOK_SECONDS = 0.1

# A process that has come: what it says of itself, and its connection.
Comers = queue.Queue[tuple[dict[str, Any], socket.socket]]


class Refused(Exception):
    """The other side does not know the secret, or is no process of ours."""


class Gone(Exception):
    """The other side closed the connection or said nothing in time."""


# -- messages ------------------------------------------------------------------------------------------


def _exactly(sock: socket.socket, count: int, deadline: float) -> bytes:
    content = b""
    while len(content) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Gone("it said nothing in time")
        sock.settimeout(min(left, LOOK_SECONDS))
        try:
            more = sock.recv(count - len(content))
        except TimeoutError:
            continue
        except OSError as error:
            raise Gone(str(error)) from error
        if not more:
            raise Gone("it closed the connection")
        content += more
    return content


def say(sock: socket.socket, message: dict[str, Any]) -> None:
    """Send a message."""
    content = json.dumps(message).encode()
    sock.settimeout(GREETING_SECONDS)
    try:
        sock.sendall(struct.pack("<I", len(content)) + content)
    except OSError as error:
        raise Gone(str(error)) from error


def heard(sock: socket.socket, deadline: float) -> dict[str, Any]:
    """The next message."""
    (count,) = struct.unpack("<I", _exactly(sock, 4, deadline))
    if count > MOST_BYTES:
        raise Gone("it sent a message that is too long")
    try:
        message = json.loads(_exactly(sock, count, deadline))
    except ValueError as error:
        raise Gone("it sent what is no message") from error
    if not isinstance(message, dict):
        raise Gone("it sent what is no message")
    return message


def _proof(secret: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, b"lanewise " + side + nonces, "sha256")


def _let_in(sock: socket.socket, secret: bytes) -> None:
    """See that the side that connects knows the secret, and show that we do."""
    deadline = time.monotonic() + GREETING_SECONDS
    ours = os.urandom(NONCE_BYTES)
    try:
        sock.sendall(ours)
        answer = _exactly(sock, 2 * NONCE_BYTES, deadline)
        theirs, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if not hmac.compare_digest(proof, _proof(secret, b"connects", ours + theirs)):
            sock.sendall(NO)
            raise Refused
        sock.sendall(_proof(secret, b"accepts", ours + theirs))
    except OSError as error:
        raise Gone(str(error)) from error


def come_in(sock: socket.socket, secret: bytes) -> None:
    """Show the side that accepts that we know the secret, and see that it does."""
    deadline = time.monotonic() + GREETING_SECONDS
    theirs = _exactly(sock, NONCE_BYTES, deadline)
    ours = os.urandom(NONCE_BYTES)
    try:
        sock.sendall(ours + _proof(secret, b"connects", theirs + ours))
        answer = _exactly(sock, NONCE_BYTES, deadline)
    except OSError as error:
        raise Gone(str(error)) from error
    if not hmac.compare_digest(answer, _proof(secret, b"accepts", theirs + ours)):
        raise Refused


# -- listening -----------------------------------------------------------------------------------------


class Listener:
    """A port that lets in processes that know the secret, and sorts them by the run that they want.

    `nearby`: the name at which it listens for processes of this machine too, if there is one.
    """

    def __init__(self, host: str, port: int, secret: bytes) -> None:
        self._secret = secret
        self._guard = threading.Lock()
        self._comers: dict[str, Comers] = {}
        self._greeted: dict[threading.Thread, socket.socket] = {}
        self.users, self.turned_away = 0, 0
        self._sockets = [_bound(host, port)]
        self.port = self._sockets[0].getsockname()[1]
        self.nearby: str | None = None
        near = listening_nearby()
        if near is not None:
            self._sockets.append(near[0])
            self.nearby = near[1]
        self._woken, self._wake = socket.socketpair()
        for sock in self._sockets:
            sock.setblocking(False)
        self._thread = threading.Thread(target=self._accept, name="lanewise-listen", daemon=True)
        self._thread.start()

    def comers(self, run: str) -> Comers:
        with self._guard:
            return self._comers.setdefault(run, queue.Queue())

    def _accept(self) -> None:
        with selectors.DefaultSelector() as comes:
            for listens in (*self._sockets, self._woken):
                comes.register(listens, selectors.EVENT_READ)
            while True:
                found = [key.fileobj for key, _ in comes.select()]
                if self._woken in found:
                    return
                for listens in self._sockets:
                    if listens in found and not self._let_come(listens):
                        return

    def _let_come(self, listens: socket.socket) -> bool:
        """Greet the side that connects, in a thread; whether more may come."""
        try:
            sock, _ = listens.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return True
        except OSError:
            return False
        thread = threading.Thread(target=self._greet, args=(sock,), daemon=True)
        with self._guard:
            self._greeted[thread] = sock
        thread.start()
        return True

    def _greet(self, sock: socket.socket) -> None:
        try:
            sock.settimeout(GREETING_SECONDS)
            _let_in(sock, self._secret)
            hello = heard(sock, time.monotonic() + GREETING_SECONDS)
            self.comers(str(hello.get("run"))).put((hello, sock))
        except (Refused, Gone) as error:
            self.turned_away += isinstance(error, Refused)
            sock.close()
        finally:
            with self._guard:
                self._greeted.pop(threading.current_thread(), None)

    def close(self) -> None:
        self._wake.send(b"\0")
        self._thread.join()
        for sock in (*self._sockets, self._wake, self._woken):
            sock.close()
        with self._guard:
            greeted = dict(self._greeted)
        for thread, sock in greeted.items():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            thread.join()
        for comers in self._comers.values():
            while not comers.empty():
                comers.get()[1].close()


def _bound(host: str, port: int) -> socket.socket:
    problem: OSError | None = None
    # A name of this machine as others see it may be none of its own addresses.
    for one in (host, ""):
        try:
            family = socket.AF_INET6 if ":" in one else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((one, port))
                sock.listen(128)
                return sock
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            problem = problem or error
    raise PlaceError(
        f"rank 0 cannot listen at {host}:{port}: {problem and problem.strerror}; give the run another port."
    ) from problem


_listeners: dict[tuple[str, int], Listener] = {}
_guard = threading.Lock()


@contextlib.contextmanager
def listening(host: str, port: int, secret: bytes) -> Iterator[Listener]:
    """A listener, shared by the sessions that this process opens at the same address at one time."""
    with _guard:
        found = _listeners.get((host, port)) if port else None
        if found is None:
            found = Listener(host, port, secret)
            if port:
                _listeners[host, port] = found
        found.users += 1
    try:
        yield found
    finally:
        with _guard:
            found.users -= 1
            last = not found.users
            if last and port:
                del _listeners[host, port]
            if last:
                found.close()
