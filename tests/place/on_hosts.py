"""One of several processes that share a batch; `test_hosts.py` starts them and reads what they print."""

from __future__ import annotations

import sys

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lanewise as lw
from lanewise.place.transports.interface import Opening
from lanewise.place.transports.launched import launched
from lanewise.place.transports.tcp import Tcp

NUMBERS = np.arange(1, 9, dtype=np.int32)
COUNTS = np.array([0, 1, 7, 2, 5, 8, 16, 3])


@lw.program
def collatz(n):
    steps = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@lw.program
def power(x, n, a):
    assert n < 100, "too high"
    y = a
    while n > 0:
        y, n = y * x, n - 1
    return y


def main(address: str, processes: str, number: str) -> None:
    jax.distributed.initialize(address, int(processes), int(number))
    mesh = jax.make_mesh((jax.device_count(),), ("lanes",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P("lanes"))
    share = np.split(NUMBERS, jax.process_count())[jax.process_index()]
    given = jax.make_array_from_process_local_data(sharding, share)
    for carrier in ("ticks", "native"):
        found = jax.jit(lw.vmap(collatz, carrier=carrier))(given)
        own = all(
            np.array_equal(part.data, COUNTS[part.index]) for part in found.addressable_shards
        )
        print(
            f"{carrier}: {'right' if own else 'wrong'} {len(found.addressable_shards)}", flush=True
        )
    run = lw.vmap(power, in_axes=(0, 0, None), mesh=mesh, axis="lanes")

    def loss(a, x, n):
        return run(x, n, a).sum()

    x = np.linspace(0.5, 1.2, 6, dtype=np.float32)  # four devices cannot share six alike
    n = np.arange(6, dtype=np.int32)
    slope = float(jax.jit(jax.grad(loss))(np.float32(2), x, n))
    print(f"gradient: {'right' if np.isclose(slope, (x**n).sum()) else slope}", flush=True)
    try:
        run(x, np.where(n == 4, 100, n), np.float32(2))
    except lw.LaneError as error:
        print(f"failure: {error}", flush=True)
    exchange()


def exchange() -> None:
    """A value goes to the other process and back, over sockets; they meet by JAX's coordinator."""
    me = launched()
    assert me is not None
    transport, edges = Tcp(me.meeting()), {(0, 1): 1, (1, 0): 1}
    session = transport.open(Opening(me.rank, 2, edges, "same", ("part a", "part b"), 60.0))
    number = jax.ShapeDtypeStruct((), np.int32)

    def there_and_back(token, x):
        if me.rank == 0:
            token = transport.send(token, x, target=1, number=0)
            return transport.receive(token, number, source=1, number=1)[1]
        token, x = transport.receive(token, number, source=0, number=0)
        return transport.send(token, x + 1, target=0, number=1)

    out = jax.jit(there_and_back)(session.token, np.int32(41))
    answer = "right" if me.rank or int(out) == 42 else out
    transport.close(session)
    print(f"exchange: {answer}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
