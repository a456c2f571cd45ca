"""What every place does, in one order: operations, and moves of values from where they are made to where they are
needed.

A value travels once, to each place that needs it: as soon as it is made if it is needed for sure, before a loop if
the loop reads it, and inside a branch if only that side reads it. The outcome of a test is a value like any other: it
goes to the places that have something to do inside, and to no others. What goes to many places goes along a tree.

Small values that go over an edge at the same point travel as one message (`packing.py`).

Moves have numbers, in the order of the program's text, which is the order in which every place meets them. That is
the whole argument that nothing ever waits for ever. Order all actions of a run (sends and receives, at any depth of
loops, by iteration) as the one-process run meets them. Each place performs its own actions in this order, and a send
and its receive stand at the same point of it. Take the earliest action that is still to be done; all before it are
done. If it is a receive, its send is done, as it is the same point: the message is there. If it is a send, everything
sent before on that edge has been received, so there is room even if the edge holds one message. Either way it can go
on. A place takes a decision (a test, a branch) from a value that is the same at all places that take it, so they all
meet the same actions.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from lanewise._jax import Atom, Literal, Var
from lanewise.core.errors import InternalError
from lanewise.core.primitives.facts import bytes_of
from lanewise.place.owners import Owners, Places
from lanewise.place.packing import MOST_BYTES
from lanewise.place.regions import Branch, Check, Code, Node, Op, Region, Scan, While

# To how many places a place sends one value, at most. Each message costs the sender as much as a place farther down
# the tree waits for it, so few places get it straight from its maker.
MOST_SENT = 8


@dataclass(frozen=True, eq=False)
class Move:
    """A value goes from one place to another."""

    var: Var
    source: int
    target: int
    number: int

    @property
    def bytes(self) -> int:
        return bytes_of(self.var)


@dataclass(frozen=True, eq=False)
class Message:
    """Values that go over one edge at the same point of the program. Its number is that of the first."""

    moves: tuple[Move, ...]

    @property
    def edge(self) -> tuple[int, int]:
        return self.moves[0].source, self.moves[0].target

    @property
    def bytes(self) -> int:
        return sum(move.bytes for move in self.moves)


@dataclass(frozen=True, eq=False)
class Compute:
    """An operation, at each of these places."""

    op: Op
    places: Places


@dataclass(frozen=True, eq=False)
class Require:
    """An assertion, at one place."""

    check: Check
    place: int
    number: int


@dataclass(frozen=True, eq=False)
class Steps:
    """What is done in a region, in order."""

    region: Region
    steps: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop, at the places that are its members. `homes`: where each value is that it gives, the state first."""

    node: While | Scan
    members: Places
    homes: tuple[Places, ...]
    rows: tuple[Places, ...]
    test: Steps | None
    body: Steps


@dataclass(frozen=True, eq=False)
class Fork:
    """A branch, at the places that are its members."""

    node: Branch
    members: Places
    homes: tuple[Places, ...]
    sides: tuple[Steps, ...]


Step = Message | Compute | Require | Loop | Fork


@dataclass(frozen=True, eq=False)
class Actions:
    """A whole program's steps. `outs`: where its results are in the end."""

    code: Code
    inputs: tuple[Places, ...]
    steps: Steps
    outs: tuple[Places, ...]
    num_numbers: int

    def moves(self) -> list[Move]:
        """All moves, by their numbers."""
        return [move for message in self.messages() for move in message.moves]

    def messages(self) -> list[Message]:
        return [step for step in _all(self.steps.steps) if isinstance(step, Message)]

    def computes(self) -> list[Compute]:
        return [step for step in _all(self.steps.steps) if isinstance(step, Compute)]

    def checks(self) -> list[Require]:
        return [step for step in _all(self.steps.steps) if isinstance(step, Require)]

    def credits(self, in_flight: int) -> dict[tuple[int, int], int]:
        """How many messages may wait on each edge so that this many iterations of any loop are under way."""
        most: Counter[tuple[int, int]] = Counter()
        for steps in _regions(self.steps):
            own = Counter(s.edge for s in steps.steps if isinstance(s, Message))
            for edge, count in own.items():
                most[edge] = max(most[edge], count)
        return {edge: in_flight * count for edge, count in sorted(most.items())}


