"""The drawings of placed programs, made from the actions that `lanewise.run` divides them into.

`placed_steps` shows every step of a program: what runs at which place, which values travel, which places a loop and a
branch have. `overlapped` plays a loop's steps against a clock: each place does its own in order, a receive waits for
its message, and a send waits for room.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from _drawings import WIDTH, figure, picture, text

import lanewise as lw
from lanewise.place.moves import Actions, Compute, Fork, Loop, Message, Require, Step, Steps
from lanewise.place.placement import placement_from
from lanewise.place.prepared import ask
from lanewise.place.regions import Scan

LEFT, ROW = 24, 26


def actions_of(fun, placement: dict[str, int], *args) -> Actions:
    """The steps of a placed program; nothing runs."""
    leaves, tree = jax.tree.flatten((args, {}))
    asked = ask(fun, fun.__name__, placement_from(placement), leaves, tree)
    return asked.divided(everywhere=False).actions


# -- the programs ----------------------------------------------------------------------------------


def encode(w, x):
    return jnp.tanh(x @ w)


def decode(v, state, code):
    return jnp.tanh(state @ v + code)


def model(w, v, xs):
    """What a sequence is read to: the encoder never waits for the decoder."""

    def step(state, x):
        code = lw.placed(encode, "encoder")(w, x)
        return lw.placed(decode, "decoder")(v, state, code), None

    return jax.lax.scan(step, jnp.zeros(8), xs)[0]


def fed_back(w, v, xs):
    """The same, and what the encoder reads depends on what was decoded."""

    def step(state, x):
        code = lw.placed(encode, "encoder")(w, x + state)
        return lw.placed(decode, "decoder")(v, state, code), None

    return jax.lax.scan(step, jnp.zeros(8), xs)[0]


@lw.program
def solve(w, v, x, least):
    change, count = jnp.float32(1), 0
    while change > least:
        better = lw.placed(encode, "solver")(w, x)
        if count % 4 == 0:
            better = lw.placed(decode, "corrector")(v, better, x)
        with lw.on("solver"):
            change = jnp.max(jnp.abs(better - x))
        x, count = better, count + 1
    return x


SQUARE, ROWS = jnp.zeros((8, 8)), jnp.zeros((20, 8))


# -- steps -----------------------------------------------------------------------------------------


@dataclass
class Sheet:
    """Rows of steps, from top to bottom, a column for each place."""

    names: Sequence[str]
    parts: list[str] = field(default_factory=list)
    top: float = 30
    depth: int = 0

    @property
    def column(self) -> float:
        return (WIDTH - 2 * LEFT) / len(self.names)

    def middle(self, place: int) -> float:
        return LEFT + (place + 0.5) * self.column

    def steps(self, steps: Sequence[Step]) -> None:
        small: list[Compute] = []
        for step in steps:
            if isinstance(step, Compute) and step.op.eqn.primitive.name != "part":
                small.append(step)
                continue
            self.operations(small)
            small = []
            self.step(step)
        self.operations(small)

    def step(self, step: Step) -> None:
        if isinstance(step, Compute):
            self.box(min(step.places), f"part {step.op.eqn.params['name']}", "block-0")
        elif isinstance(step, Message):
            self.arrow(step)
        elif isinstance(step, Loop):
            often = f"{step.node.length} times" if isinstance(step.node, Scan) else "while"
            sections = [] if step.test is None else [("test", step.test)]
            self.region(step.members, f"loop, {often}", [*sections, ("body", step.body)])
        elif isinstance(step, Fork):
            words = ("if false", "if true") if len(step.sides) == 2 else ()
            sides = [
                (words[i] if words else f"if it is {i}", side) for i, side in enumerate(step.sides)
            ]
            self.region(step.members, "branch", sides)
        elif isinstance(step, Require):
            self.box(step.place, "assert", "block-3")

    def operations(self, small: Sequence[Compute]) -> None:
        """What no part names, several in a row as one box."""
        while small:
            places = small[0].places
            count = next((i for i, s in enumerate(small) if s.places != places), len(small))
            names = [s.op.eqn.primitive.name for s in small[:count]]
            words = ", ".join(names) if count < 3 else f"{count} operations"
            for place in sorted(places):
                self.box(place, words, "block-2" if len(places) == 1 else "block-4", False)
            self.top += ROW
            small = small[count:]

    def box(self, place: int, words: str, kind: str, advance: bool = True) -> None:
        width = 170
        self.parts.append(
            f'<rect x="{self.middle(place) - width / 2:.1f}" y="{self.top + 2:.1f}" width="{width}"'
            f' height="{ROW - 6}" rx="3" class="{kind}"/>'
            f'<text x="{self.middle(place):.1f}" y="{self.top + 16:.1f}" text-anchor="middle"'
            f' style="fill: white">{html.escape(words)}</text>'
        )
        self.top += ROW if advance else 0

    def arrow(self, message: Message) -> None:
        source, target = message.edge
        sign = 1 if target > source else -1
        start, end = self.middle(source) + 88 * sign, self.middle(target) - 92 * sign
        y = self.top + 15
        self.parts.append(
            f'<path d="M{start:.1f} {y:.1f} L{end:.1f} {y:.1f}" class="line" marker-end="url(#lw-move)"/>'
        )
        types = [move.var.aval.str_short(short_dtypes=True) for move in message.moves]
        values = f"{', '.join(types)}, {message.bytes} bytes"
        self.parts.append(text((start + end) / 2, y - 4, values, "faint", "middle"))
        self.top += ROW

    def region(
        self, members: frozenset[int], title: str, sections: Sequence[tuple[str, Steps]]
    ) -> None:
        """An outline around the places that have a loop or a branch."""
        begin, inset = self.top + 4, 8 * self.depth
        self.top += 8
        self.depth += 1
        for name, steps in sections:
            if not steps.steps and title == "branch":
                name = f"{name}: nothing"
            x = LEFT + min(members) * self.column + inset + 10
            self.parts.append(text(x, self.top + 14, f"{title}: {name}"))
            self.top += ROW - 4
            self.steps(steps.steps)
        self.depth -= 1
        self.top += 6
        x = LEFT + min(members) * self.column + inset
        width = (max(members) - min(members) + 1) * self.column - 2 * inset
        self.parts.append(
            f'<rect x="{x:.1f}" y="{begin:.1f}" width="{width:.1f}" height="{self.top - begin:.1f}"'
            ' rx="6" class="line"/>'
        )
        self.top += 4


_TIP = (
    '<defs><marker id="lw-move" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 Z" class="tip"/></marker></defs>'
)


def placed_steps() -> str:
    """All steps of a `while` with a branch over two places."""
    names = ("solver", "corrector")
    actions = actions_of(solve, {"solver": 0, "corrector": 1}, SQUARE, SQUARE, ROWS[0], 0.1)
    sheet = Sheet(names)
    for place, name in enumerate(names):
        sheet.parts.append(text(sheet.middle(place), 18, f"place {place}: {name}", "", "middle"))
    sheet.steps(actions.steps.steps)
    return figure(
        picture([_TIP, *sheet.parts], sheet.top + 6, title="What runs where in a placed loop"),
        "The steps of <code>solve</code>, in the order in which both places meet them. Green: parts. Blue: what runs at"
        " one place because its operands are there. Brown: counters, of which each place has its own. An arrow is a"
        " message.",
    )


# -- a loop against a clock ------------------------------------------------------------------------

WORK, SMALL, TRAVEL = 1.0, 0.0, 0.35


def played(
    body: Sequence[Step], turns: int, credits: dict[tuple[int, int], int]
) -> list[tuple[int, int, float, float]]:
    """When each place works on which iteration: (place, iteration, begin, end) of each part.

    A part takes the same time everywhere. A message is under way for a while; a send waits until there is room for it.
    """
    clock: dict[int, float] = {}
    sent: dict[tuple[int, int], list[float]] = {}
    taken: dict[tuple[int, int], list[float]] = {}
    found = []
    for turn in range(turns):
        # In program order a send comes before its receive, and both before what follows at their places.
        for step in body:
            if isinstance(step, Compute):
                for place in step.places:
                    begin = clock.get(place, 0.0)
                    long = WORK if step.op.eqn.primitive.name == "part" else SMALL
                    clock[place] = begin + long
                    if long:
                        found.append((place, turn, begin, begin + long))
            elif isinstance(step, Message):
                edge = source, target = step.edge
                out, into = sent.setdefault(edge, []), taken.setdefault(edge, [])
                room = into[-credits[edge]] if len(into) >= credits[edge] else 0.0
                leaves = max(clock.get(source, 0.0), room)
                clock[source] = leaves
                out.append(leaves)
                arrives = max(clock.get(target, 0.0), leaves + TRAVEL)
                clock[target] = arrives
                into.append(arrives)
    return found


def overlapped() -> str:
    """Two loops over two places: one whose iterations overlap, one whose iterations cannot."""
    parts: list[str] = []
    top, end = 4.0, 0.0
    rows = []
    for fun, words in (
        (model, "model: the encoder is ahead of the decoder"),
        (fed_back, "fed_back: the encoder reads the state, and waits for it"),
    ):
        actions = actions_of(fun, {"encoder": 0, "decoder": 1}, SQUARE, SQUARE, ROWS)
        (loop,) = [step for step in actions.steps.steps if isinstance(step, Loop)]
        bars = played(loop.body.steps, 10, actions.credits(in_flight=8))
        rows.append((words, bars))
        end = max(end, *(bar[3] for bar in bars))
    scale = (WIDTH - 100) / end
    for words, bars in rows:
        parts.append(text(90, top + 12, words))
        top += 18
        for place, name in enumerate(("encoder", "decoder")):
            parts.append(text(80, top + 15, name, "faint", "end"))
            for at, turn, begin, stop in bars:
                if at != place:
                    continue
                x, width = 90 + begin * scale, (stop - begin) * scale
                parts.append(
                    f'<rect x="{x:.1f}" y="{top + 2:.1f}" width="{width - 1:.1f}" height="18" rx="2"'
                    f' class="block-{turn % 6}"/>'
                    f'<text x="{x + width / 2:.1f}" y="{top + 15:.1f}" text-anchor="middle"'
                    f' style="fill: white; font-size: 11px">{turn}</text>'
                )
            top += 22
        top += 12
    return figure(
        picture(parts, top, title="Iterations of a placed loop that overlap, and some that do not"),
        "Ten iterations of two loops over two places, played from their steps with parts that take the same time."
        " Above, values go one way. Below, they come back within an iteration, and the places take turns.",
    )


DRAWINGS = {"placed_steps": placed_steps, "overlapped": overlapped}
