"""A run's state on disk: a directory from which a killed run is resumed.

`run.json` says which run it is; another run is not mixed with it. `state.npz` is where the run is: it is written to
another file and then moved into place, so that there is always a complete one. Draws are in `draws.zarr` (`store.py`),
except for the last few, which are in the state until they fill a chunk. A chunk is written before the state that counts
it, so one that was half written when a run was killed is written again.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lanewise.core.errors import OptionError
from lanewise.core.files import whole_file

# The parts of a run's description whose values mean nothing to a reader.
FOLLOWS = ("starts", "logdensity at the first start")
_RUN, _STATE = "run.json", "state.npz"
# The state is saved once a second or so, but saving takes a small share of the time.
SECONDS, SHARE = 1.0, 0.02


@dataclass
class Saved:
    """The state of a run in a directory; None saves nothing. `every`: also after this many draws."""

    directory: Path | None
    every: int | None = None
    due: float = 0.0
    number: int = 0

    def load(self, like: Any) -> tuple[Any, dict[str, np.ndarray]] | None:
        """The state, in the structure of `like`, and the draws beside it; None if there is none yet."""
        if self.directory is None or not (path := self.directory / _STATE).exists():
            return None
        tree = jax.tree.structure(like)
        with np.load(path) as arrays:
            state = jax.tree.unflatten(tree, [arrays[f"a{i}"] for i in range(tree.num_leaves)])
            beside = {n.removeprefix("tail:"): arrays[n] for n in arrays if n.startswith("tail:")}
        return state, beside

    def left(self, number: int) -> int | None:
        """How many draws may be made before the state must be saved."""
        if self.directory is None or self.every is None:
            return None
        return self.every - (number - self.number) % self.every

    def is_due(self, number: int) -> bool:
        if self.directory is None:
            return False
        counted = self.every is not None and number - self.number >= self.every
        return counted or time.perf_counter() >= self.due

    def save(self, number: int, state: Any, beside: dict[str, np.ndarray]) -> None:
        """Save the state after the draw with this number."""
        if self.directory is None:
            return
        began = time.perf_counter()
        leaves = {f"a{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        tails = {f"tail:{name}": array for name, array in beside.items()}
        with whole_file(self.directory / _STATE) as file:
            np.savez(file, allow_pickle=False, **leaves, **tails)
        now = time.perf_counter()
        self.number, self.due = number, now + max(SECONDS, (now - began) / SHARE)


def opened(
    directory: str | os.PathLike[str] | None, run: dict[str, Any], every: int | None = None
) -> Saved:
    """The saved state of the run that `run` describes, started if there is none yet."""
    if directory is None:
        return Saved(None)
    path = Path(directory)
    described = path / _RUN
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not described.exists():
            with whole_file(described) as file:
                file.write(json.dumps(run, indent=1, default=float).encode())
            return Saved(path, every)
    except OSError as error:
        raise OptionError(
            f"resume={str(directory)!r} cannot be made a directory to write to: {error}"
        ) from error
    before = json.loads(described.read_text())
    differing = [name for name in run if before.get(name) != run[name]]
    if differing:
        # What follows from the arguments is reported only where they are the same.
        given = [name for name in differing if name not in FOLLOWS]
        changes = "; ".join(
            [f"{n} was {before.get(n)!r} and is {run[n]!r}" for n in given]
            or [f"other {n}" for n in differing]
        )
        raise OptionError(
            f"resume={str(directory)!r} holds another run: {changes}. Give another directory, or the arguments of"
            " that run."
        )
    return Saved(path, every)
