"""Packing trees into arrays: nodes a second, against a packer that recurses over the nodes.

    python benchmarks/pack.py [--trees 64 256 20000] [--repeats 15]

Random trees of 20 to 40 leaves, binary or with any number of children, each with a label. The peer visits one node
after the other, appends its fields to lists and makes arrays of them, for one class and without a check: what one would
write by hand. Times are of the process. A claim for the ratio of both, and one for two million nodes a second, where
the peer is a clock of half a microsecond a node.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import lanewise as lw
from _harness import Claim, report, usual_arguments

NODES_A_SECOND = 2e6


@lw.record
class Tree:
    label: int
    left: Tree | None = None
    right: Tree | None = None


@lw.record
class Node:
    label: int
    children: list[Node]


def binary(rng: random.Random, leaves: int) -> Tree:
    if leaves == 1:
        return Tree(rng.randrange(1000))
    part = rng.randrange(1, leaves)
    return Tree(rng.randrange(1000), binary(rng, part), binary(rng, leaves - part))


def wide(rng: random.Random, nodes: int) -> Node:
    children, left = [], nodes - 1
    while left > 0:
        part = rng.randint(1, left)
        children.append(wide(rng, part))
        left -= part
    return Node(rng.randrange(1000), children)


def pack_binary(trees: list[Tree]) -> Any:
    """Node by node."""
    labels: list[int] = []
    lefts: list[int] = []
    rights: list[int] = []

    def visit(tree: Tree | None) -> int:
        if tree is None:
            return -1
        left, right = visit(tree.left), visit(tree.right)
        labels.append(tree.label)
        lefts.append(left)
        rights.append(right)
        return len(labels) - 1

    roots = [visit(tree) for tree in trees]
    return [np.array(x, np.int32) for x in (labels, lefts, rights, roots)]


def pack_wide(trees: list[Node]) -> Any:
    """Node by node."""
    labels: list[int] = []
    starts: list[int] = []
    sizes: list[int] = []
    items: list[int] = []

    def visit(node: Node) -> int:
        below = [visit(child) for child in node.children]
        labels.append(node.label)
        starts.append(len(items))
        sizes.append(len(below))
        items.extend(below)
        return len(labels) - 1

    roots = [visit(tree) for tree in trees]
    return [np.array(x, np.int32) for x in (labels, starts, sizes, items, roots)]


def seconds(fun: Callable[[Any], Any], trees: Any) -> float:
    start = time.process_time()
    fun(trees)
    return time.process_time() - start


def main() -> None:
    parser = usual_arguments(__doc__, repeats=15)
    parser.add_argument("--trees", type=int, nargs="+", default=[64, 256, 20_000])
    options = parser.parse_args()
    rng = random.Random(0)
    claims: list[Claim] = []
    for name, make, peer in (("binary", binary, pack_binary), ("any children", wide, pack_wide)):
        for count in options.trees:
            trees = [make(rng, rng.randint(20, 40)) for _ in range(count)]
            nodes = int(lw.pack(trees).size)
            assert nodes == len(peer(trees)[0])  # type: ignore[arg-type]
            times = [
                (seconds(lw.pack, trees), seconds(peer, trees)) for _ in range(options.repeats)
            ]
            ours, theirs = (float(np.median(each)) for each in zip(*times, strict=True))
            print(
                f"{name}, {count:,} trees, {nodes:,} nodes: {nodes / ours / 1e6:.2f} million nodes a second, node by"
                f" node {nodes / theirs / 1e6:.2f}",
                flush=True,
            )
            what = f"pack, {name}, {count:,} trees"
            claims.append(Claim(f"{what}: over node by node", ours, theirs, ">= 1"))
            claims.append(
                Claim(f"{what}: 2 million a second", ours, nodes / NODES_A_SECOND, ">= 1")
            )
    report(claims)


if __name__ == "__main__":
    main()
