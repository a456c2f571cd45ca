"""Array operators where JAX's gradients are known to be slow: products, scans, gathers in loops.

python benchmarks/array_operators.py [--only product recurrences scan_compile gathers] [--device cpu]
"""

from __future__ import annotations

import argparse

from _harness import Claim, report, use_device
from ad import gathers, product, recurrences, scan_compile

PARTS = {
    "product": product.measure,
    "recurrences": recurrences.measure,
    "scan_compile": scan_compile.measure,
    "gathers": gathers.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="*", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--device", choices=("cpu", "gpu"))
    options = parser.parse_args()
    use_device(options.device)
    claims: list[Claim] = []
    for name in options.only:
        claims += PARTS[name]()
    report(claims)


if __name__ == "__main__":
    main()
