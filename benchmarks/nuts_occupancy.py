"""How full the gradient runs: recursive NUTS, 32 lanes, under each schedule, with and without refill.

    python benchmarks/nuts_occupancy.py [--chains 32] [--draws 40]

The study of Radul et al. (2019), figure 6, on a logistic regression: of the lanes that the gradient's block ran for,
the share that wanted it. `local` batches by the host's own recursion: lanes at different depths do not run together.
By program counter they do, and lanes that are ahead in their chain, too. TFP's own figures for 32 chains on this class
of machine are 64 to 67% by program counter and 37 to 41% local. With refill four times as many chains as lanes are run.

Shares are of work, in operations; the gradient has all but a thousandth of it.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

import lanewise as lw
from _harness import Claim, report
from lanewise.mcmc import NUTS
from lanewise.mcmc.chain import carried, chain_of, task
from lanewise.mcmc.space import Place

ROWS, FEATURES, STEP = 2_000, 50, 0.03
# Radul et al. (2019) as run on this class of machine: by program counter and by the host's recursion.
TFP_PROGRAM_COUNTER, TFP_LOCAL = 0.67, 0.41
SCHEDULES = ("local", "lowest", "most", "sweep", "meet")


def regression() -> Any:
    """Features of different sizes, so that trajectories differ in length."""
    rng = np.random.default_rng(1)
    sizes = np.geomspace(0.25, 1.0, FEATURES)
    data = (rng.standard_normal((ROWS, FEATURES)) * sizes).astype(np.float32)
    labels = (rng.uniform(size=ROWS) < 0.5).astype(np.float32)

    def density(weights: jax.Array) -> jax.Array:
        logits = data @ weights
        return jnp.sum(labels * logits - jax.nn.softplus(logits)) - 0.5 * weights @ weights

    return density


def occupancy(density: Any, schedule: str, chains: int, draws: int, lanes: int | None) -> float:
    """The share of the work offered to lanes that they wanted."""
    keys = random.split(random.key(2), chains)
    starts = 0.05 * random.normal(random.key(3), (chains, FEATURES))
    value, gradient = jax.jit(jax.vmap(jax.value_and_grad(density)))(starts)
    program = chain_of(NUTS(), density, draws)
    run = lw.vmap(
        program,
        in_axes=(0, 0, *(None,) * 3),
        carrier="ticks",
        schedule=schedule,
        stats=True,
        lanes=lanes,
    )
    place = Place(starts, value, gradient)
    _, stats = run(keys, carried(place, STEP), draws, None, task())
    return float(stats.work) / float(stats.work_offered)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chains", type=int, default=32)
    parser.add_argument("--draws", type=int, default=40)
    given = parser.parse_args()
    density = regression()
    found = {name: occupancy(density, name, given.chains, given.draws, None) for name in SCHEDULES}
    for name in ("sweep", "meet"):
        found[f"{name}, refilled"] = occupancy(
            density, name, 4 * given.chains, given.draws, given.chains
        )
    for name, share in found.items():
        print(f"  {name:<16} {share:.0%}", flush=True)
    by_counter = max(found["sweep"], found["meet"])
    refilled = max(found["sweep, refilled"], found["meet, refilled"])
    report(
        [
            Claim("NUTS occupancy, local", found["local"], TFP_LOCAL, ">= 1", share=True),
            Claim(
                "NUTS occupancy, program counter",
                by_counter,
                TFP_PROGRAM_COUNTER,
                ">= 1",
                share=True,
            ),
            Claim("NUTS occupancy with refill", refilled, 1.0, ">= 0.9", share=True),
        ]
    )


if __name__ == "__main__":
    main()
