"""Checkpoints of placed loops: a killed job goes on where it was saved, with the same result.

Every `every` iterations each process saves what it has of a loop's state, by Orbax, in a folder of its own. Then
all agree that they have: a process may be iterations ahead of another, and what one alone has saved is of no use. On
a restart the newest state that all have is loaded. What comes before a loop is computed again; of an earlier loop,
whose last state is saved too, no iteration is.

Rows that a `scan` gives are saved once, with the first state that comes after them.

A folder says which run it belongs to, by the hashes of the program and of the arguments. Other folders are refused.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.core.errors import OptionError
from lanewise.place.prepared import Prepared, divided
from lanewise.place.regions import Code, Region, Scan, read_function
from lanewise.place.stretches import Cuts, Stretches

_ABOUT = "about.json"
_KEPT = 2

Runs = Callable[[Prepared], Callable[[Sequence[Any]], dict[int, Any]]]
"""What runs a prepared program, by its inputs; one that a process has not is None."""


@dataclass
class Saving:
    """A program that is run in stretches and saved between them.

    `rank` is this process's number, or None if it has all places.
    """

    cuts: Cuts
    folder: Path
    every: int
    rank: int | None
    runs: Runs
    _agree: Any = field(default=None)

    def __call__(self, leaves: Sequence[Any]) -> dict[int, Any]:
        """Run the program from its newest checkpoint: results by their numbers."""
        about, inputs = self._about(leaves), [*self.cuts.asked.captured, *leaves]
        own = self.folder / ("all" if self.rank is None else f"rank{self.rank}")
        for number, cut in enumerate(self.cuts.loops):
            # The first loop's folder is that of the process, and holds those of the others.
            where = own / f"loop{number}" if number else own
            avals = [v.aval for v in cut.loop.outs]
            folder = _Folder(where, str(self.folder), about, avals, cut.num_state)
            inputs = self._through(cut, folder, inputs, number + 1 < len(self.cuts.loops))
        return self.runs(self.cuts.after)(inputs)

    def _through(
        self, cut: Stretches, folder: _Folder, inputs: Sequence[Any], goes_on: bool
    ) -> list[Any]:
        """Run what is left of a loop: what comes after it takes this. `goes_on`: another loop comes after."""
        entered = self.runs(cut.before)(inputs)
        first = _values(entered, 0, cut.num_state)
        xs = _values(entered, cut.num_state, cut.num_rows)
        kept = _values(entered, cut.num_state + cut.num_rows, len(cut.kept))
        step, ended = divmod(self.agreed(folder.newest()), 2)
        state, given = folder.load(step) if step or ended else (first, [])
        going: _Rows | _Turns
        if isinstance(cut.loop, Scan):
            going = _Rows(self, cut, cut.loop, xs, kept)
        else:
            going = _Turns(self, cut, kept)
        while not ended:
            done, state, more = going.next(step, state)
            given.append(more)
            step += done
            ended = done < self.every
            if goes_on or not ended:
                folder.save(step, state, more, bool(ended))
                self.agreed(step)
                folder.forget(step)
        return [*state, *going.joined(given), *kept]

    def agreed(self, step: int) -> int:
        """The least of the steps that all processes say; each waits for the others."""
        if self.rank is None:
            return step
        if self._agree is None:
            self._agree = self.runs(self._least())
        size = self.cuts.asked.placement.size
        mine: list[Any] = [None] * size
        mine[self.rank] = np.int32(step)
        return int(self._agree(mine)[0])

    def _least(self) -> Prepared:
        placement = self.cuts.asked.placement
        number = _jax.shaped((), jnp.int32.dtype)
        steps = tuple(_jax.new_var(number) for _ in range(placement.size))
        code = read_function(lambda *each: [jnp.min(jnp.stack(each))], steps)
        whole = Code(Region(steps, code.region.nodes, code.region.outs), code.constants)
        homes = [frozenset((place,)) for place in range(placement.size)]
        wanted = [placement.everywhere]
        return divided("the least of the steps", placement, whole, homes, wanted)

    def _about(self, leaves: Sequence[Any]) -> dict[str, Any]:
        found = hashlib.sha256()
        for leaf in leaves:
            if leaf is None:
                continue  # another process holds it
            array = _jax.to_host(_numbers(leaf))
            found.update(f"{array.dtype}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).tobytes())
        return {
            "program": self.cuts.digest,
            "arguments": found.hexdigest(),
            "every": self.every,
        }


def _numbers(leaf: Any) -> Any:
    aval = _jax.aval_of(leaf)
    return jax.random.key_data(leaf) if _jax.is_key(aval) else jnp.asarray(leaf)


def _values(results: dict[int, Any], first: int, count: int) -> list[Any]:
    return [results.get(i) for i in range(first, first + count)]


@dataclass
class _Turns:
    """Stretches of a `while`."""

    saving: Saving
    cut: Stretches
    kept: list[Any]

    def next(self, step: int, state: list[Any]) -> tuple[int, list[Any], list[Any]]:
        del step
        run = self.saving.runs(self.cut.stretch)
        results = run([np.int32(self.saving.every), *state, *self.kept])
        return int(results[0]), _values(results, 1, self.cut.num_state), []

    def joined(self, given: list[list[Any]]) -> list[Any]:
        del given
        return []


@dataclass
class _Rows:
    """Stretches of a `scan`."""

    saving: Saving
    cut: Stretches
    loop: Scan
    xs: list[Any]
    kept: list[Any]

    def next(self, step: int, state: list[Any]) -> tuple[int, list[Any], list[Any]]:
        loop, count = self.loop, self.cut.num_state
        length = min(self.saving.every, loop.length - step)
        first = loop.length - step - length if loop.reverse else step
        rows = [None if x is None else x[first : first + length] for x in self.xs]
        results = self.saving.runs(self.cut.rows(length))([*rows, *state, *self.kept])
        return length, _values(results, 0, count), _values(results, count, len(loop.outs) - count)

    def joined(self, given: list[list[Any]]) -> list[Any]:
        stretches = [s for s in (reversed(given) if self.loop.reverse else given) if s]
        return [
            None if parts[0] is None else jnp.concatenate([jax.device_get(x) for x in parts])
            for parts in zip(*stretches, strict=True)
        ]


@dataclass
class _Folder:
    """The checkpoints of one loop in one process: a folder a step, complete once it says what it is of.

    The rows that a stretch gave are in a folder of their own, which stays.
    """

    path: Path
    called: str
    about: dict[str, Any]
    avals: Sequence[Any]
    num_state: int

    def newest(self) -> int:
        """Twice the last step that is saved, and one more if the loop ended there; 0 if none is."""
        last = max(self._steps(), default=0)
        about = self._read(last)
        return 2 * last + bool(about and about["ended"])

    def save(self, step: int, state: list[Any], rows: list[Any], ended: bool) -> None:
        self._write(self.path / "rows" / str(step), rows, self.num_state)
        folder = self.path / str(step)
        shutil.rmtree(folder, ignore_errors=True)
        self._write(folder / "state", state, 0)
        partial = folder / f"{_ABOUT}.part"
        partial.write_text(json.dumps({**self.about, "ended": ended}))
        partial.rename(folder / _ABOUT)

    def load(self, step: int) -> tuple[list[Any], list[list[Any]]]:
        """The state after this step, and the rows of the stretches up to it."""
        folder = self.path / str(step)
        if self._read(step) is None:
            raise OptionError(
                f"checkpoint={self.called!r} has no complete state of step {step} in {str(self.path)!r}, which"
                " the other processes go on from. Remove the folder to begin anew."
            )
        state = self._load(folder / "state", 0, self.num_state)
        before = sorted(n for n in _numbers_in(self.path / "rows") if n <= step)
        rows = [
            self._load(self.path / "rows" / str(n), self.num_state, len(self.avals)) for n in before
        ]
        return state, rows

    def _write(self, folder: Path, values: list[Any], first: int) -> None:
        """Save those of the values that this process has; the first has this number."""
        shutil.rmtree(folder, ignore_errors=True)
        if first and not values:
            return
        tree = {str(i): self._saved(first + i, x) for i, x in enumerate(values) if x is not None}
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _orbax() as saver:
            # A process may have none of them, and Orbax wants something to save.
            saver.save(folder.absolute(), {**tree, "number": np.int32(len(tree))})

    def _load(self, folder: Path, first: int, end: int) -> list[Any]:
        with _orbax() as saver:
            tree = saver.restore(folder.absolute())
        return [self._loaded(first + i, tree.get(str(i))) for i in range(end - first)]

    def _saved(self, number: int, value: Any) -> Any:
        """A value as Orbax takes it: a key as its numbers."""
        return _jax.to_host(_jax.stored(value, self.avals[number]))

    def _loaded(self, number: int, value: Any) -> Any:
        return None if value is None else _jax.loaded(jnp.asarray(value), self.avals[number])

    def forget(self, step: int) -> None:
        """Remove all states but the newest ones."""
        for old in sorted(self._steps())[:-_KEPT]:
            if old < step:
                shutil.rmtree(self.path / str(old), ignore_errors=True)

    def _steps(self) -> list[int]:
        found = []
        for step in _numbers_in(self.path):
            about = self._read(step)
            if about is None:
                continue
            for key, what in (
                ("program", "another program"),
                ("arguments", "other arguments"),
                ("every", "another `every`"),
            ):
                if about.get(key) != self.about[key]:
                    raise OptionError(
                        f"checkpoint={self.called!r} holds a state of {what}. Give another folder, or remove"
                        " it to begin anew."
                    )
            found.append(step)
        return found

    def _read(self, step: int) -> dict[str, Any] | None:
        """What a complete state says of itself."""
        path = self.path / str(step) / _ABOUT
        return json.loads(path.read_text()) if path.exists() else None


def _numbers_in(folder: Path) -> list[int]:
    return [int(each.name) for each in folder.glob("*") if each.name.isdecimal()]


def _orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError:
        raise OptionError(
            "checkpoint= saves states by Orbax, which is not installed: pip install 'lanewise[place]'."
        ) from None
    own = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(),
        active_processes={jax.process_index()},
        barrier_sync_key_prefix=f"lanewise{jax.process_index()}",
    )
    return ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(multiprocessing_options=own), multiprocessing_options=own
    )
