"""The block graph of a program, drawn: `lanewise.inspect(...).svg()`.

Each function is a column of blocks in program order, which is the order they run in. A block leads down to the next;
other edges forward go round the right side, edges back (loops) round the left, the longer the further out. A call is a
dashed line to the function that is called.

What was considered: layers by distance from the entry, with branches side by side, make prettier diamonds and lose the
program's order, in which a schedule runs the blocks and in which they are printed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lanewise.blocks.analysis import Storage
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Branch,
    Call,
    Collect,
    Fail,
    Fork,
    Label,
    Return,
    Spawn,
    TailCall,
    callees,
    successors,
)
from lanewise.core.primitives.facts import cost_of
from lanewise.watch.svg import (
    CODE_FONT,
    FONT,
    LETTER,
    arrow_head,
    number,
    picture,
    tag,
    text,
    title,
)

HEIGHT, GAP, TITLE = 46.0, 28.0, 34.0
WIDEST, NARROWEST = 300.0, 132.0
ARC, BETWEEN, MARGIN = 15.0, 26.0, 12.0
TITLE_SIZE, NAME_SIZE, NOTE_SIZE = 13.0, 12.0, 10.5

_STYLE = f"""
svg.lw-graph:root {{ color: #1f2933; background: #ffffff; }}
@media (prefers-color-scheme: dark) {{ svg.lw-graph:root {{ color: #e3e8ee; background: #14181d; }} }}
.lw-graph {{ font-family: {FONT}; max-width: 100%; height: auto; }}
.lw-graph text {{ fill: currentColor; stroke: none; }}
.lw-graph .lw-function {{ font: 600 {TITLE_SIZE}px {CODE_FONT}; }}
.lw-graph .lw-name {{ font-size: {NAME_SIZE}px; font-weight: 600; }}
.lw-graph .lw-note {{ font-size: {NOTE_SIZE}px; opacity: 0.68; }}
.lw-graph .lw-way {{ font-size: {NOTE_SIZE - 1}px; opacity: 0.75; }}
.lw-graph .lw-box {{ fill: currentColor; fill-opacity: 0.045; stroke: currentColor; stroke-opacity: 0.4; }}
.lw-graph .lw-share {{ fill: #0d9488; fill-opacity: 0.3; stroke: none; }}
.lw-graph .lw-expensive .lw-box {{ stroke: #d97706; stroke-opacity: 1; stroke-width: 1.8; }}
.lw-graph .lw-edge {{ fill: none; stroke: currentColor; stroke-opacity: 0.55; stroke-width: 1.2; }}
.lw-graph .lw-back {{ stroke: #0d9488; stroke-opacity: 1; }}
.lw-graph .lw-call {{ stroke-dasharray: 4 3; stroke: #6366f1; stroke-opacity: 0.9; }}
.lw-graph .lw-tip {{ fill: currentColor; fill-opacity: 0.6; stroke: none; }}
""".strip()


@dataclass(frozen=True)
class _Column:
    """Where a function's blocks are: its left edge, the width of its boxes, and the top of each block.

    `outer`: how far the ways round its blocks go, to the left and to the right.
    """

    function: BlockFunction
    left: float
    width: float
    top: dict[Label, float]
    outer: tuple[float, float]

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def middle(self) -> float:
        return self.left + self.width / 2


class _Edge(NamedTuple):
    """A way from a block to another of its function, by their places; to its head (-1) if it calls itself."""

    source: int
    target: int
    label: str
    kind: str = ""


def graph_svg(
    program: BlockProgram,
    storage: Storage | None = None,
    *,
    expensive: Collection[Label] = (),
    shares: Mapping[Label, float] | None = None,
) -> str:
    """The blocks of a program and the edges between them.

    `expensive` blocks are marked; `shares` fills a block by how much of the work it did, from 0 to 1.
    """
    columns, parts = [], []
    left = MARGIN
    for function in program.functions.values():
        edges = _edges(function)
        backward = _levels([e for e in edges if e.target <= e.source])
        forward = _levels([e for e in edges if e.target > e.source + 1])
        width = _width(function)
        outside = left
        left += ARC * max(backward.values(), default=0)
        end = left + width + ARC * max(forward.values(), default=0)
        top = MARGIN + TITLE
        tops = {block.label: top + i * (HEIGHT + GAP) for i, block in enumerate(function.blocks)}
        column = _Column(function, left, width, tops, (outside, end))
        columns.append(column)
        parts += _drawn_edges(column, edges, backward | forward)
        left = end + BETWEEN
    by_name = {column.function.name: column for column in columns}
    for column in columns:
        parts += _drawn_calls(column, by_name)
        parts.append(
            text(
                column.middle,
                MARGIN + 13,
                column.function.name,
                text_anchor="middle",
                class_="lw-function",
            )
        )
        parts += [
            _drawn_block(
                column, block, storage, block.label in expensive, (shares or {}).get(block.label)
            )
            for block in column.function.blocks
        ]
    rows = max(len(column.function.blocks) for column in columns)
    height = MARGIN + TITLE + rows * (HEIGHT + GAP) - GAP + MARGIN
    label = f"The blocks of {program.entry} and the edges between them"
    return picture(parts, left - BETWEEN + MARGIN, height, label, "lw-graph", _STYLE)


def _width(function: BlockFunction) -> float:
    letters = max(
        max(len(_name(block)) * NAME_SIZE, len(_about(block)) * NOTE_SIZE)
        for block in function.blocks
    )
    head = len(function.name) * TITLE_SIZE
    return min(max(NARROWEST, LETTER * max(letters, head) + 24), WIDEST)


def _name(block: Block) -> str:
    return f"{block.label}  {block.note}"


def _about(block: Block) -> str:
    """What a block costs, and how it ends where no line shows it."""
    cost = cost_of(block.eqns)
    words = [f"{cost.operations:,.0f} ops"] if cost.operations else []
    match block.terminator:
        case Return():
            words.append("returns")
        case Fail():
            words.append("fails")
        case Call(callee=callee):
            words.append(f"calls {callee}")
        case TailCall(callee=callee):
            words.append(f"becomes {callee}")
        case Fork(calls):
            words.append(f"forks {', '.join(call.callee for call in calls)}")
        case Spawn(calls):
            words.append(f"spawns {', '.join(call.callee for call in calls)}")
        case Collect():
            words.append("collects")
        case _:
            pass
    return ", ".join(words) or "jumps"


def _edges(function: BlockFunction) -> list[_Edge]:
    place = {block.label: i for i, block in enumerate(function.blocks)}
    found = []
    for i, block in enumerate(function.blocks):
        end = block.terminator
        if isinstance(end, Branch):
            names = ("no", "yes") if len(end.targets) == 2 else map(str, range(len(end.targets)))
            ways: dict[Label, list[str]] = {}
            for name, target in zip(names, end.targets, strict=True):
                ways.setdefault(target, []).append(name)
            found += [_Edge(i, place[target], "/".join(on)) for target, on in ways.items()]
        else:
            found += [_Edge(i, place[label], "") for label in successors(block)]
        if function.name in callees(end):
            found.append(_Edge(i, -1, "", "lw-call"))
    return found


def _levels(edges: Sequence[_Edge]) -> dict[_Edge, int]:
    """How far out each way goes round, so that none overlaps another: the short ones inside."""
    taken: list[list[tuple[int, int]]] = []
    levels = {}
    for edge in sorted(edges, key=lambda e: abs(e.target - e.source)):
        low, high = sorted((edge.source, edge.target))
        free = (i for i, s in enumerate(taken) if all(high < a or b < low for a, b in s))
        level = next(free, len(taken))
        taken += [[]] * (level == len(taken))
        taken[level] = [*taken[level], (low, high)]
        levels[edge] = level + 1
    return levels


def _drawn_edges(column: _Column, edges: Sequence[_Edge], levels: Mapping[_Edge, int]) -> list[str]:
    blocks = column.function.blocks
    parts = []
    for edge in edges:
        source = column.top[blocks[edge.source].label]
        if edge not in levels:
            target = column.top[blocks[edge.target].label]
            x = column.middle
            parts.append(_line(f"M{number(x)} {number(source + HEIGHT)}V{number(target - 2)}"))
            parts.append(arrow_head(x, target, "down"))
            parts.append(text(x + 6, source + HEIGHT + 15, edge.label, class_="lw-way"))
            continue
        calls_itself = edge.target < 0
        y = source + HEIGHT * (0.72 if edge.target > edge.source else 0.28)
        if calls_itself:
            end = MARGIN + 9
        else:
            end = column.top[blocks[edge.target].label] + HEIGHT * (
                0.28 if edge.target > edge.source else 0.72
            )
        out = ARC * levels[edge]
        if edge.target > edge.source:
            x, turn, tip = column.right, column.right + out, "left"
            label = text(x + 4, y - 4, edge.label, class_="lw-way")
        else:
            x, turn, tip = column.left, column.left - out, "right"
            label = text(x - 4, y - 4, edge.label, class_="lw-way", text_anchor="end")
        stop = column.middle - LETTER * TITLE_SIZE * len(column.function.name) / 2 - 8
        to = stop if calls_itself else x
        parts.append(_line(_round(x, y, turn, end, to), edge.kind or _way_back(edge)))
        parts += [arrow_head(to, end, tip), label]
    return parts


def _way_back(edge: _Edge) -> str:
    return "lw-back" if edge.target <= edge.source else ""


def _round(x: float, y: float, turn: float, end: float, to: float, radius: float = 6.0) -> str:
    """From (x, y) out to `turn`, along to the height `end` and in to `to`, with round corners."""
    side = 1 if turn > x else -1
    down = 1 if end > y else -1
    return (
        f"M{number(x)} {number(y)}H{number(turn - side * radius)}"
        f"Q{number(turn)} {number(y)} {number(turn)} {number(y + down * radius)}"
        f"V{number(end - down * radius)}"
        f"Q{number(turn)} {number(end)} {number(turn - side * radius)} {number(end)}H{number(to)}"
    )


def _up_and_on(x: float, y: float, turn: float, end: float, to: float, radius: float = 6.0) -> str:
    """From (x, y) sideways to `turn`, up to the height `end`, and on in the same direction to `to`."""
    side = 1 if to > x else -1
    return (
        f"M{number(x)} {number(y)}H{number(turn - side * radius)}"
        f"Q{number(turn)} {number(y)} {number(turn)} {number(y - radius)}V{number(end + radius)}"
        f"Q{number(turn)} {number(end)} {number(turn + side * radius)} {number(end)}H{number(to)}"
    )


def _drawn_calls(column: _Column, columns: Mapping[str, _Column]) -> list[str]:
    """Calls of other functions: to the head of their column."""
    parts = []
    for block in column.function.blocks:
        for name in dict.fromkeys(callees(block.terminator)):
            if name not in (column.function.name, ""):
                parts += _drawn_call(column, columns[name], column.top[block.label] + HEIGHT / 2)
    return parts


def _drawn_call(column: _Column, callee: _Column, y: float) -> list[str]:
    half = LETTER * TITLE_SIZE * len(callee.function.name) / 2 + 8
    to_right = callee.left > column.left
    x = column.right if to_right else column.left
    to = callee.middle - half if to_right else callee.middle + half
    head = MARGIN + 9
    # Up between the columns, where no block is.
    out = BETWEEN / 3
    turn = column.outer[1] + out if to_right else column.outer[0] - out
    return [
        _line(_up_and_on(x, y, turn, head, to), "lw-call"),
        arrow_head(to, head, "right" if to_right else "left"),
    ]


def _line(path: str, kind: str = "") -> str:
    return tag("path", d=path, class_=f"lw-edge {kind}".strip())


def _drawn_block(
    column: _Column, block: Block, storage: Storage | None, expensive: bool, share: float | None
) -> str:
    x, y = column.left, column.top[block.label]
    box: dict[str, Any] = {"x": x, "y": y, "height": HEIGHT, "rx": 6}
    parts = [
        title(_told(block, storage, expensive, share)),
        tag("rect", width=column.width, class_="lw-box", **box),
    ]
    if share:
        parts.append(tag("rect", width=max(column.width * share, 3), class_="lw-share", **box))
    most = int((column.width - 20) / LETTER)
    name, about = _name(block), _about(block)
    parts.append(text(x + 12, y + 19, _short(name, most / NAME_SIZE), class_="lw-name"))
    parts.append(text(x + 12, y + 35, _short(about, most / NOTE_SIZE), class_="lw-note"))
    return tag(
        "g", parts, class_="lw-expensive" if expensive else "lw-block", data_block=str(block.label)
    )


def _short(words: str, letters: float) -> str:
    return words if len(words) <= letters else words[: int(letters) - 1] + "…"


def _told(block: Block, storage: Storage | None, expensive: bool, share: float | None) -> str:
    """What there is to say about a block beside its box."""
    lines = [f"block {block.label} ({block.note})", str(cost_of(block.eqns))]
    if block.steps:
        lines.append(f"{block.steps} step" + ("s" if block.steps > 1 else ""))
    if expensive:
        lines.append("expensive: runs when enough lanes wait for it")
    if share is not None:
        lines.append(f"{share:.1%} of the work")
    if storage is not None and isinstance(block.terminator, Call):
        moves = storage.calls[block.label]
        lines.append(f"pushes {len(moves.push)}, pops {len(moves.pop)} variables")
    operations = [eqn.primitive.name for eqn in block.eqns]
    if operations:
        lines.append(", ".join(operations[:12]) + (", …" if len(operations) > 12 else ""))
    return "\n".join(lines)
