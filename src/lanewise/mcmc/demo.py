"""The demonstration: how well do eighteen baseball players bat? (`lanewise demo`, `make demo`)

Eighteen players each batted 45 times early in the season of 1970 (Efron and Morris 1975, table 1). The model pools them
partially: each player's log odds of a hit come from one normal distribution, whose mean and spread are unknown too.
"""

from __future__ import annotations

import contextlib
import inspect
import time
import warnings
from collections.abc import Callable, Iterator
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
from lanewise.watch.convergence import e_bfmi
from lanewise.watch.report import report as report_page

AT_BATS = 45
HITS = np.array([18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7], np.float32)
# Draws of each chain, and pairs of runs, when speed is measured.
TIMED_DRAWS, TIMED_RUNS = 20, 7


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
    """Show the model, sample it, summarize and diagnose the draws, compare the speed; returns the draws."""
    arviz = the_library()
    _say("The model", (__doc__ or "").partition("\n\n")[2].strip())
    print("\n" + inspect.getsource(log_odds) + "\n\n" + inspect.getsource(logdensity), flush=True)
    _say(
        "Sampling", f"NUTS, {chains:,} chains, {warmup} draws of warm-up and {draws} draws of each."
    )
    began = time.perf_counter()

    def go() -> Any:
        return sample(MODEL, jax.random.key(0), chains=chains, draws=draws, warmup=warmup)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        data = _reported(go, report)
    recorded = "" if report is None else " and the recording for the report"
    print(f"{time.perf_counter() - began:.1f} s with compilation{recorded}.")
    _say("Summary", arviz.summary(data, kind="all", round_to=3).to_string())
    _say("Diagnosis", "\n".join(checked(arviz, data)))
    for one in said:
        print(f"Warning: {one.message}")
    if not said:
        print("No problem was found.")
    _compare(data, chains)
    if report is not None:
        _say("Report", f"{report}: open it in a browser.")
    return data


def _reported(go: Callable[[], Any], report: str | None) -> Any:
    if report is None:
        return go()
    with report_page(report, title="How well do eighteen players bat?"):
        return go()


def _say(heading: str, words: str) -> None:
    print(f"\n{heading}\n{'-' * len(heading)}\n{words}", flush=True)


def checked(arviz: Any, data: Any) -> Iterator[str]:
    """The numbers by which the run is judged, a line each."""
    stats = {name: np.asarray(data["sample_stats"][name]) for name in STATS}
    yield f"maximum R-hat     {_all(arviz.rhat(data)).max():.3f}"
    yield f"minimum bulk ESS  {_all(arviz.ess(data, method='bulk')).min():,.0f}"
    yield f"minimum tail ESS  {_all(arviz.ess(data, method='tail', prob=(0.05, 0.95))).min():,.0f}"
    yield f"divergences       {int(stats['diverging'].sum())} of {stats['diverging'].size:,} draws"
    yield f"deepest tree      {int(stats['tree_depth'].max())} (limit {NUTS().max_depth})"
    yield f"minimum E-BFMI    {e_bfmi(stats['energy']).min():.2f}"


STATS = ("energy", "diverging", "tree_depth")


def _all(found: Any) -> np.ndarray:
    """The numbers of a dataset, or of ArviZ 1.x's tree with one."""
    found = getattr(found, "dataset", found)
    return np.concatenate([np.ravel(np.asarray(found[name])) for name in found.data_vars])


# -- speed ---------------------------------------------------------------------------------------------


def _compare(data: Any, chains: int) -> None:
    """Print gradients a second, and NumPyro's, from the same places with the step size and scales that were found."""
    stats = data["sample_stats"]
    step = float(np.asarray(stats["step_size"])[0, 0])
    scale = np.sqrt(np.asarray(stats["inverse_mass_matrix"])).astype(np.float32)
    flat = FlatDensity(logdensity, Layout.of(init(jax.random.key(0))))

    def density(vector: Array) -> Array:
        return flat(vector * scale)

    keys = jax.random.split(jax.random.key(1), chains)
    starts = jax.vmap(lambda key: ravel_pytree(init(key))[0])(keys) / scale
    _, starts = _ours(density, starts, step, 3 * TIMED_DRAWS)()
    runs = {"Lanewise: no chain waits for another": _ours(density, starts, step, TIMED_DRAWS)}
    with contextlib.suppress(ImportError):
        runs["NumPyro, vectorized chains"] = _numpyro(density, starts, step)
    for go in runs.values():
        jax.block_until_ready(go())
    rates = np.array([[_rate(go) for go in runs.values()] for _ in range(TIMED_RUNS)])
    medians = zip(np.median(rates, axis=0), runs, strict=True)
    _say(
        "Speed",
        f"Useful gradients a second, without compilation: {chains:,} chains, {TIMED_DRAWS} draws, step size {step:.2f}"
        f" and the same scales.\nMedians of {TIMED_RUNS} runs, in turns, on this machine.\n"
        + "\n".join(f"  {median:>12,.0f}  {name}" for median, name in medians),
    )
    if len(runs) == 1:
        print("  NumPyro is not installed, so there is nothing to compare with.")
        return
    ratios = rates[:, 0] / rates[:, 1]
    print(f"  {np.median(ratios):>12.1f}  times as many ({min(ratios):.1f} to {max(ratios):.1f})")


def _rate(go: Callable[[], Any]) -> float:
    """Gradients a second."""
    began = time.perf_counter()
    gradients, _ = jax.block_until_ready(go())
    return float(gradients) / (time.perf_counter() - began)


def _ours(
    density: Callable[[Array], Array], starts: Array, step: float, draws: int
) -> Callable[[], tuple[Array, Array]]:
    """Our chains: how many gradients they took, and where they ended."""
    places = Place(starts, *jax.jit(jax.vmap(jax.value_and_grad(density)))(starts))
    many = jax.jit(vmap(chain_of(NUTS(), density, draws), in_axes=(0, 0, *(None,) * 3)))
    keys = jax.random.split(jax.random.key(2), len(starts))

    def go() -> tuple[Array, Array]:
        _, kept = many(keys, carried(places, step), draws, None, task())
        return jnp.sum(kept.info.leapfrogs), kept.positions[:, -1]

    return go


def _numpyro(
    density: Callable[[Array], Array], starts: Array, step: float
) -> Callable[[], tuple[Array, Array]]:
    """NumPyro's sampler for a batch of chains, its loop over draws compiled once."""
    from numpyro.infer import NUTS as Kernel

    kernel = Kernel(
        potential_fn=lambda vector: -density(vector),
        step_size=step,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )
    keys = jax.random.split(jax.random.PRNGKey(2), len(starts))
    state = kernel.init(keys, 0, starts, (), {})

    @jax.jit
    def many(state: Any) -> tuple[Array, Array]:
        def draw(state: Any, _: None) -> tuple[Any, Any]:
            state = kernel.sample(state, (), {})
            return state, state.num_steps

        state, steps = jax.lax.scan(draw, state, length=TIMED_DRAWS)
        return jnp.sum(steps), state.z

    return lambda: many(state)
