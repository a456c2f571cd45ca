"""How long programs take to compile, against `jax.jit(jax.vmap(f))`, and models to sample, against NumPyro.

Tracing, flattening, lowering and compilation all count, XLA's and that of the carrier's own compiler. Each is measured
in a process of its own with an empty folder for the compilers' caches. The target is at most 2.5 times.

Ten models (`_models.py`) are sampled with 4 chains of 500 + 500 draws, as plain densities and from NumPyro's own
models, from the start of a process to its end. NumPyro runs its chains "vectorized", which is its faster way here; its
samples stay JAX arrays, while ours become ArviZ's data, whose import is counted. The claims are of CPU seconds, with
those of compilers; the one that makes the optimized kernel, beside a run of more than a second, is killed when the
process ends, and then counts as far as the system says. `LANEWISE_COMPILE=optimized` has it finish first. Wall seconds
stand beside. The target is no more than NumPyro's. A second process, for which kernels are cached, has 3 seconds of CPU
time to its first draw, imports included.

Gradients are compared with JAX's own, second derivatives of a recursion with the first (`_compile_gradients.py`).

On a GPU, or with `--only control`, the matrix-heavy programs of the suite (`control/`) are compiled for the lanes that
they are timed with there; the target is at most twice `jax.vmap`.

    python benchmarks/compile.py [--lanes 256] [--repeats 3] [--only {vmap,control,sampling,gradients}]
                                 [--models NAME ...]
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import _compile_gradients
import _models
import _programs
import lanewise as lw
from _harness import Claim, compile_seconds, in_turns, report
from control import SUITE, Case
from control.measure import lanes_for

SUBJECTS = (
    _programs.nested_loops,
    _programs.expensive_branch,
    _programs.scalar_loops,
    _programs.funnel_nuts,
    _programs.stiff_solve,
    _programs.fitted_rates,
)
TRANSFORMS = {"jax.vmap": jax.vmap, "ours": lw.vmap}
TARGET = "<= 2.5"
MATRIX = {entry.key: entry for entry in SUITE if "matrix" in entry.tags}
MATRIX_TARGET = "<= 2.0"


def halved(x: jax.Array) -> jax.Array:
    return lax.while_loop(lambda y: y > 1.0, lambda y: y / 2.0, x)


def ours_of(case: Case) -> Callable[..., Any]:
    return lw.vmap(case.ours, in_axes=case.in_axes, **case.options)


def twin_of(case: Case) -> Callable[..., Any]:
    return jax.vmap(case.twin, in_axes=case.in_axes)


def measure(name: str, transform: str, lanes: int) -> float:
    """Compile one subject in this process, after another: XLA has started, and what is imported late is there."""
    compile_seconds(TRANSFORMS[transform](halved), (jnp.ones(4),))
    if name in MATRIX:
        case = MATRIX[name].make(lanes, False)
        lifted = {"ours": ours_of, "jax.vmap": twin_of}[transform](case)
        return compile_seconds(lifted, jax.device_put(case.arguments))[1]
    subject = getattr(_programs, name)(lanes)
    fun = TRANSFORMS[transform](subject.fun, in_axes=subject.in_axes)
    return compile_seconds(fun, subject.arguments)[1]


def measured_apart(name: str, transform: str, lanes: int) -> float:
    """The same in a fresh process."""
    with tempfile.TemporaryDirectory() as empty:
        kept_nowhere = {**os.environ, "TMPDIR": empty, "XDG_CACHE_HOME": empty}
        done = subprocess.run(
            [sys.executable, __file__, "--measure", name, transform, "--lanes", str(lanes)],
            env=kept_nowhere,
            capture_output=True,
            text=True,
            check=True,
        )
    return float(done.stdout.split()[-1])


class Seconds(NamedTuple):
    """What a process took."""

    cpu: float
    wall: float
    said: str


def sampled(cache: str, *arguments: str) -> Seconds:
    """A model sampled in a fresh process, which caches kernels in `cache`."""
    script = str(Path(__file__).with_name("_sampling.py"))
    # Matplotlib, which ArviZ imports, would list this machine's fonts anew in an empty folder.
    environment = {"MPLCONFIGDIR": str(Path.home() / ".config" / "matplotlib"), **os.environ}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, script, *arguments],
        env=environment | {"XDG_CACHE_HOME": cache},
        capture_output=True,
        text=True,
        check=True,
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Seconds(cpu, wall, done.stdout)


def middle(found: list[Seconds]) -> Seconds:
    return Seconds(*(statistics.median(column) for column in list(zip(*found))[:2]), "")


def sampling(models: list[str], repeats: int) -> list[Claim]:
    """Ours and NumPyro in turns, each in a fresh process with nothing cached; then ours again with its cache."""
    claims = []
    for name in models:
        contenders = {
            "ours": ("density",),
            "ours, its NumPyro model": ("adapter",),
            "NumPyro": ("vectorized",),
        }
        if name == "poisson":
            contenders['ours, adaptation="chain"'] = ("density", "--chain")
        times: dict[str, list[Seconds]] = {contender: [] for contender in contenders}
        first = []
        for _ in range(repeats):
            for contender, arguments in contenders.items():
                with tempfile.TemporaryDirectory() as empty:
                    times[contender].append(sampled(empty, name, *arguments))
                    if contender == "ours":
                        again = sampled(empty, name, *arguments, "--first")
                        first.append(float(again.said.split()[-1]))
        peer = middle(times.pop("NumPyro"))
        title = _models.MODELS[name]().name
        for contender, found in times.items():
            mine = middle(found)
            claim = Claim(f"sample: {title}, {contender}", mine.cpu, peer.cpu, "<= 1.0")
            claims.append(claim)
            print(
                f"{claim.claim}: {mine.cpu:.1f} s CPU, NumPyro {peer.cpu:.1f}, {claim.ratio:.2f}x, target <= 1.0:"
                f" {'met' if claim.met else 'missed'}; wall {mine.wall:.1f} s, NumPyro {peer.wall:.1f}",
                flush=True,
            )
        claims.append(
            Claim(f"first draw, kernels kept: {title}", statistics.median(first), 3.0, "<= 1.0")
        )
        print(f"{claims[-1].claim}: {claims[-1].ours:.2f} s CPU, target <= 3", flush=True)
    return claims


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("vmap", "control", "sampling", "gradients"))
    parser.add_argument("--models", nargs="+", choices=_models.MODELS, default=[*_models.MODELS])
    parser.add_argument("--measure", nargs=2, metavar=("SUBJECT", "TRANSFORM"))
    options = parser.parse_args()
    if options.measure:
        print(measure(*options.measure, options.lanes))
        return
    claims: list[Claim] = []
    if options.only in (None, "vmap"):
        claims += lifting(options.lanes, options.repeats)
    if options.only == "control" or (options.only is None and jax.default_backend() == "gpu"):
        claims += [
            compared(entry.name, entry.key, lanes_for(entry), options.repeats, MATRIX_TARGET)
            for entry in MATRIX.values()
        ]
    if options.only in (None, "sampling"):
        claims += sampling(options.models, options.repeats)
    if options.only in (None, "gradients"):
        claims += _compile_gradients.claims(options.repeats)
    report(claims)


def lifting(lanes: int, repeats: int) -> list[Claim]:
    """Programs lifted by ours and by `jax.vmap`."""
    claims: list[Claim] = []
    for make in SUBJECTS:
        try:
            subject = make(lanes)
        except ImportError as missing:
            print(f"{make.__name__}: left out, {missing.name} is not installed")
            continue
        claims.append(compared(subject.name, make.__name__, lanes, repeats, TARGET))
    return claims


def compared(title: str, name: str, lanes: int, repeats: int, target: str) -> Claim:
    """One program compiled by both, in turns."""
    ours, peer = (
        (transform, functools.partial(measured_apart, name, transform, lanes))
        for transform in ("ours", "jax.vmap")
    )
    return in_turns(f"compile: {title}", target, ours, peer, repeats)


if __name__ == "__main__":
    main()