def actions_of(
    code: Code, owners: Owners, inputs: Sequence[Places], wanted: Sequence[Places | None]
) -> Actions:
    """The steps of a program. `wanted`: the places at which each result is wanted; None for where it is made."""
    maker = _Maker(owners)
    present = {v: set(p) for v, p in zip(code.region.ins, inputs, strict=True)}
    present.update((v, set(owners.everywhere)) for v in code.constants)
    outs = [w or owners.maker(a) for w, a in zip(wanted, code.region.outs, strict=True)]
    steps = maker.region(code.region, present, outs)
    return Actions(code, tuple(inputs), steps, tuple(outs), maker.count)


@dataclass
class _Maker:
    owners: Owners
    count: int = 0
    needs: dict[Region, dict[Var, set[int]]] = field(default_factory=dict)

    def region(
        self, region: Region, present: dict[Var, set[int]], out_homes: Sequence[Places]
    ) -> Steps:
        """The steps of a region, given where values are at its start; what it moves around it is known only inside."""
        present = {v: set(p) for v, p in present.items()}
        for var in region.ins:
            present.setdefault(var, set(self.owners.homes[var]))
        needs = self._needs(region)
        for atom, homes in zip(region.outs, out_homes, strict=True):
            if isinstance(atom, Var):
                needs = _with(needs, atom, homes)
        steps: list[Step] = []

        def bring(variables: Iterable[Var]) -> None:
            for var in variables:
                steps.extend(self._moves(var, needs.get(var, ()), present))

        bring([v for v in needs if v in present])
        for node in region.nodes:
            steps.extend(self._node(node, present))
            outs = () if isinstance(node, Check) else node.outs
            for var in outs:
                present[var] = set(self.owners.homes[var])
            bring(outs)
        return Steps(region, tuple(_together(steps)))

    def _moves(self, var: Var, needed: Iterable[int], present: dict[Var, set[int]]) -> list[Step]:
        """A value to the places that lack it, along a tree: those that have it pass it on."""
        found: list[Step] = []
        sources = sorted(present[var])
        lacking = sorted(set(needed) - present[var])
        for k, place in enumerate(lacking):
            found.append(Message((Move(var, sources[k // MOST_SENT], place, self._number()),)))
            sources.append(place)
        present[var].update(lacking)
        return found

    def _number(self) -> int:
        self.count += 1
        return self.count - 1

    def _node(self, node: Node, present: dict[Var, set[int]]) -> list[Step]:
        owners = self.owners
        if isinstance(node, Op):
            for atom in node.ins:
                if isinstance(atom, Var) and not owners.ops[node] <= present[atom]:
                    raise InternalError(f"an operand of {node.eqn.primitive.name} was not brought")
            return [Compute(node, owners.ops[node])]
        if isinstance(node, Check):
            return [Require(node, min(owners.ops[node]), self._number())]
        members = owners.members[node]
        homes = tuple(owners.homes[v] for v in node.outs)
        if isinstance(node, Branch):
            sides = tuple(self.region(side, present, homes) for side in node.sides)
            members |= frozenset(p for side in sides for p in _places(side.steps))
            index = node.index
            before = [] if isinstance(index, Literal) else self._moves(index, members, present)
            return [*before, Fork(node, members, homes, sides)]
        # What comes from outside has been brought: a place without work in the loop sends nothing into it.
        within = {v: p & members for v, p in present.items() if p & members}
        test = None
        if isinstance(node, While):
            test = self.region(node.test, within, [members])
        body = self.region(node.body, within, homes)
        rows = tuple(owners.homes[v] for v in node.body.ins[len(node.init) :])
        return [Loop(node, members, homes, rows, test, body)]

    def _needs(self, region: Region) -> dict[Var, set[int]]:
        """For each value, the places that need it whenever the region runs: in the order of first use."""
        if region in self.needs:
            return self.needs[region]
        owners = self.owners
        needs: dict[Var, set[int]] = {}

        def need(atom: Atom, places: Iterable[int]) -> None:
            if isinstance(atom, Var):
                needs.setdefault(atom, set()).update(places)

        def inside(inner: Region, outs: Iterable[Places]) -> None:
            """What a loop reads from around it, once for all iterations."""
            defined = _defined(inner)
            wanted = list(self._everything(inner).items())
            wanted += [(a, p) for a, p in zip(inner.outs, outs, strict=True) if isinstance(a, Var)]
            for var, places in wanted:
                if var not in defined:
                    need(var, places)

        for node in region.nodes:
            if isinstance(node, Op):
                for atom in node.ins:
                    need(atom, owners.ops[node])
            elif isinstance(node, Check):
                need(node.ok, owners.ops[node])
            elif isinstance(node, Branch):
                # The index is sent when it is known which places are inside.
                pass
            else:
                homes = [owners.homes[v] for v in node.body.ins]
                given = node.init if isinstance(node, While) else (*node.init, *node.xs)
                for atom, home in zip(given, homes, strict=True):
                    need(atom, home)
                inside(node.body, [owners.homes[v] for v in node.outs])
                if isinstance(node, While):
                    inside(node.test, [owners.members[node]])
        self.needs[region] = needs
        return needs

    def _everything(self, region: Region) -> dict[Var, set[int]]:
        """The same with what is needed in a branch: before a loop, that is brought too, once for all iterations."""
        needs = {v: set(p) for v, p in self._needs(region).items()}
        owners = self.owners
        for node in region.nodes:
            if not isinstance(node, Branch):
                continue
            members = owners.members[node]
            inner: dict[Var, set[int]] = {}
            for side in node.sides:
                for var, places in self._everything(side).items():
                    inner.setdefault(var, set()).update(places)
                for atom, out in zip(side.outs, node.outs, strict=True):
                    if isinstance(atom, Var):
                        inner.setdefault(atom, set()).update(owners.homes[out])
            if isinstance(node.index, Var):
                needs.setdefault(node.index, set()).update(members)
            for var, places in inner.items():
                needs.setdefault(var, set()).update(places)
        return needs


# -- messages of several values ---------------------------------------------------------------------


def _together(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps, with small values in one message where nothing is done between their moves over an edge."""
    waiting: list[Move] = []
    for step in steps:
        if isinstance(step, Message):
            waiting += step.moves
        else:
            yield from _joined(waiting)
            waiting = []
            yield step
    yield from _joined(waiting)


def _joined(moves: Sequence[Move]) -> list[Message]:
    found: list[list[Move]] = []
    for move in moves:
        # What came to its source just now cannot leave with an earlier message.
        came = [k for k, group in enumerate(found) if any(_brings(m, move) for m in group)]
        group = next((g for g in found[max(came, default=-1) + 1 :] if _fits(g[0], move)), None)
        if group is None:
            found.append([move])
        else:
            group.append(move)
    numbers = iter(sorted(move.number for move in moves))
    return [
        Message(tuple(dataclasses.replace(m, number=next(numbers)) for m in group))
        for group in found
    ]


def _brings(one: Move, other: Move) -> bool:
    return one.var is other.var and one.target == other.source


def _fits(one: Move, other: Move) -> bool:
    edge = (one.source, one.target) == (other.source, other.target)
    return edge and max(one.bytes, other.bytes) <= MOST_BYTES


def _defined(region: Region) -> set[Var]:
    made = {v for node in region.nodes if not isinstance(node, Check) for v in node.outs}
    return made | set(region.ins)


def _with(needs: dict[Var, set[int]], var: Var, places: Places) -> dict[Var, set[int]]:
    return {**needs, var: needs.get(var, set()) | places}


def _all(steps: Iterable[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        for inner in _inside(step):
            yield from _all(inner.steps)


def _inside(step: Step) -> tuple[Steps, ...]:
    if isinstance(step, Loop):
        return (step.body,) if step.test is None else (step.test, step.body)
    return step.sides if isinstance(step, Fork) else ()


def _regions(steps: Steps) -> Iterator[Steps]:
    yield steps
    for step in steps.steps:
        for inner in _inside(step):
            yield from _regions(inner)


def _places(steps: Iterable[Step]) -> frozenset[int]:
    """The places that steps cannot do without."""
    found: set[int] = set()
    for step in _all(steps):
        if isinstance(step, Message):
            found |= set(step.edge)
        elif isinstance(step, Compute):
            found |= step.places if len(step.places) == 1 else frozenset()
        elif isinstance(step, Require):
            found.add(step.place)
        else:
            found |= step.members
    return frozenset(found)
