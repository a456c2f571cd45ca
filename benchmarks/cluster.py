"""A stream over workers of Ray on this machine against the same stream in one process, and what a chunk costs.

On one machine a cluster can only lose what it adds: examples and answers travel between processes. What is claimed is
that little is lost where examples are worth it: on `native`, which uses all cores in one process, and on `ticks`, which
uses little more than one, so that two workers are faster. Workers are there already, and have compiled: what starting
takes is shown. The price of a chunk is that of a stream of chunks of one
example each that costs nothing, by one worker.

    python benchmarks/cluster.py [--examples 20000] [--workers 2] [--repeats 5]
"""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any

import jax

import lanewise as lw
from _harness import Claim, report, use_device, usual_arguments
from lanewise.api.on_cluster import OnCluster
from lanewise.api.stream import Streaming

TARGETS = {"native": ">= 0.8", "ticks": ">= 1.0"}
PRICE_CHUNKS = 300


@lw.program
def walk(seed, length):
    """A random walk that ends when it has left an interval: a thousand normal numbers, more or less."""
    key = jax.random.key(seed)
    x, steps = 0.0, 0
    while (abs(x) < length) & (steps < 4000):
        key, own = jax.random.split(key)
        x = x + jax.random.normal(own)
        steps += 1
    return x, steps


def nothing(x: Any) -> Any:
    return x + 1


def seconds(examples: list[Any], on_cluster: OnCluster | None, **options: Any) -> float:
    """How long all answers take, of workers that are there if there is a cluster."""
    program = walk.with_options(throw=False, **options)
    began = time.perf_counter()
    stream = Streaming(
        program, iter(examples), False, None, total=len(examples), on_cluster=on_cluster
    )
    count = sum(1 for _ in stream.answers())
    assert count == len(examples)
    return time.perf_counter() - began


def price_of_a_chunk(repeats: int) -> float:
    """Seconds that a chunk costs: of a worker that does nothing, a chunk an example."""
    found = []
    for _ in range(repeats):
        cluster = lw.Cluster(workers=1, chunk=1)
        answers = lw.stream(nothing, map(float, range(PRICE_CHUNKS)), lanes=1, cluster=cluster)
        next(answers)
        began = time.perf_counter()
        count = sum(1 for _ in answers)
        found.append((time.perf_counter() - began) / count)
    return statistics.median(found)


def main() -> None:
    parser = usual_arguments(__doc__)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    use_device(arguments.device)
    examples = [(i, float(20 + i % 20)) for i in range(arguments.examples)]
    claims: list[Claim] = []
    for carrier, target in TARGETS.items():
        options: Any = {"carrier": carrier, "lanes": 256}
        with contextlib.closing(
            OnCluster(lw.Cluster(workers=arguments.workers), keeps=True)
        ) as cluster:
            for name, place in (("one process", None), ("the cluster", cluster)):
                print(
                    f"{carrier}, {name}, the first time: {seconds(examples, place, **options):.2f} s"
                )
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(arguments.repeats):
                for found, place in zip(times, (cluster, None), strict=True):
                    found.append(seconds(examples, place, **options) / len(examples))
        claim = f"an example over {arguments.workers} workers, {carrier}"
        made = Claim(claim, statistics.median(times[0]), statistics.median(times[1]), target)
        claims.append(made)
        print(
            f"{claim}: {1e6 * made.ours:.0f} µs, in one process {1e6 * made.peer:.0f} µs, {made.ratio:.2f}x, target"
            f" {target}: {'met' if made.met else 'missed'}",
            flush=True,
        )
    print(f"a chunk costs {1e3 * price_of_a_chunk(arguments.repeats):.2f} ms")
    report(claims)


if __name__ == "__main__":
    main()
