"""Graphs of nodes: order, dominators, loops; and copies of nodes that make a graph easy to write.

No source program makes a loop that is entered in two places, but passes that copy a loop's test do. Such a loop keeps
one entry: what the others lead to, up to that one, is copied outside the loop. (The other way, a variable that says
where to go on, would cost every iteration a test, and make one loop of nested ones.) In a program of several heads, a
short node that two heads lead to is copied below both. What would be too long to copy becomes a head.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

Node = int
ROOT: Node = -3
HALT: Node = -1

# The most code copied for one kernel, in equations and stores: for loops, and of nodes that several heads share.
MOST_COPIED = 600
MOST_SHARED_COPIED = 120
# A node that several heads share is copied if it is no longer than this.
MOST_SHARED = 12


class Graph:
    """Order, dominators and loops."""

    def __init__(self, edges: Mapping[Node, Sequence[Node]], heads: Sequence[Node]) -> None:
        inner = {n: [t for t in dict.fromkeys(ts) if t >= 0] for n, ts in edges.items()}
        self.edges = {**inner, ROOT: list(heads)}
        self.order = self._reverse_postorder()[1:]
        self.position = {node: i for i, node in enumerate([ROOT, *self.order])}
        self.preds: dict[Node, list[Node]] = {node: [] for node in [ROOT, *self.order]}
        for node in [ROOT, *self.order]:
            for target in self.edges[node]:
                self.preds[target].append(node)
        self.parent = self._dominators()
        self.children: dict[Node, list[Node]] = {node: [] for node in [ROOT, *self.order]}
        for node in self.order:
            self.children[self.parent[node]].append(node)
        self.loops = {node: self._loop(node) for node in self.order if self._back_edges(node)}

    def _reverse_postorder(self) -> list[Node]:
        seen: set[Node] = {ROOT}
        out: list[Node] = []
        stack = [(ROOT, iter(self.edges[ROOT]))]
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
        parent: dict[Node, Node] = {ROOT: ROOT}
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
        return [p for p in self.preds[node] if p != ROOT and self._retreats(p, node)]

    def forward_preds(self, node: Node) -> list[Node]:
        return [p for p in self.preds[node] if p == ROOT or not self._retreats(p, node)]

    def _loop(self, head: Node) -> frozenset[Node]:
        inside = {head}
        work = [p for p in self._back_edges(head) if self.dominates(head, p)]
        while work:
            node = work.pop()
            if node not in inside:
                inside.add(node)
                work += self.preds[node]
        return frozenset(inside)


class Copies:
    """A graph with nodes copied until every loop has one entry; `origin` tells what a copy is a copy of."""

    def __init__(
        self,
        edges: Mapping[Node, Sequence[Node]],
        heads: Sequence[Node],
        weight: Mapping[Node, int],
    ) -> None:
        self.edges = {node: list(targets) for node, targets in edges.items()}
        self.heads = list(dict.fromkeys(heads))
        self.origin = {node: node for node in edges}
        self.weight = weight
        self.left = MOST_COPIED
        self.left_shared = MOST_SHARED_COPIED

    def make(self) -> None:
        while self._one_entry_less() or self._one_head_less():
            pass

    def outermost_loops(self) -> list[Node]:
        """The entries of loops that lie in no other, when every loop has one entry."""
        graph = Graph(self.edges, self.heads)
        inner = {node: graph.edges[node] for node in graph.order}
        return [next(n for n in graph.order if n in loop) for loop in _loops(inner, graph.order)]

    # -- loops -----------------------------------------------------------------------------------------

    def _one_entry_less(self) -> bool:
        """Take a loop's second entry away; whether there was one."""
        graph = Graph(self.edges, self.heads)
        inner = {node: self._inner(graph, node) for node in graph.order}
        found = next(_second_entries(graph, inner, graph.order), None)
        if found is None:
            return False
        loop, entries = found
        plans = [(keep, self._between(loop, inner, entries, keep)) for keep in entries]
        keep, copied = min(plans, key=lambda plan: self.weigh(plan[1]))
        if self.weigh(copied) > self.left:
            self.heads += [entry for entry in entries if entry not in self.heads]
            return True
        others = {entry for entry in entries if entry != keep}
        self.left -= self.weigh(copied)
        sources = [(p, e) for e in others for p in graph.preds[e] if p not in loop]
        self._copy(copied, sources)
        return True

    def _inner(self, graph: Graph, node: Node) -> list[Node]:
        """Edges that are written as they are: those to one of several heads are not."""
        several = len(self.heads) > 1
        return [t for t in graph.edges[node] if not (several and t in self.heads)]

    def _between(
        self,
        loop: Collection[Node],
        inner: Mapping[Node, Sequence[Node]],
        entries: Sequence[Node],
        keep: Node,
    ) -> set[Node]:
        """What the other entries of a loop lead to before it comes to the one that is kept."""
        found: set[Node] = set()
        work = [entry for entry in entries if entry != keep]
        while work:
            node = work.pop()
            if node in loop and node != keep and node not in found:
                found.add(node)
                work += inner[node]
        return found

    # -- heads -----------------------------------------------------------------------------------------

    def _one_head_less(self) -> bool:
        """Copy a short node that is a head only because two heads lead to it; whether there was one."""
        graph = Graph(self.edges, self.heads)
        if len(self.heads) == 1:
            return False
        for node in graph.order:
            if graph.parent[node] != ROOT or node in self.heads or node in graph.loops:
                continue
            others = graph.preds[node][1:]
            if others and self.weigh([node]) <= min(MOST_SHARED, self.left_shared):
                self.left_shared -= self.weigh([node])
                self._copy([node], [(other, node) for other in others])
                return True
        return False

    # -- copies ----------------------------------------------------------------------------------------

    def weigh(self, nodes: Collection[Node]) -> int:
        """How long the code of these nodes is."""
        return sum(1 + self.weight[self.origin[node]] for node in nodes)

    def _copy(self, nodes: Collection[Node], sources: Sequence[tuple[Node, Node]]) -> None:
        """Copy nodes, and lead these edges to the copies."""
        first = 1 + max(self.edges)
        copy = {node: first + i for i, node in enumerate(sorted(nodes))}
        for node, new in copy.items():
            self.edges[new] = [copy.get(target, target) for target in self.edges[node]]
            self.origin[new] = self.origin[node]
        for source, entry in sources:
            self.edges[source] = [copy[t] if t == entry else t for t in self.edges[source]]


