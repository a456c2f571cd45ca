"""Training that all models but the first share: fresh minibatches, Adam, the loss shown as it falls.

A model is a function of weights and a minibatch that gives `[loss, right, of]` for each instance, summed over the
choices made there (`cells.judged`): a program under `lw.vmap`, or plain Python under `lw.lazy_map`. The weights are any
pytree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import lanewise as lw

Model = Callable[[Any, Any], Any]


def packed(batch: Callable[[int], Sequence[Any]]) -> Callable[[int], Any]:
    """Minibatches of records as arrays of one size, which grows where one does not fit: few compilations."""
    largest = None

    def ready(seed: int) -> Any:
        nonlocal largest
        largest = lw.pack(batch(seed), like=largest)
        return largest

    return ready


@jax.jit
def means(found: Any) -> Any:
    """The mean loss of all choices, and the share that is right."""
    loss, right, of = jnp.sum(found, 0)
    return loss / of, right / of


def fit(
    model: Model,
    params: Any,
    batch: Callable[[int], Any],
    steps: int,
    rate: float = 0.01,
    show: int = 10,
) -> tuple[Any, list[float]]:
    """Weights after training, and the loss of each step. `batch(seed)` makes a minibatch."""
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, max(steps, 1), 0.1))
    state = optimizer.init(params)

    @jax.jit
    def updated(params: Any, state: Any, grads: Any) -> Any:
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state

    gradient = jax.value_and_grad(lambda p, given: means(model(p, given)), has_aux=True)
    losses = []
    for step in range(steps):
        (loss, right), grads = gradient(params, batch(step))
        params, state = updated(params, state, grads)
        losses.append(float(loss))
        if show and (step % max(1, steps // show) == 0 or step == steps - 1):
            print(f"  step {step:4d}: loss {loss:.3f}, right {right:.1%}", flush=True)
    return params, losses


def report(
    name: str,
    model: Model,
    params: Any,
    held_out: Any,
    baseline: tuple[str, float],
) -> float:
    """Print how a trained model does on instances it has not seen, beside a baseline; gives its accuracy."""
    loss, right = means(model(params, held_out))
    print(
        f"{name}: loss {loss:.3f}, right {right:.1%} on {len(held_out)} fresh instances;"
        f" {baseline[0]}: {baseline[1]:.1%}"
    )
    return float(right)


def most_common(pairs: Sequence[tuple[Any, int]], fresh: Sequence[tuple[Any, int]]) -> float:
    """The share of `fresh` pairs right by the label that each key has most often in `pairs`."""
    counts: dict[Any, dict[int, int]] = {}
    for key, label in pairs:
        of = counts.setdefault(key, {})
        of[label] = of.get(label, 0) + 1
    best = {key: max(of, key=lambda label: of[label]) for key, of in counts.items()}
    default = int(np.bincount([label for _, label in pairs]).argmax())
    return float(np.mean([best.get(key, default) == label for key, label in fresh]))


def bag_of_words(
    bags: Sequence[Sequence[int]],
    labels: Sequence[int],
    fresh: Sequence[Sequence[int]],
    fresh_labels: Sequence[int],
    words: int,
) -> float:
    """The accuracy of a linear model of word counts on fresh bags, trained until it changes no more."""

    def counted(bags: Sequence[Sequence[int]]) -> Any:
        return jnp.asarray(
            np.stack([np.bincount(bag, minlength=words) for bag in bags]), jnp.float32
        )

    x, y = counted(bags), jnp.asarray(labels)

    def loss(w: Any) -> Any:
        logits = x @ w
        return jnp.mean(jax.nn.logsumexp(logits, 1) - logits[jnp.arange(len(y)), y])

    def step(_: Any, carry: Any) -> Any:
        w, state = carry
        updates, state = optimizer.update(jax.grad(loss)(w), state)
        return optax.apply_updates(w, updates), state

    optimizer = optax.adam(0.05)
    w = jnp.zeros((words, int(y.max()) + 1))
    w, _ = jax.lax.fori_loop(0, 400, step, (w, optimizer.init(w)))
    return float(jnp.mean(jnp.argmax(counted(fresh) @ w, 1) == jnp.asarray(fresh_labels)))


def plot(path: str, losses: Sequence[float], rights: Sequence[float], baseline: float) -> None:
    """Draw a training run: the loss, and the accuracy beside that of a baseline."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.0, 3.0), layout="constrained")
    left.plot(losses, color="#2f5d8a")
    left.set_ylabel("loss of a phrase")
    smooth = np.convolve(rights, np.ones(5) / 5, mode="valid")
    right.plot(np.arange(len(smooth)) + 2, smooth, color="#2f5d8a", label="Tree-LSTM")
    right.axhline(baseline, color="#b5482f", linestyle="--", label="bag of words, trained")
    right.set_ylabel("share of roots right")
    right.set_ylim(0.0, 1.0)
    right.legend(loc="lower right", frameon=False)
    for axes in (left, right):
        axes.set_xlabel("step, of 64 fresh trees")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
