"""The compiled core of `local` and `tcp`: sends and receives as calls that XLA makes into C++.

The text is C++ in the files beside this one (`handlers.cpp` includes the others), compiled at first use and cached as
the kernels of `native` are.

**On the fast path nothing changes hands.** A handler writes to the socket or the queue itself, and reads from it
itself: a value of a few bytes costs one system call on each side. With `tcp` a credit rides on the next message that
goes the other way; before a handler waits, what is owed to any peer is returned. In a session that computes for a long
time the session's own thread returns it; it looks every 2 ms while values move.

**A send that has a credit ends.** What a full socket does not take, and a peer that reads does not make room for
within 50 µs, is copied, and the session's thread writes it when the peer reads. Two places that send each other 100
MB before they receive go on. The memory for it is bounded by the credits.

**A place that waits takes no thread that others compute on.** XLA runs the operations of all devices of a process on
one pool, and a matrix product waits for threads of it. Most handlers run on the thread that began the function, some
on the pool, where operations are ready that do not depend on each other. One that waited there would take a thread
from the places that it waits for; if all did, for ever. So a handler on a thread of XLA's tries, and where it would
have to wait, it gives XLA a future (`XLA_FFI_Future`) and leaves the call to a thread of the session. That waits, and
fulfills the future; XLA then goes on with the function *on this thread*, and so later handlers are there, where they
may wait as they like. A function changes threads a few times in all, not once a message: 1 to 5 times in 200 calls
with independent matrix products between them, once in 200,000 in a loop of nothing else. The floating-point state
goes with it, for XLA flushes denormal numbers. The thread that began the function waits all the same, inside XLA:
`threads.py` is about those. Rings of 4 and 8 places with matrix products on two cores neither starved with futures
nor, while there were as many threads as places, without; futures make it hold for any number of threads.

**Looking before sleeping.** To wake a core that sleeps takes 10 to 60 µs, and a round trip 6 where neither does. So a
handler that waits looks for an answer for 30 µs first. On a core that both places share this only keeps the other from
running: each time nothing came, more waits go by without looking (`lw_look` in `core.h`).

**Large values** between processes of one machine are in memory that both have, and only their frames on the socket
(`shared.h`): the receiver sleeps in the socket as before, and a peer that dies is seen as before.

What was considered: a thread of the session that reads all the time, with queues to the handlers, costs two switches
of threads a message, which is more than all the rest. Shared memory with threads that spin, for all values, was slower
than sockets where cores are shared. Callbacks of Python are in `plain.py`: 3 times slower, and what runs where there is
no C++ compiler.

**Faults.** A session has one fault, the first. It is set by what finds it (a handler that reads the end of a
connection, the session's thread that misses heartbeats, Python that is interrupted), and wakes all others: sockets
are shut down, conditions are signalled. It is then passed on to the peers, which pass it on to theirs.

Limits: on a GPU a handler copies through memory of the host and waits for the device's stream; handlers of several
devices wait on the thread that launches for their own. A forked child has none of its parent's sessions.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise.core.errors import CompilerError, OptionError
from lanewise.core.sources import composed
from lanewise.cpp.toolchain import host
from lanewise.place.transports.interface import Fault, Kind, Peer

_TARGETS = ("lanewise_send", "lanewise_receive", "lanewise_require")
# How faults are numbered, in C++ and in frames. The last two come from this place's own code.
KINDS: tuple[Kind, ...] = ("died", "hangs", "failed", "interrupted", "failed", "internal")
REQUIRED = 5
# How often Python looks for signals while it waits.
LOOK_SECONDS = 0.1
TOKEN = jax.ShapeDtypeStruct((), jnp.int32)


class _Fault(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("place", ctypes.c_int),
        ("number", ctypes.c_longlong),
        ("message", ctypes.c_char * 1000),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, known to XLA; None where nothing here compiles it."""
    text = composed("place/transports/handlers.cpp")
    try:
        made = host.load(text, (*host.FLAGS, f"-I{jax.ffi.include_dir()}"))
    except (CompilerError, OptionError, OSError):
        return None
    made.lanewise_group.restype = ctypes.c_void_p
    for platform, suffix in (("cpu", ""), ("CUDA", "_gpu")):
        for target in _TARGETS:
            capsule = jax.ffi.pycapsule(getattr(made, target + suffix))
            jax.ffi.register_ffi_target(target, capsule, platform=platform)
    return made


def _loaded() -> ctypes.CDLL:
    found = library()
    if found is None:
        raise OptionError(
            "The compiled transports need a C++ compiler; install g++ or clang++, or set CXX."
        )
    return found


