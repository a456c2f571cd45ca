"""Draws as ArviZ has them."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from lanewise.core.errors import OptionError
from lanewise.mcmc.models import Model

Arrays = Mapping[str, Any]


def sampled(model: Model, groups: Mapping[str, Arrays], attributes: Mapping[str, Any]) -> Any:
    """`InferenceData` of groups of named arrays, whose axes are chain, draw and those of the quantity.

    Arrays are taken as they are; xarray's variables that lie on disk stay there.
    """
    arviz = the_library()
    import xarray

    datasets = {}
    for group, arrays in groups.items():
        variables, sizes = {}, {}
        for name, array in arrays.items():
            dims = ("chain", "draw", *(f"{name}_dim_{i}" for i in range(len(array.shape) - 2)))
            sizes |= dict(zip(dims, array.shape))
            if isinstance(array, xarray.Variable):
                array = array.copy(deep=False)
                array.dims = dims
            variables[name] = array if isinstance(array, xarray.Variable) else (dims, array)
        coords = {dim: np.arange(size) for dim, size in sizes.items()}
        datasets[group] = xarray.Dataset(variables, coords, dict(attributes))
    return arviz.InferenceData(**datasets)


def must_have_library() -> None:
    """Raise if ArviZ is not installed. It is imported when there are draws: that takes seconds."""
    if importlib.util.find_spec("arviz") is None:
        raise OptionError('lanewise.mcmc.sample gives ArviZ data: pip install "lanewise[mcmc]".')


def the_library() -> Any:
    """ArviZ, without the announcement of its next version."""
    must_have_library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def named(positions: Any) -> dict[str, np.ndarray]:
    """Arrays by the way to them in a pytree; a lone array is `x`.

    >>> sorted(named({"group": {"mean": np.zeros(2)}, "scale": np.ones(2)}))
    ['group.mean', 'scale']
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(positions)
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") or "x": np.asarray(leaf)
        for path, leaf in leaves
    }
