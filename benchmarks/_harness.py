"""How every benchmark measures and reports.

Ours and the peer run in one process on the same arguments. Compilation is timed apart. Then both are
warmed up and run in turns, so that whatever else the machine does falls on both alike; the medians are
compared. A benchmark ends with one JSON line per claim:

    {"claim": ..., "ours": ..., "peer": ..., "ratio": ..., "target": ..., "met": ...}

Times are in seconds. A speed claim's ratio is peer ÷ ours (larger is better, the target a minimum); a
cost claim's is ours ÷ peer (smaller is better, the target a maximum). A share (occupancy) is no time: its
ratio is ours ÷ peer whichever way the target points. A claim that misses its target is printed like any
other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lanewise.cpp.toolchain import host

# How much time a contender is given, where its runs are so short that a few of them say little, and how
# many runs at most.
WORTH_SECONDS = 0.3
MOST_REPEATS = 101


# A name, and what gives seconds.
Contender = tuple[str, Callable[[], float]]


@dataclass(frozen=True)
class Claim:
    """One measured comparison."""

    claim: str
    ours: float
    peer: float
    target: str  # ">= 1.5" or "<= 2.5"
    share: bool = False

    @property
    def ratio(self) -> float:
        speed = self.target.startswith(">=") and not self.share
        return self.peer / self.ours if speed else self.ours / self.peer

    @property
    def met(self) -> bool:
        bound = float(self.target[2:])
        return self.ratio >= bound if self.target.startswith(">=") else self.ratio <= bound

    def line(self) -> str:
        """The claim as a JSON line.

        >>> Claim("sums", ours=0.5, peer=1.0, target=">= 1.5").line()
        '{"claim": "sums", "ours": 0.5, "peer": 1.0, "ratio": 2.0, "target": ">= 1.5", "met": true}'
        """
        record = {
            "claim": self.claim,
            "ours": self.ours,
            "peer": self.peer,
            "ratio": self.ratio,
            "target": self.target,
            "met": self.met,
        }
        rounded = {k: round(v, 6) if isinstance(v, float) else v for k, v in record.items()}
        return json.dumps(rounded)


def in_turns(claim: str, target: str, ours: Contender, peer: Contender, repeats: int) -> Claim:
    """The claim of the medians of what two measure themselves, in turns; printed."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for found, (_, measure) in zip(times, (ours, peer), strict=True):
            found.append(measure())
    made = Claim(claim, *map(statistics.median, times), target)
    print(
        f"{claim}: {ours[0]} {made.ours:.2f} s, {peer[0]} {made.peer:.2f} s, {made.ratio:.2f}x,"
        f" target {target}: {'met' if made.met else 'missed'}",
        flush=True,
    )
    return made


def compile_seconds(fun: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, float]:
    """`fun` traced, lowered and compiled, and how long that took."""
    start = time.perf_counter()
    compiled = jax.jit(fun).lower(*arguments).compile()
    return compiled, time.perf_counter() - start


def compilations() -> list[str]:
    """A list that grows with each compilation."""
    found: list[str] = []

    def seen(event: str, duration_secs: float, **more: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(str(more.get("fun_name", "")))

    jax.monitoring.register_event_duration_secs_listener(seen)
    return found


def usual_arguments(doc: str | None, repeats: int = 5) -> argparse.ArgumentParser:
    """The arguments that most benchmarks take, described by the first line of a benchmark's docstring."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--device", choices=("cpu", "gpu"))
    parser.add_argument("--plot", action="store_true", help="write PNGs under docs/plots/")
    return parser


def use_device(kind: str | None) -> None:
    """Run on "cpu" or "gpu", whatever JAX would have picked. To be called before anything runs."""
    if kind is not None:
        jax.config.update("jax_platforms", {"cpu": "cpu", "gpu": "cuda,cpu"}[kind])


def finished(value: Any) -> None:
    """Wait until a value of JAX or PyTorch is computed."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.is_cuda:
            torch.cuda.synchronize()
    else:
        jax.block_until_ready(value)


def run_seconds(
    fun: Callable[..., Any],
    arguments: Sequence[Any],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    # Large kernels begin on a quick tier; what is timed is the code that a longer run would have.
    host.wait()
    start = clock()
    jax.block_until_ready(fun(*arguments))
    return clock() - start


def medians(
    contenders: Mapping[str, Callable[..., Any]], arguments: Sequence[Any], repeats: int = 7
) -> dict[str, float]:
    """The median time of each contender, run in turns after a warm-up.

    Short ones run more often than asked: a run of well under a millisecond is at the mercy of whether a
    core was asleep.
    """
    for fun in contenders.values():
        run_seconds(fun, arguments)
    longest = max(run_seconds(fun, arguments) for fun in contenders.values())
    repeats = max(repeats, min(MOST_REPEATS, int(WORTH_SECONDS / longest)))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, fun in contenders.items():
            times[name].append(run_seconds(fun, arguments))
    return {name: statistics.median(values) for name, values in times.items()}


def same_answers(ours: Any, peer: Any, rtol: float = 1e-3, atol: float = 1e-3) -> float:
    """The share of lanes whose answers agree (chaotic programs amplify rounding in a few)."""
    agree: Any = True
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(peer), strict=True):
        close = np.isclose(mine, theirs, rtol=rtol, atol=atol, equal_nan=True)
        agree = agree & close.reshape(close.shape[0], -1).all(axis=1)
    return float(np.mean(agree))


def compare(
    claim: str,
    ours: Callable[..., Any],
    peer: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    target: str,
    agreement: float = 1.0,
    repeats: int = 7,
    peer_name: str = "jax.vmap",
) -> Claim:
    """Compile both, check that they agree on enough lanes, time them in turns, and say so."""
    arguments = jax.device_put(tuple(arguments))
    compiled_peer, peer_compile = compile_seconds(peer, arguments)
    compiled_ours, our_compile = compile_seconds(ours, arguments)
    share = same_answers(compiled_ours(*arguments), compiled_peer(*arguments))
    if share < agreement:
        raise AssertionError(f"{claim}: only {share:.1%} of the lanes agree with {peer_name}")
    took = medians({"ours": compiled_ours, "peer": compiled_peer}, arguments, repeats)
    result = Claim(claim, took["ours"], took["peer"], target)
    print(
        f"{claim}\n"
        f"  ours       {1e3 * result.ours:9.2f} ms   (compiled in {our_compile:.2f} s)\n"
        f"  {peer_name:<10} {1e3 * result.peer:9.2f} ms   (compiled in {peer_compile:.2f} s)\n"
        f"  {result.ratio:.2f}x, target {target}: {'met' if result.met else 'missed'};"
        f" {share:.1%} of lanes agree",
        flush=True,
    )
    return result


def geometric_mean(values: Iterable[float]) -> float:
    """The mean of ratios.

    >>> geometric_mean([2.0, 8.0])
    4.0
    """
    return statistics.geometric_mean(values)


def report(claims: Sequence[Claim]) -> None:
    """The JSON lines that end a benchmark."""
    for claim in claims:
        print(claim.line(), flush=True)
