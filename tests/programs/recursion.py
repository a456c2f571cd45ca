"""Recursion: single, double, mutual, nested, tail, in both operands, with loops on either side."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from programs.case import Case, floats, inputs, ints, normals


@lw.program
def fibonacci(n):
    if n <= 1:
        return 1
    return fibonacci(n - 1) + fibonacci(n - 2)


@lw.program
def ackermann(m, n):
    if m == 0:
        return n + 1
    if n == 0:
        return ackermann(m - 1, 1)
    return ackermann(m - 1, ackermann(m, n - 1))


@lw.program
def hanoi(disks, source, target, pegs):
    """Moves every disk; returns where each one ended and how many moves it took."""
    if disks == 0:
        return pegs, jnp.int32(0)
    spare = 3 - source - target
    pegs, before = hanoi(disks - 1, source, spare, pegs)
    pegs = pegs.at[disks - 1].set(target)
    pegs, after = hanoi(disks - 1, spare, target, pegs)
    return pegs, before + 1 + after


@lw.program
def is_even(n):
    if n == 0:
        return True
    return is_odd(n - 1)


@lw.program
def is_odd(n):
    if n == 0:
        return False
    return is_even(n - 1)


@lw.program
def mccarthy_91(n):
    if n > 100:
        return n - 10
    return mccarthy_91(mccarthy_91(n + 11))


@lw.program
def tak(x, y, z):
    if y >= x:
        return z
    return tak(tak(x - 1, y, z), tak(y - 1, z, x), tak(z - 1, x, y))


@lw.program
def hofstadter_female(n):
    if n == 0:
        return jnp.int32(1)
    return n - hofstadter_male(hofstadter_female(n - 1))


@lw.program
def hofstadter_male(n):
    if n == 0:
        return jnp.int32(0)
    return n - hofstadter_female(hofstadter_male(n - 1))


@lw.program
def binomial(n, k):
    return 1 if k == 0 or k == n else binomial(n - 1, k - 1) + binomial(n - 1, k)


@lw.program
def partitions(n, largest):
    """Ways to write `n` as a sum: a loop around the recursive call."""
    if n == 0:
        return jnp.int32(1)
    ways = jnp.int32(0)
    for part in range(1, jnp.minimum(n, largest) + 1):
        ways += partitions(n - part, part)
    return ways


@lw.program
def tail_gcd(a, b):
    if b == 0:
        return a
    return tail_gcd(b, a % b)


def tail_gcd_lax(a, b):
    return lax.while_loop(lambda s: s[1] != 0, lambda s: (s[1], s[0] % s[1]), (a, b))[0]


@lw.program
def tail_sum(n, total):
    if n <= 0:
        return total
    return tail_sum(n - 1, total + n)


@lw.program
def power(base, exponent):
    """Recursion by halves, on floats."""
    if exponent == 0:
        return jnp.ones_like(base)
    half = power(base, exponent // 2)
    if exponent % 2 == 1:
        return half * half * base
    return half * half


def power_lax(base, exponent):
    def body(state):
        answer, square, exponent = state
        return jnp.where(exponent % 2 == 1, answer * square, answer), square**2, exponent // 2

    start = (jnp.ones_like(base), base, exponent)
    return lax.while_loop(lambda s: s[2] > 0, body, start)[0]


@lw.program
def fibonacci_sums(n):
    """Recursion inside a loop, with a `break`."""
    total = jnp.int32(0)
    i = 0
    while True:
        if i > n:
            break
        total += fibonacci(i)
        i += 1
    return total


def fibonacci_sums_lax(n):
    def body(_, state):
        total, a, b = state
        return total + a, b, a + b

    return lax.fori_loop(0, n + 1, body, (jnp.int32(0), jnp.int32(1), jnp.int32(1)))[0]


@lw.program
def continued_fraction(terms, start):
    if start >= terms.shape[0] - 1:
        return terms[-1]
    return terms[start] + 1.0 / continued_fraction(terms, start + 1)


def continued_fraction_lax(terms, start):
    last = terms.shape[0] - 1

    def body(i, value):
        return terms[last - 1 - i] + 1.0 / value

    return lax.fori_loop(0, jnp.maximum(last - start, 0), body, terms[-1])


@lw.program
def horner_inside(coefficients, x, degree):
    """A recursion over an index alone; the values it works on are closed over."""

    @lw.program
    def tail(i):
        if i == degree:
            return coefficients[i]
        return coefficients[i] + x * tail(i + 1)

    return tail(0)


def horner_inside_lax(coefficients, x, degree):
    def body(step, value):
        return coefficients[degree - 1 - step] + x * value

    return lax.fori_loop(0, degree, body, coefficients[degree])


@lw.program
def adaptive_simpson(f_scale, low, high, tolerance):
    """Integrates a bump by halving whatever interval is not yet accurate."""
    middle = 0.5 * (low + high)
    whole = _simpson(f_scale, low, high)
    halves = _simpson(f_scale, low, middle) + _simpson(f_scale, middle, high)
    if jnp.abs(halves - whole) <= 15.0 * tolerance or high - low < 1e-2:
        return halves
    left = adaptive_simpson(f_scale, low, middle, 0.5 * tolerance)
    right = adaptive_simpson(f_scale, middle, high, 0.5 * tolerance)
    return left + right


def _simpson(scale, low, high):
    def bump(x):
        return 1.0 / (0.02 + (x - scale) ** 2)

    return (high - low) / 6.0 * (bump(low) + 4.0 * bump(0.5 * (low + high)) + bump(high))


class Fold(NamedTuple):
    """What a walk over a tree brings back."""

    total: jax.Array
    smallest: jax.Array
    depth: jax.Array


@lw.program
def fold_tree(values, left, right, node):
    """A pytree comes back from each call. Children are indices into arrays; -1 is no child."""
    if node < 0:
        zero = jnp.zeros((), values.dtype)
        return Fold(zero, zero + jnp.inf, jnp.int32(0))
    a = fold_tree(values, left, right, left[node])
    b = fold_tree(values, left, right, right[node])
    return Fold(
        total=a.total + b.total + values[node],
        smallest=jnp.minimum(jnp.minimum(a.smallest, b.smallest), values[node]),
        depth=1 + jnp.maximum(a.depth, b.depth),
    )


@lw.program
def tree_path_count(left, right, weights, node, target):
    """Paths from root to leaf with a given sum; no leaf may be entered twice."""
    remaining = target - weights[node]
    if left[node] < 0 and right[node] < 0:
        return jnp.int32(1) if remaining == 0 else jnp.int32(0)
    count = jnp.int32(0)
    if left[node] >= 0:
        count += tree_path_count(left, right, weights, left[node], remaining)
    if right[node] >= 0:
        count += tree_path_count(left, right, weights, right[node], remaining)
    return count


@lw.program
def evaluate(operator, operand, left, right, node):
    """A calculator for expression trees stored in arrays."""
    code = operator[node]
    if code == 0:
        return operand[node]
    a = evaluate(operator, operand, left, right, left[node])
    if code == 1:
        return -a
    b = evaluate(operator, operand, left, right, right[node])
    if code == 2:
        return a + b
    elif code == 3:
        return a * b
    return jnp.maximum(a, b)


@lw.program
def tree_walk(values, left, right):
    """The same unbalanced tree, walked in order with an explicit stack."""
    stack = jnp.full(values.shape[0] + 1, -1, jnp.int32)
    top = jnp.int32(0)
    node = jnp.int32(0)
    weight = jnp.ones((), values.dtype)
    total = jnp.zeros((), values.dtype)
    while node >= 0 or top > 0:
        while node >= 0:
            stack = stack.at[top].set(node)
            top += 1
            node = left[node]
        top -= 1
        node = stack[top]
        total += weight * values[node]
        weight += 1.0
        node = right[node]
    return total


# So large that a block with this product is worth meeting at (`machine/schedule.py`).
MIXING = np.linalg.qr(np.random.default_rng(0).normal(size=(100, 100)))[0].astype(np.float32)


@lw.program
def mixed_tree(values, left, right, node):
    """A recursion around a matrix product: the vector of a node, and how many leaves are below it."""
    if left[node] < 0 or right[node] < 0:
        return jnp.tanh(values[node]), jnp.int32(1)
    a, leaves = mixed_tree(values, left, right, left[node])
    b, more = mixed_tree(values, left, right, right[node])
    return jnp.tanh(MIXING @ (a + b)), leaves + more


@lw.program
def mixed_tree_vector(values, left, right):
    """What calls the recursion does nothing with what comes back but to hand on a part of it."""
    return mixed_tree(values, left, right, jnp.int32(0))[0]


@lw.program
def mix_down(x, steps):
    """Tail calls, from a block with a matrix product to a function that is called in no other way."""
    if steps <= 0:
        return x
    return mix_up(jnp.tanh(MIXING @ x), steps - 1)


@lw.program
def mix_up(x, steps):
    if steps <= 0:
        return -x
    if x[0] > 0.1:
        return mix_down(1.5 * x, steps - 2)
    return mix_up(x + 0.2, steps - 1)


@lw.program
def mix_twice(x, steps):
    """Two calls of a recursion that calls another, and it the first."""
    return mix_out(x, steps) - mix_out(0.5 * x, steps - 1)


@lw.program
def mix_out(x, steps):
    if steps <= 0:
        return x
    return x + mix_back(jnp.tanh(MIXING @ x), steps - 1)


@lw.program
def mix_back(x, steps):
    if steps <= 0:
        return -x
    return MIXING @ mix_out(0.5 * x, steps - 2)


def random_trees(rng: np.random.Generator, n: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Binary trees of uneven depth as child tables; nodes beyond a tree's own size hang loose."""
    left = np.full((n, size), -1, np.int32)
    right = np.full((n, size), -1, np.int32)
    for lane in range(n):
        for node in range(1, int(rng.integers(1, size + 1))):
            at = 0
            while True:
                side = left if rng.random() < 0.7 else right
                if side[lane, at] < 0:
                    side[lane, at] = node
                    break
                at = side[lane, at]
    return left, right


