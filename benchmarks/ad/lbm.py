"""LBM: a lattice-Boltzmann simulation of flow in a cavity, differentiated in its first state.

Parboil's `lbm` as Schenck et al. 2022 differentiate it: 19 densities a cell stream to the neighbours and collide,
walls bounce them back, a moving lid drags them along; the derivative is that of the sum of all densities after
the last step. The original is 120 x 120 x 150 cells and 100 steps in float32, 17 GB of states; here the steps are the
same and the cells fewer. Storage is periodic, with walls around.

A step's nineteen densities are combined by one small matrix into density and momentum and spread by another. The
state after each step is saved and the step re-executed on the way back; the strip-mined variant keeps the square
root of the number of steps and runs each strip again.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from ad.case import Case, Entry, Pair

OMEGA = np.float32(1.95)
# Rest, six neighbours across faces, twelve across edges: each pair of opposites side by side.
_HALF = [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
_HALF += [(1, 1, 0), (1, -1, 0), (1, 0, 1), (1, 0, -1), (0, 1, 1), (0, 1, -1)]
DIRECTIONS = np.array([(0, 0, 0)] + [d for h in _HALF for d in (h, tuple(-x for x in h))])
WEIGHTS = np.array([1 / 3] + [1 / 18] * 6 + [1 / 36] * 12, np.float32)
LID = np.array([0.005, 0.002, 0.0], np.float32)
FLUID, WALL, MOVING = 0, 1, 2


def column(values: Any, xp: Any) -> Any:
    """A matrix of one column: rows are repeated and summed by products, whose adjoints are products too.

    XLA's own sums down a column of a wide array, which are what broadcasts become on the way back, are slow.
    """
    return xp.asarray(np.asarray(values, np.float32)[:, None])


def collided(cells: Any, flags: Any, xp: Any) -> Any:
    """One step's collision: (19, cells) densities towards equilibrium, bounced back at walls."""
    density = column(np.ones(19), xp).T @ cells
    momentum = xp.asarray(DIRECTIONS.T.astype(np.float32)) @ cells
    still = xp.where(flags == MOVING, xp.asarray(LID)[:, None], 0.0)
    speed = still + xp.where(
        flags == MOVING, 0.0, momentum * (column(np.ones(3), xp) @ (1.0 / density))
    )
    along = xp.asarray(DIRECTIONS.astype(np.float32)) @ speed
    energy = column(np.full(3, 1.5), xp).T @ (speed * speed)
    shape = 1.0 + along * (4.5 * along + 3.0) - column(np.ones(19), xp) @ energy
    settled = (column(OMEGA * WEIGHTS, xp) @ density) * shape
    flowing = (1.0 - float(OMEGA)) * cells + settled
    back = xp.flip(cells[1:].reshape(9, 2, -1), (1,)).reshape(18, -1)
    return xp.where(flags == WALL, xp.concatenate([cells[:1], back]), flowing)


def shifts(shape: tuple[int, ...]) -> list[int]:
    """How far each density moves among cells that stand in one row, as the original stores them."""
    return [int(x * shape[1] * shape[2] + y * shape[2] + z) for x, y, z in DIRECTIONS]


def step(cells: Any, flags: Any) -> jax.Array:
    """Collide, then each density moves one cell in its own direction."""
    # Split and not indexed: the adjoint of nineteen rows is then one array and not a sum of nineteen.
    rows = jnp.split(collided(cells, flags.reshape(-1), jnp), 19)
    return jnp.concatenate([jnp.roll(row, by, 1) for row, by in zip(rows, shifts(flags.shape))])


# -- ours --------------------------------------------------------------------------------------------


@lw.program
def total(cells, flags, clock):
    """The sum of all densities after the last step."""
    for _ in clock:
        cells = step(cells, flags)
    return jnp.sum(cells)


# -- plain JAX ---------------------------------------------------------------------------------------


def total_jax(cells: Any, flags: Any, clock: Any) -> jax.Array:
    return jnp.sum(lax.scan(lambda cells, _: (step(cells, flags), None), cells, clock)[0])


# -- PyTorch -----------------------------------------------------------------------------------------


def torch_pair(torch: Any) -> Pair:
    def primal(cells: Any, flags: Any, clock: Any) -> Any:
        by = shifts(flags.shape)
        for _ in range(len(clock)):
            with torch.device(cells.device):
                rows = collided(cells, flags.reshape(-1), torch).unbind(0)
            cells = torch.stack([row.roll(shift) for row, shift in zip(rows, by)])
        return cells.sum()

    def gradient(cells: Any, flags: Any, clock: Any) -> Any:
        wanted = cells.clone().requires_grad_()
        return torch.autograd.grad(primal(wanted, flags, clock), wanted)[0]

    return Pair(primal, gradient)


# -- data --------------------------------------------------------------------------------------------


def data(shape: tuple[int, int, int], steps: int) -> tuple[np.ndarray, ...]:
    """At rest, but for a small disturbance; walls all around, the lid under the uppermost layer."""
    rng = np.random.default_rng(10)
    grid = WEIGHTS[:, None, None, None] * (1.0 + 0.01 * rng.random((19, *shape)))
    flags = np.full(shape, FLUID, np.int32)
    flags[:, :, -2] = MOVING
    for axis in range(3):
        for end in (0, -1):
            flags[tuple(end if i == axis else slice(None) for i in range(3))] = WALL
    return grid.reshape(19, -1).astype(np.float32), flags, np.arange(steps, dtype=np.int32)


def entry(name: str, target: str, checkpoints: str, memory: str | None) -> Entry:
    def case(small: bool) -> Case:
        return Case(
            Pair(total, lw.grad(total, checkpoints=checkpoints)),
            Pair(total_jax, jax.grad(total_jax)),
            torch_pair if checkpoints == "all" else None,
            data((4, 5, 6), 9) if small else data(CELLS, STEPS),
            rtol=1e-3,
            atol=1e-4,
        )

    size = f"{'x'.join(map(str, CELLS))}, {STEPS} steps"
    return Entry(name, size, case, target, memory=memory)


CELLS, STEPS = (24, 24, 30), 100
ENTRIES = (
    entry("LBM", "<= 3.4", "all", None),
    entry("LBM strip-mined", "<= 4.5", "sqrt", "<= 9"),
)
