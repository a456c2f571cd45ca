"""What is known about primitives: nothing is missing, everything is read, and a new row is all that it takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
import needs
from lanewise import _jax
from lanewise.blocks.link import Linked
from lanewise.core.errors import OptionError
from lanewise.core.options import Options
from lanewise.core.primitives import facts as asked
from lanewise.core.primitives.facts import (
    FUNCTION,
    TABLE,
    UNKNOWN,
    Cost,
    Effort,
    Facts,
    Kind,
    Vector,
    declare,
    effort_of,
    eqn_cost,
    facts_of,
    is_safe,
    passes,
    runs_in_one_function,
)
from lanewise.cpp.emit.emitted import Emitted, Obstacle
from lanewise.cpp.emit.rules import RULES, rule
from lanewise.cpp.emit.rules.elementwise import each
from lanewise.cpp.emit.rules.table import RULES as ALL_RULES
from lanewise.cpp.kernels import blocks_for, kernel_blocks, kernel_or_obstacle
from lanewise.cpp.variants.tiles import tiled
from lanewise.diff.split import run_again
from lanewise.plan.expected import work_of_blocks

SOURCES = Path(lw.__file__).parent
OPTIONS = Options()


def equation(f: Callable[..., Any], *shapes: tuple[int, ...]) -> _jax.JaxprEqn:
    """The last equation of a function of arrays of these shapes."""
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return _jax.trace(lambda *args: [f(*args)], structs).jaxpr.eqns[-1]


def kernel(f: Callable[..., Any], *args: Any) -> Emitted | Obstacle:
    staged, operands = lw.program(f).stage(*args)
    return kernel_or_obstacle(staged.program, (True,) * len(operands), OPTIONS)


def blocks(f: Callable[..., Any], *args: Any) -> Linked:
    staged, operands = lw.program(f).stage(*args)
    return blocks_for(staged.program, (True,) * len(operands), OPTIONS)


# -- the table ---------------------------------------------------------------------------------------


def test_every_rule_has_a_row() -> None:
    assert ALL_RULES is RULES and set(RULES) - set(TABLE) == set()


def test_every_row_says_something() -> None:
    """A row without a rule is there for what it says of a primitive that kernels do not have."""
    assert {name for name, row in TABLE.items() if row == UNKNOWN} <= set(RULES)


def test_a_primitive_has_one_row() -> None:
    with pytest.raises(ValueError, match="add has a row"):
        declare("add", Kind.ELEMENTWISE)


def read_elsewhere() -> tuple[set[str], set[str]]:
    """The questions that other modules ask, and the fields of rows that they look at themselves."""
    questions: set[str] = set()
    looked_at: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        if path.parent.name == "primitives":
            continue
        tree = ast.parse(path.read_text())
        taken = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == asked.__name__
            for alias in node.names
        }
        questions |= taken
        if "facts_of" in taken:
            looked_at |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return questions, looked_at


def test_every_fact_is_read_and_every_question_asked() -> None:
    questions, read = read_elsewhere()
    functions = {
        node.name: node
        for node in ast.parse(Path(asked.__file__).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }

    def names_in(node: ast.AST) -> Iterator[str]:
        yield from (each.id for each in ast.walk(node) if isinstance(each, ast.Name))

    rows = (SOURCES / "core/primitives").glob("*.py")
    used_by_rows = {
        name
        for path in rows
        if path.stem != "facts"
        for name in names_in(ast.parse(path.read_text()))
    }
    reached = (questions | used_by_rows) & set(functions)
    while True:
        more = {n for name in reached for n in names_in(functions[name]) if n in functions}
        if more <= reached:
            break
        reached |= more
    assert set(functions) - reached == set(), "not asked by any room"
    read |= {
        node.attr
        for name in reached
        for node in ast.walk(functions[name])
        if isinstance(node, ast.Attribute)
    }
    assert {field.name for field in fields(Facts)} - read == set(), "not read by any question"


# Where names of primitives stand side by side for another reason than what is known about them.
OTHER_LISTS = {
    "arrays/__init__.py": "functions of ours",
    "blocks/analysis.py": "rules: how they are evaluated on numbers",
    "cpp/emit/rules": "rules: how they are written",
    "diff/common.py": "what the arithmetic of JAX's indices is made of",
    "dynamic/lazy.py": "Python's operators",
    "place/after_loops.py": "linear in one operand at a time, which products and others are",
    "records/optional.py": "Python's operators",
}


def names_listed(node: ast.AST) -> set[str]:
    """The names in a list of names, as a string with spaces or as several strings."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        words = node.value.split()
        return set(words) if len(words) > 1 and set(words) <= set(TABLE) else set()
    if isinstance(node, ast.Set | ast.Tuple | ast.List):
        return {p.value for p in node.elts if isinstance(p, ast.Constant) and p.value in TABLE}
    return set()


