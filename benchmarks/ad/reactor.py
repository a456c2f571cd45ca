"""What XSBench and RSBench share: the Hoogenboom-Martin reactor's materials, and how lookups are drawn.

Twelve materials are made of 68 nuclides ("small"); a lookup is an energy and a material, drawn with the
probabilities of the originals (Tramm et al. 2014, https://github.com/ANL-CESAR/XSBench and RSBench). Their linear
congruential generator is replaced by NumPy's. A lookup visits all nuclides of its material, from 4 to
34 of them: the pairs of a lookup and a nuclide are a flat list, with the lookup that each belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NUCLIDES = 68
_WATER = [24, 41, 4, 5]
_STEEL = [*_WATER, 19, 20, 21, 22, 35, 36, 37, 38, 39, 25, 49, 50, 51, 11, 12, 13, 14]
_CLADDING = [63, 64, 65, 66, 67]
_FUEL = [58, 59, 60, 61, 40, 42, 43, 44, 45, 46, 1, 2, 3, 7, 8, 9, 10, 29, 57, 47, 48, 0, 62, 15]
_FUEL = [*_FUEL, 33, 34, 52, 53, 54, 55, 56, 18, 23, 41]
_VESSEL = [19, 20, 21, 22, 35, 36, 37, 38, 39, 25, 27, 28, 29, 30, 31, 32, 26, 49, 50, 51, 11]
_VESSEL = [*_VESSEL, 12, 13, 14, 6, 16, 17]
MATERIALS: tuple[list[int], ...] = (
    _FUEL,
    _CLADDING,
    _WATER,
    _WATER,
    _VESSEL,
    *([_STEEL] * 5),
    *([[*_WATER, *_CLADDING]] * 2),
)
SHARES = (0.140, 0.052, 0.275, 0.134, 0.154, 0.064, 0.066, 0.055, 0.008, 0.015, 0.025, 0.012)


@dataclass(frozen=True)
class Lookups:
    """Energies of all lookups; for each pair its lookup, its nuclide and the nuclide's concentration."""

    energies: np.ndarray
    lookup: np.ndarray
    nuclide: np.ndarray
    concentration: np.ndarray


def draw(rng: np.random.Generator, count: int) -> Lookups:
    concentrations = [rng.random(len(nuclides)) for nuclides in MATERIALS]
    materials = rng.choice(len(MATERIALS), count, p=SHARES)
    lengths = np.array([len(nuclides) for nuclides in MATERIALS])[materials]
    return Lookups(
        rng.random(count),
        np.repeat(np.arange(count), lengths).astype(np.int32),
        np.concatenate([MATERIALS[m] for m in materials]).astype(np.int32),
        np.concatenate([concentrations[m] for m in materials]),
    )
