"""The sampler against NumPyro and nutpie, in one run: from nothing, once compiled, with many chains, and by gradient.

Sixteen models (`_models.py`, `_models_more.py`), each as a plain log density here and as a NumPyro model there, with
the same unconstrained coordinates; and four PyMC models (`_models_pymc.py`), here by `from_pymc`, there by nutpie with
its own compiler, Numba. NumPyro runs its chains vectorized, the whole of `MCMC.run` inside one `jax.jit` of the key:
called plainly, NumPyro 0.22 compiles its loop again in every `run`, also on the same object, so that "warm" would be
its compiler's time; and it takes longer from nothing too. That neither side compiles with XLA in a measured call is
checked. Ours is `mcmc.sample`, defaults throughout; `target_accept` is 0.8 on both sides.

| part | measured | target |
|---|---|---|
| `cold` | a fresh process with empty caches, 4 x 1,000 draws after 1,000 of warm-up, imports counted | <= NumPyro's |
| `warm` | the second such call of a process | <= half of NumPyro's |
| `many` | 256 chains of 200 draws after 200, once compiled | <= a third of NumPyro's |
| `efficiency` | minimum bulk ESS of the draws by gradients of the draws, of the runs of `warm` | >= 0.95 of NumPyro's |
| `pymc` | minimum bulk ESS by second, 4 x 1,000 draws after 400, once compiled, double precision | >= nutpie's |

A call of ours ends with ArviZ's data, NumPyro's with arrays. Claims are of CPU seconds, or of wall seconds with
`--clock wall`; both are printed, and what the first call took, which compiles. A minimum of ESS is noisy: it is the
median over `--repeats` runs, each with a key of its own. Funnels are left out of `efficiency`, where the ESS of neither
means anything.

    python benchmarks/sampling.py [--repeats 5] [--parts cold warm ...] [--models NAME ...] [--clock {cpu,wall}]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from _harness import Claim, compilations, geometric_mean, report
from _models import MODELS
from _models_more import MORE
from _models_pymc import MODELS as PYMC

ALL = MODELS | MORE
PARTS = ("cold", "warm", "many", "efficiency", "pymc")
TARGETS = {"cold": "<= 1.0", "warm": "<= 0.5", "many": "<= 0.3333", "efficiency": ">= 0.95"}
NO_ESS = ("funnel",)
FEW, MANY = (4, 1000, 1000), (256, 200, 200)  # chains, warm-up, draws
PYMC_RUN = (4, 400, 1000)


class Took(NamedTuple):
    """What a call took, and what it drew."""

    cpu: float
    wall: float
    ess: float
    gradients: int


Call = Callable[[int], tuple[Any, Any]]  # of a seed; posterior by name and gradients of each draw


def timed(call: Call, seed: int) -> Took:
    import arviz
    import numpy as np

    from lanewise.cpp.toolchain import host

    host.wait()  # large kernels begin on a quick tier
    cpu, wall = time.process_time(), time.perf_counter()
    draws, gradients = call(seed)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    found: Any = arviz.ess({name: np.asarray(value) for name, value in draws.items()})
    least = min(float(value.min()) for value in found.data_vars.values())
    return Took(cpu, wall, least, int(np.asarray(gradients).sum()))


def ours(model: Any, size: tuple[int, int, int], init: Any = None) -> Call:
    import jax

    from lanewise import mcmc

    chains, warmup, draws = size

    def call(seed: int) -> tuple[Any, Any]:
        data = mcmc.sample(
            model,
            jax.random.key(seed),
            chains=chains,
            draws=draws,
            warmup=warmup,
            init=init,
            progress=False,
        )
        posterior = {name: value.values for name, value in data.posterior.data_vars.items()}
        return posterior, data.sample_stats["n_steps"].values

    return call


def numpyro(model: Any, size: tuple[int, int, int]) -> Call:
    import jax
    from numpyro.infer import MCMC, NUTS

    chains, warmup, draws = size
    run = MCMC(
        NUTS(model),
        num_warmup=warmup,
        num_samples=draws,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )

    @jax.jit
    def whole(key: Any) -> tuple[Any, Any]:
        run.run(key, extra_fields=("num_steps",))
        fields = run.get_extra_fields(group_by_chain=True)
        return run.get_samples(group_by_chain=True), fields["num_steps"]

    def call(seed: int) -> tuple[Any, Any]:
        return jax.block_until_ready(whole(jax.random.PRNGKey(seed)))

    return call


def nutpie(model: Any) -> Call:
    import nutpie as peer

    chains, warmup, draws = PYMC_RUN
    compiled: Any = None

    def call(seed: int) -> tuple[Any, Any]:
        nonlocal compiled
        if compiled is None:
            compiled = peer.compile_pymc_model(model)
        data: Any = peer.sample(
            compiled, chains=chains, tune=warmup, draws=draws, seed=seed, progress_bar=False
        )
        posterior = data.posterior
        named = {name: posterior[name].values for name in posterior.data_vars}
        return named, data.sample_stats["n_steps"].values

    return call


def in_turns(contenders: dict[str, Call], repeats: int) -> dict[str, list[Took]]:
    """Each called in turns; the first call of each is the one that compiles."""
    found: dict[str, list[Took]] = {name: [] for name in contenders}
    compiled = compilations()
    for seed in range(repeats + 1):
        for name, call in contenders.items():
            before = len(compiled)
            found[name].append(timed(call, seed))
            if seed and compiled[before:]:
                raise AssertionError(f"{name} compiled again: {compiled[before:]}")
    return found


def measured(part: str, name: str, repeats: int) -> dict[str, list[Took]]:
    """A part of the benchmark for one model, in this process."""
    warnings.simplefilter("ignore")
    if part == "pymc":
        from lanewise import mcmc

        model = PYMC[name]()
        return in_turns(
            {"ours": ours(mcmc.from_pymc(model), PYMC_RUN), "peer": nutpie(model)}, repeats
        )
    model, size = ALL[name](), MANY if part == "many" else FEW
    pair = {
        "ours": ours(model.logdensity, size, model.init),
        "peer": numpyro(model.numpyro(), size),
    }
    return in_turns(pair, repeats)


def measured_apart(part: str, name: str, repeats: int) -> dict[str, list[Took]]:
    """The same in a process of its own: PyMC's JAX backend turns on double precision, and no model warms another's."""
    arguments = ["--measure", part, name, "--repeats", str(repeats)]
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [sys.executable, __file__, *arguments],
            env=os.environ | {"XDG_CACHE_HOME": empty},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{part}, {name}:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {who: [Took(*took) for took in calls] for who, calls in found.items()}


def middle(calls: list[Took], value: Callable[[Took], float]) -> float:
    """The median over the calls that compile nothing."""
    return statistics.median(map(value, calls[1:]))


def claimed(title: str, ours: float, peer: float, target: str, said: str, share: bool) -> Claim:
    claim = Claim(title, ours, peer, target, share)
    print(
        f"{title}: {ours:.4g}, peer {peer:.4g}, {claim.ratio:.2f}, target {target}:"
        f" {'met' if claim.met else 'missed'}; {said}",
        flush=True,
    )
    return claim


def compared(part: str, name: str, found: dict[str, list[Took]], clock: str) -> Claim:
    mine, peer = found["ours"], found["peer"]
    if part == "efficiency":
        values = (middle(calls, lambda took: took.ess / took.gradients) for calls in (mine, peer))
        numbers = ", ".join(
            f"ESS {middle(calls, lambda t: t.ess):,.0f} of {middle(calls, lambda t: t.gradients):,.0f} gradients"
            for calls in (mine, peer)
        )
        return claimed(f"ESS by gradient: {name}", *values, TARGETS[part], numbers, True)
    seconds = "; ".join(
        f"{who} {middle(calls, lambda t: t.cpu):.2f} s CPU, {middle(calls, lambda t: t.wall):.2f} s wall,"
        f" first call {calls[0].cpu:.1f} and {calls[0].wall:.1f}"
        for who, calls in found.items()
    )
    if part == "pymc":
        rate = [
            middle(calls, lambda took: took.ess / getattr(took, clock)) for calls in (mine, peer)
        ]
        ratio = f", gradients {middle(mine, lambda t: t.gradients):,.0f} and {middle(peer, lambda t: t.gradients):,.0f}"
        return claimed(f"PyMC, ESS a second: {name}", *rate, ">= 1.0", seconds + ratio, True)
    values = (middle(calls, lambda took: getattr(took, clock)) for calls in (mine, peer))
    return claimed(f"{part}: {name}", *values, TARGETS[part], seconds, False)


def cold(name: str, repeats: int, clock: str) -> Claim:
    """From nothing, in turns."""
    import compile as compiling

    size = ("--warmup", str(FEW[1]), "--draws", str(FEW[2]))
    times: dict[str, list[Any]] = {"density": [], "jitted": []}
    for _ in range(repeats):
        for how, found in times.items():
            with tempfile.TemporaryDirectory() as empty:
                found.append(compiling.sampled(empty, name, how, *size))
    mine, peer = map(compiling.middle, times.values())
    said = f"ours {mine.cpu:.1f} s CPU, {mine.wall:.1f} wall; NumPyro {peer.cpu:.1f} and {peer.wall:.1f}"
    values = (getattr(mine, clock), getattr(peer, clock))
    return claimed(f"cold: {name}", *values, TARGETS["cold"], said, False)


def claims_of(name: str, options: argparse.Namespace) -> list[Claim]:
    """Those of one model against NumPyro."""
    claims = []
    if "cold" in options.parts:
        claims.append(cold(name, max(1, options.repeats // 2), options.clock))
    if {"warm", "efficiency"} & {*options.parts}:
        found = measured_apart("warm", name, options.repeats)
        wanted = [part for part in ("warm", "efficiency") if part in options.parts]
        claims += [
            compared(part, name, found, options.clock)
            for part in wanted
            if part == "warm" or name not in NO_ESS
        ]
    if "many" in options.parts:
        found = measured_apart("many", name, options.repeats)
        claims.append(compared("many", name, found, options.clock))
    return claims


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--models", nargs="+", choices=ALL, default=[*ALL])
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--measure", nargs=2, metavar=("PART", "MODEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(*options.measure, options.repeats)))
        return
    claims = [claim for name in options.models for claim in claims_of(name, options)]
    if "pymc" in options.parts:
        claims += [
            compared("pymc", name, measured_apart("pymc", name, options.repeats), options.clock)
            for name in options.models
            if name in PYMC
        ]
    for kind in dict.fromkeys(claim.claim.partition(":")[0] for claim in claims):
        ratios = [claim.ratio for claim in claims if claim.claim.startswith(kind)]
        met = sum(claim.met for claim in claims if claim.claim.startswith(kind))
        print(f"{kind}: {met} of {len(ratios)} met, geometric mean {geometric_mean(ratios):.2f}")
    report(claims)


if __name__ == "__main__":
    main()
