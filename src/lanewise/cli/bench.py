"""`lanewise bench`: the benchmarks of a checkout, and their claims as a table.

A benchmark is a file of `benchmarks/` that runs ours and a peer in one process and ends with one JSON line a claim.
It runs here in a process of its own, as it would by hand, and its output is shown as it comes.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

import lanewise
from lanewise.cli.complaints import Misuse


@dataclass(frozen=True)
class Result:
    """What one benchmark came to: its claims, and the exit status of its process."""

    name: str
    claims: list[dict[str, Any]] = field(default_factory=list)
    status: int = 0


def directory(given: Path | None = None) -> Path:
    """Where the benchmarks are: where said, in the checkout this package is of, or in the current one."""
    places = [given] if given else [Path(lanewise.__file__).parents[2], Path.cwd()]
    for place in places:
        for folder in (place, place / "benchmarks"):
            if (folder / "_harness.py").is_file():
                return folder
    raise Misuse(
        f"{given} holds no benchmarks."
        if given
        else "an installed package has no benchmarks; they are part of the source tree.",
        "run this in a checkout of Lanewise, or name one by --directory.",
    )


def listed(folder: Path) -> dict[str, Path]:
    """The benchmarks by name."""
    return {path.stem: path for path in sorted(folder.glob("[!_]*.py"))}


def about(path: Path) -> str:
    """What a benchmark says of itself: the first paragraph of its docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n\n")[0].replace("\n", " ")


def chosen(folder: Path, name: str) -> Path:
    """The benchmark of that name."""
    found = listed(folder)
    if name.removesuffix(".py") not in found:
        raise Misuse(f"there is no benchmark {name!r}.", f"choose one of {', '.join(found)}.")
    return found[name.removesuffix(".py")]


def ran(path: Path, arguments: Sequence[str] = ()) -> Result:
    """Run a benchmark, its output shown as it comes but for the JSON lines, which are its claims."""
    claims: list[dict[str, Any]] = []
    command = [sys.executable, str(path), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            claim = claim_in(line)
            if claim is None:
                print(line, end="", flush=True)
            else:
                claims.append(claim)
    return Result(path.stem, claims, process.returncode)


def claim_in(line: str) -> dict[str, Any] | None:
    """The claim that a line holds, if it holds one.

    >>> claim_in('{"claim": "sums", "met": true}')
    {'claim': 'sums', 'met': True}
    >>> claim_in("compiling")
    """
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and "claim" in record else None


def table(results: Iterable[Result]) -> RenderableType:
    """Claims as a table: ours, peer, ratio, target, and whether it was met."""
    shown = Table(box=None, padding=(0, 2, 0, 0))
    shown.add_column("claim", overflow="fold")
    for name in ("ours", "peer", "ratio"):
        shown.add_column(name, justify="right")
    shown.add_column("target")
    shown.add_column("met")
    for result in results:
        for claim in result.claims:
            numbers = (f"{claim[name]:.4g}" for name in ("ours", "peer", "ratio"))
            met = "[green]yes" if claim["met"] else "[red]no"
            shown.add_row(claim["claim"], *numbers, str(claim["target"]), met)
    return shown
