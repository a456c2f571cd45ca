"""Small arrays read and written by index inside loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from programs.case import Case, floats, inputs, ints, sorted_ints


@lw.program
def insertion_sort(x):
    for i in range(1, x.shape[0]):
        value = x[i]
        j = i
        while j > 0 and x[j - 1] > value:
            x = x.at[j].set(x[j - 1])
            j -= 1
        x = x.at[j].set(value)
    return x


def insertion_sort_lax(x):
    return jnp.sort(x)


@lw.program
def bubble_sort(x):
    """Ends with the first pass that swaps nothing."""
    passes = jnp.int32(0)
    swapped = True
    while swapped:
        swapped = False
        for i in range(x.shape[0] - 1):
            if x[i] > x[i + 1]:
                a, b = x[i], x[i + 1]
                x = x.at[i].set(b).at[i + 1].set(a)
                swapped = True
        passes += 1
    return x, passes


def bubble_sort_lax(x):
    def compare(i, state):
        x, swapped = state
        a, b = x[i], x[i + 1]
        x = x.at[i].set(jnp.minimum(a, b)).at[i + 1].set(jnp.maximum(a, b))
        return x, swapped | (a > b)

    def sweep(state):
        x, passes, _ = state
        x, swapped = lax.fori_loop(0, x.shape[0] - 1, compare, (x, jnp.array(False)))
        return x, passes + 1, swapped

    return lax.while_loop(lambda s: s[2], sweep, (x, jnp.int32(0), jnp.array(True)))[:2]


@lw.program
def partition(x, low, high):
    """Moves what is below the last element in front of it; returns where it ends."""
    pivot = x[high]
    store = low
    for i in range(low, high):
        if x[i] < pivot:
            held = x[i]
            x = x.at[i].set(x[store])
            x = x.at[store].set(held)
            store += 1
    x = x.at[high].set(x[store])
    x = x.at[store].set(pivot)
    return x, store


@lw.program
def quicksort(x, low, high):
    """A program that calls another program and itself, with the array threaded through."""
    if low < high:
        x, middle = partition(x, low, high)
        x = quicksort(x, low, middle - 1)
        x = quicksort(x, middle + 1, high)
    return x


@lw.program
def quickselect(x, k):
    """The k-th smallest, as a loop around the same partition."""
    low, high = jnp.int32(0), jnp.int32(x.shape[0] - 1)
    while low < high:
        x, middle = partition(x, low, high)
        if middle == k:
            return x[k]
        elif middle < k:
            low = middle + 1
        else:
            high = middle - 1
    return x[low]


def quickselect_lax(x, k):
    return jnp.sort(x)[k]


@lw.program
def merge(left, right):
    """Merges two sorted rows; the guards keep both indices within range."""
    n, m = left.shape[0], right.shape[0]
    out = jnp.zeros(n + m, left.dtype)
    i, j = 0, 0
    while i + j < n + m:
        if j == m or (i < n and left[i] <= right[j]):
            out = out.at[i + j].set(left[i])
            i += 1
        else:
            out = out.at[i + j].set(right[j])
            j += 1
    return out


def merge_lax(left, right):
    return jnp.sort(jnp.concatenate([left, right]))


@lw.program
def sieve(limit):
    prime = jnp.ones(32, bool).at[:2].set(False)
    i = 2
    while i * i < limit:
        if prime[i]:
            for multiple in range(i * i, limit, i):
                prime = prime.at[multiple].set(False)
        i += 1
    return prime


@lw.program
def run_lengths(x):
    """Run-length encoding into two histories of fixed room."""
    values = jnp.zeros_like(x)
    lengths = jnp.zeros_like(x)
    runs = jnp.int32(0)
    i = 0
    while i < x.shape[0]:
        j = i + 1
        while j < x.shape[0] and x[j] == x[i]:
            j += 1
        values = values.at[runs].set(x[i])
        lengths = lengths.at[runs].set(j - i)
        runs += 1
        i = j
    return values, lengths, runs


@lw.program
def histogram(values, upper):
    """Counts into the first bin whose upper edge is not below the value."""
    counts = jnp.zeros(upper.shape[0] + 1, jnp.int32)
    for value in values:
        bin_ = 0
        while bin_ < upper.shape[0] and upper[bin_] < value:
            bin_ += 1
        counts = counts.at[bin_].add(1)
    return counts


def histogram_lax(values, upper):
    bins = jnp.sum(upper[None, :] < values[:, None], axis=1)
    return jnp.zeros(upper.shape[0] + 1, jnp.int32).at[bins].add(1)


@lw.program
def damped_history(x, drag, steps):
    """A trajectory written step by step; what is not reached stays zero."""
    history = jnp.zeros((10, 2), x.dtype)
    v = jnp.ones_like(x)
    for t in range(jnp.minimum(steps, 10)):
        v = v - 0.1 * (x + drag * v)
        x = x + 0.1 * v
        history = history.at[t].set(jnp.stack([x, v]))
    return history


def damped_history_lax(x, drag, steps):
    def body(state, t):
        x, v = state
        new_v = v - 0.1 * (x + drag * v)
        new_x = x + 0.1 * new_v
        live = t < steps
        kept = jnp.where(live, jnp.stack([new_x, new_v]), 0.0)
        return (jnp.where(live, new_x, x), jnp.where(live, new_v, v)), kept

    return lax.scan(body, (x, jnp.ones_like(x)), jnp.arange(10))[1]


@lw.program
def rewound(rows, turns):
    """A row of an array is read, and an inner loop that changes it writes into the array it came from."""
    while turns > 0:
        at = turns % 3
        row, same = rows[at], rows[at]
        left = turns % 4
        while left > 0:
            row = 0.5 * row + 0.1 * same[::-1]
            same = same + 0.25
            rows = rows.at[left % 3].set(row)
            left -= 1
        rows = rows.at[at].add(same)
        turns -= 1
    return rows


@lw.program
def running_records(matrix):
    """`for` over the rows of a matrix, then over the entries of a row."""
    best = jnp.full(matrix.shape[1], -jnp.inf, matrix.dtype)
    records = jnp.int32(0)
    for row in matrix:
        if jnp.all(row > best):
            records += 1
        best = jnp.maximum(best, row)
    for value in best:
        if value < 0.0:
            return best, -records
    return best, records


@lw.program
def enumerate_and_zip(x, y):
    """Pairs of static length are unrolled; what happens to each is decided by data."""
    total = jnp.zeros((), x.dtype)
    for i, (a, b) in enumerate(zip(x, y, strict=True)):
        if a > b:
            total += (i + 1) * (a - b)
        else:
            total -= b
    return total


@lw.program
def row_reduce(matrix):
    """The determinant by elimination with row exchanges."""
    n = matrix.shape[0]
    sign = jnp.float32(1.0)
    for k in range(n):
        pivot = jnp.int32(k)
        for i in range(k + 1, n):
            if jnp.abs(matrix[i, k]) > jnp.abs(matrix[pivot, k]):
                pivot = jnp.int32(i)
        if pivot != k:
            swapped = matrix[pivot]
            matrix = matrix.at[pivot].set(matrix[k]).at[k].set(swapped)
            sign = -sign
        if jnp.abs(matrix[k, k]) < 1e-3:
            return jnp.float32(0.0)
        for i in range(k + 1, n):
            matrix = matrix.at[i].add(-matrix[i, k] / matrix[k, k] * matrix[k])
    return sign * jnp.prod(jnp.diagonal(matrix))


@lw.program
def sliding_windows(x, width):
    """Dynamic slices, and a vectorized inner function over an ordinary axis."""
    squares = jax.vmap(lambda v: v * v + 1.0)(x)
    best = jnp.zeros((), x.dtype)
    start = 0
    while start + width <= x.shape[0]:
        window = lax.dynamic_slice(squares, (start,), (3,))
        best = jnp.maximum(best, jnp.sum(window))
        start += width
    return best


def _halvings(n):
    return lax.while_loop(lambda s: s[0] > 1, lambda s: (s[0] // 2, s[1] + 1), (n, jnp.int32(0)))[1]


def halvings_until_lax(x, rounds):
    """JAX's own loops under JAX's own `vmap`, over an ordinary axis: a test for each element."""

    def turn(_, state):
        x, total = state
        counts = jax.vmap(_halvings)(x)
        return x + counts, total + counts

    return lax.fori_loop(0, rounds, turn, (x, jnp.zeros_like(x)))[1]


@lw.program
def halvings_until(x, rounds):
    total = jnp.zeros_like(x)
    for _ in range(rounds):
        counts = jax.vmap(_halvings)(x)
        x = x + counts
        total += counts
    return total


@lw.program
def lower_bound(values, target):
    """A search that JAX's own loop does inside the program, between Python's own branches."""
    if target > values[-1]:
        return jnp.int32(values.shape[0])
    step = lambda s: lax.cond(  # noqa: E731
        values[(s[0] + s[1]) // 2] < target,
        lambda low, high: ((low + high) // 2 + 1, high),
        lambda low, high: (low, (low + high) // 2),
        *s,
    )
    start = (jnp.int32(0), jnp.int32(values.shape[0]))
    low, _ = lax.while_loop(lambda s: s[0] < s[1], step, start)
    while low > 0 and values[low - 1] == target:
        low -= 1
    return low


def lower_bound_lax(values, target):
    return jnp.searchsorted(values, target, side="left").astype(jnp.int32)


def _nearly_sorted(rng: np.random.Generator, n: int) -> tuple[np.ndarray]:
    x = np.sort(rng.integers(0, 50, (n, 7)), axis=1)
    shuffled = rng.permuted(x, axis=1)
    return (np.where(rng.random((n, 1)) < 0.4, x, shuffled).astype(np.int32),)


def _whole_rows(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    (x,) = _nearly_sorted(rng, n)
    return x, np.zeros(n, np.int32), np.full(n, x.shape[1] - 1, np.int32)


@lw.program
def beyond_the_ends(x, places):
    """Reads and writes at indices of several types, in range, counted from the end, and out of range on both sides."""
    total = 0.0
    for place in places:
        unsigned = place.astype(jnp.uint32)
        read = lax.dynamic_slice(x, (place,), (1,))[0]
        x = lax.dynamic_update_slice(x, jnp.sin(read + total)[None], (unsigned,))
        x = x.at[place.astype(jnp.int16)].add(0.5 * read, mode="drop")
        total = 0.9 * total + read * x.at[unsigned].get(mode="fill", fill_value=0.25)
    return total + x.sum()


def beyond_the_ends_lax(x, places):
    """By NumPy's indices: what is written where is worked out first."""
    size = x.shape[0]

    def step(state, place):
        x, total = state
        counted = jnp.where(place < 0, place + size, place)
        clipped = jnp.where(place < 0, size - 1, jnp.minimum(place, size - 1))
        read = x[jnp.clip(counted, 0, size - 1)]
        here = jnp.arange(size)
        x = jnp.where(here == clipped, jnp.sin(read + total), x)
        x = x + jnp.where(here == counted, 0.5 * read, 0.0)
        inside = (place >= 0) & (place < size)
        total = 0.9 * total + read * jnp.where(inside, x[jnp.clip(place, 0, size - 1)], 0.25)
        return (x, total), None

    (x, total), _ = lax.scan(step, (x, 0.0), places)
    return total + x.sum()


