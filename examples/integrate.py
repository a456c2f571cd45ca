"""Adaptive Simpson quadrature as the textbook has it: recursive, splitting only where it must.

Every lane integrates its own function; the sharp ones recurse deeper. No lane's answer depends on its
neighbours, and none waits at every level for the slowest.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw


def peak(x, sharpness):
    """A bump of unit area around 0.3; the larger the sharpness, the narrower."""
    return sharpness / (jnp.pi * (1.0 + (sharpness * (x - 0.3)) ** 2))


def simpson(a, b, sharpness):
    middle = 0.5 * (a + b)
    values = peak(a, sharpness) + 4.0 * peak(middle, sharpness) + peak(b, sharpness)
    return (b - a) / 6.0 * values


@lw.program
def integrate(a, b, sharpness, tolerance):
    middle = 0.5 * (a + b)
    whole = simpson(a, b, sharpness)
    left, right = simpson(a, middle, sharpness), simpson(middle, b, sharpness)
    if jnp.abs(left + right - whole) < 15.0 * tolerance or b - a < 1e-4:
        return left + right + (left + right - whole) / 15.0
    return integrate(a, middle, sharpness, 0.5 * tolerance) + integrate(
        middle, b, sharpness, 0.5 * tolerance
    )


def main() -> None:
    sharpness = jnp.array([1.0, 10.0, 100.0, 1000.0])
    run = jax.vmap(integrate, in_axes=(None, None, 0, None))
    answers = run(0.0, 1.0, sharpness, 1e-5)
    exact = (np.arctan(0.7 * sharpness) + np.arctan(0.3 * sharpness)) / np.pi
    for s, answer, truth in zip(sharpness, answers, exact):
        print(f"sharpness {s:7.1f}: {answer:.5f}, exact {truth:.5f}")
    np.testing.assert_allclose(answers, exact, atol=1e-3)


if __name__ == "__main__":
    main()
