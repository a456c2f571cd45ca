"""Lanes over two devices of one CPU against one device, by `lw.vmap` with a mesh and by arrays that are split.

A device of its own has a machine of its own. Under `ticks` two of them can use two cores where one machine uses little
more than one; `native` uses all cores on one device already, so there two must not be slower.

    python benchmarks/lanes.py [--lanes 4096] [--repeats 9]
"""

from __future__ import annotations

import functools
import os

# Before JAX starts.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
)

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lanewise as lw
from _harness import Claim, compile_seconds, medians, report, same_answers, usual_arguments

TARGETS = {"ticks": ">= 1.6", "native": ">= 0.95"}


@lw.program
def early_exit(x, weights):
    """A deep network that a lane leaves when it is sure: matrix work and a trip count of each lane's own."""
    layer = 0
    while (layer < 64) & (jnp.abs(x).max() < 0.999):
        x = jnp.tanh(weights @ x)
        layer = layer + 1
    return x, layer


@lw.program
def collatz(n, step):
    steps = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += step
    return steps


@lw.program
def calls(n, one):
    if n < 2:
        return one
    return calls(n - 1, one) + calls(n - 2, one)


def main() -> None:
    parser = usual_arguments(__doc__, repeats=9)
    parser.add_argument("--lanes", type=int, default=4096)
    options = parser.parse_args()
    lanes = options.lanes
    random = np.random.default_rng(0)
    weights = (random.normal(size=(64, 64)) * 0.2).astype(np.float32)
    inputs = (random.normal(size=(lanes, 64)) * 0.1).astype(np.float32)
    depths = random.integers(5, 13, lanes).astype(np.int32)
    numbers = random.integers(1, 100_000, 64 * lanes).astype(np.int32)
    subjects: list[tuple[Any, tuple[Any, Any], str]] = [
        (early_exit, (inputs, weights), "ticks"),
        (calls, (depths, np.int32(1)), "ticks"),
        (collatz, (numbers, np.int32(1)), "ticks"),
        (collatz, (numbers, np.int32(1)), "native"),
    ]
    mesh = jax.make_mesh((2,), ("lanes",), axis_types=(AxisType.Auto,))
    split, whole = NamedSharding(mesh, P("lanes")), NamedSharding(mesh, P())
    claims: list[Claim] = []
    for program, (batch, shared), carrier in subjects:
        how: dict[str, Any] = {"in_axes": (0, None), "carrier": carrier}
        one = (jax.device_put(batch, jax.devices()[0]), jax.device_put(shared, jax.devices()[0]))
        two = (jax.device_put(batch, split), jax.device_put(shared, whole))
        alone, alone_took = compile_seconds(lw.vmap(program, **how), one)
        ways = {
            "mesh=": compile_seconds(lw.vmap(program, mesh=mesh, **how), two),
            "split arrays": compile_seconds(lw.vmap(program, **how), two),
        }
        for way, (run, took) in ways.items():
            share = same_answers(run(*two), alone(*one))
            if share < 1:
                raise AssertionError(f"{program.__name__}: only {share:.1%} of the lanes agree")
            contenders = {
                "one": functools.partial(alone, *one),
                "two": functools.partial(run, *two),
            }
            found = medians(contenders, (), options.repeats)
            name = f"lanes: {program.__name__}, {len(batch)} lanes, {carrier}, two devices, {way}"
            claims.append(Claim(name, found["two"], found["one"], TARGETS[carrier]))
            print(
                f"{name}: {1e3 * found['two']:.1f} ms (compiled in {took:.1f} s), one device"
                f" {1e3 * found['one']:.1f} ms ({alone_took:.1f} s), {claims[-1].ratio:.2f}x",
                flush=True,
            )
    report(claims)


if __name__ == "__main__":
    main()
