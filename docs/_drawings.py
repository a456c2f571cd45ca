"""The drawings of the docs, made from programs that are run for them.

`refilled` and `waiting` show the trip counts of the Collatz program; `depths` shows which block each lane is at, tick
by tick, from what the reference interpreter visits; `fib_blocks` is `lanewise.inspect(...).svg()`. Only `layers` is
drawn by hand. Colours are the page's (assets/site.css).
"""

from __future__ import annotations

import html
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

import lanewise as lw
from lanewise.blocks.form import Block, Call, Label, Return
from lanewise.blocks.reference import interpret

WIDTH = 760
ROW = 20
LEFT = 78


@dataclass(frozen=True)
class Bar:
    """A stretch of a lane's time, with the class that gives it its colour."""

    start: float
    end: float
    kind: str
    label: str = ""


def figure(svg: str, caption: str) -> str:
    """A drawing with a caption, without blank lines: Markdown would take them for the end of it."""
    return f'<figure class="lw-drawing" data-search-exclude>{svg}<figcaption>{caption}</figcaption></figure>'


def picture(parts: Sequence[str], height: float, width: float = WIDTH, title: str = "") -> str:
    return (
        f'<svg viewBox="0 0 {width} {height:.0f}" width="{width}" role="img"'
        f' aria-label="{html.escape(title)}">{"".join(parts)}</svg>'
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    classes = f' class="{kind}"' if kind else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{classes}>{html.escape(words)}</text>'
    )


def lane_rows(rows: Sequence[Sequence[Bar]], top: float, end: float) -> list[str]:
    """One row of bars for each lane, time from left to right."""
    scale = (WIDTH - LEFT - 10) / end
    parts = []
    for lane, bars in enumerate(rows):
        y = top + lane * ROW
        parts.append(text(LEFT - 10, y + 14, f"lane {lane}", "faint", "end"))
        for bar in bars:
            x, width = LEFT + bar.start * scale, (bar.end - bar.start) * scale
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 2}" width="{max(width - 1, 0.5):.1f}" height="{ROW - 4}"'
                f' rx="2" class="{bar.kind}"/>'
            )
            if bar.label and width > 26:
                parts.append(
                    f'<text x="{x + width / 2:.1f}" y="{y + 14}" text-anchor="middle"'
                    f' style="fill: white; font-size: 11px">{bar.label}</text>'
                )
    return parts


# -- trip counts -----------------------------------------------------------------------------------


@lw.program
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


NUMBERS = (3, 6, 12, 25, 5, 10, 18, 8, 33, 20, 13, 7)


def trip_counts() -> list[int]:
    return np.asarray(lw.vmap(collatz, carrier="ticks")(jnp.array(NUMBERS))).tolist()


def waiting_lanes() -> tuple[str, float]:
    """A batch of which each lane waits for the slowest, and the share of it that is used."""
    counts = trip_counts()
    end = max(counts)
    rows = [
        [Bar(0, count, "run", f"n = {n}"), Bar(count, end, "wait")]
        for n, count in zip(NUMBERS, counts, strict=True)
    ]
    drawn = picture(
        lane_rows(rows, 0, end), ROW * len(rows), title="Lanes that wait for the slowest"
    )
    return drawn, sum(counts) / (end * len(counts))


def waiting() -> str:
    drawn, share = waiting_lanes()
    return figure(
        drawn,
        f"Twelve Collatz sequences as twelve lanes. Coloured: iterations that count. Grey: the lane has ended and"
        f" waits. {share:.0%} of the room is used.",
    )


def waiting_alone() -> str:
    """The same as a file of its own, for the README: with its colours, which are readable on light and dark."""
    drawn, _ = waiting_lanes()
    style = "text { font: 12px sans-serif; fill: #7b8794 } .run { fill: #00897b } .wait { fill: #90a4ae55 }"
    return drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        ">", f"><style>{style}</style>", 1
    )


