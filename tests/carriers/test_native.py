"""The carrier `native` answers what `ticks` answers, by a C++ compiler and by XLA, inside `jit` and outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import lanewise as lw
from comparing import assert_same, take
from core.test_outcomes import checked
from corpus import Case, case_named
from lanewise.carriers.native import CPP, IN_STEP, XLA
from lanewise.core.errors import InternalError, OptionError, Outcome
from lanewise.cpp.toolchain import foreign, host
from programs.small import depth, fib
from seeing import forget_plans
from test_corpus import batch, one_at_a_time

SIZE = 17


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without a C++ compiler."""
    monkeypatch.setattr(foreign, "obstacle", lambda: "there is none")
    forget_plans()
    yield
    forget_plans()


def check(case: Case, wrap: Callable[..., Any], size: int = SIZE, **options: Any) -> None:
    args = take(case.in_axes, batch(case.name), slice(size))
    mapped = lw.vmap(case.program, in_axes=case.in_axes, carrier="native", **options)
    assert_same(wrap(mapped)(*args), take(0, one_at_a_time(case.name), slice(size)), case.rtol)


# Loops, recursion, arrays, keys, records, weights that all lanes share, every kind of number, arrays of no elements.
SPREAD = (
    "collatz",
    "gcd",
    "hanoi",
    "adaptive_simpson",
    "newton_root",
    "truncated_normal",
    "quicksort",
    "bank",
    "early_exit",
    "empty_arrays",
    "low_precision",
    "mixed_widths",
    "boolean_state",
    "complex_rotation",
    "carry_key",
    "nothing_comes_back",
)


@pytest.mark.parametrize("name", SPREAD)
def test_by_a_compiler(name: str) -> None:
    check(case_named(name), jax.jit)


@pytest.mark.parametrize("name", ["collatz", "hanoi", "truncated_normal", "bank", "low_precision"])
def test_by_xla(name: str, no_compiler: None) -> None:
    check(case_named(name), jax.jit)


def test_a_primitive_that_nothing_is_known_of_runs_by_ticks() -> None:
    """JAX's sparse products are primitives whose code is seen by XLA alone."""
    matrix = sparse.BCOO.fromdense(jnp.array([[2.0, 1.0], [0.0, 0.5]]))

    def powers(x: Any, n: Any) -> Any:
        return jax.lax.fori_loop(0, n, lambda _, v: matrix @ v, x * jnp.ones(2))

    x, n = jnp.array([0.3, 1.2, 4.0]), jnp.array([0, 5, 3])
    want = [powers(*args) for args in zip(x, n, strict=True)]
    np.testing.assert_allclose(lw.vmap(powers)(x, n), want, rtol=1e-6)
    with pytest.raises(OptionError, match="bcoo_dot_general: a kernel has no rule"):
        lw.vmap(powers, carrier="native")(x, n)


@pytest.mark.parametrize("name", ["collatz", "quicksort", "carry_key"])
def test_outside_jit(name: str) -> None:
    check(case_named(name), lambda mapped: mapped)


def test_many_examples_and_lanes_of_no_number() -> None:
    """More examples than a thread takes at a time; `lanes` bounds nothing, and no example is no work."""
    check(case_named("collatz"), jax.jit, size=256, lanes=8)
    native = jax.jit(lw.vmap(fib, carrier="native"))
    assert_same(
        native(jnp.arange(5000) % 9), jnp.array([fib(n) for n in range(9)])[jnp.arange(5000) % 9], 0
    )
    assert native(jnp.zeros(0, jnp.int32)).shape == (0,)


@pytest.mark.parametrize("path", [CPP, XLA])
def test_stacks_grow_outside_jit_and_end_a_lane_inside(path: str, request: Any) -> None:
    if path == XLA:
        request.getfixturevalue("no_compiler")
    n = jnp.array([3, 1500, 40])
    native = lw.vmap(depth, carrier="native", throw=False)
    answers, outcomes = native(n)
    assert answers.tolist() == n.tolist() and not outcomes.code.any()
    answers, outcomes = jax.jit(native)(n)
    assert answers.tolist() == [3, 0, 40]
    assert outcomes.code.tolist() == [0, Outcome.STACK_OVERFLOW, 0]


