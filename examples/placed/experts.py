"""A mixture of experts: each has a place, where its weights stay; a token goes to the expert that is chosen for it.

A router reads a token and picks an expert, as in the Switch Transformer (Fedus et al. 2021): the answer is scaled by
the router's probability, through which the router learns. The index is computed in the program, so which place works
on which token is known only as it runs. A place that is not chosen gets the outcome of the choice, and no token.

`lw.placed` takes a sequence of functions, one an expert: each holds its own weights, and in the gradient its own
adjoints, at its own place.

The task: the plane is cut into quarters, and each has a linear map of its own. One linear map cannot learn that.
"""

from __future__ import annotations

import functools
from typing import Any

from where import places, same, show  # isort: skip

import jax
import jax.numpy as jnp

import lanewise as lw

EXPERTS, WIDTH, TOKENS = 4, 16, 32


def init(key: jax.Array) -> dict[str, Any]:
    first, *keys = jax.random.split(key, 1 + EXPERTS)
    experts = []
    for own in keys:
        a, b = jax.random.split(own)
        experts.append((jax.random.normal(a, (2, WIDTH)), 0.3 * jax.random.normal(b, (WIDTH, 2))))
    return {"router": 0.1 * jax.random.normal(first, (2, EXPERTS)), "experts": experts}


def expert(p: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ p[0]) @ p[1]


def route(p: jax.Array, x: jax.Array, key: jax.Array) -> Any:
    """Which expert, its probability, and those of all. Noise lets the router try others."""
    shares = jax.nn.softmax(x @ p)
    noise = 0.3 * jax.random.gumbel(key, (EXPERTS,))
    chosen = jnp.argmax(jnp.log(shares) + noise)
    return chosen, shares[chosen], shares


def loss(params: dict[str, Any], tokens: Any) -> Any:
    """The mean error of tokens that come one after the other, and how many each expert got."""

    def one(carry: Any, token: Any) -> Any:
        x, right, key = token
        chosen, share, shares = lw.placed(route, "router")(params["router"], x, key)
        runs = [functools.partial(expert, p) for p in params["experts"]]
        y = share * lw.placed(runs, "expert", chosen)(x)
        with lw.on("router"):
            error = jnp.sum((y - right) ** 2)
            got = jax.nn.one_hot(chosen, EXPERTS)
        return carry, (error, got, shares)

    _, (errors, got, shares) = jax.lax.scan(one, 0, tokens)
    with lw.on("router"):
        # Fedus et al.: without this term the router may leave experts out for good.
        balance = EXPERTS * jnp.sum(jnp.mean(got, 0) * jnp.mean(shares, 0))
        return jnp.mean(errors) + 0.02 * balance, (jnp.mean(errors), jnp.sum(got, 0))


def tokens_of(key: jax.Array) -> Any:
    """Points of the plane, what is right for each, and a key for each."""
    a, b = jax.random.split(key)
    x = jax.random.uniform(a, (TOKENS, 2), minval=-1.0)
    maps = jnp.array([[[2, 0], [0, 1]], [[0, -1], [1, 0]], [[-1, 1], [0, 2]], [[0, 1], [-2, 0]]])
    quarter = 2 * (x[:, 0] > 0) + (x[:, 1] > 0)
    right = jnp.einsum("ti,tij->tj", x, maps[quarter].astype(x.dtype))
    return x, right, jax.random.split(b, TOKENS)


def train(params: dict[str, Any], keys: jax.Array) -> Any:
    """Weights after a step for each key, the errors, and how many tokens each expert got."""

    def step(carry: Any, key: jax.Array) -> Any:
        params, moments = carry
        with lw.on("router"):
            tokens = tokens_of(key)
        (_, seen), slope = jax.value_and_grad(loss, has_aux=True)(params, tokens)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, slope)
        return (jax.tree.map(lambda p, m: p - 0.02 * m, params, moments), moments), seen

    start = params, jax.tree.map(jnp.zeros_like, params)
    (params, _), (errors, got) = jax.lax.scan(step, start, keys)
    return params, errors, got


def main(steps: int = 300) -> tuple[float, float]:
    """The error that is reached, and that of one linear map."""
    at = places(EXPERTS)
    run = lw.run(train, {"router": at[0], "expert": at})
    params, keys = init(jax.random.key(0)), jax.random.split(jax.random.key(1), steps)
    show(run.dry_run(params, keys[:1]), "\n")

    _, errors, got = jax.device_get(run(params, keys))
    for step in range(0, steps, max(steps // 6, 1)):
        show(f"step {step:4}: error {errors[step]:.3f}, tokens of each expert {got[step]}")

    few = min(steps, 5)
    same((errors[:few], got[:few]), jax.jit(train)(params, keys[:few])[1:])
    x, right, _ = jax.vmap(tokens_of)(keys)
    x, right = x.reshape(-1, 2), right.reshape(-1, 2)
    linear = jnp.mean(jnp.sum((x @ jnp.linalg.lstsq(x, right)[0] - right) ** 2, 1))
    reached = errors[-20:].mean()
    show(f"the last steps: {reached:.3f}; one linear map: {linear:.3f}")
    return float(reached), float(linear)


if __name__ == "__main__":
    main()
