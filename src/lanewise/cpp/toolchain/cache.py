"""Compiled kernels, cached on disk for later processes under the hash of all that they depend on.

They are in the user's own cache folder (`XDG_CACHE_HOME`, or `~/.cache`). What is loaded from there runs, so the folder
is used only if it belongs to this user and no one else may write there. And a library whose end is missing kills the
process that touches it, so each file ends with a seal (the length and the hash of what is before it), which is checked
before anything is loaded. (Loaders of machine code look at no more than its headers name, and do not notice.) A file
without its seal counts as missing: what it held is made again.

Where the cache folder cannot be written, files are cached for this process alone, in a folder for temporary files or in
memory.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

Loaded = TypeVar("Loaded")

MARK = b"lanewise"
SEAL_BYTES = 8 + 32 + len(MARK)
# The prefix of the names of files that are being written, and the age at which no process still writes them.
WORK = "work-"
OLD_SECONDS = 24 * 3600.0
# A file system in memory, where there is one.
IN_MEMORY = Path("/dev/shm")


def name_of(made_of: Sequence[str], suffix: str) -> str:
    """The name of the file that is made from these strings."""
    return hashlib.sha256("\0".join(made_of).encode()).hexdigest() + suffix


def found(name: str) -> Path | None:
    """The whole file of this name, made by this process or an earlier one."""
    for folder in (_cache(), *(Path(own.name) for own in _private.values())):
        if folder is not None and _content(folder / name) is not None:
            return folder / name
    return None


def read(name: str) -> bytes | None:
    """What is cached under this name."""
    path = found(name)
    return None if path is None else _content(path)


def keep(name: str, content: bytes) -> None:
    """Cache what is not essential: where it cannot be cached, it is made again by the next process."""
    with contextlib.suppress(OSError):
        write(_made(wanted()) / name, content)


def loaded(name: str, content: bytes, load: Callable[[Path], Loaded]) -> Loaded:
    """Cache `content` in the first folder that holds it and that it can be loaded from, and load it."""
    obstacles: list[str] = []
    for folder in folders(obstacles):
        try:
            write(folder / name, content)
            return load(folder / name)
        except OSError as error:
            obstacles.append(described(error, folder))
    raise OSError(errno.ENOSPC, "; ".join(obstacles) or "there is no folder for temporary files")


def write(path: Path, content: bytes) -> None:
    """Write a sealed file, whole or not at all, whatever else goes on and whenever the machine stops."""
    handle, beside = tempfile.mkstemp(prefix=WORK, dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(content + _seal(content))
            file.flush()
            os.fsync(handle)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def folders(obstacles: list[str]) -> Iterator[Path]:
    """Folders to write to, the best first; why there is none of a kind is added to `obstacles`."""
    try:
        folder = _made(wanted())
        _sweep(folder)
        yield folder
    except OSError as error:
        obstacles.append(described(error))
    for place in (None, IN_MEMORY):
        if place is None or place.is_dir():
            try:
                yield _for_this_process(place)
            except OSError as error:
                obstacles.append(described(error))


def problem() -> str | None:
    """Why nothing can be cached for later processes; None if something can."""
    try:
        write(_made(wanted()) / name_of(("tried",), ".txt"), b"")
    except OSError as error:
        return described(error)
    return None


def described(error: OSError, folder: Path | None = None) -> str:
    """What an operation on files has met, and where."""
    where = folder or error.filename
    said = error.strerror or str(error)
    return f"{said} ({where})" if where else said


def wanted() -> Path:
    """The folder for what is cached for later processes; an `OSError` where the user has none."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(given or Path.home() / ".cache") / "lanewise" / "kernels"
    except RuntimeError as error:
        raise FileNotFoundError(
            errno.ENOENT, "the home folder is not known; set HOME or XDG_CACHE_HOME"
        ) from error


def _made(folder: Path) -> Path:
    """A folder, made if need be, that no one else can put anything into."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.stat()
    if not _is_ours(about) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            errno.EPERM, "others may write there; make it yours alone (chmod 700)", str(folder)
        )
    return folder


@functools.cache
def _sweep(folder: Path) -> None:
    """Remove what processes that were killed at their work have left in it, long ago."""
    for left in folder.glob(f"{WORK}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > OLD_SECONDS:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def _is_ours(about: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or about.st_uid == os.geteuid()


def _cache() -> Path | None:
    try:
        return _made(wanted())
    except OSError:
        return None


# The folders of this process alone, by where they are.
_private: dict[Path | None, tempfile.TemporaryDirectory[str]] = {}


def _for_this_process(place: Path | None) -> Path:
    made = _private.get(place)
    # It may have been removed by a cleanup, or by a forked child that has ended.
    if made is not None and not Path(made.name).is_dir():
        made.cleanup()
        made = None
    if made is None:
        made = tempfile.TemporaryDirectory(
            prefix="lanewise-", dir=place, ignore_cleanup_errors=True
        )
        _private[place] = made
    return Path(made.name)


def _seal(content: bytes) -> bytes:
    return len(content).to_bytes(8, "big") + hashlib.sha256(content).digest() + MARK


def _content(path: Path) -> bytes | None:
    """What a sealed file of ours holds; None if it is not whole, or not there."""
    try:
        with open(path, "rb") as file:
            if not _is_ours(os.fstat(file.fileno())):
                return None
            content = file.read()
    except OSError:
        return None
    content, seal = content[:-SEAL_BYTES], content[-SEAL_BYTES:]
    return content if seal == _seal(content) else None
