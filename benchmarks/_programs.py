"""The programs that benchmarks time: each for one example, in `lax` form, with a batch of arguments.

Both contenders get the very same function, `jax.vmap` as it is and Lanewise lifted, unless a subject
names a `peer`: what one would write by hand for `jax.vmap` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True)
class Subject:
    """A function of one example, arguments for a batch, and which of them all lanes share."""

    name: str
    fun: Callable[..., Any]
    arguments: tuple[Any, ...]
    in_axes: tuple[int | None, ...]
    agreement: float = 1.0
    peer: Callable[..., Any] | None = None


def _weights(rng: np.random.Generator, width: int, layers: int) -> np.ndarray:
    scale = 1.0 / np.sqrt(width)
    return (scale * rng.standard_normal((layers, width, width))).astype(np.float32)


def nested_loops(lanes: int, width: int = 128, outer: int = 16) -> Subject:
    """A ragged double loop around a matrix product: every lane has its own trip counts."""

    def fun(x: jax.Array, trips: jax.Array, count: jax.Array, weights: jax.Array) -> jax.Array:
        def inner(carry: Any) -> Any:
            j, x = carry
            return j - 1, jnp.tanh(x @ weights[0] + 0.1)

        def body(i: jax.Array, x: jax.Array) -> jax.Array:
            _, x = lax.while_loop(lambda carry: carry[0] > 0, inner, (trips[i], x))
            return x / (1.0 + jnp.max(jnp.abs(x)))

        return lax.fori_loop(0, count, body, x)

    rng = np.random.default_rng(0)
    trips = np.minimum(rng.geometric(0.3, (lanes, outer)), 20).astype(np.int32)
    count = rng.integers(1, outer + 1, lanes).astype(np.int32)
    x = rng.standard_normal((lanes, width)).astype(np.float32)
    weights = _weights(rng, width, 1)
    return Subject("nested loops, matrix work", fun, (x, trips, count, weights), (0, 0, 0, None))


def expensive_branch(
    lanes: int, width: int = 128, steps: int = 64, odds: int = 32, by_hand: bool = False
) -> Subject:
    """A loop of cheap steps; one lane in `odds` takes an expensive branch at each of them.

    `jax.vmap` of the `cond` copies the weights for every lane. `by_hand` gives it the version of
    someone who knows: both sides computed, then a select, the weights shared.
    """

    def expensive(x: jax.Array, weights: jax.Array) -> jax.Array:
        for layer in weights:
            x = jnp.tanh(x @ layer + 0.1)
        return x

    def cheap(x: jax.Array) -> jax.Array:
        return 0.9 * x + 0.01

    def fun(x: jax.Array, takes: jax.Array, weights: jax.Array) -> jax.Array:
        def step(i: jax.Array, x: jax.Array) -> jax.Array:
            return lax.cond(takes[i], lambda x: expensive(x, weights), cheap, x)

        return lax.fori_loop(0, steps, step, x)

    def peer(x: jax.Array, takes: jax.Array, weights: jax.Array) -> jax.Array:
        def step(i: jax.Array, x: jax.Array) -> jax.Array:
            return jnp.where(takes[i], expensive(x, weights), cheap(x))

        return lax.fori_loop(0, steps, step, x)

    rng = np.random.default_rng(1)
    takes = rng.integers(0, odds, (lanes, steps)) == 0
    x = rng.standard_normal((lanes, width)).astype(np.float32)
    arguments = (x, takes, _weights(rng, width, 4))
    if by_hand:
        return Subject("expensive branch by hand", fun, arguments, (0, 0, None), peer=peer)
    return Subject("expensive branch, few lanes", fun, arguments, (0, 0, None))


def expensive_branch_by_hand(lanes: int) -> Subject:
    return expensive_branch(lanes, by_hand=True)


def scalar_loops(lanes: int) -> Subject:
    """Scalars only: how many numbers below n are coprime to it, by Euclid's algorithm."""

    def fun(n: jax.Array) -> jax.Array:
        def gcd(a: jax.Array, b: jax.Array) -> jax.Array:
            return lax.while_loop(lambda p: p[1] != 0, lambda p: (p[1], p[0] % p[1]), (a, b))[0]

        def body(k: jax.Array, found: jax.Array) -> jax.Array:
            return found + (gcd(n, k) == 1)

        return lax.fori_loop(1, n, body, jnp.int32(0))

    rng = np.random.default_rng(2)
    n = np.minimum(rng.geometric(1 / 150, lanes) + 2, 1000).astype(np.int32)
    return Subject("scalar nested loops", fun, (n,), (0,))


