"""Slots sorted by block: both ways to do it say the same."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from lanewise.machine import choice


@pytest.mark.parametrize("slots", [1, 7, 40])
def test_slots_by_kind_and_the_deepest_first(slots: int) -> None:
    rng = np.random.default_rng(slots)
    kinds = 5
    kind = rng.integers(0, kinds, slots).astype(np.int32)
    depth = rng.integers(0, 4, slots).astype(np.int32)
    for way in (choice._by_counting, choice._by_sorting):
        found = way(jnp.asarray(kind), jnp.asarray(depth), kinds)
        order = np.asarray(found.order)
        for own in range(kinds):
            (members,) = np.nonzero(kind == own)
            begin, number = int(found.begin[own]), int(found.number[own])
            assert sorted(order[begin : begin + number]) == members.tolist()
            if number:
                deep = depth[members].max()
                assert int(found.depth[own]) == deep
                deepest = order[begin : begin + int(found.deepest[own])]
                assert sorted(deepest) == members[depth[members] == deep].tolist()
