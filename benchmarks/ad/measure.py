"""One benchmark timed: our function and gradient, JAX's and PyTorch's, in turns in one process."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from _harness import MOST_REPEATS, WORTH_SECONDS, Claim, run_seconds
from ad.case import Case, Entry, Pair


class Disagree(AssertionError):
    """A gradient is not the one by hand."""


@dataclass(frozen=True)
class Measured:
    """Medians in seconds: (function, gradient) of each, compilation apart."""

    entry: Entry
    times: dict[str, tuple[float, float]]
    compiled: dict[str, float]
    bytes_taken: tuple[int, int]  # our function and our gradient, by XLA's own account

    def overhead(self, who: str) -> float:
        primal, gradient = self.times[who]
        return gradient / primal

    def line(self) -> str:
        parts = [
            f"{who} {1e3 * gradient:10.3f} / {1e3 * primal:9.3f} ms = {gradient / primal:6.2f}"
            for who, (primal, gradient) in self.times.items()
        ]
        compiled = ", ".join(f"{who} {took:.1f} s" for who, took in self.compiled.items())
        return f"{self.entry.name:<22} {self.entry.size:<24} {'   '.join(parts)}   (compiled: {compiled})"

    def claims(self, label: str) -> list[Claim]:
        """The overhead and, where the entry asks for it, the gradient's time beside the peers'."""
        name = f"ad, {label}, {self.entry.name} {self.entry.size}"
        primal, gradient = self.times["ours"]
        if not self.entry.fastest:
            claims = [Claim(f"{name}: overhead", gradient, primal, self.entry.target)]
            if self.entry.memory is not None:
                small, large = map(float, self.bytes_taken)
                claims.append(Claim(f"{name}: bytes", large, small, self.entry.memory))
            return claims
        least = min(times[0] for times in self.times.values())
        return [
            Claim(f"{name}: gradient over the fastest function", gradient, least, self.entry.target)
        ] + [
            Claim(f"{name}: gradient, against {who}", gradient, self.times[who][1], ">= 1")
            for who in self.times
            if who != "ours"
        ]


def precision(double: bool) -> Any:
    """float64 where a benchmark's originals have it, and nowhere else."""
    return jax.enable_x64(True) if double else contextlib.nullcontext()


def torch_pair(case: Case) -> Pair | None:
    """PyTorch's pair on the case's own arguments, run to its end; None where there is no PyTorch."""
    if case.torch is None:
        return None
    # Threads that have done their part wait for more by spinning, and take the cores from who comes next.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: left out")
        return None
    gpu = jax.default_backend() == "gpu"
    if gpu and not torch.cuda.is_available():
        print("PyTorch has no GPU here: left out")
        return None
    device = torch.device("cuda" if gpu else "cpu")
    tensors = [torch.tensor(np.asarray(x), device=device) for x in case.arguments]
    pair = case.torch(torch)

    def finished(fun: Callable[..., Any]) -> Callable[..., Any]:
        def run(*_: Any) -> Any:
            result = fun(*tensors)
            if gpu:
                torch.cuda.synchronize()
            return result

        return run

    return Pair(finished(pair.primal), finished(pair.gradient))


def leaves(tree: Any) -> list[np.ndarray]:
    """The arrays of an answer, in NumPy, whichever system gave it."""
    return [
        np.asarray(x.detach().cpu() if hasattr(x, "detach") else x) for x in jax.tree.leaves(tree)
    ]


def check(entry: Entry, case: Case, who: str, found: Any, expected: Any) -> None:
    """Raises where two gradients differ by more than the case allows."""
    for mine, theirs in zip(leaves(found), leaves(expected), strict=True):
        if mine.shape != theirs.shape:
            raise Disagree(f"{entry.name}: {who} gives shape {mine.shape}, not {theirs.shape}")
        scale = max(1.0, float(np.max(np.abs(theirs), initial=0.0)))
        close = np.isclose(mine, theirs, rtol=case.rtol, atol=case.atol * scale)
        if np.mean(close) < case.agreement:
            off = float(np.max(np.abs(mine - theirs)))
            raise Disagree(f"{entry.name}: {who} is off by {off:.3g}, where {scale:.3g} is largest")


def expected_gradient(case: Case) -> Any:
    """The gradient all are held to."""
    if case.reference is not None:
        return case.reference(*case.arguments)
    return jax.jit(case.jax.gradient)(*case.arguments)


def compiled(
    fun: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Callable[..., Any], float]:
    start = time.perf_counter()
    made = jax.jit(fun).lower(*arguments).compile()
    return made, time.perf_counter() - start


def medians(
    contenders: dict[str, Callable[..., Any]], arguments: tuple[Any, ...], repeats: int
) -> dict[str, float]:
    """The median time of each, in turns, each timed after a run of its own that is not.

    Gradients of some of these take gigabytes: whoever comes next would pay for the pages they gave back.
    """
    first = {name: run_seconds(fun, arguments) for name, fun in contenders.items()}
    repeats = max(repeats, min(MOST_REPEATS, int(WORTH_SECONDS / max(first.values()))))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, fun in contenders.items():
            run_seconds(fun, arguments)
            times[name].append(run_seconds(fun, arguments))
    return {name: statistics.median(values) for name, values in times.items()}


def bytes_of(made: Any) -> int:
    """All that a compiled function has in memory at once."""
    found = made.memory_analysis()
    return found.temp_size_in_bytes + found.argument_size_in_bytes + found.output_size_in_bytes


def measure(entry: Entry, repeats: int) -> Measured:
    """Compile, check the gradients against each other, and time them in turns."""
    case = entry.make(False)
    with precision(case.double):
        arguments = jax.device_put(case.arguments)
        contenders: dict[str, Callable[..., Any]] = {}
        took: dict[str, float] = {}
        for who, pair in (("ours", case.ours), ("JAX", case.jax)):
            contenders[f"{who} primal"], first = compiled(pair.primal, arguments)
            contenders[f"{who} gradient"], second = compiled(pair.gradient, arguments)
            took[who] = first + second
        taken = bytes_of(contenders["ours primal"]), bytes_of(contenders["ours gradient"])
        torch = torch_pair(case)
        peers: dict[str, Callable[..., Any]] = {}
        if torch is not None:
            peers = {"PyTorch primal": torch.primal, "PyTorch gradient": torch.gradient}
        if case.reference is not None:
            expected = case.reference(*case.arguments)
        else:
            expected = contenders["JAX gradient"](*arguments)
        for name, fun in (contenders | peers).items():
            if name.endswith("gradient"):
                check(entry, case, name, fun(*arguments), expected)
        del expected
        # PyTorch has its turns after the others: what its threads do when they are done is not theirs to pay for.
        times = medians(contenders, arguments, repeats)
        times |= medians(peers, arguments, repeats) if peers else {}
    contenders |= peers
    who = [name.removesuffix(" primal") for name in contenders if name.endswith("primal")]
    return Measured(
        entry, {w: (times[f"{w} primal"], times[f"{w} gradient"]) for w in who}, took, taken
    )
