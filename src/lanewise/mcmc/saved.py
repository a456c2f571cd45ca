"""A run's state on disk: a directory to which stages are added as they end.

Files are written beside and then moved into place, so that a run that is killed leaves whole stages only.
`run.json` says which run it is; another one is not mixed with it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lanewise.core.errors import OptionError
from lanewise.core.files import whole_file

_RUN = "run.json"


@dataclass(frozen=True)
class Saved:
    """The stages of one run in a directory; None keeps nothing."""

    directory: Path | None

    def load(self, stage: str, like: Any) -> Any | None:
        """The arrays of a stage, in the structure of `like`; None if it has not ended yet."""
        if self.directory is None or not (path := self._path(stage)).exists():
            return None
        tree = jax.tree.structure(like)
        with np.load(path) as arrays:
            return jax.tree.unflatten(tree, [arrays[f"a{i}"] for i in range(tree.num_leaves)])

    def save(self, stage: str, arrays: Any) -> None:
        if self.directory is None:
            return
        leaves = {f"a{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(arrays))}
        with whole_file(self._path(stage)) as file:
            np.savez(file, allow_pickle=False, **leaves)

    def _path(self, stage: str) -> Path:
        assert self.directory is not None
        return self.directory / f"{stage}.npz"


def opened(directory: str | os.PathLike[str] | None, run: dict[str, Any]) -> Saved:
    """The saved state of the run that `run` describes, begun if there is none yet."""
    if directory is None:
        return Saved(None)
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    described = path / _RUN
    if not described.exists():
        with whole_file(described) as file:
            file.write(json.dumps(run, indent=1, default=float).encode())
        return Saved(path)
    before = json.loads(described.read_text())
    differing = [name for name in run if before.get(name) != run[name]]
    if differing:
        changes = "; ".join(f"{n} was {before.get(n)!r} and is {run[n]!r}" for n in differing)
        raise OptionError(
            f"resume={str(directory)!r} holds another run: {changes}. Give another directory, or the arguments of"
            " that run."
        )
    return Saved(path)