def refilled() -> str:
    """The same examples through four lanes: in batches of four, and with refill."""
    counts = trip_counts()
    lanes = 4
    batches: list[list[Bar]] = [[] for _ in range(lanes)]
    began = 0
    for first in range(0, len(counts), lanes):
        group = range(first, min(first + lanes, len(counts)))
        ended = began + max(counts[i] for i in group)
        for lane, i in enumerate(group):
            bar = Bar(began, began + counts[i], _turn(first // lanes), f"n = {NUMBERS[i]}")
            batches[lane] += [bar, Bar(bar.end, ended, "wait")]
        began = ended
    refill: list[list[Bar]] = [[] for _ in range(lanes)]
    for i, count in enumerate(counts):
        lane = min(range(lanes), key=lambda lane: refill[lane][-1].end if refill[lane] else 0)
        start = refill[lane][-1].end if refill[lane] else 0
        refill[lane].append(
            Bar(start, start + count, _turn(len(refill[lane])), f"n = {NUMBERS[i]}")
        )
    done = max(bars[-1].end for bars in refill)
    for bars in refill:
        bars.append(Bar(bars[-1].end, done, "wait"))
    height = ROW * lanes
    parts = [
        text(LEFT, 12, f"a batch of four after the other: {began} iterations"),
        *lane_rows(batches, 18, began),
        text(LEFT, height + 46, f"lanes=4, refilled: {done:.0f} iterations"),
        *lane_rows(refill, height + 52, began),
    ]
    return figure(
        picture(parts, 2 * height + 56, title="Batches beside refill"),
        "The same examples on four lanes. With refill a lane that has ended takes the next example at once.",
    )


def _turn(number: int) -> str:
    return "run other" if number % 2 else "run"


# -- depths of a recursion -------------------------------------------------------------------------


@lw.program
def pieces(a, b, place):
    """How many pieces an interval is cut into, finer near `place`."""
    middle = 0.5 * (a + b)
    if b - a < 0.1 or jnp.abs(middle - place) > b - a:
        return 1
    return pieces(a, middle, place) + pieces(middle, b, place)


PLACES = (0.07, 0.4, 0.66, 0.93)
Path = tuple[int, ...]


def depths() -> str:
    """Lanes of a recursion, tick by tick: by the host's own recursion, and by program counter."""
    places = jnp.array(PLACES)
    program = pieces.with_options(carrier="ticks")
    blocks = lw.inspect(program, 0.0, 1.0, places, in_axes=(None, None, 0)).blocks
    order = {block.label: place for place, (_, block) in enumerate(blocks.all_blocks())}
    walks = [_walk(blocks, order, place) for place in PLACES]

    # By the host's recursion lanes are together only where the pending calls are the same.
    together = sorted({path for walk in walks for path, _ in walk})
    local = [[dict(walk).get(path) for path in together] for walk in walks]
    by_counter = _most([[label for _, label in walk] for walk in walks], order)

    parts: list[str] = []
    top = 0.0
    for title, rows in (
        ("schedule=“local”, the host's own recursion", local),
        ("a program counter and a stack for each lane, schedule=“most”", by_counter),
    ):
        ticks = len(rows[0])
        busy = sum(label is not None for row in rows for label in row)
        heading = f"{title}: {ticks} ticks, lanes {busy / (ticks * len(rows)):.0%} active"
        parts.append(text(LEFT, top + 12, heading))
        bars = [
            [
                Bar(tick, tick + 1, "wait" if label is None else f"block-{order[label] % 6}")
                for tick, label in enumerate(row)
            ]
            for row in rows
        ]
        parts += lane_rows(bars, top + 18, len(together))
        top += ROW * len(rows) + 36
    top += 2
    for place, (_, block) in enumerate(blocks.all_blocks()):
        x = LEFT + place * 110
        parts.append(
            f'<rect x="{x}" y="{top - 10:.0f}" width="11" height="11" rx="2" class="block-{place % 6}"/>'
        )
        parts.append(text(x + 16, top, f"{block.label} {block.note}", "faint"))
    return figure(
        picture(parts, top + 6, title="Lanes at different depths of a recursion"),
        "Four lanes cut an interval into pieces, each finer near a place of its own. A column is a tick, a colour a"
        " block. With a program counter lanes run a block together whatever their depth. (From the blocks that the"
        " reference interpreter visits; the machine itself has a tick for returns, too.)",
    )


def _walk(blocks, order: dict[Label, int], place: float) -> list[tuple[Path, Label]]:
    """The blocks that a lane visits, each with the calls that were pending: a path that sorts as the recursion goes."""
    pending: list[int] = []
    walk: list[tuple[Path, Label]] = []

    def visit(block: Block) -> None:
        walk.append(((*pending, order[block.label]), block.label))
        if isinstance(block.terminator, Call):
            pending.append(order[block.label])
        elif isinstance(block.terminator, Return) and pending:
            pending.pop()

    given = (0.0, 1.0, place)
    interpret(blocks, [jnp.float32(x) for x in given], visit=visit)
    return walk


def _most(walks: list[list[Label]], order: dict[Label, int]) -> list[list[Label | None]]:
    """Run at each tick the block that most lanes wait at."""
    rows: list[list[Label | None]] = [[] for _ in walks]
    at = [0] * len(walks)
    while any(place < len(walk) for place, walk in zip(at, walks)):
        waiting = [walk[place] if place < len(walk) else None for place, walk in zip(at, walks)]
        chosen = max(
            {label for label in waiting if label is not None},
            key=lambda label: (waiting.count(label), -order[label]),
        )
        for lane, label in enumerate(waiting):
            rows[lane].append(label if label == chosen else None)
            at[lane] += label == chosen
    return rows


# -- programs --------------------------------------------------------------------------------------


@lw.program
def fib(n):
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)


def fib_blocks() -> str:
    found = lw.inspect(fib.with_options(carrier="ticks"), jnp.arange(8))
    return figure(
        found.svg(),
        "The blocks of <code>fib</code>, as <code>lw.inspect(fib, ...).svg()</code> draws them.",
    )


def layers() -> str:
    """What a function becomes on its way to a device."""
    boxes = (
        (0, 30, 150, "a Python function", "@lw.program"),
        (0, 90, 150, "any JAX function", "lw.lift"),
        (210, 60, 150, "a table of jaxprs", "one JAX primitive"),
        (420, 60, 120, "blocks", "pc, stacks"),
        (600, 10, 150, "ticks", "XLA, all lanes at once"),
        (600, 70, 150, "native", "CPU, lane by lane"),
        (600, 130, 150, "kernel", "one CUDA kernel"),
    )
    parts = [
        '<defs><marker id="lw-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto"><path d="M0 0 L8 4 L0 8 z" class="tip"/></marker></defs>'
    ]
    for x, y, width, name, under in boxes:
        parts.append(f'<rect x="{x + 2}" y="{y}" width="{width}" height="44" rx="6" class="box"/>')
        parts.append(text(x + 2 + width / 2, y + 19, name, "", "middle"))
        parts.append(text(x + 2 + width / 2, y + 35, under, "faint", "middle"))
    joins = (
        "M153 52 C185 52 180 78 208 80",
        "M153 112 C185 112 180 86 208 84",
        "M363 82 L418 82",
        "M543 78 C575 74 570 34 598 32",
        "M543 82 C565 82 575 92 598 92",
        "M543 86 C575 90 570 150 598 152",
        "M255 58 C230 8 340 8 316 56",
    )
    parts += [f'<path d="{join}" class="line" marker-end="url(#lw-tip)"/>' for join in joins]
    parts.append(text(286, 14, "jvp, vjp", "faint", "middle"))
    return figure(
        picture(parts, 180, title="From a function to a carrier"),
        "Differentiation takes a program and gives a program. Then it is flattened to blocks, for three carriers.",
    )


DRAWINGS: dict[str, Callable[[], str]] = {
    "waiting": waiting,
    "refilled": refilled,
    "depths": depths,
    "fib_blocks": fib_blocks,
    "layers": layers,
}

# Files beside the pages, which the README shows: `python docs/_drawings.py` writes them.
FILES: dict[str, Callable[[], str]] = {"waiting.svg": waiting_alone}

if __name__ == "__main__":
    for file, make in FILES.items():
        (pathlib.Path(__file__).parent / "assets" / file).write_text(make() + "\n")
