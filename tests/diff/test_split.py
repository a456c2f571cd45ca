"""What is saved between the sweeps: little, and by what the code reads, as the printed programs and types show."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from lanewise import _jax
from lanewise.diff.checkpoint import Checkpoints
from lanewise.diff.split import split
from lanewise.diff.vjp import Reverse, vjp_program


def gradient(fun: Callable[..., Any], *args: Any, checkpoints: Any = "auto") -> tuple[Reverse, Any]:
    """A function's forward and reverse programs, by its inexact arguments, and the types of what is saved."""
    staged, operands = lw.lift(fun).stage(*args)
    program = staged.program
    active = tuple(_jax.has_tangent(_jax.aval_of(x)) for x in operands)
    found = vjp_program(program, active, Checkpoints(checkpoints))
    return found, found.forward.program.out_avals[len(program.out_avals) :]


def floats(avals: Any) -> list[tuple[int, ...]]:
    return sorted(a.shape for a in avals if jnp.issubdtype(a.dtype, jnp.inexact))


def size(avals: Any) -> int:
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in avals)


def steps(step: Callable[[Any], Any], number: int) -> Callable[[Any], Any]:
    return lambda x: lax.scan(lambda x, _: (step(x), None), x, length=number)[0]


def test_linear_bodies_save_nothing() -> None:
    for fun in (
        steps(lambda x: 0.5 * x + x[::-1] - 1.0, 10),
        lambda x: lax.scan(lambda s, row: (s * 0.9 + row, s), x, jnp.ones((10, 3)))[1],
        lambda x: lax.while_loop(lambda s: s[1] < 5, lambda s: (s[0] * 0.5, s[1] + 1), (x, 0))[0],
    ):
        _, saved = gradient(fun, jnp.ones(3))
        assert floats(saved) == []


def test_what_a_scan_maps_over_is_not_saved() -> None:
    def weighted(x: Any, rows: Any) -> Any:
        return lax.scan(lambda s, row: (s + row @ row, None), x, rows)[0]

    found, saved = gradient(weighted, jnp.float32(0), jnp.ones((10, 4)))
    assert floats(saved) == [] and len(found.reads) == 1


def test_counters_and_what_never_changes_are_not_saved() -> None:
    def loop(x: Any, y: Any, n: Any) -> Any:
        def body(s: Any) -> Any:
            i, x, y, k = s
            return i + 1, jnp.sin(x * y) * i, y, k + 3

        return lax.while_loop(lambda s: s[0] < n, body, (0, x, y, 5))[1]

    for args in ((jnp.float32(1), jnp.float32(2), 7), (jnp.float32(1), jnp.ones(50), 7)):
        fun = loop if args[1].ndim == 0 else lambda x, y, n: loop(x, y[n], n)
        _, saved = gradient(fun, *args, checkpoints=6)
        assert floats(saved) == [(6,)]
        # Of integers no counter: how many turns there were, and which slot each of the states is in.
        integers = [a.shape for a in saved if jnp.issubdtype(a.dtype, jnp.integer)]
        assert integers.count((6,)) == 1 and set(integers) == {(), (6,)}
    found, saved = gradient(loop, jnp.float32(1), jnp.float32(2), 7, checkpoints="all")
    # For each iteration a cosine and the state before it.
    assert all(shape[0] == 1024 for shape in floats(saved)) and len(floats(saved)) == 2
    assert "i32[1024]" not in found.forward.program.text


def test_state_that_no_reverse_step_reads_is_left_out() -> None:
    def loop(x: Any, n: Any) -> Any:
        def body(s: Any) -> Any:
            i, x, total, big = s
            return i + 1, jnp.sin(x), total + x, big + total

        start = (0, x, jnp.zeros_like(x), jnp.zeros((100,), x.dtype))
        return lax.while_loop(lambda s: s[0] < n, body, start)[2:]

    _, saved = gradient(loop, jnp.float32(1), 7, checkpoints=6)
    assert floats(saved) == [(6,)]


def written(n: int) -> Callable[[Any], Any]:
    """A table filled in place: each entry from the one before."""

    def fill(x: Any) -> Any:
        def step(table: Any, i: Any) -> Any:
            return table.at[i].set(jnp.sin(table[i - 1]) + 1.0), None

        return lax.scan(step, jnp.zeros(n).at[0].set(x), jnp.arange(1, n))[0].sum()

    return fill


def test_writes_in_place_save_elements() -> None:
    n = 200
    _, saved = gradient(written(n), jnp.float32(0.5))
    assert size(saved) <= 4 * 4 * n
    found = jax.jit(lw.grad(written(n)))(0.5)
    np.testing.assert_allclose(found, jax.grad(written(n))(0.5), rtol=1e-4)


def peak(compiled: Any) -> int:
    return compiled.memory_analysis().temp_size_in_bytes


def compiled(fun: Callable[..., Any], *args: Any) -> Any:
    return jax.jit(fun).lower(*args).compile()


def test_memory_of_writes_in_place_is_not_quadratic() -> None:
    # By XLA's own account, and so of what XLA runs.
    small, large = (
        peak(compiled(lw.grad(lw.lift(written(n), carrier="ticks")), 0.5)) for n in (256, 4096)
    )
    assert large < 24 * small


