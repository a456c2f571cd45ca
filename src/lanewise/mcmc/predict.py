"""After sampling: the log likelihood of each observation, and predictions.

Kept draws are quantities of the model; `Model.unconstrained` turns them into the positions at which the model's other
functions are evaluated, in blocks (`in_blocks.py`). Data are never changed: each function returns new data, which share
their arrays with the old. A draw's prediction depends on the key and on the place of the draw, not on blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from lanewise import _jax
from lanewise.core.errors import OptionError
from lanewise.mcmc.given import model_of, typed_key
from lanewise.mcmc.in_blocks import in_blocks, one_of
from lanewise.mcmc.inference import (
    SAMPLE_DIMS,
    data_groups,
    data_of,
    dataset,
    groups_of,
    with_groups,
)
from lanewise.mcmc.models import Model, Position
from lanewise.mcmc.samplers import must_be_count

# How each field is given, for errors.
_GIVEN = {
    "unconstrained": "unconstrained=lambda quantities: position, the inverse of shown",
    "log_likelihood": "log_likelihood=lambda position: {name: the log likelihood of each observation}",
    "predictive": "predictive=lambda key, position: {name: what could have been observed}",
    "prior": "prior=lambda key: {name: a draw from the prior or of what could be observed}",
}


def log_likelihood(model: Any, data: Any, *, block: int | None = None) -> Any:
    """The data with a group `log_likelihood`: that of each observation at each draw, for `arviz.loo`.

    * `model`: the `Model` that was sampled, or a PyMC model.
    * `data`: what `sample` gave.
    * `block`: how many draws at a time; chosen by the memory they take unless given.

    >>> model = Model(
    ...     lambda mean: -0.5 * (mean - 1.0) ** 2,
    ...     log_likelihood=lambda mean: {"y": -0.5 * (mean - jnp.ones(3)) ** 2},
    ... )
    >>> data = data_of({"posterior": {"x": np.zeros((4, 10))}})
    >>> log_likelihood(model, data).log_likelihood["y"].shape
    (4, 10, 3)
    """
    model = model_of(model)
    found = _of_draws(_field(model, "log_likelihood"), model, data, None, block)
    return with_groups(data, {"log_likelihood": _group("log_likelihood", found, model, data)})


def posterior_predictive(
    model: Any, data: Any, key: Any, *, predictions: bool = False, block: int | None = None
) -> Any:
    """The data with a group `posterior_predictive`: what could have been observed, a draw of it for each draw.

    With `predictions=True` the model is one for other data (the same variables, new covariates): the group is
    `predictions`, and the model's constant data are in `predictions_constant_data`.
    """
    model = model_of(model)
    found = _of_draws(_field(model, "predictive"), model, data, typed_key(key), block)
    group = "predictions" if predictions else "posterior_predictive"
    groups = {group: _group(group, found, model, data)}
    if predictions:
        constant = Model(
            model.logdensity, constant=model.constant, dims=model.dims, coords=model.coords
        )
        groups |= data_groups(constant, "predictions_")
    return with_groups(data, groups)


def prior_predictive(
    model: Any, key: Any, *, draws: int = 500, data: Any = None, block: int | None = None
) -> Any:
    """Groups `prior` and `prior_predictive`: draws of all quantities, and of what could be observed of them.

    They are added to `data` where it is given; else the data are new, with the model's observed and constant data.

    >>> model = Model(
    ...     lambda mean: -0.5 * mean**2,
    ...     prior=lambda key: {"mean": jax.random.normal(key), "y": jnp.zeros(3)}, observed={"y": np.ones(3)},
    ... )
    >>> drawn = prior_predictive(model, jax.random.key(0), draws=20)
    >>> drawn.prior["mean"].shape, drawn.prior_predictive["y"].shape
    ((1, 20), (1, 20, 3))
    """
    model = model_of(model)
    must_be_count("draws", draws, 1)
    found = in_blocks(_Work(_field(model, "prior")), {}, (1, draws), typed_key(key), block)
    observed = {name: array for name, array in found.items() if name in model.observed}
    quantities = {name: array for name, array in found.items() if name not in model.observed}
    parts = {"prior": quantities, "prior_predictive": observed}
    groups = {name: dataset(name, part, model, {}) for name, part in parts.items() if part}
    return data_of(groups | data_groups(model)) if data is None else with_groups(data, groups)


def _field(model: Model, name: str) -> Callable[..., Any]:
    found = getattr(model, name)
    if found is None:
        raise OptionError(f"the model has no {name}: make it with Model(..., {_GIVEN[name]}).")
    return found


def _group(group: str, arrays: Mapping[str, Any], model: Model, data: Any) -> Any:
    posterior = groups_of(data)["posterior"]
    coords = {dim: posterior[dim].values for dim in SAMPLE_DIMS if dim in posterior.coords}
    return dataset(group, arrays, model, {}, coords)


@dataclass(frozen=True)
class _Work:
    """A function of a model at a draw: it takes the draw's key, if it needs one, and its position, if it has one.

    `unread` are the quantities that no position is made from, with their shapes.
    """

    function: Callable[..., Any]
    back: Callable[..., Position] | None = None
    unread: tuple[tuple[str, Any], ...] = ()
    takes_key: bool = True

    def __call__(self, key: Key[Array, ""], quantities: dict[str, Array]) -> dict[str, Array]:
        arguments: list[Any] = [key] if self.takes_key else []
        if self.back is not None:
            zeros = {name: jnp.zeros(one.shape, one.dtype) for name, one in self.unread}
            arguments.append(self.back(zeros | quantities))
        return dict(self.function(*arguments))


@dataclass(frozen=True)
class _Unnamed:
    """Positions whose arrays are stored by their paths: `unconstrained` for a model that shows its position."""

    tree: Any
    names: tuple[str, ...]

    def __call__(self, quantities: dict[str, Array]) -> Position:
        return jax.tree.unflatten(self.tree, [quantities[name] for name in self.names])


def _back(model: Model, names: list[str]) -> Callable[..., Position]:
    """The function that makes a position from the quantities that were kept."""
    if model.unconstrained is not None or model.shown is not None:
        return _field(model, "unconstrained")
    if model.init is not None:
        shapes = jax.eval_shape(model.init, jax.random.key(0))
    elif names == ["x"]:
        shapes = 0.0
    elif not any("." in name for name in names):
        shapes = dict.fromkeys(names, 0.0)
    else:
        return _field(model, "unconstrained")
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
    paths = (jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves)
    return _Unnamed(tree, tuple(path or "x" for path in paths))


def _of_draws(
    function: Callable[..., Any], model: Model, data: Any, key: Any, block: int | None
) -> dict[str, np.ndarray]:
    """The results of a function of a position, and of a key if there is one, for each draw of the posterior."""
    groups = groups_of(data)
    if "posterior" not in groups:
        raise OptionError("data has no group posterior: give what mcmc.sample gave.")
    posterior = groups["posterior"].transpose(*SAMPLE_DIMS, ...)
    arrays = {str(name): array.variable for name, array in posterior.data_vars.items()}
    one = {name: one_of(array) for name, array in arrays.items()}
    back = _back(model, list(arrays))
    needed = {name: arrays[name] for name in _needed(back, one)}
    unread = tuple((name, shape) for name, shape in one.items() if name not in needed)
    size = posterior.sizes["chain"], posterior.sizes["draw"]
    return in_blocks(_Work(function, back, unread, key is not None), needed, size, key, block)


def _needed(back: Callable[..., Position], one: dict[str, Any]) -> list[str]:
    """The quantities that a position is made from: the others are not read."""
    try:
        traced: Any = jax.make_jaxpr(back)(one)
    except KeyError as error:
        raise OptionError(
            f"the posterior has no {error}, of which the model makes a position: keep it in the data."
        ) from error
    used = _jax.used_inputs(_jax.flat_jaxpr(traced))
    # Constants come first; dictionaries are traversed by sorted names.
    return [name for name, is_used in zip(sorted(one), used[-len(one) :], strict=True) if is_used]
