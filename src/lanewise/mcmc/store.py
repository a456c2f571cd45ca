"""Draws on disk, as Zarr arrays: `draws.zarr` in the directory of a run, with a group for each group of ArviZ.

A chunk has all chains and some draws. It is written once it is full, whole; the draws of one that is not full yet are
in memory, and in the saved state (`saved.py`). So memory is bounded by a chunk, and no chunk is read back to be
changed. Arrays have room for all draws of a run from the start. They are not compressed: draws hardly compress.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from lanewise.core.errors import OptionError
from lanewise.mcmc.kept import Arrays

# The draws of a chunk take at most this much memory, and are at most this many.
MOST_BYTES, MOST_DRAWS = 2**24, 2**16


class Store:
    """Draws on disk; `rows` says how many each group will have, `done` how many are there, `tails` the last of them."""

    def __init__(
        self,
        directory: Path,
        rows: Mapping[str, int],
        done: Mapping[str, int],
        tails: Mapping[str, np.ndarray],
    ) -> None:
        self.path = directory / "draws.zarr"
        self.rows = rows
        self.arrays: dict[str, dict[str, Any]] = {}
        self.buffers: dict[str, dict[str, np.ndarray]] = {}
        self.done = dict(done)
        for group in rows:
            if not done.get(group, 0):
                # Files that are there are those of a run that was killed before any of its draws was counted.
                shutil.rmtree(self.path / group, ignore_errors=True)
                continue
            given = {
                n.removeprefix(f"{group}:"): a
                for n, a in tails.items()
                if n.startswith(f"{group}:")
            }
            self._open(group, {name: array[:, :0] for name, array in given.items()})
            for name, array in given.items():
                self.buffers[group][name][:, : array.shape[1]] = array

    def write(self, group: str, row: int, arrays: Arrays) -> None:
        if group not in self.arrays:
            self._open(group, arrays)
        whole, buffers = self.arrays[group], self.buffers[group]
        if set(arrays) != set(whole):
            raise OptionError(
                f"resume= holds draws of {sorted(whole)}, and this model shows {sorted(arrays)}:"
                " give another directory."
            )
        for name, part in arrays.items():
            chunk, at, end = buffers[name].shape[1], row, row + part.shape[1]
            while at < end:
                first = at // chunk * chunk
                taken = min(first + chunk, end) - at
                buffers[name][:, at - first : at - first + taken] = part[
                    :, at - row : at - row + taken
                ]
                at += taken
                if at == first + chunk:
                    whole[name][:, first:at] = buffers[name][
                        :, : min(chunk, self.rows[group] - first)
                    ]
        self.done[group] = row + next(iter(arrays.values())).shape[1]

    def tails(self) -> dict[str, np.ndarray]:
        """The draws that are not in a full chunk yet."""
        return {
            f"{group}:{name}": buffer[:, : self.done[group] % buffer.shape[1]]
            for group, buffers in self.buffers.items()
            for name, buffer in buffers.items()
        }

    def read(self, group: str, rows: int) -> dict[str, Any]:
        """The first draws, which stay on disk until they are needed."""
        import xarray

        if group not in self.arrays:
            return {}
        done = self.done[group]
        for name, buffer in self.buffers[group].items():
            first = done // buffer.shape[1] * buffer.shape[1]
            if done > first:
                self.arrays[group][name][:, first:done] = buffer[:, : done - first]
        found = xarray.open_zarr(
            self.path, group=group, chunks=None, consolidated=False, mask_and_scale=False
        )
        return {
            name: found[quote(name, safe="")].variable.isel(draw=slice(0, rows))
            for name in self.arrays[group]
        }

    def _open(self, group: str, like: Arrays) -> None:
        """Arrays for draws like these, made or found."""
        folder = _zarr().open_group(self.path, mode="a").require_group(group)
        row = sum(a.shape[0] * a[0, :0].itemsize * _size(a.shape[2:]) for a in like.values())
        chunk = _chunk(row)
        self.arrays[group], self.buffers[group] = {}, {}
        for name, array in like.items():
            key, (chains, _, *shape) = quote(name, safe=""), array.shape
            if key in folder:
                found = folder[key]
                if found.shape[1] < self.rows[group]:
                    found.resize((chains, self.rows[group], *shape))
            else:
                found = folder.create_array(
                    name=key,
                    shape=(chains, self.rows[group], *shape),
                    chunks=(chains, chunk, *(max(1, size) for size in shape)),
                    dtype=array.dtype,
                    compressors=None,
                    dimension_names=[
                        "chain",
                        "draw",
                        *(f"{key}_dim_{i}" for i in range(len(shape))),
                    ],
                )
            self.arrays[group][name] = found
            self.buffers[group][name] = np.zeros((chains, found.chunks[1], *shape), array.dtype)


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _chunk(row: int) -> int:
    """How many draws a chunk has, a power of two.

    >>> _chunk(256), _chunk(64_000), _chunk(10**9)
    (65536, 256, 1)
    """
    most = max(1, min(MOST_DRAWS, MOST_BYTES // max(row, 1)))
    return 2 ** (most.bit_length() - 1)


def must_have_zarr() -> None:
    """Raise if Zarr is not installed: better before a run than after."""
    _zarr()


def _zarr() -> Any:
    try:
        import zarr
    except ImportError:
        raise OptionError(
            'resume= writes draws as Zarr arrays: pip install "lanewise[mcmc]".'
        ) from None
    return zarr
