"""A process of three is killed or stopped at a random moment; the others end with an error that names it.

Ranks 0 and 2 are threads of this process, rank 1 is a process of its own (`victim`). Rank 0 and rank 1 exchange
values, each checked; rank 2 waits for rank 0 alone, and hears from it what happened. Prints a line for each case.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

from lanewise.place.transports import interface
from lanewise.place.transports.interface import explain
from lanewise.place.transports.launched import Launched, launched, local_group
from lanewise.place.transports.tcp import Tcp
from places import aval, opening, together

EDGES = {(0, 1): 2, (1, 0): 2, (0, 2): 1}
BY_CALLBACK = os.environ.get("BY_CALLBACK") == "1"


def opened(one: Launched, timeout: float) -> tuple[Tcp, Any]:
    carrier = Tcp(one.meeting(patience=60.0), by_callback=BY_CALLBACK)
    return carrier, carrier.open(opening(one.rank, 3, EDGES, timeout=timeout))


def function(carrier: Tcp, rank: int) -> Any:
    """An endless exchange of numbers, and at rank 2 a message that never comes."""

    def ping(state: Any) -> Any:
        token, i = state
        token = carrier.send(token, jnp.full(100, i), target=1, number=0)
        token, back = carrier.receive(token, aval(jnp.zeros(100, jnp.int32)), source=1, number=1)
        return carrier.require(token, jnp.all(back == 3 * i), number=5), i + 1

    def pong(state: Any) -> Any:
        token, i = state
        token, got = carrier.receive(token, aval(jnp.zeros(100, jnp.int32)), source=0, number=0)
        return carrier.send(token, 3 * got, target=0, number=1), i

    def run(token: Any) -> Any:
        if rank == 2:
            return carrier.receive(token, aval(0.0), source=0, number=2)
        body = ping if rank == 0 else pong
        # XLA takes a count from 0 that goes on while it is at least 0 for a loop of one turn.
        return jax.lax.while_loop(lambda state: state[1] != -1, body, (token, jnp.int32(0)))

    return jax.jit(run)


def victim(timeout: float) -> None:
    one = launched()
    assert one is not None
    carrier, session = opened(one, timeout)
    ready = function(carrier, 1).lower(session.token).compile()
    print("runs", flush=True)
    ready(session.token)[1].block_until_ready()


def survive(name: str, timeout: float) -> float:
    """Seconds from the signal to the end of the other two."""
    group = local_group(3)
    process = subprocess.Popen(
        [sys.executable, __file__, "victim", str(timeout)],
        env=os.environ | group[1].environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )

    def run(rank: int) -> str:
        carrier, session = opened(group[rank], timeout)
        failed = False
        try:
            jax.block_until_ready(function(carrier, rank)(session.token))
        except Exception:
            failed = True
        fault = explain(session)
        carrier.close(session)
        assert failed and fault is not None
        return str(interface.error(session, fault))

    def strike() -> float:
        assert process.stdout is not None
        assert process.stdout.readline() == b"runs\n"
        time.sleep(random.uniform(0.05, 0.3))
        os.kill(process.pid, signal.SIGKILL if name == "killed" else signal.SIGSTOP)
        return time.monotonic()

    first, other, struck = together([lambda: run(0), lambda: run(2), strike])
    elapsed = time.monotonic() - struck
    process.kill()
    process.wait()
    for said in (first, other):
        assert f"part p1 (rank 1) {'died' if name == 'killed' else 'hangs'}: " in str(said), said
    print(f"{name}: {elapsed:.3f}\n{name} at 0: {first}\n{name} at 2: {other}", flush=True)
    return elapsed


if __name__ == "__main__":
    if sys.argv[1:2] == ["victim"]:
        victim(float(sys.argv[2]))
    else:
        for trial in range(int(os.environ.get("LANEWISE_TRIALS", "1"))):
            # A killed process is seen by the end of its connections, and not by the timeout. How fast: RESULTS.md.
            elapsed = survive("killed", 120.0)
            assert elapsed < 10, elapsed
            survive("stopped", 1.0)
            print(f"trial {trial}: over", flush=True)
