"""Transports without a C++ compiler: Python does what `compiled.py` has compiled, as callbacks of XLA.

Slower (a third of the round trips of a scalar), the same otherwise: the same frames on sockets, so that processes
with and without a compiler work together. `buffer_callback` hands over XLA's own memory. `io_callback` makes arrays
of JAX's while XLA waits for the call, and with few cores they may wait for each other. On a GPU there is no such
memory: places there need a compiler.
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

from lanewise.core.errors import LanewiseError
from lanewise.place.transports.interface import Fault, Kind

TOKEN = jax.ShapeDtypeStruct((), jnp.int32)


class Ended(LanewiseError):
    """Signal inside of callbacks: the session has a fault, which says why."""


class Plain(Protocol):
    """A session in Python."""

    def send(self, target: int, number: int, content: bytes) -> None: ...

    def receive(self, source: int, number: int, size: int) -> bytes: ...

    def fault(self) -> Fault | None: ...

    def fail(self, kind: Kind, message: str) -> None: ...

    def forked(self) -> None: ...


_handles = itertools.count(1)
_sessions: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def known(session: Any) -> int:
    """The number that names a session in tokens."""
    handle = next(_handles)
    _sessions[handle] = session
    return handle


def _in_child() -> None:
    for session in list(_sessions.values()):
        session.forked()
    _sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


# -- traceable -----------------------------------------------------------------------------------------


def _of(token: Any) -> Any:
    found = _sessions.get(int(token))
    if found is None:
        raise Ended("the session of this token is closed")
    return found


def _at(buffer: Any) -> np.ndarray:
    try:
        return np.asarray(buffer)
    except Exception as error:
        raise Ended(
            "a place on a GPU needs a C++ compiler; install g++ or clang++, or set CXX"
        ) from error


def _send(target: int, number: int, context: Any, out: Any, token: Any, content: Any) -> None:
    _of(_at(token)).send(target, number, _at(content).tobytes())
    _at(out)[...] = _at(token)


def _receive(source: int, number: int, size: int, context: Any, out: Any, token: Any) -> None:
    next_token, value = out
    content = _of(_at(token)).receive(source, number, size)
    _at(value)[...] = np.frombuffer(content, np.uint8)
    _at(next_token)[...] = _at(token)


def _require(number: int, context: Any, out: Any, token: Any, ok: Any) -> None:
    if not _at(ok):
        session = _of(_at(token))
        session.failed(Fault(session.me, "failed", "a requirement does not hold", number))
        raise Ended("a requirement does not hold")
    _at(out)[...] = _at(token)


def _call(function: Callable[..., None], results: Any, *operands: Any) -> Any:
    return buffer_callback(function, results, has_side_effect=True)(*operands)


def _to_bytes(value: jax.Array) -> jax.Array:
    """The bytes of a value: callbacks take no arrays of some types."""
    if jnp.iscomplexobj(value):
        value = jnp.stack([value.real, value.imag], -1)
    if value.dtype == bool:
        value = value.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(value, jnp.uint8).reshape(-1)


def _of_bytes(content: jax.Array, aval: jax.ShapeDtypeStruct) -> jax.Array:
    dtype = np.dtype(aval.dtype)
    if dtype.kind == "b":
        return content.astype(bool).reshape(aval.shape)
    if dtype.kind == "c":
        half = jax.ShapeDtypeStruct((*aval.shape, 2), np.finfo(dtype).dtype)
        both = _of_bytes(content, half)
        return jax.lax.complex(both[..., 0], both[..., 1])
    parts = (dtype.itemsize,) if dtype.itemsize > 1 else ()
    return jax.lax.bitcast_convert_type(content.reshape(*aval.shape, *parts), dtype)


def send(token: jax.Array, value: jax.Array, *, target: int, number: int) -> jax.Array:
    """Send a value of whole bytes."""
    return _call(functools.partial(_send, target, number), TOKEN, token, _to_bytes(value))


def receive(
    token: jax.Array, aval: jax.ShapeDtypeStruct, *, source: int, number: int
) -> tuple[jax.Array, jax.Array]:
    """Receive a value of whole bytes."""
    size = int(np.prod(aval.shape, dtype=np.int64)) * np.dtype(aval.dtype).itemsize
    content = jax.ShapeDtypeStruct((size,), jnp.uint8)
    function = functools.partial(_receive, source, number, size)
    token, came = _call(function, (TOKEN, content), token)
    return token, _of_bytes(came, aval)


def require(token: jax.Array, ok: jax.Array, *, number: int) -> jax.Array:
    """End the function if `ok`, a `bool`, is false."""
    return _call(functools.partial(_require, number), TOKEN, token, ok)


# -- places of one process -----------------------------------------------------------------------------


class Group:
    """Places of this process that are connected with each other."""

    def __init__(self, size: int, credits: dict[tuple[int, int], int]) -> None:
        self.credits = credits
        self.queues = {edge: collections.deque[tuple[int, bytes]]() for edge in credits}
        self.changed = threading.Condition()
        self.fault: Fault | None = None
        self.ended: set[int] = set()

    def join(self, me: int) -> Member:
        return Member(self, me)


class Member:
    """One of them."""

    def __init__(self, group: Group, me: int) -> None:
        self.group, self.me = group, me
        self.handle = known(self)

    def send(self, target: int, number: int, content: bytes) -> None:
        edge = (self.me, target)
        with self.group.changed:
            queue = self.group.queues[edge]
            while self.group.fault is None and len(queue) >= self.group.credits[edge]:
                self._wait(target, f"it ended before value {number} was taken from place {self.me}")
            self._look()
            queue.append((number, content))
            self.group.changed.notify_all()

    def receive(self, source: int, number: int, size: int) -> bytes:
        with self.group.changed:
            queue = self.group.queues[source, self.me]
            while self.group.fault is None and not queue:
                self._wait(source, f"it ended before value {number} was sent to place {self.me}")
            self._look()
            came, content = queue.popleft()
            self.group.changed.notify_all()
        if (came, len(content)) != (number, size):
            self.failed(mismatch(self.me, source, number, size, came, len(content)))
            self._look()
        return content

    def _wait(self, peer: int, complaint: str) -> None:
        if peer in self.group.ended:
            self.group.fault = Fault(peer, "failed", complaint)
            self.group.changed.notify_all()
        else:
            self.group.changed.wait()

    def _look(self) -> None:
        if self.group.fault is not None:
            ended(self.group.fault)

    def failed(self, fault: Fault) -> None:
        with self.group.changed:
            self.group.fault = self.group.fault or fault
            self.group.changed.notify_all()

    def fail(self, kind: Kind, message: str) -> None:
        self.failed(Fault(self.me, kind, message))

    def fault(self) -> Fault | None:
        return self.group.fault

    def close(self) -> None:
        with self.group.changed:
            self.group.ended.add(self.me)
            self.group.changed.notify_all()
        _sessions.pop(self.handle, None)

    def forked(self) -> None:
        pass


def mismatch(me: int, source: int, number: int, size: int, came: int, bytes_came: int) -> Fault:
    """A value that is another than the one expected."""
    return Fault(
        me,
        "internal",
        f"value {number} of {size} bytes was expected of place {source}, and value {came} of {bytes_came} bytes came",
    )


def ended(fault: Fault) -> NoReturn:
    """End a callback."""
    raise Ended(fault.message)
