"""A stream over workers of Ray on this machine against the same stream in one process, and what a chunk costs.

On one machine a cluster can only lose what it adds: examples and answers travel between processes. What is claimed is
that little is lost where examples are worth it: on `native`, which uses all cores in one process, and on `ticks`, which
uses little more than one, so that two workers are faster. Rates are counted from the first answer to the last, so that
starting workers and compiling is left out; it is shown. The price of a chunk is that of a stream of chunks of one
example each that costs nothing, by one worker.

    python benchmarks/cluster.py [--examples 20000] [--workers 2] [--repeats 5]
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax

import lanewise as lw
from _harness import Claim, in_turns, report, use_device, usual_arguments

# The first counts of the driver's part too; a cluster on one machine is not for speed on `native`.
TARGETS = {"native": ">= 0.8", "ticks": ">= 1.0"}
PRICE_CHUNKS = 300


@lw.program
def walk(key, length):
    """A random walk that ends when it has left an interval: a few hundred normal numbers, by the example."""
    x, steps = 0.0, 0
    while (abs(x) < length) & (steps < 4000):
        key, own = jax.random.split(key)
        x = x + jax.random.normal(own)
        steps += 1
    return x, steps


def nothing(x: Any) -> Any:
    return x + 1


def seconds_an_answer(examples: list[Any], show: str = "", **options: Any) -> float:
    """Seconds an answer, from the first that is there to the last."""
    began = time.perf_counter()
    first = last = began
    early = count = 0
    for count, _ in enumerate(lw.stream(walk, examples, **options), 1):
        last = time.perf_counter()
        if count == 1:
            first = last
        # Answers that came with the first were made before it.
        early += last - first < 1e-3
    if show:
        print(f"  {show}: the first answer after {first - began:.2f} s", flush=True)
    return (last - first) / (count - early)


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
    keys = jax.random.split(jax.random.key(0), arguments.examples)
    examples = [(key, float(10 + i % 20)) for i, key in enumerate(keys)]
    cluster = lw.Cluster(workers=arguments.workers)
    claims: list[Claim] = []
    for carrier, target in TARGETS.items():
        options: Any = {"carrier": carrier, "lanes": 256}
        seconds_an_answer(examples, f"{carrier}, one process", **options)
        seconds_an_answer(examples, f"{carrier}, cluster", cluster=cluster, **options)
        claims.append(
            in_turns(
                f"seconds an example, {arguments.workers} workers, {carrier}",
                target,
                ("cluster", lambda: seconds_an_answer(examples, cluster=cluster, **options)),
                ("one process", lambda: seconds_an_answer(examples, **options)),
                arguments.repeats,
            )
        )
        made = claims[-1]
        print(f"  examples a second: {1 / made.ours:,.0f}, in one process {1 / made.peer:,.0f}")
    print(f"a chunk costs {1e3 * price_of_a_chunk(arguments.repeats):.2f} ms")
    report(claims)


if __name__ == "__main__":
    main()
