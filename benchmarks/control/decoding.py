"""Decoding: beam search with early stop, and speculative accept/reject loops.

The language model is a table of next-token logits, shared by all lanes; token 0 ends a sequence.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

import lanewise as lw
from control.case import Case, entry
from control.sampling import keys

END = 0
WORST = -1e30

# -- beam search -----------------------------------------------------------------------------------


def extend(tokens: Any, scores: Any, last: Any, t: Any, shyness: Any, table: Any) -> Any:
    """One step of all beams: the best way to end here, and the best beams that go on."""
    logits = table[last].at[:, END].add(-shyness)
    candidates = scores[:, None] + jax.nn.log_softmax(logits)
    ending = jnp.argmax(candidates[:, END])
    ended = candidates[ending, END], tokens[ending]
    going = candidates.at[:, END].set(WORST).reshape(-1)
    scores, chosen = lax.top_k(going, tokens.shape[0])
    parents, last = chosen // table.shape[0], chosen % table.shape[0]
    return ended, (tokens[parents].at[:, t].set(last), scores, last)


@lw.program
def beam_search(first, shyness, blank, table):
    """Stops as soon as no beam can overtake the best sequence that has ended."""
    tokens = blank
    scores = jnp.full(blank.shape[0], WORST).at[0].set(0.0)
    last = jnp.full(blank.shape[0], first)
    best = jnp.float32(WORST)
    answer = blank[0]
    t = 0
    while t < blank.shape[1]:
        (score, sequence), (tokens, scores, last) = extend(tokens, scores, last, t, shyness, table)
        t += 1
        if score > best:
            best = score
            answer = sequence
        if best >= scores[0]:
            break
    return best, answer, t


def beam_search_lax(
    first: jax.Array, shyness: jax.Array, blank: jax.Array, table: jax.Array
) -> Any:
    def step(state: Any) -> Any:
        tokens, scores, last, best, answer, t = state
        (score, sequence), (tokens, scores, last) = extend(tokens, scores, last, t, shyness, table)
        better = score > best
        answer = jnp.where(better, sequence, answer)
        return tokens, scores, last, jnp.maximum(score, best), answer, t + 1

    def going(state: Any) -> jax.Array:
        _, scores, _, best, _, t = state
        return (t < blank.shape[1]) & (best < scores[0])

    scores = jnp.full(blank.shape[0], WORST).at[0].set(0.0)
    last = jnp.full(blank.shape[0], first)
    start = (blank, scores, last, jnp.float32(WORST), blank[0], jnp.int32(0))
    _, _, _, best, answer, t = lax.while_loop(going, step, start)
    return best, answer, t


def beam_search_case(lanes: int, small: bool) -> Case:
    """The shyer a lane is of ending, the longer it goes on."""
    vocabulary, beams, longest = (8, 2, 4) if small else (32, 4, 48)
    rng = np.random.default_rng(80)
    arguments = (
        rng.integers(1, vocabulary, lanes).astype(np.int32),
        np.minimum(rng.exponential(3.0, lanes), 20.0).astype(np.float32),
        np.zeros((beams, longest), np.int32),
        (2.0 * rng.standard_normal((vocabulary, vocabulary))).astype(np.float32),
    )
    # Sums of logarithms that tie but for rounding may change places.
    return Case(
        beam_search, beam_search_lax, arguments, (0, 0, None, None), 1e-3, 1e-3, agreement=0.98
    )


# -- speculative decoding --------------------------------------------------------------------------

AHEAD = 4


def guess_ahead(key: jax.Array, token: jax.Array, draft: jax.Array, warmth: jax.Array) -> Any:
    """The draft model's next tokens, and its probabilities of all tokens at each place."""
    guesses, odds = [], []
    for i in range(AHEAD):
        logits = warmth * draft[token]
        token = random.categorical(random.fold_in(key, i), logits)
        guesses.append(token)
        odds.append(jax.nn.softmax(logits))
    return jnp.stack(guesses), jnp.stack([*odds, jnp.zeros_like(odds[0])])


