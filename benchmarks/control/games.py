"""A board game played out at random: Connect Four, from positions in the middle of a game."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

import lanewise as lw
from control.case import Case, entry
from control.sampling import keys

ROWS, COLUMNS = 6, 7
WAYS = ((0, 1), (1, 0), (1, 1), (1, -1))


def draw_column(key: jax.Array, free: jax.Array) -> jax.Array:
    """One of the columns that have a place left."""
    is_open = free > 0
    pick = random.uniform(key, (), jnp.float32) * jnp.sum(is_open)
    return jnp.argmax(jnp.cumsum(is_open) > pick).astype(jnp.int32)


@lw.program
def stones_along(board, player, row, column, down, across):
    """How many stones of the player follow on each other in one direction."""
    count = 0
    row = row + down
    column = column + across
    while 0 <= row < ROWS and 0 <= column < COLUMNS and board[row, column] == player:
        count += 1
        row = row + down
        column = column + across
    return count


@lw.program
def wins(board, player, row, column):
    """Whether the stone just set makes four in a row."""
    for down, across in WAYS:
        there = stones_along(board, player, row, column, down, across)
        if there + stones_along(board, player, row, column, -down, -across) >= 3:
            return True
    return False


@lw.program
def playouts(key, position, games):
    """How the player to move fares in games played at random, and how many plies that took."""
    score = jnp.int32(0)
    plies = 0
    for game in range(games):
        game_key = random.fold_in(key, game)
        board = position
        free = jnp.sum(board == 0, axis=0)
        player = jnp.int32(1)
        for ply in range(jnp.sum(free)):
            column = draw_column(random.fold_in(game_key, ply), free)
            row = free[column] - 1
            board = board.at[row, column].set(player)
            plies += 1
            if wins(board, player, row, column):
                score = score + player
                break
            free = free.at[column].set(row)
            player = -player
    return score, plies


def four_in_a_row(mine: Any) -> Any:
    """Over the last two axes: shifted copies of the board, four stones wide."""
    rows, columns = mine[..., :-3, :], mine[..., :, :-3]
    down = rows & mine[..., 1:-2, :] & mine[..., 2:-1, :] & mine[..., 3:, :]
    across = columns & mine[..., :, 1:-2] & mine[..., :, 2:-1] & mine[..., :, 3:]
    falling = (
        mine[..., :-3, :-3] & mine[..., 1:-2, 1:-2] & mine[..., 2:-1, 2:-1] & mine[..., 3:, 3:]
    )
    rising = mine[..., 3:, :-3] & mine[..., 2:-1, 1:-2] & mine[..., 1:-2, 2:-1] & mine[..., :-3, 3:]
    axes = (-2, -1)
    return down.any(axes) | across.any(axes) | falling.any(axes) | rising.any(axes)


def playouts_lax(key: jax.Array, position: jax.Array, games: jax.Array) -> Any:
    def play(game: jax.Array, state: Any) -> Any:
        score, plies = state
        game_key = random.fold_in(key, game)

        def turn(state: Any) -> Any:
            board, free, player, ply, _ = state
            column = draw_column(random.fold_in(game_key, ply), free)
            row = free[column] - 1
            board = board.at[row, column].set(player)
            won = four_in_a_row(board == player)
            free = free.at[column].set(row)
            return board, free, jnp.where(won, player, -player), ply + 1, won

        def going(state: Any) -> jax.Array:
            _, free, _, _, won = state
            return ~won & jnp.any(free > 0)

        free = jnp.sum(position == 0, axis=0)
        start = (position, free, jnp.int32(1), jnp.int32(0), jnp.bool_(False))
        _, _, winner, ply, won = lax.while_loop(going, turn, start)
        return score + jnp.where(won, winner, 0), plies + ply

    return lax.fori_loop(0, games, play, (jnp.int32(0), jnp.int32(0)))


def middle_games(rng: np.random.Generator, lanes: int) -> np.ndarray:
    """Positions after 0 to 24 plies in which no player has won, the player to move being 1."""
    board = np.zeros((lanes, ROWS, COLUMNS), np.int32)
    wanted = rng.integers(0, 13, lanes) * 2
    lane = np.arange(lanes)
    for ply in range(24):
        player = 1 if ply % 2 == 0 else -1
        column = rng.integers(0, COLUMNS, lanes)
        row = (board[lane, :, column] == 0).sum(axis=1) - 1
        legal = (ply < wanted) & (row >= 0)
        new = board.copy()
        new[lane[legal], row[legal], column[legal]] = player
        legal &= ~four_in_a_row(new == player)
        board[legal] = new[legal]
    return board


def playouts_case(lanes: int, small: bool) -> Case:
    """As a tree search hands out its budget: most positions get few games, good ones many."""
    rng = np.random.default_rng(70)
    games = np.minimum(1.0 + rng.pareto(1.2, lanes), 2 if small else 24).astype(np.int32)
    return Case(
        playouts, playouts_lax, (keys(70, lanes), middle_games(rng, lanes), games), (0, 0, 0)
    )


ENTRIES = (entry("board-game playout", playouts_case, "diverges", "small"),)