def test_nowhere_else_is_a_set_of_primitives() -> None:
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if "primitives" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if len(names_listed(node)) > 2
    }
    assert {path for path in found if not path.startswith(tuple(OTHER_LISTS))} == set()
    assert all(any(path.startswith(known) for path in found) for known in OTHER_LISTS)


# -- one primitive more --------------------------------------------------------------------------------

affine_p = _jax.Primitive("test_affine")
affine_p.def_impl(lambda x: 3 * x + 1)
affine_p.def_abstract_eval(lambda x: x)
_jax.mlir.register_lowering(
    affine_p, _jax.mlir.lower_fun(lambda x: 3 * x + 1, multiple_results=False)
)


def _batched(args: Sequence[Any], dims: Sequence[Any]) -> Any:
    return affine_p.bind(*args), dims[0]


_jax.batching.primitive_batchers[affine_p] = _batched


@pytest.fixture
def declared() -> Iterator[Callable[..., None]]:
    """Declares the primitive, with its rule, for one test."""

    def add(**facts: Any) -> None:
        TABLE.pop(affine_p.name, None)
        declare(affine_p.name, Kind.ELEMENTWISE, **facts)

    rule(affine_p.name)(lambda w, eqn: each(w, eqn, lambda a: f"(3 * {a} + 1)"))
    yield add
    TABLE.pop(affine_p.name, None)
    del RULES[affine_p.name]


def summed(x: Any) -> Any:
    return jnp.sum(affine_p.bind(2 * x))


def iterated(x: Any) -> Any:
    """One loop of scalars: how often until it is large."""

    def step(state: Any) -> Any:
        x, count = state
        return affine_p.bind(x), count + 1

    return lax.while_loop(lambda state: state[0] < 1e4, step, (x, jnp.int32(0)))


def arrays_in(emitted: Emitted | Obstacle) -> int:
    """How many arrays of 64 numbers a kernel has."""
    assert isinstance(emitted, Emitted)
    return len(re.findall(r"float32 t\d+\[64\]", emitted.text))


def test_a_new_elementwise_primitive_is_fused(declared: Callable[..., None]) -> None:
    x = jnp.ones(64)
    declared(fuses=False)
    assert arrays_in(kernel(lambda x: summed(x), x)) == 1
    declared()
    found = kernel(lambda x: summed(x), x)
    assert arrays_in(found) == 0 and isinstance(found, Emitted)
    # What it reads is part of its expression, and that is part of the sum's.
    assert "(3 * (2.0f * " in found.text


def test_a_new_elementwise_primitive_is_costed(declared: Callable[..., None]) -> None:
    eqn = equation(affine_p.bind, (5,))
    assert eqn_cost(eqn) == Cost(5.0, 20.0) and not passes(eqn)
    declared(operations=FUNCTION)
    assert eqn_cost(eqn) == Cost(50.0, 20.0) and effort_of(eqn) is Effort.FUNCTION
    assert not run_again(eqn)
    function = work_of_blocks(blocks(lambda x: affine_p.bind(x), jnp.ones(5)))
    declared(operations=2.0, effort=Effort.ARITHMETIC)
    assert eqn_cost(eqn) == Cost(10.0, 20.0) and run_again(eqn)
    work = work_of_blocks(blocks(lambda x: affine_p.bind(x), jnp.ones(5)))
    assert work.passes == function.passes == 0 and 0 < 3 * work.alone < function.alone


