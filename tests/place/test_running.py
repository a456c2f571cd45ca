"""What a placed function keeps from call to call, and processes that differ: threads here, each with a rank."""

from __future__ import annotations

import ast
import gc
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import lanewise as lw
from lanewise.place import transports
from lanewise.place.placement import placement_from
from lanewise.place.prepared import ask
from lanewise.place.running import running
from lanewise.place.transports.launched import Launched, local_group
from lanewise.place.transports.nearby import without_pacing


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


def test_processes_with_different_programs_find_out_at_once() -> None:
    """They neither run nor wait for each other until the time is over."""

    def run(one: Launched) -> Any:
        def model(x: Any) -> Any:
            y = lw.placed(lambda x: x + one.rank, "encoder")(x)
            return lw.placed(jnp.sin, "decoder")(y)

        leaves, tree = jax.tree.flatten(((jnp.float32(0.0),), {}))
        placement = placement_from({"encoder": 0, "decoder": 1}, 2)
        prepared = ask(model, "model", placement, leaves, tree).divided(everywhere=True)
        return running(prepared, 1, 30.0, one, jax.devices()[0])(leaves)

    with ThreadPoolExecutor(2) as pool:
        for found in [pool.submit(run, one) for one in local_group(2)]:
            with pytest.raises(
                lw.PlaceError, match=r"encoder \(rank 0\) and .* different programs"
            ):
                found.result(timeout=60)


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="only Linux has the option")
def test_connections_within_a_machine_are_not_paced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as sock:
            without_pacing(sock)
            used = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    assert used.rstrip(b"\0") == b"reno"


def test_nothing_that_is_received_is_ever_unpickled() -> None:
    """What comes from other processes is arrays, JSON and `.npz`: no code that reads it can run code."""
    found = {}
    for path in sorted(Path(transports.__file__).parent.parent.rglob("*.py")):
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {node.module or "", *(alias.name for alias in node.names)}
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant) and node.value.value is False
        found[path.name] = names & {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
    # A program travels to workers of a cluster as code, by Ray's own pickler.
    assert {name: used for name, used in found.items() if used} == {}
