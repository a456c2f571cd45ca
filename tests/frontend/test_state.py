"""Pytrees as variables: containers, dataclasses, modules, and their mutation."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from lanewise.core.errors import BranchTypeError, LoopTypeError, UnsupportedSyntaxError
from lanewise.frontend.python import convert


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Mutable:
    value: Any
    count: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any
    name: str


class Module(eqx.Module):
    weight: jax.Array
    activation: Any = eqx.field(static=True)

    def step(self, x):
        return self.activation(self.weight * x)


@pytest.mark.parametrize("n", [0, 4])
def test_containers_in_loops(same, n):
    def f(n):
        state = {"x": 0.0, "pair": (1, [2, 3.0])}
        point = Point(0, 1)
        while n > 0:
            state = {"x": state["x"] + 1.5, "pair": (state["pair"][0] * 2, [n, 3.0])}
            point = point._replace(x=point.y, y=point.x + point.y)
            n -= 1
        return state, point

    same(f, n)


@pytest.mark.parametrize("n", [0, 4])
def test_mutated_containers(same, n):
    def f(n):
        d = {"a": 0, "b": [1.0, 2.0]}
        xs = [0, 0]
        for i in range(n):
            d["a"] += i
            d["b"][1] = d["b"][0] + i
            if i % 2 == 0:
                xs[0] += 1
            else:
                xs[1] = i
        return d, xs

    same(f, n)


def test_sides_do_not_share_containers(same):
    def f(x):
        d = {"a": x}
        if x > 0:
            d["a"] = d["a"] + 1
        else:
            d["a"] = d["a"] * 10
        return d

    same(f, 1.0)
    same(f, -1.0)


def test_append_on_both_sides(same):
    def f(x):
        out = []
        if x > 0:
            out.append(x)
        else:
            out.append(-x)
        return out

    same(f, 1.0)
    same(f, -1.0)


def test_append_on_one_side():
    def f(x):
        out = [x]
        if x > 0:
            out.append(x)
        return out

    with pytest.raises(BranchTypeError, match=r"`out` is a list of 2 .* and a list of 1"):
        jax.jit(convert(f))(1.0)


def test_append_in_a_loop():
    def f(n):
        out = []
        while n > 0:
            out.append(n)
            n -= 1
        return out

    with pytest.raises(
        LoopTypeError, match=r"`out` is a list of 0 before .* and a list of 1 after"
    ):
        jax.jit(convert(f))(3)


def test_pop(same):
    def f(x):
        out = [x, x + 1]
        if x > 0:
            y = out.pop()
        else:
            y = out.pop(0)
        return out, y

    same(f, 1)
    same(f, -1)


def test_mutable_dataclass(same):
    def f(n):
        state = Mutable(0.0, 0)
        while n > 0:
            state.value = state.value + n
            if n % 2 == 0:
                state.count += 1
            n -= 1
        return state.value, state.count

    same(f, 5)


def test_frozen_dataclass(same):
    def f(x):
        state = Frozen(x, "name")
        if x > 0:
            state = dataclasses.replace(state, value=x + 1)
        return state.value

    same(f, 1.0)


def test_fixed_leaves_must_agree():
    def f(x):
        state = Frozen(x, "one")
        if x > 0:
            state = Frozen(x, "two")
        return state.value

    with pytest.raises(BranchTypeError, match=r"`state.name` is the str 'two'.*the str 'one'"):
        jax.jit(convert(f))(1.0)


def test_equinox_module(same):
    module = Module(jnp.float32(0.5), jnp.tanh)

    def f(x, n):
        m = module
        while n > 0:
            x = m.step(x)
            m = eqx.tree_at(lambda m: m.weight, m, m.weight + x)
            n -= 1
        return x, m.weight

    same(f, 1.0, 3)


def test_functions_as_values(same):
    def f(x):
        g = jnp.sin
        if x > 0:
            x = x + 1
            g = jnp.sin
        return g(x)

    same(f, 1.0)


def test_functions_that_differ():
    def f(x):
        if x > 0:
            g = jnp.sin
        else:
            g = jnp.cos
        return g(x)

    with pytest.raises(BranchTypeError, match=r"`g` is the function sin .* the function cos"):
        jax.jit(convert(f))(1.0)

    def h(x):
        if x > 0:
            g = lambda x: x  # noqa: E731
        else:
            g = lambda x: -x  # noqa: E731
        return g(x)

    start = h.__code__.co_firstlineno
    lines = rf"<lambda> of line {start + 2} .* <lambda> of line {start + 4} when"
    with pytest.raises(BranchTypeError, match=lines):
        jax.jit(convert(h))(1.0)


def test_key_is_carried(same):
    def f(key, n):
        total = 0.0
        while total < n:
            key, sub = jax.random.split(key)
            total += jax.random.uniform(sub)
        return key, total

    same(f, jax.random.key(3), 2.0)


def test_key_as_a_placeholder(same):
    def f(key, n):
        for i in range(n):
            if i == 2:
                return key
            key = jax.random.fold_in(key, i)
        return jax.random.fold_in(key, 7)

    same(f, jax.random.key(3), 5)
    same(f, jax.random.key(3), 1)


def test_opaque_object_is_refused():
    class Box:
        value: Any

    def f(x):
        box = Box()
        box.value = x
        if x > 0:
            box.value = x + 1
        return box.value

    with pytest.raises(
        UnsupportedSyntaxError, match=r"a Box in `box` is changed.* not a pytree"
    ) as caught:
        jax.jit(convert(f))(1.0)
    assert caught.value.location and caught.value.location.line == f.__code__.co_firstlineno + 4
    assert caught.value.lineno == f.__code__.co_firstlineno + 4


CACHE: dict = {}


def test_captured_object_is_refused():
    seen = []

    def f(x):
        if x > 0:
            seen.append(x)
        return x

    with pytest.raises(UnsupportedSyntaxError, match="`seen` comes from outside") as caught:
        jax.jit(convert(f))(1.0)
    assert caught.value.location and caught.value.location.line == f.__code__.co_firstlineno + 2
    assert not seen

    def g(x):
        while x > 0:
            CACHE["x"] = x
            x = x - 1
        return x

    with pytest.raises(UnsupportedSyntaxError, match="`CACHE` comes from outside"):
        jax.jit(convert(g))(1.0)


def test_captured_object_under_a_plain_condition():
    seen = []

    def f(x, flag=True):
        if flag:
            seen.append("here")
        return x

    jax.jit(convert(f))(1.0)
    assert seen == ["here"]


def test_first_difference_is_named():
    def f(x):
        state = {"a": (x, jnp.zeros(3)), "b": 1}
        if x > 0:
            state["a"] = (x, jnp.zeros(4))
        return state

    with pytest.raises(BranchTypeError, match=r"`state\['a'\]\[1\]` is float32\[4\].*float32\[3\]"):
        jax.jit(convert(f))(1.0)


def test_opaque_part_of_a_container_is_refused():
    class Box:
        value = 0

    def f(x):
        config = {"box": Box(), "x": x}
        if x > 0:
            config["x"] = x + 1
            config["box"].value = 1
        return config["x"]

    with pytest.raises(UnsupportedSyntaxError, match=r"a Box in `config` is changed"):
        jax.jit(convert(f))(1.0)


def test_set_is_refused_and_a_new_one_is_not(same):
    def f(x):
        seen = set()
        if x > 0:
            seen.add(1)
        return x

    with pytest.raises(UnsupportedSyntaxError, match=r"a set in `seen` is changed") as caught:
        jax.jit(convert(f))(1.0)
    assert caught.value.location and caught.value.location.line == f.__code__.co_firstlineno + 3

    def g(x):
        if x > 0:
            seen = set()
            seen.add(3)
            x = x + len(seen)
        return x

    same(g, 1.0)


def test_one_object_under_two_names_is_refused():
    def f(x):
        cells = [Mutable(x, 0), Mutable(x, 1)]
        cell = cells[0]
        if x > 0:
            cell.value = x + 1
        return cells[0].value

    with pytest.raises(UnsupportedSyntaxError, match=r"`cells` and `cell` hold the same object"):
        jax.jit(convert(f))(1.0)


def test_nested_function_that_mutates_is_refused():
    def f(x):
        d = {"k": x}

        def bump():
            d["k"] = d["k"] + 1

        bump()
        if x > 0:
            bump()
        return d["k"]

    with pytest.raises(UnsupportedSyntaxError, match=r"`d` comes from outside") as caught:
        jax.jit(convert(f))(1.0)
    assert caught.value.location and caught.value.location.line == f.__code__.co_firstlineno + 4


def test_containers_of_python_values_in_a_plain_loop(same):
    def f(x):
        names = []
        i = 0
        while i < 3:
            names.append(lambda y, i=i: y + i)
            i += 1
        return sum(name(x) for name in names)

    same(f, 1)
