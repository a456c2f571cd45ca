"""What is cached on disk is loaded whole or not at all, and a disk that takes nothing stops no program."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lanewise as lw
import needs
from lanewise.core.errors import CompilerError
from lanewise.cpp.toolchain import cache as kept
from lanewise.cpp.toolchain import host

TEXT = 'extern "C" int answer() { return 42; }\n'
FLAGS = ("-O0", "-fPIC", "-shared")
NAME = kept.name_of(("a", "kernel"), ".bin")


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder that kernels are kept in, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kept, "_private", {})
    host._loaded.cache_clear()
    yield tmp_path / "lanewise" / "kernels"
    host._loaded.cache_clear()
    for folder in kept._private.values():
        folder.cleanup()


def answer() -> int:
    """What a library answers that is loaded anew."""
    host._loaded.cache_clear()
    return host.load(TEXT, FLAGS).answer()


def at(path: Path) -> Path:
    return path


@needs.compiler
@pytest.mark.parametrize(
    "broken",
    [
        lambda whole: whole[: len(whole) // 3],
        lambda whole: whole[: -kept.SEAL_BYTES],
        lambda whole: whole[:-1],
        lambda whole: b"",
        lambda whole: os.urandom(len(whole)),
        lambda whole: whole[:4000] + b"\0" * 500 + whole[4500:],
    ],
    ids=["truncated", "unsealed", "a byte short", "empty", "garbage", "holes"],
)
def test_a_library_that_is_not_whole_is_made_again(
    cache: Path, broken: Callable[[bytes], bytes]
) -> None:
    assert answer() == 42
    (library,) = cache.iterdir()
    whole = library.read_bytes()
    # Another file in its place: the one that this process has loaded stays as it is.
    library.unlink()
    library.write_bytes(broken(whole))
    assert kept.found(library.name) is None
    assert answer() == 42
    assert library.read_bytes()[-len(kept.MARK) :] == kept.MARK and kept.found(library.name)
    assert list(cache.iterdir()) == [library]


def test_what_is_whole_is_not_made_again(cache: Path) -> None:
    assert kept.read(NAME) is None
    kept.keep(NAME, b"code")
    assert kept.read(NAME) == b"code" and kept.found(NAME) == cache / NAME
    kept.keep(NAME, b"")
    assert kept.read(NAME) == b""


def test_the_folder_is_removed_while_the_process_runs(cache: Path) -> None:
    assert kept.loaded(NAME, b"code", at) == cache / NAME
    shutil.rmtree(cache.parent)
    assert kept.found(NAME) is None
    assert kept.loaded(NAME, b"code", at) == cache / NAME


def test_a_folder_in_the_place_of_a_file(cache: Path) -> None:
    (cache / NAME / "sub").mkdir(parents=True)
    cache.chmod(0o700)
    assert kept.found(NAME) is None
    elsewhere = kept.loaded(NAME, b"code", at)
    assert elsewhere.parent != cache and kept.read(NAME) == b"code"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_made_again(cache: Path) -> None:
    kept.keep(NAME, b"code")
    (cache / NAME).chmod(0)
    assert kept.read(NAME) is None
    assert kept.loaded(NAME, b"code", at) == cache / NAME and kept.read(NAME) == b"code"


def test_nothing_is_loaded_from_where_others_may_write(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.keep(NAME, b"code")
    assert kept.problem() is None
    for mode in (0o777, 0o770, 0o702):
        cache.chmod(mode)
        assert kept.found(NAME) is None
        assert "others may write there" in (kept.problem() or "")
        assert kept.loaded(NAME, b"mine", at).parent != cache
        for folder in kept._private.values():
            folder.cleanup()
    cache.chmod(0o700)
    assert kept.read(NAME) == b"code"
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert kept.found(NAME) is None and "others may write" in (kept.problem() or "")


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("home", [None, "/proc/nowhere"])
def test_without_a_home_that_can_be_written(
    cache: Path, home: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home if home is None else lambda: Path(home))
    assert kept.problem()
    kept.keep(NAME, b"code")
    assert kept.found(NAME) is None
    path = kept.loaded(NAME, b"code", at)
    assert kept.found(NAME) == path and kept.read(NAME) == b"code"


@needs.compiler
def test_a_full_disk_and_no_folder_for_temporary_files(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def nowhere(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        kept.loaded(NAME, b"code", at)
    kept.keep(NAME, b"code")
    assert kept.found(NAME) is None and not list(cache.iterdir())
    for folder in kept._private.values():
        folder.cleanup()
    monkeypatch.setattr(kept, "_private", {})
    monkeypatch.setattr(kept.tempfile, "TemporaryDirectory", nowhere)
    with pytest.raises(OSError, match=r"No space left on device.*No usable temporary directory"):
        kept.loaded(NAME, b"code", at)
    with pytest.raises(CompilerError, match="no folder has room to compile in"):
        answer()


def test_what_cannot_be_loaded_in_one_folder_is_in_another(cache: Path) -> None:
    def load(path: Path) -> Path:
        if path.parent == cache:
            raise OSError("failed to map segment from shared object")
        return path

    assert kept.loaded(NAME, b"code", load).parent != cache


def test_many_make_the_same_at_one_time(cache: Path) -> None:
    content = os.urandom(1 << 20)

    def make(_: int) -> bool:
        kept.loaded(NAME, content, at)
        return kept.read(NAME) == content

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(make, range(24)))
    assert [path.name for path in cache.iterdir()] == [NAME]


def test_what_a_killed_process_left_is_removed(cache: Path) -> None:
    kept.keep(NAME, b"code")
    old, new = cache / f"{kept.WORK}old", cache / f"{kept.WORK}new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "made.cpp").touch()
    (cache / f"{kept.WORK}file").touch()
    for path in (old, cache / f"{kept.WORK}file"):
        os.utime(path, (0, 0))
    kept.loaded(NAME, b"code", at)
    assert sorted(path.name for path in cache.iterdir()) == sorted([NAME, new.name])


# A disk with room for the source of a kernel, and not for the library; nowhere else can anything be written.
ON_A_FULL_DISK = """
import os, sys
from pathlib import Path
from lanewise.cpp.toolchain import cache as kept
kept.IN_MEMORY = Path("/nonexistent")
if sys.argv[1] == "limit":
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
import jax.numpy as jnp
import lanewise as lw

