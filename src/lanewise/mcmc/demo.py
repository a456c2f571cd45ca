"""The demonstration: how well do eighteen baseball players bat? (`lanewise demo`, `make demo`)

Eighteen players each batted 45 times early in the season of 1970 (Efron and Morris 1975, table 1). The model pools them
partially: each player's log odds of a hit come from one normal distribution, whose mean and spread are unknown too.
"""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lanewise.api.vmap import vmap
from lanewise.mcmc.chain import carried, chain_of, task
from lanewise.mcmc.inference import the_library
from lanewise.mcmc.lockstep import in_step
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
    """Print gradients a second, beside NUTS by hand under `jax.vmap`, at the step size and the scales that were found."""
    step, scale = _adapted(data)
    layout = Layout.of(init(jax.random.key(0)))
    flat = FlatDensity(logdensity, layout)

    def density(vector: Array) -> Array:
        return flat(vector * scale)

    starts = jax.vmap(lambda key: layout.vector(init(key)))(
        jax.random.split(jax.random.key(1), chains)
    )
    keys = jax.random.split(jax.random.key(2), chains)
    settled = _many(density, 3 * TIMED_DRAWS)(keys, starts / scale, step)[0][:, -1]
    pair = [_many(density, TIMED_DRAWS), in_step(density, TIMED_DRAWS)]
    for one in pair:
        jax.block_until_ready(one(keys, settled, step))
    rates = np.array([[_rate(one, keys, settled, step) for one in pair] for _ in range(TIMED_RUNS)])
    ratios = sorted(rates[:, 0] / rates[:, 1])
    ours, peer = np.median(rates, axis=0)
    _say(
        "Speed",
        f"Useful gradients a second, without compilation; {chains:,} chains, {TIMED_DRAWS} draws, step size {step:.2f}"
        f" and the same scales\nfor both; medians of {TIMED_RUNS} runs in turns on this machine.\n"
        f"  {ours:>12,.0f}  Lanewise, the recursion, no chain waits for another\n"
        f"  {peer:>12,.0f}  the same algorithm as loops, by hand, under jax.vmap (as NumPyro and TFP run chains)\n"
        f"  ratio {statistics.median(ratios):.1f}, from {ratios[0]:.1f} to {ratios[-1]:.1f}",
    )


def _adapted(data: Any) -> tuple[float, np.ndarray]:
    stats = data["sample_stats"]
    step = float(np.asarray(stats["step_size"])[0, 0])
    return step, np.sqrt(np.asarray(stats["inverse_mass_matrix"])).astype(np.float32)


def _rate(many: Callable[..., Any], *arguments: Any) -> float:
    """Gradients a second."""
    began = time.perf_counter()
    _, gradients = jax.block_until_ready(many(*arguments))
    return float(np.sum(gradients)) / (time.perf_counter() - began)


def _many(density: Callable[[Array], Array], draws: int) -> Callable[..., tuple[Array, Array]]:
    """Our chains, called as the peer's are."""
    program = chain_of(NUTS(), density, draws)
    batched = vmap(program, in_axes=(0, 0, *(None,) * 3))

    @jax.jit
    def many(keys: Array, vectors: Array, step: Array) -> tuple[Array, Array]:
        place = Place(vectors, *jax.vmap(jax.value_and_grad(density))(vectors))
        _, kept = batched(keys, carried(place, step), draws, None, task())
        return kept.positions, kept.info.leapfrogs

    return many