def test_a_new_elementwise_primitive_is_vectorized(declared: Callable[..., None]) -> None:
    staged, _ = lw.program(iterated).stage(jnp.float32(1))
    linked = kernel_blocks(staged.program, (True,), OPTIONS, selects=True)
    declared()
    assert tiled(linked, (True,)) is None
    declared(vector=Vector.ALL)
    found = tiled(linked, (True,))
    assert found is not None and "omp simd" in found.text


@needs.compiler
@needs.on_cpu
def test_a_new_elementwise_primitive_runs(declared: Callable[..., None]) -> None:
    declared(vector=Vector.ALL)
    x = jnp.linspace(1.0, 9.0, 33)
    expected = [(v, 0) for v in np.asarray(x)]
    for i, (v, _) in enumerate(expected):
        count = 0
        while v < 1e4:
            v, count = np.float32(3) * v + np.float32(1), count + 1
        expected[i] = (v, count)
    for carrier in ("native", "ticks"):
        found = lw.vmap(iterated, carrier=carrier)(x)
        np.testing.assert_allclose(found[0], [v for v, _ in expected], rtol=1e-6)
        np.testing.assert_array_equal(found[1], [count for _, count in expected])
    path = lw.inspect(lw.program(iterated).with_options(carrier="native"), x).plan.path
    assert "in step" in path


# -- what had drifted apart ----------------------------------------------------------------------------

FUNCTIONS = (
    "log2 polygamma zeta bessel_i0e bessel_i1e asinh acosh atanh lgamma digamma erf_inv".split()
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_known_alike(name: str) -> None:
    row, like = TABLE[name], TABLE["sin"]
    assert Vector.FLOAT32 in (row.vector, Vector.FLOAT32)
    assert {f.name: getattr(row, f.name) for f in fields(row) if f.name != "vector"} == {
        f.name: getattr(like, f.name) for f in fields(like) if f.name != "vector"
    }


def test_functions_are_fused_into_their_reader() -> None:
    """What `zeta` and the Bessel functions read was stored in arrays."""

    def zeta(x: Any) -> Any:
        return lax.zeta(x, jnp.full_like(x, 2.0))

    for f in (zeta, lax.bessel_i0e, lax.bessel_i1e, lax.asinh, lax.sin):
        assert arrays_in(kernel(lambda x, f=f: jnp.sum(f(3 * x)), jnp.ones(64))) == 0


def test_a_power_may_have_a_pole() -> None:
    assert not is_safe(equation(lambda x: lax.integer_pow(x, -2), (3,)))
    assert is_safe(equation(lambda x: lax.square(x), (3,)))


def test_reduce_precision_is_no_reduction() -> None:
    eqn = equation(lambda x: lax.reduce_precision(x, 8, 10), (5000,))
    assert facts_of(eqn).kind is Kind.ELEMENTWISE and runs_in_one_function(eqn) and not passes(eqn)


def test_to_stack_ends_a_fusion() -> None:
    """As a concatenation does; its operands are numbers, which says nothing."""
    eqn = equation(lambda x, y: jnp.concatenate([x, y]), (1,), (1,))
    assert passes(eqn) and TABLE["stack"].passes and TABLE["cumprod"].passes


def test_convolutions_cost_what_they_multiply() -> None:
    """In the default layout the features of the result are axis 1."""
    eqn = equation(lambda x, k: lax.conv(x, k, (1, 1), "VALID"), (1, 3, 10, 10), (7, 3, 3, 3))
    assert eqn_cost(eqn).products == 2 * (7 * 8 * 8) * (3 * 3 * 3)


def test_matrix_work_is_work_for_all_lanes_from_some_size_on() -> None:
    def cost(rows: int) -> Cost:
        return eqn_cost(equation(lambda x: lax.linalg.lu(x), (rows, rows)))

    assert cost(16).products == 0 and cost(16).operations == 16**3
    assert cost(64).products == cost(64).operations == 64**3
    transformed = eqn_cost(equation(lambda x: lax.fft(x, "RFFT", (100,)), (100,)))
    assert transformed.products == transformed.operations > 51 * 100
    solve = lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True)  # noqa: E731
    assert eqn_cost(equation(solve, (64, 64), (64, 1))) == Cost(64.0**2, 256.0)
    assert eqn_cost(equation(solve, (64, 64), (64, 9))).products == 9 * 64**2


