"""StackRNN: a recurrent network with a stack that it pushes to and pops from as it decides (Joulin and Mikolov 2015).

It reads brackets of several kinds, of which the closing ones do not show their kind (`made.brackets`), and says the
kind of each. At every symbol it decides by a value whether to push or to pop: the stack is a Python list, and the
instances of a minibatch have other stacks. It learns which decision was right, and follows its own.

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

PUSH, POP = 0, 1


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


@lw.op
def step(p: Any, symbol: Any, h: Any, top: Any, kind: Any, found: Any) -> Any:
    """The new state, what would be pushed, the decision, and how good the answers so far are."""
    x = p["symbol_of"][symbol]
    h = jnp.tanh(jnp.concatenate([x, h, top]) @ p["step"] + p["bias"])
    act, closes = h @ p["act"], jnp.asarray(symbol) == made.CLOSE
    decided = judged(act, closes.astype(int)) * jnp.array([1.0, 0.0, 0.0])
    # What is counted as right is the kind, where a bracket closes.
    judgement = jnp.where(closes, judged(h @ p["kind"], kind), 0.0)
    return h, jnp.tanh(h @ p["push"]), jnp.argmax(act), found + decided + judgement


def measure(p: dict[str, Any], symbols: list[tuple[int, int]]) -> Any:
    zero = np.zeros(p["bias"].shape, np.float32)
    h, stack, found = zero, [], np.zeros(3, np.float32)
    for symbol, kind in symbols:
        h, pushed, act, found = step(p, symbol, h, stack[-1] if stack else zero, kind, found)
        if act.item() == PUSH:
            stack.append(pushed)
        elif stack:
            stack.pop()
    return found


def batch(seed: int, count: int = 32, pairs: tuple[int, int] = (3, 10)) -> list[Any]:
    return made.brackets(count, seed, pairs)


def main(steps: int = 120) -> tuple[float, float]:
    params, _ = training.fit(measure, init(32), batch, steps)

    def latest(symbols: list[tuple[int, int]]) -> list[bool]:
        """Whether the kind of the last bracket that opened is right, at each that closes."""
        last, found = 0, []
        for symbol, kind in symbols:
            last = symbol if symbol < made.CLOSE else last
            found += [last == kind] if symbol == made.CLOSE else []
        return found

    guess = float(np.mean([x for symbols in batch(10_000, 500) for x in latest(symbols)]))
    right = training.report(
        "StackRNN", measure, params, batch(10_000), ("the last bracket opened", guess)
    )
    return right, guess


if __name__ == "__main__":
    main()
