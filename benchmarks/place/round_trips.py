"""Round trips of a number between two places, in a compiled loop over the transports themselves."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise.place.transports.interface import Opening, Session, Transport
from lanewise.place.transports.launched import launched
from lanewise.place.transports.local import Local
from lanewise.place.transports.tcp import Tcp

NUMBER = jax.ShapeDtypeStruct((), jnp.float32)
_EDGES = {(0, 1): 1, (1, 0): 1}


def _loop(transport: Transport, me: int) -> Callable[..., Any]:
    """The code of one place: the first sends and waits for the answer, the second answers."""

    def turn(_: Any, carry: Any) -> Any:
        token, value = carry
        if me == 0:
            token = transport.send(token, value, target=1, number=0)
            return transport.receive(token, NUMBER, source=1, number=1)
        token, value = transport.receive(token, NUMBER, source=0, number=0)
        return transport.send(token, value + 1, target=0, number=1), value

    def run(token: Any, trips: Any) -> Any:
        return lax.fori_loop(0, trips, turn, (token, jnp.float32(0)))[1]

    return jax.jit(run)


def _opening(me: int) -> Opening:
    return Opening(me, 2, _EDGES, "round trips", ("the first", "the second"), 30.0)


def _compiled(transport: Transport, session: Session, me: int, trips: int, device: Any) -> Any:
    given = jax.device_put((session.token, jnp.int32(trips)), device)
    return functools.partial(_loop(transport, me).lower(*given).compile(), *given)


def over_tcp(trips: int, by_callback: bool) -> float:
    """Seconds for that many round trips with the other process, which asks for the same."""
    found = launched()
    assert found is not None
    transport = Tcp(found.meeting(f"round trips {by_callback}"), by_callback=by_callback)
    session = transport.open(_opening(found.rank))
    run = _compiled(transport, session, found.rank, trips, jax.devices()[0])
    start = time.perf_counter()
    jax.block_until_ready(run())
    seconds = time.perf_counter() - start
    transport.close(session)
    return seconds


def over_queues(trips: int, by_callback: bool) -> float:
    """Seconds for that many round trips between two devices of this process."""
    transport = Local(by_callback=by_callback)
    sessions = [transport.open(_opening(me)) for me in (0, 1)]
    devices = jax.devices()[:2]
    runs = [
        _compiled(transport, session, me, trips, device)
        for me, (session, device) in enumerate(zip(sessions, devices, strict=True))
    ]
    start = time.perf_counter()
    other = threading.Thread(target=lambda: jax.block_until_ready(runs[1]()))
    other.start()
    jax.block_until_ready(runs[0]())
    other.join()
    seconds = time.perf_counter() - start
    for session in sessions:
        transport.close(session)
    return seconds
