"""Recursion and trees: Fibonacci, adaptive Simpson, binary search trees.

`jax.vmap` has no recursion: the twins keep a stack by hand, as one has to there, and use what they know
about the program (sums may be taken in any order, so nothing but arguments is ever pushed).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from control.case import Case, entry

# -- Fibonacci -------------------------------------------------------------------------------------

FIBONACCI_DEPTH = 32


@lw.program
def fibonacci(n):
    if n <= 1:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


def fibonacci_lax(n: jax.Array) -> jax.Array:
    """Goes down the first call at once and pushes the second."""

    def step(state: Any) -> Any:
        n, total, stack, top = state
        leaf = n <= 1
        kept = stack.at[top].set(jnp.where(leaf, stack[top], n - 2))
        below = jnp.where(leaf, stack[top - 1], n - 1)
        return below, jnp.where(leaf, total + n, total), kept, jnp.where(leaf, top - 1, top + 1)

    stack = jnp.zeros(FIBONACCI_DEPTH, jnp.int32)
    start = (n, jnp.int32(0), stack, jnp.int32(0))
    return lax.while_loop(lambda state: state[3] >= 0, step, start)[1]


def fibonacci_case(lanes: int, small: bool) -> Case:
    rng = np.random.default_rng(10)
    n = np.minimum(2 + rng.geometric(0.3, lanes), 6 if small else 18).astype(np.int32)
    depth = {"max_depth": FIBONACCI_DEPTH}
    return Case(fibonacci, fibonacci_lax, (n,), (0,), options=depth)


# -- adaptive Simpson ------------------------------------------------------------------------------

SIMPSON_DEPTH = 18


def resonance(x: jax.Array, centre: jax.Array, width: jax.Array) -> jax.Array:
    """A peak above a slow wave."""
    away = (x - centre) / width
    return 1.0 / (1.0 + away * away) + 0.1 * jnp.sin(5.0 * x)


def simpson(low: Any, high: Any, f_low: Any, f_middle: Any, f_high: Any) -> Any:
    return (high - low) / 6.0 * (f_low + 4.0 * f_middle + f_high)


def halves(
    low: Any, high: Any, f_low: Any, f_middle: Any, f_high: Any, centre: Any, width: Any
) -> Any:
    """The middle, the values in the middle of either half, and Simpson's rule for each half."""
    middle = 0.5 * (low + high)
    f_left = resonance(0.5 * (low + middle), centre, width)
    f_right = resonance(0.5 * (middle + high), centre, width)
    left = simpson(low, middle, f_low, f_left, f_middle)
    right = simpson(middle, high, f_middle, f_right, f_high)
    return middle, f_left, f_right, left, right


@lw.program
def refine(low, high, f_low, f_middle, f_high, whole, tolerance, depth, centre, width):
    """The integral between `low` and `high`: halves the interval until Simpson's rule agrees."""
    middle, f_left, f_right, left, right = halves(low, high, f_low, f_middle, f_high, centre, width)
    error = left + right - whole
    if depth == 0 or jnp.abs(error) <= 15.0 * tolerance:
        return left + right + error / 15.0
    half = 0.5 * tolerance
    return refine(
        low, middle, f_low, f_left, f_middle, left, half, depth - 1, centre, width
    ) + refine(middle, high, f_middle, f_right, f_high, right, half, depth - 1, centre, width)


@lw.program
def integrate(centre, width, tolerance):
    low = jnp.float32(0.0)
    high = jnp.float32(1.0)
    f_low = resonance(low, centre, width)
    f_middle = resonance(0.5 * (low + high), centre, width)
    f_high = resonance(high, centre, width)
    whole = simpson(low, high, f_low, f_middle, f_high)
    depth = jnp.int32(SIMPSON_DEPTH)
    return refine(low, high, f_low, f_middle, f_high, whole, tolerance, depth, centre, width)


def integrate_lax(centre: jax.Array, width: jax.Array, tolerance: jax.Array) -> jax.Array:
    """One row of the stack is a pending right half."""

    def step(state: Any) -> Any:
        row, depth, total, stack, depths, top = state
        low, high, f_low, f_middle, f_high, whole, tolerance = row
        middle, f_left, f_right, left, right = halves(
            low, high, f_low, f_middle, f_high, centre, width
        )
        error = left + right - whole
        done = (depth == 0) | (jnp.abs(error) <= 15.0 * tolerance)
        half = 0.5 * tolerance
        first = jnp.stack([low, middle, f_low, f_left, f_middle, left, half])
        second = jnp.stack([middle, high, f_middle, f_right, f_high, right, half])
        return (
            jnp.where(done, stack[top - 1], first),
            jnp.where(done, depths[top - 1], depth - 1),
            jnp.where(done, total + left + right + error / 15.0, total),
            stack.at[top].set(jnp.where(done, stack[top], second)),
            depths.at[top].set(jnp.where(done, depths[top], depth - 1)),
            jnp.where(done, top - 1, top + 1),
        )

    low, high = jnp.float32(0.0), jnp.float32(1.0)
    f_low, f_middle, f_high = (resonance(x, centre, width) for x in (low, jnp.float32(0.5), high))
    whole = simpson(low, high, f_low, f_middle, f_high)
    start = (
        jnp.stack([low, high, f_low, f_middle, f_high, whole, tolerance]),
        jnp.int32(SIMPSON_DEPTH),
        jnp.float32(0.0),
        jnp.zeros((SIMPSON_DEPTH + 1, 7), jnp.float32),
        jnp.zeros(SIMPSON_DEPTH + 1, jnp.int32),
        jnp.int32(0),
    )
    return lax.while_loop(lambda state: state[5] >= 0, step, start)[2]


