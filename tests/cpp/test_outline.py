"""Code that stands at several places of a program is written once, and means what it meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
import needs
from lanewise.blocks.leaf import leaf_calls
from lanewise.blocks.link import link
from lanewise.core.options import Options
from lanewise.cpp.emit import outline
from lanewise.cpp.emit.emit import written
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.kernels import kernel_blocks
from lanewise.cpp.toolchain import host
from programs.numerics import rough, rough_pieces

FRAMES = 16
POINTS = np.random.default_rng(0).uniform(-1.0, 1.0, (5, 12)).astype(np.float32)
COUNTS = np.arange(5, dtype=np.int32)

pytestmark = needs.compiler


@dataclass(frozen=True)
class Written:
    """A kernel, and the operands of a batch for it."""

    emitted: Emitted
    operands: list[np.ndarray]

    @property
    def functions(self) -> list[str]:
        """The texts of the kernel's functions."""
        text = self.emitted.text
        return re.findall(r"^LW_CALLED\w* (?:.*?)^}", text, re.DOTALL | re.MULTILINE)

    @property
    def own(self) -> str:
        """The kernel's text without its helpers."""
        text = self.emitted.text
        first = re.search(r"^LW_CALLED\w* shared|^LW_KERNEL lanewise_kernel", text, re.MULTILINE)
        assert first is not None
        return text[first.start() : text.rindex("#ifndef __CUDACC__")]

    def run(self) -> list[np.ndarray]:
        ran = host.run(self.emitted, self.operands, len(POINTS), capacity=FRAMES)
        assert (ran.code == 0).all()
        return ran.answers


def kernel(f: Callable[..., Any], *batch: Any) -> Written:
    staged, operands = lw.program(f).stage(*(x[0] for x in batch))
    shared = operands[: staged.program.num_captures]
    varying = (*(False for _ in shared), *(True for _ in batch))
    # Written anew: what is remembered was written under other settings.
    linked = kernel_blocks(staged.program, varying, Options())
    if linked.has_calls:
        linked = link(leaf_calls(linked.program), varying)
    found = written(linked, varying, Options())
    assert isinstance(found, Emitted)
    return Written(found, [*map(np.asarray, shared), *batch])


