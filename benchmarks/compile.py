"""How long a lifted program takes to compile, against `jax.jit(jax.vmap(f))` of the same `f`.

Tracing, flattening, lowering and compilation all count, XLA's and that of the carrier's own compiler. Each is measured
in a process of its own with an empty folder for what compilers keep. The target is at most 2.5 times.

    python benchmarks/compile.py [--lanes 256] [--repeats 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
from jax import lax

import _programs
import lanewise as lw
from _harness import Claim, compile_seconds, report

SUBJECTS = (
    _programs.nested_loops,
    _programs.dear_branch,
    _programs.scalar_loops,
    _programs.funnel_nuts,
    _programs.stiff_solve,
)
TRANSFORMS = {"jax.vmap": jax.vmap, "ours": lw.vmap}
TARGET = "<= 2.5"


def halved(x: jax.Array) -> jax.Array:
    return lax.while_loop(lambda y: y > 1.0, lambda y: y / 2.0, x)


def measure(name: str, transform: str, lanes: int) -> float:
    """Compile one subject in this process, after another: XLA has started, and what is imported late is there."""
    compile_seconds(TRANSFORMS[transform](halved), (jnp.ones(4),))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", nargs=2, metavar=("SUBJECT", "TRANSFORM"))
    options = parser.parse_args()
    if options.measure:
        print(measure(*options.measure, options.lanes))
        return

    claims: list[Claim] = []
    for make in SUBJECTS:
        try:
            subject = make(options.lanes)
        except ImportError as missing:
            print(f"{make.__name__}: left out, {missing.name} is not installed")
            continue
        times: dict[str, list[float]] = {transform: [] for transform in TRANSFORMS}
        for _ in range(options.repeats):
            for transform, found in times.items():
                found.append(measured_apart(make.__name__, transform, options.lanes))
        claim = Claim(
            f"compile: {subject.name}",
            statistics.median(times["ours"]),
            statistics.median(times["jax.vmap"]),
            TARGET,
        )
        verdict = "met" if claim.met else "missed"
        print(
            f"{claim.claim}: ours {claim.ours:.2f} s, jax.vmap {claim.peer:.2f} s,"
            f" {claim.ratio:.2f}x, target {TARGET}: {verdict}",
            flush=True,
        )
        claims.append(claim)
    report(claims)


if __name__ == "__main__":
    main()
