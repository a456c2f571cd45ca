"""One model sampled in this process, whole: what `compile.py` starts, one process a measurement.

    python benchmarks/_sampling.py MODEL {density,adapter,vectorized,sequential} [--chain]

`density` and `adapter` are ours, of the plain log density and of the NumPyro model; the others are NumPyro's ways to
run its chains. Prints, with `--first`, the seconds of CPU time until the first draw is under way.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

CHAINS, DRAWS, WARMUP = 4, 500, 500


def ours(model: Any, how: str, adaptation: str, first: bool) -> None:
    import jax

    from lanewise import mcmc
    from lanewise.core import events

    class Noted:
        """In place of a bar: the first one of the warm-up is made when chains begin to draw."""

        seen = False

        def __init__(self, total: int, label: str) -> None:
            if label.startswith("warm-up") and not Noted.seen:
                Noted.seen = True
                print(f"first draw {time.process_time():.3f}", flush=True)

        def update(self, done: int | None = None, *, total: int | None = None) -> None: ...

        def close(self, finished: bool = True) -> None: ...

    if first:
        events.show_bars_with(Noted)
    density: Any = mcmc.from_numpyro(model.numpyro()) if how == "adapter" else model.logdensity
    mcmc.sample(
        density,
        jax.random.key(0),
        chains=CHAINS,
        draws=DRAWS,
        warmup=WARMUP,
        init=None if how == "adapter" else model.init,
        adaptation=adaptation,
        progress=first,
    )


def numpyro(model: Any, how: str) -> None:
    import jax
    from numpyro.infer import MCMC, NUTS

    run = MCMC(
        NUTS(model.numpyro()),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method=how,
        progress_bar=False,
    )
    run.run(jax.random.PRNGKey(0))
    jax.block_until_ready(run.get_samples(group_by_chain=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("how", choices=("density", "adapter", "vectorized", "sequential"))
    parser.add_argument("--chain", action="store_true", help='adaptation="chain"')
    parser.add_argument("--first", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    from _models import MODELS

    model = MODELS[given.model]()
    if given.how in ("density", "adapter"):
        ours(model, given.how, "chain" if given.chain else "pooled", given.first)
    else:
        numpyro(model, given.how)


if __name__ == "__main__":
    main()
