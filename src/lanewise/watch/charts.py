"""Charts as inline SVG: areas, lines, heat maps, bars and rows of spans, over a common frame.

A chart has no colours of its own but classes (`page.css` gives them); a rectangle or a point that carries figures has
them as its title, which a browser shows where the pointer rests, and the page's script reads the nearest one out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lanewise.watch.svg import LETTER, number, picture, tag, text, title

WIDTH = 860.0
TOP, RIGHT, BOTTOM, LEFT = 10.0, 14.0, 34.0, 58.0
SMALL = 11.0
INTENSITIES = 9
SERIES = 8

Format = Callable[[float], str]


def count(value: float) -> str:
    """A number in a few characters.

    >>> [count(x) for x in (0, 12, 1234, 25_000, 3.2e6, 0.25)]
    ['0', '12', '1,234', '25k', '3.2M', '0.25']
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            size = 1e3 if letter == "k" else size
            return f"{value / size:.3g}{letter}"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"


def percent(value: float) -> str:
    return f"{value:.0%}"


def seconds(value: float) -> str:
    """A time.

    >>> [seconds(x) for x in (0, 0.0000021, 0.0312, 2.5, 754)]
    ['0', '2.1 µs', '31.2 ms', '2.5 s', '12 min 34 s']
    """
    if value == 0:
        return "0"
    if value >= 120:
        minutes, left = divmod(round(value), 60)
        return f"{minutes} min {left} s" if left else f"{minutes} min"
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= size * 0.9995:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


@dataclass(frozen=True)
class Axis:
    """What an axis runs from and to, what it is called and how its figures are written."""

    low: float
    high: float
    name: str
    write: Format = count
    whole: bool = False

    def ticks(self, most: int) -> list[float]:
        """A few round numbers.

        >>> Axis(0, 97, "").ticks(5)
        [0.0, 20.0, 40.0, 60.0, 80.0]
        """
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        rough = max(span / most, 1.0) if self.whole else span / most
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * m for m in (1, 2, 5, 10) if size * m >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [float(i * step) for i in range(first, last + 1)]


@dataclass(frozen=True)
class Frame:
    """Where a chart's figures go."""

    x: Axis
    y: Axis
    height: float = 210.0
    left: float = LEFT
    width: float = WIDTH

    def across(self, value: float) -> float:
        span = (self.x.high - self.x.low) or 1.0
        return self.left + (value - self.x.low) / span * (self.width - self.left - RIGHT)

    def up(self, value: float) -> float:
        span = (self.y.high - self.y.low) or 1.0
        return self.height - BOTTOM - (value - self.y.low) / span * (self.height - BOTTOM - TOP)

    def drawn(self, parts: Sequence[str], label: str, kind: str, *, y_axis: bool = True) -> str:
        """The whole chart, axes behind what is in it."""
        behind = self._x_axis() + (self._y_axis() if y_axis else [])
        return picture([*behind, *parts], self.width, self.height, label, f"lw-chart {kind}")

    def _x_axis(self) -> list[str]:
        floor = self.height - BOTTOM
        parts = [
            tag("line", x1=self.left, x2=self.width - RIGHT, y1=floor, y2=floor, class_="axis")
        ]
        for value in self.x.ticks(max(int(self.width / 120), 5)):
            x = self.across(value)
            parts.append(tag("line", x1=x, x2=x, y1=floor, y2=floor + 4, class_="axis"))
            parts.append(
                text(x, floor + 16, self.x.write(value), text_anchor="middle", class_="figure")
            )
        middle = (self.left + self.width - RIGHT) / 2
        parts.append(
            text(middle, self.height - 4, self.x.name, text_anchor="middle", class_="axis-name")
        )
        return parts

    def _y_axis(self) -> list[str]:
        parts = []
        for value in self.y.ticks(4):
            y = self.up(value)
            parts.append(
                tag("line", x1=self.left, x2=self.width - RIGHT, y1=y, y2=y, class_="grid")
            )
            parts.append(
                text(self.left - 6, y + 4, self.y.write(value), text_anchor="end", class_="figure")
            )
        parts.append(
            text(
                -(TOP + self.height - BOTTOM) / 2,
                13,
                self.y.name,
                text_anchor="middle",
                transform="rotate(-90)",
                class_="axis-name",
            )
        )
        return parts


