"""LBM: a lattice-Boltzmann simulation of flow in a cavity, differentiated in its first state.

Parboil's `lbm` as Schenck et al. 2022 differentiate it: 19 densities a cell stream to the neighbours and collide,
walls bounce them back, a moving lid drags them along; the derivative is that of a sum of all densities after the last
step, with random weights: their plain sum is conserved, and its derivative is one everywhere. The original is 120 x
120 x 150 cells and 100 steps in float32, 17 GB of states; here the steps are the same and the cells fewer. Storage is
periodic, with walls around.

A step's nineteen densities are combined by one small matrix into density and momentum and spread by another. The
state after each step is saved and the step re-executed on the way back; the strip-mined variant keeps the square root
of the number of steps and runs each strip again. JAX does the same if asked to, by `jax.checkpoint` around a step or a
strip of them, and PyTorch by its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from ad.case import Case, Entry, Pair, Torch, by_autograd

OMEGA = np.float32(1.95)
# Rest, six neighbours across faces, twelve across edges: each pair of opposites side by side.
_HALF = [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
_HALF += [(1, 1, 0), (1, -1, 0), (1, 0, 1), (1, 0, -1), (0, 1, 1), (0, 1, -1)]
DIRECTIONS = np.array([(0, 0, 0)] + [d for h in _HALF for d in (h, tuple(-x for x in h))])
WEIGHTS = np.array([1 / 3] + [1 / 18] * 6 + [1 / 36] * 12, np.float32)
LID = np.array([0.005, 0.002, 0.0], np.float32)
FLUID, WALL, MOVING = 0, 1, 2


@dataclass(frozen=True)
class Lattice:
    """The small matrices of a step, as arrays of one system.

    Rows are repeated and summed by products with columns of ones, whose adjoints are products too: XLA's own sums
    down a column of a wide array, which are what broadcasts become on the way back, are slow.
    """

    total: Any  # (1, 19): the density of a cell
    moments: Any  # (3, 19): its momentum
    directions: Any  # (19, 3)
    spread: Any  # (19, 1)
    weights: Any  # (19, 1)
    across: Any  # (3, 1)
    energy: Any  # (1, 3)
    lid: Any  # (3, 1)

    @staticmethod
    def of(array: Callable[[np.ndarray], Any]) -> Lattice:
        directions = DIRECTIONS.astype(np.float32)
        parts = np.ones((1, 19)), directions.T, directions, np.ones((19, 1))
        more = (OMEGA * WEIGHTS)[:, None], np.ones((3, 1)), np.full((1, 3), 1.5), LID[:, None]
        return Lattice(*(array(np.ascontiguousarray(x, np.float32)) for x in (*parts, *more)))


def collided(cells: Any, flags: Any, lattice: Lattice, xp: Any) -> Any:
    """One step's collision: (19, cells) densities towards equilibrium, bounced back at walls."""
    density = lattice.total @ cells
    momentum = lattice.moments @ cells
    moves = flags == MOVING
    speed = xp.where(moves, lattice.lid, momentum * (lattice.across @ (1.0 / density)))
    along = lattice.directions @ speed
    energy = lattice.energy @ (speed * speed)
    shape = 1.0 + along * (4.5 * along + 3.0) - lattice.spread @ energy
    settled = (lattice.weights @ density) * shape
    flowing = (1.0 - float(OMEGA)) * cells + settled
    back = xp.flip(cells[1:].reshape(9, 2, -1), (1,)).reshape(18, -1)
    return xp.where(flags == WALL, xp.concatenate([cells[:1], back]), flowing)


def shifts(shape: tuple[int, ...]) -> list[int]:
    """How far each density moves among cells that stand in one row, as the original stores them."""
    return [int(x * shape[1] * shape[2] + y * shape[2] + z) for x, y, z in DIRECTIONS]


