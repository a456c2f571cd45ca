"""Places that run in threads of this process, for tests of transports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from lanewise.place.transports.interface import Opening, Session, Transport
from lanewise.place.transports.launched import local_group
from lanewise.place.transports.local import Local
from lanewise.place.transports.tcp import Tcp

# A thread that takes longer hangs.
MOST_SECONDS = 60.0


def transports(kind: str, size: int, patience: float = 30.0) -> list[Transport]:
    """A transport for each place: `local`, `tcp`, either by callbacks, or both kinds of process (`mixed`).

    `tcp far` is as if each process were on a machine of its own.
    """
    by_callback = "callback" in kind
    if kind.startswith("local"):
        return [Local(by_callback=by_callback)] * size
    return [
        Tcp(
            replace(one.meeting(patience=patience), nearby="far" not in kind),
            by_callback=by_callback or (kind == "mixed" and one.rank == 1),
        )
        for one in local_group(size)
    ]


def opening(
    me: int, size: int, credits: int | dict[tuple[int, int], int] = 1, **more: Any
) -> Opening:
    """An opening with edges between all places, unless others are given."""
    if isinstance(credits, int):
        credits = {(a, b): credits for a in range(size) for b in range(size) if a != b}
    names = tuple(f"part p{k} (rank {k})" for k in range(size))
    about = {"digest": "abc", "timeout": 20.0} | more
    return Opening(me, size, credits, names=names, **about)


def together(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """What functions give that run at the same time, an exception included."""
    out: list[Any] = [None] * len(functions)

    def run(k: int) -> None:
        try:
            out[k] = functions[k]()
        except Exception as error:
            out[k] = error

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MOST_SECONDS)
        assert not thread.is_alive(), "a place hangs"
    return out


def opened(carriers: Sequence[Transport], **more: Any) -> list[Session]:
    """A session for each place."""
    size = len(carriers)
    made = together([lambda k=k: carriers[k].open(opening(k, size, **more)) for k in range(size)])
    for one in made:
        if isinstance(one, Exception):
            raise one
    return made


def ran(sessions: Sequence[Session], functions: Sequence[Callable[..., Any]]) -> list[Any]:
    """What the compiled function of each place gives, of its token; an exception where it fails."""

    def run(k: int) -> Any:
        devices = jax.devices()
        token = jax.device_put(sessions[k].token, devices[k % len(devices)])
        return jax.block_until_ready(jax.jit(functions[k])(token))

    return together([lambda k=k: run(k) for k in range(len(functions))])


def closed(carriers: Sequence[Transport], sessions: Sequence[Session]) -> None:
    """Close all, at the same time: each waits for the others."""
    for one in together([lambda k=k: carriers[k].close(sessions[k]) for k in range(len(sessions))]):
        assert one is None, one


def aval(value: Any) -> jax.ShapeDtypeStruct:
    """The type of a value."""
    value = jnp.asarray(value)
    return jax.ShapeDtypeStruct(value.shape, value.dtype)
