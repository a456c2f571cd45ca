"""Array operators (`lw.arrays`) inside loops, branches and recursion."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

import lanewise as lw
from programs.case import Case, floats, inputs, ints, normals


@lw.program
def dominant_vector(matrix, tolerance):
    """Each step is a map of reductions; lanes need different numbers of steps."""
    v = jnp.ones(4, matrix.dtype)
    change = jnp.ones((), matrix.dtype)
    steps = 0
    while change > tolerance and steps < 60:
        w = lw.arrays.map(lambda row: lw.arrays.reduce(jnp.add, row * v), matrix)
        w = w / lw.arrays.reduce(jnp.maximum, jnp.abs(w))
        change = lw.arrays.reduce(jnp.add, jnp.abs(w - v))
        v = w
        steps += 1
    return v, steps


def dominant_vector_lax(matrix, tolerance):
    def step(state):
        v, _, steps = state
        w = jnp.sum(matrix * v, axis=1)
        w = w / jnp.max(jnp.abs(w))
        return w, jnp.sum(jnp.abs(w - v)), steps + 1

    def goes_on(state):
        return (state[1] > tolerance) & (state[2] < 60)

    one = jnp.ones((), matrix.dtype)
    v, _, steps = lax.while_loop(goes_on, step, (jnp.ones(4, matrix.dtype), one, 0))
    return v, steps


def then(f, g):
    """One affine map after the other."""
    return g[0] * f[0], g[0] * f[1] + g[1]


@lw.program
def smoothing(x, keep, times):
    """A linear recurrence by a scan of affine maps, over and over."""
    while times > 0:
        kept = jnp.full(x.shape[0], keep)
        _, x = lw.arrays.scan(then, (kept, (1 - keep) * x))
        keep = keep * 0.9
        times -= 1
    return x


def smoothing_lax(x, keep, times):
    def once(_, state):
        x, keep = state

        def step(y, v):
            y = keep * y + (1 - keep) * v
            return y, y

        return lax.scan(step, jnp.zeros((), x.dtype), x)[1], keep * 0.9

    return lax.fori_loop(0, times, once, (x, keep))[0]


@lw.program
def means_on_a_line(points, centres):
    """k-means: sums and counts of each cluster are one histogram; ends when no centre moves."""
    moved = jnp.float32(1.0)
    rounds = 0
    while moved > 1e-4 and rounds < 20:
        nearest = lw.arrays.map(lambda p: jnp.argmin(jnp.abs(p - centres)), points)
        totals, counts = lw.arrays.histogram(
            lambda a, b: (a[0] + b[0], a[1] + b[1]), nearest, (points, jnp.ones(9)), 3
        )
        new = jnp.where(counts > 0, totals / jnp.maximum(counts, 1.0), centres)
        moved = lw.arrays.reduce(jnp.maximum, jnp.abs(new - centres))
        centres = new
        rounds += 1
    return centres, rounds


def means_on_a_line_lax(points, centres):
    def step(state):
        centres, _, rounds = state
        own = jax.nn.one_hot(jnp.argmin(jnp.abs(points[:, None] - centres), axis=1), 3)
        counts = own.sum(axis=0)
        totals = (own * points[:, None]).sum(axis=0)
        new = jnp.where(counts > 0, totals / jnp.maximum(counts, 1.0), centres)
        return new, jnp.max(jnp.abs(new - centres)), rounds + 1

    def goes_on(state):
        return (state[1] > 1e-4) & (state[2] < 20)

    centres, _, rounds = lax.while_loop(goes_on, step, (centres, jnp.float32(1.0), 0))
    return centres, rounds


@lw.program
def radix_sort(x, bits):
    """A stable split by each bit: an exclusive scan finds where elements go, a scatter puts them there."""
    for bit in range(bits):
        high = (x >> bit) & 1
        lows = lw.arrays.scan(jnp.add, 1 - high, exclusive=True)
        highs = lw.arrays.scan(jnp.add, high, exclusive=True)
        place = jnp.where(high == 1, lw.arrays.reduce(jnp.add, 1 - high) + highs, lows)
        x = lw.arrays.scatter(x, place, x, unique=True)
    return x


def radix_sort_lax(x, bits):
    return x[jnp.argsort(x & ((1 << bits) - 1), stable=True)]


@lw.program
def best_stretch(x, pieces):
    """The largest sum of neighbours, by recursion over pieces and a reduction of quadruples within."""
    if pieces <= 0:
        return jnp.full((), -1e9, x.dtype)
    _, _, _, best = lw.arrays.reduce(joined, (x, x, x, x))
    rest = best_stretch(x[::-1] * 0.5 - 0.1, pieces - 1)
    return jnp.maximum(best, rest)


def joined(a, b):
    """Sum, best from the left, best to the right, best anywhere, of two stretches side by side."""
    return (
        a[0] + b[0],
        jnp.maximum(a[1], a[0] + b[1]),
        jnp.maximum(b[2], a[2] + b[0]),
        jnp.maximum(jnp.maximum(a[3], b[3]), a[2] + b[1]),
    )


@lw.program
def ragged(p, first, second, rounds):
    """Reductions and scans of segments whose sizes differ between lanes."""
    sizes = jnp.stack([first, second, 8 - first - second])
    while rounds > 0:
        top = lw.arrays.segmented_reduce(jnp.maximum, p, sizes, neutral=-5.0)
        total = lw.arrays.segmented_reduce(lambda a, b: a + b + a * b, 0.1 * p, sizes, neutral=0.0)
        soft = lw.arrays.segmented_reduce(jnp.logaddexp, p, sizes, neutral=-5.0)
        before = lw.arrays.segmented_scan(jnp.add, p, sizes, exclusive=True)
        shares = lw.arrays.histogram(jnp.multiply, jnp.arange(8) % 3, 1.0 + 0.1 * p, 3)
        p = 0.5 * p + 0.1 * before + 0.01 * jnp.sum(top + total + soft + shares)
        rounds -= 1
    return p


CASES = (
    Case(
        "dominant_vector",
        dominant_vector,
        inputs(floats(0.1, 1.0, 4, 4), floats(0.001, 0.3)),
        lax_form=dominant_vector_lax,
        rtol=1e-4,
        differentiable=(0,),
    ),
    Case(
        "smoothing",
        smoothing,
        inputs(normals(40), floats(0.1, 0.9), ints(0, 4)),
        lax_form=smoothing_lax,
        rtol=1e-4,
        differentiable=(0, 1),
    ),
    Case(
        "means_on_a_line",
        means_on_a_line,
        inputs(floats(0.0, 10.0, 9), floats(0.0, 10.0, 3)),
        lax_form=means_on_a_line_lax,
        rtol=1e-4,
    ),
    Case("radix_sort", radix_sort, inputs(ints(0, 15, 10), ints(0, 4)), lax_form=radix_sort_lax),
    Case(
        "best_stretch",
        best_stretch,
        inputs(normals(6), ints(0, 4)),
        rtol=1e-4,
        differentiable=(0,),
        recursive=True,
    ),
    Case(
        "ragged",
        ragged,
        inputs(normals(8), ints(0, 4), ints(0, 4), ints(0, 3)),
        rtol=1e-4,
        differentiable=(0,),
    ),
)
