"""Search: backtracking, games, grids, automata."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from programs.case import Case, constant, flags, inputs, ints


@lw.program
def knapsack(weights, values, item, room):
    if item == weights.shape[0]:
        return jnp.int32(0)
    best = knapsack(weights, values, item + 1, room)
    if weights[item] <= room:
        taken = values[item] + knapsack(weights, values, item + 1, room - weights[item])
        best = jnp.maximum(best, taken)
    return best


def knapsack_lax(weights, values, item, room):
    """The table that dynamic programming fills for the same answer."""
    rooms = jnp.arange(20, dtype=jnp.int32)

    def body(i, best):
        taken = values[i] + best[jnp.maximum(rooms - weights[i], 0)]
        better = jnp.where(weights[i] <= rooms, jnp.maximum(best, taken), best)
        return jnp.where(i >= item, better, best)

    return lax.fori_loop(0, weights.shape[0], body, jnp.zeros(20, jnp.int32))[room]


@lw.program
def queens(n, row, columns, rising, falling):
    """Placements of `n` queens, by bit masks: a loop in each call, a call in each iteration."""
    if row == n:
        return 1
    count = 0
    free = ((1 << n) - 1) & ~(columns | rising | falling)
    while free != 0:
        bit = free & -free
        free = free ^ bit
        count += queens(n, row + 1, columns | bit, (rising | bit) << 1, (falling | bit) >> 1)
    return count


@lw.program
def subset_sum(numbers, i, target):
    """The second call is made only if the first one fails: recursion on both sides of `or`."""
    if target == 0:
        return True
    if i == numbers.shape[0] or target < 0:
        return False
    return subset_sum(numbers, i + 1, target - numbers[i]) or subset_sum(numbers, i + 1, target)


@lw.program
def nim_wins(a, b):
    """Whether the player to move wins: any move to a lost position will do."""
    for take in range(1, 4):
        if take <= a and not nim_wins(a - take, b):
            return True
        if take <= b and not nim_wins(a, b - take):
            return True
    return False


def nim_wins_lax(a, b):
    return (a % 4) != (b % 4)


@lw.program
def alpha_beta(scores, node, depth, alpha, beta):
    """Negamax over a complete three-way tree; a cut-off breaks the loop over moves."""
    if depth == 0:
        return scores[node % scores.shape[0]]
    best = jnp.int32(-1000)
    for move in range(3):
        value = -alpha_beta(scores, 3 * node + move + 1, depth - 1, -beta, -alpha)
        best = jnp.maximum(best, value)
        alpha = jnp.maximum(alpha, value)
        if alpha >= beta:
            break
    return best


@lw.program
def flood_fill(grid, i, j):
    """Empties the region around a cell and counts it; the grid is threaded through the calls."""
    size = grid.shape[0]
    if i < 0 or j < 0 or i >= size or j >= size or not grid[i, j]:
        return grid, jnp.int32(0)
    grid = grid.at[i, j].set(False)
    count = jnp.int32(1)
    for di, dj in ((0, 1), (1, 0), (0, -1), (-1, 0)):
        grid, more = flood_fill(grid, i + di, j + dj)
        count += more
    return grid, count


@lw.program
def life_until_stable(board):
    """Conway's game on a torus, until nothing changes or twelve generations have passed."""
    age = jnp.int32(0)
    changed = True
    while changed and age < 12:
        new = _generation(board)
        changed = jnp.any(new != board)
        board = new
        age += 1
    return board, age


def _generation(board):
    rows = board + jnp.roll(board, 1, 0) + jnp.roll(board, -1, 0)
    around = rows + jnp.roll(rows, 1, 1) + jnp.roll(rows, -1, 1) - board
    alive = (around == 3) | ((around == 2) & (board == 1))
    return alive.astype(board.dtype)


def life_until_stable_lax(board):
    def body(state):
        board, age, _ = state
        new = _generation(board)
        return new, age + 1, jnp.any(new != board)

    start = (board, jnp.int32(0), jnp.array(True))
    return lax.while_loop(lambda s: s[2] & (s[1] < 12), body, start)[:2]


@lw.program
def failure_search(text, pattern):
    """Knuth, Morris and Pratt: build the failure table, then find the first match."""
    size = pattern.shape[0]
    table = jnp.zeros(size, jnp.int32)
    k = jnp.int32(0)
    for i in range(1, size):
        while k > 0 and pattern[i] != pattern[k]:
            k = table[k - 1]
        if pattern[i] == pattern[k]:
            k += 1
        table = table.at[i].set(k)
    k = jnp.int32(0)
    for i in range(text.shape[0]):
        while k > 0 and text[i] != pattern[k]:
            k = table[k - 1]
        if text[i] == pattern[k]:
            k += 1
        if k == size:
            return i - size + 1
    return -1


def failure_search_lax(text, pattern):
    size = pattern.shape[0]
    starts = jnp.arange(text.shape[0] - size + 1)
    windows = text[starts[:, None] + jnp.arange(size)[None, :]]
    hits = jnp.all(windows == pattern, axis=1)
    return jnp.where(jnp.any(hits), jnp.argmax(hits), -1).astype(jnp.int32)


