"""BlackJAX's own NUTS, lifted: on Neal's funnel, and on a logistic regression that all lanes share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from control.case import Case, entry
from control.sampling import keys

Density = Callable[[jax.Array], jax.Array]


def funnel(x: jax.Array) -> jax.Array:
    """Neal's funnel: its neck and its mouth want different step sizes."""
    neck, rest = x[0], x[1:]
    return -0.5 * (neck**2 / 9.0 + jnp.sum(rest**2) * jnp.exp(-neck) + rest.size * neck)


def chain(
    key: jax.Array, start: jax.Array, step: jax.Array, density: Density, draws: int, doublings: int
) -> Any:
    """`draws` draws of one chain: where it is, and how many leapfrog steps that took."""
    import blackjax

    kernel = blackjax.nuts.build_kernel()
    mass = jnp.ones(start.shape)

    def draw(state: Any, key: jax.Array) -> tuple[Any, Any]:
        state, info = kernel(key, state, density, step, mass, max_num_doublings=doublings)
        return state, info.num_integration_steps

    state = blackjax.nuts.init(start, density)
    state, leapfrogs = lax.scan(draw, state, random.split(key, draws))
    return state.position, jnp.sum(leapfrogs)


def funnel_case(lanes: int, small: bool) -> Case:
    dimensions, draws, doublings = (3, 2, 3) if small else (10, 10, 8)

    def sample(key: jax.Array, start: jax.Array) -> Any:
        return chain(key, start, jnp.float32(0.2), funnel, draws, doublings)

    arguments = (keys(40, lanes), random.normal(random.key(41), (lanes, dimensions)))
    # A chain that meets one rounding difference at an accept step goes another way for good.
    return Case(sample, sample, arguments, (0, 0), rtol=1e-2, atol=1e-2, agreement=0.5)


def logistic_case(lanes: int, small: bool) -> Case:
    """10,000 rows of 100 features; chains have found different step sizes, so their trees differ."""
    rows, features, draws, doublings = (50, 5, 1, 3) if small else (10_000, 100, 1, 5)
    rng = np.random.default_rng(42)
    data = rng.standard_normal((rows, features)).astype(np.float32) / np.sqrt(features)
    truth = rng.standard_normal(features)
    labels = (rng.uniform(size=rows) < 1 / (1 + np.exp(-data @ truth))).astype(np.float32)

    def sample(
        key: jax.Array, start: jax.Array, step: jax.Array, data: jax.Array, labels: jax.Array
    ) -> Any:
        def density(weights: jax.Array) -> jax.Array:
            logits = data @ weights
            likelihood = jnp.sum(labels * logits - jnp.logaddexp(0.0, logits))
            return likelihood - 0.5 * jnp.sum(weights**2)

        return chain(key, start, step, density, draws, doublings)

    start = truth + 0.3 * rng.standard_normal((lanes, features))
    step = np.clip(0.12 * rng.lognormal(0.0, 0.7, lanes), 0.03, 0.3)
    arguments = (
        keys(43, lanes),
        start.astype(np.float32),
        step.astype(np.float32),
        data,
        labels,
    )
    # As above; long sums over the rows are also taken in another order.
    return Case(
        sample, sample, arguments, (0, 0, 0, None, None), rtol=1e-2, atol=1e-2, agreement=0.5
    )


ENTRIES = (
    entry("NUTS, funnel", funnel_case, "diverges", "small", needs="blackjax"),
    entry("NUTS, logistic regression", logistic_case, "diverges", "matrix", needs="blackjax"),
)
