"""`if`, `elif`, `else` and conditional expressions."""

import jax
import jax.numpy as jnp
import pytest

from lanewise.frontend.python import convert


@pytest.mark.parametrize("x", [-2.0, 0.0, 3.0])
def test_if_else(same, x):
    def f(x):
        if x > 0:
            y = x * 2
        else:
            y = -x
        return y

    same(f, x)


@pytest.mark.parametrize("x", [-2.0, 0.0, 3.0])
def test_if_alone(same, x):
    def f(x):
        y = x
        if x > 0:
            y = y + 1
        return y

    same(f, x)


@pytest.mark.parametrize("x", [0, 1, 2, 3])
def test_elif_chain(same, x):
    def f(x):
        if x == 0:
            name = 10
        elif x == 1:
            name = 20
        elif x == 2:
            name = 30
        else:
            name = 40
        return name

    same(f, x)


@pytest.mark.parametrize("x", [-1, 0, 1, 5])
def test_nested_if(same, x):
    def f(x):
        a = b = 0
        if x > 0:
            a = 1
            if x > 2:
                b = a + x
            else:
                b = 7
        else:
            if x == 0:
                a = 5
        return a, b

    same(f, x)


@pytest.mark.parametrize("x", [-1.0, 2.0])
def test_conditional_expression(same, x):
    def f(x):
        return (x if x > 0 else -x) + (1 if x > 1 else (2 if x < 0 else 3))

    same(f, x)


def test_conditional_expression_of_pytrees(same):
    def f(x):
        pair = (x, {"a": 1.0}) if x > 0 else (0.0, {"a": x})
        return pair

    same(f, 2.0)
    same(f, -2.0)


def test_plain_condition_is_plain_python(jaxpr):
    def f(x, flag=True):
        if flag:
            x = x + 1
        y = x if flag else "never"
        return y

    assert "cond" not in jaxpr(f, 1.0)


def test_plain_side_may_be_of_another_type():
    def f(x, flag=False):
        if flag:
            y = "text"
        else:
            y = x
        return y

    assert jax.jit(convert(f))(3) == 3


def test_concrete_array_condition_is_plain(jaxpr):
    table = jnp.array([1, 0])

    def f(x):
        if table[0:1].shape[0]:
            x = x + 1
        return x

    assert "cond" not in jaxpr(f, 1.0)


def test_temporaries_may_differ_between_sides(same):
    def f(x):
        if x > 0:
            t = (x, x)
            y = t[0] + t[1]
        else:
            t = {"k": x}
            y = t["k"]
        return y

    same(f, 1.0)
    same(f, -1.0)


def test_unmodified_variables_stay_out_of_the_cond():
    def f(x, y):
        z = 3
        if x > 0:
            y = y + 1
            z = 3
        return y, jnp.zeros(z)

    assert jax.jit(convert(f))(1.0, 1.0)[1].shape == (3,)


def test_number_condition(same):
    def f(n):
        return 1 if n else 2

    same(f, 0)
    same(f, 5)


def test_in_vmap_and_grad():
    def f(x):
        if x > 0:
            return x * x
        return -3 * x

    g = convert(f)
    xs = jnp.array([-1.0, 2.0, 3.0])
    assert jnp.allclose(jax.vmap(g)(xs), jnp.array([3.0, 4.0, 9.0]))
    assert jnp.allclose(jax.vmap(jax.grad(g))(xs), jnp.array([-3.0, 4.0, 6.0]))


def test_pass_and_docstring(same):
    def f(x):
        """Words."""
        if x > 0:
            pass
        else:
            x = -x
        return x

    assert convert(f).__doc__ == "Words."
    same(f, 1.0)
    same(f, -1.0)


def test_comprehension_with_conditional(same):
    def f(x):
        return [x + i if x > i else x - i for i in range(3)]

    same(f, 1)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_match_on_plain_value(n):
    def f(x, n):
        match n:
            case 0:
                return x
            case 1:
                y = x + 1
            case k:
                y = x * k
        return y + 10

    g = convert(f)
    assert jax.jit(lambda x: g(x, n))(2.0) == f(2.0, n)


@pytest.mark.parametrize("x", [0, 1, 2, 3, 4])
def test_match_on_traced_value(same, x):
    def f(x, y=3):
        match x:
            case 0 | 1:
                return x - 1
            case 2 if y > 2:
                z = 20
            case 3:
                z = 30
            case other:
                z = other * 7
        return z + 1

    same(f, x)
