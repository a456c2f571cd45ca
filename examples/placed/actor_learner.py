"""An actor and a learner in one program: a world at one place, the network that acts in it and learns at another.

A step of the loop: the network looks and acts, the world moves on, what was seen goes into a replay buffer, and every
`EVERY` steps the network learns from a sample of the buffer. All of it is compiled, the decision to learn too: places
exchange an action and an observation for each step, and nothing else. Buffer and weights never leave the network's
place; the world does not know when it learns.

The game is Catch: a ball falls, and a paddle below is moved left or right to be under it. The network is a deep
Q-network (Mnih et al. 2015).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from where import places, same, show  # isort: skip

import jax
import jax.numpy as jnp

import lanewise as lw

ROWS, COLUMNS, ACTIONS, WIDTH = 8, 5, 3, 32
ROOM, BATCH, EVERY = 1024, 64, 4


# -- the world --------------------------------------------------------------------------------------


class World(NamedTuple):
    row: jax.Array
    column: jax.Array
    paddle: jax.Array
    key: jax.Array


def fresh(key: jax.Array) -> World:
    key, ball, paddle = jax.random.split(key, 3)
    column, own = (jax.random.randint(k, (), 0, COLUMNS) for k in (ball, paddle))
    return World(jnp.int32(0), column, own, key)


def seen(world: World) -> jax.Array:
    board = jnp.zeros((ROWS, COLUMNS)).at[world.row, world.column].set(1.0)
    return board.at[ROWS - 1, world.paddle].add(-1.0).ravel()


def move(world: World, action: jax.Array) -> Any:
    """The world after an action, what is seen of it, the reward, and whether a game has ended."""
    paddle = jnp.clip(world.paddle + action - 1, 0, COLUMNS - 1)
    world = world._replace(row=world.row + 1, paddle=paddle)
    ended = world.row == ROWS - 1
    reward = jnp.where(ended, jnp.where(world.column == paddle, 1.0, -1.0), 0.0)
    world = jax.lax.cond(ended, fresh, lambda key: world, world.key)
    return world, seen(world), reward, ended


# -- the network ------------------------------------------------------------------------------------


class Replay(NamedTuple):
    """What was seen: a ring of steps."""

    before: jax.Array
    action: jax.Array
    reward: jax.Array
    ended: jax.Array
    after: jax.Array


def remembered(replay: Replay, t: Any, step: Replay) -> Replay:
    return jax.tree.map(lambda kept, new: kept.at[t % ROOM].set(new), replay, step)


def values(p: Any, x: jax.Array) -> jax.Array:
    """What each action is worth."""
    return jax.nn.relu(x @ p[0] + p[1]) @ p[2]


def act(p: Any, x: jax.Array, key: jax.Array, t: Any) -> jax.Array:
    """The best action; at the beginning often another."""
    first, second = jax.random.split(key)
    best, other = jnp.argmax(values(p, x)), jax.random.randint(first, (), 0, ACTIONS)
    curious = jnp.maximum(0.05, 1.0 - t / 1000.0)
    return jnp.where(jax.random.uniform(second) < curious, other, best)


def learn(p: Any, replay: Replay, key: jax.Array, t: Any) -> Any:
    """Weights after a step on a sample of the buffer."""
    rows = jax.random.randint(key, (BATCH,), 0, jnp.minimum(t + 1, ROOM))
    sample = Replay(*(x[rows] for x in replay))
    future = jnp.where(sample.ended, 0.0, jnp.max(values(p, sample.after), 1))

    def error(p: Any) -> jax.Array:
        said = jnp.take_along_axis(values(p, sample.before), sample.action[:, None], 1)[:, 0]
        return jnp.mean((sample.reward + 0.9 * future - said) ** 2)

    return jax.tree.map(lambda w, g: w - 0.5 * g, p, jax.grad(error)(p))


# -- both -------------------------------------------------------------------------------------------


@lw.program
def play(p, replay, key, steps: int):
    world = lw.placed(fresh, "world")(key)
    x = lw.placed(seen, "world")(world)
    games, wins = jnp.zeros(20), jnp.zeros(20)
    for t in range(steps):
        with lw.on("network"):
            key, acting, learning = jax.random.split(key, 3)
            action = act(p, x, acting, t)
        world, after, reward, ended = lw.placed(move, "world")(world, action)
        with lw.on("network"):
            replay = remembered(replay, t, Replay(x, action, reward, ended, after))
            games = games.at[20 * t // steps].add(ended)
            wins = wins.at[20 * t // steps].add(reward > 0)
            x = after
            if t % EVERY == 0:
                p = learn(p, replay, learning, t)
    return p, games, wins


def init(key: jax.Array) -> Any:
    first, second = jax.random.split(key)
    inputs = ROWS * COLUMNS
    return (
        jax.random.normal(first, (inputs, WIDTH)) / jnp.sqrt(inputs),
        jnp.zeros(WIDTH),
        jax.random.normal(second, (WIDTH, ACTIONS)) / jnp.sqrt(WIDTH),
    )


def nothing_seen() -> Replay:
    boards = jnp.zeros((ROOM, ROWS * COLUMNS))
    rewards, ended = jnp.zeros(ROOM), jnp.zeros(ROOM, bool)
    return Replay(boards, jnp.zeros(ROOM, jnp.int32), rewards, ended, boards)


def main(steps: int = 6000) -> tuple[float, float]:
    """The share of games won at the beginning and at the end."""
    world, network = places(2)
    run = lw.run(play, {"world": world, "network": network})
    given = init(jax.random.key(0)), nothing_seen(), jax.random.key(1), steps
    show(run.dry_run(*given), "\n")

    found = jax.device_get(run(*given))
    same(found, jax.jit(play)(*given))
    _, games, wins = found
    won = [wins[i : i + 4].sum() / games[i : i + 4].sum() for i in range(0, 20, 4)]
    show("games won:", ", ".join(f"{share:.0%}" for share in won))
    return float(won[0]), float(won[-1])


if __name__ == "__main__":
    main()
