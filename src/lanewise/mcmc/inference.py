"""Draws as ArviZ data: an `InferenceData` for ArviZ 0.x, an xarray `DataTree` for ArviZ 1.x.

Both are groups of xarray datasets, which are made here, since ArviZ's own converters differ between the two. An array
is taken as it is: it is not copied, and one on disk is not read. Groups and attributes have the names of
ArviZ's schema (https://python.arviz.org/en/stable/schema/schema.html).

Names of axes never cost a run its draws: those that do not fit an array are left out, with a warning that says why.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import gc
import importlib
import importlib.metadata
import importlib.util
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from lanewise.core.errors import OptionError
from lanewise.mcmc.models import Model

Arrays = Mapping[str, Any]
SAMPLE_DIMS = ("chain", "draw")
# This library's name in the attributes of groups.
LIBRARY = "lanewise"


def sampled(model: Model, groups: Mapping[str, Arrays], attributes: Mapping[str, Any]) -> Any:
    """The data of a run: its groups, and the model's observed and constant data.

    `groups` holds named arrays with axes chain, draw and those of the quantity: `posterior` and `sample_stats`, and
    `warmup_posterior` and `warmup_sample_stats` where the warm-up was kept. `attributes` go to each of these
    (`sampler`, and ArviZ's `sampling_time` in seconds and `tuning_steps`).

    >>> model = Model(lambda x: -x @ x, dims={"x": ["row"]}, coords={"row": ["a", "b"]})
    >>> data = sampled(model, {"posterior": {"x": np.zeros((4, 10, 2))}}, {"tuning_steps": 100})
    >>> data.posterior["x"].dims, data.posterior.attrs["tuning_steps"]
    (('chain', 'draw', 'row'), 100)
    """
    made = {group: dataset(group, arrays, model, attributes) for group, arrays in groups.items()}
    return data_of(made | data_groups(model))


def data_groups(model: Model, prefix: str = "") -> dict[str, Any]:
    """The groups of a model's observed and constant data."""
    groups = {"observed_data": model.observed, "constant_data": model.constant}
    return {
        prefix + group: dataset(prefix + group, arrays, model)
        for group, arrays in groups.items()
        if arrays
    }


def data_of(groups: Mapping[str, Any]) -> Any:
    """Datasets by group, or plain arrays by group and name, as the installed ArviZ has them.

    >>> data_of({"posterior": {"x": np.zeros((4, 10))}}).posterior.sizes["draw"]
    10
    """
    xarray = _xarray()
    nameless = Model(_no_density)
    datasets = {
        group: arrays
        if isinstance(arrays, xarray.Dataset)
        else dataset(group, arrays, nameless, {})
        for group, arrays in groups.items()
    }
    # ArviZ takes longer to import than many models to sample, and 1.x is not needed for its data.
    if int((_version("arviz") or "0").partition(".")[0]) >= 1:
        return xarray.DataTree.from_dict({g: _dotted(data) for g, data in datasets.items()})
    return the_library().InferenceData(**datasets)


def groups_of(data: Any) -> dict[str, Any]:
    """The datasets of either kind of data, by group."""
    children = getattr(data, "children", None)
    if children is not None:
        return {name: _slashed(node.to_dataset()) for name, node in children.items()}
    groups: Any = getattr(data, "groups", None)
    if not hasattr(data, "groups"):
        raise OptionError(
            f"data must be what mcmc.sample gives, an InferenceData or a DataTree; got {type(data).__name__}."
        )
    return {group: data[group] for group in groups()}


def _dotted(data: Any) -> Any:
    """A tree has `/` between groups, so names have a dot in its place, and their own as `long_name`."""
    names = {name: name.replace("/", ".") for name in {*data.variables, *data.dims} if "/" in name}
    data = data.rename(names)
    for name, dotted in names.items():
        if dotted in data.variables:
            data[dotted].attrs["long_name"] = name
    return data


def _slashed(data: Any) -> Any:
    """The names that `_dotted` was given."""
    known = {name: str(data[name].attrs.get("long_name")) for name in data.variables}
    return data.rename(
        {name: own for name, own in known.items() if name != own and own.replace("/", ".") == name}
    )


def with_groups(data: Any, groups: Mapping[str, Any]) -> Any:
    """The data with groups added or replaced; what was given stays as it is, and shares its arrays."""
    return data_of(groups_of(data) | dict(groups))


def dataset(
    group: str,
    arrays: Arrays,
    model: Model,
    attributes: Mapping[str, Any] | None = None,
    coords: Arrays | None = None,
) -> Any:
    """One group; `attributes` are those of a run, and `coords` are beside the model's (`chain`, `draw`)."""
    xarray = _xarray()
    leading = () if group.endswith("data") else SAMPLE_DIMS
    places = {**model.coords, **(coords or {})}
    variables = {
        name: array if _has_axes(array) else np.asarray(array) for name, array in arrays.items()
    }
    sizes: dict[str, int] = {}
    axes: dict[str, tuple[str, ...]] = {}
    for name, array in variables.items():
        given = model.dims.get(name, ())
        # The log likelihood of a vector is one number.
        given = given if group != "log_likelihood" else given[: len(array.shape) - len(leading)]
        axes[name] = axes_of(name, tuple(array.shape), leading, given, places, sizes, variables)
    return xarray.Dataset(
        {name: variable(axes[name], array) for name, array in variables.items()},
        coords={dim: places.get(dim, np.arange(size)) for dim, size in sizes.items()},
        attrs=_attributes(attributes),
    )


def axes_of(
    name: str,
    shape: tuple[int, ...],
    leading: Sequence[str],
    given: Sequence[str | None],
    coords: Arrays,
    sizes: dict[str, int],
    variables: Collection[str] = (),
) -> tuple[str, ...]:
    """Names of an array's axes, as given or by ArviZ's rule; `sizes` are those of all axes so far, and it grows.

    An axis has no name that one of the `variables` has.

    >>> axes_of("x", (4, 10, 3, 2), ("chain", "draw"), [None, "row"], {"row": "ab"}, {})
    ('chain', 'draw', 'x_dim_0', 'row')
    """
    rest = shape[len(leading) :]
    if len(given) > len(rest):
        _warn(f"dims names {len(given)} axes of {name}, which has {len(rest)}")
        given = ()
    names = list(leading)
    for at, size in enumerate(rest):
        wanted = given[at] if at < len(given) else None
        if wanted is not None and wanted in variables:
            _warn(f"{wanted!r} is the name of axis {at} of {name} and of a variable")
            wanted = None
        if wanted is not None:
            known = len(coords[wanted]) if wanted in coords else sizes.get(wanted, size)
            if known != size or wanted in names:
                _warn(f"axis {at} of {name} has size {size}, and {wanted!r} has {known}")
                wanted = None
        unnamed = sum(n.startswith(f"{name}_dim_") for n in names)
        names.append(f"{name}_dim_{unnamed}" if wanted is None else wanted)
    sizes.update(zip(names, shape, strict=True))
    return tuple(names)


def _warn(why: str) -> None:
    warnings.warn(
        f"{why}: the axis has a name of its own instead. See dims and coords of the model.",
        UserWarning,
        stacklevel=2,
    )


def _has_axes(array: Any) -> bool:
    return hasattr(array, "shape") and hasattr(array, "dtype")


def variable(dims: tuple[str, ...], array: Any) -> Any:
    """The array under these names of axes: not copied, and not read if it is on disk."""
    xarray = _xarray()
    if isinstance(array, xarray.DataArray):
        array = array.variable
    if isinstance(array, xarray.Variable):
        renamed = array.copy(deep=False)
        renamed.dims = dims
        return renamed
    if isinstance(array, jax.Array):
        array = np.asarray(array)
    elif not hasattr(array, "__array_function__"):
        from lanewise.mcmc.lazy import lazily

        array = lazily(array)
    return xarray.Variable(dims, array)


def _attributes(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The attributes that ArviZ's schema requires; `given` is None where nothing was drawn."""
    version = _version(LIBRARY)
    made_by = {"library": LIBRARY} | ({"library_version": version} if version else {})
    attributes = {
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(),
        **{f"creation_{name}": value for name, value in made_by.items()},
        "creation_library_language": "Python",
    }
    if given is None:
        return attributes
    return (
        attributes | {f"inference_{name}": value for name, value in made_by.items()} | dict(given)
    )


@functools.cache
def _version(distribution: str) -> str | None:
    """The version that is installed; reading it takes milliseconds."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def must_have_library() -> None:
    """Raise if ArviZ is not installed. It is imported when there are draws: that takes seconds."""
    if importlib.util.find_spec("arviz") is None:
        raise OptionError('lanewise.mcmc.sample gives ArviZ data: pip install "lanewise[mcmc]".')


def the_library() -> Any:
    """ArviZ, without the announcement of its next version."""
    return _imported("arviz")


def _xarray() -> Any:
    """It comes with ArviZ, and is imported when there are draws."""
    return _imported("xarray")


def _imported(name: str) -> Any:
    must_have_library()
    # What an import makes stays: collections of garbage would find nothing, in a quarter of its time.
    collects = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return importlib.import_module(name)
    finally:
        if collects:
            gc.enable()


def named(positions: Any) -> dict[str, np.ndarray]:
    """Arrays by their path in a pytree; a lone array is `x`.

    >>> sorted(named({"group": {"mean": np.zeros(2)}, "scale": np.ones(2)}))
    ['group.mean', 'scale']
    """
    return dict(zip(names_of(positions), map(np.asarray, jax.tree.leaves(positions)), strict=True))


def names_of(positions: Any) -> list[str]:
    """The names that `named` gives, for arrays or what stands for them."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(positions)
    return [jax.tree_util.keystr(path, simple=True, separator=".") or "x" for path, _ in leaves]


def _no_density(position: Any) -> Any:
    raise NotImplementedError
