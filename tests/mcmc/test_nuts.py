"""The No-U-Turn sampler: trees end where they should, and a chain's draws are its own.

A lane's arithmetic is the same on one carrier whatever runs beside it, so there draws are equal bit for bit. From one
carrier to another the last bits of `exp` and of sums differ, and a trajectory makes more of a difference at every step:
so carriers are compared over few draws, and closely.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise import mcmc
from lanewise.core.errors import OptionError
from lanewise.mcmc import NUTS
from lanewise.mcmc.chain import carried, chain_of, task
from lanewise.mcmc.drawn import Kept
from lanewise.mcmc.nuts import begun, joined, turns
from lanewise.mcmc.space import Place, Point, place_at

CHAINS, MORE_CHAINS, DRAWS, STEP = 8, 20, 4, 0.4
MAX_DEPTH = 6
AXES = (0, 0, *(None,) * 3)


def density(x: jax.Array) -> jax.Array:
    """A funnel of two dimensions: how deep a tree is depends on where its chain is."""
    return -0.5 * (x[0] ** 2 / 4.0 + x[1] ** 2 * jnp.exp(-x[0]) + x[0])


@cache
def beginnings() -> tuple[jax.Array, Place]:
    """Keys and places of chains."""
    positions = jax.random.normal(jax.random.key(0), (MORE_CHAINS, 2))
    places = jax.jit(jax.vmap(lambda x: place_at(density, None, x)))(positions)
    return jax.random.split(jax.random.key(1), MORE_CHAINS), places


def drawn(chains: int, step: float = STEP, **options: Any) -> Kept:
    keys, places = jax.tree.map(lambda leaf: leaf[:chains], beginnings())
    run = lw.vmap(chain_of(NUTS(MAX_DEPTH), density, DRAWS), in_axes=AXES, **options)
    _, kept = run(keys, carried(places, step), DRAWS, None, task())
    return jax.tree.map(np.asarray, kept)


@pytest.fixture(scope="module")
def alone() -> Kept:
    found = drawn(CHAINS, carrier="native")
    assert len(np.unique(found.info.leapfrogs)) > 3, "the trees are all alike"
    return found


@pytest.mark.parametrize(
    ("chains", "lanes"), [(CHAINS, 3), (CHAINS, 5), (MORE_CHAINS, None), (MORE_CHAINS, 7)]
)
def test_neighbours_and_lanes_change_no_bit(alone: Kept, chains: int, lanes: int | None) -> None:
    found = drawn(chains, carrier="native", lanes=lanes)
    jax.tree.map(np.testing.assert_array_equal, alone, jax.tree.map(lambda x: x[:CHAINS], found))


@pytest.fixture(scope="module")
def ticked() -> Kept:
    return drawn(CHAINS, carrier="ticks", schedule="lowest")


@pytest.mark.parametrize(("schedule", "lanes"), [("lowest", 3), ("sweep", None)])
def test_schedules_and_refill_change_nothing(
    alone: Kept, ticked: Kept, schedule: str, lanes: int | None
) -> None:
    found = ticked
    if (schedule, lanes) != ("lowest", None):
        found = drawn(CHAINS, carrier="ticks", schedule=schedule, lanes=lanes)
    np.testing.assert_array_equal(found.info.leapfrogs, alone.info.leapfrogs)
    np.testing.assert_array_equal(found.info.tree_depth, alone.info.tree_depth)
    np.testing.assert_allclose(found.positions, alone.positions, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(found.info.acceptance, alone.info.acceptance, atol=1e-4)
    if schedule == "lowest":
        jax.tree.map(np.testing.assert_array_equal, found, ticked)


def test_short_steps_go_to_the_greatest_depth() -> None:
    info = drawn(CHAINS, step=1e-3, carrier="native").info
    assert (info.tree_depth == MAX_DEPTH).all() and (info.leapfrogs == 2**MAX_DEPTH - 1).all()
    assert (info.acceptance > 0.999).all() and not info.diverging.any()


def test_long_steps_turn_early(alone: Kept) -> None:
    assert (alone.info.leapfrogs < 2**MAX_DEPTH - 1).mean() > 0.8
    assert (alone.info.leapfrogs < 2**alone.info.tree_depth).all()


def test_what_turns() -> None:
    ahead, back = jnp.array([1.0, 0.5]), jnp.array([-1.0, 0.2])
    assert not turns(2 * ahead, ahead, ahead)
    assert turns(ahead, ahead, back) and turns(ahead, back, ahead)


def test_a_stretch_that_went_once_around_turns() -> None:
    """Its ends point the same way, and only the question across the seam of its halves shows that it turned."""

    def stretch(first: list[float], last: list[float], momenta: list[float]) -> Any:
        place = Place(jnp.zeros(2), jnp.float32(0.0), jnp.zeros(2))
        point = Point(place, jnp.array(last))
        return begun(point)._replace(first=jnp.array(first), momenta=jnp.array(momenta))

    near = stretch([1.0, 0.0], [0.0, 1.0], [2.0, 2.0])
    far = stretch([-1.0, 0.0], [1.0, 0.1], [0.5, 0.5])
    assert not turns(near.momenta + far.momenta, near.first, far.last.momentum)
    assert turns(near.momenta + far.first, near.first, far.first)
    assert joined(near, far, jnp.array(False)).turning


def cliff(x: jax.Array) -> jax.Array:
    return jnp.where(x[0] < 1.0, -0.5 * jnp.sum(x**2), -1e6 * x[0])


def test_a_cliff_is_reported_as_divergence_and_never_passed() -> None:
    """In double precision, which positions and all that is reported of draws are then in."""
    with jax.enable_x64(True):
        with pytest.warns(mcmc.SamplingWarning, match=r"\d+ of 640 draws diverged, in \d+ chains"):
            data = mcmc.sample(
                cliff,
                jax.random.key(0),
                chains=32,
                draws=20,
                warmup=0,
                init=jnp.zeros((32, 2)),
                step_size=0.3,
                progress=False,
            )
    diverging = data.sample_stats["diverging"].values
    assert 0.05 < diverging.mean() < 0.95
    assert (data.posterior["x"].values[..., 0] < 1.0).all()
    assert data.posterior["x"].dtype == np.float64
    for name in ("lp", "energy", "acceptance_rate", "step_size"):
        assert data.sample_stats[name].dtype == np.float64


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_depth": 0}, "max_depth=0 must be from 1 to 20"),
        ({"target_accept": 1.0}, "target_accept=1.0 must"),
    ],
)
def test_bad_settings_are_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        NUTS(**wrong)
