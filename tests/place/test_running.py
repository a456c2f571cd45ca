"""What a placed function keeps from call to call, and its connections."""

from __future__ import annotations

import gc
import socket
import threading

import jax
import jax.numpy as jnp
import pytest

import lanewise as lw
from lanewise.place.transports.rendezvous import without_pacing


def places_at_work() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "ThreadPool" in thread.name}


def test_threads_are_kept_from_call_to_call_and_no_longer() -> None:
    before = places_at_work()

    def f(x):
        return lw.placed(jnp.sin, "only")(x)

    run = lw.run(f, {"only": jax.devices()[0]})
    run(jnp.float32(1))
    first = places_at_work() - before
    assert len(first) == 1
    for _ in range(3):
        assert float(run(jnp.float32(0))) == 0
    assert places_at_work() - before == first
    del run
    gc.collect()
    for thread in first:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="only Linux has the option")
def test_connections_within_a_machine_are_not_paced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as sock:
            without_pacing(sock)
            used = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    assert used.rstrip(b"\0") == b"reno"
