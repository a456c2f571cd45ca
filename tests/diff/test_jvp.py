"""Forward mode: the derivative of a program is a program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from programs.edges import rule_with_array, swayed
from programs.small import down, up


@lw.program
def newton(a, x):
    while jnp.abs(x * x - a) > 1e-5:
        x = 0.5 * (x + a / x)
    return x


def lax_newton(a, x):
    return lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-5, lambda x: 0.5 * (x + a / x), x)


@lw.program
def bent(x, n):
    y = x
    for i in range(n):
        if y > 2.0:
            y = jnp.sin(y) * x
        elif i == 1:
            continue
        else:
            y = y * y + 0.5
    return y


def lax_bent(x, n):
    def body(i, y):
        return jnp.where(y > 2.0, jnp.sin(y) * x, jnp.where(i == 1, y, y * y + 0.5))

    return lax.fori_loop(0, n, body, x)


@lw.program
def horner(x, n):
    if n == 0:
        return jnp.ones_like(x)
    return x * horner(x, n - 1) + n


def slope(f: Any, x: float, *rest: Any, eps: float = 1e-3) -> float:
    return float((f(x + eps, *rest) - f(x - eps, *rest)) / (2 * eps))


def test_loops_and_branches_as_jax_has_them() -> None:
    for ours, theirs, args in (
        (newton, lax_newton, (jnp.float32(7.0), jnp.float32(1.0))),
        (bent, lax_bent, (jnp.float32(1.3), 6)),
    ):

        def wiggle(f: Any) -> Any:
            return jax.jvp(lambda x: f(x, *args[1:]), args[:1], (jnp.float32(1.0),))

        np.testing.assert_allclose(wiggle(ours), wiggle(theirs), rtol=1e-5)
    both = jax.jvp(newton, (7.0, 1.0), (1.0, 0.5))
    np.testing.assert_allclose(both, jax.jvp(lax_newton, (7.0, 1.0), (1.0, 0.5)), rtol=1e-5)


@pytest.mark.parametrize("program", [horner, up, down], ids=lambda p: p.__name__)
def test_recursion_against_differences(program: lw.ProgramFunction) -> None:
    for n in (0, 1, 3):
        value, tangent = jax.jvp(lambda x, n=n: program(x, n), (0.7,), (1.0,))
        assert float(value) == pytest.approx(float(program(0.7, n)), rel=1e-6)
        assert float(tangent) == pytest.approx(slope(program, 0.7, n), rel=2e-2, abs=2e-3)


def test_integer_arguments_have_no_tangent() -> None:
    value, tangent = jax.jvp(horner, (0.7, 3), (1.0, np.zeros((), jax.dtypes.float0)))
    assert float(tangent) == pytest.approx(slope(horner, 0.7, 3), rel=2e-2)
    assert float(value) == pytest.approx(float(horner(0.7, 3)))

    @lw.program
    def mixed(x, n):
        while n > 0:
            x = x * x
            n -= 1
        return x, n

    (x, n), (dx, dn) = jax.jvp(lambda x: mixed(x, 2), (3.0,), (1.0,))
    assert (float(x), int(n), float(dx)) == (81.0, 0, 108.0)
    assert dn.dtype == jax.dtypes.float0


def test_custom_rules_are_respected() -> None:
    @jax.custom_jvp
    def strange(x):
        return x * 2.0

    strange.defjvp(lambda primals, tangents: (strange(primals[0]), 100.0 * tangents[0]))

    @lw.program
    def twice(x, n):
        while n > 0:
            x = strange(x)
            n -= 1
        return x

    values, tangents = jax.vmap(lambda x, n: jax.jvp(lambda x: twice(x, n), (x,), (1.0,)))(
        jnp.array([1.0, 1.0]), jnp.array([1, 2])
    )
    assert values.tolist() == [2.0, 4.0] and tangents.tolist() == [100.0, 10000.0]


@pytest.mark.parametrize("ours", [bent, horner], ids=lambda p: p.__name__)
def test_vmap_and_jvp_in_both_orders(ours: Any) -> None:
    xs, ns = jnp.array([0.3, 1.1, 1.7]), jnp.array([0, 3, 5])
    one = lambda x, n: jax.jvp(lambda x: ours(x, n), (x,), (1.0,))  # noqa: E731
    expected = [one(x, n) for x, n in zip(xs, ns, strict=True)]
    inside = jax.vmap(one)(xs, ns)
    outside = jax.jvp(lambda xs: jax.vmap(ours)(xs, ns), (xs,), (jnp.ones(3),))
    compiled = jax.jit(jax.vmap(one))(xs, ns)
    for found in (inside, outside, compiled):
        np.testing.assert_allclose(np.stack(found, axis=1), np.asarray(expected), rtol=1e-5)


def test_jacfwd_and_second_derivatives() -> None:
    @lw.program
    def relax(v, n):
        while n > 0:
            v = jnp.tanh(v) + v[::-1] * 0.5
            n -= 1
        return v

    def lax_relax(v, n):
        return lax.fori_loop(0, n, lambda i, v: jnp.tanh(v) + v[::-1] * 0.5, v)

    v = jnp.array([0.1, -0.4, 0.9])
    np.testing.assert_allclose(jax.jacfwd(relax)(v, 3), jax.jacfwd(lax_relax)(v, 3), rtol=1e-5)
    second = jax.jacfwd(jax.jacfwd(lambda v: relax(v, 2)))(v)
    np.testing.assert_allclose(
        second, jax.jacfwd(jax.jacfwd(lambda v: lax_relax(v, 2)))(v), rtol=1e-4, atol=1e-6
    )
    cubic = jax.jvp(lambda x: jax.jvp(lambda x: horner(x, 3), (x,), (1.0,))[1], (0.5,), (1.0,))
    # x^3 + x^2 + 2x + 3
    np.testing.assert_allclose(cubic, (3 * 0.25 + 2 * 0.5 + 2, 6 * 0.5 + 2), rtol=1e-5)
    assert jax.jacfwd(horner)(0.5, 3).shape == ()


def test_closures_over_differentiated_values() -> None:
    def scaled(k, x):
        @lw.program
        def grow(x):
            while x < 10.0:
                x = x * k
            return x

        @lw.program
        def climb(x, n):
            if n == 0:
                return x
            return climb(x * k, n - 1)

        return grow(x) + climb(k, 2)

    value, tangent = jax.jvp(lambda k: scaled(k, 1.0), (2.0,), (1.0,))
    # k^4 and k^3
    assert (float(value), float(tangent)) == (16.0 + 8.0, 4 * 8.0 + 3 * 4.0)
    values, tangents = jax.vmap(lambda k: jax.jvp(lambda k: scaled(k, 1.0), (k,), (1.0,)))(
        jnp.array([2.0, 3.0])
    )
    assert values.tolist() == [24.0, 27.0 + 27.0]
    assert tangents.tolist() == [44.0, 27.0 + 27.0]


def climb_by(k, n=3):
    """k^n by a recursion over an integer."""

    @lw.program
    def climb(n):
        if n == 0:
            return jnp.ones_like(k)
        return k * climb(n - 1)

    return climb(n)


def test_a_recursion_over_integers_that_closes_over_a_differentiated_value() -> None:
    assert float(jax.jvp(climb_by, (2.0,), (1.0,))[1]) == 12.0
    second = jax.jvp(lambda k: jax.jvp(climb_by, (k,), (1.0,))[1], (2.0,), (1.0,))
    assert tuple(map(float, second)) == (12.0, 12.0)
    slopes = jax.jit(jax.vmap(jax.jacfwd(climb_by)))(jnp.array([1.0, 2.0, 3.0]), jnp.arange(3))
    assert slopes.tolist() == [0.0, 1.0, 6.0]


def test_a_call_of_what_closes_over_a_differentiated_value() -> None:
    def total(k, m):
        @lw.program
        def sums(n):  # reads no capture itself
            s = 0.0
            for i in range(n):
                s = s + powers(i)
            return s

        @lw.program
        def powers(n):
            if n < 1:
                return k * m
            while sums(n - 1) > 100.0:  # the test of a loop has no tangent (it never holds here)
                n = n - 1
            return sums(n) + m

        return sums(3)

    def plain(k, m):
        p0 = k * m
        p1 = p0 + m
        return p0 + p1 + (p0 + p1 + m)

    args = jnp.float32(2.0), jnp.float32(3.0)
    mixed = jax.jit(jax.jacfwd(jax.jacfwd(total, (0, 1)), 1))(*args)
    np.testing.assert_allclose(mixed, jax.jacfwd(jax.jacfwd(plain, (0, 1)), 1)(*args))


def test_a_function_both_as_it_is_and_derived_is_derived_again() -> None:
    def scaled(k, x):
        @lw.program
        def both(x, n):
            if n == 0:
                return x * k
            return both(k, n - 1) * x + both(x, n - 1)

        return both(x, 2)

    def plain(k, x):
        return (k**3 + k**2) * x + k**2 * x + k * x

    args = jnp.float32(3.0), jnp.float32(5.0)
    found = jax.jit(jax.jacfwd(jax.jacfwd(scaled, 1), 0))(*args)
    assert float(found) == float(jax.jacfwd(jax.jacfwd(plain, 1), 0)(*args)) == 40.0


def test_a_tangent_that_is_the_same_for_all_lanes() -> None:
    @lw.program
    def triple(x, n):
        while n > 0:
            x = x * 3
            n = n - 1
        return x

    assert float(jax.jacfwd(jax.jacfwd(triple))(3.0, 2)) == 0.0
    slopes = jax.vmap(jax.jacfwd(triple))(jnp.arange(3.0), jnp.arange(3))
    assert slopes.tolist() == [1.0, 3.0, 9.0]


def test_a_recursive_call_on_constants() -> None:
    @lw.program
    def chain(x, n):
        if n == 0:
            return x
        return x * chain(jnp.float32(3.0), n - 1)

    value, tangent = jax.jvp(lambda x: chain(x, 2), (jnp.float32(5.0),), (jnp.float32(1.0),))
    assert (float(value), float(tangent)) == (45.0, 9.0)


def test_only_what_moves_has_tangents() -> None:
    names = [
        eqn.params["program"].entry
        for eqn in jax.make_jaxpr(lambda a: jax.jvp(lambda x: newton(a, x), (1.0,), (1.0,)))(
            2.0
        ).eqns
        if eqn.primitive.name == "program"
    ]
    assert len(names) == 1 and names[0].startswith("jvp[01](newton")


def test_lanes_that_fail_have_blank_tangents() -> None:
    @lw.program
    def checked(x):
        assert x > 0
        while x < 8:
            x = x * 2
        return x

    run = checked.with_options(throw=False)
    values, tangents = jax.jvp(
        lambda x: jax.vmap(run)(x)[0], (jnp.array([1.0, -1.0, 3.0]),), (jnp.ones(3),)
    )
    assert values.tolist()[::2] == [8.0, 12.0] and tangents.tolist()[::2] == [8.0, 4.0]
    assert bool(jnp.isnan(values[1]))


def test_a_rule_that_holds_an_array() -> None:
    """Each derived function may have constants of its own; a weight that is active is a capture beside them."""

    def loss(w, x):
        @lw.program
        def chain(x, n):
            if n == 0:
                return w * x
            return w * chain(swayed(x), n - 1) + x

        return chain(x, 3) * rule_with_array(x, 2)

    at = (jnp.float32(0.7), jnp.float32(0.2))
    forward, reverse = jax.jacfwd(loss, (0, 1))(*at), jax.grad(loss, (0, 1))(*at)
    np.testing.assert_allclose(forward, reverse, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(jax.checkpoint(loss), (0, 1))(*at), reverse, rtol=1e-5)
    slopes = jax.vmap(jax.jacfwd(loss, 1), (None, 0))(at[0], jnp.array([0.1, 0.2]))
    np.testing.assert_allclose(slopes[1], reverse[1], rtol=1e-5)
    twice = jax.jacfwd(jax.jacfwd(loss, 1), 1)(*at), jax.jacfwd(jax.grad(loss, 1), 1)(*at)
    np.testing.assert_allclose(twice[0], twice[1], rtol=1e-4)
