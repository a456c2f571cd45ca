"""Reverse mode through a loop that writes its state in place, one element an iteration.

    python benchmarks/writes.py [--sizes 4096 16384 65536] [--repeats 5] [--device cpu] [--plot]

The state is an array of n numbers; iteration i reads the one before and writes the i-th. JAX saves the whole array, or
makes a whole array's worth of zeros, for each of n iterations: its gradient is quadratic in n. Ours saves what an
iteration reads and overwrites, which is one number. A claim for each size, gradient over function, and one that the
gradient of 65,536 writes takes no more than 16 times that of 4,096, and half as much again.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import _plot
import lanewise as lw
from _harness import Claim, medians, report, use_device, usual_arguments

TARGET = "<= 5"
# JAX takes minutes beyond this.
MOST_FOR_JAX = 16_384


@lw.program
def recurrence(x):
    """x[i] becomes a smooth function of itself and of what x[i - 1] has become."""
    for i in jnp.arange(1, x.shape[0]):
        x = x.at[i].set(jnp.sin(x[i - 1]) * 0.9 + x[i])
    return jnp.sum(x**2)


def recurrence_jax(x: jax.Array) -> jax.Array:
    def write(i: Any, x: Any) -> Any:
        return x.at[i].set(jnp.sin(x[i - 1]) * 0.9 + x[i])

    return jnp.sum(lax.fori_loop(1, x.shape[0], write, x) ** 2)


def by_hand(x: np.ndarray) -> np.ndarray:
    """The gradient, in NumPy."""
    x = x.astype(np.float64)
    for i in range(1, len(x)):
        x[i] += 0.9 * np.sin(x[i - 1])
    adjoint = 2.0 * x
    for i in range(len(x) - 1, 0, -1):
        adjoint[i - 1] += 0.9 * np.cos(x[i - 1]) * adjoint[i]
    return adjoint


def measure(size: int, repeats: int) -> dict[str, float]:
    """Times of function and gradient, ours and, where it ends in reasonable time, JAX's."""
    x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    contenders = {"function": jax.jit(recurrence), "gradient": jax.jit(lw.grad(recurrence))}
    if size <= MOST_FOR_JAX:
        contenders |= {
            "JAX function": jax.jit(recurrence_jax),
            "JAX gradient": jax.jit(jax.grad(recurrence_jax)),
        }
    expected = by_hand(x)
    for name, fun in contenders.items():
        if name.endswith("gradient"):
            np.testing.assert_allclose(fun(x), expected, rtol=1e-3, atol=1e-3)
    return medians(contenders, (x,), repeats)


def main() -> None:
    parser = usual_arguments(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 16_384, 65_536])
    options = parser.parse_args()
    use_device(options.device)

    claims: list[Claim] = []
    gradients: dict[int, float] = {}
    for size in options.sizes:
        took = measure(size, options.repeats)
        gradients[size] = took["gradient"]
        shown = ", ".join(f"{name} {1e3 * seconds:.3f} ms" for name, seconds in took.items())
        print(f"{size:>7,} writes: {shown}", flush=True)
        name = f"writes, {jax.default_backend()}, {size:,} in place"
        claims.append(Claim(f"{name}: overhead", took["gradient"], took["function"], TARGET))
        if "JAX gradient" in took:
            claims.append(
                Claim(f"{name}: gradient, JAX", took["gradient"], took["JAX gradient"], ">= 1")
            )
    least, most = min(gradients), max(gradients)
    if most > least:
        growth = most / least
        claims.append(
            Claim(
                f"writes, {jax.default_backend()}: gradient of {most:,} over {least:,}",
                gradients[most],
                gradients[least],
                f"<= {1.5 * growth:g}",
            )
        )
    if options.plot:
        curve = (list(gradients), list(gradients.values()))
        _plot.lines("writes", "gradient through in-place writes", {"ours": curve}, "writes")
    report(claims)


if __name__ == "__main__":
    main()
