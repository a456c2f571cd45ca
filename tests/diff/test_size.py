"""Derivatives grow gently with the order: what is counted here is what compilers wait for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise import _jax
from lanewise.core.options import Options
from lanewise.core.program import Program
from lanewise.cpp import kernels
from lanewise.cpp.toolchain import device, foreign
from lanewise.diff.checkpoint import Checkpoints
from lanewise.diff.records import SMALL, Tapes
from lanewise.diff.vjp import vjp_program
from lanewise.job import job
from lanewise.job.job import Job
from lanewise.plan.choose import plan
from programs.recursion import scaled_tree

ROOM = 128


@lw.program
def quadrature(a, b, tolerance):
    middle = 0.5 * (a + b)
    left, right = 0.5 * (a + middle), 0.5 * (middle + b)
    whole = (b - a) / 6 * (jnp.sin(a * a) + 4 * jnp.sin(middle * middle) + jnp.sin(b * b))
    one = (middle - a) / 6 * (jnp.sin(a * a) + 4 * jnp.sin(left * left) + jnp.sin(middle * middle))
    two = (
        (b - middle) / 6 * (jnp.sin(middle * middle) + 4 * jnp.sin(right * right) + jnp.sin(b * b))
    )
    if jnp.abs(one + two - whole) <= tolerance:
        return one + two
    return quadrature(a, middle, tolerance / 2) + quadrature(middle, b, tolerance / 2)


def equations(program: Program) -> Iterator[_jax.JaxprEqn]:
    def inside(jaxpr: Any) -> Iterator[_jax.JaxprEqn]:
        for eqn in jaxpr.eqns:
            yield eqn
            for inner in _jax.subjaxprs(eqn):
                yield from inside(inner)

    for function in program.functions.values():
        yield from inside(function.jaxpr)


def gradient(program: Program, active: tuple[bool, ...]) -> list[tuple[Program, tuple[bool, ...]]]:
    """The two programs of a gradient, and which of their operands a second one moves by: all that can."""
    found = vjp_program(program, active, Checkpoints(records=ROOM))
    made = []
    for each in (found.forward.program, found.reverse.program):
        entry = each.functions[each.entry]
        avals = [*each.capture_avals, *(v.aval for v in entry.params)]
        made.append((each, tuple(map(_jax.has_tangent, avals))))
    return made


@pytest.fixture(scope="module")
def orders() -> list[list[tuple[Program, tuple[bool, ...]]]]:
    """The programs of the first three orders of a recursion with two calls."""
    staged = quadrature.stage(0.1, 2.0, 1e-3)[0].program
    first = [(staged, (True, False, False))]
    second = [each for program, active in first for each in gradient(program, active)]
    third = [each for program, active in second for each in gradient(program, active)]
    return [first, second, third]


def test_a_second_derivative_is_a_small_multiple_of_the_first(orders: Any) -> None:
    sizes = [sum(sum(1 for _ in equations(p)) for p, _ in made) for made in orders]
    assert sizes[1] <= 5 * sizes[0]
    assert sizes[2] <= 4 * sizes[1]


def test_a_function_is_derived_once_whatever_moves_at_its_calls(orders: Any) -> None:
    for order, made in enumerate(orders[1:], 1):
        for program, _ in made:
            # Besides the function's own, one for each order that calls it with tapes of nothing.
            assert len(program.functions) == 1 + order, program.functions.keys()


def test_python_scalars_make_no_tapes_within_tapes() -> None:
    """A recursion called with them has the second derivative of one called with arrays: the same sizes in memory."""

    def saved(scale: Any) -> list[tuple[Any, ...]]:
        staged = scaled_tree.stage(scale, jnp.float32(0.3), 4)[0].program
        (forward, active), _ = gradient(staged, (False, True, False))
        (again, _), _ = gradient(forward, active)
        return [(a.shape, a.dtype) for a in again.out_avals]

    assert saved(1.5) == saved(jnp.float32(1.5))
    assert max(math.prod(shape) for shape, _ in saved(1.5)) < ROOM * ROOM

    def twice(scale: Any) -> Any:
        return jax.grad(jax.grad(lambda x: scaled_tree(scale, x, 2)))(jnp.float32(0.3))

    np.testing.assert_allclose(twice(1.5), twice(jnp.float32(1.5)), rtol=1e-6)


def test_a_tape_is_no_large_array_to_the_chooser(orders: Any) -> None:
    """Alone, a recursion over numbers is C++ at every order, however long the tapes are."""
    if not foreign.available():
        pytest.skip(needs.COMPILER_REASON)
    for program, _ in (*orders[1], *orders[2]):
        job = Job(program, (), ((),) * program.num_operands, Options(), "cpu")
        chosen = plan(job)
        assert chosen.carrier == "native", (program.entry, chosen.why)


def test_few_tapes_whatever_is_saved(orders: Any) -> None:
    forward, _ = orders[1][0]
    # A tape of numbers and one of flags, each with how many entries it has.
    assert len(forward.out_avals) <= 1 + 4


def test_no_arithmetic_on_whole_tapes(orders: Any) -> None:
    arithmetic = ("add", "add_any", "mul", "select_n", "neg")
    for program, _ in (*orders[1], *orders[2]):
        for eqn in equations(program):
            if eqn.primitive.name in arithmetic:
                assert np.prod(eqn.outvars[0].aval.shape) < ROOM, (program.entry, eqn)


def test_a_record_is_on_the_tapes_of_its_types() -> None:
    number, flag = _jax.shaped((), jnp.float32.dtype), _jax.shaped((), jnp.bool_.dtype)
    pair, empty = _jax.shaped((2,), jnp.float32.dtype), _jax.shaped((0,), jnp.float32.dtype)
    large = _jax.shaped((SMALL + 1,), jnp.float32.dtype)
    kinds = [(number, flag, pair, empty), (large, large, number)]
    tapes = Tapes.of(kinds, records=3)
    rng = np.random.default_rng(0)

    def some(aval: Any) -> jax.Array:
        return jnp.asarray(
            rng.normal(size=aval.shape) > 0 if aval is flag else rng.normal(size=aval.shape),
            aval.dtype,
        )

    records = [[some(aval) for aval in kind] for kind in (kinds[0], kinds[1], kinds[0])]

    def there_and_back(*values: Any) -> list[Any]:
        arrays = [_jax.zeros(a) for a in tapes.avals]
        left = iter(values)
        for kind in (kinds[0], kinds[1], kinds[0]):
            arrays = tapes.pushed([next(left) for _ in kind], arrays)
        found: list[Any] = []
        for kind in (kinds[0], kinds[1], kinds[0]):
            popped, arrays = tapes.popped(kind, arrays)
            found = [*popped, *found]
        return [*found, *arrays[1::2]]

    flat = [x for record in records for x in record]
    traced = _jax.trace(there_and_back, [_jax.aval_of(x) for x in flat])
    # Checks of room are for programs.
    silent = _jax.without_effects(traced.jaxpr)
    outs = _jax.eval_jaxpr(silent, *traced.captures, *flat)
    for given, got in zip(flat, outs[: len(flat)], strict=True):
        np.testing.assert_array_equal(given, got)
    assert [int(top) for top in outs[len(flat) :]] == [0, 0, 0]


def test_a_kernel_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning writes the kernel that runs, for a lone call and for a batch."""
    written: list[Any] = []
    linked: list[Any] = []

    def counted(module: Any, name: str, calls: list[Any]) -> None:
        real = getattr(module, name)

        def call(*args: Any, **named: Any) -> Any:
            calls.append(name)
            return real(*args, **named)

        monkeypatch.setattr(module, name, call)

    counted(kernels, "written", written)
    counted(job, "flatten", linked)

    @lw.program
    def halvings(x):
        if x < 1.0:
            return x
        return 0.5 * halvings(x / 2) + halvings(x / 4)

    lone = jax.grad(halvings.with_options(carrier="auto"))(6.0)
    programs = 2
    assert len(linked) == programs
    on_cpu = jax.default_backend() == "cpu"
    # On a GPU a lone call is not a kernel.
    assert len(written) == (programs if on_cpu and foreign.available() else 0)
    written.clear()
    batch = jax.vmap(jax.grad(halvings))(jnp.array([6.0, 3.0]))
    assert len(linked) == 2 * programs
    can_write = foreign.available() if on_cpu else device.available()
    assert len(written) == (programs if can_write else 0)
    np.testing.assert_allclose(batch[0], lone, rtol=1e-6)
