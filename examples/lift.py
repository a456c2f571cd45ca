"""Code that is already in JAX: `lw.lift` makes a program of it, without its source.

The function below could come from any library: Newton's method under `lax.while_loop`. Its hard starting
points need many more iterations than its easy ones.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw


def newton_root(target: jax.Array, guess: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A root of x**3 + x = target."""

    def unfinished(carry):
        x, steps = carry
        return (jnp.abs(x**3 + x - target) > 1e-3) & (steps < 200)

    def improve(carry):
        x, steps = carry
        return x - (x**3 + x - target) / (3.0 * x**2 + 1.0), steps + 1

    return lax.while_loop(unfinished, improve, (guess, 0))


def main() -> None:
    targets = jnp.array([0.0, 2.0, 10.0, 30.0])
    guesses = jnp.array([0.0, 1.5, -50.0, 1e6])

    roots, steps = jax.vmap(lw.lift(newton_root))(targets, guesses)
    for target, root, n in zip(targets, roots, steps):
        print(f"x^3 + x = {target:5.1f} at x = {root:.4f}, found in {n} steps")

    expected, _ = jax.vmap(newton_root)(targets, guesses)
    np.testing.assert_allclose(roots, expected, rtol=1e-5)

    # What the machine did for it.
    _, stats = lw.vmap(newton_root, schedule="sweep", stats=True)(targets, guesses)
    print(stats)


if __name__ == "__main__":
    main()