def _second_entries(
    graph: Graph, inner: Mapping[Node, Sequence[Node]], nodes: Collection[Node]
) -> Iterator[tuple[set[Node], list[Node]]]:
    """Loops with several entries, outer ones first, each with its entries."""
    for loop in _loops(inner, nodes):
        entries = [
            node
            for node in graph.order
            if node in loop
            and any(p not in loop or node not in inner[p] for p in graph.preds[node])
        ]
        if len(entries) > 1:
            yield loop, entries
        else:
            yield from _second_entries(graph, inner, loop - set(entries))


def _loops(inner: Mapping[Node, Sequence[Node]], nodes: Collection[Node]) -> list[set[Node]]:
    """The largest sets of these nodes in which each leads to each (strongly connected components)."""
    within = set(nodes)
    found = []
    while within:
        node = min(within)
        after = _reached(node, {n: [t for t in inner[n] if t in within] for n in within})
        against: dict[Node, list[Node]] = {n: [] for n in within}
        for n in within:
            for target in inner[n]:
                if target in within:
                    against[target].append(n)
        loop = after & _reached(node, against)
        if len(loop) > 1 or node in inner[node]:
            found.append(loop)
        within -= loop
    return found


def _reached(start: Node, edges: Mapping[Node, Sequence[Node]]) -> set[Node]:
    found: set[Node] = set()
    work = [start]
    while work:
        node = work.pop()
        if node not in found:
            found.add(node)
            work += edges[node]
    return found