# -- what is too large for a kernel ----------------------------------------------------------------------

SQUARE = lambda n: jnp.eye(n) * 2  # noqa: E731
LIMITS: dict[str, tuple[Callable[..., Any], Callable[[int], Sequence[Any]], int, int]] = {
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x)), lambda n: [jnp.ones(n)], 128, 129),
    "cholesky": (lambda x: jnp.linalg.cholesky(x), lambda n: [SQUARE(n)], 128, 129),
    "lu": (lambda x: lax.linalg.lu(x)[0], lambda n: [SQUARE(n)], 128, 129),
    "qr": (lambda x: jnp.linalg.qr(x)[1], lambda n: [SQUARE(n)], 128, 129),
    "triangular_solve": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        lambda n: [SQUARE(n), jnp.ones((n, 4))],
        128,
        129,
    ),
    "conv_general_dilated": (
        lambda x: lax.conv(x, jnp.ones((16, 16, 3, 3)), (1, 1), "SAME"),
        lambda n: [jnp.ones((1, 16, n, n))],
        21,
        22,
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_kernel_says_what_is_too_large(name: str) -> None:
    f, make, most, more = LIMITS[name]
    assert isinstance(kernel(f, *make(most)), Emitted)
    found = kernel(f, *make(more))
    assert isinstance(found, Obstacle) and found.operation == name and "at most" in str(found)


def test_sums_of_few_terms_may_be_as_many_as_they_are() -> None:
    small = lambda x: lax.conv(x, jnp.ones((8, 8, 3, 3)), (1, 1), "SAME")  # noqa: E731
    assert isinstance(kernel(small, jnp.ones((1, 8, 64, 64))), Emitted)


def test_one_column_may_be_as_long_as_it_likes() -> None:
    f, _, _, _ = LIMITS["triangular_solve"]
    assert isinstance(kernel(f, SQUARE(300), jnp.ones((300, 1))), Emitted)


def smoothed(x: jax.Array, turns: jax.Array) -> jax.Array:
    """A loop of many functions of numbers, around a transform: better alone, if that were not so long."""

    def turn(i: jax.Array, x: jax.Array) -> jax.Array:
        y = lax.fori_loop(0, 70, lambda i, y: jnp.sin(y) + 0.1 * x, x)
        return jnp.real(jnp.fft.ifft(jnp.fft.fft(y) * 0.5))

    return lax.fori_loop(0, turns, turn, x)


@needs.compiler
@needs.on_cpu
def test_where_a_kernel_refuses_ticks_run() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 256)).astype(np.float32)
    turns = np.array([0, 3, 1, 2], np.int32)
    plan = lw.inspect(smoothed, x, turns).plan
    assert plan.carrier == "ticks", plan.why
    assert "not each lane on its own" in plan.why and "at most 128" in plan.why, plan.why
    with pytest.raises(OptionError, match=r"fft: .* at most 128 .*Use carrier=\"ticks\""):
        lw.inspect(lw.program(smoothed).with_options(carrier="native"), x, turns)
    wanted = x.copy()
    for lane, n in enumerate(turns):
        for _ in range(n):
            y = wanted[lane]
            for _ in range(70):
                y = np.sin(y) + 0.1 * wanted[lane]
            wanted[lane] = 0.5 * y
    np.testing.assert_allclose(lw.vmap(smoothed)(x, turns), wanted, rtol=1e-4, atol=1e-5)