# -- traceable -----------------------------------------------------------------------------------------


def bytes_of(aval: Any) -> int:
    """How many bytes a value has on its way."""
    return int(np.prod(aval.shape, dtype=np.int64)) * np.dtype(aval.dtype).itemsize


def _call(target: str, results: Any, *operands: Any, peer: int, number: int, size: int) -> Any:
    _loaded()
    made = jax.ffi.ffi_call(target, results, has_side_effect=True)
    return made(*operands, peer=np.int64(peer), number=np.int64(number), bytes=np.int64(size))


def send(token: jax.Array, value: jax.Array, *, target: int, number: int) -> jax.Array:
    """Send a value of whole bytes."""
    size = bytes_of(value)
    return _call("lanewise_send", TOKEN, token, value, peer=target, number=number, size=size)


def receive(
    token: jax.Array, aval: jax.ShapeDtypeStruct, *, source: int, number: int
) -> tuple[jax.Array, jax.Array]:
    """Receive a value of whole bytes."""
    about = {"peer": source, "number": number, "size": bytes_of(aval)}
    token, value = _call("lanewise_receive", (TOKEN, aval), token, **about)
    return token, value


def require(token: jax.Array, ok: jax.Array, *, number: int) -> jax.Array:
    """End the function if `ok`, a `bool`, is false."""
    return _call("lanewise_require", TOKEN, token, ok, peer=0, number=number, size=1)


# -- sessions ------------------------------------------------------------------------------------------


class Compiled:
    """A session of the library, by its handle."""

    def __init__(self, handle: int) -> None:
        if not handle:
            raise MemoryError("there is no memory, or no thread, for another session")
        self.handle = handle
        self._last: Fault | None = None
        self._guard, self._closed = threading.Lock(), False

    def fault(self) -> Fault | None:
        out = _Fault()
        kind = _loaded().lanewise_fault(self.handle, ctypes.byref(out))
        if not kind:
            return self._last
        number = int(out.number) if kind == REQUIRED else None
        return Fault(out.place, KINDS[kind - 1], out.message.decode(errors="replace"), number)

    def fail(self, kind: Kind, message: str) -> None:
        _loaded().lanewise_fail(self.handle, KINDS.index(kind) + 1, message.encode()[:999])

    def close(self) -> None:
        with self._guard:
            if not self._closed:
                self._closed = True
                self._close()

    def _close(self) -> None:
        library = _loaded()
        library.lanewise_end(self.handle)
        try:
            while not library.lanewise_ended(self.handle, ctypes.c_double(LOOK_SECONDS)):
                pass
        except BaseException:
            self.fail("interrupted", "it was interrupted while it waited for the others to end")
            raise
        finally:
            self._last = self.fault()
            library.lanewise_free(self.handle)


def _numbers(values: Sequence[int]) -> Any:
    return (ctypes.c_int32 * len(values))(*values)


class Group:
    """Places of this process that are connected with each other."""

    def __init__(self, size: int, credits: dict[tuple[int, int], int]) -> None:
        edges = sorted(credits)
        sources, targets = ([edge[end] for edge in edges] for end in (0, 1))
        held = [credits[edge] for edge in edges]
        numbers = map(_numbers, (sources, targets, held))
        library = _loaded()
        hub = library.lanewise_group(size, len(edges), *numbers)
        if not hub:
            raise MemoryError("there is no memory for another group of places")
        self._hub = ctypes.c_void_p(hub)
        weakref.finalize(self, library.lanewise_release, self._hub).atexit = False

    def join(self, me: int) -> Compiled:
        return Compiled(_loaded().lanewise_join(self._hub, me))


def connected(
    me: int,
    size: int,
    peers: Sequence[Peer],
    timeout: float,
    beat: float,
) -> Compiled:
    """A session over sockets, which are its own from here on."""
    files = [
        [-1 if sock is None else sock.detach() for sock in kind]
        for kind in zip(*((peer.values, peer.life) for peer in peers))
    ] or [[], []]
    about = zip(*((peer.place, peer.credit, peer.limit) for peer in peers))
    places, credits, limits = [*about] or [(), (), ()]
    columns = map(_numbers, (places, *files, credits, limits))
    seconds = (ctypes.c_double(timeout), ctypes.c_double(beat))
    handle = _loaded().lanewise_connect(me, size, len(peers), *columns, *seconds)
    if not handle:
        for file in (*files[0], *files[1]):
            if file >= 0:
                os.close(file)
    return Compiled(handle)


def sessions() -> int:
    """How many sessions are open in this process."""
    return _loaded().lanewise_sessions()
