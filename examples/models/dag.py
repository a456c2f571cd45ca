"""Message passing over the levels of a graph without cycles: which gates of a circuit are on.

A gate adds up the messages of what it reads, and changes its state by a GRU (Thost and Chen 2021, DAGNN). A gate that
several others read is computed once (`made.circuits`).

It is written twice, as a program and in plain Python around an op. The program is faster where rows are short: nothing
of it is left to Python. In plain Python, gates of one depth run together, over all circuits: a program that keeps rows
in an array, at places that it computes, is not taken apart like that.

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


def gate(p: Any, kind: Any, h: Any, label: Any) -> tuple[Any, Any]:
    """What a gate sends to those that read it, made of the sum of what it reads; and `[loss, right, 1]`."""
    x = p["gate_of"][kind]
    z, r = jnp.split(jax.nn.sigmoid(jnp.concatenate([x, h]) @ p["gates"] + p["gates_bias"]), 2)
    h = z * h + (1 - z) * jnp.tanh(jnp.concatenate([x, r * h]) @ p["change"])
    return jnp.tanh(h @ p["message"]), judged(h @ p["out"], label)


@lw.record
class Gate:
    kind: int
    reads: list[int]
    label: int


@lw.record
class Circuit:
    gates: list[Gate]


@lw.program
def measure(p, circuit):
    """As a program: what was sent is in an array, with room for the largest circuit."""
    sent = jnp.zeros((made.MOST_GATES, p["message"].shape[0]))
    found = jnp.zeros(3)
    for i in range(len(circuit.gates)):
        one = circuit.gates[i]
        h = jnp.zeros(sent.shape[1])
        for j in one.reads:
            h += sent[j]
        message, here = gate(p, one.kind, h, one.label)
        sent = sent.at[i].set(message)
        found += here
    return found


run = lw.vmap(measure, in_axes=(None, 0))


@lw.op
def received(p: Any, kind: Any, messages: Any, label: Any) -> Any:
    return gate(p, kind, sum(messages, jnp.zeros(p["message"].shape[0])), label)


def lazily(p: dict[str, Any], circuit: Circuit) -> Any:
    """As plain Python around an op: what was sent is in a list of any length."""
    sent, found = [], []
    for one in circuit.gates:
        message, here = received(p, one.kind, [sent[j] for j in one.reads], one.label)
        sent.append(message)
        found.append(here)
    return lw.lazy_sum(found)


def batch(seed: int, count: int = 32, **sizes: Any) -> list[Any]:
    circuits = made.circuits(count, seed, **sizes)
    return [Circuit([Gate(k, list(r), label) for k, r, label in gates]) for gates in circuits]


def main(steps: int = 150) -> tuple[float, float]:
    params, _ = training.fit(run, init(32), training.packed(batch), steps)

    def pairs(seed: int) -> list[tuple[Any, int]]:
        # A gate, and of how many it reads.
        return [
            ((kind, len(r)), bit) for gates in made.circuits(300, seed) for kind, r, bit in gates
        ]

    kinds = training.most_common(pairs(30_000), pairs(10_000))
    right = training.report(
        "messages over a DAG",
        run,
        params,
        lw.pack(batch(10_000)),
        ("the kind of gate alone", kinds),
    )
    return right, kinds


if __name__ == "__main__":
    main()
