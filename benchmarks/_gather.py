"""Run benchmarks one after another and gather their claims (`make bench`).

Output is shown as it comes. A benchmark that crashes does not stop the others; the exit status says
whether all of them ran to their end. A claim that misses its target is shown and is no failure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def claims_in(line: str) -> list[dict[str, Any]]:
    """The claim a line holds, if it holds one.

    >>> claims_in('{"claim": "sums", "met": true}')
    [{'claim': 'sums', 'met': True}]
    >>> claims_in("compiling")
    []
    """
    if not line.startswith("{"):
        return []
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return []
    return [record] if "claim" in record else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("benchmarks", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    claims: list[dict[str, Any]] = []
    crashed: list[Path] = []
    for benchmark in options.benchmarks:
        print(f"== {benchmark}", flush=True)
        with subprocess.Popen(
            [sys.executable, benchmark], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                claims += claims_in(line)
        if process.returncode != 0:
            crashed.append(benchmark)
    options.out.write_text("".join(json.dumps(claim) + "\n" for claim in claims))

    print(f"\n{'claim':<64} {'ours':>10} {'peer':>10} {'ratio':>7}  {'target':<8} met")
    for claim in claims:
        numbers = f"{claim['ours']:>10.4f} {claim['peer']:>10.4f} {claim['ratio']:>7.2f}"
        met = "yes" if claim["met"] else "NO"
        print(f"{claim['claim']:<64} {numbers}  {claim['target']:<8} {met}")
    for benchmark in crashed:
        print(f"{benchmark} did not run to its end", file=sys.stderr)
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())
