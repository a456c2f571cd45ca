"""Scalar loops: escape time, Collatz, gcd, Newton with hard starts, bisection with tolerance."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from control.case import Case, entry

# -- escape time -----------------------------------------------------------------------------------


@lw.program
def escape_time(real, imaginary, limit):
    """How many steps a point takes to leave the Mandelbrot set's disk."""
    x = jnp.float32(0.0)
    y = jnp.float32(0.0)
    count = 0
    while x * x + y * y <= 4.0 and count < limit:
        x, y = x * x - y * y + real, 2.0 * x * y + imaginary
        count += 1
    return count


def escape_time_lax(real: jax.Array, imaginary: jax.Array, limit: jax.Array) -> jax.Array:
    def inside(state: Any) -> jax.Array:
        x, y, count = state
        return (x * x + y * y <= 4.0) & (count < limit)

    def step(state: Any) -> Any:
        x, y, count = state
        return x * x - y * y + real, 2.0 * x * y + imaginary, count + 1

    start = (jnp.float32(0.0), jnp.float32(0.0), jnp.int32(0))
    return lax.while_loop(inside, step, start)[2]


def escape_time_case(lanes: int, small: bool) -> Case:
    """Pixels of a view on the set's boundary: most leave soon, some late, some never."""
    rng = np.random.default_rng(0)
    real = rng.uniform(-0.79, -0.72, lanes).astype(np.float32)
    imaginary = rng.uniform(0.06, 0.26, lanes).astype(np.float32)
    limit = np.int32(100 if small else 2000)
    # Orbits near the boundary are chaotic. XLA fuses products into sums in vector code and in scalar code
    # differently, so the twin itself agrees with itself run lane by lane on only 94.5% of 256 lanes.
    return Case(escape_time, escape_time_lax, (real, imaginary, limit), (0, 0, None), agreement=0.9)


# -- Collatz ---------------------------------------------------------------------------------------


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


def collatz_lax(n: jax.Array) -> jax.Array:
    def step(state: Any) -> Any:
        n, steps = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return lax.while_loop(lambda state: state[0] != 1, step, (n, jnp.int32(0)))[1]


def collatz_case(lanes: int, small: bool) -> Case:
    """Up to 113,382: beyond, a number on the way does not fit into 32 bits."""
    rng = np.random.default_rng(1)
    n = np.minimum(rng.lognormal(8.0, 2.0, lanes) + 1, 200 if small else 113_382)
    return Case(collatz, collatz_lax, (n.astype(np.int32),), (0,))


# -- gcd -------------------------------------------------------------------------------------------


@lw.program
def gcd(a, b):
    while b != 0:
        a, b = b, a % b
    return a


@lw.program
def coprimes(n):
    """How many numbers below `n` have no divisor in common with it, by Euclid's algorithm."""
    found = 0
    for k in range(1, n):
        if gcd(n, k) == 1:
            found += 1
    return found


