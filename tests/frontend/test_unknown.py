"""Recursive calls whose result type is not known yet: one known side is enough."""

import jax
import jax.numpy as jnp
import pytest

from lanewise.core.errors import ResultUnknown
from lanewise.frontend.python import convert


def unknown(*args):
    raise ResultUnknown


def test_known_side_gives_the_type():
    def f(n):
        if n == 0:
            return 1.0
        return n * unknown(n - 1)

    def g(n):
        if n > 0:
            return unknown(n - 1)
        return jnp.zeros(3)

    assert jax.eval_shape(convert(f), 1).dtype == jnp.float32
    assert jax.eval_shape(convert(g), 1).shape == (3,)


def test_no_side_known():
    def f(n):
        if n == 0:
            return unknown(n)
        return unknown(n + 1)

    with pytest.raises(ResultUnknown):
        jax.eval_shape(convert(f), 1)


def test_three_ways():
    def ackermann(m, n):
        if m == 0:
            return n + 1
        if n == 0:
            return unknown(m - 1, 1)
        return unknown(m - 1, unknown(m, n - 1))

    assert jax.eval_shape(convert(ackermann), 1, 1).dtype == jnp.int32


def test_expressions():
    def f(n):
        return 1 if n == 0 else unknown(n)

    def g(n):
        return n == 0 or unknown(n)

    def h(n):
        return n > 0 and (n > 5 and unknown(n))

    assert jax.eval_shape(convert(f), 1).dtype == jnp.int32
    assert jax.eval_shape(convert(g), 1).dtype == jnp.bool_
    assert jax.eval_shape(convert(h), 1).dtype == jnp.bool_


def test_in_a_loop():
    def f(n):
        total = 0
        for i in range(n):
            if i > 3:
                total += unknown(i)
            else:
                total += 1
        return total

    assert jax.eval_shape(convert(f), 1).dtype == jnp.int32


def test_loop_that_would_not_end():
    def f(n):
        while True:
            if n > 3:
                n = unknown(n)
                break
            n = n + 1
        return n

    assert jax.eval_shape(convert(f), 1).dtype == jnp.int32


def test_loop_that_may_run_zero_times():
    def f(n):
        total = 1
        for i in range(n):
            total += unknown(i)
        return total

    def g(n):
        while n > 0:
            n = unknown(n)
        return n

    assert jax.eval_shape(convert(f), 1).dtype == jnp.int32
    assert jax.eval_shape(convert(g), 1).dtype == jnp.int32


def test_loop_that_runs_at_least_once():
    def f(xs):
        total = 1.0
        for x in xs:
            total += unknown(x)
        return total

    def g(n):
        while True:
            n = unknown(n)
            if n > 3:
                break
        return n

    for function, argument in ((f, jnp.ones(3)), (g, 1)):
        with pytest.raises(ResultUnknown):
            jax.eval_shape(convert(function), argument)


def test_exits_around_the_unknown():
    def f(n):
        best = 0
        for i in range(n):
            if i == 7:
                return best
            if i > 3:
                if i > 5:
                    continue
                best = unknown(i)
            best = best + 1
        return best

    assert jax.eval_shape(convert(f), 1).dtype == jnp.int32
