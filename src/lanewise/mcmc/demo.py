"""The demonstration: how well do eighteen baseball players bat? (`lanewise demo`, `make demo`)

Eighteen players each batted 45 times early in the season of 1970 (Efron and Morris 1975, table 1). The model pools them
partially: each player's log odds of a hit come from one normal distribution, whose mean and spread are unknown too.
"""

from __future__ import annotations

import contextlib
import inspect
import time
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
    """Show the model, sample it, summarize and diagnose the draws, compare the speed; gives the draws."""
    arviz = the_library()
    _say("The model", (__doc__ or "").partition("\n\n")[2].strip())
    print("\n" + inspect.getsource(log_odds) + "\n\n" + inspect.getsource(logdensity), flush=True)
    _say(
        "Sampling", f"NUTS, {chains:,} chains, {warmup} draws of warm-up and {draws} draws of each."
    )
    began = time.perf_counter()

    def go() -> Any:
        return sample(MODEL, jax.random.key(0), chains=chains, draws=draws, warmup=warmup)

    if report is None:
        data = go()
    else:
        with report_page(report, title="How well do eighteen players bat?"):
            data = go()
    recorded = "" if report is None else " and the recording for the report"
    print(f"{time.perf_counter() - began:.1f} s with compilation{recorded}.")
    _say("Summary", arviz.summary(data, kind="all", round_to=3).to_string())
    _say("Diagnosis", "\n".join(checked(arviz, data)))
    _compare(data, chains)
    if report is not None:
        _say("Report", f"{report}: open it in a browser.")
    return data


def _say(heading: str, words: str) -> None:
    print(f"\n{heading}\n{'-' * len(heading)}\n{words}", flush=True)


def checked(arviz: Any, data: Any) -> Iterator[str]:
    """What was checked, a line each, and whether it is as it should be."""
    stats = {name: np.asarray(data["sample_stats"][name]) for name in STATS}
    # Of each chain, 100; of many chains the estimates of R-hat and ESS need no more than of four.
    enough = 100 * min(len(stats["energy"]), 4)
    rhat = _all(arviz.rhat(data))
    bulk, tail = (_all(arviz.ess(data, method=method)) for method in ("bulk", "tail"))
    energy = stats["energy"].astype(float)
    with np.errstate(all="ignore"):
        fraction = np.nanmin((np.diff(energy, axis=1) ** 2).mean(1) / energy.var(1))
    divergent = int(stats["diverging"].sum())
    deepest = int((stats["tree_depth"] >= NUTS().max_depth).sum())
    lines = [
        (rhat.max() <= 1.01, f"maximum R-hat {rhat.max():.3f} (at most 1.01)"),
        (bulk.min() >= enough, f"minimum bulk ESS {bulk.min():,.0f} (at least {enough})"),
        (tail.min() >= enough, f"minimum tail ESS {tail.min():,.0f} (at least {enough})"),
        (divergent == 0, f"{divergent} of {energy.size:,} draws diverged (none)"),
        (deepest == 0, f"{deepest} draws reached the depth limit of {NUTS().max_depth} (none)"),
        (fraction >= 0.3, f"minimum E-BFMI {fraction:.2f} (at least 0.3)"),
    ]
    for fine, words in lines:
        yield f"{'ok     ' if fine else 'PROBLEM'}  {words}"
    wrong = sum(not fine for fine, _ in lines)
    if wrong:
        yield f"{wrong} of {len(lines)} checks failed: do not rely on these draws before you know why."
    else:
        yield "All checks passed."


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
