"""Message passing over the levels of a graph without cycles: which gates of a circuit are on.

A gate adds up the messages of what it reads, and changes its state by a GRU (Thost and Chen 2021, DAGNN). A gate that
several others read is computed once; all gates of one depth run together, over all circuits (`made.circuits`).

    python examples/models/dag.py
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import lanewise as lw
import made
import training
from cells import judged, weights


def init(width: int) -> dict[str, Any]:
    return weights(
        0,
        gate_of=(len(made.GATES), width),
        message=(width, width),
        gates=(2 * width, 2 * width),
        gates_bias=(2 * width,),
        change=(2 * width, width),
        out=(width, 2),
    )


@lw.op
def node(p: Any, gate: Any, reads: Any, label: Any) -> Any:
    x = p["gate_of"][gate]
    h = sum((jnp.tanh(r @ p["message"]) for r in reads), jnp.zeros_like(x))
    z, r = jnp.split(jax.nn.sigmoid(jnp.concatenate([x, h]) @ p["gates"] + p["gates_bias"]), 2)
    h = z * h + (1 - z) * jnp.tanh(jnp.concatenate([x, r * h]) @ p["change"])
    return h, judged(h @ p["out"], label)


def measure(p: dict[str, Any], circuit: list[Any]) -> Any:
    states: list[Any] = []
    found = []
    for gate, reads, label in circuit:
        state, here = node(p, gate, [states[i] for i in reads], label)
        states.append(state)
        found.append(here)
    return lw.lazy_sum(found)


def batch(seed: int, count: int = 32, **sizes: Any) -> list[Any]:
    return made.circuits(count, seed, **sizes)


def main(steps: int = 150) -> tuple[float, float]:
    params, _ = training.fit(measure, init(32), batch, steps)

    def pairs(seed: int) -> list[tuple[Any, int]]:
        # A gate, and of how many it reads.
        return [((gate, len(r)), bit) for nodes in batch(seed, 300) for gate, r, bit in nodes]

    kinds = training.most_common(pairs(30_000), pairs(10_000))
    right = training.report(
        "messages over a DAG", measure, params, batch(10_000), ("the kind of gate alone", kinds)
    )
    return right, kinds


if __name__ == "__main__":
    main()
