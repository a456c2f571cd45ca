"""What the command line says when it cannot do what it was asked: one message, one exit status, no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from lanewise.core.errors import LanewiseError

FAILURE = 1
USAGE = 2


class Complaint(Exception):
    """Something went wrong that the user can fix: what, and how."""

    status = FAILURE

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class Misuse(Complaint):
    """What was typed names nothing, or does not fit."""

    status = USAGE


@contextmanager
def complaining() -> Iterator[None]:
    """Turn complaints, and errors that Lanewise raises on purpose, into a message on stderr and an exit status."""
    try:
        yield
    except Complaint as complaint:
        _say(complaint.message, complaint.fix)
        raise typer.Exit(complaint.status) from None
    except LanewiseError as error:
        _say(str(error))
        raise typer.Exit(FAILURE) from None


def _say(message: str, fix: str = "") -> None:
    console = Console(stderr=True, soft_wrap=True)
    console.print(Text.assemble(("error: ", "bold red"), message))
    if fix:
        console.print(Text.assemble(("  fix: ", "bold green"), fix))
