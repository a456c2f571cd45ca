"""Files that are there when all of them is written, and not before."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which is moved into place when it is closed: a killed process leaves the old one, or none."""
    beside = path.with_suffix(".unfinished")
    with open(beside, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