@pytest.mark.parametrize("path", [CPP, XLA])
def test_outcomes(path: str, request: Any) -> None:
    if path == XLA:
        request.getfixturevalue("no_compiler")
    n = jnp.array([5, -20, 9, -1, 2])
    ticks, native = (
        jax.jit(lw.vmap(checked, carrier=carrier, throw=False))(n)
        for carrier in ("ticks", "native")
    )
    assert_same(native[0], ticks[0], 0)
    assert native[1].code.tolist() == ticks[1].code.tolist() == [0, 3, 3, 3, 0]
    assert native[1].site.tolist() == ticks[1].site.tolist()
    few = lw.vmap(fib, carrier="native", max_steps=20, throw=False)
    answers, outcomes = jax.jit(few)(jnp.array([3, 9, 5]))
    assert answers.tolist() == [2, 0, 5]
    assert outcomes.code.tolist() == [0, Outcome.STEPS_EXHAUSTED, 0]


def test_a_compiler_that_fails_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setattr(host, "COMPILERS", ())
    assert not foreign.available()
    n = jnp.arange(5)
    assert lw.vmap(lw.program(lambda n: n * 2 + 1))(n).tolist() == [1, 3, 5, 7, 9]
    with pytest.raises(InternalError, match="does not compile"):
        host.load("int lanewise() { return 0; }")


def test_no_memory_for_a_lane_is_reported() -> None:
    @lw.program
    def wide(n, x):
        if n == 0:
            return x
        return wide(n - 1, x + 1) * x

    run = jax.jit(lw.vmap(wide, (0, None), carrier="native", max_depth=2**31 - 2))
    with pytest.raises(Exception, match="set max_depth to fewer frames"):
        jax.block_until_ready(run(jnp.arange(3), jnp.zeros(200)))


def test_statistics() -> None:
    n = jnp.array([3, 9, 5])
    found = {
        carrier: lw.vmap(fib, carrier=carrier, stats=True)(n)[1] for carrier in ("ticks", "native")
    }
    assert float(found["native"].steps) == float(found["ticks"].steps)
    assert int(found["native"].deepest) == int(found["ticks"].deepest)
    assert float(found["native"].occupancy) == 1.0


@lw.program
def settles(x, rate):
    while jnp.abs(x).sum() > 1.0:
        x = x * rate - jnp.sin(x) * 0.1
    return x


def test_derivatives() -> None:
    x = jnp.linspace(1.0, 4.0, 12).reshape(4, 3)
    tangent = jnp.cos(x)

    def both(carrier: str) -> Any:
        run = lw.vmap(settles, in_axes=(0, None), carrier=carrier)
        return jax.jit(lambda x, t: jax.jvp(lambda x: run(x, 0.7), (x,), (t,)))(x, tangent)

    assert_same(both("native"), both("ticks"), 1e-5)


def test_shared_operands_donated_operands_and_shards() -> None:
    x = np.linspace(1.0, 4.0, 12, dtype=np.float32).reshape(4, 3)
    run = lw.vmap(settles, in_axes=(0, None), carrier="native")
    expected = np.asarray(lw.vmap(settles, in_axes=(0, None), carrier="ticks")(x, 0.7))
    donating = jax.jit(run, donate_argnums=0)
    assert_same(donating(jnp.array(x), jnp.float32(0.7)), expected, 1e-5)
    mesh = Mesh(np.array(jax.devices()[:1]), ("lanes",))
    sharded = jax.shard_map(run, mesh=mesh, in_specs=(P("lanes"), P()), out_specs=P("lanes"))
    assert_same(jax.jit(sharded)(x, jnp.float32(0.7)), expected, 1e-5)