def coprimes_lax(n: jax.Array) -> jax.Array:
    def gcd(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.while_loop(lambda p: p[1] != 0, lambda p: (p[1], p[0] % p[1]), (a, b))[0]

    def step(k: jax.Array, found: jax.Array) -> jax.Array:
        return found + (gcd(n, k) == 1)

    return lax.fori_loop(1, n, step, jnp.int32(0))


def coprimes_case(lanes: int, small: bool) -> Case:
    rng = np.random.default_rng(2)
    n = np.minimum(rng.geometric(1 / 100, lanes) + 2, 20 if small else 1000)
    return Case(coprimes, coprimes_lax, (n.astype(np.int32),), (0,))


# -- Newton with hard starts -----------------------------------------------------------------------

KEPLER_TOLERANCE = 1e-5
KEPLER_TRIES = 200


@lw.program
def kepler(mean, eccentricity):
    """Where on its orbit a body is: E - e sin(E) = M by Newton's method, started at M.

    For an orbit close to a parabola the first steps go far astray, and finding back takes long.
    """
    angle = mean
    step = jnp.float32(1.0)
    tries = 0
    while jnp.abs(step) > KEPLER_TOLERANCE and tries < KEPLER_TRIES:
        step = (angle - eccentricity * jnp.sin(angle) - mean) / (
            1.0 - eccentricity * jnp.cos(angle)
        )
        angle = angle - step
        tries += 1
    return angle


def kepler_lax(mean: jax.Array, eccentricity: jax.Array) -> jax.Array:
    def unsettled(state: Any) -> jax.Array:
        _, step, tries = state
        return (jnp.abs(step) > KEPLER_TOLERANCE) & (tries < KEPLER_TRIES)

    def update(state: Any) -> Any:
        angle, _, tries = state
        slope = 1.0 - eccentricity * jnp.cos(angle)
        step = (angle - eccentricity * jnp.sin(angle) - mean) / slope
        return angle - step, step, tries + 1

    start = (mean, jnp.float32(1.0), jnp.int32(0))
    return lax.while_loop(unsettled, update, start)[0]


def kepler_case(lanes: int, small: bool) -> Case:
    del small
    rng = np.random.default_rng(3)
    mean = rng.uniform(0.0, 0.5, lanes).astype(np.float32)
    eccentricity = (1.0 - 10.0 ** rng.uniform(-4.0, -0.3, lanes)).astype(np.float32)
    # Detours are chaotic: where a sine rounds otherwise, a lane finds back later, or not in time.
    return Case(
        kepler, kepler_lax, (mean, eccentricity), (0, 0), rtol=1e-3, atol=1e-3, agreement=0.9
    )


# -- bisection with tolerance ----------------------------------------------------------------------


@lw.program
def gamma_share(shape, x, log_norm):
    """The regularized lower incomplete gamma function, by its series."""
    term = jnp.float32(1.0)
    total = jnp.float32(1.0)
    below = shape
    while term > 1e-6 * total:
        below = below + 1.0
        term = term * x / below
        total = total + term
    return total * jnp.exp(shape * jnp.log(x) - x - log_norm)


@lw.program
def gamma_quantile(shape, share, tolerance):
    """Where a gamma distribution's share is reached: step out, then halve to a relative tolerance."""
    log_norm = lax.lgamma(shape + 1.0)
    low = jnp.float32(0.0)
    high = shape
    while gamma_share(shape, high, log_norm) < share:
        low = high
        high = 2.0 * high
    while high - low > tolerance * high:
        middle = 0.5 * (low + high)
        if gamma_share(shape, middle, log_norm) < share:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def gamma_quantile_lax(shape: jax.Array, share: jax.Array, tolerance: jax.Array) -> jax.Array:
    log_norm = lax.lgamma(shape + 1.0)

    def reached(x: jax.Array) -> jax.Array:
        def more(state: Any) -> Any:
            term, total, below = state
            below = below + 1.0
            term = term * x / below
            return term, total + term, below

        start = (jnp.float32(1.0), jnp.float32(1.0), shape)
        _, total, _ = lax.while_loop(lambda state: state[0] > 1e-6 * state[1], more, start)
        return total * jnp.exp(shape * jnp.log(x) - x - log_norm) >= share

    def halve(state: Any) -> Any:
        low, high = state
        middle = 0.5 * (low + high)
        far = reached(middle)
        return jnp.where(far, low, middle), jnp.where(far, middle, high)

    bracket = lax.while_loop(
        lambda state: ~reached(state[1]),
        lambda state: (state[1], 2.0 * state[1]),
        (jnp.float32(0.0), shape),
    )
    low, high = lax.while_loop(
        lambda state: state[1] - state[0] > tolerance * state[1], halve, bracket
    )
    return 0.5 * (low + high)


def gamma_quantile_case(lanes: int, small: bool) -> Case:
    """A small shape puts its quantiles many halvings below it; a large one makes the series long."""
    rng = np.random.default_rng(4)
    shape = np.clip(rng.lognormal(0.5, 1.3, lanes), 0.2, 5.0 if small else 200.0)
    share = rng.uniform(0.02, 0.98, lanes)
    tolerance = 10.0 ** rng.uniform(-5.0, -2.0, lanes)
    arguments = tuple(x.astype(np.float32) for x in (shape, share, tolerance))
    return Case(gamma_quantile, gamma_quantile_lax, arguments, (0, 0, 0), rtol=1e-2, atol=1e-8)


ENTRIES = (
    entry("escape time", escape_time_case, "diverges", "scalar"),
    entry("Collatz", collatz_case, "diverges", "scalar"),
    entry("gcd", coprimes_case, "diverges", "scalar"),
    entry("Newton, hard starts", kepler_case, "diverges", "scalar"),
    entry("bisection, tolerance", gamma_quantile_case, "diverges", "scalar"),
)
