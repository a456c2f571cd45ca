"""`and`, `or`, `not`, chained comparisons, `in`, `:=`, `assert`."""

import jax
import jax.numpy as jnp
import pytest

from lanewise.core.errors import BranchTypeError, UnsupportedSyntaxError
from lanewise.frontend.python import convert


@pytest.mark.parametrize("x", [-5, 0, 1, 3, 12])
def test_boolean_operators(same, x):
    def f(x):
        a = x > 0 and x < 10
        b = x < 0 or x > 10 or x == 1
        c = not (a or b)
        return a, b, c

    same(f, x)


@pytest.mark.parametrize("x", [0, 2, 7])
def test_value_of_and_or(same, x):
    def f(x):
        return (x and x + 1), (x or 5), ((x and 0) or x)

    same(f, x)


def test_short_circuit(jaxpr):
    def f(x):
        return x > 0 and jnp.sin(x) > 0

    assert "sin" in jaxpr(f, 1.0).split("branches", 1)[1]


def test_plain_operands_are_plain():
    def f(x, name=None):
        name = name or "default"
        keep = name == "default" and x
        return (keep, len(name)) if not name == "other" else None

    assert jax.jit(convert(f))(3.0)[1] == 7


def test_truth_of_mixed_operands_in_a_test(same):
    def f(n, x):
        count = 0
        while n and x > 0.5:
            n -= 1
            count += 1
        if n or x < 0 or not count:
            count += 100
        return count

    same(f, 3, 1.0)
    same(f, 3, 0.0)
    same(f, 0, 1.0)


@pytest.mark.parametrize("x", [-1, 0, 3, 5, 9])
def test_chained_comparison(same, x):
    def f(x):
        y = 1 if 0 <= x < 5 else 2
        z = 0 < x <= 5 < x * 2
        return y, z, 1 < 2 < 3

    same(f, x)


def test_chain_computes_middle_once(jaxpr):
    def f(x):
        return 0.0 < jnp.sin(x) < 0.5

    assert jaxpr(f, 1.0).count("sin") == 1


@pytest.mark.parametrize("x", [0, 2, 4])
def test_membership(same, x):
    def f(x):
        return x in (1, 2, 3), x not in [4, 5], 3 in {3: 1}, x in jnp.arange(3)

    same(f, x)


def test_not_of_array_says_what_to_write():
    def f(x):
        return not x

    with pytest.raises(BranchTypeError, match=r"float32\[3\].*jnp.all.*~"):
        jax.jit(convert(f))(jnp.ones(3))


def test_condition_must_be_scalar():
    def f(x):
        if x > 0:
            return x
        return -x

    with pytest.raises(BranchTypeError, match=r"condition of this `if` is bool\[3\]") as caught:
        jax.jit(convert(f))(jnp.ones(3))
    assert caught.value.location and caught.value.location.line == f.__code__.co_firstlineno + 1


def test_and_of_different_types():
    def f(x):
        return x > 0 and jnp.ones(2)

    with pytest.raises(BranchTypeError, match=r"`and`.*float32\[2\].*bool\[\]"):
        jax.jit(convert(f))(1.0)


def test_walrus(same):
    def f(x):
        if (y := x * 2) > 4:
            y = y + 1
        z = [w for v in range(3) if (w := v + 1) > 1]
        return y, z, w

    same(f, 1)
    same(f, 3)


def test_walrus_in_a_plain_operand():
    def f(x, flag=True):
        if flag and (y := x + 1) is not None:
            return y
        return x

    assert jax.jit(convert(f))(1) == 2


def test_walrus_in_a_traced_operand():
    def f(x):
        if x > 0 and (y := x + 1) > 2:
            return y
        return x

    with pytest.raises(UnsupportedSyntaxError, match=r"`y := ...`"):
        jax.jit(convert(f))(1)


def test_assert_becomes_a_check(jaxpr):
    def f(x):
        assert x > 0, f"x must be positive, in {'f'}"
        assert 1 < 2
        return x

    text = jaxpr(f, 1.0)
    assert text.count("check[") == 1
    assert "message=x must be positive, in f" in text
    assert f"test_expressions.py:{f.__code__.co_firstlineno + 1}, in f" in text


def test_plain_assert_raises():
    def f(x, flag=False):
        assert flag, "no flag"
        return x

    with pytest.raises(AssertionError, match="no flag"):
        jax.jit(convert(f))(1.0)


def test_assert_in_a_branch(jaxpr):
    def f(x):
        if x > 0:
            assert x < 10
        return x

    assert "check[" in jaxpr(f, 1.0)


@pytest.mark.parametrize("x", [-2.5, 0.0, 2.5])
def test_builtin_functions(same, x):
    def f(x):
        a = max(x, 1.0, -x)
        b = min([x, 0.5])
        c = int(x) + 1
        d = float(c) / 2
        e = bool(x)
        g = any([x > 1, x < -1]), all(v > 0 for v in (x, x + 3))
        return a, b, c, d, e, g, max(1, 2), any([]), int("7"), max([3, 4], key=lambda v: -v)

    same(f, x)


def test_shadowed_builtin(same):
    def f(x):
        max = lambda a, b: a * 10 + b  # noqa: E731
        return max(x, 2)

    same(f, 1)
