"""`match`: what the subject is made of is decided while tracing, what its parts are equal to may be traced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import lanewise as lw
from lanewise.core.errors import UnsupportedSyntaxError
from lanewise.frontend.python import convert


@dataclass
class Circle:
    radius: Any
    kind: str = "round"


class Point(NamedTuple):
    x: Any
    y: Any


def on_traced(fun: Any, *args: Any) -> Any:
    """The converted function traced at these numbers, wherever they are, and plain Python's answer."""
    leaves, tree = jax.tree.flatten(args)
    got = jax.jit(lambda *xs: convert(fun)(*jax.tree.unflatten(tree, xs)))(*leaves)
    assert got == fun(*args), (got, fun(*args))


@pytest.mark.parametrize("x", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("y", [0.0, 1.0, 5.0])
def test_pairs_values_and_guards(x: float, y: float) -> None:
    def f(x, y):
        match (x, y):
            case (0.0, 0.0):
                z = 1.0
            case (0.0, b) | (b, 0.0):
                z = 10.0 * b
            case (a, b) if a > b:
                z = a - b
            case (-1.0 as a, b) if (lambda a: a > 4.0)(b):
                z = a * b
            case [a, *_]:
                z = 100.0 + a
        return z

    on_traced(f, x, y)


@pytest.mark.parametrize("items", [(), (1.0,), (1.0, 2.0), (3.0, 2.0, 1.0), (1.0, 5.0, 7.0, 9.0)])
def test_sequences_of_any_length(items: tuple[float, ...]) -> None:
    def f(items):
        match items:
            case []:
                return 0.0
            case [only]:
                return only
            case [first, *middle, 9.0]:
                return first + 10.0 * len(middle)
            case (3.0, second, *rest) if second < 4.0:
                return second + len(rest)
            case [*_, last]:
                return last

    on_traced(f, items)


@pytest.mark.parametrize(
    "given", [{"op": 1.0, "by": 3.0}, {"op": 2.0, "by": 3.0, "more": 4.0}, {"op": 7.0}, {"by": 1.0}]
)
def test_mappings(given: dict[str, float]) -> None:
    def f(given):
        match given:
            case {"op": 1.0, "by": by}:
                z = by
            case {"op": 2.0, "by": by, **rest} if rest:
                z = by * rest["more"]
            case {"op": op}:
                z = -op
            case _:
                z = 0.0
        return z

    on_traced(f, given)


@pytest.mark.parametrize(
    "shape", [Circle(1.0), Circle(2.0, "dot"), Point(0.0, 3.0), Point(2.0, 3.0), 4.0]
)
def test_classes(shape: Any) -> None:
    def area(shape):
        match shape:
            case Circle(radius=r, kind="dot"):
                return 0.0 * r
            case Circle(1.0):
                return 3.0
            case Circle(r) if r < 3.0:
                return 3.0 * r * r
            case Point(0.0, y) | Point(y, 0.0):
                return y
            case Point(x=x, y=y):
                return x * y
            case _:
                return 4.0

    if isinstance(shape, Circle):
        got = jax.jit(lambda r: convert(area)(Circle(r, shape.kind)))(shape.radius)
        assert got == area(shape)
    else:
        on_traced(area, shape)


@pytest.mark.parametrize("x", [-1.0, 1.0])
def test_traced_bools(x: float) -> None:
    def f(x):
        match x > 0.0:
            case True:
                y = x
            case False:
                y = -2.0 * x
            case None:
                y = 0.0
        return y + (0.0 if x > 0 else 1.0)

    # Whether one of them holds is only known at run time: `y` may stay undefined.
    with pytest.raises(UnboundLocalError, match="test_match"):
        jax.jit(convert(f))(x)

    def g(x):
        match x > 0.0:
            case True:
                return x
            case _:
                return -2.0 * x

    on_traced(g, x)


def test_in_a_loop_with_exits() -> None:
    def f(n):
        total = 0
        for i in range(40):
            match (i % 3, i % 5):
                case (0, 0):
                    continue
                case (0, k) if k == n:
                    total += k
                case (_, 4) if i > n:
                    return total
                case _:
                    total += 1
        return total

    for n in range(5):
        on_traced(f, n)


def test_nested_structure() -> None:
    def f(pair):
        match pair:
            case {"left": (Point(x, 0.0), [y, _]), "right": None}:
                return x + y
            case {"left": (Point(x, _), _)}:
                return -x
        return 0.0

    on_traced(f, {"left": (Point(1.0, 0.0), [5.0, 6.0]), "right": None})
    on_traced(f, {"left": (Point(1.0, 2.0), [5.0, 6.0]), "right": None})
    on_traced(f, {"left": 3.0, "right": 4.0})


def test_the_python_type_of_a_traced_number_is_refused_at_its_line() -> None:
    @lw.program
    def f(x):
        match x:
            case int(n):
                return n
            case _:
                return 0

    with pytest.raises(UnsupportedSyntaxError, match=r"test_match\.py:\d+.*case int.*dtype") as e:
        f(jnp.int32(3))
    line = f.python.__code__.co_firstlineno
    assert e.value.lineno == line + 3


def test_a_class_with_too_many_parts_is_refused_as_python_does() -> None:
    def f(x):
        match x:
            case Point(a, b, c):  # type: ignore[misc]
                return a + b + c
        return 0.0

    with pytest.raises(TypeError, match="accepts 2 positional sub-patterns"):
        jax.jit(lambda x: convert(f)(Point(x, x)))(1.0)
