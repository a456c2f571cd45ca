"""The gradient, by the table, of nested loops that gather from a table of a million numbers.

    python -m ad.gathers     (in benchmarks/; `python benchmarks/array_operators.py` runs it too)

JAX's reverse of a loop in a loop makes an adjoint as large as the table in each iteration of the outer one. Nested maps
and reductions of `lw.arrays` read all at once, and their adjoint is one histogram. The same loops written with
`lax.fori_loop` are the peer (where an outer loop's iterations are independent, `jax.vmap` helps JAX as a map does).

The second claim is a map of small loops, each following the table from where it got to.

Any such gradient is a new table of zeros but for the places read, which is timed too: as many additions into zeros.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from _harness import Claim, compile_seconds, medians, report

SIZE = 10**6
OUTER, INNER = 96, 32


def place(i: Any, j: Any) -> Any:
    """Where in the table, scattered all over it."""
    return (i * 7919 + j * 104729 + i * j * 31) % SIZE


def ours(table: Any) -> Any:
    def row(i: Any) -> Any:
        reads = lw.arrays.map(lambda j: jnp.sin(table[place(i, j)]), jnp.arange(INNER))
        return lw.arrays.reduce(jnp.add, reads) ** 2

    return lw.arrays.reduce(jnp.add, lw.arrays.map(row, jnp.arange(OUTER)))


def in_loops(table: Any) -> Any:
    def row(i: Any, total: Any) -> Any:
        def read(j: Any, sum_: Any) -> Any:
            return sum_ + jnp.sin(table[place(i, j)])

        return total + lax.fori_loop(0, INNER, read, jnp.float32(0)) ** 2

    return lax.fori_loop(0, OUTER, row, jnp.float32(0))


def follow(table: Any, start: Any) -> Any:
    """A small loop: where it reads next depends on what it has read."""

    def step(j: Any, state: Any) -> Any:
        at, value = state
        read = table[at]
        at = (at * 31 + j * 7919 + jnp.where(read > 0, 17, 104729)) % SIZE
        return at, jnp.tanh(value * read + value)

    return lax.fori_loop(0, INNER, step, (start, jnp.float32(0.1)))[1]


def starts() -> Any:
    return (jnp.arange(OUTER) * 7919) % SIZE


def ours_following(table: Any) -> Any:
    ends = lw.arrays.map(lambda s: follow(table, s), starts())
    return lw.arrays.reduce(jnp.add, ends)


def following_in_loops(table: Any) -> Any:
    first = starts()
    return lax.fori_loop(0, OUTER, lambda i, t: t + follow(table, first[i]), jnp.float32(0))


def least(table: Any) -> Any:
    """What any gradient by the table must do: write all of it, and add at the places read."""
    places = place(jnp.arange(OUTER)[:, None], jnp.arange(INNER)).ravel()
    return jnp.zeros_like(table).at[places].add(table[: places.size])


def measure(repeats: int = 15) -> list[Claim]:
    table = jnp.asarray(np.random.default_rng(0).normal(size=SIZE), jnp.float32)
    claims: list[Claim] = []
    pairs = {
        f"{OUTER} × {INNER} reads from a table of 10^6": (ours, in_loops),
        f"{OUTER} loops of {INNER} dependent reads": (ours_following, following_in_loops),
    }
    for name, (mine, theirs) in pairs.items():
        compiled = {}
        for who, function in (("ours", mine), ("jax", theirs)):
            compiled[who], seconds = compile_seconds(jax.grad(function), (table,))
            print(f"{name}, {who}: gradient compiled in {seconds:.2f} s", flush=True)
        np.testing.assert_allclose(
            compiled["ours"](table), compiled["jax"](table), rtol=1e-3, atol=1e-5
        )
        compiled["least"], _ = compile_seconds(least, (table,))
        took = medians(compiled, (table,), repeats)
        shown = ", ".join(f"{who} {1e3 * seconds:.3f} ms" for who, seconds in took.items())
        print(f"{name}: {shown}", flush=True)
        claims.append(
            Claim(f"gradient of {name}, beside JAX's loops", took["ours"], took["jax"], ">= 10")
        )
        # Against 0.3 ms, whatever JAX takes.
        claims.append(Claim(f"gradient of {name}, over 0.3 ms", took["ours"], 3e-4, "<= 1"))
    return claims


if __name__ == "__main__":
    report(measure())
