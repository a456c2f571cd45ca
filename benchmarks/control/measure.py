"""One program timed: ours, its twin and, where there is one, the limit by hand, in turns in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from _harness import medians, run_seconds, same_answers
from control.case import Case, Entry

# What the suite runs with by default: the targets' batch on a CPU; on a GPU enough to fill it.
CPU_LANES = 1024
GPU_LANES = {"scalar": 2**20, "small": 2**16, "matrix": 2**16}


@dataclass(frozen=True)
class Measured:
    """Medians in seconds, and the compilations apart."""

    entry: Entry
    lanes: int
    ours: float
    twin: float
    by_hand: float | None
    our_compile: float
    twin_compile: float
    agree: float

    def line(self) -> str:
        hand = f"  by hand {1e3 * self.by_hand:9.2f} ms" if self.by_hand is not None else ""
        return (
            f"{self.entry.name:<26} {self.lanes:>7} lanes  ours {1e3 * self.ours:9.2f} ms"
            f"  jax.vmap {1e3 * self.twin:9.2f} ms  {self.twin / self.ours:7.2f}x{hand}"
            f"  (compiled in {self.our_compile:.2f} s and {self.twin_compile:.2f} s;"
            f" {self.agree:.1%} of lanes agree)"
        )


class Disagree(AssertionError):
    """Too few lanes have the twin's answer."""


def lanes_for(entry: Entry) -> int:
    """The batch a program is timed at by default."""
    if jax.default_backend() == "cpu":
        return CPU_LANES
    return next(lanes for tag, lanes in GPU_LANES.items() if tag in entry.tags)


def on_host(argument: Any) -> np.ndarray:
    """An argument as NumPy has it; a key as its words."""
    if isinstance(argument, jax.Array) and jnp.issubdtype(argument.dtype, jax.dtypes.prng_key):
        argument = jax.random.key_data(argument)
    return np.asarray(argument)


def by_hand(entry: Entry, case: Case, lanes: int) -> Callable[..., Any] | None:
    """The hand-written limit on this device, or None where there is none (or not its library)."""
    host = [on_host(argument) for argument in case.arguments]
    try:
        if jax.default_backend() == "cpu":
            from control import numba_limits

            limit = numba_limits.LIMITS.get(entry.key)
            return None if limit is None else lambda *_: limit(*host)
        from control import cuda_limits

        source = cuda_limits.LIMITS.get(entry.key)
        return None if source is None else cuda_limits.prepare(source, host, lanes)
    except ImportError as missing:
        print(f"{entry.name}: no limit by hand, {missing.name} is not installed")
        return None


def ours(case: Case, **options: Any) -> Callable[..., Any]:
    """The program for a batch, compiled when first called."""
    return jax.jit(lw.vmap(case.ours, in_axes=case.in_axes, **case.options, **options))


def check(entry: Entry, case: Case, found: Any, expected: Any, who: str) -> float:
    """The share of lanes that agree; raises where it is less than the case asks for."""
    share = same_answers(jax.device_get(found), jax.device_get(expected), case.rtol, case.atol)
    if share < case.agreement:
        raise Disagree(f"{entry.name}: only {share:.1%} of the lanes of {who} agree with jax.vmap")
    return share


def measure(entry: Entry, lanes: int, repeats: int, **options: Any) -> Measured:
    """Compile, check that all forms agree, and time them in turns."""
    case = entry.make(lanes, False)
    arguments = jax.device_put(case.arguments)
    contenders = {
        "twin": jax.jit(jax.vmap(case.twin, in_axes=case.in_axes)),
        "ours": ours(case, **options),
    }
    limit = by_hand(entry, case, lanes)
    if limit is not None:
        contenders["by hand"] = limit
    first = {name: run_seconds(fun, arguments) for name, fun in contenders.items()}
    expected = contenders["twin"](*arguments)
    agree = check(entry, case, contenders["ours"](*arguments), expected, "ours")
    if limit is not None:
        answers = limit()
        answers = [x.get() if hasattr(x, "get") else x for x in jax.tree.leaves(answers)]
        check(entry, case, answers, expected, "the limit by hand")
    took = medians(contenders, arguments, repeats)
    return Measured(
        entry,
        lanes,
        took["ours"],
        took["twin"],
        took.get("by hand"),
        first["ours"] - took["ours"],
        first["twin"] - took["twin"],
        agree,
    )
