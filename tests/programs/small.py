"""The smallest programs, for tests that need some program: a recursion, a loop, one that may fail."""

from __future__ import annotations

import jax.numpy as jnp

import lanewise as lw


@lw.program
def fib(n):
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)


@lw.program
def depth(n):
    if n <= 0:
        return 0
    return 1 + depth(n - 1)


@lw.program
def collatz(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


@lw.program
def positive_root(x):
    assert x >= 0, "no root of a negative number"
    guess = 1.0
    while abs(guess * guess - x) > 1e-3 * (1.0 + x):
        guess = (guess + x / guess) / 2
    return guess


@lw.program
def up(x, n):
    if n <= 0:
        return x
    return jnp.sin(down(x * 2.0, n - 1))


@lw.program
def down(y, n):
    if n <= 0:
        return y * y
    return up(y + 1.0, n - 1) * y
