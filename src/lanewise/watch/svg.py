"""SVG as strings: the few shapes that our pictures are made of.

Ink is `currentColor`, so a picture that stands in a page takes that page's colours, light or dark.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

# Wide enough for any letter of the fonts that pictures ask for, at size 1.
LETTER = 0.62
FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', sans-serif"
CODE_FONT = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def number(value: float) -> str:
    """A coordinate, with no more digits than can be seen.

    >>> number(3.0), number(2 / 3)
    ('3', '0.7')
    """
    return f"{value:.1f}".removesuffix(".0")


def tag(name: str, content: str | Sequence[str] = "", **attributes: object) -> str:
    """An element; underscores in names of attributes stand for hyphens, one at the end for nothing.

    >>> tag("rect", x=1, width=2.5, class_="box")
    '<rect x="1" width="2.5" class="box"/>'
    >>> tag("text", "a < b", x=0)
    '<text x="0">a < b</text>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = content if isinstance(content, str) else "".join(content)
    return f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>"


def _value(value: object) -> str:
    return number(value) if isinstance(value, int | float) else html.escape(str(value))


def text(x: float, y: float, words: str, **attributes: object) -> str:
    """Words at a place; what HTML would misread is escaped."""
    return tag("text", html.escape(words), x=x, y=y, **attributes)


def title(words: str) -> str:
    """What a browser shows where the pointer rests."""
    return tag("title", html.escape(words))


def arrow_head(x: float, y: float, direction: str, size: float = 4.5) -> str:
    """A tip that points "down", "left", "right" or "up", with its point at (x, y)."""
    across, along = size * 0.8, size * 1.6
    corners = {
        "down": [(x - across, y - along), (x + across, y - along)],
        "up": [(x - across, y + along), (x + across, y + along)],
        "right": [(x - along, y - across), (x - along, y + across)],
        "left": [(x + along, y - across), (x + along, y + across)],
    }[direction]
    points = " ".join(f"{number(a)},{number(b)}" for a, b in [(x, y), *corners])
    return tag("polygon", points=points, class_="lw-tip")


def picture(
    parts: Sequence[str], width: float, height: float, label: str, kind: str, style: str = ""
) -> str:
    """A whole drawing, which scales with its place and never grows beyond its own size."""
    inside = ([tag("style", style)] if style else []) + list(parts)
    return tag(
        "svg",
        inside,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=width,
        height=height,
        class_=kind,
        role="img",
        aria_label=label,
    )
