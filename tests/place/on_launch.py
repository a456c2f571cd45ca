"""What each process of `lanewise launch` runs in a test: a loop over the processes, whose numbers rank 0 prints."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp

from lanewise.place.transports.interface import Opening
from lanewise.place.transports.launched import launched
from lanewise.place.transports.tcp import Tcp

NUMBER = jax.ShapeDtypeStruct((), jnp.int32)


def main(turns: int) -> None:
    me = launched()
    assert me is not None
    after, before = (me.rank + 1) % me.size, (me.rank - 1) % me.size
    edges = {(k, (k + 1) % me.size): 1 for k in range(me.size)}
    names = tuple(f"part p{k} (rank {k})" for k in range(me.size))
    transport = Tcp(me.meeting())
    session = transport.open(Opening(me.rank, me.size, edges, "same", names, 60.0))

    def body(state: Any) -> Any:
        token, i, x = state
        if me.rank == 0:
            token = transport.send(token, x + 1, target=after, number=0)
            token, x = transport.receive(token, NUMBER, source=before, number=before)
        else:
            token, x = transport.receive(token, NUMBER, source=before, number=before)
            token = transport.send(token, x + 1, target=after, number=me.rank)
        return token, i + 1, x

    def run(token: Any, turns: Any) -> Any:
        begin = (token, jnp.int32(0), jnp.int32(0))
        return jax.lax.while_loop(lambda state: state[1] < turns, body, begin)[2]

    out = jax.jit(run)(session.token, turns)
    out.block_until_ready()
    transport.close(session)
    print(f"counted {out}" if me.rank == 0 else "ended")


if __name__ == "__main__":
    main(int(sys.argv[1]))