@pytest.mark.parametrize("kind", ["scan", "while"])
def test_memory_adds_over_a_nest(kind: str) -> None:
    def nest(n: int) -> Callable[[Any], Any]:
        def repeat(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
            if kind == "scan":
                return steps(step, n)
            return lambda x: lax.while_loop(
                lambda s: s[1] < n, lambda s: (step(s[0]), s[1] + 1), (x, 0)
            )[0]

        return repeat(repeat(repeat(lambda x: jnp.sin(x) * 1.01)))

    def total(n: int) -> Any:
        fun = lw.lift(nest(n)).with_options(
            checkpoints="all" if kind == "while" else "auto", tape=n
        )
        return lambda x: fun(x).sum()

    x = jnp.linspace(0.0, 1.0, 16)
    sizes = [peak(compiled(jax.grad(total(n)), x)) for n in (16, 32, 64)]
    assert sizes[2] < 5 * sizes[0] and sizes[1] < 2.5 * sizes[0], sizes
    expected = jax.jit(jax.grad(lambda x: steps(lambda x: jnp.sin(x) * 1.01, 64)(x).sum()))(x)
    np.testing.assert_allclose(jax.jit(jax.grad(total(4)))(x), expected, rtol=1e-4)
    if kind == "scan":
        saved = [size(gradient(nest(n), x)[1]) for n in (16, 32)]
        assert saved[1] <= 2 * saved[0] <= 2 * 16 * 2 * 4 * 16


@pytest.mark.parametrize("kind", ["scan", "while"])
def test_a_million_iterations_in_the_memory_of_few(kind: str) -> None:
    n = 1_000_000

    def last(x: Any, n: Any) -> Any:
        if kind == "scan":
            return steps(lambda x: x + 1e-6 * jnp.sin(x), 1_000_000)(x)
        return lax.while_loop(
            lambda s: s[1] < n, lambda s: (s[0] + 1e-6 * jnp.sin(s[0]), s[1] + 1), (x, 0)
        )[0]

    run = compiled(lw.grad(last, checkpoints=64), 0.5, n)
    state = 4
    assert peak(run) <= 10_000 * state
    slope = float(run(0.5, n))
    # x' = sin(x) for a time of one: the slope of its flow is sin(x(1)) / sin(x(0)).
    end = 2 * math.atan(math.tan(0.25) * math.e)
    assert slope == pytest.approx(math.sin(end) / math.sin(0.5), rel=2e-2)


# -- the cut itself -----------------------------------------------------------------------------------


def cut(fun: Callable[..., Any], args: Any, cts: Any, free: Any) -> Any:
    traced = _jax.trace(fun, [_jax.aval_of(x) for x in (*args, *cts)])
    known = [True] * len(args) + [False] * len(cts)
    return split(traced.jaxpr, known, [*free, *[False] * len(cts)], 1)


def test_the_cut_saves_the_fewest_bytes_and_computes_nothing_expensive_twice() -> None:
    x, ct = jnp.ones(8), jnp.float32(1)

    def both(x: Any, ct: Any) -> Any:
        e = jnp.exp(x)
        return [jnp.sum(e), ct * e * jnp.sum(x)]

    expensive = cut(both, [x], [ct], [True])
    assert [a.shape for a in expensive.saved] == [(8,), ()]
    assert not any(eqn.primitive.name == "exp" for eqn in expensive.reverse.eqns)

    def cheap(x: Any, ct: Any) -> Any:
        return [jnp.sum(x * 2.0), ct * (x * 2.0 + 1.0)]

    assert cut(cheap, [x], [ct], [True]).saved == ()
    assert [a.shape for a in cut(cheap, [x], [ct], [False]).saved] == [(8,)]

    def element(x: Any, ct: Any) -> Any:
        return [jnp.sum(x), ct * lax.dynamic_index_in_dim(x, 3, keepdims=False)]

    assert [a.shape for a in cut(element, [x], [ct], [False]).saved] == [()]


def test_what_decides_is_not_decided_again() -> None:
    """Computed twice, a number may be rounded in two ways: no entry is the maximum, or the other branch is taken."""
    x, ct = jnp.ones(8), jnp.float32(1)

    def largest(x: Any, ct: Any) -> Any:
        y = x * 2.0 + 1.0
        most = jnp.max(y)
        return [most, ct * (y == most)]

    found = cut(largest, [x], [ct], [True])
    assert [(a.shape, a.dtype) for a in found.saved] == [((8,), jnp.bool_)]

    def branch(a: Any, ct: Any) -> Any:
        return [a, ct * lax.cond(a * 2.0 + 1.0 > 0.3, lambda: 1.0, lambda: 2.0)]

    found = cut(branch, [ct], [ct], [True])
    assert not any(eqn.primitive.name == "gt" for eqn in found.reverse.eqns) and found.saved

    def on_what_is_there(a: Any, ct: Any) -> Any:
        return [a, ct * (a > 0.3)]

    assert cut(on_what_is_there, [ct], [ct], [True]).saved == ()
