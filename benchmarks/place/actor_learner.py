"""An actor and a learner over two devices: as one placed program, and as a loop of the host over compiled functions.

The actor moves a pole by a small network and starts again when it falls. Each step goes into the learner's replay
buffer; every few steps the learner draws a minibatch, makes a step of Q-learning, and sends its weights to the actor.

The host's form is written for speed: a compiled function for a step, one for a row of the buffer, one for a row and a
step of learning; the buffer is donated; copies between devices and all calls are asynchronous, and the decision to
learn is made from a number that the host knows, so nothing waits until the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

import lanewise as lw

HIDDEN, CAPACITY, MINIBATCH, EVERY = 32, 1024, 32, 8
SEEN, ACTIONS = 4, 2
# What was seen, what was done, the reward, whether it ended, what is seen next.
ROW = 2 * SEEN + 3


def start() -> tuple[Any, Callable[[Any], Any]]:
    """The weights as one vector, and how to read them from it."""
    random = np.random.default_rng(0)

    def layer(rows: int, columns: int) -> Any:
        return jnp.asarray(random.normal(size=(rows, columns)) / np.sqrt(rows), jnp.float32)

    return ravel_pytree([layer(SEEN, HIDDEN), layer(HIDDEN, HIDDEN), layer(HIDDEN, ACTIONS)])


WEIGHTS, _LAYERS = start()


def values(weights: Any, seen: Any) -> Any:
    w0, w1, w2 = _LAYERS(weights)
    return jax.nn.relu(jax.nn.relu(seen @ w0) @ w1) @ w2


def swing(seen: Any, action: Any) -> Any:
    """A step of the pole's motion."""
    _, dx, angle, turn = seen
    force = jnp.where(action == 1, 10.0, -10.0)
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    pull = (force + 0.05 * turn**2 * sine) / 1.1
    bend = (9.8 * sine - cosine * pull) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
    push = pull - 0.05 * bend * cosine / 1.1
    return seen + 0.02 * jnp.stack([dx, push, turn, bend])


def act(weights: Any, seen: Any, key: Any) -> tuple[Any, Any, Any]:
    """A step: what is seen next, the next key, and the row for the buffer."""
    key, explore, which, again = jax.random.split(key, 4)
    action = jnp.where(
        jax.random.uniform(explore) < 0.1,
        jax.random.randint(which, (), 0, ACTIONS),
        jnp.argmax(values(weights, seen)),
    )
    after = swing(seen, action)
    fell = (jnp.abs(after[0]) > 2.4) | (jnp.abs(after[2]) > 0.2)
    one = jnp.float32(1)
    row = jnp.concatenate([seen, jnp.stack([action * one, one, fell * one]), after])
    fresh = 0.05 * jax.random.normal(again, (SEEN,))
    return jnp.where(fell, fresh, after), key, row


def keep(buffer: Any, row: Any, i: Any) -> Any:
    return lax.dynamic_update_index_in_dim(buffer, row, i % CAPACITY, 0)


def learn(weights: Any, buffer: Any, key: Any, i: Any) -> tuple[Any, Any]:
    """A step of learning from a minibatch."""
    key, draw = jax.random.split(key)
    rows = buffer[jax.random.randint(draw, (MINIBATCH,), 0, jnp.minimum(i + 1, CAPACITY))]
    seen, action, reward, fell, after = jnp.split(rows, (SEEN, SEEN + 1, SEEN + 2, SEEN + 3), 1)

    def error(weights: Any) -> Any:
        later = lax.stop_gradient(values(weights, after).max(axis=1))
        target = reward[:, 0] + 0.99 * (1 - fell[:, 0]) * later
        chosen = jnp.where(action[:, 0] == 1, *values(weights, seen).T[::-1])
        return jnp.mean((chosen - target) ** 2)

    return weights - 1e-3 * jax.grad(error)(weights), key


def begin() -> tuple[Any, Any, Any, Any, Any]:
    keys = jax.random.split(jax.random.key(0))
    return WEIGHTS, jnp.zeros(SEEN), jnp.zeros((CAPACITY, ROW)), keys[0], keys[1]


# -- one placed program -----------------------------------------------------------------------------


def program(steps: Any, weights: Any, seen: Any, buffer: Any, key: Any, draws: Any) -> Any:
    acts, keeps = lw.placed(act, "actor"), lw.placed(keep, "learner")
    learns, takes = lw.placed(learn, "learner"), lw.placed(lambda w: w * 1, "actor")

    def turn(carry: Any) -> Any:
        i, mine, seen, key, weights, buffer, draws = carry
        seen, key, row = acts(mine, seen, key)
        buffer = keeps(buffer, row, i)

        def learned(weights: Any, draws: Any, mine: Any) -> Any:
            del mine
            weights, draws = learns(weights, buffer, draws, i)
            return weights, draws, takes(weights)

        weights, draws, mine = lax.cond(
            i % EVERY == EVERY - 1, learned, lambda *same: same, weights, draws, mine
        )
        return i + 1, mine, seen, key, weights, buffer, draws

    first = (jnp.int32(0), weights, seen, key, weights, buffer, draws)
    found = lax.while_loop(lambda carry: carry[0] < steps, turn, first)
    return found[4], found[2]


def compiled_control(places: Any) -> Callable[[int], Any]:
    run = lw.run(program, places)
    return lambda steps: jax.block_until_ready(run(np.int32(steps), *begin()))


# -- a loop of the host -----------------------------------------------------------------------------


def host_control(actor: Any, learner: Any) -> Callable[[int], Any]:
    acts = jax.jit(act)
    keeps = jax.jit(keep, donate_argnums=0)

    @functools.partial(jax.jit, donate_argnums=1)
    def keeps_and_learns(weights: Any, buffer: Any, row: Any, key: Any, i: Any) -> Any:
        buffer = keep(buffer, row, i)
        return *learn(weights, buffer, key, i), buffer

    def run(steps: int) -> Any:
        weights, seen, buffer, key, draws = begin()
        mine, seen, key = jax.device_put((weights, seen, key), actor)
        weights, buffer, draws = jax.device_put((weights, buffer, draws), learner)
        for i in range(steps):
            seen, key, row = acts(mine, seen, key)
            row = jax.device_put(row, learner)
            if i % EVERY == EVERY - 1:
                weights, draws, buffer = keeps_and_learns(weights, buffer, row, draws, np.int32(i))
                mine = jax.device_put(weights, actor)
            else:
                buffer = keeps(buffer, row, np.int32(i))
        return jax.block_until_ready((weights, seen))

    return run