def integrate_case(lanes: int, small: bool) -> Case:
    """The narrower the peak the deeper the recursion; narrow ones are rare."""
    rng = np.random.default_rng(11)
    centre = rng.uniform(0.1, 0.9, lanes)
    width = np.clip(0.3 * rng.pareto(1.0, lanes) ** -1.0, 1e-3, 1.0)
    tolerance = np.full(lanes, 1e-4 if small else 1e-6)
    arguments = tuple(x.astype(np.float32) for x in (centre, width, tolerance))
    # Near the tolerance one rounding decides whether an interval is halved once more.
    return Case(
        integrate,
        integrate_lax,
        arguments,
        (0, 0, 0),
        agreement=0.99,
        options={"max_depth": SIMPSON_DEPTH + 4},
    )


# -- binary search trees ---------------------------------------------------------------------------


@lw.program
def build_and_probe(keys, count, probes):
    """Insert keys into an unbalanced tree, then look others up: how many are there, nodes seen."""
    left = jnp.full(keys.shape, -1, jnp.int32)
    right = jnp.full(keys.shape, -1, jnp.int32)
    for i in range(1, count):
        node = jnp.int32(0)
        while True:
            if keys[i] < keys[node]:
                if left[node] < 0:
                    left = left.at[node].set(i)
                    break
                node = left[node]
            else:
                if right[node] < 0:
                    right = right.at[node].set(i)
                    break
                node = right[node]
    found = 0
    seen = 0
    for j in range(probes.shape[0]):
        node = jnp.int32(0)
        while node >= 0:
            seen += 1
            if probes[j] == keys[node]:
                found += 1
                break
            if probes[j] < keys[node]:
                node = left[node]
            else:
                node = right[node]
    return found, seen


def build_and_probe_lax(
    keys: jax.Array, count: jax.Array, probes: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Both children in one table of links: the side is an index, and one write inserts."""
    empty = jnp.full((2, *keys.shape), -1, jnp.int32)

    def insert(i: jax.Array, links: jax.Array) -> jax.Array:
        def side(node: jax.Array) -> jax.Array:
            return (keys[i] >= keys[node]).astype(jnp.int32)

        node = lax.while_loop(
            lambda node: links[side(node), node] >= 0,
            lambda node: links[side(node), node],
            jnp.int32(0),
        )
        return links.at[side(node), node].set(i)

    links = lax.fori_loop(1, count, insert, empty)

    def probe(state: Any, key: jax.Array) -> Any:
        def step(state: Any) -> Any:
            node, found, seen = state
            hit = keys[node] == key
            child = links[(key >= keys[node]).astype(jnp.int32), node]
            return jnp.where(hit, -1, child), found + hit, seen + 1

        found, seen = state
        start = (jnp.int32(0), found, seen)
        return lax.while_loop(lambda state: state[0] >= 0, step, start)[1:], None

    counts, _ = lax.scan(probe, (jnp.int32(0), jnp.int32(0)), probes)
    return counts


def build_and_probe_case(lanes: int, small: bool) -> Case:
    """Keys arrive nearly in order in some lanes (deep trees), shuffled in most (shallow ones)."""
    size, looked_up = (8, 4) if small else (96, 64)
    rng = np.random.default_rng(12)
    disorder = size * rng.beta(0.7, 0.7, (lanes, 1)) ** 2 + 0.5
    keys = np.argsort(np.argsort(np.arange(size) + disorder * rng.standard_normal((lanes, size))))
    count = np.minimum(size // 8 * (1.0 + rng.pareto(1.2, lanes)) + 1, size)
    probes = rng.integers(0, size, (lanes, looked_up))
    arguments = tuple(x.astype(np.int32) for x in (keys, count, probes))
    return Case(build_and_probe, build_and_probe_lax, arguments, (0, 0, 0))


ENTRIES = (
    entry("recursive Fibonacci", fibonacci_case, "diverges", "scalar", "recursive"),
    entry("recursive Simpson", integrate_case, "diverges", "scalar", "recursive"),
    entry("search trees", build_and_probe_case, "diverges", "small"),
)
