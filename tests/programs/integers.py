"""Integer loops: exact results, trip counts that differ wildly from lane to lane."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from programs.case import Case, constant, inputs, ints, sorted_ints
from programs.small import collatz


def collatz_lax(n):
    def body(carry):
        n, steps = carry
        return lax.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, n), steps + 1

    return lax.while_loop(lambda carry: carry[0] != 1, body, (n, jnp.int32(0)))[1]


@lw.program
def gcd(a, b):
    while b != 0:
        a, b = b, a % b
    return a


def gcd_lax(a, b):
    return lax.while_loop(lambda s: s[1] != 0, lambda s: (s[1], s[0] % s[1]), (a, b))[0]


@lw.program
def binary_search(values, target):
    low, high = 0, values.shape[0]
    while low < high:
        middle = (low + high) // 2
        if values[middle] == target:
            return middle
        if values[middle] < target:
            low = middle + 1
        else:
            high = middle
    return -1


def binary_search_lax(values, target):
    def body(state):
        low, high, found = state
        middle = (low + high) // 2
        value = values[middle]
        return (
            jnp.where(value < target, middle + 1, low),
            jnp.where(value < target, high, middle),
            jnp.where(value == target, middle, found),
        )

    def unfinished(state):
        low, high, found = state
        return (low < high) & (found < 0)

    start = (jnp.int32(0), jnp.int32(values.shape[0]), jnp.int32(-1))
    return lax.while_loop(unfinished, body, start)[2]


@lw.program
def integer_sqrt(n):
    """Newton's method on integers, with two early returns before the loop."""
    if n < 0:
        return -1
    if n < 2:
        return n
    x = n
    y = (x + 1) // 2
    while y < x:
        x = y
        y = (x + n // x) // 2
    return x


@lw.program
def power_mod(base, exponent, modulus):
    """Square and multiply, in unsigned words."""
    answer = jnp.uint32(1)
    base = base % modulus
    while exponent > 0:
        if exponent & 1:
            answer = answer * base % modulus
        base = base * base % modulus
        exponent = exponent >> 1
    return answer


def power_mod_lax(base, exponent, modulus):
    def body(state):
        answer, base, exponent = state
        odd = (exponent & 1) == 1
        answer = jnp.where(odd, answer * base % modulus, answer)
        return answer, base * base % modulus, exponent >> 1

    start = (jnp.uint32(1), base % modulus, exponent)
    return lax.while_loop(lambda s: s[2] > 0, body, start)[0]


@lw.program
def digital_root(n):
    """A loop in a loop: sum the digits until one digit is left."""
    rounds = jnp.int32(0)
    while n > 9:
        total = jnp.int32(0)
        while n > 0:
            total += n % 10
            n //= 10
        n = total
        rounds += 1
    return n, rounds


def digital_root_lax(n):
    def digits(n):
        return lax.while_loop(
            lambda s: s[0] > 0, lambda s: (s[0] // 10, s[1] + s[0] % 10), (n, jnp.int32(0))
        )[1]

    return lax.while_loop(lambda s: s[0] > 9, lambda s: (digits(s[0]), s[1] + 1), (n, jnp.int32(0)))


@lw.program
def count_primes(limit):
    """`for`-`else`: the `else` runs where no divisor broke the loop."""
    count = jnp.int32(0)
    for candidate in range(2, limit):
        divisor = 2
        while divisor * divisor <= candidate:
            if candidate % divisor == 0:
                break
            divisor += 1
        else:
            count += 1
    return count


@lw.program
def smallest_factor(n):
    if n % 2 == 0:
        return jnp.int32(2)
    divisor = jnp.int32(3)
    while divisor * divisor <= n:
        if n % divisor == 0:
            return divisor
        divisor += 2
    return n


def smallest_factor_lax(n):
    def unfinished(divisor):
        return (divisor * divisor <= n) & (n % divisor != 0)

    divisor = lax.while_loop(unfinished, lambda d: d + 2, jnp.int32(3))
    odd = jnp.where(divisor * divisor <= n, divisor, n)
    return jnp.where(n % 2 == 0, 2, odd)


@lw.program
def two_squares(n):
    """The first pair whose squares sum to `n`: a return out of two loops at once."""
    for a in range(0, 12):
        for b in range(a, 12):
            if a * a + b * b == n:
                return a, b
            if a * a + b * b > n:
                break
    return -1, -1


@lw.program
def popcount(word):
    count = jnp.int32(0)
    while word != 0:
        word = word & (word - 1)
        count += 1
    return count


def popcount_lax(word):
    def body(state):
        word, count = state
        return word & (word - 1), count + 1

    return lax.while_loop(lambda s: s[0] != 0, body, (word, jnp.int32(0)))[1]


@lw.program
def congruential_walk(seed, below):
    """Draws from a 32-bit generator; odd draws are skipped, the first low one ends the walk."""
    draws = jnp.int32(0)
    skipped = jnp.int32(0)
    while draws < 60:
        seed = seed * jnp.uint32(1664525) + jnp.uint32(1013904223)
        if (seed >> 16) & 1:
            skipped += 1
            continue
        draws += 1
        if seed < below:
            break
    return seed, draws, skipped


@lw.program
def wrap_around(x, step):
    """int8 arithmetic wraps; the loop ends when the sign changes."""
    turns = jnp.int8(0)
    start = x
    while (x >= 0) == (start >= 0):
        x = x + step
        turns += jnp.int8(1)
    return x, turns


def wrap_around_lax(x, step):
    return lax.while_loop(
        lambda s: (s[0] >= 0) == (x >= 0),
        lambda s: (s[0] + step, s[1] + jnp.int8(1)),
        (x, jnp.int8(0)),
    )


@lw.program
def josephus(people, stride):
    survivor = 0
    for size in range(2, people + 1):
        survivor = (survivor + stride) % size
    return survivor


def josephus_lax(people, stride):
    return lax.fori_loop(2, people + 1, lambda size, s: (s + stride) % size, jnp.int32(0))


@lw.program
def stepped_range(start, stop, step):
    """Start, stop and step all come from data; the step may be negative."""
    total = jnp.int32(0)
    last = start
    for i in range(start, stop, step):
        total += i
        last = i
    for i in range(5, 0, -2):
        total = 2 * total + i
    return total, last


@lw.program
def count_between(values, low, high):
    count = jnp.int32(0)
    for value in values:
        if low < value <= high:
            count += 1
        elif not (low <= value != 7):
            count -= 1
    return count


def count_between_lax(values, low, high):
    inside = (low < values) & (values <= high)
    outside = ~inside & ((low > values) | (values == 7))
    return jnp.sum(inside, dtype=jnp.int32) - jnp.sum(outside, dtype=jnp.int32)


@lw.program
def days_in_month(year, month):
    if month == 2:
        if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
            days = 29
        else:
            days = 28
    elif month == 4 or month == 6 or month == 9 or month == 11:
        days = 30
    else:
        days = 31
    return days


@lw.program
def first_mismatch(left, right, length):
    """The guard on the left of `and` keeps the index on its right within range."""
    i = 0
    while i < length and left[i] == right[i]:
        i += 1
    return i


def first_mismatch_lax(left, right, length):
    size = left.shape[0]

    def same(i):
        j = jnp.minimum(i, size - 1)
        return (i < length) & (left[j] == right[j])

    return lax.while_loop(same, lambda i: i + 1, jnp.int32(0))


@lw.program
def guarded_divisions(values, divisor):
    """`or` and `and` decide whether a division is tried at all."""
    good = 0
    for value in values:
        if divisor == 0 or value % divisor == 0:
            good += 1
        if divisor != 0 and not value // divisor > 2 and value > 0:
            good += 10
    return good


@lw.program
def fizz_buzz(n):
    total = 0
    for i in range(1, n + 1):
        total += 15 if i % 15 == 0 else 5 if i % 5 == 0 else 3 if i % 3 == 0 else 1
    return total


def fizz_buzz_lax(n):
    def body(i, total):
        small = jnp.where(i % 3 == 0, 3, 1)
        return total + jnp.where(i % 15 == 0, 15, jnp.where(i % 5 == 0, 5, small))

    return lax.fori_loop(1, n + 1, body, jnp.int32(0))


@lw.program
def skip_and_stop(values, skip, stop):
    """`continue` and `break` in both of two nested loops."""
    total = jnp.int32(0)
    for row in values:
        if row[0] == skip:
            continue
        for value in row:
            if value == stop:
                break
            if value == skip:
                continue
            total += value
        if total > 40:
            break
    return total


@lw.program
def loop_variable_survives(n):
    """The loop's variable keeps its last value, and may be changed inside the body."""
    i = -1
    seen = 0
    for i in range(n):
        seen += i
        i = i * 10
    return i, seen


def _calendar(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    years = rng.choice([1900, 2000, 2023, 2024, 2100], n).astype(np.int32)
    return years, rng.integers(1, 13, n).astype(np.int32)


def _two_words(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    left = rng.integers(0, 3, (n, 10)).astype(np.int32)
    same = np.arange(10) < rng.integers(0, 11, (n, 1))
    right = np.where(same, left, rng.integers(0, 3, (n, 10))).astype(np.int32)
    return left, right, rng.integers(0, 11, n).astype(np.int32)


def _ranges(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    step = rng.choice([-7, -2, -1, 1, 2, 5], n).astype(np.int32)
    start, stop = rng.integers(-20, 21, (2, n)).astype(np.int32)
    return start, stop, step


CASES = (
    Case("collatz", collatz, inputs(ints(1, 120)), lax_form=collatz_lax),
    Case("gcd", gcd, inputs(ints(0, 5000), ints(0, 5000)), lax_form=gcd_lax),
    Case(
        "binary_search",
        binary_search,
        inputs(sorted_ints(0, 60, 24), ints(0, 60)),
        lax_form=binary_search_lax,
    ),
    Case("integer_sqrt", integer_sqrt, inputs(ints(-2, 30_000))),
    Case(
        "power_mod",
        power_mod,
        inputs(
            ints(0, 1000, dtype=np.uint32), ints(0, 5000, dtype=np.uint32), constant(np.uint32(997))
        ),
        in_axes=(0, 0, None),
        lax_form=power_mod_lax,
    ),
    Case("digital_root", digital_root, inputs(ints(0, 2**31 - 1)), lax_form=digital_root_lax),
    Case("count_primes", count_primes, inputs(ints(0, 24))),
    Case("smallest_factor", smallest_factor, inputs(ints(2, 8000)), lax_form=smallest_factor_lax),
    Case("two_squares", two_squares, inputs(ints(0, 90))),
    Case("popcount", popcount, inputs(ints(0, 2**32 - 1, dtype=np.uint32)), lax_form=popcount_lax),
    Case(
        "congruential_walk",
        congruential_walk,
        inputs(ints(0, 2**32 - 1, dtype=np.uint32), ints(1, 2**29, dtype=np.uint32)),
    ),
    Case(
        "wrap_around",
        wrap_around,
        inputs(ints(-128, 127, dtype=np.int8), ints(3, 40, dtype=np.int8)),
        lax_form=wrap_around_lax,
    ),
    Case("josephus", josephus, inputs(ints(0, 40), ints(1, 9)), lax_form=josephus_lax),
    Case("stepped_range", stepped_range, _ranges),
    Case(
        "count_between",
        count_between,
        inputs(ints(0, 20, 9), ints(0, 12), ints(8, 20)),
        lax_form=count_between_lax,
    ),
    Case("days_in_month", days_in_month, _calendar),
    Case("first_mismatch", first_mismatch, _two_words, lax_form=first_mismatch_lax),
    Case("guarded_divisions", guarded_divisions, inputs(ints(-9, 30, 6), ints(0, 4))),
    Case("fizz_buzz", fizz_buzz, inputs(ints(0, 40)), lax_form=fizz_buzz_lax),
    Case("skip_and_stop", skip_and_stop, inputs(ints(0, 9, 5, 6), ints(0, 9), ints(0, 9))),
    Case("loop_variable_survives", loop_variable_survives, inputs(ints(0, 9))),
)
