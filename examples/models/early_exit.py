"""A transformer encoder that stops at the layer where it is sure, trained at all of its exits.

An instance is a bag of symbols, and the answer is the one that occurs most often. In most instances it is far ahead,
which is clear after a layer or two; where two symbols are close the encoder uses all of its layers. Every layer has the
same classifier behind it, and all exits are trained together (BranchyNet, Teerapittayanon et al. 2016; depth-adaptive
transformers, Elbayad et al. 2020).

The encoder is written for one instance, as a loop with a `break`. The weights of all layers are stacked and shared by
all lanes; lanes that are at the same layer run together.

    python examples/models/early_exit.py [steps]
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import lanewise as lw

Params = dict[str, jax.Array]
HEADS = 4


class Sizes(NamedTuple):
    """Tokens of an instance, their width, layers, and classes: the symbols."""

    tokens: int = 16
    width: int = 64
    layers: int = 6
    classes: int = 12


# -- instances -------------------------------------------------------------------------------------


def instances(seed: int, count: int, sizes: Sizes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Symbols `[count, tokens]`, the most frequent ones, and by how much they lead; there is no tie."""
    rng = np.random.default_rng(seed)
    skew = rng.lognormal(0.3, 0.8, (2 * count, 1))
    odds = np.exp(skew * rng.standard_normal((2 * count, sizes.classes)))
    bounds = np.cumsum(odds / odds.sum(1, keepdims=True), axis=1)
    drawn = rng.random((2 * count, sizes.tokens))
    symbols = (drawn[..., None] > bounds[:, None, :-1]).sum(-1).astype(np.int32)
    counts = (symbols[..., None] == np.arange(sizes.classes)).sum(1)
    ordered = np.sort(counts, axis=1)
    lead = ordered[:, -1] - ordered[:, -2]
    chosen = np.flatnonzero(lead > 0)[:count]
    return symbols[chosen], counts.argmax(1)[chosen].astype(np.int32), lead[chosen]


# -- the model -------------------------------------------------------------------------------------


def initial(key: jax.Array, sizes: Sizes) -> Params:
    layers, width = sizes.layers, sizes.width
    shapes = {
        "symbols": (sizes.classes, width),
        "qkv": (layers, width, 3 * width),
        "out": (layers, width, width),
        "up": (layers, width, 4 * width),
        "down": (layers, 4 * width, width),
        "exit": (width, sizes.classes),
    }
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(k, shape) / np.sqrt(shape[-2])
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def norm(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


LAYER = ("qkv", "out", "up", "down")


def layer(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """One layer over the tokens of one instance."""
    tokens, width = x.shape
    parts = jnp.split(norm(x) @ weights["qkv"], 3, axis=-1)
    q, k, v = (part.reshape(tokens, HEADS, -1).swapaxes(0, 1) for part in parts)
    seen = jax.nn.softmax(jnp.einsum("hnd,hmd->hnm", q, k) * (width // HEADS) ** -0.5)
    mixed = jnp.einsum("hnm,hmd->hnd", seen, v).swapaxes(0, 1).reshape(tokens, width)
    x = x + mixed @ weights["out"]
    return x + jax.nn.gelu(norm(x) @ weights["up"]) @ weights["down"]


def embedded(params: Params, tokens: jax.Array) -> jax.Array:
    return params["symbols"][tokens]


def answer_at(params: Params, x: jax.Array) -> jax.Array:
    return norm(x.mean(0)) @ params["exit"]


@lw.program
def classify(params, tokens, certainty):
    """The class, how sure, and how many layers it took."""
    x = embedded(params, tokens)
    best, used = 0, 0
    sure = jnp.zeros((), x.dtype)
    for i in range(params["qkv"].shape[0]):
        x = layer({name: params[name][i] for name in LAYER}, x)
        odds = jax.nn.softmax(answer_at(params, x))
        best, sure = jnp.argmax(odds).astype(jnp.int32), jnp.max(odds)
        used += 1
        if sure > certainty:
            break
    return best, sure, used


def at_all_exits(params: Params, tokens: jax.Array) -> jax.Array:
    """What each layer's exit would say, `[layers, classes]`."""

    def through(x: jax.Array, weights: dict[str, jax.Array]) -> Any:
        x = layer(weights, x)
        return x, answer_at(params, x)

    return lax.scan(through, embedded(params, tokens), {name: params[name] for name in LAYER})[1]


# -- training --------------------------------------------------------------------------------------

BATCH = 64


def trained(sizes: Sizes, steps: int, show: Callable[[str], Any] = print) -> Params:
    """Weights after some steps of Adam on the sum of the losses at all exits."""
    tokens, answers, _ = map(jnp.asarray, instances(0, 20_000, sizes))
    optimizer = optax.adam(optax.cosine_decay_schedule(2e-3, max(steps, 1)))

    def loss(params: Params, tokens: jax.Array, answers: jax.Array) -> jax.Array:
        found = jax.vmap(functools.partial(at_all_exits, params))(tokens)
        wanted = jnp.broadcast_to(answers[:, None], found.shape[:2])
        return optax.softmax_cross_entropy_with_integer_labels(found, wanted).mean()

    @functools.partial(jax.jit, static_argnums=3, donate_argnums=(0, 1))
    def some_steps(params: Params, state: Any, key: jax.Array, count: int) -> Any:
        def step(carry: Any, key: jax.Array) -> Any:
            params, state = carry
            chosen = jax.random.randint(key, (BATCH,), 0, len(answers))
            value, grads = jax.value_and_grad(loss)(params, tokens[chosen], answers[chosen])
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), value

        (params, state), values = lax.scan(step, (params, state), jax.random.split(key, count))
        return params, state, values

    params = initial(jax.random.key(0), sizes)
    state = optimizer.init(params)
    parts = 4 if steps >= 4 else 1
    for part in range(parts):
        key = jax.random.fold_in(jax.random.key(1), part)
        params, state, values = some_steps(params, state, key, steps // parts)
        show(f"step {(part + 1) * (steps // parts)}: loss {float(values[-20:].mean()):.3f}")
    return params


def main(steps: int = 160) -> None:
    sizes = Sizes()
    params = trained(sizes, steps)
    tokens, answers, lead = instances(1, 512, sizes)
    for certainty in (0.7, 0.9, 2.0):
        sure = jnp.float32(certainty)
        best, _, used = lw.vmap(classify, in_axes=(None, 0, None))(params, tokens, sure)
        by_lead = [f"{np.mean(used[lead == n]):.1f}" for n in (1, 2, 4, 8)]
        print(
            f"certainty {certainty}: {np.mean(best == answers):.0%} right with {np.mean(used):.2f} of {sizes.layers}"
            f" layers; where the answer leads by 1, 2, 4, 8: {', '.join(by_lead)}"
        )
    served = lw.stream(
        lambda x: classify(params, x, np.float32(0.9)), tokens, lanes=32, ordered=True
    )
    right = [int(best) == answer for (_, (best, _, _)), answer in zip(served, answers, strict=True)]
    print(f"streamed: {np.mean(right):.0%} right")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