CASES = (
    Case("insertion_sort", insertion_sort, _nearly_sorted, lax_form=insertion_sort_lax),
    Case("bubble_sort", bubble_sort, _nearly_sorted, lax_form=bubble_sort_lax),
    Case("partition", partition, _whole_rows),
    Case(
        "halvings_until",
        halvings_until,
        inputs(ints(0, 5000, 5), ints(0, 6)),
        lax_form=halvings_until_lax,
    ),
    Case(
        "quicksort",
        quicksort,
        _whole_rows,
        lax_form=lambda x, low, high: jnp.sort(x),
        recursive=True,
    ),
    Case(
        "quickselect",
        quickselect,
        lambda rng, n: (*_nearly_sorted(rng, n), *inputs(ints(0, 6))(rng, n)),
        lax_form=quickselect_lax,
    ),
    Case(
        "merge",
        merge,
        inputs(sorted_ints(0, 30, 6), sorted_ints(0, 30, 4)),
        lax_form=merge_lax,
    ),
    Case("sieve", sieve, inputs(ints(0, 32))),
    Case("run_lengths", run_lengths, inputs(ints(0, 1, 9))),
    Case(
        "histogram",
        histogram,
        inputs(floats(0.0, 1.0, 8), lambda rng, n: np.sort(floats(0.0, 1.0, 4)(rng, n), 1)),
        lax_form=histogram_lax,
    ),
    Case(
        "damped_history",
        damped_history,
        inputs(floats(0.5, 2.0), floats(0.0, 1.0), ints(0, 14)),
        lax_form=damped_history_lax,
        differentiable=(0, 1),
    ),
    Case(
        "beyond_the_ends",
        beyond_the_ends,
        # At 32 elements and more the reverse of a write is made in place.
        inputs(floats(-1.0, 1.0, 40), ints(-90, 90, 9)),
        lax_form=beyond_the_ends_lax,
        differentiable=(0,),
    ),
    Case(
        "rewound",
        rewound,
        inputs(floats(-1.0, 1.0, 3, 2), ints(0, 9)),
        differentiable=(0,),
    ),
    Case("running_records", running_records, inputs(floats(-1.0, 4.0, 5, 2))),
    Case(
        "enumerate_and_zip",
        enumerate_and_zip,
        inputs(floats(0.0, 2.0, 4), floats(0.0, 2.0, 4)),
        differentiable=(0, 1),
    ),
    Case("row_reduce", row_reduce, inputs(floats(0.5, 3.0, 3, 3)), rtol=1e-3, heavy=True),
    Case(
        "sliding_windows",
        sliding_windows,
        inputs(floats(-2.0, 2.0, 9), ints(3, 10)),
        differentiable=(0,),
    ),
    Case(
        "lower_bound",
        lower_bound,
        inputs(sorted_ints(0, 30, 12), ints(-3, 33)),
        lax_form=lower_bound_lax,
    ),
)
