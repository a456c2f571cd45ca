"""Chains that learn from each other run as all others do: in stretches, saved, thinned, interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanewise import mcmc
from lanewise.mcmc.loop import Loop
from lanewise.mcmc.pace import Pace
from lanewise.mcmc.saved import Saved
from mcmc.test_sample import Killed, assert_equal, die_after

SAMPLERS = {
    "chees": mcmc.ChEES(),
    "snaper": mcmc.ChEES("snaper"),
    "tempering": mcmc.Tempering(replicas=4, steps=3),
}
CHAINS, DRAWS, WARMUP = 6, 40, 60


def logdensity(x: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum((x / jnp.array([1.0, 3.0])) ** 2)


def init(key: jax.Array) -> jax.Array:
    return jax.random.normal(key, (2,))


def go(sampler: Any, **changes: Any) -> Any:
    run: dict[str, Any] = {"chains": CHAINS, "draws": DRAWS, "warmup": WARMUP, "init": init}
    density = changes.pop("logdensity", logdensity)
    return mcmc.sample(density, 0, sampler=sampler, progress=False, **run | changes)


pytestmark = [
    pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS),
    pytest.mark.filterwarnings("ignore::lanewise.mcmc.SamplingWarning"),
]


def test_where_a_run_is_cut_changes_no_draw(sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for draws in (1, 7, 1000):
        monkeypatch.setattr(Pace, "took", lambda self, *_, n=draws: setattr(self, "draws", n))
        found.append(go(sampler, keep_warmup=True, thin=2))
    for other in found[1:]:
        assert_equal(found[0], other)
        for name, values in found[0].warmup_posterior.items():
            np.testing.assert_array_equal(values, other.warmup_posterior[name], err_msg=name)
    assert found[0].warmup_posterior.sizes["draw"] == WARMUP // 2
    whole = go(sampler, draws=2 * DRAWS)
    np.testing.assert_array_equal(whole.posterior["x"][:, 1::2], found[0].posterior["x"])


@pytest.mark.parametrize("saves", [3, 10])
def test_a_run_that_ended_goes_on_with_the_same_bits(
    sampler: Any, saves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends in the warm-up, and in the draws."""
    run: dict[str, Any] = {"resume": tmp_path, "save_every": 10}

    def die() -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Saved, "is_due", lambda self, number: number % 10 == 0)
        die_after(saves, die, patch)
        with pytest.raises(Killed):
            go(sampler, **run)
    again = go(sampler, **run)
    assert_equal(go(sampler), again)
    for name in ("round_trips", "trajectory_length"):
        assert again.posterior.attrs.get(name) == go(sampler).posterior.attrs.get(name)


def test_an_interrupt_leaves_what_is_drawn(sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, step = go(sampler), Loop._next
    monkeypatch.setattr(Pace, "took", lambda self, *_: setattr(self, "draws", 10))

    def struck(self: Loop, state: Any) -> Any:
        if int(state.number) >= WARMUP + 20:
            raise KeyboardInterrupt
        return step(self, state)

    monkeypatch.setattr(Loop, "_next", struck)
    with pytest.warns(mcmc.SamplingWarning, match=r"interrupted: it has \d+ of 40 draws"):
        few = go(sampler)
    count = few.posterior.sizes["draw"]
    assert 20 <= count < DRAWS
    assert_equal(whole, few, count)


def test_other_numbers_of_chains_and_starts_that_are_named(sampler: Any) -> None:
    """More lanes are compiled than there are chains: nothing is learned from those that are idle."""
    chains = 17
    data = go(sampler, chains=chains, draws=1, initial_values={"x": [0.1, 0.2]}, keep_warmup=True)
    assert data.posterior["x"].shape == (chains, 1, 2)
    assert np.isfinite(data.posterior["x"]).all()
    assert data.sample_stats["inverse_mass_matrix"].shape == (2,)
    # A first move from there is not far.
    assert np.abs(data.warmup_posterior["x"][:, 0] - np.array([0.1, 0.2])).max() < 20.0


def test_starts_without_a_density_are_drawn_anew(sampler: Any) -> None:
    def density(x: jax.Array) -> jax.Array:
        return jnp.where(x[0] > 0.0, -0.5 * jnp.sum((x - 1.0) ** 2), -jnp.inf)

    data = go(sampler, logdensity=density)
    assert (data.posterior["x"][..., 0] > 0.0).all()
    assert data.posterior["x"].std("draw").min() > 0.0
