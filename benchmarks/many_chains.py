"""A thousand chains with few draws each: ChEES and SNAPER against NUTS, and against BlackJAX's ChEES.

    python benchmarks/many_chains.py [--chains 1000] [--draws 20] [--warmup 200] [--models gaussian ...]

Of each: minimum bulk ESS over all quantities, for each gradient of the draws that are kept and for each second of CPU
time of the whole call, warm-up included, with everything compiled (the second call, with another key). NUTS's draws are
adapted by pooled windows, in a warm-up of the same length. BlackJAX runs `chees_adaptation` and `dynamic_hmc`, as its
documentation has them, inside one `jax.jit`.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import arviz
import jax
import jax.numpy as jnp
import numpy as np

from _harness import Claim, report
from _models import MODELS
from _models_more import MORE
from lanewise import mcmc

CHOSEN = ("gaussian", "logistic", "eight_schools", "radon")


class Found(NamedTuple):
    """Minimum ESS, gradients of the draws that are kept, and the CPU time of the call."""

    ess: float
    gradients: float
    seconds: float


def minimum_ess(quantities: dict[str, Any]) -> float:
    """Over all quantities, which have axes of chains and draws in front."""
    return min(
        float(arviz.ess(array.reshape(*array.shape[:2], -1)[..., i]))
        for array in map(np.asarray, quantities.values())
        for i in range(int(np.prod(array.shape[2:])))
    )


def ours(sampler: Any, model: Any, given: argparse.Namespace) -> Callable[[int], Found]:
    def run(seed: int) -> Found:
        began = time.process_time()
        data = mcmc.sample(
            mcmc.Model(model.logdensity, model.init, model.shown),
            seed,
            chains=given.chains,
            draws=given.draws,
            warmup=given.warmup,
            sampler=sampler,
            progress=False,
        )
        seconds = time.process_time() - began
        drawn = {name: data.posterior[name].values for name in data.posterior.data_vars}
        return Found(minimum_ess(drawn), float(data.sample_stats.n_steps.sum()), seconds)

    return run


def blackjaxs(model: Any, given: argparse.Namespace) -> Callable[[int], Found]:
    import blackjax
    import optax

    warm_up = blackjax.chees_adaptation(model.logdensity, given.chains)

    def whole(key: Any) -> Any:
        start_key, warm_key, draw_key = jax.random.split(key, 3)
        positions = jax.vmap(model.init)(jax.random.split(start_key, given.chains))
        (states, parameters), _ = warm_up.run(
            warm_key, positions, 0.1, optax.adam(0.05), given.warmup
        )
        step = blackjax.dynamic_hmc(model.logdensity, **parameters).step

        def draw(states: Any, key: Any) -> Any:
            states, info = jax.vmap(step)(jax.random.split(key, given.chains), states)
            return states, (states.position, info.num_integration_steps)

        _, (positions, steps) = jax.lax.scan(draw, states, jax.random.split(draw_key, given.draws))
        shown = positions if model.shown is None else jax.vmap(jax.vmap(model.shown))(positions)
        return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), shown), steps.sum()

    compiled = jax.jit(whole)

    def run(seed: int) -> Found:
        began = time.process_time()
        shown, steps = jax.block_until_ready(compiled(jax.random.key(seed)))
        seconds = time.process_time() - began
        return Found(minimum_ess(shown), float(steps), seconds)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--chains", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=CHOSEN)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    claims = []
    for name in given.models:
        model = (MODELS | MORE)[name]()
        contenders = {
            "NUTS": ours(mcmc.NUTS(), model, given),
            "ChEES": ours(mcmc.ChEES("chees"), model, given),
            "SNAPER": ours(mcmc.ChEES("snaper"), model, given),
            "BlackJAX ChEES": blackjaxs(model, given),
        }
        rates = {}
        first = {who: run(0).seconds for who, run in contenders.items()}
        found: dict[str, list[Found]] = {who: [] for who in contenders}
        for repeat in range(given.repeats):
            for who, run in contenders.items():
                found[who].append(run(1 + repeat))
        for who, runs in found.items():
            a_gradient = np.median([run.ess / run.gradients for run in runs])
            rates[who] = float(np.median([run.ess / run.seconds for run in runs]))
            print(
                f"{name:14} {who:15} ESS/gradient {a_gradient:.4f}, ESS {runs[0].ess:9.0f},"
                f" {np.median([run.seconds for run in runs]):7.2f} s CPU,"
                f" ESS/s {rates[who]:9.0f}, first call {first[who]:.1f} s",
                flush=True,
            )
        # Seconds for a thousand effective draws.
        times = 1e3 / rates["SNAPER"], 1e3 / rates["BlackJAX ChEES"]
        claims.append(Claim(f"{name}, {given.chains} chains: SNAPER", *times, ">= 1"))
    report(claims)


if __name__ == "__main__":
    main()
