"""The smallest programs, for tests that need some program: a recursion, a loop."""

from __future__ import annotations

import lanewise as lw


@lw.program
def fib(n):
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)


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
