"""The code in `docs/` runs, page by page, and prints what its comments say."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parent.parent / "docs").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A comment after a print that is a number, a list or a tuple is what is printed.
PRINTED = re.compile(r"^print\(.*\)\s+# ([-\d\[(][^a-zA-Z]*)$")


def printed(statement: str, namespace: dict[str, object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(statement, namespace)
    return out.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs_and_prints_what_it_says(page: Path) -> None:
    namespace: dict[str, object] = {"__name__": page.stem}
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    for number, block in enumerate(blocks):
        # Programs are made from their source, so it must be found.
        name = f"<{page.name} {number}>"
        linecache.cache[name] = (len(block), None, block.splitlines(keepends=True), name)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, name, "exec"), namespace)
        for line in block.splitlines():
            said = PRINTED.match(line)
            if said:
                found = printed(line, namespace)
                assert found.split() == said[1].split(), f"{page.name}: {line}"