def step(cells: Any, flags: Any) -> jax.Array:
    """Collide, then each density moves one cell in its own direction."""
    # Split and not indexed: the adjoint of nineteen rows is then one array and not a sum of nineteen.
    rows = jnp.split(collided(cells, flags.reshape(-1), Lattice.of(jnp.asarray), jnp), 19)
    return jnp.concatenate([jnp.roll(row, by, 1) for row, by in zip(rows, shifts(flags.shape))])


# -- ours --------------------------------------------------------------------------------------------


@lw.program
def total(cells, flags, clock, cotangent):
    """The weighted sum of all densities after the last step."""
    for _ in clock:
        cells = step(cells, flags)
    return jnp.vdot(cotangent, cells)


# -- plain JAX ---------------------------------------------------------------------------------------


def total_jax(cells: Any, flags: Any, clock: Any, cotangent: Any) -> jax.Array:
    one = jax.checkpoint(lambda cells, _: (step(cells, flags), None))
    return jnp.vdot(cotangent, lax.scan(one, cells, clock)[0])


def total_in_strips(cells: Any, flags: Any, clock: Any, cotangent: Any) -> jax.Array:
    """In strips as long as their number, and what is left over as a shorter one."""
    one = jax.checkpoint(lambda cells, _: (step(cells, flags), None))
    strip = jax.checkpoint(lambda cells, clock: (lax.scan(one, cells, clock)[0], None))
    length = math.isqrt(clock.shape[0])
    number = clock.shape[0] // length
    strips = clock[: number * length].reshape(number, length)
    cells, _ = lax.scan(strip, cells, strips)
    cells, _ = strip(cells, clock[number * length :])
    return jnp.vdot(cotangent, cells)


# -- PyTorch -----------------------------------------------------------------------------------------


def torch_pair(torch: Any, compile: Any, strips: bool) -> Torch:
    from torch.utils.checkpoint import checkpoint

    @functools.cache
    def lattice(device: Any) -> Lattice:
        return Lattice.of(lambda x: torch.as_tensor(x, device=device))

    def step(cells: Any, flags: Any, shape: tuple[int, ...]) -> Any:
        rows = collided(cells, flags, lattice(cells.device), torch).unbind(0)
        return torch.stack([row.roll(shift) for row, shift in zip(rows, shifts(shape))])

    step = compile(step)

    def run(cells: Any, flags: Any, shape: tuple[int, ...], steps: int) -> Any:
        for _ in range(steps):
            cells = step(cells, flags, shape)
        return cells

    def primal(cells: Any, flags: Any, clock: Any, cotangent: Any) -> Any:
        shape, flat, steps = tuple(flags.shape), flags.reshape(-1), len(clock)
        if strips and cells.requires_grad:
            length = math.isqrt(steps)
            for begin in range(0, steps, length):
                some = min(length, steps - begin)
                cells = checkpoint(run, cells, flat, shape, some, use_reentrant=False)
        else:
            cells = run(cells, flat, shape, steps)
        return torch.vdot(cotangent.reshape(-1), cells.reshape(-1))

    return by_autograd(torch, primal, (0,))


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
    first = grid.reshape(19, -1).astype(np.float32)
    cotangent = rng.standard_normal(first.shape).astype(np.float32)
    return first, flags, np.arange(steps, dtype=np.int32), cotangent


def entry(name: str, target: str, strips: bool, memory: str | None) -> Entry:
    def case(small: bool) -> Case:
        checkpoints = "sqrt" if strips else "all"
        peer = total_in_strips if strips else total_jax
        return Case(
            Pair(total, lw.grad(total, checkpoints=checkpoints)),
            Pair(peer, jax.grad(peer)),
            functools.partial(torch_pair, strips=strips),
            data((4, 5, 6), 11) if small else data(CELLS, STEPS),
            rtol=1e-3,
            atol=1e-4,
        )

    size = f"{'x'.join(map(str, CELLS))}, {STEPS} steps"
    return Entry(name, size, case, target, memory=memory)


CELLS, STEPS = (24, 24, 30), 100
ENTRIES = (
    entry("LBM", "<= 3.4", False, None),
    entry("LBM strip-mined", "<= 4.5", True, "<= 9"),
)
