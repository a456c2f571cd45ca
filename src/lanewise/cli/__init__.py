"""The command line: `lanewise demo`, `show`, `bench`, `launch` and `doctor`.

Its tools are the extra `cli`; without them `main` says so and how to get them. `lanewise.cli.app` has the commands,
each of the other modules what one of them does.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from io import TextIOWrapper

NEEDS = ("typer", "rich", "packaging")
HINT = 'pip install "lanewise[cli]"'


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line with these arguments, or those of the process; ends in `SystemExit`."""
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"lanewise: the command line needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'}"
            f" not installed; try: {HINT}",
            file=sys.stderr,
        )
        raise SystemExit(1)
    from lanewise.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, TextIOWrapper
        ):  # a terminal without arrows shows something in their place
            stream.reconfigure(errors="replace")
    app(args=None if arguments is None else list(arguments), prog_name="lanewise")
