"""StackRNN: a recurrent network with a stack that it pushes to and pops from as it decides (Joulin and Mikolov 2015).

It reads brackets of several kinds, of which the closing ones do not show their kind (`made.brackets`), and says the
kind of each. At every symbol it decides by a value whether to push or to pop, so the instances of a minibatch have
other stacks. It learns which decision was right, and follows its own.

    python examples/models/stack_rnn.py
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import lanewise as lw
import made
import training
from cells import judged, weights

PUSH = 0


def init(width: int) -> dict[str, Any]:
    return weights(
        0,
        symbol_of=(made.KINDS + 1, width),
        step=(3 * width, width),
        bias=(width,),
        push=(width, width),
        act=(width, 2),
        kind=(width, made.KINDS),
    )


@lw.record
class Brackets:
    symbols: list[int]
    kinds: list[int]


@lw.program
def read(p, brackets, at, h, top, found, empty):
    """Reads on from symbol `at` until `top` is popped: where it stopped, its state, how good the answers were.

    To push is to call, to pop is to return: the network's stack is the program's own.
    """
    popped = False
    while at < len(brackets.symbols) and not popped:
        symbol, kind = brackets.symbols[at], brackets.kinds[at]
        h = jnp.tanh(jnp.concatenate([p["symbol_of"][symbol], h, top]) @ p["step"] + p["bias"])
        act, closes = h @ p["act"], symbol == made.CLOSE
        decided = judged(act, closes.astype(int)) * jnp.array([1.0, 0.0, 0.0])
        # What is counted as right is the kind, where a bracket closes.
        found = found + decided + jnp.where(closes, judged(h @ p["kind"], kind), 0.0)
        at += 1
        if jnp.argmax(act) == PUSH:
            pushed = jnp.tanh(h @ p["push"])
            at, h, found = read(p, brackets, at, h, pushed, found, False)
        else:
            popped = not empty
    return at, h, found


@lw.program
def measure(p, brackets):
    zero = jnp.zeros_like(p["bias"])
    return read(p, brackets, 0, zero, zero, jnp.zeros(3), True)[2]


run = lw.vmap(measure, in_axes=(None, 0))


def batch(seed: int, count: int = 32, pairs: tuple[int, int] = (3, 10)) -> list[Any]:
    found = made.brackets(count, seed, pairs)
    return [Brackets([s for s, _ in one], [kind for _, kind in one]) for one in found]


def main(steps: int = 120) -> tuple[float, float]:
    params, _ = training.fit(run, init(32), training.packed(batch), steps)

    def latest(symbols: list[tuple[int, int]]) -> list[bool]:
        """Whether the kind of the last bracket that opened is right, at each that closes."""
        last, found = 0, []
        for symbol, kind in symbols:
            last = symbol if symbol < made.CLOSE else last
            found += [last == kind] if symbol == made.CLOSE else []
        return found

    guess = float(
        np.mean([x for symbols in made.brackets(500, 10_000, (3, 10)) for x in latest(symbols)])
    )
    right = training.report(
        "StackRNN", run, params, lw.pack(batch(10_000)), ("the last bracket opened", guess)
    )
    return right, guess


if __name__ == "__main__":
    main()
