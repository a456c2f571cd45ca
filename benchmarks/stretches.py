"""What it costs that a run is cut into stretches, and the memory that a run takes.

    python benchmarks/stretches.py [--repeats 7] [--device cpu]

The peer is one call of the compiled chain for all draws at once, as long as that is, which can be neither stopped nor
watched; ours is the loop of stretches that `mcmc.sample` runs, with the progress line drawn into a string, and its
draws in arrays. Times are CPU seconds of this process. A Gaussian of ten dimensions and eight schools, 4 and 1,000
chains. Then the most memory that draws of 600 MB take, and that they take when they are written to disk, beside the
draws.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from _harness import Claim, in_turns, report, use_device, usual_arguments
from lanewise import mcmc
from lanewise.core.errors import Outcome
from lanewise.mcmc.chain import carried, chain_of, task
from lanewise.mcmc.running import prepared
from lanewise.mcmc.saved import Saved
from lanewise.mcmc.settings import Settings
from lanewise.mcmc.space import Place
from lanewise.mcmc.start import starts
from lanewise.mcmc.stretches import bucket

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)
STEP = 0.4
# Draws of each chain, so that a run takes a second or two.
DRAWS = {4: 100_000, 1000: 1_000}
OVERHEAD, MEMORY, ON_DISK = "<= 1.03", "<= 1.5", "<= 0.5"


def gaussian(x: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(x**2)


def eight_schools(x: jax.Array) -> jax.Array:
    mean, log_spread, apart = x[0], x[1], x[2:]
    school = mean + jnp.exp(log_spread) * apart
    likelihood = -0.5 * jnp.sum(((EFFECTS - school) / ERRORS) ** 2)
    prior = -0.5 * ((mean / 5.0) ** 2 + jnp.sum(apart**2))
    return likelihood + prior + log_spread - jnp.log1p((jnp.exp(log_spread) / 5.0) ** 2)


def init(key: jax.Array) -> jax.Array:
    return 0.1 * jax.random.normal(key, (10,))


def cpu(go: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    found = go()
    return time.process_time() - began, found


def contenders(density: Any, chains: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Draws by stretches, and by one call."""
    draws, key = DRAWS[chains], jax.random.key(0)
    model = mcmc.Model(density, init)
    settings = Settings(chains, 0, mcmc.NUTS(), "unit", "pooled", STEP)
    begin = starts(model, None, chains, key, bucket(chains))

    def ours() -> Any:
        options: Any = {"lanes": None, "carrier": "auto"}
        run = prepared(
            model, settings, begin, draws, saved=Saved(None), progress=True, cluster=None, **options
        )
        with contextlib.redirect_stderr(io.StringIO()):
            state = run.go()
        return run.keeping.groups(int(state.number))["posterior"]["x"]

    program = chain_of(mcmc.NUTS(), begin.density, draws)
    whole = lw.vmap(program, in_axes=(0, 0, None, None, None), throw=False)
    positions = begin.positions[:chains]
    nothing = np.zeros(chains, positions.dtype)
    place: Any = Place(positions, nothing, np.zeros_like(positions))  # type: ignore[arg-type]
    first = carried(place, STEP)

    def peer() -> Any:
        (_, kept), outcomes = whole(
            begin.keys[:chains], first, np.int32(draws), None, task(fresh=True)
        )
        assert (np.asarray(outcomes.code) == int(Outcome.DONE)).all()
        return jax.tree.map(np.asarray, kept).positions

    return ours, peer


MEASURED = """
import resource, sys
import jax, jax.numpy as jnp
from lanewise import mcmc
from lanewise.mcmc.inference import groups_of
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def go(draws, **options):
    before = peak()
    data = mcmc.sample(
        lambda x: -0.5 * jnp.sum(x**2), 0, chains=100, draws=draws, warmup=0, step_size=0.5,
        init=lambda key: jax.random.normal(key, (500,)), sampler=mcmc.HMC(steps=1), progress=False,
        **options,
    )
    kept = sum(v.nbytes for group in groups_of(data).values() for v in group.values())
    return kept, peak() - before
go(200)
print(*go(3000, **({"resume": sys.argv[1]} if len(sys.argv) > 1 else {})))
"""


def memory(*arguments: str) -> tuple[float, float]:
    """Bytes of the draws, and what a process that has sampled before needs more for them."""
    command = [sys.executable, "-c", MEASURED, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    kept, added = map(float, ran.stdout.split()[-2:])
    return kept, added


def main() -> None:
    options = usual_arguments(__doc__, repeats=7).parse_args()
    use_device(options.device)
    claims: list[Claim] = []
    for density in (gaussian, eight_schools):
        for chains in DRAWS:
            ours, peer = contenders(density, chains)
            compiling = [cpu(go) for go in (ours, peer)]
            np.testing.assert_array_equal(compiling[0][1], compiling[1][1])
            name = f"{density.__name__}, {chains} chains × {DRAWS[chains]:,} draws"
            print(f"{name}: first calls {compiling[0][0]:.2f} s, {compiling[1][0]:.2f} s of CPU")
            claims.append(
                in_turns(
                    f"stretches, {name}: CPU time over one call's",
                    OVERHEAD,
                    ("stretches", lambda ours=ours: cpu(ours)[0]),
                    ("one call", lambda peer=peer: cpu(peer)[0]),
                    options.repeats,
                )
            )
    with tempfile.TemporaryDirectory() as directory:
        for where, target, arguments in (("memory", MEMORY, ()), ("disk", ON_DISK, (directory,))):
            kept, added = memory(*arguments)
            print(
                f"{kept / 1e6:.0f} MB of draws kept in {where}: {added / 1e6:.0f} MB more at most"
            )
            claims.append(Claim(f"peak memory over draws, kept in {where}", added, kept, target))
    report(claims)


if __name__ == "__main__":
    main()
