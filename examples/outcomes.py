"""One bad lane does not spoil the batch: bounds, assertions and outcomes.

A lane that runs out of steps, of stack, or that fails an assertion ends with an outcome. By default that
raises and names the lanes; with `throw=False` the outcomes come back beside everyone else's answers.
"""

from __future__ import annotations

import jax.numpy as jnp

import lanewise as lw


@lw.program
def collatz(n):
    assert n > 0, "only positive numbers have a Collatz sequence"
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


def main() -> None:
    numbers = jnp.array([6, 27, -5, 1])

    answers, outcomes = lw.vmap(collatz, max_steps=100, throw=False)(numbers)
    for number, answer, ok, code in zip(numbers, answers, outcomes.ok(), outcomes.code):
        ending = f"{answer} steps" if ok else lw.Outcome(int(code)).phrase
        print(f"{number:>3}: {ending}")

    try:
        lw.vmap(collatz, max_steps=100)(numbers)
    except lw.errors.LaneError as error:
        print(f"\nwithout throw=False it raises:\n{error}")
    else:
        raise AssertionError("two lanes end badly; this must raise")


if __name__ == "__main__":
    main()
