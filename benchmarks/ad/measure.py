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

    @property
    def fastest(self) -> float:
        """The time of the fastest function among the systems."""
        return min(primal for primal, _ in self.times.values())

    def line(self) -> str:
        parts = [
            f"{who} {1e3 * gradient:.3f} / {1e3 * primal:.3f} ms = {gradient / primal:.2f}"
            f" ({gradient / self.fastest:.2f})"
            for who, (primal, gradient) in self.times.items()
        ]
        compiled = ", ".join(f"{who} {took:.1f} s" for who, took in self.compiled.items())
        return f"{self.entry.name:<22} {self.entry.size:<24} {'   '.join(parts)}   (compiled: {compiled})"

    def claims(self, label: str) -> list[Claim]:
        """The overheads, the gradient's time beside the peers', and memory where the entry asks for it."""
        name = f"ad, {label}, {self.entry.name} {self.entry.size}"
        primal, gradient = self.times["ours"]
        claims = [
            Claim(f"{name}: overhead", gradient, primal, self.entry.target),
            Claim(f"{name}: over the fastest function", gradient, self.fastest, self.entry.target),
        ]
        claims += [
            Claim(f"{name}: gradient, against {who}", gradient, theirs, ">= 1")
            for who, (_, theirs) in self.times.items()
            if who != "ours"
        ]
        if self.entry.memory is not None:
            small, large = map(float, self.bytes_taken)
            claims.append(Claim(f"{name}: bytes", large, small, self.entry.memory))
        return claims


def precision(double: bool) -> Any:
    """float64 where a benchmark's originals have it, and nowhere else."""
    return jax.enable_x64(True) if double else contextlib.nullcontext()


# What `torch.compile` is called in the results, and what is said of a machine without PyTorch.
EAGER, COMPILED = "PyTorch", "torch.compile"
HOW_TO_GET_TORCH = "PyTorch is not installed; `pip install '.[bench]'` brings it (torch==2.13.0)"


@dataclass(frozen=True)
class Prepared:
    """PyTorch's pair on tensors of its own, each run to its end; `finish` is for a gradient, and not timed."""

    pair: Pair
    finish: Callable[[Any], Any]


def torch_module() -> Any:
    """PyTorch, where it is installed and has this device."""
    # Threads that have done their part wait for more by spinning, and take the cores from the next contender.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import torch
    except ImportError:
        print(f"left out: {HOW_TO_GET_TORCH}")
        return None
    if jax.default_backend() == "gpu" and not torch.cuda.is_available():
        print("left out: PyTorch has no GPU here")
        return None
    return torch


def prepared(case: Case, torch: Any, compiled: bool) -> Prepared:
    """PyTorch's pair on the case's arguments; conversions are done here, once."""
    assert case.torch is not None
    gpu = jax.default_backend() == "gpu"
    device = torch.device("cuda" if gpu else "cpu")
    made = case.torch(torch, torch.compile if compiled else lambda fun: fun)
    tensors = [torch.tensor(widened(x), device=device) for x in case.arguments]
    if made.prepare is not None:
        tensors = list(made.prepare(*tensors))
    wanted = [
        x.detach().clone().requires_grad_() if i in made.leaves else x
        for i, x in enumerate(tensors)
    ]

    def primal(*_: Any) -> Any:
        with torch.no_grad():
            result = made.primal(*tensors)
        if gpu:
            torch.cuda.synchronize()
        return result

    def gradient(*_: Any) -> Any:
        result = made.gradient(*wanted)
        if gpu:
            torch.cuda.synchronize()
        return result

    return Prepared(Pair(primal, gradient), made.finish or (lambda result: result))


def widened(x: Any) -> np.ndarray:
    """Integers as PyTorch wants its indices."""
    x = np.asarray(x)
    return x.astype(np.int64) if np.issubdtype(x.dtype, np.integer) else x


def torch_systems(case: Case, compiles: bool) -> dict[str, Prepared]:
    """PyTorch as it is and compiled, as far as either works here."""
    torch = torch_module() if case.torch is not None else None
    if torch is None:
        return {}
    systems = {EAGER: prepared(case, torch, False)}
    if case.compiles and compiles:
        try:
            found = prepared(case, torch, True)
            found.pair.primal(), found.pair.gradient()
            systems[COMPILED] = found
        except (
            Exception
        ) as refused:  # whatever its compiler raises: the benchmark goes on without it
            print(f"left out: torch.compile, {type(refused).__name__}: {str(refused)[:200]}")
    return systems


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
    contenders: dict[str, Callable[..., Any]],
    arguments: tuple[Any, ...],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """The median time of each, in turns, each timed after a run of its own that is not.

    Gradients of some of these take gigabytes: the next contender would pay for the pages they gave back. By
    `time.process_time` it is the time that all threads of the process had a core, which other work on the machine
    changes little.
    """
    first = {name: run_seconds(fun, arguments, clock) for name, fun in contenders.items()}
    repeats = max(repeats, min(MOST_REPEATS, int(WORTH_SECONDS / max(first.values()))))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, fun in contenders.items():
            run_seconds(fun, arguments)
            times[name].append(run_seconds(fun, arguments, clock))
    return {name: statistics.median(values) for name, values in times.items()}


def bytes_of(made: Any) -> int:
    """All that a compiled function has in memory at once."""
    found = made.memory_analysis()
    return found.temp_size_in_bytes + found.argument_size_in_bytes + found.output_size_in_bytes


def measure(
    entry: Entry,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
    compiles: bool = True,
) -> Measured:
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
        start = time.perf_counter()
        torch = torch_systems(case, compiles)
        if COMPILED in torch:
            took[COMPILED] = time.perf_counter() - start
        if case.reference is not None:
            expected = case.reference(*case.arguments)
        else:
            expected = contenders["JAX gradient"](*arguments)
        for who in ("ours", "JAX"):
            check(entry, case, who, contenders[f"{who} gradient"](*arguments), expected)
        peers: dict[str, Callable[..., Any]] = {}
        for who, made in torch.items():
            check(entry, case, who, made.finish(made.pair.gradient()), expected)
            peers |= {f"{who} primal": made.pair.primal, f"{who} gradient": made.pair.gradient}
        del expected
        # PyTorch has its turns after the others: the others do not pay for what its threads do when they are done.
        times = medians(contenders, arguments, repeats, clock)
        times |= medians(peers, arguments, repeats, clock) if peers else {}
    who = [name.removesuffix(" primal") for name in times if name.endswith("primal")]
    return Measured(
        entry, {w: (times[f"{w} primal"], times[f"{w} gradient"]) for w in who}, took, taken
    )
