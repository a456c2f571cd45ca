"""XSBench: macroscopic cross sections by lookups in tables, differentiated in the tables.

The unionized grid of the original: a lookup's energy is found among all grid points of all nuclides by bisection, an
index says where it is on each nuclide's own grid, five cross sections are interpolated there and summed over the
nuclides of the material, weighted by concentration. The derivative is that of a sum of all answers, with random
weights, in the nuclides' grids, as Schenck et al. 2022 take it (17 million lookups on a GPU; here 100,000 on 11,303
grid points a nuclide). float64. Which grid points a lookup reads is an integer and has no derivative.

Ours finds the place by a program of one lookup with a real loop. A pair reads the two grid points it is
between as one window of the table, so that the adjoint is one histogram of windows.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from ad.case import Case, Entry, Pair, Torch, cotangent, weighted_sum
from ad.reactor import NUCLIDES, draw
from lanewise import arrays


def interpolated(low: Any, high: Any, energy: Any) -> Any:
    """Columns are the energy and five cross sections."""
    share = (high[..., 0] - energy) / (high[..., 0] - low[..., 0])
    return high[..., 1:] - share[..., None] * (high[..., 1:] - low[..., 1:])


# -- ours --------------------------------------------------------------------------------------------


@lw.program
def locate(energy, grid):
    """The last point of the grid that is not above the energy."""
    low, high = 0, grid.shape[0] - 1
    while high - low > 1:
        middle = (low + high) // 2
        if grid[middle] > energy:
            high = middle
        else:
            low = middle
    return low


def lookups(
    table: Any,
    energies: Any,
    union: Any,
    index: Any,
    lookup: Any,
    nuclide: Any,
    concentration: Any,
) -> Any:
    """The five macroscopic cross sections of each lookup; `table` is (nuclides, points, 6)."""
    place = lw.vmap(locate, in_axes=(0, None))(energies, union)
    flat = table.reshape(-1, table.shape[-1])
    start = nuclide * table.shape[1] + index[place[lookup], nuclide]
    pair = jax.vmap(lambda i: lax.dynamic_slice(flat, (i, i * 0), (2, flat.shape[1])))(start)
    micro = interpolated(pair[:, 0], pair[:, 1], energies[lookup])
    return arrays.histogram(jnp.add, lookup, micro * concentration[:, None], energies.shape[0])


# -- plain JAX ---------------------------------------------------------------------------------------


def lookups_jax(
    table: Any,
    energies: Any,
    union: Any,
    index: Any,
    lookup: Any,
    nuclide: Any,
    concentration: Any,
) -> Any:
    place = jnp.clip(jnp.searchsorted(union, energies, side="right") - 1, 0, union.shape[0] - 2)
    low = index[place[lookup], nuclide]
    micro = interpolated(table[nuclide, low], table[nuclide, low + 1], energies[lookup])
    return jax.ops.segment_sum(
        micro * concentration[:, None], lookup, energies.shape[0], indices_are_sorted=True
    )


# -- PyTorch -----------------------------------------------------------------------------------------


def torch_pair(torch: Any, compile: Any) -> Torch:
    def primal(
        table: Any, energies: Any, union: Any, index: Any, lookup: Any, nuclide: Any, share: Any
    ) -> Any:
        place = (torch.searchsorted(union, energies, right=True) - 1).clamp(0, len(union) - 2)
        low = index[place[lookup], nuclide]
        micro = interpolated(table[nuclide, low], table[nuclide, low + 1], energies[lookup])
        answers = torch.zeros(len(energies), 5, dtype=table.dtype, device=table.device)
        return answers.index_add(0, lookup, micro * share[:, None])

    primal = compile(primal)

    def gradient(table: Any, *rest: Any) -> Any:
        answers = primal(table, *rest[:-1])
        return torch.autograd.grad(answers, table, rest[-1])

    def prepare(*arguments: Any) -> list[Any]:
        seed = cotangent((len(arguments[1]), 5))
        return [*arguments, torch.as_tensor(seed, device=arguments[0].device)]

    return Torch(lambda *arguments: primal(*arguments[:-1]), gradient, (0,), prepare)


# -- data --------------------------------------------------------------------------------------------


def data(points: int, count: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(8)
    table = rng.random((NUCLIDES, points, 6))
    table[:, :, 0] = np.sort(table[:, :, 0], axis=1)
    union = np.sort(table[:, :, 0].ravel())
    places = [np.searchsorted(own, union, side="right") - 1 for own in table[:, :, 0]]
    index = np.clip(np.stack(places, axis=1), 0, points - 2).astype(np.int32)
    drawn = draw(rng, count)
    return (
        table,
        drawn.energies,
        union,
        index,
        drawn.lookup,
        drawn.nuclide,
        drawn.concentration,
    )


def case(small: bool) -> Case:
    return Case(
        Pair(lookups, jax.grad(weighted_sum(lookups))),
        Pair(lookups_jax, jax.grad(weighted_sum(lookups_jax))),
        torch_pair,
        data(17, 50) if small else data(11_303, 100_000),
        double=True,
        rtol=1e-6,
        atol=1e-9,
    )


ENTRIES = (Entry("XSBench", "100,000 lookups", case, "<= 2.5"),)
