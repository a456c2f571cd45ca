"""The `ticks` carrier against `jax.jit(jax.vmap(f))`, on the CPU, at 256 lanes.

Where lanes diverge around matrix work ours must be at least 1.5 times as fast; where there is little to
gain (scalars, small states) it must not be slower than half of `jax.vmap`.

    python benchmarks/ticks.py [--lanes 256] [--schedule auto] [--only WORD]
"""

from __future__ import annotations

import argparse

import jax

import _programs
import lanewise as lw
from _harness import Claim, compare, report

SUBJECTS = (
    (_programs.nested_loops, ">= 1.5"),
    (_programs.expensive_branch, ">= 1.5"),
    (_programs.expensive_branch_by_hand, ">= 1.5"),
    (_programs.scalar_loops, ">= 0.5"),
    (_programs.funnel_nuts, ">= 0.5"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--schedule", default="auto")
    parser.add_argument("--only", default="", help="subjects whose name holds this word")
    options = parser.parse_args()

    claims: list[Claim] = []
    for make, target in SUBJECTS:
        if options.only not in make.__name__:
            continue
        try:
            subject = make(options.lanes)
        except ImportError as missing:
            print(f"{make.__name__}: left out, {missing.name} is not installed")
            continue
        claims.append(
            compare(
                f"ticks: {subject.name}, {options.lanes} lanes, {jax.default_backend()}",
                lw.vmap(
                    subject.fun,
                    in_axes=subject.in_axes,
                    carrier="ticks",
                    schedule=options.schedule,
                ),
                jax.vmap(subject.peer or subject.fun, in_axes=subject.in_axes),
                subject.arguments,
                target=target,
                agreement=subject.agreement,
            )
        )
    report(claims)


if __name__ == "__main__":
    main()
