"""How long a lifted program takes to compile, against `jax.jit(jax.vmap(f))` of the same `f`.

Tracing, flattening, lowering and XLA's compilation all count. The target is at most 2.5 times.

    python benchmarks/compile.py [--lanes 256] [--repeats 3]
"""

from __future__ import annotations

import argparse
import statistics

import jax

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
TARGET = "<= 2.5"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    # The first compilation of a process pays for starting XLA.
    compile_seconds(lambda x: x + 1.0, (1.0,))
    claims: list[Claim] = []
    for make in SUBJECTS:
        try:
            subject = make(options.lanes)
        except ImportError as missing:
            print(f"{make.__name__}: left out, {missing.name} is not installed")
            continue
        ours: list[float] = []
        peer: list[float] = []
        for _ in range(options.repeats):
            for transform, times in ((jax.vmap, peer), (lw.vmap, ours)):
                jax.clear_caches()
                fun = transform(subject.fun, in_axes=subject.in_axes)
                times.append(compile_seconds(fun, subject.arguments)[1])
        claim = Claim(
            f"compile: {subject.name}", statistics.median(ours), statistics.median(peer), TARGET
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
