"""Programs as functions: arguments, results, methods, recursion's types, closures, lifting."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from lanewise.core.errors import OptionError, ResultTypeError, UnsupportedSyntaxError
from lanewise.frontend.python import convert
from programs.recursion import scaled_tree
from programs.small import fib

NS = jnp.array([0, 1, 5])


class Pair(NamedTuple):
    x: Any
    n: Any


@functools.partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["kind"])
@dataclasses.dataclass
class Box:
    x: Any
    kind: str


def test_static_arguments() -> None:
    @lw.program(static_argnums=1, static_argnames="mode")
    def steps(n, stride, *, mode="down"):
        count = 0
        while n > 0:
            n -= stride
            count += 1
        return count if mode == "down" else -count

    assert lw.lift(lambda n: steps(n, 2))(jnp.int32(5)) == 3
    assert jax.vmap(lambda n: steps(n, 2, mode="up"))(NS).tolist() == [0, -1, -3]
    with pytest.raises(OptionError, match="argument 1 is declared static and must be hashable"):
        steps(3, [2])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"static_argnums": 4}, "static_argnums=4 is out of range: f has 2"),
        ({"static_argnames": "z"}, "static_argnames='z' is not a parameter of f; it has x, y"),
        ({"static_argnums": "x"}, "static_argnums takes int"),
        ({"static_argnames": [3]}, "static_argnames takes str"),
    ],
)
def test_wrong_static_arguments(options: dict[str, Any], text: str) -> None:
    def f(x, y):
        return x

    with pytest.raises(OptionError, match=text):
        lw.program(**options)(f)


def test_keywords_and_defaults() -> None:
    @lw.program
    def scaled(x, *, by=2.0, times=1):
        while times > 0:
            x = x * by
            times -= 1
        return x

    assert float(scaled(3.0)) == 6.0
    assert float(scaled(3.0, times=2)) == 12.0
    assert float(scaled(x=3.0, by=1.5)) == 4.5
    assert jax.vmap(lambda t: scaled(1.0, times=t))(NS).tolist() == [1.0, 2.0, 32.0]


def test_methods_of_plain_classes_and_modules() -> None:
    class Grower:
        def __init__(self, rate):
            self.rate = rate

        @lw.program
        def until(self, x):
            while x < 100:
                x = x * self.rate
            return x

    class Net(eqx.Module):
        w: jax.Array
        act: Any = eqx.field(static=True)

        @lw.program
        def __call__(self, x, n):
            while n > 0:
                x = self.act(self.w @ x)
                n -= 1
            return x

    assert jax.vmap(Grower(3).until)(jnp.array([1, 200])).tolist() == [243, 200]
    assert lw.vmap(Grower(3).until, schedule="most")(jnp.array([1, 200])).tolist() == [243, 200]
    net = Net(jnp.eye(2) * 2.0, jnp.tanh)
    found = jax.vmap(net, in_axes=(None, 0))(jnp.ones(2), NS)
    expected = [
        functools.reduce(lambda v, _: jnp.tanh(2 * v), range(int(n)), jnp.ones(2)) for n in NS
    ]
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-6)
    nets = jax.vmap(lambda s, n, x: Net(jnp.eye(2) * s, jnp.tanh)(x, n))(
        jnp.array([1.0, 2.0]), NS[1:], jnp.ones((2, 2))
    )
    assert nets.shape == (2, 2)


def test_pytrees_in_and_out() -> None:
    @lw.program
    def mixed(d, pair, box):
        n = pair.n
        while n > 0:
            pair = pair._replace(x=pair.x + d["step"])
            n -= 1
        return {"pair": pair, "box": Box(box.x * 2, box.kind), "nothing": None, "name": "mixed"}

    found = mixed({"step": 2.0}, Pair(1.0, 3), Box(jnp.arange(2), "wooden"))
    assert isinstance(found["pair"], Pair) and float(found["pair"].x) == 7.0
    assert found["box"].kind == "wooden" and found["box"].x.tolist() == [0, 2]
    assert found["nothing"] is None and found["name"] == "mixed"
    batched = jax.vmap(lambda n: mixed({"step": 2.0}, Pair(1.0, n), Box(n, "tin"))["pair"])(NS)
    assert batched.x.tolist() == [1.0, 3.0, 11.0]


def _functions(f: lw.ProgramFunction, *args: Any) -> list[str]:
    """The functions of a program and of those it calls, by the names in their sources."""
    found = f.stage(*args)[0].program
    return [
        name.split(".")[0]
        for p in (found, *(e.params["program"] for e in found.parts))
        for name in p.functions
    ]


def test_a_recursion_that_strengthens_its_types_is_one_program() -> None:
    """Called with Python scalars it calls itself with arrays: the first call is like all others."""
    x, strong = jnp.float32(0.3), jnp.float32(1.5)
    expected = scaled_tree(strong, x, 4)
    for args in ((1.5, x, 4), (strong, x, 4), (1.5, 0.3, 4)):
        assert _functions(scaled_tree, *args) == ["scaled_tree"]
        np.testing.assert_allclose(scaled_tree(*args), expected, rtol=1e-6)

    @lw.program
    def restarts(x, n):
        if n <= 0:
            return x
        if n == 3:
            return restarts(2.0, n - 1) * x  # at the types of the first call
        return restarts(jnp.float32(x) * 1.5, n - 1)

    assert _functions(restarts, 1.5, 5) == ["restarts"]
    assert float(restarts(1.5, 5)) == 2.0 * 1.5**2 * 1.5**3

    @lw.program
    def up(x, n):
        return x * 1.0 if n <= 0 else down(jnp.float32(x) * 2.0, n - 1) + 1.0

    @lw.program
    def down(y, n):
        return y * y if n <= 0 else up(y + 1.0, n - 1) * y

    for first in (up, down, up):
        assert sorted(_functions(first, 0.5, 3)) == ["down", "up"]
        assert sorted(_functions(first, x, 3)) == ["down", "up"]
    assert float(up(0.5, 1)) == 2.0 and float(down(0.5, 1)) == 0.75


def test_a_weak_type_that_makes_a_difference_is_kept() -> None:
    """To other dtypes, or to what the caller gets: then the first call is a program of its own."""

    @lw.program
    def mixed(x, n):
        if n <= 0:
            return jnp.float32(x)
        return mixed(jnp.float32(x * jnp.float16(1.001)), n - 1)

    def plain(x, n):
        return jnp.float32(x) if n <= 0 else plain(jnp.float32(x * jnp.float16(1.001)), n - 1)

    assert _functions(mixed, 1.7, 3) == ["mixed", "mixed"]
    # A Python scalar meets float16 in float16, an array of float32 in float32.
    assert float(mixed(1.7, 3)) == float(plain(1.7, 3)) != float(plain(jnp.float32(1.7), 3))

    @lw.program
    def tripled(x, n):
        if n > 0:
            tripled(jnp.float32(x), n - 1)
        return x * 3

    for given in (0.5, jnp.float32(0.5)):
        assert (tripled(given, 2) + jnp.float16(1)).dtype == (given * 3 + jnp.float16(1)).dtype


def test_recursive_types_are_inferred() -> None:
    @lw.program
    def weak(n, x):
        if n == 0:
            return 0
        return x + weak(n - 1, x)

    out = weak(3, jnp.float32(1.5))
    assert out.dtype == jnp.float32 and float(out) == 4.5
    assert jax.vmap(weak, in_axes=(0, None))(NS, jnp.float32(2.0)).tolist() == [0.0, 2.0, 10.0]

    @lw.program
    def ping(n):
        if n == 0:
            return 1
        return pong(n - 1) * 2

    @lw.program
    def pong(n):
        if n == 0:
            return jnp.float32(0.5)
        return ping(n - 1) + 1

    assert jax.vmap(ping)(jnp.arange(4)).dtype == jnp.float32
    with jax.disable_jit():
        expected = [float(ping(n)) for n in range(4)]
    assert jax.vmap(ping)(jnp.arange(4)).tolist() == expected

    @lw.program
    def trees(n):
        if n == 0:
            return {"sum": 0, "product": 1.0}
        below = trees(n - 1)
        return {"sum": below["sum"] + n, "product": below["product"] * n}

    found = jax.vmap(trees)(NS)
    assert found["sum"].tolist() == [0, 1, 15] and found["product"].tolist() == [1.0, 1.0, 120.0]


def test_result_types_that_do_not_settle() -> None:
    @lw.program
    def grows(n):
        if n == 0:
            return jnp.zeros(1)
        return jnp.concatenate([grows(n - 1), jnp.zeros(1)])

    with pytest.raises(TypeError, match=r"grows|float32\[1\]"):
        grows(3)

    @lw.program
    def forever(n):
        return forever(n + 1) + 1

    with pytest.raises(ResultTypeError, match="every path through it recurses") as caught:
        forever(1)
    assert "test_program.py" in str(caught.value)

    @lw.program
    def there(n):
        return back(n) + 1

    @lw.program
    def back(n):
        return there(n)

    with pytest.raises(ResultTypeError, match="recurses"):
        there(1)
    # A failed trace leaves nothing behind.
    assert int(lw.program(lambda n: n + 1)(1)) == 2


def test_closures_over_arrays_and_tracers() -> None:
    table = jnp.arange(10.0)

    @lw.program
    def summed(n):
        total = 0.0
        while n > 0:
            total += table[n]
            n -= 1
        return total

    assert jax.vmap(summed)(NS).tolist() == [0.0, 1.0, 15.0]

    def outer(scale, n):
        @lw.program
        def inner(n):
            if n <= 0:
                return scale
            return inner(n - 1) * scale

        return inner(n)

    assert float(jax.jit(outer)(2.0, 3)) == 16.0
    assert jax.vmap(outer)(jnp.array([2.0, 3.0, 1.0]), NS).tolist() == [2.0, 9.0, 1.0]
    assert jax.jit(jax.vmap(outer, in_axes=(None, 0)))(2.0, NS).tolist() == [2.0, 4.0, 64.0]
    # Each call sees its own closure.
    assert [float(outer(s, 1)) for s in (2.0, 3.0)] == [4.0, 9.0]


def lifted_by(kind: str) -> Any:
    @jax.custom_vjp
    def squared(x):
        return x * x

    squared.defvjp(lambda x: (x * x, x), lambda x, g: (2 * x * g,))
    spin = lambda x, n: lax.fori_loop(0, n, lambda i, x: x * 1.5 + i, x)  # noqa: E731
    return {
        "switch": lambda x, n: lax.switch(
            n, [lambda: x, lambda: spin(x, n), lambda: -spin(x, n + 1)]
        ),
        "fori": spin,
        "map": lambda x, n: lax.map(lambda y: spin(y, n), jnp.stack([x, x + 1])),
        "remat": lambda x, n: jax.checkpoint(spin)(x, n),
        "custom_vjp": lambda x, n: squared(spin(x, n)),
        "scan": lambda x, n: lax.scan(
            lambda c, y: (spin(c, n) + y, c), x, jnp.arange(3.0), reverse=True
        ),
        "jit": lambda x, n: jax.jit(jax.jit(spin))(x, n),
        "solve": lambda x, n: jnp.linalg.solve(jnp.eye(2) * spin(x, n), jnp.ones(2)),
    }[kind]


@pytest.mark.parametrize(
    "kind", ["switch", "fori", "map", "remat", "custom_vjp", "scan", "jit", "solve"]
)
def test_lifting(kind: str) -> None:
    fun = lifted_by(kind)
    xs = jnp.array([0.5, 1.0, 2.0])
    expected = jax.vmap(fun)(xs, NS)
    for found in (jax.vmap(lw.lift(fun))(xs, NS), lw.vmap(fun, schedule="sweep")(xs, NS)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    one = lw.lift(fun)(xs[1], NS[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[1], rtol=1e-5), one, expected)


def test_lifting_what_is_lifted() -> None:
    base = lw.lift(lambda n: lax.while_loop(lambda n: n > 0, lambda n: n - 2, n))
    again = lw.lift(base, max_steps=2, throw=False)
    assert isinstance(again, lw.ProgramFunction) and int(again(5)[1].code) == 1
    assert int(base(5)) == -1
    twice = lw.program(base)
    assert jax.vmap(twice)(NS).tolist() == [0, -1, -1]
    assert lw.lift(functools.partial(jnp.add, 1))(2) == 3


@pytest.mark.parametrize("make", [lw.program, lw.lift, lw.vmap])
def test_wrong_input(make: Any) -> None:
    with pytest.raises(OptionError, match="int: 3"):
        make(3)


def test_a_python_branch_in_lifted_code_is_distinguished() -> None:
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        lw.lift(lambda x: 1 if x > 0 else 2)(3)
    assert any("@lanewise.program" in note for note in caught.value.__notes__)


def test_program_objects_look_like_their_functions() -> None:
    @lw.program
    def documented(x):
        """What it does."""
        return x

    assert documented.__name__ == "documented" and documented.__doc__ == "What it does."
    assert "documented" in repr(documented) and documented.python(3) == 3
    staged, operands = documented.stage(jnp.float32(1))
    assert staged.program.num_operands == len(operands) == 1 and "documented" in staged.program.text


def test_static_arguments_of_a_program_are_declared_once() -> None:
    made = lw.lift(lambda x, n: x * n, static_argnums=1)
    with pytest.raises(lw.errors.OptionError, match="static_argnums"):
        lw.lift(made, static_argnums=0)
    with pytest.raises(lw.errors.OptionError, match="static_argnames"):
        lw.program(made, static_argnames="n")


def test_a_branch_once_half_open_excuses_nothing_later() -> None:
    assert int(fib(5)) == 5  # its first round knows one side of its branch only

    def raises(n):
        if n > 0:
            raise ValueError("raised")
        return n

    with pytest.raises(UnsupportedSyntaxError):
        jax.eval_shape(convert(raises), 1)


def unmet_recursion() -> lw.ProgramFunction:
    """A recursion that no call has settled yet; it always gives 1."""

    @lw.program
    def descend(n):
        if n <= 0:
            return 1
        return descend(n - 1)

    return descend


def test_a_recursion_settles_inside_the_body_of_a_loop() -> None:
    fresh, again = unmet_recursion(), unmet_recursion()

    @lw.program
    def turns(n):
        count = 0
        total = 0
        while True:
            count += 1
            if count > n:
                break
            total += fresh(count)
        return total

    assert [int(turns(n)) for n in range(4)] == [0, 1, 2, 3]

    @lw.program
    def unrolled(n):
        total = 0
        count = 0
        while count < 3:  # a plain test: each iteration is traced
            count += 1
            if n > 0:
                total += again(n)
        return total

    assert [int(unrolled(n)) for n in (0, 2)] == [0, 3]
