"""Every file in `examples/` runs to its end, and so does the code in the README and the docs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
# A comment after a print that is a number or an array is what is printed.
PRINTED = re.compile(r"^print\((.*)\) +# ([-\d\[][^a-zA-Z\n]*)$", flags=re.MULTILINE)


def python_blocks(text: str) -> list[str]:
    r"""The Python code blocks of a Markdown text.

    >>> python_blocks("a\n```python\nx = 1\n```\nb")
    ['x = 1\n']
    """
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        assert not end.code, end.code
    assert capsys.readouterr().out


def test_the_readme_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks run in order as one file, as someone who pastes them would run them."""
    blocks = python_blocks(README.read_text())
    assert blocks, "the README shows no Python"
    file = tmp_path / "readme.py"
    file.write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(file), run_name="__main__")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_the_docs_runs_and_prints_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"{page.stem}.py"
    file.write_text(
        PRINTED.sub(r"shown(\1, said='\2')", "\n".join(python_blocks(page.read_text())))
    )
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(file), {"shown": shown}, run_name="__main__")


def shown(*values: object, said: str) -> None:
    """What a `print` would print, compared with the comment after it."""
    assert " ".join(map(str, values)).split() == said.split()


def test_the_first_example_of_the_readme_is_short() -> None:
    """Twelve lines that show what this is: the reader decides there."""
    first = python_blocks(README.read_text())[0]
    assert sum(bool(line.strip()) for line in first.splitlines()) <= 12


def test_the_tests_the_readme_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", README.read_text())
    assert named, "the feature table names no test"
    for path, function in named:
        text = (ROOT / path).read_text()
        assert not function or f"def {function}(" in text, f"{path} has no {function}"
