"""Many small cases as one kernel: each is compared with what `jax.jit(jax.vmap(...))` gives.

Compiling costs far more than running, so a test gathers its cases and compiles them together, without optimization:
straight-line code of thousands of lines is what optimizers are slowest at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from cpp.checking import words
from lanewise.blocks.link import link
from lanewise.core.options import Options
from lanewise.cpp.emit.emit import emit
from lanewise.cpp.toolchain import host
from lanewise.job.job import blocks_of

EXAMPLES = 3
FLAGS = tuple("-O0" if flag == "-O3" else flag for flag in host.FLAGS)
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True)
class Case:
    """A function of one example and a batch of arguments.

    Numbers with a fraction may differ by `ulps` units in the last place: of each number, or, where terms cancel, of the
    `largest` of the result.
    """

    label: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    ulps: float = 4
    largest: bool = False


def numbers(dtype: Any, *shape: int, seed: int = 0, special: bool = True) -> np.ndarray:
    """A batch of arrays that hold ordinary and awkward numbers: both zeros, infinities, NaN, extreme integers."""
    random = np.random.default_rng([seed, *shape])
    kind = jnp.dtype(dtype)
    full = (EXAMPLES, *shape)
    if kind.kind == "b":
        return random.random(full) < 0.5
    if jnp.issubdtype(kind, jnp.integer):
        values = random.integers(-9, 9, full).astype(kind)
        awkward = [jnp.iinfo(kind).min, jnp.iinfo(kind).max, 0, 1]
    else:
        values = (random.standard_normal(full) * 3).astype(np.float64).astype(kind)
        awkward = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0]
        if jnp.issubdtype(kind, jnp.complexfloating):
            values, special = (values + 1j * random.standard_normal(full)).astype(kind), False
    if special and values.size:
        places = random.choice(values.size, min(values.size // 3, len(awkward)), replace=False)
        for place, value in zip(places, awkward):
            values.reshape(-1)[place] = value
    return values


def check(cases: Sequence[Case]) -> None:
    """All cases as one kernel, against JAX."""
    counts = [len(case.args) for case in cases]

    def everything(*flat: Any) -> list[list[Any]]:
        left = list(flat)
        taken = [[left.pop(0) for _ in range(count)] for count in counts]
        return [
            jax.tree.leaves(case.function(*args)) for case, args in zip(cases, taken, strict=True)
        ]

    batch = [jnp.asarray(arg) for case in cases for arg in case.args]
    expected = jax.jit(jax.vmap(everything))(*batch)
    staged, operands = lw.lift(everything).stage(*(arg[0] for arg in batch))
    captured = operands[: len(operands) - len(batch)]
    varying = (False,) * len(captured) + (True,) * len(batch)
    linked = link(blocks_of(staged.program, varying, Options()), varying)
    kernel = emit(linked, varying)
    given = [words(arg) for arg in (*captured, *batch)]
    found = iter(host.run(kernel, given, EXAMPLES, flags=FLAGS).answers)
    failed = []
    for case, theirs in zip(cases, expected, strict=True):
        for place, wanted in enumerate(theirs):
            message = difference(next(found), words(wanted), case.ulps, case.largest)
            if message:
                failed.append(f"{case.label} [{place}]: {message}")
    assert not failed, "\n".join(failed)


def difference(ours: np.ndarray, theirs: np.ndarray, ulps: float, largest: bool) -> str:
    """What is wrong with a result, "" if nothing is."""
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return f"{ours.dtype}{ours.shape} instead of {theirs.dtype}{theirs.shape}"
    if ours.dtype.kind in "biu":
        wrong = ours != theirs
    else:
        precision = float(jnp.finfo(ours.dtype).eps)
        wide = np.complex128 if ours.dtype.kind == "c" else np.float64
        a, b = ours.astype(wide), theirs.astype(wide)
        with np.errstate(all="ignore"):
            size = np.abs(b)
            if largest or ours.dtype.kind == "c":
                size = np.max(size[np.isfinite(size)], initial=0.0)
            near = np.abs(a - b) <= ulps * precision * size
        wrong = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return ""
    return f"{ours[wrong][:4]} instead of {theirs[wrong][:4]} at {np.argwhere(wrong)[:4].tolist()}"
