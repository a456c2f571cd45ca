"""Every file in `examples/` runs to its end, and so does the code in the README and the docs."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from apart import cases_of

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PLACED = ROOT / "tests" / "place" / "on_examples.py"
README = ROOT / "README.md"
FEATURES = ROOT / "docs" / "features.md"
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


def test_placed_examples_run_on_devices() -> None:
    """Each compares itself with the run in one piece."""
    names = ("lstm", "experts", "actor_learner", "converge")
    assert set(names) <= cases_of(PLACED, "small", *names).keys()


def placed_by_processes(size: str, *names: str) -> dict[str, str]:
    """What examples gave in two processes."""
    command = [sys.executable, "-m", "lanewise.cli", "launch", "-n", "2", str(PLACED), size, *names]
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    about = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    ran = subprocess.run(
        command, env=os.environ | about, capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = [line.removeprefix("[0] ") for line in ran.stdout.splitlines() if ": " in line]
    return dict(line.split(": ", 1) for line in lines)


@pytest.mark.slow
def test_placed_examples_run_in_processes() -> None:
    names = ("actor_learner", "converge")
    assert set(names) <= placed_by_processes("small", *names).keys()


@pytest.mark.slow
@pytest.mark.parametrize("by_processes", [False, True], ids=["devices", "processes"])
def test_placed_examples_learn(by_processes: bool) -> None:
    """At their own sizes each does better than what it is compared with, over devices and over processes."""
    names = ("lstm", "experts", "actor_learner", "converge", "nuts")
    run = placed_by_processes if by_processes else lambda *args: cases_of(PLACED, *args)
    found = {
        name: ast.literal_eval(text) for name, text in run("whole", *names).items() if name in names
    }
    reached, again = found["lstm"]
    assert reached < 0.05 * again
    reached, linear = found["experts"]
    assert reached < 0.5 * linear
    at_first, at_last = found["actor_learner"]
    assert at_first < 0.5 and at_last > 0.85
    assert found["converge"] < 0.1
    assert found["nuts"] < 1.02


def test_the_readme_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks run in order as one file, as someone who pastes them would run them."""
    assert len(python_blocks(README.read_text())) == 6
    run_page(README, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_the_docs_runs_and_prints_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_page(page, tmp_path, monkeypatch)


def run_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "\n".join(python_blocks(page.read_text()))
    file = tmp_path / f"{page.stem}.py"
    file.write_text(PRINTED.sub(r"shown(\1, said='\2')", code))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(file), {"shown": shown}, run_name="__main__")


def shown(*values: object, said: str) -> None:
    """What a `print` would print, compared with the comment after it."""
    assert " ".join(map(str, values)).split() == said.split()


def test_the_first_example_of_the_readme_is_short() -> None:
    """Twelve lines that show what this is: the reader decides there."""
    first = python_blocks(README.read_text())[0]
    assert sum(bool(line.strip()) for line in first.splitlines()) <= 12


def test_the_readme_is_short() -> None:
    """What it is, why, two commands, five examples and a table: the rest is in the docs."""
    assert len(README.read_text().splitlines()) < 150


def test_the_tests_the_features_name_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", FEATURES.read_text())
    assert named, "the feature table names no test"
    for path, function in named:
        text = (ROOT / path).read_text()
        assert not function or f"def {function}(" in text, f"{path} has no {function}"
