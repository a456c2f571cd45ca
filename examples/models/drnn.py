"""DRNN: a tree grown from the top (Alvarez-Melis and Jaakkola 2017, doubly recurrent networks).

A model gets a symbol and a depth, and grows the tree that the rules make of it (`made.plants`): at each node it
decides, by values, whether the node has children and whether it has another sibling. A node's state is made of its
parent's and of its sibling's before it. In training it grows as much of the right tree as it decides to: what it leaves
out it does not learn that time. Free growth is what counts at the end.

The training is a program, whose branches are on values. Free growth makes Python lists, and is recorded lazily.

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


def plan(p: Any, symbol: Any, depth: Any) -> Any:
    return jnp.tanh(p["symbol_of"][symbol] + p["depth_of"][depth])


def node(p: Any, above: Any, above_is: Any, beside: Any, beside_is: Any) -> Any:
    """A state of the parent's and of the sibling's, scores of symbols, and of whether there are children and more
    siblings."""
    down = jnp.tanh(jnp.concatenate([above, p["symbol_of"][above_is]]) @ p["down"])
    across = jnp.tanh(jnp.concatenate([beside, p["symbol_of"][beside_is]]) @ p["across"])
    h = jnp.tanh(jnp.concatenate([down, across]) @ p["node"])
    return h, h @ p["label"], h @ p["stops"] + p["stops_bias"]


@lw.record
class Plant:
    symbol: int
    child: Plant | None
    sibling: Plant | None


@lw.record
class Task:
    symbol: int
    depth: int
    tree: Plant


@lw.program
def follow(p, right, above, above_is, beside, beside_is):
    """Along the right tree, as far as the model goes on: `[loss, right, 1]` summed over the nodes."""
    h, logits, stops = node(p, above, above_is, beside, beside_is)
    children, more = right.child is not None, right.sibling is not None
    found = judged(logits, right.symbol)
    found += judged(stops[:2], children * 1) + judged(stops[2:], more * 1)
    # All three decisions are one: right if all are.
    found = jnp.stack([found[0], (found[1] == 3.0) * 1.0, found[2] / 3.0])
    if children and stops[1] > stops[0]:
        found += follow(p, right.child, h, right.symbol, jnp.zeros_like(h), 0)
    if more and stops[3] > stops[2]:
        found += follow(p, right.sibling, above, above_is, h, right.symbol)
    return found


@lw.program
def measure(p, task):
    start = plan(p, task.symbol, task.depth)
    return follow(p, task.tree, start, task.symbol, jnp.zeros_like(start), 0)


run = lw.vmap(measure, in_axes=(None, 0))


@lw.op
def answer(p: Any, *given: Any) -> Any:
    """A state, and `[symbol, children, more siblings]`."""
    h, logits, stops = node(p, *given)
    found = jnp.stack([jnp.argmax(logits), stops[1] > stops[0], stops[3] > stops[2]])
    return h, found.astype(jnp.int32)


start = lw.op(plan)


def grow(p: dict[str, Any], symbol: int, depth: int) -> list[Any]:
    """What the model makes of a symbol, in plain Python: a list of nodes `[symbol, numbers of children]`.

    All nodes that can be decided now are recorded before one is asked for.
    """
    zero = np.zeros(p["symbol_of"].shape[1], np.float32)
    nodes: list[Any] = []
    edge = [(None, start(p, symbol, depth), symbol, zero, 0)]
    while edge and len(nodes) < MOST_NODES:
        grown = [(one, *answer(p, *one[1:])) for one in edge]
        edge = []
        for (parent, above, above_is, _, _), h, decided in grown:
            label, children, more = np.asarray(decided).tolist()
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
    return [Task(symbol, depth, linked([tree])) for symbol, depth, tree in made.plants(count, seed)]


def linked(siblings: Any) -> Any:
    """Plants by their first child and next sibling."""
    if not siblings:
        return None
    first, *rest = siblings
    return Plant(first.symbol, linked(first.children), linked(rest))


def main(steps: int = 200) -> tuple[float, float]:
    params, _ = training.fit(run, init(32), training.packed(batch), steps)
    fresh = made.plants(64, 10_000)
    right = lw.lazy_map(lambda one: float(same(grow(params, *one[:2]), one[2])), fresh).mean()
    alone = float(np.mean([not tree.children for *_, tree in fresh]))
    print(f"DRNN: {right:.1%} of {len(fresh)} trees grown right; a single node: {alone:.1%}")
    return float(right), alone


if __name__ == "__main__":
    main()
