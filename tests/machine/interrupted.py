"""Runs that would never end, interrupted, in a process of their own; `test_interrupts.py` reads what this prints.

A line for each case: its name, how the run ended, and whether the next call in the same process is right.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import lanewise as lw
from corpus import case_named

fibonacci = case_named("fibonacci").program
# The lanes that never end have a step of zero.
ENDS, NEVER = jnp.array([1, 1, 1], jnp.int32), jnp.array([1, 0, 1], jnp.int32)
COUNTS = jnp.array([3, 5, 7], jnp.int32)


@lw.program
def walk(n, step):
    """A loop around a loop, and another that may never end."""
    total = jnp.uint32(1)
    while n > 0:
        i = n
        while i > 0:
            total = total * jnp.uint32(1664525) + jnp.uint32(1013904223)
            i -= 1
        n -= step
    return total


@lw.program
def draws(n, step):
    """One loop of scalars, which lanes run in step."""
    total = jnp.uint32(1)
    while n > 0:
        total = total * jnp.uint32(1664525) + jnp.uint32(1013904223)
        n -= step
    return total


@lw.program
def calls(n, step):
    """Recursion inside a loop."""
    total = jnp.int32(0)
    while n > 0:
        total += fibonacci(4)
        n -= step
    return total


WEIGHT = np.random.default_rng(0).normal(size=(96, 96)).astype("float32") / 8


@lw.program
def meets(n, step):
    """Lanes that run on stacks of their own, and meet at a product."""
    x = jnp.ones(96, jnp.float32)
    while n > 0:
        x = jnp.tanh(x @ WEIGHT)
        n -= step
    return x


def interrupt_soon() -> threading.Timer:
    timer = threading.Timer(0.4, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def report(name: str, run: Callable[[Any], Any]) -> None:
    expected = np.asarray(run(ENDS))
    timer = interrupt_soon()
    try:
        run(NEVER)
        ended = "returned"
    except KeyboardInterrupt:
        ended = "KeyboardInterrupt"
    timer.join()
    after = np.asarray(run(ENDS))
    print(f"{name}: {ended}, {'right' if np.array_equal(expected, after) else 'wrong'}", flush=True)


def streamed(program: Any, step: Any) -> list[Any]:
    found = dict(lw.stream(program, zip(COUNTS, step, strict=True), lanes=2, carrier="native"))
    return [found[i] for i in range(len(COUNTS))]


def handled() -> None:
    """A handler that does not raise: the run starts again, and is right."""
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    run = lw.vmap(draws, carrier="native")
    ones = jnp.ones(2, jnp.int32)
    count = jnp.full(2, 1 << 27)
    expected = np.asarray(run(count, ones))
    timer = threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    found = np.asarray(run(count, ones))
    timer.join()
    while not heard:
        time.sleep(0.01)
    signal.signal(signal.SIGINT, before)
    print(f"handler: heard, {'right' if np.array_equal(found, expected) else 'wrong'}", flush=True)


def main(names: list[str]) -> None:
    # A process that was started in the background may ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    runs = {
        "native": lw.vmap(walk, carrier="native"),
        "native in step": lw.vmap(draws, carrier="native"),
        "native meeting": lw.vmap(meets, carrier="native"),
        "native recursion": lw.vmap(calls, carrier="native"),
        "ticks": lw.vmap(walk, schedule="sweep"),
        "ticks recursion": lw.vmap(calls, carrier="ticks", schedule="lowest"),
        "ticks fork": lw.vmap(calls, schedule="fork"),
        "ticks refill": lw.vmap(draws, carrier="ticks", lanes=2),
    }
    for name, run in runs.items():
        if not names or name in names:
            report(name, lambda step, run=run: run(COUNTS, step))
    for name, program in {"stream": draws, "stream in slots": meets}.items():
        if not names or name in names:
            report(name, lambda step, program=program: streamed(program, step))
    if not names or "handler" in names:
        handled()


if __name__ == "__main__":
    main(sys.argv[1:])
