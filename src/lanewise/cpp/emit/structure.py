"""Loops and branches, found again in a graph of blocks.

What a kernel runs is a graph of nodes (blocks and return points). Where each node is reached through one *head* (the
node dominates it), the part of the graph below a head is written with `for (;;)`, `if` and jumps forward out of them:
the children of a node in the dominator tree are written inside the branch that leads to them if one edge does, and
after the node if several do (Ramsey 2022, "Beyond Relooper", has the idea; C++ has `goto`, so an exit out of several
loops is one, and code after a loop stays after the loop). A program has one head unless it recurses: then the entries
of functions and the places where calls return are heads, which the kernel reaches with a `switch` on the pc.

No source program makes a loop that is entered in two places, but passes that copy a loop's test do. Such a loop keeps
one entry: what the others lead to, up to that one, is copied outside the loop. (The other way, a variable that says
where to go on, would cost every iteration a test, and make one loop of nested ones.) In a program of several heads, a
short node that two heads lead to is copied below both. What would be too long to copy becomes a head.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

Node = int
HALT: Node = -1
DISPATCH: Node = -2
ROOT: Node = -3

# The most code copied for one kernel, in equations and stores: for loops, and of nodes that several heads share.
MOST_COPIED = 600
MOST_SHARED_COPIED = 120
# A node that several heads share is copied if it is no longer than this.
MOST_SHARED = 12
# The most equations and stores of a loop that is short.
SHORT = 48


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
    """A graph with nodes copied until every loop has one entry; `origin` says what a copy is a copy of."""

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
        """The entries of loops that are inside no other, when every loop has one entry."""
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


@dataclass(frozen=True)
class Run:
    """A node's code, then one of the ways its terminator can go (none if it leaves the graph)."""

    node: Node
    ways: tuple[Code, ...]


@dataclass(frozen=True)
class Loop:
    """Runs its body forever; `node` is its head.

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
    """The code below each head, and which labels are jumped to. `origin` says which node a copy is a copy of."""

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
    loops of a program of one head are heads too, and pause.
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