@lw.program
def halve(n):
    steps = 0
    while n > 1:
        n, steps = n // 2, steps + 1
    return steps

n = jnp.arange(1, 9)
assert lw.vmap(halve)(n).tolist() == [0, 1, 1, 2, 2, 2, 2, 3]
print(lw.inspect(halve, n).plan.why)
assert lw.vmap(halve, carrier="native")(n).tolist() == [0, 1, 1, 2, 2, 2, 2, 3]
"""


@needs.compiler
@pytest.mark.parametrize("how", ["limit", "tmpfs"])
def test_a_full_disk_does_not_stop_auto(how: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(disk)]
    if how == "tmpfs" and (not shutil.which("mount") or subprocess.run(mount).returncode):
        pytest.skip("only root may mount a disk; the other case tests the same")
    try:
        script = tmp_path / "script.py"
        script.write_text(ON_A_FULL_DISK)
        about = {
            "XDG_CACHE_HOME": str(disk),
            "TMPDIR": str(disk),
            "PYTHONPATH": str(Path(lw.__file__).parents[1]),
            "JAX_PLATFORMS": "cpu",
        }
        done = subprocess.run(
            [sys.executable, str(script), how],
            env={**os.environ, **about},
            capture_output=True,
            text=True,
        )
    finally:
        if how == "tmpfs":
            subprocess.run(["umount", str(disk)], check=True)
    assert done.returncode == 0, done.stderr
    assert "no folder has room to compile in" in done.stdout or "no folder can hold" in done.stdout
