"""A batch in plain Python control flow, beside what `jax.vmap` makes of it.

Three programs, each written for one example:

* `settle`: a double loop around a matrix product; every lane has its own number of inputs, and for each
  input iterates until its state has settled;
* `collatz`: scalars only, trip counts from 0 to 261;
* `ackermann`: recursion, which `jax.vmap` cannot express at all.

For the first two the `lax` form that `jax.vmap` needs is beside the program: compare how they read.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw

LANES, WIDTH, INPUTS = 256, 96, 12


@lw.program
def settle(inputs, count, weights):
    state = jnp.zeros(WIDTH)
    total = 0
    for i in range(count):
        change = 1.0
        while change > 1e-3:
            new = jnp.tanh(state @ weights + inputs[i])
            change = jnp.max(jnp.abs(new - state))
            state = new
            total += 1
            if total > 400:
                return state, total
    return state, total


def settle_lax(inputs: jax.Array, count: jax.Array, weights: jax.Array) -> Any:
    def unsettled(carry: Any) -> jax.Array:
        _, total, change = carry
        return (change > 1e-3) & (total <= 400)

    def step(i: jax.Array, carry: Any) -> Any:
        state, total, _ = carry
        new = jnp.tanh(state @ weights + inputs[i])
        return new, total + 1, jnp.max(jnp.abs(new - state))

    def body(carry: Any) -> Any:
        i, state, total = carry
        start = (state, total, jnp.float32(1.0))
        state, total, _ = lax.while_loop(unsettled, lambda c: step(i, c), start)
        return i + 1, state, total

    def more(carry: Any) -> jax.Array:
        i, _, total = carry
        return (i < count) & (total <= 400)

    _, state, total = lax.while_loop(more, body, (0, jnp.zeros(WIDTH), 0))
    return state, total


@lw.program
def collatz(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


def collatz_lax(n: jax.Array) -> jax.Array:
    def step(carry: Any) -> Any:
        n, steps = carry
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return lax.while_loop(lambda carry: carry[0] != 1, step, (n, 0))[1]


@lw.program
def ackermann(m, n):
    if m == 0:
        return n + 1
    if n == 0:
        return ackermann(m - 1, 1)
    return ackermann(m - 1, ackermann(m, n - 1))


def settle_arguments() -> tuple[np.ndarray, ...]:
    """Inputs of varying strength: the weak ones settle slowly, the strong ones at once."""
    rng = np.random.default_rng(0)
    strength = rng.lognormal(0.0, 1.5, (LANES, INPUTS, 1))
    inputs = strength * rng.standard_normal((LANES, INPUTS, WIDTH))
    weights = 0.95 * np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]
    count = rng.integers(1, INPUTS + 1, LANES)
    return inputs.astype(np.float32), count.astype(np.int32), weights.astype(np.float32)


def seconds(fun: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(fun(*arguments))
    return time.perf_counter() - start


def race(name: str, ours: Any, peer: Any, arguments: tuple[Any, ...], steps_apart: int = 0) -> None:
    """Time both in turns and check that they agree, in what they count but for `steps_apart`."""
    ours, peer = jax.jit(ours), jax.jit(peer)
    first = seconds(ours, arguments), seconds(peer, arguments)
    turns = [(seconds(ours, arguments), seconds(peer, arguments)) for _ in range(7)]
    mine, theirs = (1e3 * statistics.median(times) for times in zip(*turns))
    for a, b in zip(jax.tree.leaves(ours(*arguments)), jax.tree.leaves(peer(*arguments))):
        counts = jnp.issubdtype(a.dtype, jnp.integer)
        np.testing.assert_allclose(
            a, b, rtol=0 if counts else 1e-4, atol=steps_apart if counts else 1e-4
        )
    print(f"{name}\n  first call   lanewise {first[0]:8.2f} s    jax.vmap {first[1]:8.2f} s")
    print(f"  then         lanewise {mine:8.2f} ms   jax.vmap {theirs:8.2f} ms")
    print(f"  jax.vmap ÷ lanewise = {theirs / mine:.2f}; the answers agree\n", flush=True)


def main() -> int:
    print(f"JAX {jax.__version__} on {jax.devices()[0]}, {LANES} lanes unless said\n")
    axes = (0, 0, None)
    race(
        "settle: nested loops around a matrix product",
        jax.vmap(settle, in_axes=axes),
        jax.vmap(settle_lax, in_axes=axes),
        settle_arguments(),
        # A change that is on the threshold rounds to either side of it, as XLA orders the sums.
        steps_apart=1,
    )
    numbers = jnp.arange(1, 10_000, dtype=jnp.int32)
    race("collatz: 1 to 9,999", jax.vmap(collatz), jax.vmap(collatz_lax), (numbers,))

    m, n = jnp.array([0, 1, 2, 2, 3]), jnp.array([5, 4, 3, 6, 2])
    answers = jax.vmap(ackermann)(m, n)
    print("ackermann: recursion, which jax.vmap cannot express")
    with jax.disable_jit():
        for i in range(len(m)):
            plain = ackermann(int(m[i]), int(n[i]))
            print(f"  ackermann({m[i]}, {n[i]}) = {answers[i]}   plain Python: {plain}")
            assert int(answers[i]) == plain
    return 0


if __name__ == "__main__":
    sys.exit(main())
