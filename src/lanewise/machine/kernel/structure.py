"""Loops and branches, found again in a graph of blocks.

What a kernel runs is a graph of nodes (blocks and return points). Where each node is reached through one *head* (the
node dominates it), the part of the graph below a head is written with `for (;;)`, `if` and jumps forward out of them:
the children of a node in the dominator tree are written inside the branch that leads to them if one edge does, and
after the node if several do (Ramsey 2022, "Beyond Relooper", has the idea; C++ has `goto`, so an exit out of several
loops is one, and code after a loop stays after the loop). A program has one head unless it recurses: then the entries
of functions and the places where calls return are heads, which the kernel reaches with a `switch` on the pc.

A loop that is entered in two places (no source program makes one, but passes that copy a loop's test do) has the nodes
between its second entry and its first copied outside it, if they are small; else the second entry is a head.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

Node = int
HALT: Node = -1
DISPATCH: Node = -2
_ROOT: Node = -3

# Nodes copied for one kernel.
MOST_COPIES = 64


@dataclass(frozen=True)
class Run:
    """A node's code, then one of the ways its terminator can go (none if it leaves the graph)."""

    node: Node
    ways: tuple[Code, ...]


@dataclass(frozen=True)
class Loop:
    """Runs its body for ever; `node` is its head."""

    node: Node
    body: Code


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
    edges: Mapping[Node, Sequence[Node]], heads: Sequence[Node], small: Container[Node]
) -> Structure:
    """Find the structure of a graph; `edges` may lead to `HALT` and `DISPATCH`. Nodes of `small` may be copied."""
    heads = list(dict.fromkeys(heads))
    copies = _Copies(edges, heads, small)
    copies.make()
    graph = copies.graph
    found = [node for node in graph.order if graph.parent[node] == _ROOT]
    builder = _Builder(copies.edges, graph, frozenset(found), dispatches=len(found) > 1)
    code = {head: builder.below(head) for head in found}
    return Structure(
        tuple(found),
        code,
        frozenset(builder.labels),
        frozenset(builder.again),
        copies.origin,
    )


class _Copies:
    """A graph with small nodes copied, where that spares a head.

    In a program of one head, a second way into a loop gets copies of the nodes it leads to up to the loop's first
    entry. In one of several, a node that two heads lead to is copied below both. What is left becomes a head.
    """

    def __init__(
        self, edges: Mapping[Node, Sequence[Node]], heads: Sequence[Node], small: Container[Node]
    ) -> None:
        self.edges = {node: list(targets) for node, targets in edges.items()}
        self.origin = {node: node for node in edges}
        self.heads = list(heads)
        self.small = small
        self.left = MOST_COPIES
        self.graph = _Graph(self.edges, self.heads)

    def make(self) -> None:
        while True:
            wanted = self.graph.entered_twice()
            if len(self.heads) > 1 and not wanted:
                wanted = self._shared()
            step = next((pair for pair in wanted if self._may_copy(*pair)), None)
            if step is not None:
                self._copy(*step)
            elif second_entries := self.graph.entered_twice():
                self.heads += dict.fromkeys(node for node, _ in second_entries)
            else:
                return
            self.graph = _Graph(self.edges, self.heads)

    def _shared(self) -> list[tuple[Node, list[Node]]]:
        """Nodes that are heads only because two heads lead to them, each with all its predecessors but one."""
        graph = self.graph
        return [
            (node, graph.preds[node][1:])
            for node in graph.order
            if graph.parent[node] == _ROOT
            and node not in self.heads
            and node not in graph.loops
            and len(graph.preds[node]) > 1
        ]

    def _may_copy(self, node: Node, sources: Sequence[Node]) -> bool:
        return bool(sources) and self.left > 0 and self.origin[node] in self.small

    def _copy(self, node: Node, sources: Sequence[Node]) -> None:
        self.left -= 1
        copy = max(self.edges) + 1
        self.edges[copy] = list(self.edges[node])
        self.origin[copy] = self.origin[node]
        for source in sources:
            self.edges[source] = [copy if t == node else t for t in self.edges[source]]


