"""Where chains start, as given by callers: positions, a function that makes them, or values of named quantities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise.core.errors import OptionError
from lanewise.mcmc.inference import named
from lanewise.mcmc.models import Model, Position
from lanewise.mcmc.start import Starts, starts
from lanewise.mcmc.stretches import bucket


def begun(
    model: Model, init: Any, values: Mapping[str, Any] | None, chains: int, key: Any, lanes: bool
) -> Starts:
    """The starts of chains; with `lanes`, of as many lanes as are compiled for them."""
    if values is not None:
        init = positions_of(model, init, values, chains, key)
    return starts(model, init, chains, key, bucket(chains) if lanes else chains)


def positions_of(
    model: Model, init: Any, values: Mapping[str, Any], chains: int, key: Any
) -> Position:
    """Positions at which named quantities have these values; the others are as `init` makes them.

    A value is one for all chains, or has an axis of chains in front.

    >>> model = Model(
    ...     lambda x: -x**2, lambda key: jnp.zeros(()),
    ...     lambda x: {"scale": jnp.exp(x)}, lambda shown: jnp.log(shown["scale"]),
    ... )
    >>> positions_of(model, None, {"scale": [1.0, 1.0]}, 2, jax.random.key(0)).tolist()
    [0.0, 0.0]
    """
    if not isinstance(values, Mapping):
        raise OptionError(
            f"initial_values={values!r} must be a dict of values by the name of a quantity."
        )
    init = model.init if init is None else init
    if not callable(init):
        raise OptionError(
            "initial_values= needs an init that is a function of a key, for what it leaves out."
        )
    if model.shown is not None and model.unconstrained is None:
        raise OptionError(
            "initial_values= are constrained, and this model has no `unconstrained`: give positions with init=."
        )
    keys = jax.random.split(jax.random.split(key)[0], chains)
    positions = jax.vmap(init)(keys)
    shown = positions if model.shown is None else jax.vmap(model.shown)(positions)
    quantities = named(shown)
    for name in values:
        if name not in quantities:
            known = ", ".join(map(repr, sorted(quantities)))
            raise OptionError(f"initial_values names {name!r}; the quantities are {known}.")
        quantities[name] = _of_chains(name, values[name], quantities[name])
    tree = jax.tree.structure(shown)
    shown = jax.tree.unflatten(tree, [jnp.asarray(quantities[name]) for name in named(shown)])
    if model.shown is None:
        return shown
    assert model.unconstrained is not None
    found = jax.vmap(model.unconstrained)(shown)
    for name, array in named(found).items():
        if not np.isfinite(array).all():
            raise OptionError(
                f"initial_values have no finite position ({name!r}): a value is outside what its quantity can be."
            )
    return found


def _of_chains(name: str, value: Any, like: np.ndarray) -> np.ndarray:
    try:
        given = np.asarray(value, like.dtype)
    except (TypeError, ValueError):
        raise OptionError(
            f"initial_values[{name!r}]={value!r} must be numbers, of shape {like.shape[1:]}."
        ) from None
    if given.shape not in (like.shape, like.shape[1:]):
        raise OptionError(
            f"initial_values[{name!r}] has shape {given.shape}; it must be {like.shape[1:]}, or {like.shape} with a"
            " value for each chain."
        )
    return np.broadcast_to(given, like.shape)
