"""Pieces of HTML that the sections of a report are made of."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from lanewise.watch.charts import SERIES


def escaped(words: object) -> str:
    """Words as HTML has them."""
    return html.escape(str(words))


def heads(names: Sequence[str], numbers: int) -> str:
    """The head of a table whose last `numbers` columns are figures."""
    first = len(names) - numbers
    cells = "".join(
        f'<th class="n">{name}</th>' if i >= first else f"<th>{name}</th>"
        for i, name in enumerate(names)
    )
    return f"<thead><tr>{cells}</tr></thead>"


def whole_table(head: str, rows: Sequence[str]) -> str:
    """A table of rows that are ready; a wide one is moved sideways."""
    return f'<div class="scroll"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def table(names: Sequence[str], rows: Iterable[Sequence[object]], numbers: int) -> str:
    """A table whose last `numbers` columns are figures; what it holds is HTML already."""
    first = len(names) - numbers
    written = [
        "<tr>"
        + "".join(
            f'<td class="n">{cell}</td>' if i >= first else f"<td>{cell}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    ]
    return whole_table(heads(names, numbers), written)


def facts_list(facts: dict[str, str]) -> str:
    """Figures with their names, side by side."""
    each = "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>"
        for name, value in facts.items()
    )
    return f'<dl class="facts">{each}</dl>'


def figure(name: str, said: str, picture: str, before: str = "") -> str:
    """A picture with its name and what it shows (HTML)."""
    return (
        f"<figure><h3>{escaped(name)}</h3><figcaption>{said}</figcaption>{before}"
        f'<div class="chart">{picture}</div></figure>'
    )


def legend(names: Sequence[str]) -> str:
    """The names of the lines of a chart, in their colours."""
    each = "".join(
        f'<span class="series-{i % SERIES}">{escaped(name)}</span>' for i, name in enumerate(names)
    )
    return f'<div class="legend">{each}</div>'