class _Graph:
    """Order, dominators and loops."""

    def __init__(self, edges: Mapping[Node, Sequence[Node]], heads: Sequence[Node]) -> None:
        inner = {n: [t for t in dict.fromkeys(ts) if t >= 0] for n, ts in edges.items()}
        self.edges = {**inner, _ROOT: list(heads)}
        self.order = self._reverse_postorder()[1:]
        self.position = {node: i for i, node in enumerate([_ROOT, *self.order])}
        self.preds: dict[Node, list[Node]] = {node: [] for node in [_ROOT, *self.order]}
        for node in [_ROOT, *self.order]:
            for target in self.edges[node]:
                self.preds[target].append(node)
        self.parent = self._dominators()
        self.children: dict[Node, list[Node]] = {node: [] for node in [_ROOT, *self.order]}
        for node in self.order:
            self.children[self.parent[node]].append(node)
        self.loops = {node: self._loop(node) for node in self.order if self._back_edges(node)}

    def _reverse_postorder(self) -> list[Node]:
        seen: set[Node] = {_ROOT}
        out: list[Node] = []
        stack = [(_ROOT, iter(self.edges[_ROOT]))]
        while stack:
            node, targets = stack[-1]
            target = next((t for t in targets if t not in seen), None)
            if target is None:
                out.append(node)
                stack.pop()
            else:
                seen.add(target)
                stack.append((target, iter(self.edges[target])))
        return out[::-1]

    def _dominators(self) -> dict[Node, Node]:
        parent: dict[Node, Node] = {_ROOT: _ROOT}
        changed = True
        while changed:
            changed = False
            for node in self.order:
                known = [p for p in self.preds[node] if p in parent]
                best = known[0]
                for other in known[1:]:
                    best = self._common(parent, best, other)
                if parent.get(node) != best:
                    parent[node] = best
                    changed = True
        return parent

    def _common(self, parent: dict[Node, Node], first: Node, second: Node) -> Node:
        while first != second:
            if self.position[first] > self.position[second]:
                first = parent[first]
            else:
                second = parent[second]
        return first

    def dominates(self, above: Node, node: Node) -> bool:
        while self.position[node] > self.position[above]:
            node = self.parent[node]
        return node == above

    def _retreats(self, source: Node, target: Node) -> bool:
        return self.position[target] <= self.position[source]

    def _back_edges(self, node: Node) -> list[Node]:
        return [p for p in self.preds[node] if p != _ROOT and self._retreats(p, node)]

    def forward_preds(self, node: Node) -> list[Node]:
        return [p for p in self.preds[node] if p == _ROOT or not self._retreats(p, node)]

    def _loop(self, head: Node) -> frozenset[Node]:
        inside = {head}
        work = [p for p in self._back_edges(head) if self.dominates(head, p)]
        while work:
            node = work.pop()
            if node not in inside:
                inside.add(node)
                work += self.preds[node]
        return frozenset(inside)

    def entered_twice(self) -> list[tuple[Node, list[Node]]]:
        """Nodes by which a loop is entered that has another entry, each with the predecessors outside the loop."""
        found = []
        for node in self.order:
            back = [p for p in self._back_edges(node) if not self.dominates(node, p)]
            if back and self.parent[node] != _ROOT:
                loop = self._reaching(node, back)
                found += [
                    (entry, outside)
                    for entry in self.order
                    if entry in loop
                    and entry != node
                    and (outside := [p for p in self.preds[entry] if p not in loop])
                ]
                found.append((node, [p for p in self.preds[node] if p not in loop]))
        return found

    def _reaching(self, node: Node, back: Sequence[Node]) -> set[Node]:
        """The nodes of the cycles through `node` that end in `back`."""
        after: set[Node] = set()
        work = [node]
        while work:
            here = work.pop()
            if here not in after:
                after.add(here)
                work += self.edges[here]
        before: set[Node] = set()
        work = list(back)
        while work:
            here = work.pop()
            if here in after and here not in before:
                before.add(here)
                work += [p for p in self.preds[here] if p != _ROOT]
        return before | {node}


@dataclass(frozen=True)
class _Around:
    """An enclosing loop: its head, and what comes after it."""

    head: Node
    after: Node | None


class _Builder:
    def __init__(
        self,
        edges: Mapping[Node, Sequence[Node]],
        graph: _Graph,
        heads: frozenset[Node],
        dispatches: bool,
    ) -> None:
        self.edges = edges
        self.graph = graph
        self.heads = heads
        self.dispatches = dispatches
        self.labels: set[Node] = set()
        self.again: set[Node] = set()

    def below(self, head: Node) -> Code:
        return self.tree(head, DISPATCH if self.dispatches else HALT, ())

    def tree(self, node: Node, follow: Node, around: tuple[_Around, ...]) -> Code:
        """A node and all it dominates; falling off its end leads to `follow`."""
        children = sorted(self.graph.children[node], key=self.graph.position.__getitem__)
        loop = self.graph.loops.get(node)
        if loop is None or (self.dispatches and node in self.heads):
            return self.node(node, children, follow, around)
        inside = [child for child in children if child in loop]
        outside = [child for child in children if child not in loop]
        after = outside[0] if outside else follow
        body = self.node(node, inside, node, (*around, _Around(node, after)))
        return (Loop(node, body), *self.row(outside, follow, around))

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
        if target in self.heads and self.dispatches:
            return (Leave("dispatch", target),)
        if target == follow:
            return ()
        if around and target == around[-1].head:
            return (Leave("continue", target),)
        if around and target == around[-1].after:
            return (Leave("break", target),)
        if any(target == outer.head for outer in around):
            self.again.add(target)
            return (Leave("again", target),)
        self.labels.add(target)
        return (Leave("goto", target),)


def leaves(code: Code) -> bool:
    """Whether control never falls off the end."""
    if not code:
        return False
    last = code[-1]
    if isinstance(last, Leave):
        return True
    return isinstance(last, Run) and bool(last.ways) and all(map(leaves, last.ways))