def _folds(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    left, right = random_trees(rng, n, 12)
    values = rng.uniform(1.0, 2.0, (n, 12)).astype(np.float32)
    return values, left, right, np.zeros(n, np.int32)


def _mixed_trees(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    left, right = random_trees(rng, n, 9)
    return rng.normal(size=(n, 9, 100)).astype(np.float32), left, right


def _paths(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    left, right = random_trees(rng, n, 14)
    weights = rng.integers(0, 3, (n, 14)).astype(np.int32)
    return left, right, weights, np.zeros(n, np.int32), rng.integers(1, 6, n).astype(np.int32)


def _expressions(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    left, right = random_trees(rng, n, 11)
    leaf, single = (left < 0) & (right < 0), (left < 0) ^ (right < 0)
    left = np.where(left < 0, right, left)
    operator = np.where(leaf, 0, np.where(single, 1, rng.integers(2, 5, left.shape)))
    operand = rng.integers(-4, 5, left.shape).astype(np.int32)
    return operator.astype(np.int32), operand, left, right, np.zeros(n, np.int32)


def _binomials(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    total = rng.integers(0, 8, n).astype(np.int32)
    return total, (rng.random(n) * (total + 1)).astype(np.int32)


def _ackermanns(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    m = rng.integers(0, 3, n).astype(np.int32)
    return m, rng.integers(0, 5, n).astype(np.int32)


@lw.program
def scaled_tree(scale, x, n):
    """Called with a Python scalar, it calls itself with arrays of the same dtype."""
    if n <= 0:
        return scale * x
    return scaled_tree(scale * jnp.cos(x), x * 0.9, n - 1) - scaled_tree(scale, x + 0.5, n - 2)


@lw.program
def from_a_scalar(x, n):
    return scaled_tree(1.5, x, n)


@lw.program
def determinant(matrix, row, left):
    """By expansion along rows, of the columns whose bits are set in `left`: a loop of calls that share an array."""
    if left & (left - 1) == 0:
        return matrix[row, lax.population_count(left - 1)]
    total = jnp.zeros((), matrix.dtype)
    sign = jnp.ones((), matrix.dtype)
    rest = left
    while rest != 0:
        bit = rest & -rest
        entry = matrix[row, lax.population_count(bit - 1)]
        total = total + sign * entry * determinant(matrix, row + 1, left ^ bit)
        sign = -sign
        rest = rest ^ bit
    return total


def _determinants(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    """Of the last rows of matrices 4 by 4, as many as there are columns."""
    columns = rng.integers(1, 5, n).astype(np.int32)
    return normals(4, 4)(rng, n), 4 - columns, (1 << columns) - 1


def _hanois(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    disks = rng.integers(0, 6, n).astype(np.int32)
    source = rng.integers(0, 3, n).astype(np.int32)
    return disks, source, (source + 1) % 3, np.repeat(source[:, None], 5, axis=1)


CASES = (
    Case("mixed_tree_vector", mixed_tree_vector, _mixed_trees, recursive=True, heavy=True),
    Case("mix_down", mix_down, inputs(normals(100), ints(0, 7)), recursive=True, heavy=True),
    Case("mix_twice", mix_twice, inputs(normals(100), ints(0, 6)), recursive=True, heavy=True),
    Case("fibonacci", fibonacci, inputs(ints(0, 9)), recursive=True),
    Case("ackermann", ackermann, _ackermanns, recursive=True),
    Case("hanoi", hanoi, _hanois, recursive=True),
    Case(
        "is_even",
        is_even,
        inputs(ints(0, 30)),
        lax_form=lambda n: n % 2 == 0,
        recursive=True,
    ),
    Case("mccarthy_91", mccarthy_91, inputs(ints(80, 110)), recursive=True),
    Case("tak", tak, inputs(ints(0, 5), ints(0, 4), ints(0, 3)), recursive=True),
    Case("hofstadter_female", hofstadter_female, inputs(ints(0, 6)), recursive=True),
    Case("hofstadter_male", hofstadter_male, inputs(ints(0, 6)), recursive=True),
    Case("binomial", binomial, _binomials, recursive=True),
    Case("partitions", partitions, inputs(ints(0, 7), ints(1, 7)), recursive=True),
    Case(
        "tail_gcd",
        tail_gcd,
        inputs(ints(0, 5000), ints(0, 5000)),
        lax_form=tail_gcd_lax,
        recursive=True,
    ),
    Case("tail_sum", tail_sum, inputs(ints(-5, 60), ints(0, 9)), recursive=True),
    Case(
        "power",
        power,
        inputs(floats(0.7, 1.3), ints(0, 40)),
        lax_form=power_lax,
        differentiable=(0,),
        recursive=True,
    ),
    Case(
        "fibonacci_sums",
        fibonacci_sums,
        inputs(ints(-1, 7)),
        lax_form=fibonacci_sums_lax,
        recursive=True,
    ),
    Case(
        "continued_fraction",
        continued_fraction,
        inputs(floats(1.0, 5.0, 9), ints(0, 10)),
        lax_form=continued_fraction_lax,
        differentiable=(0,),
        recursive=True,
    ),
    Case(
        "horner_inside",
        horner_inside,
        inputs(floats(-1.0, 1.0, 9), floats(-1.2, 1.2), ints(0, 8)),
        lax_form=horner_inside_lax,
        differentiable=(0, 1),
        recursive=True,
    ),
    Case(
        "adaptive_simpson",
        adaptive_simpson,
        inputs(floats(0.0, 1.0), floats(-2.0, 0.0), floats(0.1, 1.5), floats(1e-3, 5e-3)),
        rtol=1e-3,
        differentiable=(0, 1, 2),
        recursive=True,
    ),
    Case("fold_tree", fold_tree, _folds, differentiable=(0,), recursive=True),
    Case(
        "from_a_scalar",
        from_a_scalar,
        inputs(floats(-1.0, 1.0), ints(-1, 6)),
        differentiable=(0,),
        recursive=True,
    ),
    Case("determinant", determinant, _determinants, differentiable=(0,), recursive=True),
    Case("tree_path_count", tree_path_count, _paths, recursive=True),
    Case("evaluate", evaluate, _expressions, recursive=True),
    Case("tree_walk", tree_walk, lambda rng, n: _folds(rng, n)[:3], differentiable=(0,)),
)
