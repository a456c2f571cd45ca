"""What JAX raises while a program is traced names the user's file and line first."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.errors import RecordError


@lw.program
def product(x: Any) -> Any:
    if x[0] > 0:
        return x @ jnp.ones(7)  # here: product
    return x.sum()


@lw.program
def deeper(n: Any, x: Any) -> Any:
    if n <= 0:
        return x
    return deeper(n - 1, jnp.concatenate([x, x[0]]))  # here: deeper


@lw.program
def converted(x: Any) -> Any:
    while x > 0:
        x = x - len(np.asarray(x))  # here: converted
    return x


@lw.program
def compared(x: Any) -> Any:
    while x < 3 and x @ jnp.ones(9) > 0:  # here: compared
        x = x + 1
    return x


def lifted(x: Any) -> Any:
    return jax.lax.while_loop(
        lambda y: y.sum() < 9,
        lambda y: y.reshape(5),  # here: <lambda>
        x,
    )


@lw.program
def outer(x: Any) -> Any:
    return product(x) + 1.0


@lw.record
class Node:
    numbers: list[int]
    next: Node | None = None


@lw.program
def followed(node: Any) -> Any:
    return node.after.numbers[0]  # here: followed


@lw.program
def added(node: Any) -> Any:
    return sum(node.numbers)  # here: added


@lw.program
def falls(x: Any) -> Any:
    def lower(x: Any) -> Any:
        if x < 0:
            return x
        return lower(x - 1)

    return lower(x)


@pytest.mark.parametrize(
    ("call", "kind", "place", "says"),
    [
        (lambda: product(jnp.ones(3)), TypeError, "product", "contracting"),
        (lambda: lw.vmap(product)(jnp.ones((2, 3))), TypeError, "product", "contracting"),
        (lambda: jax.jit(outer)(jnp.ones(3)), TypeError, "product", "contracting"),
        (lambda: jax.grad(product)(jnp.ones(3)), TypeError, "product", "contracting"),
        (lambda: deeper(3, jnp.ones(2)), TypeError, "deeper", "concatenate"),
        (
            lambda: converted(jnp.ones(())),
            jax.errors.TracerArrayConversionError,
            "converted",
            "traced array",
        ),
        (lambda: compared(jnp.ones(())), ValueError, "compared", "matmul"),
        (lambda: lw.vmap(lifted)(jnp.ones((2, 3))), TypeError, "<lambda>", "reshape"),
        (lambda: followed(Node([1])), AttributeError, "followed", "Node has no field 'after'; it"),
        (lambda: followed(3), AttributeError, "followed", "an array int32[] has no attribute 'aft"),
        (lambda: added(Node([1])), RecordError, "added", "the length of this list is known at run"),
    ],
)
def test_the_line_comes_first(call: Any, kind: type[Exception], place: str, says: str) -> None:
    lines = inspect.getsource(inspect.getmodule(product) or product).split("\n")
    (line,) = (i for i, text in enumerate(lines, 1) if text.endswith(f"# here: {place}"))
    with pytest.raises(kind) as caught:
        call()
    first = str(caught.value).split("\n")[0]
    assert first.startswith(f"{__file__}:{line}, in {place}: ")
    assert says in first


def test_a_plain_function_that_calls_itself_has_the_fix_named() -> None:
    with pytest.raises(RecursionError, match=r"test_blame.py:\d+, in lower: .*make it a program"):
        falls(3.0)


def test_what_the_users_code_raises_is_left_alone() -> None:
    @lw.program
    def refuses(x: Any) -> Any:
        raise ValueError("mine")

    with pytest.raises(ValueError) as caught:
        refuses(1.0)
    assert str(caught.value) == "mine"


def test_an_error_without_a_message_has_a_note() -> None:
    @lw.program
    def misses(x: Any) -> Any:
        return {}["k"] + x

    with pytest.raises(KeyError) as caught:
        misses(1.0)
    assert caught.value.args == ("k",)
    assert any("test_blame.py" in note for note in caught.value.__notes__)