def both_ways(
    monkeypatch: pytest.MonkeyPatch, f: Callable[..., Any], *batch: Any
) -> tuple[Written, Written]:
    """The kernel with functions and without; they answer the same bits."""
    shared = kernel(f, *batch)
    with monkeypatch.context() as patch:
        patch.setattr(outline, "LEAST", np.inf)
        inline = kernel(f, *batch)
    assert shared.functions and not inline.functions
    for mine, theirs in zip(shared.run(), inline.run(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    return shared, inline


def close(f: Callable[..., Any], *batch: Any) -> None:
    """The kernel answers what JAX does."""
    expected = jax.tree.leaves(jax.jit(jax.vmap(f))(*batch))
    for mine, theirs in zip(kernel(f, *batch).run(), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def several(x):
    """One function at three places of a loop with a branch."""
    total = rough(x)
    while total < 40.0:
        if total < 5.0:
            total = total + 3.0 + jnp.abs(rough(x + total))
        else:
            total = total + 1.0 + jnp.abs(rough(0.5 * x))
    return total


def test_a_function_used_at_several_places_stands_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, inline = both_ways(monkeypatch, several, POINTS)
    (function,) = shared.functions
    assert inline.own.count("lw_log1p") == 3 and shared.own.count("lw_log1p") == 1
    assert "lw_log1p" in function
    name = re.findall(r"shared\d+", function)[0]
    assert shared.own.count(f"{name}(") == 4  # and its definition
    assert len(shared.own) < 0.7 * len(inline.own)


def test_a_recursion_and_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = (POINTS, COUNTS % 4)
    shared, inline = both_ways(monkeypatch, rough_pieces, *batch)
    assert inline.own.count("lw_log1p") > shared.own.count("lw_log1p") == 1

    def gradient(x, depth):
        return jax.grad(rough_pieces)(x, depth)

    shared, inline = both_ways(monkeypatch, gradient, *batch)
    assert len(shared.own) < 0.85 * len(inline.own)


def test_jitted_code_and_code_in_loops_that_lanes_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """One token each at the places of a `jit`; inside of a `scan`, a `while` and a `cond` as outside."""
    jitted = jax.jit(rough)

    def run(x):
        turns = lax.fori_loop(0, 3, lambda i, s: s + jitted(x + s), jnp.float32(0.0))
        _, each = lax.scan(lambda c, y: (c, jitted(x * y)), None, jnp.arange(3.0))
        either = lax.cond(True, jitted, jnp.sum, x)
        return turns + jnp.sum(each) + either + jitted(x)

    shared, inline = both_ways(monkeypatch, run, POINTS)
    assert inline.own.count("lw_log1p") >= 4 and shared.own.count("lw_log1p") == 1
    close(run, POINTS)


def test_functions_call_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(x):
        y = jnp.sort(jnp.sin(x)) + jnp.cumsum(jnp.cos(x))
        return rough(y) * jnp.max(jnp.sort(y * y)) + rough(y + 1.0)

    def run(x, n):
        return lax.cond(n > 2, lambda x: twice(x) + 1.0, lambda x: twice(2.0 * x), x) + rough(-x)

    shared, _ = both_ways(monkeypatch, run, POINTS, COUNTS)
    assert shared.own.count("lw_log1p") == 1
    assert len(shared.functions) >= 2
    close(run, POINTS, COUNTS)


TABLE = np.linspace(0.0, 1.0, 400, dtype=np.float32)


def test_scratch_memory_and_constants_are_handed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays too large for C++ variables come and go through scratch memory; tables of rules are kernel's operands."""

    def spread(x):
        long = jnp.sin(x[0] * TABLE) + jnp.cos(x[1] * TABLE)
        sums = jnp.cumsum(long * long) + jnp.exp(-long)
        for shift in (1, 2, 3):
            sums = jnp.tanh(sums) + jnp.roll(jnp.log1p(sums * sums), shift)
        return sums, jnp.max(sums) + jnp.sum(jnp.abs(jnp.fft.fft(x)))

    def run(x):
        first, most = spread(x)
        second, least = spread(x + most)
        return first[::50] + second[::50] + jnp.sum(jnp.abs(first - second)), least

    shared, _ = both_ways(monkeypatch, run, POINTS)
    (function,) = shared.functions
    assert "const lw_strided<float32>" in function
    assert "char* scratch" in function and "__restrict__ constant0" in function
    close(run, POINTS)


def test_a_long_array_is_written_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run does not hold the update of an array from outside: to be a function it would copy it."""

    def run(x, n):
        kept = jnp.zeros((50, 12))
        i = 0
        while i < n:
            kept = kept.at[i].set(jnp.full(12, rough(x)) + x)
            kept = kept.at[i + 20].set(jnp.full(12, rough(x + 1.0)) + x)
            i += 1
        return kept

    shared, _ = both_ways(monkeypatch, run, POINTS, COUNTS)
    assert not any("600" in text for text in shared.functions)


def test_swapped_and_repeated_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two places may give one value twice where another gives two; results are wanted at some places only."""

    def mixed(x, y):
        a = jnp.sin(x) * jnp.cos(y) + jnp.exp(-x * x)
        b = jnp.tanh(a + y) * jnp.log1p(x * x) - jnp.sqrt(1.0 + y * y)
        c = jnp.exp(-jnp.abs(a - b)) + jnp.sin(b) * jnp.cos(a)
        return a + c, jnp.sum(b * c), jnp.max(c)

    def run(x, y):
        one, first, _ = mixed(x, x)
        two, _, second = mixed(y, x)
        three, third, _ = mixed(one, two)
        return three + first, second + third

    shared, _ = both_ways(monkeypatch, run, POINTS, POINTS[::-1].copy())
    assert len(shared.functions) == 1
    close(run, POINTS, POINTS[::-1].copy())


def test_short_code_stays_where_it_is() -> None:
    def run(x):
        return jnp.sin(x) + jnp.sin(x + 1.0) * jnp.sin(2.0 * x)

    assert not kernel(run, POINTS).functions
