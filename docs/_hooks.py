"""What MkDocs does here beside building: drawings are made and put in, and nothing may come from the network.

A line `<!-- drawing: name -->` in a page is replaced by the drawing of that name, made by `_drawings.py`,
`_placed.py` or `_ways.py` from a program at the time of building, inside the page, so that it has the page's colours.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import _drawings
import _placed
import _ways

_DRAWINGS = _drawings.DRAWINGS | _placed.DRAWINGS | _ways.DRAWINGS
_DRAWING = re.compile(r"^<!-- drawing: (\w+) -->$", flags=re.MULTILINE)
# What a browser fetches on its own; links that a reader may follow do not count.
_LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'> ]*"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|icon))[^>]*\bhref=[\"']?(?:https?:)?//[^\"'> ]*"
)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put drawings in."""

    def drawn(match: re.Match[str]) -> str:
        make = _DRAWINGS.get(match[1])
        if make is None:
            raise PluginError(f"{page.file.src_path}: there is no drawing {match[1]!r}")
        return make()

    return _DRAWING.sub(drawn, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse pages that load something from elsewhere."""
    found = _LOADED.search(output)
    if found:
        raise PluginError(f"{page.file.src_path} loads from the network: {found[0]}")
    return output