def funnel(x: jax.Array) -> jax.Array:
    """Neal's funnel: the log density."""
    neck, rest = x[0], x[1:]
    return -0.5 * (neck**2 / 9.0 + jnp.sum(rest**2) * jnp.exp(-neck) + rest.size * neck)


def funnel_nuts(lanes: int, dimensions: int = 10, draws: int = 25) -> Subject:
    """BlackJAX's NUTS on Neal's funnel, many draws per chain inside the program."""
    import blackjax

    kernel = blackjax.nuts.build_kernel()

    def fun(key: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
        def draw(state: Any, key: jax.Array) -> tuple[Any, Any]:
            mass = jnp.ones(dimensions)
            state, info = kernel(key, state, funnel, 0.2, mass, max_num_doublings=8)
            return state, info.num_integration_steps

        state = blackjax.nuts.init(start, funnel)
        state, leapfrogs = lax.scan(draw, state, jax.random.split(key, draws))
        return state.position, jnp.sum(leapfrogs)

    keys = jax.random.split(jax.random.key(0), lanes)
    start = jax.random.normal(jax.random.key(1), (lanes, dimensions))
    # A chain that meets one rounding difference at an accept step goes another way for good.
    return Subject("BlackJAX NUTS, Neal's funnel", fun, (keys, start), (0, 0), agreement=0.5)


def fitted_rates(lanes: int, rows: int = 60, groups: int = 8) -> Subject:
    """Counts in groups, fitted by steps uphill that are halved while they lead down: the density at four places."""
    rng = np.random.default_rng(3)
    features = rng.standard_normal((rows, 3)).astype(np.float32)
    group = rng.integers(0, groups, rows)
    counts = rng.poisson(1.5, rows).astype(np.float32)

    def density(x: jax.Array) -> jax.Array:
        mean, spread, slopes, apart = x[0], jnp.exp(x[1]), x[2:5], x[5:]
        rates = (mean + spread * apart)[group] + features @ slopes
        prior = jnp.sum(apart**2) + jnp.sum(slopes**2) + mean**2 / 25.0 + spread**2
        likelihood = jnp.sum(counts * rates - jnp.exp(rates) - lax.lgamma(counts + 1.0))
        return likelihood - 0.5 * prior + x[1]

    ascent = jax.value_and_grad(density)

    def fun(x: jax.Array, tolerance: jax.Array) -> tuple[jax.Array, jax.Array]:
        def better(carry: Any) -> Any:
            turns, x, value, slope, _ = carry

            def halved(trial: Any) -> Any:
                step, *_ = trial
                return 0.5 * step, *ascent(x + 0.5 * step * slope)

            def leads_down(trial: Any) -> jax.Array:
                step, found, _ = trial
                return ~(found >= value) & (step > 1e-4)

            trial = (jnp.float32(0.1), *ascent(x + 0.1 * slope))
            step, found, new = lax.while_loop(leads_down, halved, trial)
            return turns + 1, x + step * slope, found, new, found - value

        def goes_on(carry: Any) -> jax.Array:
            turns, *_, gain = carry
            return (gain > tolerance) & (turns < 500)

        start = (jnp.int32(0), x, *ascent(x), jnp.float32(jnp.inf))
        turns, x, *_ = lax.while_loop(goes_on, better, start)
        return turns, density(x)

    x = (0.3 * rng.standard_normal((lanes, 5 + groups))).astype(np.float32)
    tolerance = np.geomspace(0.1, 1e-4, lanes).astype(np.float32)
    return Subject("a density at four places", fun, (x, tolerance), (0, 0), agreement=0.5)


def van_der_pol(t: Any, y: jax.Array, mu: jax.Array) -> jax.Array:
    """An oscillator's field: the larger `mu`, the stiffer."""
    del t
    return jnp.stack([y[1], mu * (1.0 - y[0] ** 2) * y[1] - y[0]])


def stiff_solve(lanes: int) -> Subject:
    """Diffrax with an adaptive controller on van der Pol oscillators of mixed stiffness."""
    import diffrax

    def fun(mu: jax.Array) -> Any:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(van_der_pol),
            diffrax.Tsit5(),
            t0=0.0,
            t1=4.0,
            dt0=0.05,
            y0=jnp.array([2.0, 0.0]),
            args=mu,
            stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-5),
            max_steps=4096,
            throw=False,
        )
        return solution.ys

    mu = np.geomspace(0.1, 80.0, lanes).astype(np.float32)
    return Subject("Diffrax, mixed stiffness", fun, (mu,), (0,))
