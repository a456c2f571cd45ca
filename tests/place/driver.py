"""A driver of a stream over a cluster, which may be killed; `test_cluster.py` and `test_by_ray.py` start it."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import lanewise as lw


@lw.program
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def main(directory: str, kind: str) -> None:
    cluster: Any
    if kind == "simulated":
        from simulated import Simulated, ran

        cluster = Simulated(chunk=5)
    else:
        cluster = lw.Cluster(workers=1, chunk=5)
    at = int(os.environ.get("LANEWISE_DIES_AT", "0"))
    if at:
        _die_in_write(at)
    found = []
    for i, n in lw.stream(collatz, range(1, 61), lanes=4, cluster=cluster, resume=Path(directory)):
        found.append((i, int(n)))
        print("answered", file=sys.stderr, flush=True)
    report: dict[str, Any] = {"answers": found}
    if kind == "simulated":
        report["ran"] = ran(cluster)
    print(json.dumps(report))


def _die_in_write(at: int) -> None:
    """Have the process killed when it writes a chunk for the `at`-th time, half of which is on disk then."""
    save, times = np.savez, iter(range(1, at))

    def dying(file: Any, *args: Any, **kwargs: Any) -> None:
        if next(times, None) is None:
            where = Path(sys.argv[1]) / f"{at - 1:08}.unfinished"
            where.write_bytes(b"half of a chunk")
            os.kill(os.getpid(), signal.SIGKILL)
        save(file, *args, **kwargs)

    np.savez = dying


if __name__ == "__main__":
    main(*sys.argv[1:])