def test_calls_at_the_same_time() -> None:
    """Several calls in one computation, and a program inside another."""

    @jax.jit
    def several(n: jax.Array) -> Any:
        first = lw.vmap(fib, carrier="native")(n)
        return (
            first,
            lw.vmap(fib, carrier="native")(n + 1),
            lw.vmap(fib, carrier="native")(first % 7),
        )

    n = jnp.arange(12)
    fibs = [0, 1]
    for _ in range(12):
        fibs.append(fibs[-1] + fibs[-2])
    first, second, third = several(n)
    assert first.tolist() == fibs[:12] and second.tolist() == fibs[1:13]
    assert third.tolist() == [fibs[f % 7] for f in fibs[:12]]


# -- what is reported ------------------------------------------------------------------------------------


def test_inspect_reports_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    args = take(case_named("collatz").in_axes, batch("collatz"), slice(SIZE))
    collatz = case_named("collatz").program.with_options(carrier="native")
    assert lw.inspect(collatz, *args).plan.path == IN_STEP
    assert f"carrier native (by {IN_STEP}), schedule one lane: asked for" in str(
        lw.inspect(collatz, *args)
    )
    assert lw.inspect(fib.with_options(carrier="native"), jnp.arange(3)).plan.path == CPP
    assert lw.inspect(collatz.with_options(max_steps=9), *args).plan.path == CPP
    monkeypatch.setattr(foreign, "obstacle", lambda: "there is none")
    forget_plans()
    found = lw.inspect(collatz, *args).plan
    forget_plans()
    assert found.path == XLA and "by a C++ compiler it cannot be: there is none" in found.why


@lw.program
def eigenvalues(matrix):
    while matrix[0, 0] > 1.0:
        matrix = matrix * 0.5 * jnp.linalg.eigh(matrix)[0][0]
    return matrix


def test_what_cannot_be_carried_is_named() -> None:
    matrices = jnp.stack([jnp.eye(2), 3.0 * jnp.eye(2)])
    with pytest.raises(OptionError, match=r"eigh.*test_native\.py:\d+.*Use carrier=\"ticks\""):
        lw.vmap(eigenvalues, carrier="native")(matrices)


def test_a_schedule_is_refused() -> None:
    with pytest.raises(OptionError, match="has no schedule"):
        lw.vmap(fib, carrier="native", schedule="most")(jnp.arange(3))


@pytest.mark.parametrize("carrier", ["native", "ticks", "auto"])
def test_weak_types_stay(carrier: str) -> None:
    def weak(n: jax.Array) -> tuple[Any, Any]:
        return jax.lax.cond(n > 2, lambda: 1.0, lambda: 2.0), jax.lax.while_loop(
            lambda i: i < n, lambda i: i + 1, 0
        )

    numbers = jnp.arange(5)
    expected = jax.vmap(weak)(numbers)
    for run in (lw.vmap(weak, carrier=carrier), jax.jit(lw.vmap(weak, carrier=carrier))):
        for ours, theirs in zip(run(numbers), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
            assert (ours.dtype, ours.weak_type) == (theirs.dtype, theirs.weak_type)


def test_a_batch_inside_a_batch_is_carried_in_the_lane() -> None:
    @lw.program
    def fibonacci(n: Any) -> Any:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    ns = jnp.arange(8).reshape(2, 4)
    wanted = [[0, 1, 1, 2], [3, 5, 8, 13]]
    for inner in ("native", "ticks"):
        row = lw.vmap(fibonacci, carrier=inner)
        assert lw.vmap(row, carrier="native")(ns).tolist() == wanted
    summed = lw.vmap(lambda xs: lw.vmap(fibonacci, carrier="native")(xs).sum(), carrier="native")
    assert summed(ns).tolist() == [4, 29]
    assert lw.vmap(row, carrier="ticks")(ns).tolist() == wanted
