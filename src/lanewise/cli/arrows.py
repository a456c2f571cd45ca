"""Arrows beside a list of rows, drawn in characters: how control goes from block to block in a terminal.

All edges into one row share one arrow, so that there are no more columns than rows that are jumped to. An arrow is
the further left the longer it is; one over another shows as a crossing. An edge to the next row is drawn like any
other, as blocks do not fall through.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ITSELF = "↻"


@dataclass(frozen=True)
class _Arrow:
    """What leads to one row, from the rows `sources`."""

    target: int
    sources: tuple[int, ...]

    @property
    def rows(self) -> range:
        ends = (self.target, *self.sources)
        return range(min(ends), max(ends) + 1)


def gutters(rows: int, edges: Iterable[tuple[int, int]]) -> list[str]:
    """The text to the left of each row, all of one width, for edges (from row, to row).

    >>> for gutter, name in zip(gutters(3, [(0, 1), (0, 2), (1, 1), (1, 2)]), ("start", "body", "end")):
    ...     print(gutter + name)
    ╭┬── start
    ├┴─▶↻body
    ╰──▶ end
    """
    edges = list(edges)
    arrows = [
        _Arrow(target, tuple(sorted({a for a, b in edges if b == target and a != b})))
        for target in sorted({b for a, b in edges if a != b})
    ]
    columns = _columns(arrows)
    width = max(columns.values(), default=-1) + 1
    loops = {a for a, b in edges if a == b}
    return [
        _row(row, arrows, columns, width) + (ITSELF if row in loops else " ") for row in range(rows)
    ]


def _columns(arrows: Iterable[_Arrow]) -> dict[_Arrow, int]:
    """A column for each arrow, 0 the nearest to the rows; arrows that share one do not share rows."""
    taken: list[set[int]] = []
    columns: dict[_Arrow, int] = {}
    for arrow in sorted(arrows, key=lambda arrow: len(arrow.rows)):
        free = (i for i, used in enumerate(taken) if used.isdisjoint(arrow.rows))
        column = next(free, len(taken))
        if column == len(taken):
            taken.append(set())
        taken[column].update(arrow.rows)
        columns[arrow] = column
    return columns


def _row(row: int, arrows: Iterable[_Arrow], columns: dict[_Arrow, int], width: int) -> str:
    cells = [" "] * (width + 2)
    for arrow in sorted(arrows, key=lambda arrow: -columns[arrow]):
        if row not in arrow.rows:
            continue
        place = width - 1 - columns[arrow]
        joins = row == arrow.target or row in arrow.sources
        crossed = cells[place] == "─"
        if not joins:
            cells[place] = "┼" if crossed else "│"
            continue
        first, last = row == arrow.rows[0], row == arrow.rows[-1]
        if crossed:
            cells[place] = "┬" if first else "┴" if last else "┼"
        else:
            cells[place] = "╭" if first else "╰" if last else "├"
        for right in range(place + 1, width + 1):
            cells[right] = "─"
        if row == arrow.target:
            cells[width + 1] = "▶"
        elif cells[width + 1] == " ":
            cells[width + 1] = "─"
    return "".join(cells)