@lw.program
def speculate(key, first, blank, draft, target, warmth):
    """A draft model guesses ahead; guesses are kept while the target model would have drawn them."""
    text = blank
    token = first
    count = 0
    rounds = 0
    while count < blank.shape[0] - AHEAD and token != END:
        rounds += 1
        key, k1, k2, k3 = random.split(key, 4)
        guesses, odds = guess_ahead(k1, token, draft, warmth)
        wanted = jax.nn.softmax(target[jnp.append(token, guesses)])
        chances = random.uniform(k2, (AHEAD,), jnp.float32)
        kept = 0
        while kept < AHEAD and token != END:
            guess = guesses[kept]
            if chances[kept] * odds[kept, guess] >= wanted[kept, guess]:
                break
            token = guess
            text = text.at[count].set(token)
            count += 1
            kept += 1
        if token != END:
            left_over = jnp.maximum(wanted[kept] - odds[kept], 1e-20)
            token = random.categorical(k3, jnp.log(left_over))
            text = text.at[count].set(token)
            count += 1
    return text, count, rounds


def speculate_lax(
    key: jax.Array,
    first: jax.Array,
    blank: jax.Array,
    draft: jax.Array,
    target: jax.Array,
    warmth: jax.Array,
) -> Any:
    places = jnp.arange(AHEAD + 1)

    def turn(state: Any) -> Any:
        key, token, text, count, rounds = state
        key, k1, k2, k3 = random.split(key, 4)
        guesses, odds = guess_ahead(k1, token, draft, warmth)
        wanted = jax.nn.softmax(target[jnp.append(token, guesses)])
        chances = random.uniform(k2, (AHEAD,), jnp.float32)
        at = (places[:AHEAD], guesses)
        kept = jnp.sum(jnp.cumprod(chances * odds[at] < wanted[at]))
        left_over = jnp.maximum(wanted[kept] - odds[kept], 1e-20)
        spare = random.categorical(k3, jnp.log(left_over))
        line = jnp.append(guesses, 0).at[kept].set(spare)
        last = jnp.min(jnp.where((line == END) & (places < kept), places, kept))
        where = jnp.where(places <= last, count + places, blank.shape[0])
        text = text.at[where].set(line, mode="drop")
        return key, line[last], text, count + last + 1, rounds + 1

    def going(state: Any) -> jax.Array:
        _, token, _, count, _ = state
        return (count < blank.shape[0] - AHEAD) & (token != END)

    start = (key, first, blank, jnp.int32(0), jnp.int32(0))
    _, _, text, count, rounds = lax.while_loop(going, turn, start)
    return text, count, rounds


def speculate_case(lanes: int, small: bool) -> Case:
    """Sequences end by chance; a lane whose draft is colder or warmer than the target keeps less."""
    vocabulary, longest = (8, 6 + AHEAD) if small else (64, 96 + AHEAD)
    rng = np.random.default_rng(81)
    target = 1.5 * rng.standard_normal((vocabulary, vocabulary))
    target[:, END] -= 0.5
    draft = target + 0.7 * rng.standard_normal(target.shape)
    arguments = (
        keys(81, lanes),
        rng.integers(1, vocabulary, lanes).astype(np.int32),
        np.zeros(longest, np.int32),
        draft.astype(np.float32),
        target.astype(np.float32),
        rng.lognormal(0.0, 0.4, lanes).astype(np.float32),
    )
    # A draw within rounding of the border between two tokens takes the other one.
    return Case(speculate, speculate_lax, arguments, (0, 0, None, None, None, 0), agreement=0.98)


ENTRIES = (
    entry("beam search, early stop", beam_search_case, "diverges", "small"),
    entry("speculative decoding", speculate_case, "diverges", "small"),
)
