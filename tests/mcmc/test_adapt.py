"""Adaptation: moments, windows and dual averaging."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanewise.mcmc.adapt import (
    AFTER,
    BEFORE,
    PRIOR_DRAWS,
    PRIOR_VARIANCE,
    Moments,
    moments_with,
    no_moments,
    pooled,
    scale_from,
    step_after,
    step_from,
    windows,
)

RNG = np.random.default_rng(0)
# Chains, draws, dimensions; far from zero, where sums of squares would lose digits.
DRAWS = (100.0 + RNG.standard_normal((4, 30, 3)) * np.array([0.1, 1.0, 5.0])).astype(np.float32)


def moments_of(draws: np.ndarray, dense: bool) -> Moments:
    """Of each chain, one draw after another."""

    @jax.jit
    @jax.vmap
    def go(chain: jax.Array) -> Moments:
        def one(moments: Moments, draw: jax.Array) -> tuple[Moments, None]:
            return moments_with(moments, draw), None

        return jax.lax.scan(one, no_moments(chain[0], dense), chain)[0]

    return go(draws)


@pytest.mark.parametrize("dense", [False, True])
def test_moments_are_those_of_numpy(dense: bool) -> None:
    moments = moments_of(DRAWS, dense)
    np.testing.assert_array_equal(moments.count, 30.0)
    np.testing.assert_allclose(moments.mean, DRAWS.mean(axis=1), rtol=1e-5)
    for chain, squares in zip(DRAWS.astype(np.float64), moments.squares):
        covariance = np.cov(chain.T)
        wanted = covariance if dense else np.diag(covariance)
        np.testing.assert_allclose(squares / 29.0, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dense", [False, True])
def test_pooled_moments_are_those_of_all_draws(dense: bool) -> None:
    together = pooled(moments_of(DRAWS, dense))
    everything = DRAWS.astype(np.float64).reshape(-1, 3)
    covariance = np.cov(everything.T)
    assert together.count == len(everything)
    np.testing.assert_allclose(together.mean, everything.mean(axis=0), rtol=1e-5)
    wanted = covariance if dense else np.diag(covariance)
    np.testing.assert_allclose(
        together.squares / (len(everything) - 1), wanted, rtol=1e-3, atol=1e-3
    )


def test_chains_of_different_lengths_are_pooled_by_their_draws() -> None:
    parts = [DRAWS[0, :5], DRAWS[1, :20]]
    moments = [jax.tree.map(lambda leaf: leaf[0], moments_of(part[None], False)) for part in parts]
    together = pooled(jax.tree.map(lambda *leaves: jnp.stack(leaves), *moments))
    everything = np.concatenate(parts).astype(np.float64)
    np.testing.assert_allclose(together.mean, everything.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(together.squares / 24.0, everything.var(axis=0, ddof=1), rtol=1e-3)


@pytest.mark.parametrize("dense", [False, True])
def test_a_scale_is_the_root_of_a_covariance_drawn_to_the_prior(dense: bool) -> None:
    covariance = np.array([[2.0, 0.6], [0.6, 0.5]])
    squares = 9.0 * (covariance if dense else np.diag(covariance))
    scale = np.asarray(scale_from(Moments(jnp.float32(10.0), jnp.zeros(2), jnp.asarray(squares))))
    drawn_to = (10.0 * covariance + PRIOR_DRAWS * PRIOR_VARIANCE * np.eye(2)) / (10.0 + PRIOR_DRAWS)
    if dense:
        np.testing.assert_allclose(scale @ scale.T, drawn_to, rtol=1e-5)
        assert scale[0, 1] == 0.0
    else:
        np.testing.assert_allclose(scale, np.sqrt(np.diag(drawn_to)), rtol=1e-5)


def test_a_scale_from_no_draws_is_finite() -> None:
    assert jnp.isfinite(jnp.asarray(scale_from(no_moments(jnp.zeros(3), dense=True)))).all()


def test_windows_add_up_and_double() -> None:
    for warmup in range(0, 1200):
        found = windows(warmup)
        assert sum(window.draws for window in found) == warmup
        assert all(window.draws > 0 for window in found)
        renewing = [window.draws for window in found if window.renews]
        assert all(later >= 2 * earlier for earlier, later in itertools.pairwise(renewing))
        assert not found or not found[-1].renews, "the step size has no draws of its own at the end"
    long = windows(1000)
    assert long[0].draws == BEFORE and long[-1].draws == AFTER


@pytest.mark.parametrize("wanted", [0.6, 0.8, 0.95])
def test_dual_averaging_finds_the_acceptance_that_is_wanted(wanted: float) -> None:
    """Where the acceptance falls with the step size, with noise, from a first step that is far off."""

    @jax.jit
    def adapted(key: jax.Array) -> jax.Array:
        def draw(state, key):
            noise = 0.1 * jax.random.normal(key)
            acceptance = jnp.clip(jnp.exp(-0.3 * jnp.exp(state.log_step)) + noise, 0.0, 1.0)
            return step_after(state, acceptance, wanted), None

        first = step_from(jnp.float32(0.01))
        return jax.lax.scan(draw, first, jax.random.split(key, 1000))[0].log_average

    acceptance = np.exp(-0.3 * np.exp(float(adapted(jax.random.key(0)))))
    assert abs(acceptance - wanted) < 0.03
