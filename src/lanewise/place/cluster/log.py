"""Finished chunks on disk, so that a driver that was killed can go on where it was.

A directory has `run.json`, which says what run it is; `chunks.jsonl`, a line for each finished chunk with the name and
the SHA-256 of its file and the numbers of its examples; and a `.npz` for each chunk. A chunk's file is written and
flushed before its line, and a line that was cut off is no line, so what the log has is whole. Nothing in it is
unpickled.

An example is known again by its number and a hash of its arrays: a source that gives other examples the second time is
an error, not a mixture. Numbers are kept as runs (first, count), so a log of a million examples is small to hold;
chunks are loaded when an example of theirs comes, and a few stay.

What was considered: a database would write faster, a line an example would lose less. A chunk is what is run again in
any case, and its write takes a few milliseconds in which workers go on.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lanewise.core.errors import OptionError
from lanewise.core.files import whole_file
from lanewise.feed.fed import Ended, Example
from lanewise.place.cluster.engine import Answers

try:
    import fcntl
except ImportError:  # not on Windows, where nothing keeps two drivers apart
    fcntl = None

_RUN, _CHUNKS, _LOCK = "run.json", "chunks.jsonl", "lock"
# Its name in the description of a run.
_CARRIER = "carried by"
# How many chunks stay loaded.
LOADED = 4


class _Run(NamedTuple):
    """Examples with consecutive numbers, which are in a file from a place on."""

    first: int
    count: int
    file: str
    place: int


class _Chunk(NamedTuple):
    digest: np.ndarray
    answers: Answers


class Log:
    """The finished chunks of the run that `run` describes, in a directory. `kept`: the types of answers' arrays."""

    def __init__(
        self, directory: str | os.PathLike[str], run: dict[str, Any], kept: Sequence[Any]
    ) -> None:
        self.directory = Path(directory)
        self.run = run
        self.dtypes = [np.dtype(row.dtype) for row in kept]
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = self._locked()
        try:
            # The carrier that the answers so far come from; None if there are none.
            self.carrier: str | None = self._read_run()
            self.sums: dict[str, str] = {}
            self.runs: list[_Run] = []
            self.chunks = self._read_chunks()
            # No example that is there has this number or a higher one.
            self.end = max((run.first + run.count for run in self.runs), default=0)
        except BaseException:
            self._lock.close()
            raise
        self._load = functools.lru_cache(LOADED)(self._loaded)

    # -- what is there -----------------------------------------------------------------------------

    def __contains__(self, index: int) -> bool:
        return self._run_of(index) is not None

    def answer(self, example: Example) -> Ended:
        """The answer of an example that is in the log."""
        run = self._run_of(example.index)
        assert run is not None
        chunk, place = self._load(run.file), run.place + example.index - run.first
        if chunk.digest[place] != digest_of(example):
            raise OptionError(
                f"resume={str(self.directory)!r} has an answer for another example {example.index} than this one. Give"
                " the examples of that run in the same order, or another directory."
            )
        columns, code, site, _ = chunk.answers
        one = slice(place, place + 1)
        return Ended(np.array([example.index]), [c[one] for c in columns], code[one], site[one])

    def _run_of(self, index: int) -> _Run | None:
        at = bisect.bisect_right(self.runs, index, key=lambda run: run.first) - 1
        run = self.runs[at] if at >= 0 else None
        return run if run is not None and index < run.first + run.count else None

    def _loaded(self, name: str) -> _Chunk:
        content = (self.directory / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != self.sums[name]:
            raise OptionError(
                f"{self.directory / name} is not what was written there. Delete it, and its examples are run again."
            )
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            # Types that NumPy does not know come back as bytes.
            columns = [arrays[f"a{i}"].view(dtype) for i, dtype in enumerate(self.dtypes)]
            answers = Answers(columns, arrays["code"], arrays["site"], 0.0)
            return _Chunk(arrays["digest"], answers)

    # -- what is added -----------------------------------------------------------------------------

    def begin(self, carrier: str) -> None:
        """Note what the answers will come from, before the first is kept."""
        if self.carrier is None:
            self.carrier = carrier
            with whole_file(self.directory / _RUN) as file:
                file.write(json.dumps({**self.run, _CARRIER: carrier}, indent=1).encode())

    def add(self, examples: Sequence[Example], answers: Answers) -> None:
        """Keep a finished chunk."""
        name = f"{self.chunks:08}.npz"
        self.chunks += 1
        content = io.BytesIO()
        arrays = {f"a{i}": column for i, column in enumerate(answers.columns)}
        digest = np.array([digest_of(example) for example in examples], np.uint64)
        np.savez(
            content,
            allow_pickle=False,
            digest=digest,
            code=answers.code,
            site=answers.site,
            **arrays,
        )
        with whole_file(self.directory / name) as file:
            file.write(content.getvalue())
        line = {
            "file": name,
            "sha256": hashlib.sha256(content.getvalue()).hexdigest(),
            "examples": runs_of(example.index for example in examples),
        }
        with open(self.directory / _CHUNKS, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Let others use the directory."""
        self._lock.close()

    # -- opening -----------------------------------------------------------------------------------

    def _locked(self) -> Any:
        """A file that is locked as long as it is open: two drivers would write over each other's chunks."""
        file = open(self.directory / _LOCK, "ab")
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                raise OptionError(
                    f"resume={str(self.directory)!r} is in use by another process; wait until it has ended, or give"
                    " another directory."
                ) from None
        return file

    def _read_run(self) -> str | None:
        path = self.directory / _RUN
        if not path.exists():
            return None
        with _damaged(path):
            before = json.loads(path.read_text())
            carrier = before[_CARRIER]
        differing = [name for name, value in self.run.items() if before.get(name) != value]
        if differing:
            changes = "; ".join(
                f"{n} was {before.get(n)!r} and is {self.run[n]!r}" for n in differing
            )
            raise OptionError(
                f"resume={str(self.directory)!r} holds another run: {changes}. Give another directory, or the program"
                " and the options of that run."
            )
        return carrier

    def _read_chunks(self) -> int:
        """Note which examples are there; gives how many chunks were ever begun."""
        path = self.directory / _CHUNKS
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        if lines and not lines[-1].endswith(b"\n"):
            # It was cut off. Whole lines are to follow.
            with open(path, "r+b") as file:
                file.truncate(sum(map(len, lines[:-1])))
            lines.pop()
        with _damaged(path):
            for line in lines:
                entry = json.loads(line)
                name = entry["file"]
                # One that was deleted is run again.
                if not (self.directory / name).exists():
                    continue
                self.sums[name] = entry["sha256"]
                place = 0
                for first, count in entry["examples"]:
                    self.runs.append(_Run(first, count, name, place))
                    place += count
        self.runs.sort()
        return len(lines)


@contextlib.contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Say which file it is that cannot be read."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(f"{path} is damaged ({error}); give another directory.") from error


def digest_of(example: Example) -> int:
    """A hash of an example's arrays."""
    found = hashlib.blake2b(digest_size=8)
    for row in example.rows:
        found.update(np.ascontiguousarray(row).tobytes())
    return int.from_bytes(found.digest(), "big")


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as runs of consecutive ones, each with its first and its count.

    >>> runs_of([3, 4, 5, 9, 11, 12])
    [(3, 3), (9, 1), (11, 2)]
    """
    found = []
    for _, group in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = list(group)
        found.append((run[0][1], len(run)))
    return found
