"""Reverse mode through 10,000 iterations of a loop of unknown length, with a bounded number of states kept.

    python benchmarks/checkpoints.py [--iterations 10000] [--repeats 5] [--device cpu]

The state is 2,048 numbers. Equinox's checkpointed loop keeps 141 of them for that many iterations, 1.1 MB, and
needs a bound; ours keeps 128 and needs none. Memory is XLA's own figure for what a compiled gradient
takes beside its arguments and results. The last lines are what Equinox's loop refuses: forward mode, and a gradient
of a gradient, each against a plain `lax.scan`.
"""

from __future__ import annotations

import argparse
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from _harness import Claim, medians, report, use_device

STATE, STATES = 2048, 128


def advance(x: Any, w: Any) -> Any:
    """A step of a damped, driven system: smooth, and cheap beside what it would cost to keep its state."""
    return x + 1e-3 * (jnp.sin(w * x) - 0.1 * x)


@lw.program
def simulate(x, w, iterations):
    i = 0
    while i < iterations:
        x = advance(x, w)
        i += 1
    return jnp.sum(x**2)


def simulate_equinox(most: int) -> Any:
    def run(x: Any, w: Any, iterations: Any) -> Any:
        _, x = eqxi.while_loop(
            lambda state: state[0] < iterations,
            lambda state: (state[0] + 1, advance(state[1], w)),
            (jnp.int32(0), x),
            max_steps=most,
            kind="checkpointed",
        )
        return jnp.sum(x**2)

    return run


def simulate_scan(length: int) -> Any:
    """For the checks: JAX's own, all states kept."""

    def run(x: Any, w: Any, _: Any) -> Any:
        return jnp.sum(lax.scan(lambda x, _: (advance(x, w), None), x, length=length)[0] ** 2)

    return run


def memory(compiled: Any) -> int:
    return compiled.memory_analysis().temp_size_in_bytes


def higher_orders(length: int) -> None:
    """Forward mode, and the gradient of a gradient's size, against a scan of the same length."""
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(8).astype(np.float32) for _ in range(2))
    direction = rng.standard_normal(8).astype(np.float32)

    def twice(fun: Any) -> Any:
        return jax.grad(lambda w: jnp.sum(jax.grad(fun)(x, w, length) ** 2))

    scan = simulate_scan(length)
    found = jax.jvp(lambda x: simulate(x, w, length), (x,), (direction,))
    expected = jax.jvp(lambda x: scan(x, w, length), (x,), (direction,))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    print(f"jvp over {length} iterations agrees with lax.scan")
    np.testing.assert_allclose(twice(simulate)(w), twice(scan)(w), rtol=1e-2, atol=1e-3)
    print(f"grad of grad over {length} iterations agrees with lax.scan", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "gpu"))
    options = parser.parse_args()
    use_device(options.device)

    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(STATE).astype(np.float32) for _ in range(2))
    arguments = jax.device_put((x, w, np.int32(options.iterations)))
    equinox = simulate_equinox(options.iterations)
    compiled = {
        name: jax.jit(fun).lower(*arguments).compile()
        for name, fun in {
            "function": simulate,
            "gradient": lw.grad(simulate, argnums=(0, 1), checkpoints=STATES),
            "Equinox function": equinox,
            "Equinox gradient": jax.grad(equinox, argnums=(0, 1)),
        }.items()
    }
    expected = jax.jit(jax.grad(simulate_scan(options.iterations), argnums=(0, 1)))(*arguments)
    for name in ("gradient", "Equinox gradient"):
        for mine, theirs in zip(compiled[name](*arguments), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-2, atol=1e-3)
    took = medians(compiled, arguments, options.repeats)
    sizes = {name: memory(compiled[name]) for name in ("gradient", "Equinox gradient")}
    ours, theirs = (f"{1e3 * took[name]:.1f} ms, {sizes[name] / 1e6:.2f} MB" for name in sizes)
    print(f"function {1e3 * took['function']:.1f} ms, gradient {ours}")
    overhead = took["Equinox gradient"] / took["Equinox function"]
    print(f"Equinox: {1e3 * took['Equinox function']:.1f} ms, {theirs}, {overhead:.2f}x")
    higher_orders(min(options.iterations, 1000))

    label = f"checkpoints, {jax.default_backend()}, {options.iterations:,} iterations"
    report(
        [
            Claim(f"{label}: overhead", took["gradient"], took["function"], "<= 6"),
            Claim(
                f"{label}: bytes, Equinox",
                float(sizes["gradient"]),
                float(sizes["Equinox gradient"]),
                "<= 1",
            ),
            Claim(
                f"{label}: gradient, Equinox", took["gradient"], took["Equinox gradient"], ">= 1"
            ),
        ]
    )


if __name__ == "__main__":
    main()