def stepped_area(
    edges: np.ndarray, values: np.ndarray, x: Axis, y: Axis, label: str, titles: Sequence[str]
) -> str:
    """Values between edges, as an area; `titles` is what each part says of itself."""
    frame = Frame(x, y)
    floor = frame.up(y.low)
    path = [f"M{number(frame.across(edges[0]))} {number(floor)}"]
    for start, end, value in zip(edges, edges[1:], values):
        height = number(frame.up(float(value)))
        path.append(f"L{number(frame.across(start))} {height}H{number(frame.across(end))}")
    path.append(f"V{number(floor)}Z")
    parts = [tag("path", d="".join(path), class_="area")]
    # One strip for each part, to point at.
    for start, end, words in zip(edges, edges[1:], titles):
        left, right = frame.across(start), frame.across(end)
        parts.append(
            tag(
                "rect",
                title(words),
                x=left,
                y=TOP,
                width=max(right - left, 0.2),
                height=floor - TOP,
                class_="pointed",
            )
        )
    return frame.drawn(parts, label, "area-chart")


@dataclass(frozen=True)
class Line:
    """A line of a chart: its points, its name, and whether it goes in steps."""

    x: np.ndarray
    y: np.ndarray
    name: str
    stepped: bool = False


def lines(
    given: Sequence[Line],
    x: Axis,
    y: Axis,
    label: str,
    *,
    thin: bool = False,
    marks: Sequence[tuple[float, str]] = (),
    band: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> str:
    """Several lines; `marks` are places along the floor, with what they say; `band` has places, least and greatest."""
    frame = Frame(x, y)
    parts = []
    if band is not None:
        places, low, high = band
        there = [(a, b) for a, b in zip(places, high)]
        back = [(a, b) for a, b in zip(places[::-1], low[::-1])]
        around = " ".join(
            f"{number(frame.across(float(a)))},{number(frame.up(float(b)))}"
            for a, b in there + back
        )
        parts.append(tag("polygon", points=around, class_="band"))
    for i, line in enumerate(given):
        places = [(frame.across(float(a)), frame.up(float(b))) for a, b in zip(line.x, line.y)]
        path = f"M{number(places[0][0])} {number(places[0][1])}"
        for a, b in places[1:]:
            path += f"H{number(a)}V{number(b)}" if line.stepped else f"L{number(a)} {number(b)}"
        kind = f"line series-{i % SERIES}" + (" thin" if thin else "")
        parts.append(tag("path", title(line.name), d=path, class_=kind))
    for at, words in marks:
        left = frame.across(at)
        parts.append(
            tag(
                "rect",
                title(words),
                x=left - 1,
                y=frame.up(y.low) - 9,
                width=2,
                height=9,
                class_="mark",
            )
        )
    return frame.drawn(parts, label, "line-chart")


def heat_map(
    edges: np.ndarray,
    rows: Sequence[str],
    values: np.ndarray,
    x: Axis,
    label: str,
    keys: Sequence[str] = (),
    kind: str = "heat-chart",
    row_height: float = 22.0,
) -> str:
    """A row for each name, coloured by its values (0 to 1) between the edges; nothing is drawn for 0.

    `keys` name rows for the page's script. Parts of the same colour are one path: there are thousands of them.
    """
    height = TOP + row_height * len(rows) + BOTTOM
    left = min(max(LEFT, max(len(name) for name in rows) * LETTER * SMALL + 14), 200)
    frame = Frame(x, Axis(0, 1, ""), height, left)
    letters = int((left - 14) / (LETTER * SMALL))
    places = [frame.across(edge) for edge in edges]
    levels = np.where(
        values > 0, np.minimum(values * INTENSITIES, INTENSITIES - 1).astype(int) + 1, 0
    )
    parts = []
    for i, name in enumerate(rows):
        y = TOP + i * row_height
        shown = name if len(name) <= letters else name[: letters - 1] + "…"
        end = WIDTH - RIGHT
        cells = [
            text(left - 8, y + row_height / 2 + 4, shown, text_anchor="end", class_="row-name"),
            tag("rect", x=left, y=y + 1, width=end - left, height=row_height - 2, class_="empty"),
        ]
        for level in range(1, INTENSITIES + 1):
            boxes = "".join(
                f"M{number(places[j])} {number(y + 1)}h{number(max(places[j + 1] - places[j], 0.4))}"
                f"v{number(row_height - 2)}H{number(places[j])}Z"
                for j in np.flatnonzero(levels[i] == level)
            )
            if boxes:
                cells.append(tag("path", d=boxes, class_=f"heat-{level}"))
        parts.append(tag("g", cells, class_="row", data_block=keys[i] if keys else None))
    return frame.drawn(parts, label, kind, y_axis=False)


def spans(
    rows: Sequence[str],
    starts: np.ndarray,
    ends: np.ndarray,
    x: Axis,
    label: str,
    titles: Sequence[str],
    limit: float | None = None,
) -> str:
    """A bar for each row, from its start to its end; a dashed line is at the limit."""
    row_height = max(5.0, min(14.0, 420.0 / max(len(rows), 1)))
    height = TOP + row_height * len(rows) + BOTTOM
    frame = Frame(x, Axis(0, 1, ""), height)
    parts = []
    every = max(1, math.ceil(11 / row_height))
    for i, name in enumerate(rows):
        y = TOP + i * row_height
        left, right = frame.across(float(starts[i])), frame.across(float(ends[i]))
        if i % every == 0:
            middle = y + row_height / 2 + 3.5
            parts.append(text(LEFT - 6, middle, name, text_anchor="end", class_="figure"))
        parts.append(
            tag(
                "rect",
                title(titles[i]),
                x=left,
                y=y + 0.5,
                width=max(right - left, 1.0),
                height=row_height - 1.0,
                rx=1.5,
                class_="span",
            )
        )
    if limit is not None:
        at, floor = frame.across(limit), height - BOTTOM
        parts.append(tag("line", title("limit"), x1=at, x2=at, y1=TOP, y2=floor, class_="limit"))
    return frame.drawn(parts, label, "span-chart", y_axis=False)


def histogram(
    values: np.ndarray,
    name: str,
    unit: str,
    label: str,
    bins: int = 48,
    unit_name: str = "examples",
    limit: int | None = None,
) -> str:
    """How many values fall in each bin; whole numbers in bins of whole numbers, up to and with a marked `limit`."""
    low, high = float(values.min()), float(values.max())
    high = high if limit is None else max(high, float(limit))
    width = max(1, math.ceil((high - low + 1) / bins))
    edges = np.arange(low, high + width + 1, width, dtype=float)
    edges = edges[: int(np.searchsorted(edges, high, side="right")) + 1]
    counts, edges = np.histogram(values, edges)
    titles = [
        f"{count(a)} to {count(b - 1)} {unit}: {count(n)}"
        if b - a > 1
        else f"{count(a)} {unit}: {count(n)}"
        for a, b, n in zip(edges, edges[1:], counts)
    ]
    # The figure of a bar that stands for one number is below its middle.
    places = edges - 0.5 if width == 1 else edges
    x = Axis(places[0], places[-1], name, whole=True)
    return bars(places, counts, x, unit_name, label, titles, limit)


def bars(
    edges: np.ndarray,
    heights: np.ndarray,
    x: Axis,
    y_name: str,
    label: str,
    titles: Sequence[str],
    limit: float | None = None,
) -> str:
    """Bars between edges; a dashed line is at the limit."""
    y = Axis(0, float(max(heights.max(), 1)) * 1.05, y_name, whole=True)
    frame = Frame(x, y, 190.0)
    parts = []
    for start, end, value, words in zip(edges, edges[1:], heights, titles):
        if not value:
            continue
        left, right, top = frame.across(start), frame.across(end), frame.up(float(value))
        parts.append(
            tag(
                "rect",
                title(words),
                x=left + 0.5,
                y=top,
                width=max(right - left - 1, 0.6),
                height=max(frame.up(0) - top, 0.6),
                class_="bar series-0",
            )
        )
    if limit is not None:
        at, floor = frame.across(limit), frame.up(0)
        parts.append(tag("line", title("limit"), x1=at, x2=at, y1=TOP, y2=floor, class_="limit"))
        parts.append(text(at - 5, TOP + 10, "limit", text_anchor="end", class_="figure"))
    return frame.drawn(parts, label, "bar-chart")


def points(
    groups: Sequence[tuple[np.ndarray, np.ndarray, str]],
    x: Axis,
    y: Axis,
    label: str,
    width: float = WIDTH,
) -> str:
    """Points in groups: places across, places up, and a class of `page.css` for each group."""
    frame = Frame(x, y, 320.0, width=width)
    parts = [
        tag(
            "path",
            d="".join(
                f"M{number(frame.across(float(a)))} {number(frame.up(float(b)))}h0"
                for a, b in zip(across, up)
            ),
            class_=f"points {kind}",
        )
        for across, up, kind in groups
        if len(across)
    ]
    return frame.drawn(parts, label, "point-chart")
