"""Many-chain NUTS: useful gradients and effective draws a second, beside the samplers people use.

    python benchmarks/nuts.py [--targets gaussian-2 ...] [--repeats 5] [--chains N] [--device cpu] [--fsm PATH]

Every sampler runs the same chains on the same density with the same fixed step size, unit masses and at most 2**10
points a trajectory; only their ways to run a batch differ. A gradient is useful if its point belongs to the chain's own
trajectory: what a vectorized sampler computes for lanes that wait is not counted. The limit is the batched gradient
alone. ESS is NumPyro's estimate, the least over dimensions, a second of run time.

Peers: NumPyro (`chain_method="vectorized"`), BlackJAX under `jax.vmap`, and with `--fsm` a checkout of the
finite-state-machine NUTS of Dance et al. (2025). A peer that is not installed is reported as missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

import lanewise as lw
from _harness import Claim, report, use_device
from lanewise.cpp.toolchain import host
from lanewise.mcmc import NUTS
from lanewise.mcmc.chain import carried, chain_of, task
from lanewise.mcmc.space import Place

MAX_DEPTH = 10
# By how many chains the effective sample size is estimated.
JUDGED_CHAINS = 512


@dataclass(frozen=True)
class Target:
    """A density, where chains start, the step size, and how many draws make a run of a good length."""

    name: str
    density: Callable[[jax.Array], jax.Array]
    start: Callable[[jax.Array], jax.Array]
    step: float
    draws: int
    # How many times the best peer's rate, and NumPyro's on a GPU; which share of the limit on each.
    least: float
    least_on_gpu: float = 20.0
    of_limit: float | None = None
    of_limit_on_gpu: float = 0.85
    chains: int = 256


def gaussian_2() -> Target:
    covariance = np.array([[1.0, 0.5], [0.5, 1.0]])
    precision = np.linalg.inv(covariance).astype(np.float32)
    return Target(
        "Gaussian, 2-d",
        lambda x: -0.5 * x @ (precision @ x),
        lambda key: random.normal(key, (2,)),
        step=0.5,
        draws=400,
        least=4.0,
    )


def gaussian_100() -> Target:
    """Correlated: the spectrum of a random covariance, condition number about 50."""
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.standard_normal((100, 100)))
    variances = np.geomspace(0.02, 1.0, 100)
    precision = ((basis / variances) @ basis.T).astype(np.float32)
    factor = (basis * np.sqrt(variances)).astype(np.float32)
    return Target(
        "Gaussian, 100-d, correlated",
        lambda x: -0.5 * x @ (precision @ x),
        lambda key: factor @ random.normal(key, (100,)),
        step=0.15,
        draws=50,
        least=4.0,
    )


def logistic() -> Target:
    """Features of different sizes, so that trajectories differ in length."""
    rng = np.random.default_rng(1)
    data = (rng.standard_normal((10_000, 100)) * np.geomspace(0.5, 1.0, 100)).astype(np.float32)
    truth = (0.3 * rng.standard_normal(100)).astype(np.float32)
    labels = (rng.uniform(size=10_000) < 1 / (1 + np.exp(-data @ truth))).astype(np.float32)

    def density(weights: jax.Array) -> jax.Array:
        logits = data @ weights
        return jnp.sum(labels * logits - jax.nn.softplus(logits)) - 0.5 * weights @ weights

    return Target(
        "logistic regression, 10,000 x 100",
        density,
        lambda key: truth + 0.02 * random.normal(key, (100,)),
        step=0.0175,
        draws=24,
        least=1.15,
        least_on_gpu=1.5,
        of_limit=0.93,
    )


def funnel() -> Target:
    def density(x: jax.Array) -> jax.Array:
        neck, rest = x[0], x[1:]
        return -0.5 * (neck**2 / 9.0 + jnp.sum(rest**2) * jnp.exp(-neck) + rest.size * neck)

    return Target(
        "Neal's funnel, 10-d",
        density,
        lambda key: random.normal(key, (10,)),
        step=0.2,
        draws=40,
        least=6.0,
        chains=1024,
    )


TARGETS = {
    "gaussian-2": gaussian_2,
    "gaussian-100": gaussian_100,
    "logistic": logistic,
    "funnel": funnel,
}


@dataclass(frozen=True)
class Contender:
    """A sampler, ready to run: gives draws (chain, draw, dimension) and its useful gradients."""

    name: str
    run: Callable[[], tuple[Any, Any]]


def ours(target: Target, starts: jax.Array, keys: jax.Array) -> Contender:
    program = chain_of(NUTS(MAX_DEPTH), target.density, target.draws)
    run = jax.jit(lw.vmap(program, in_axes=(0, 0, *(None,) * 3), max_depth=MAX_DEPTH + 2))
    value, gradient = jax.jit(jax.vmap(jax.value_and_grad(target.density)))(starts)
    begun = carried(Place(starts, value, gradient), target.step)

    def go() -> tuple[Any, Any]:
        _, kept = run(keys, begun, target.draws, None, task())
        return kept.positions, jnp.sum(kept.info.leapfrogs)

    return Contender("lanewise", go)


def blackjax_vmap(target: Target, starts: jax.Array, keys: jax.Array) -> Contender:
    import blackjax

    kernel = blackjax.nuts.build_kernel()
    mass = jnp.ones(starts.shape[1])

    def chain(key: jax.Array, start: jax.Array) -> Any:
        def draw(state: Any, key: jax.Array) -> Any:
            state, info = kernel(
                key, state, target.density, target.step, mass, max_num_doublings=MAX_DEPTH
            )
            return state, (state.position, info.num_integration_steps)

        state = blackjax.nuts.init(start, target.density)
        _, (positions, steps) = lax.scan(draw, state, random.split(key, target.draws))
        return positions, jnp.sum(steps)

    run = jax.jit(jax.vmap(chain))

    def go() -> tuple[Any, Any]:
        positions, steps = run(keys, starts)
        return positions, jnp.sum(steps)

    return Contender("BlackJAX", go)


def numpyro_vectorized(target: Target, starts: jax.Array, keys: jax.Array) -> Contender:
    """What `chain_method="vectorized"` runs; `MCMC.run` itself compiles its loop over draws anew at every call."""
    from numpyro.infer import NUTS as Kernel

    kernel = Kernel(
        potential_fn=lambda x: -target.density(x),
        step_size=target.step,
        adapt_step_size=False,
        adapt_mass_matrix=False,
        max_tree_depth=MAX_DEPTH,
    )
    state = kernel.init(random.key_data(keys), 0, starts, (), {})

    @jax.jit
    def run(state: Any) -> tuple[Any, Any]:
        def draw(state: Any, _: None) -> tuple[Any, Any]:
            state = kernel.sample(state, (), {})
            return state, (state.z, state.num_steps)

        _, (positions, steps) = lax.scan(draw, state, length=target.draws)
        return jnp.swapaxes(positions, 0, 1), jnp.sum(steps)

    return Contender("NumPyro", lambda: run(state))


def fsm(path: str) -> Callable[..., Contender]:
    """The finite-state-machine NUTS of a checkout at `path`."""
    spec = importlib.util.spec_from_file_location("fsm_nuts", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"--fsm {path}: no Python module is there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make(target: Target, starts: jax.Array, keys: jax.Array) -> Contender:
        """`path` must define `sample(density, starts, keys, step, draws, max_depth)`, giving draws and gradients."""

        def go() -> tuple[Any, Any]:
            return module.sample(target.density, starts, keys, target.step, target.draws, MAX_DEPTH)

        return Contender("FSM NUTS", go)

    return make


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    # Large kernels begin on a quick tier; what is timed is the code that a longer run would have.
    host.wait()
    start = time.perf_counter()
    out = jax.block_until_ready(run())
    return time.perf_counter() - start, out


def least_ess(positions: Any) -> float:
    """The least over dimensions; chains are alike, so that many are judged by some of them."""
    from numpyro.diagnostics import effective_sample_size

    chains = positions.shape[0]
    some = np.asarray(positions[:JUDGED_CHAINS])
    return float(np.min(effective_sample_size(some))) * chains / some.shape[0]


def measure(target: Target, chains: int, repeats: int, peers: dict[str, Any]) -> list[Claim]:
    """Run every sampler in turns; print rates, and give the claims."""
    keys = random.split(random.key(2), chains)
    starts = jax.jit(jax.vmap(target.start))(random.split(random.key(3), chains))
    contenders = [ours(target, starts, keys)]
    for name, make in peers.items():
        try:
            contenders.append(make(target, starts, keys))
        except ImportError:
            print(f"  {name} is not installed, and is left out", flush=True)
    limit = jax.jit(jax.vmap(jax.value_and_grad(target.density)))

    def alone() -> tuple[Any, Any]:
        return limit(starts), chains

    contenders.append(Contender("gradient alone", alone))
    print(f"{target.name}: {chains} chains, {target.draws} draws, step {target.step}", flush=True)
    draws: dict[str, Any] = {}
    for one in contenders:
        compiling, _ = seconds(one.run)
        first, (positions, gradients) = seconds(one.run)
        draws[one.name] = (positions, int(gradients))
        print(f"  {one.name}: first call {compiling:.1f} s, second {first:.3f} s", flush=True)
    times: dict[str, list[float]] = {one.name: [] for one in contenders}
    for _ in range(repeats):
        for one in contenders:
            times[one.name].append(seconds(one.run)[0])
    rates = {name: draws[name][1] / statistics.median(taken) for name, taken in times.items()}
    for name, rate in rates.items():
        line = f"  {name:<15} {rate / 1e3:12,.1f} thousand gradients/s"
        if name != "gradient alone" and "NumPyro" in draws:
            ess = least_ess(draws[name][0])
            line += f"   {ess / statistics.median(times[name]):12,.0f} least ESS/s"
            line += f"   {draws[name][1] / chains / target.draws:6.1f} gradients a draw"
        print(line, flush=True)
    others = {n: r for n, r in rates.items() if n not in ("lanewise", "gradient alone")}
    claims = []
    on_gpu = jax.default_backend() == "gpu"
    if on_gpu:
        others = {name: rate for name, rate in others.items() if name == "NumPyro"}
    if others:
        best = max(others, key=lambda n: others[n])
        claims.append(
            Claim(
                f"NUTS, {target.name}: seconds a useful gradient, beside {best}",
                1 / rates["lanewise"],
                1 / others[best],
                f">= {target.least_on_gpu if on_gpu else target.least}",
            )
        )
    if "FSM NUTS" in rates:
        claims.append(
            Claim(
                f"NUTS, {target.name}: against the finite-state machine",
                1 / rates["lanewise"],
                1 / rates["FSM NUTS"],
                ">= 4",
            )
        )
    if target.of_limit is not None:
        claims.append(
            Claim(
                f"NUTS, {target.name}: share of the batched gradient's rate",
                rates["lanewise"],
                rates["gradient alone"],
                f">= {target.of_limit_on_gpu if on_gpu else target.of_limit}",
                share=True,
            )
        )
    return claims


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--chains", type=int, help="instead of each target's own number")
    parser.add_argument("--device", choices=("cpu", "gpu"))
    parser.add_argument("--fsm", help="an adapter to a checkout of the finite-state-machine NUTS")
    given = parser.parse_args()
    use_device(given.device)
    peers = {"NumPyro": numpyro_vectorized, "BlackJAX": blackjax_vmap}
    if given.fsm:
        peers["FSM NUTS"] = fsm(given.fsm)
    claims = []
    for name in given.targets:
        target = TARGETS[name]()
        claims += measure(target, given.chains or target.chains, given.repeats, peers)
    report(claims)


if __name__ == "__main__":
    main()