AUTOMATON = np.array([[1, 0, 0], [1, 2, 0], [1, 0, 3], [3, 3, 3]], np.int8)


@lw.program
def automaton(table, text):
    """Runs a table of states, shared by all lanes, until it accepts."""
    state = jnp.int8(0)
    read = jnp.int32(0)
    for letter in text:
        state = table[state, letter]
        read += 1
        if state == 3:
            break
    return state, read


def automaton_lax(table, text):
    def body(s):
        state, read = s
        return table[state, text[jnp.minimum(read, text.shape[0] - 1)]], read + 1

    def unfinished(s):
        return (s[0] != 3) & (s[1] < text.shape[0])

    return lax.while_loop(unfinished, body, (jnp.int8(0), jnp.int32(0)))


@lw.program
def edit_distance(a, b, length_a, length_b):
    row = jnp.arange(b.shape[0] + 1, dtype=jnp.int32)
    for i in range(length_a):
        diagonal = row[0]
        row = row.at[0].set(i + 1)
        for j in range(length_b):
            above = row[j + 1]
            if a[i] == b[j]:
                best = diagonal
            else:
                best = 1 + jnp.minimum(diagonal, jnp.minimum(above, row[j]))
            row = row.at[j + 1].set(best)
            diagonal = above
    return row[length_b]


def edit_distance_lax(a, b, length_a, length_b):
    def column(i):
        def body(j, state):
            row, diagonal = state
            above = row[j + 1]
            changed = 1 + jnp.minimum(diagonal, jnp.minimum(above, row[j]))
            best = jnp.where(a[i] == b[j], diagonal, changed)
            return row.at[j + 1].set(best), above

        return body

    def line(i, row):
        return lax.fori_loop(0, length_b, column(i), (row.at[0].set(i + 1), row[0]))[0]

    start = jnp.arange(b.shape[0] + 1, dtype=jnp.int32)
    return lax.fori_loop(0, length_a, line, start)[length_b]


@lw.program
def playout(board, player, moves):
    """Noughts and crosses with the moves given: skip taken cells, stop at a line of three."""
    lines = jnp.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8]])
    played = jnp.int32(0)
    for cell in moves:
        if board[cell] != 0:
            continue
        board = board.at[cell].set(player)
        played += 1
        for line in lines:
            a, b, c = board[line[0]], board[line[1]], board[line[2]]
            if a == player and a == b == c:
                return board, played, player
        player = -player
    return board, played, jnp.int8(0)


def _sums(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    numbers = rng.integers(1, 9, (n, 6)).astype(np.int32)
    return numbers, np.zeros(n, np.int32), rng.integers(0, 40, n).astype(np.int32)


def _sacks(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    weights, values = rng.integers(1, 8, (2, n, 5)).astype(np.int32)
    return weights, values, rng.integers(0, 6, n, dtype=np.int32), rng.integers(0, 20, n, np.int32)


def _texts(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    text = rng.integers(0, 2, (n, 20)).astype(np.int8)
    pattern = rng.integers(0, 2, (n, 5)).astype(np.int8)
    return text, pattern


def _windows(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    zero = np.zeros(n, np.int32)
    scores = rng.integers(-20, 21, (n, 29)).astype(np.int32)
    depth = rng.integers(0, 4, n).astype(np.int32)
    return scores, zero, depth, zero - 999, zero + 999


def _boards(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    moves = np.argsort(rng.random((n, 9)), axis=1).astype(np.int32)
    return rng.choice([0, 0, 0, 1, -1], (n, 9)).astype(np.int8), np.ones(n, np.int8), moves


CASES = (
    Case("knapsack", knapsack, _sacks, lax_form=knapsack_lax, recursive=True),
    Case(
        "queens",
        queens,
        inputs(ints(1, 5), *[lambda rng, n: np.zeros(n, np.int32)] * 4),
        recursive=True,
    ),
    Case("subset_sum", subset_sum, _sums, recursive=True),
    Case(
        "nim_wins",
        nim_wins,
        inputs(ints(0, 4), ints(0, 3)),
        lax_form=nim_wins_lax,
        recursive=True,
    ),
    Case("alpha_beta", alpha_beta, _windows, recursive=True),
    Case(
        "flood_fill",
        flood_fill,
        inputs(flags(4, 4, p=0.6), ints(0, 3), ints(0, 3)),
        recursive=True,
        heavy=True,
    ),
    Case(
        "life_until_stable",
        life_until_stable,
        lambda rng, n: ((rng.random((n, 6, 6)) < rng.uniform(0, 0.6, (n, 1, 1))).astype(np.int8),),
        lax_form=life_until_stable_lax,
    ),
    Case("failure_search", failure_search, _texts, lax_form=failure_search_lax),
    Case(
        "automaton",
        automaton,
        inputs(constant(AUTOMATON), ints(0, 2, 24)),
        in_axes=(None, 0),
        lax_form=automaton_lax,
    ),
    Case(
        "edit_distance",
        edit_distance,
        inputs(ints(0, 3, 6), ints(0, 3, 6), ints(0, 6), ints(0, 6)),
        lax_form=edit_distance_lax,
    ),
    Case("playout", playout, _boards),
)
