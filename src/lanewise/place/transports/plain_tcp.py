"""Places of several processes, in Python: what `tcp.h` does, frame for frame (see `compiled.py` for why).

A frame on either connection begins with a head of 24 bytes, little-endian: kind, number of the move, bytes that
follow, credits that are returned, and whether its sender reads shared memory (`shared.h`), as this does not. On the
connection for values there are values and credits; on that for signs of life there are beats, the goodbye of a place
that has ended, and faults (kind and place as `int32`, then the message).
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence

from lanewise.place.transports.compiled import KINDS, LOOK_SECONDS, REQUIRED
from lanewise.place.transports.interface import Fault, Kind, Peer
from lanewise.place.transports.plain import _sessions, ended, known, mismatch

HEAD = struct.Struct("<IIQII")
ABOUT = struct.Struct("<ii")
VALUE, CREDIT, BEAT, BYE, FAULT = range(0x4C570001, 0x4C570006)
MOST_FAULT_BYTES = 1008
TICK_SECONDS = 0.002
VERDICT_SECONDS = 1.0
CHUNK = 1 << 16


class Lost(Exception):
    """The connection for values has closed."""


class _Peer:
    def __init__(self, peer: Peer) -> None:
        assert peer.life is not None
        self.place, self.values, self.life = peer.place, peer.values, peer.life
        self.credit, self.limit = peer.credit, peer.limit
        self.inbox: collections.deque[tuple[int, bytes]] = collections.deque()
        self.came = bytearray()
        # Written by callbacks and by the thread.
        self.writing = threading.Lock()
        self.queue = bytearray()
        self.owed = 0
        self.shut = False
        # Used by the thread alone.
        self.seen = time.monotonic()
        self.bye_in = self.bye_out = self.half = self.gone = False
        self.said = bytearray()

    def put(self, kind: int, number: int = 0, content: bytes = b"") -> None:
        """Write a frame, or leave to the thread what the socket does not take; with `writing` held."""
        assert self.values is not None
        frame = HEAD.pack(kind, number, len(content), self.owed, 0) + content
        self.owed = 0
        done = 0
        if not self.queue:
            try:
                done = self.values.send(frame, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except OSError as error:
                raise Lost from error
        self.queue += frame[done:]

    def drain(self) -> None:
        assert self.values is not None
        with self.writing:
            try:
                while self.queue:
                    del self.queue[: self.values.send(self.queue[:CHUNK], socket.MSG_DONTWAIT)]
            except BlockingIOError:
                pass
            except OSError:
                self.queue.clear()

    def tell(self, kind: int, fault: Fault | None = None) -> None:
        content, number = b"", 0
        if fault is not None:
            text = fault.message.encode()[: MOST_FAULT_BYTES - ABOUT.size - 1]
            number = fault.number or 0
            known = KINDS.index(fault.kind) + 1 if fault.number is None else REQUIRED
            content = ABOUT.pack(known, fault.place) + text
        # The thread sees that the peer is gone.
        with contextlib.suppress(OSError):
            self.life.send(
                HEAD.pack(kind, number, len(content), 0, 0) + content, socket.MSG_DONTWAIT
            )


class Net:
    """A session over sockets."""

    def __init__(self, me: int, size: int, peers: list[_Peer], timeout: float, beat: float) -> None:
        self.me, self.size, self.timeout, self.beat = me, size, timeout, beat
        self._peers = {peer.place: peer for peer in peers}
        self._changed = threading.Condition()
        self._fault: Fault | None = None
        self._closing = False
        self._wake_in, self._wake_out = socket.socketpair()
        for sock in (self._wake_in, self._wake_out):
            sock.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="lanewise-beat", daemon=True)
        self.handle = known(self)
        self._thread.start()

    # -- callbacks -------------------------------------------------------------------------------------

    def send(self, target: int, number: int, content: bytes) -> None:
        peer = self._peer(target)
        try:
            while not peer.credit:
                self._step(peer)
            self._look()
            peer.credit -= 1
            with peer.writing:
                peer.put(VALUE, number, content)
                left = bool(peer.queue)
        except Lost:
            self._lost(peer, f"it ended before value {number} was taken from place {self.me}")
        else:
            if left:
                self._wake()

    def receive(self, source: int, number: int, size: int) -> bytes:
        peer = self._peer(source)
        try:
            while not peer.inbox:
                self._step(peer)
            self._look()
        except Lost:
            self._lost(peer, f"it ended before value {number} was sent to place {self.me}")
        came, content = peer.inbox.popleft()
        if (came, len(content)) != (number, size):
            self.failed(mismatch(self.me, source, number, size, came, len(content)))
            self._look()
        with peer.writing:
            peer.owed += 1
            if peer.limit > 1 and 2 * peer.owed > peer.limit:
                with contextlib.suppress(Lost):
                    peer.put(CREDIT)
        return content

    def _peer(self, place: int) -> _Peer:
        self._look()
        peer = self._peers.get(place)
        if peer is None or peer.values is None:
            self.fail("internal", "there is no such edge in this session")
            self._look()
        assert peer is not None
        return peer

    def _step(self, peer: _Peer) -> None:
        """Read one frame, after what is owed was returned."""
        for other in self._peers.values():
            with other.writing, contextlib.suppress(Lost):
                if other.owed:
                    other.put(CREDIT)
        head = self._some(peer, HEAD.size)
        kind, number, count, credits, shares = HEAD.unpack(head)
        if kind not in (VALUE, CREDIT) or shares > 1:
            self.failed(Fault(peer.place, "internal", "what it sent is no frame"))
            self._look()
        peer.credit += credits
        if kind == VALUE:
            peer.inbox.append((number, self._some(peer, count)))

    def _some(self, peer: _Peer, count: int) -> bytes:
        assert peer.values is not None
        while len(peer.came) < count:
            try:
                more = peer.values.recv(max(CHUNK, min(count - len(peer.came), 1 << 24)))
            except OSError as error:
                raise Lost from error
            if not more:
                raise Lost
            peer.came += more
        taken = bytes(peer.came[:count])
        del peer.came[:count]
        return taken

    def _look(self) -> None:
        if self._fault is not None:
            ended(self._fault)

    def _lost(self, peer: _Peer, early: str) -> None:
        """The connection for values has closed: find out why."""
        with self._changed:
            self._changed.wait_for(lambda: self._fault or peer.bye_in, VERDICT_SECONDS)
        if peer.bye_in:
            self.failed(Fault(peer.place, "failed", early))
        self.failed(Fault(peer.place, "died", "its connection for values was closed"))
        self._look()

    # -- faults ----------------------------------------------------------------------------------------

    def failed(self, fault: Fault) -> None:
        with self._changed:
            if self._fault is not None:
                return
            self._fault = fault
            self._changed.notify_all()
        for peer in self._peers.values():
            if peer.values is not None:
                with contextlib.suppress(OSError):
                    peer.values.shutdown(socket.SHUT_RDWR)
        self._wake()

    def fail(self, kind: Kind, message: str) -> None:
        self.failed(Fault(self.me, kind, message))

    def fault(self) -> Fault | None:
        return self._fault

    def close(self) -> None:
        if _sessions.pop(self.handle, None) is None:
            return
        self._closing = True
        self._wake()
        try:
            while self._thread.is_alive():
                self._thread.join(LOOK_SECONDS)
        except BaseException:
            self.fail("interrupted", "it was interrupted while it waited for the others to end")
            self._thread.join()
            raise
        finally:
            self.forked()

    def forked(self) -> None:
        """Close this process's ends of all connections."""
        for peer in self._peers.values():
            peer.life.close()
            if peer.values is not None:
                peer.values.close()
        self._wake_in.close()
        self._wake_out.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    # -- the thread ------------------------------------------------------------------------------------

    def _serve(self) -> None:
        beat, reported = 0.0, False
        while True:
            now = time.monotonic()
            if now >= beat:
                for peer in self._peers.values():
                    if not peer.half and not peer.gone:
                        peer.tell(BEAT)
                beat = now + self.beat
            if self._fault is not None and not reported:
                for peer in self._peers.values():
                    peer.tell(FAULT, self._fault)
                reported = True
            if self._closing and (reported or self._part()):
                break
            look = select.poll()
            look.register(self._wake_out, select.POLLIN)
            for peer in self._peers.values():
                if not peer.gone:
                    look.register(peer.life, select.POLLIN)
                if peer.values is not None and peer.queue and not reported:
                    look.register(peer.values, select.POLLOUT)
            owes = any(peer.owed for peer in self._peers.values())
            look.poll(1000 * min(max(beat - now, 0), TICK_SECONDS if owes else self.beat) + 1)
            with contextlib.suppress(OSError):
                self._wake_out.recv(CHUNK)
            now = time.monotonic()
            for peer in self._peers.values():
                if not peer.gone:
                    self._listen(peer, now)
                    if not reported:
                        self._judge(peer, now)
                if peer.queue:
                    peer.drain()
                if owes and peer.owed:
                    with peer.writing, contextlib.suppress(Lost):
                        peer.put(CREDIT)
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.life.shutdown(socket.SHUT_WR)

    def _part(self) -> bool:
        """Say goodbye; whether all have."""
        for peer in self._peers.values():
            if not peer.bye_out:
                peer.tell(BYE)
            peer.bye_out = True
            with peer.writing, contextlib.suppress(OSError):
                if peer.values is not None and not peer.queue and not peer.shut:
                    peer.shut = True
                    peer.values.shutdown(socket.SHUT_WR)
            if peer.bye_in and not peer.half:
                peer.half = True
                with contextlib.suppress(OSError):
                    peer.life.shutdown(socket.SHUT_WR)
        return all(peer.gone for peer in self._peers.values())

    def _listen(self, peer: _Peer, now: float) -> None:
        while True:
            try:
                more = peer.life.recv(CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                more = b""
            if not more:
                peer.gone = True
                if not peer.bye_in:
                    why = "its process ended, or its machine closed the connection"
                    self.failed(Fault(peer.place, "died", why))
                return
            peer.seen = now
            peer.said += more
            while len(peer.said) >= HEAD.size:
                kind, number, count, _, _ = HEAD.unpack_from(peer.said)
                wrong = not ABOUT.size <= count < MOST_FAULT_BYTES if kind == FAULT else count
                if wrong or kind not in (BEAT, BYE, FAULT):
                    peer.gone = True
                    self.failed(Fault(peer.place, "internal", "what it said is no frame"))
                    return
                if len(peer.said) < HEAD.size + count:
                    break
                content = bytes(peer.said[HEAD.size : HEAD.size + count])
                del peer.said[: HEAD.size + count]
                self._hear(peer, kind, number, content)

    def _hear(self, peer: _Peer, kind: int, number: int, content: bytes) -> None:
        if kind == BYE:
            with self._changed:
                peer.bye_in = True
                self._changed.notify_all()
        elif kind == FAULT:
            what, place = ABOUT.unpack_from(content)
            message = content[ABOUT.size :].decode(errors="replace")
            known = KINDS[what - 1] if 0 < what <= len(KINDS) else "failed"
            self.failed(Fault(place, known, message, number if what == REQUIRED else None))

    def _judge(self, peer: _Peer, now: float) -> None:
        if peer.gone or now - peer.seen < self.timeout:
            return
        peer.gone = True
        if not (peer.bye_in and peer.bye_out):
            why = f"it gave no sign of life for {self.timeout:.3g} s"
            self.failed(Fault(peer.place, "hangs", why))


def connected(me: int, size: int, peers: Sequence[Peer], timeout: float, beat: float) -> Net:
    """A session over sockets, which are its own from here on (as `compiled.connected`)."""
    return Net(me, size, [_Peer(peer) for peer in peers], timeout, beat)
