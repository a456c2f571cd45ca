"""From what ArviZ holds to arrays: variables and statistics of a run, as the report reads them.

ArviZ before 1.0 has `InferenceData`, whose groups are datasets; from 1.0 on it has xarray's `DataTree`, whose groups
are nodes with a `dataset`. `group` is the only place that knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# Other libraries' names of what is reported of a draw.
ALSO = {
    "treedepth": "tree_depth",
    "depth": "tree_depth",
    "n_leapfrog": "n_steps",
    "mean_tree_accept": "acceptance_rate",
    "step_size_bar": "step_size",
}


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of a run. Arrays have the axes chain and draw; `chains` are the numbers of those that are kept.

    `left_out` are chains with draws that are not finite, `unknown` variables that are finite in no chain.
    """

    variables: Mapping[str, np.ndarray]
    stats: Mapping[str, np.ndarray]
    chains: np.ndarray
    draws: int
    left_out: np.ndarray
    unknown: tuple[str, ...]
    depth_limit: int | None = None


def draws_of(data: Any) -> Draws:
    """The draws of an `InferenceData`, a `DataTree`, or a mapping of groups to mappings of arrays."""
    posterior = group(data, "posterior")
    found = dict(_scalars(posterior))
    if not found:
        raise ValueError("The posterior has no variable with the axes chain and draw.")
    chains, draws = next(iter(found.values())).shape
    fine = {name: np.isfinite(values).all(1) for name, values in found.items()}
    unknown = tuple(name for name, chain in fine.items() if not chain.any())
    known = [name for name in found if name not in unknown]
    kept = (
        np.logical_and.reduce([fine[name] for name in known]) if known else np.zeros(chains, bool)
    )
    numbers = _chain_numbers(posterior, chains)
    every = bool(kept.all())
    variables = {name: found[name] if every else found[name][kept] for name in known}
    stats = {name: values[kept] for name, values in _stats(data, (chains, draws))}
    return Draws(
        variables if kept.any() else {},
        stats,
        numbers[kept],
        draws,
        numbers[~kept],
        unknown,
        _depth_limit(posterior),
    )


def _depth_limit(posterior: Any) -> int | None:
    """The sampler's `max_depth`, by the attribute that a run of ours has."""
    sampler = str(getattr(posterior, "attrs", {}).get("sampler", ""))
    found = re.search(r"max_depth=(\d+)", sampler)
    return int(found.group(1)) if found else None


def group(data: Any, name: str) -> Any:
    """A group as a mapping of variables, or None."""
    found = data[name] if name in data else None
    return getattr(found, "dataset", found)


def _names(found: Any) -> list[Any]:
    return list(getattr(found, "data_vars", found))


def _scalars(posterior: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Every number of the posterior by its name, with coordinates as ArviZ writes them: `theta[Choate]`."""
    for name in _names(posterior):
        variable = posterior[name]
        if hasattr(variable, "transpose") and {"chain", "draw"} <= set(
            getattr(variable, "dims", ())
        ):
            variable = variable.transpose("chain", "draw", ...)
        elif hasattr(variable, "dims"):
            continue
        values = np.asarray(variable)
        if values.ndim < 2 or values.dtype.kind not in "biuf":
            continue
        places = _places(variable, values.shape)
        for index in np.ndindex(values.shape[2:]):
            at = ", ".join(str(axis[i]) for axis, i in zip(places, index))
            yield (
                f"{name}[{at}]" if index else str(name),
                values[(slice(None), slice(None), *index)],
            )


def _places(variable: Any, shape: tuple[int, ...]) -> list[Any]:
    dims = getattr(variable, "dims", (None,) * len(shape))
    coords = getattr(variable, "coords", {})
    return [
        np.asarray(coords[dim]) if dim in coords else range(size)
        for dim, size in zip(dims[2:], shape[2:])
    ]


def _chain_numbers(posterior: Any, chains: int) -> np.ndarray:
    coords = getattr(posterior, "coords", {})
    return np.asarray(coords["chain"]) if "chain" in coords else np.arange(chains)


def _stats(data: Any, shape: tuple[int, int]) -> Iterator[tuple[str, np.ndarray]]:
    found = group(data, "sample_stats")
    if found is None:
        return
    for name in _names(found):
        values = np.asarray(found[name])
        if values.shape == shape:
            stat = str(name)
            yield ALSO.get(stat, stat), values
