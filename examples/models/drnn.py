"""DRNN: a tree grown from the top (Alvarez-Melis and Jaakkola 2017, doubly recurrent networks).

A model gets a symbol and a depth, and grows the tree that the rules make of it (`made.plants`): at each node it
decides, by values, whether the node has children and whether it has another sibling. A node's state is made of its
parent's and of its sibling's before it. In training it grows as much of the right tree as it decides to: what it leaves
out it does not learn that time. Free growth is what counts at the end.

    python examples/models/drnn.py
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import lanewise as lw
import made
import training
from cells import judged, weights

MOST_NODES = 100


def init(width: int) -> dict[str, Any]:
    p = weights(
        0,
        symbol_of=(made.SYMBOLS, width),
        depth_of=(made.DEPTHS[1], width),
        down=(2 * width, width),
        across=(2 * width, width),
        node=(2 * width, width),
        label=(width, made.SYMBOLS),
        stops=(width, 4),
        stops_bias=(4,),
    )
    # It begins by growing on rather than by stopping.
    return {**p, "stops_bias": jnp.array([0.0, 2.0, 0.0, 1.0])}


@lw.op
def plan(p: Any, symbol: Any, depth: Any) -> Any:
    return jnp.tanh(p["symbol_of"][symbol] + p["depth_of"][depth])


@lw.op
def node(p: Any, above: Any, above_is: Any, beside: Any, beside_is: Any) -> Any:
    """A state of the parent's and of the sibling's; the symbol, and whether there are children and more siblings."""
    down = jnp.tanh(jnp.concatenate([above, p["symbol_of"][above_is]]) @ p["down"])
    across = jnp.tanh(jnp.concatenate([beside, p["symbol_of"][beside_is]]) @ p["across"])
    h = jnp.tanh(jnp.concatenate([down, across]) @ p["node"])
    stops = h @ p["stops"] + p["stops_bias"]
    logits = h @ p["label"]
    answer = jnp.stack([jnp.argmax(logits), stops[1] > stops[0], stops[3] > stops[2]])
    return h, answer.astype(jnp.int32), logits, stops


@lw.op
def compare(logits: Any, stops: Any, label: Any, children: Any, more: Any) -> Any:
    found = judged(logits, label) + judged(stops[:2], children) + judged(stops[2:], more)
    # All three decisions are one: right if all are.
    return jnp.stack([found[0], (found[1] == 3.0) * 1.0, found[2] / 3.0])


def measure(p: dict[str, Any], instance: tuple[int, int, made.Plant]) -> Any:
    """Along the right tree, as far as the model goes on."""
    symbol, depth, tree = instance
    zero = np.zeros(p["symbol_of"].shape[1], np.float32)
    total = None
    # All nodes that can be decided now are recorded before one is asked for.
    edge = [(tree, [], plan(p, symbol, depth), symbol, zero, 0)]
    while edge:
        grown = [(one, *node(p, *one[2:])) for one in edge]
        edge, found = [], [] if total is None else [total]
        for (right, siblings, above, above_is, _, _), h, answer, logits, stops in grown:
            found.append(
                compare(logits, stops, right.symbol, int(bool(right.children)), int(bool(siblings)))
            )
            _, children, more = np.asarray(answer).tolist()
            if children and right.children:
                first, *rest = right.children
                edge.append((first, rest, h, right.symbol, zero, 0))
            if more and siblings:
                edge.append((siblings[0], siblings[1:], above, above_is, h, right.symbol))
        total = lw.lazy_sum(found)
    return total


def grow(p: dict[str, Any], symbol: int, depth: int) -> list[Any]:
    """What the model makes of a symbol: a list of nodes `[symbol, numbers of children]`."""
    zero = np.zeros(p["symbol_of"].shape[1], np.float32)
    nodes: list[Any] = []
    edge = [(None, plan(p, symbol, depth), symbol, zero, 0)]
    while edge and len(nodes) < MOST_NODES:
        grown = [(one, *node(p, *one[1:])) for one in edge]
        edge = []
        for (parent, above, above_is, _, _), h, answer, _, _ in grown:
            label, children, more = np.asarray(answer).tolist()
            nodes.append([label, []])
            if parent is not None:
                nodes[parent][1].append(len(nodes) - 1)
            if children:
                edge.append((len(nodes) - 1, h, label, zero, 0))
            if more and parent is not None:
                edge.append((parent, above, above_is, h, label))
    return nodes


def same(nodes: list[Any], tree: made.Plant, at: int = 0) -> bool:
    label, children = nodes[at]
    return (
        label == tree.symbol
        and len(children) == len(tree.children)
        and all(same(nodes, t, c) for c, t in zip(children, tree.children, strict=True))
    )


def batch(seed: int, count: int = 32) -> list[Any]:
    return made.plants(count, seed)


def main(steps: int = 200) -> tuple[float, float]:
    params, _ = training.fit(measure, init(32), batch, steps)
    fresh = batch(10_000, 64)
    right = lw.lazy_map(lambda one: float(same(grow(params, *one[:2]), one[2])), fresh).mean()
    alone = float(np.mean([not tree.children for *_, tree in fresh]))
    print(f"DRNN: {right:.1%} of {len(fresh)} trees grown right; a single node: {alone:.1%}")
    return float(right), alone


if __name__ == "__main__":
    main()
