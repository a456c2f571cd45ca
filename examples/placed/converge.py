"""A `while` over two places, until both have converged: heat in a plate, each half of it at a place of its own.

The plate is a grid whose rim has a given temperature; inside, each point is the mean of its four neighbours
(Laplace's equation, by Jacobi's method). In an iteration each half sends its edge to the other, and its largest
change to where the test is made. The outcome of the test is a value like any other and goes to the other half: nothing
else is asked, and no host takes part in the loop.
"""

from __future__ import annotations

from where import places, same, show  # isort: skip

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw

SIZE = 32  # points each way


def smooth(half: jax.Array, above: jax.Array, below: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The next values of a half between two rows, and the largest change. It is cold to the left and to the right."""
    around = jnp.pad(jnp.concatenate([above[None], half, below[None]]), ((0, 0), (1, 1)))
    new = 0.25 * (around[:-2, 1:-1] + around[2:, 1:-1] + around[1:-1, :-2] + around[1:-1, 2:])
    return new, jnp.max(jnp.abs(new - half))


@lw.program
def plate(hot, cold, least):
    """The temperatures of both halves, hot above and cold below, and how many iterations it took."""
    upper = lower = jnp.zeros((SIZE // 2, SIZE))
    change, count = jnp.float32(jnp.inf), 0
    while change > least:
        edge, other = upper[-1], lower[0]
        upper, first = lw.placed(smooth, "upper")(upper, hot, other)
        lower, second = lw.placed(smooth, "lower")(lower, edge, cold)
        change = jnp.maximum(first, second)
        count += 1
    return upper, lower, count


def solved(hot: float) -> np.ndarray:
    """The same temperatures by the linear system."""
    line = 2 * np.eye(SIZE) - np.eye(SIZE, k=1) - np.eye(SIZE, k=-1)
    system = np.kron(line, np.eye(SIZE)) + np.kron(np.eye(SIZE), line)
    right = np.zeros((SIZE, SIZE))
    right[0] = hot
    return np.linalg.solve(system, right.ravel()).reshape(SIZE, SIZE)


def main(least: float = 1e-4) -> float:
    """How far the temperatures are from those of the linear system."""
    first, second = places(2)
    run = lw.run(plate, {"upper": first, "lower": second})
    given = jnp.full(SIZE, 100.0), jnp.zeros(SIZE), jnp.float32(least)
    traffic = run.dry_run(*given)
    upper, lower, count = jax.device_get(run(*given))
    same((upper, lower, count), jax.jit(plate)(*given))

    show(traffic, "\n")
    off = np.abs(np.concatenate([upper, lower]) - solved(100.0)).max()
    show(
        f"{count} iterations, {traffic.messages / count:.2f} messages for each; off by {off:.3f} of 100 degrees"
    )
    return float(off)


if __name__ == "__main__":
    main()
