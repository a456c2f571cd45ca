"""Cells and weights that several models use: plain functions of arrays, for one row."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def weights(seed: int, **shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    """Weights by name. A matrix keeps the size of what it is multiplied with, a vector is zero, and what is named
    `words` or ends in `_of` is a table of vectors."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes.items():
        table = name == "words" or name.endswith("_of")
        scale = 0.0 if len(shape) == 1 else 0.5 if table else 1 / np.sqrt(shape[-2])
        found[name] = jnp.asarray(scale * rng.standard_normal(shape), jnp.float32)
    return found


def lstm_weights(seed: int, given: int, width: int) -> dict[str, jax.Array]:
    return weights(seed, w=(given + width, 4 * width), b=(4 * width,))


def lstm(params: dict[str, Any], x: Any, h: Any, c: Any) -> tuple[Any, Any]:
    i, f, o, u = jnp.split(jnp.concatenate([x, h]) @ params["w"] + params["b"], 4)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def judged(logits: Any, label: Any) -> Any:
    """`[loss, right, 1]` of a choice: sums of these over choices give a mean loss and an accuracy."""
    loss = jax.nn.logsumexp(logits) - logits[label]
    return jnp.stack([loss, (jnp.argmax(logits) == label) * 1.0, jnp.ones_like(loss)])
