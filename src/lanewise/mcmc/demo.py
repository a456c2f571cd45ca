"""The demonstration: how well do eighteen baseball players bat? (`lanewise demo`, `make demo`)

Each batted 45 times early in the season of 1970 (Efron and Morris 1975, table 1). The model pools them in part: each
player's log odds of a hit come from one normal distribution, whose mean and spread are found with them. Many
chains sample it with the recursive No-U-Turn sampler, each at its own depth of its own tree.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from lanewise.api.vmap import vmap
from lanewise.mcmc.chain import carried, chain_of, task
from lanewise.mcmc.inference import the_library
from lanewise.mcmc.models import Model, Position
from lanewise.mcmc.nuts import NUTS
from lanewise.mcmc.sample import sample
from lanewise.mcmc.space import Place
from lanewise.mcmc.start import FlatDensity, Layout
from lanewise.watch.report import report as report_page

AT_BATS = 45
HITS = np.array([18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7], np.float32)
# Draws of each chain when speed is measured.
TIMED_DRAWS, TIMED_DRAWS_OF_PEER = 50, 10


def log_odds(position: Position) -> Array:
    return position["mean"] + jnp.exp(position["log_spread"]) * position["apart"]


def logdensity(position: Position) -> Array:
    """Players' log odds are `mean + spread * apart`, and `apart` is standard normal."""
    spread = jnp.exp(position["log_spread"])
    odds = log_odds(position)
    likelihood = jnp.sum(HITS * odds - AT_BATS * jax.nn.softplus(odds))
    prior = -0.5 * ((position["mean"] + 1.0) ** 2 + jnp.sum(position["apart"] ** 2) + spread**2)
    return likelihood + prior + position["log_spread"]


def init(key: Array) -> Position:
    mean, spread, apart = jax.random.split(key, 3)
    return {
        "mean": -1.0 + 0.5 * jax.random.normal(mean),
        "log_spread": -1.0 + 0.5 * jax.random.normal(spread),
        "apart": jax.random.normal(apart, HITS.shape),
    }


def shown(position: Position) -> dict[str, Array]:
    return {
        "average": jax.nn.sigmoid(position["mean"]),
        "spread": jnp.exp(position["log_spread"]),
        "player": jax.nn.sigmoid(log_odds(position)),
    }


MODEL = Model(logdensity, init, shown)


def run(chains: int = 1000, draws: int = 200, warmup: int = 200, report: str | None = None) -> Any:
    """Sample, print a summary and the speed, and write a report; gives the draws."""
    arviz = the_library()
    print((__doc__ or "").partition("\n\n")[2])
    began = time.perf_counter()

    def go() -> Any:
        return sample(MODEL, jax.random.key(0), chains=chains, draws=draws, warmup=warmup)

    if report is None:
        data = go()
    else:
        with report_page(report, title="How well do eighteen players bat?"):
            data = go()
    took = time.perf_counter() - began
    print(arviz.summary(data, kind="all", round_to=3).to_string())
    steps = int(data.sample_stats["n_steps"].sum())
    divergent = int(data.sample_stats["diverging"].sum())
    print(
        f"\n{chains} chains, {warmup} draws to adapt by and {draws} kept of each, {steps:,} gradients for those;"
        f" {divergent} draws diverged. {took:.1f} s with compilation."
    )
    _compare(data, chains)
    if report is not None:
        print(f"\nThe report is in {report}: open it in a browser.")
    return data


def _compare(data: Any, chains: int) -> None:
    """Print gradients a second, beside NumPyro's if it is here, at the step size that was found."""
    step = float(data.sample_stats["step_size"][0, 0])
    starts = jax.vmap(init)(jax.random.split(jax.random.key(1), chains))
    example = jax.tree.map(lambda leaf: leaf[0], starts)
    density = FlatDensity(logdensity, Layout.of(example))
    mine = _rate(_ours(density, starts, step))
    print(f"Useful gradients a second, step size {step:.2f} for all: {mine:,.0f}", end="")
    try:
        peer = _numpyro(starts, step)
    except ImportError:
        print("; NumPyro is not installed, so there is nothing to hold it against.")
        return
    theirs = _rate(peer)
    print(f", NumPyro vectorized {theirs:,.0f}: {mine / theirs:.1f} times as many.")


def _rate(go: Callable[[], Any]) -> float:
    """Gradients a second, in a second call."""
    jax.block_until_ready(go())
    began = time.perf_counter()
    gradients = jax.block_until_ready(go())
    return float(gradients) / (time.perf_counter() - began)


def _ours(density: FlatDensity, starts: Position, step: float) -> Callable[[], Any]:
    vectors = jax.vmap(lambda position: ravel_pytree(position)[0])(starts)
    value, gradient = jax.jit(jax.vmap(jax.value_and_grad(density)))(vectors)
    program = chain_of(NUTS(), density, TIMED_DRAWS)
    many = jax.jit(vmap(program, in_axes=(0, 0, *(None,) * 3)))
    keys = jax.random.split(jax.random.key(2), vectors.shape[0])
    place = Place(vectors, value, gradient)

    def go() -> Any:
        _, kept = many(keys, carried(place, step), TIMED_DRAWS, None, task())
        return jnp.sum(kept.info.leapfrogs)

    return go


def _numpyro(starts: Position, step: float) -> Callable[[], Any]:
    """NumPyro's sampler for a batch of chains, its loop over draws compiled once."""
    from numpyro.infer import NUTS as Kernel

    kernel = Kernel(
        potential_fn=lambda position: -logdensity(position),
        step_size=step,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )
    chains = jax.tree.leaves(starts)[0].shape[0]
    keys = jax.random.split(jax.random.PRNGKey(2), chains)
    state = kernel.init(keys, 0, starts, (), {})

    @jax.jit
    def many(state: Any) -> Any:
        def draw(state: Any, _: None) -> tuple[Any, Any]:
            state = kernel.sample(state, (), {})
            return state, state.num_steps

        return jnp.sum(jax.lax.scan(draw, state, length=TIMED_DRAWS_OF_PEER)[1])

    return lambda: many(state)
