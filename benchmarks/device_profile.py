"""What a CPU's profile (`core/profile.py`) says of products and of moving elements, measured.

A lane's operation is counted as `blocks/equations.py` counts it, and its unit is an operation of elementwise arithmetic
of a single lane. It prints, for products of a vector and a shared matrix, what an operation costs a single lane
(`native`) and all lanes together (one matrix product of XLA's); and what it costs to take an element of a lane out of a
register by index, and to put it back.

    python benchmarks/device_profile.py [--lanes 2048] [--repeats 7]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import lanewise as lw

TURNS = 20


def seconds(run: Callable[..., Any], *args: Any, repeats: int) -> float:
    """The median CPU time of a call on all threads."""
    for _ in range(3):
        jax.block_until_ready(run(*args))
    found = []
    for _ in range(repeats):
        began = time.process_time()
        jax.block_until_ready(run(*args))
        found.append(time.process_time() - began)
    return statistics.median(found)


def arithmetic(x: Any) -> Any:
    return lax.fori_loop(0, 50 * TURNS, lambda i, y: y * 1.0001 + 0.25 / (1.0 + y * y), x)


def products(x: Any, weights: Any) -> Any:
    return lax.fori_loop(0, TURNS, lambda i, y: (y @ weights) * 0.5, x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    lanes, repeats = given.lanes, given.repeats

    def timed(run: Callable[..., Any], *args: Any) -> float:
        return seconds(run, *args, repeats=repeats)

    alone = lw.vmap(lw.lift(arithmetic), carrier="native")
    unit = timed(jax.jit(alone), jnp.linspace(0.1, 1.0, lanes)) / (lanes * 50 * TURNS * 5)
    print(f"an operation of a single lane: {unit * 1e9:.3f} ns of CPU time")
    for size in (16, 32, 64, 128, 256):
        key = jax.random.key(0)
        x, weights = jax.random.normal(key, (lanes, size)), jax.random.normal(key, (size, size))
        weights = weights / size**0.5
        operations = lanes * TURNS * 2 * size * size
        native = lw.vmap(lw.lift(products), in_axes=(0, None), carrier="native")
        together = jax.vmap(products, in_axes=(0, None))
        one, all_ = timed(jax.jit(native), x, weights), timed(jax.jit(together), x, weights)
        print(
            f"product of {size:3} x {size}: alone {one / operations / unit:.3f}, together"
            f" {all_ / operations / unit:.3f} of an operation: {one / all_:.1f} times"
        )
    for size in (1, 8, 64):
        rows = jnp.arange(lanes)[::-1]
        values = jnp.ones((4 * lanes, size))

        def moved(values: Any, rows: Any) -> Any:
            def turn(i: Any, values: Any) -> Any:
                taken = values.at[rows].get(mode="clip")
                return values.at[rows].set(taken * 1.5, mode="drop", unique_indices=True)

            return lax.fori_loop(0, TURNS, turn, values)

        cost = timed(jax.jit(moved), values, rows) / (lanes * size * TURNS)
        print(f"taking {size:2} out by index, and putting back: {cost / unit:.1f} operations each")


if __name__ == "__main__":
    main()
