"""Checkpoints of a placed loop: a killed job goes on where it was saved, with the same result.

Every `every` iterations each process saves what it has of the loop's state, by Orbax, in a folder of its own. Then
all agree that they have: a process may be iterations ahead of another, and what one alone has saved is of no use. On
a restart the newest state that all have is loaded. What comes before the loop is computed again.

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
from lanewise.place.stretches import Stretches

_ABOUT = "about.json"
_KEPT = 2

Runs = Callable[[Prepared], Callable[[Sequence[Any]], dict[int, Any]]]
"""What runs a prepared program, by its inputs; one that a process has not is None."""


@dataclass
class Saving:
    """A program that is run in stretches and saved between them.

    `rank` is this process's number, or None if it has all places.
    """

    cut: Stretches
    folder: Path
    every: int
    rank: int | None
    runs: Runs
    _agree: Any = field(default=None)

    def __call__(self, leaves: Sequence[Any]) -> dict[int, Any]:
        """Run the program from its newest checkpoint: results by their numbers."""
        cut = self.cut
        own = _Folder(
            self.folder / ("all" if self.rank is None else f"rank{self.rank}"),
            self._about(leaves),
            [v.aval for v in cut.loop.outs],
            cut.num_state,
        )
        entered = self.runs(cut.before)([*cut.asked.captured, *leaves])
        first = self._values(entered, 0, cut.num_state)
        xs = self._values(entered, cut.num_state, cut.num_rows)
        kept = self._values(entered, cut.num_state + cut.num_rows, len(cut.kept))
        step = self.agreed(own.newest())
        state, given = own.load(step) if step else (first, [])
        going = _Rows(self, xs, kept) if isinstance(cut.loop, Scan) else _Turns(self, kept)
        while True:
            done, state, more = going.next(step, state)
            given.append(more)
            step += done
            if done < self.every:
                break
            own.save(step, state, given)
            self.agreed(step)
            own.forget(step)
        return self.runs(cut.after)([*state, *going.joined(given), *kept])

    def agreed(self, step: int) -> int:
        """The least of the steps that all processes say; each waits for the others."""
        if self.rank is None:
            return step
        if self._agree is None:
            self._agree = self.runs(self._least())
        size = self.cut.asked.placement.size
        mine: list[Any] = [None] * size
        mine[self.rank] = np.int32(step)
        return int(self._agree(mine)[0])

    def _least(self) -> Prepared:
        placement = self.cut.asked.placement
        number = _jax.shaped((), jnp.int32.dtype)
        steps = tuple(_jax.new_var(number) for _ in range(placement.size))
        code = read_function(lambda *each: [jnp.min(jnp.stack(each))], steps)
        whole = Code(Region(steps, code.region.nodes, code.region.outs), code.constants)
        homes = [frozenset((place,)) for place in range(placement.size)]
        wanted = [placement.everywhere]
        return divided("the least of the steps", placement, whole, homes, wanted)

    def _values(self, results: dict[int, Any], first: int, count: int) -> list[Any]:
        return [results.get(i) for i in range(first, first + count)]

    def _about(self, leaves: Sequence[Any]) -> dict[str, Any]:
        found = hashlib.sha256()
        for leaf in leaves:
            if leaf is None:
                continue  # another process holds it
            array = _jax.to_host(_numbers(leaf))
            found.update(f"{array.dtype}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).tobytes())
        return {
            "program": f"{self.cut.before.digest} {self.cut.after.digest}",
            "arguments": found.hexdigest(),
            "every": self.every,
        }


def _numbers(leaf: Any) -> Any:
    aval = _jax.aval_of(leaf)
    return jax.random.key_data(leaf) if _jax.is_key(aval) else jnp.asarray(leaf)


@dataclass
class _Turns:
    """Stretches of a `while`."""

    saving: Saving
    kept: list[Any]

    def next(self, step: int, state: list[Any]) -> tuple[int, list[Any], list[Any]]:
        del step
        cut = self.saving.cut
        run = self.saving.runs(cut.stretch)
        results = run([np.int32(self.saving.every), *state, *self.kept])
        return int(results[0]), [results.get(1 + i) for i in range(cut.num_state)], []

    def joined(self, given: list[list[Any]]) -> list[Any]:
        del given
        return []


@dataclass
class _Rows:
    """Stretches of a `scan`."""

    saving: Saving
    xs: list[Any]
    kept: list[Any]

    def next(self, step: int, state: list[Any]) -> tuple[int, list[Any], list[Any]]:
        cut, loop = self.saving.cut, self.saving.cut.loop
        assert isinstance(loop, Scan)
        length = min(self.saving.every, loop.length - step)
        first = loop.length - step - length if loop.reverse else step
        rows = [None if x is None else x[first : first + length] for x in self.xs]
        results = self.saving.runs(cut.rows(length))([*rows, *state, *self.kept])
        values = [results.get(i) for i in range(len(loop.outs))]
        return length, values[: cut.num_state], values[cut.num_state :]

    def joined(self, given: list[list[Any]]) -> list[Any]:
        loop = self.saving.cut.loop
        assert isinstance(loop, Scan)
        stretches = [s for s in (reversed(given) if loop.reverse else given) if s]
        return [
            None if parts[0] is None else jnp.concatenate([jax.device_get(x) for x in parts])
            for parts in zip(*stretches, strict=True)
        ]


@dataclass
class _Folder:
    """The checkpoints of one process: a folder a step, complete once it says what it is of."""

    path: Path
    about: dict[str, Any]
    avals: list[Any]
    num_state: int

    def newest(self) -> int:
        """The last step that is saved; 0 if none is."""
        return max(self._steps(), default=0)

    def save(self, step: int, state: list[Any], given: list[list[Any]]) -> None:
        folder = self.path / str(step)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        tree = {f"state.{i}": self._saved(i, x) for i, x in enumerate(state) if x is not None}
        for n, rows in enumerate(given):
            tree |= {
                f"rows.{n}.{i}": self._saved(len(state) + i, x)
                for i, x in enumerate(rows)
                if x is not None
            }
        with _orbax() as saver:
            # A process may have none of the state, and Orbax wants something to save.
            saver.save((folder / "state").absolute(), {**tree, "step": np.int32(step)})
        text = json.dumps({**self.about, "stretches": len(given)})
        partial = folder / f"{_ABOUT}.part"
        partial.write_text(text)
        partial.rename(folder / _ABOUT)

    def load(self, step: int) -> tuple[list[Any], list[list[Any]]]:
        folder = self.path / str(step)
        if not (folder / _ABOUT).exists():
            raise OptionError(
                f"checkpoint={str(self.path.parent)!r} has no complete state of step {step} in {folder.name!r}, which"
                " the other processes go on from. Remove the folder to begin anew."
            )
        count = json.loads((folder / _ABOUT).read_text())["stretches"]
        with _orbax() as saver:
            tree = saver.restore((folder / "state").absolute())
        first = self.num_state
        state = [self._loaded(i, tree.get(f"state.{i}")) for i in range(first)]
        given = [
            [
                self._loaded(first + i, tree.get(f"rows.{n}.{i}"))
                for i in range(len(self.avals) - first)
            ]
            for n in range(count)
        ]
        return state, given

    def _saved(self, number: int, value: Any) -> Any:
        """A value as Orbax takes it: a key as its numbers."""
        return _jax.to_host(_jax.stored(value, self.avals[number]))

    def _loaded(self, number: int, value: Any) -> Any:
        return None if value is None else _jax.loaded(jnp.asarray(value), self.avals[number])

    def forget(self, step: int) -> None:
        """Remove all but the newest ones."""
        for old in sorted(self._steps())[:-_KEPT]:
            if old < step:
                shutil.rmtree(self.path / str(old), ignore_errors=True)

    def _steps(self) -> list[int]:
        found = []
        for each in self.path.glob("*"):
            if not each.name.isdecimal() or not (each / _ABOUT).exists():
                continue
            about = json.loads((each / _ABOUT).read_text())
            for key, what in (
                ("program", "another program"),
                ("arguments", "other arguments"),
                ("every", "another `every`"),
            ):
                if about.get(key) != self.about[key]:
                    raise OptionError(
                        f"checkpoint={str(self.path.parent)!r} holds a state of {what}. Give another folder, or remove"
                        " it to begin anew."
                    )
            found.append(int(each.name))
        return found


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
