"""A placed program in words: what runs where, and which values travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lanewise._jax import Atom, Literal, Var
from lanewise.place.moves import Actions, Compute, Fork, Loop, Message, Require, Step, Steps
from lanewise.place.owners import Places
from lanewise.place.placement import Placement
from lanewise.place.regions import Scan


def text_of(actions: Actions, placement: Placement) -> str:
    """All steps, a line each. It says everything that processes must agree on."""
    writer = _Writer()
    head = [f"place {i}: {placement.called(i)}" for i in range(placement.size)]
    ins = ", ".join(
        f"{writer.name(v)} at {_listed(p)}"
        for v, p in zip(actions.code.region.ins, actions.inputs, strict=True)
    )
    writer.line(f"takes {ins or 'nothing'}")
    writer.steps(actions.steps)
    outs = ", ".join(
        f"{writer.name(a)} at {_listed(p)}"
        for a, p in zip(actions.code.region.outs, actions.outs, strict=True)
    )
    writer.line(f"gives {outs or 'nothing'}")
    return "\n".join([*head, *writer.lines])


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = 0
        self.names: dict[Var, str] = {}

    def name(self, atom: Atom) -> str:
        if isinstance(atom, Literal):
            return str(atom.val)
        found = self.names.setdefault(atom, f"v{len(self.names)}")
        return f"{found}:{atom.aval.str_short(short_dtypes=True)}"

    def line(self, text: str) -> None:
        self.lines.append("  " * self.indent + text)

    def block(self, head: str, steps: Steps) -> None:
        self.line(head)
        self.indent += 1
        self.steps(steps)
        self.line(f"give {', '.join(map(self.name, steps.region.outs)) or 'nothing'}")
        self.indent -= 1

    def steps(self, steps: Steps) -> None:
        for step in steps.steps:
            self.step(step)

    def step(self, step: Step) -> None:
        if isinstance(step, Compute):
            ins = " ".join(map(self.name, step.op.ins))
            outs = " ".join(map(self.name, step.op.outs))
            what = step.op.eqn.primitive.name
            if what == "part":
                what = f"part {step.op.eqn.params['name']}"
            self.line(f"{_listed(step.places)}: {outs} = {what} {ins}")
        elif isinstance(step, Message):
            source, target = step.edge
            what = " ".join(self.name(move.var) for move in step.moves)
            self.line(f"{source} -> {target}: {what} ({step.bytes:,} bytes)")
        elif isinstance(step, Require):
            self.line(f"{step.place}: assert {self.name(step.check.ok)}")
        elif isinstance(step, Fork):
            self.line(f"{_listed(step.members)}: by {self.name(step.node.index)}")
            for number, side in enumerate(step.sides):
                self.block(f"side {number}:", side)
            self.line(f"gives {self._homes(step.node.outs, step.homes)}")
        else:
            self.loop(step)

    def loop(self, step: Loop) -> None:
        node = step.node
        kind = f"{node.length} times" if isinstance(node, Scan) else "while"
        self.line(f"{_listed(step.members)}: loop {kind} ({node.line.rsplit('/', 1)[-1]})")
        self.indent += 1
        if len(step.members) > 1:
            self.line(f"# {waits(step)}")
        self.line(f"begin {' '.join(map(self.name, node.init))}")
        if step.test is not None:
            self.block("test:", step.test)
        self.block("body:", step.body)
        self.indent -= 1
        self.line(f"gives {self._homes(node.outs, step.homes)}")

    def _homes(self, outs: Sequence[Var], homes: Sequence[Places]) -> str:
        each = [f"{self.name(v)} at {_listed(p)}" for v, p in zip(outs, homes, strict=True)]
        return ", ".join(each) or "nothing"


def _listed(places: Places) -> str:
    return ",".join(map(str, sorted(places)))


# -- traffic ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edge:
    """What goes from one place to another in a run."""

    source: str
    target: str
    messages: int
    bytes: int


@dataclass(frozen=True)
class Traffic:
    """What a dry run found: messages and bytes for each edge that has any."""

    edges: tuple[Edge, ...]

    @property
    def messages(self) -> int:
        return sum(edge.messages for edge in self.edges)

    @property
    def bytes(self) -> int:
        return sum(edge.bytes for edge in self.edges)

    def __str__(self) -> str:
        if not self.edges:
            return "no messages"
        return "\n".join(
            f"{e.source} -> {e.target}: {e.messages:,} messages, {e.bytes:,} bytes"
            for e in self.edges
        )


def traffic(actions: Actions, placement: Placement, counts: Sequence[int]) -> Traffic:
    """Messages and bytes by edge, from how often each move is made."""
    found: dict[tuple[int, int], list[int]] = {}
    for message in actions.messages():
        entry, count = found.setdefault(message.edge, [0, 0]), counts[message.moves[0].number]
        entry[0] += count
        entry[1] += count * message.bytes
    return Traffic(
        tuple(
            Edge(placement.called(source), placement.called(target), messages, size)
            for (source, target), (messages, size) in sorted(found.items())
            if messages
        )
    )


# -- overlap ----------------------------------------------------------------------------------------


def waits(step: Loop) -> str:
    """Why the places of a loop can or cannot be iterations apart."""
    edges = {message.edge for message in _messages(step.body.steps)}
    if step.test is not None:
        edges |= {message.edge for message in _messages(step.test.steps)}
    cycle = _cycle(edges)
    if cycle is None:
        return "places may be iterations apart: no value comes back to where it came from in an iteration"
    way = " -> ".join(map(str, cycle))
    return f"an iteration waits for the one before it: values go round through places {way}"


def _messages(steps: Sequence[Step]) -> list[Message]:
    found = []
    for step in steps:
        if isinstance(step, Message):
            found.append(step)
        elif isinstance(step, Fork):
            found += [m for side in step.sides for m in _messages(side.steps)]
        elif isinstance(step, Loop):
            found += _messages(step.body.steps)
            found += [] if step.test is None else _messages(step.test.steps)
    return found


def _cycle(edges: set[tuple[int, int]]) -> list[int] | None:
    """A way from a place back to itself, if there is one."""
    for start in sorted({a for a, _ in edges}):
        ways = [[start]]
        seen = set()
        while ways:
            way = ways.pop(0)
            for a, b in sorted(edges):
                if a != way[-1]:
                    continue
                if b == start:
                    return [*way, b]
                if b not in seen:
                    seen.add(b)
                    ways.append([*way, b])
    return None
