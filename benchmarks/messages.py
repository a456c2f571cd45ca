"""What a message between places costs, by its size: there and back, and one after the other in one direction.

The figures that a plan on paper needs (`docs/planning.md`). There is no peer here; `benchmarks/place` has that.

    python benchmarks/messages.py                       # two devices of this process
    lanewise launch -n 2 benchmarks/messages.py         # two processes
"""

from __future__ import annotations

import os

# Before JAX starts.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
)

import functools
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

import lanewise as lw

SIZES = (4, 1_024, 65_536, 1_048_576)
BYTES = 64 * 1_048_576  # how much is sent for a size, at most
MOST = 5_000


def there_and_back(x: jax.Array, count: int) -> jax.Array:
    """Each place adds to what the other sent: two messages an iteration, none of which can overlap."""

    def step(_: Any, x: jax.Array) -> jax.Array:
        return lw.placed(lambda x: x + 1, "b")(lw.placed(lambda x: x + 1, "a")(x))

    return jax.lax.fori_loop(0, count, step, x)


def one_way(x: jax.Array, count: int) -> jax.Array:
    """One place sends, the other adds up."""

    def step(_: Any, carry: Any) -> Any:
        x, total = carry
        x = lw.placed(lambda x: x + 1, "a")(x)
        return x, lw.placed(jnp.add, "b")(x, total)

    return jax.lax.fori_loop(0, count, step, (x, jnp.zeros_like(x)))[1]


def seconds(run: Any, x: jax.Array) -> float:
    jax.block_until_ready(run(x))
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        jax.block_until_ready(run(x))
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    ranks = int(os.environ.get("LANEWISE_SIZE", 0))
    if ranks not in (0, 2):
        sys.exit("this takes two processes: lanewise launch -n 2 benchmarks/messages.py")
    a, b = (0, 1) if ranks else jax.devices()[:2]
    for size in SIZES:
        x = jnp.zeros(size // 4)
        count = min(MOST, max(BYTES // size, 20))
        back, way = (
            seconds(lw.run(functools.partial(f, count=count), {"a": a, "b": b}), x) / count
            for f in (there_and_back, one_way)
        )
        if os.environ.get("LANEWISE_RANK", "0") == "0":
            print(
                f"{size:9,} bytes: there and back {1e6 * back:8.1f} us, one way {1e6 * way:8.1f} us a message"
                f" ({size / way / 1e6:8,.1f} MB/s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
