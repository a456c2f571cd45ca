"""Make `references.json` anew: means and standard deviations by long runs of NumPyro.

    PYTHONPATH=tests:benchmarks python tests/mcmc/references.py [NAME ...]

With names, only those posteriors are made anew and the others stay. NumPyro's sampler asks the densities of
`posteriors.py`, in double precision. Kept with each figure is its Monte Carlo standard error, by ArviZ; the minimum
ESS, the maximum R-hat and divergences are printed. A run whose R-hat is above `WORST_RHAT`, or of which more than
`MOST_DIVERGENT` of the draws diverged, is not kept.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lanewise.mcmc.inference import data_of, groups_of
from mcmc.posteriors import REFERENCED, Posterior

KEPT = Path(__file__).with_name("references.json")
CHAINS, WARMUP, DRAWS = 32, 1000, 4000
TARGET_ACCEPT = 0.9
# Of those that need shorter steps.
CAREFUL = {"horseshoe": 0.99}
WORST_RHAT, MOST_DIVERGENT = 1.005, 1e-4


def long_run(posterior: Posterior) -> Any:
    """Draws of what is compared, as `InferenceData`."""
    from numpyro.infer import MCMC, NUTS

    kernel = NUTS(
        potential_fn=lambda position: -posterior.logdensity(position),
        target_accept_prob=CAREFUL.get(posterior.name, TARGET_ACCEPT),
    )
    run = MCMC(
        kernel,
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    starts = jax.vmap(posterior.init)(jax.random.split(jax.random.key(0), CHAINS))
    run.run(jax.random.PRNGKey(1), init_params=starts, extra_fields=("diverging",))
    draws = run.get_samples(group_by_chain=True)
    if posterior.shown is not None:
        draws = jax.vmap(jax.vmap(posterior.shown))(draws)
    diverging = run.get_extra_fields(group_by_chain=True)["diverging"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return data_of({"posterior": draws, "sample_stats": {"diverging": diverging}})


def figures(data: Any) -> dict[str, dict[str, Any]]:
    """Of each quantity: its mean, standard deviation, and the Monte Carlo standard errors of both.

    The standard deviation's is that of the mean of squares, by way of the square root's derivative.
    """
    import arviz

    draws, over = groups_of(data)["posterior"], ("chain", "draw")
    mean, sd = draws.mean(over), draws.std(over)
    squares = (draws - mean) ** 2
    measured = {
        "mean": mean,
        "sd": sd,
        "mean_mcse": sd / np.sqrt(arviz.ess(draws, method="mean")),
        "sd_mcse": squares.std(over) / np.sqrt(arviz.ess(squares, method="mean")) / (2.0 * sd),
    }
    return {
        quantity: {
            name: np.round(value[quantity].values, 7).tolist() for name, value in measured.items()
        }
        for quantity in draws.data_vars
    }


def worst_rhat(data: Any) -> float:
    """Rank-normalized and split, over all quantities."""
    import arviz

    found: Any = arviz.rhat(groups_of(data)["posterior"])
    return max(float(value.max()) for value in found.data_vars.values())


def main() -> None:
    import arviz

    found = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    asked = sys.argv[1:]
    for make in REFERENCED:
        posterior = make()
        if asked and posterior.name not in asked:
            continue
        began = time.perf_counter()
        with jax.enable_x64(True):
            data = long_run(posterior)
        ess: Any = arviz.ess(groups_of(data)["posterior"])
        least = min(float(value.min()) for value in ess.data_vars.values())
        rhat, divergences = worst_rhat(data), int(data.sample_stats.diverging.sum())
        print(
            f"{posterior.name}: minimum ESS {least:,.0f}, maximum R-hat {rhat:.4f}, {divergences} divergences,"
            f" {time.perf_counter() - began:.0f} s",
            flush=True,
        )
        if rhat > WORST_RHAT or divergences > MOST_DIVERGENT * CHAINS * DRAWS:
            sys.exit(
                f"{posterior.name}: not a reference; choose other coordinates or shorter steps."
            )
        found[posterior.name] = figures(data)
        KEPT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
