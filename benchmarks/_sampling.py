"""One model sampled in this process, whole: what `compile.py` starts, one process a measurement.

    python benchmarks/_sampling.py MODEL {density,adapter,vectorized,sequential,jitted} [--chain]
                                   [--draws 500] [--warmup 500]

`density` and `adapter` are ours, of the plain log density and of the NumPyro model; the others are NumPyro's ways to
run its chains, `jitted` the vectorized one inside one `jax.jit`, which compiles less. Prints, with `--first`, the
seconds of CPU time until the first draw is under way.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

CHAINS = 4


def ours(model: Any, given: argparse.Namespace) -> None:
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

    if given.first:
        events.show_bars_with(Noted)
    density: Any = (
        mcmc.from_numpyro(model.numpyro()) if given.how == "adapter" else model.logdensity
    )
    mcmc.sample(
        density,
        jax.random.key(0),
        chains=CHAINS,
        draws=given.draws,
        warmup=given.warmup,
        init=None if given.how == "adapter" else model.init,
        adaptation="chain" if given.chain else "pooled",
        progress=given.first,
    )


def numpyro(model: Any, given: argparse.Namespace) -> None:
    import jax
    from numpyro.infer import MCMC, NUTS

    run = MCMC(
        NUTS(model.numpyro()),
        num_warmup=given.warmup,
        num_samples=given.draws,
        num_chains=CHAINS,
        chain_method="vectorized" if given.how == "jitted" else given.how,
        progress_bar=False,
    )

    def whole(key: Any) -> Any:
        run.run(key)
        return run.get_samples(group_by_chain=True)

    call = jax.jit(whole) if given.how == "jitted" else whole
    jax.block_until_ready(call(jax.random.PRNGKey(0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("how", choices=("density", "adapter", "vectorized", "sequential", "jitted"))
    parser.add_argument("--chain", action="store_true", help='adaptation="chain"')
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--warmup", type=int, default=500)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    from _models import MODELS
    from _models_more import MORE

    model = (MODELS | MORE)[given.model]()
    run = ours if given.how in ("density", "adapter") else numpyro
    run(model, given)


if __name__ == "__main__":
    main()
