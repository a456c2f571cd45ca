"""Loops and branches, found again in a graph of blocks.

What a kernel runs is a graph of nodes (blocks and return points). Where each node is reached through one *head* (the
node dominates it), the part of the graph below a head is written with `for (;;)`, `if` and jumps forward out of them:
the children of a node in the dominator tree are written inside the branch that leads to them if one edge does, and
after the node if several do (Ramsey 2022, "Beyond Relooper", has the idea; C++ has `goto`, so an exit out of several
loops is one, and code after a loop stays after the loop). A program has one head unless it recurses: then the entries
of functions and the places where calls return are heads, which the kernel reaches with a `switch` on the pc.

`graph.py` has dominators and loops, and copies nodes where that spares a head.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from lanewise.cpp.emit.graph import HALT, ROOT, Copies, Graph, Node

DISPATCH: Node = -2

# The most equations and stores of a loop that is short.
SHORT = 48


@dataclass(frozen=True)
class Run:
    """A node's code, then one of the ways its terminator can go (none if it leaves the graph)."""

    node: Node
    ways: tuple[Code, ...]


@dataclass(frozen=True)
class Loop:
    """Runs its body for ever; `node` is its head.

    If it `pauses`, every few turns control goes through the dispatch to its head; `short` ones are worth unrolling.
    """

    node: Node
    body: Code
    pauses: bool = False
    short: bool = False


@dataclass(frozen=True)
class Leave:
    """Go elsewhere: `how` is break, continue, goto (the label of `node`), again (the end of its loop) or dispatch."""

    how: str
    node: Node


@dataclass(frozen=True)
class Mark:
    """Where a `goto` to `node` goes."""

    node: Node


Code = tuple[Run | Loop | Leave | Mark, ...]


@dataclass(frozen=True)
class Structure:
    """The code below each head, and which labels are jumped to. `origin` tells which node a copy is a copy of."""

    heads: tuple[Node, ...]
    code: dict[Node, Code]
    labels: frozenset[Node]
    again: frozenset[Node]
    origin: dict[Node, Node]


def structure(
    edges: Mapping[Node, Sequence[Node]],
    heads: Sequence[Node],
    weight: Mapping[Node, int],
    *,
    pausing: bool = False,
) -> Structure:
    """Find the structure of a graph; `edges` may lead to `HALT` and `DISPATCH`.

    `weight` is the length of each node's code, for deciding what may be written twice. With `pausing`, the outermost
    loops of a program of one head are heads as well, and pause.
    """
    copies = Copies(edges, heads, weight)
    copies.make()
    paused = copies.outermost_loops() if pausing and len(copies.heads) == 1 else []
    copies.heads += [node for node in paused if node not in copies.heads]
    copies.make()
    graph = Graph(copies.edges, copies.heads)
    found = [node for node in graph.order if graph.parent[node] == ROOT]
    builder = _Builder(copies.edges, graph, frozenset(found), copies.weigh, frozenset(paused))
    code = {head: builder.below(head) for head in found}
    return Structure(
        tuple(found),
        code,
        frozenset(builder.labels),
        frozenset(builder.again),
        copies.origin,
    )


@dataclass(frozen=True)
class _Around:
    """An enclosing loop: its head, and what comes after it."""

    head: Node
    after: Node | None


class _Builder:
    def __init__(
        self,
        edges: Mapping[Node, Sequence[Node]],
        graph: Graph,
        heads: frozenset[Node],
        weigh: Callable[[Collection[Node]], int],
        paused: frozenset[Node],
    ) -> None:
        self.edges = edges
        self.graph = graph
        self.heads = heads
        self.dispatches = len(heads) > 1
        self.weigh = weigh
        self.paused = paused
        self.labels: set[Node] = set()
        self.again: set[Node] = set()

    def below(self, head: Node) -> Code:
        return self.tree(head, DISPATCH if self.dispatches else HALT, ())

    def tree(self, node: Node, follow: Node, around: tuple[_Around, ...]) -> Code:
        """A node and all it dominates; falling off its end leads to `follow`."""
        children = sorted(self.graph.children[node], key=self.graph.position.__getitem__)
        loop = self.graph.loops.get(node)
        if loop is None or (self.dispatches and node in self.heads - self.paused):
            return self.node(node, children, follow, around)
        inside = [child for child in children if child in loop]
        outside = [child for child in children if child not in loop]
        pauses = self.dispatches and node in self.paused
        # What comes after a loop that pauses is where it goes on; it is left by a jump.
        after = None if pauses else outside[0] if outside else follow
        body = self.node(node, inside, node, (*around, _Around(node, after)))
        holds_loop = any(other in self.graph.loops for other in loop if other != node)
        short = not holds_loop and self.weigh(loop) <= SHORT
        return (Loop(node, body, pauses, short), *self.row(outside, follow, around))

    def node(
        self, node: Node, children: Sequence[Node], follow: Node, around: tuple[_Around, ...]
    ) -> Code:
        merges = [child for child in children if len(self.graph.forward_preds(child)) > 1]
        first = merges[0] if merges else follow
        inlined = frozenset(children) - frozenset(merges)
        ways = tuple(
            self.tree(target, first, around)
            if target in inlined
            else self.go(target, first, around)
            for target in self.edges[node]
        )
        return (Run(node, ways), *self.row(merges, follow, around))

    def row(self, nodes: Sequence[Node], follow: Node, around: tuple[_Around, ...]) -> Code:
        """Nodes one after the other, each with a label."""
        out: list[Run | Loop | Leave | Mark] = []
        for i, node in enumerate(nodes):
            after = nodes[i + 1] if i + 1 < len(nodes) else follow
            out += [Mark(node), *self.tree(node, after, around)]
        return tuple(out)

    def go(self, target: Node, follow: Node, around: tuple[_Around, ...]) -> Code:
        """The jump to a node: nothing if falling off the end leads there."""
        if target == follow:
            return ()
        if around and target == around[-1].head:
            return (Leave("continue", target),)
        if target in self.heads and self.dispatches and target not in {a.head for a in around}:
            return (Leave("dispatch", target),)
        if around and target == around[-1].after:
            return (Leave("break", target),)
        if any(target == outer.head for outer in around):
            self.again.add(target)
            return (Leave("again", target),)
        self.labels.add(target)
        return (Leave("goto", target),)


def times_written(found: Structure) -> Counter[Node]:
    """How often the code of each node is written: once, and once for each copy."""
    times: Counter[Node] = Counter()

    def walk(code: Code) -> None:
        for part in code:
            if isinstance(part, Loop):
                walk(part.body)
            elif isinstance(part, Run):
                times[found.origin[part.node]] += 1
                for way in part.ways:
                    walk(way)

    for code in found.code.values():
        walk(code)
    return times


def leaves(code: Code) -> bool:
    """Whether control never falls off the end."""
    if not code:
        return False
    last = code[-1]
    if isinstance(last, Leave) or (isinstance(last, Loop) and last.pauses):
        return True
    return isinstance(last, Run) and bool(last.ways) and all(map(leaves, last.ways))
