"""Compiled kernels, kept on disk for later processes under the hash of all that they depend on.

In the user's own cache folder (`XDG_CACHE_HOME`, or `~/.cache`): what is loaded from there runs, so nobody else may
write there. Where that folder cannot be written, kernels are kept for this process alone.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path


def kept(made_of: Sequence[str], suffix: str, make: Callable[[Path], None]) -> Path:
    """The file that `make` makes at a path, from these strings; made once."""
    key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()
    path = _folder(_wanted()) / f"{key}{suffix}"
    if not path.exists():
        # Made beside its place and moved there whole: another process never finds half of it.
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            made = Path(work) / f"made{suffix}"
            make(made)
            os.replace(made, path)
    return path


def _wanted() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lanewise" / "kernels"


@functools.cache
def _folder(wanted: Path) -> Path:
    try:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(wanted, os.W_OK):
            return wanted
    except OSError:
        pass
    return Path(_for_this_process().name)


@functools.cache
def _for_this_process() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="lanewise-")
