"""Models written in PyMC, version 5 or 6."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from lanewise.core.errors import OptionError
from lanewise.mcmc.models import Model, Position
from lanewise.mcmc.pymc_graphs import drawing, flags_kept, jax_function


def from_pymc(model: Any) -> Model:
    """A PyMC model, by the graphs that PyMC compiles to JAX, with its data, dims and coords.

    The draws have what PyMC's have: free variables as the model has them, not their transforms, and deterministics.
    Missing observations, NaN or masked, are free variables as in PyMC (`y_unobserved`). The data are those that the
    model holds now; after `pymc.set_data` call this again.

    Draws from the prior leave out the effect of `pymc.Potential`, as PyMC's do. PyMC's JAX backend turns on double
    precision for the whole process when it is imported, which is here.
    """
    pymc = _the_library()
    if not isinstance(model, pymc.Model):
        raise OptionError(f"from_pymc takes a pymc.Model; got {type(model).__name__}.")
    _must_be_continuous(model)
    names = [variable.name for variable in model.value_vars]
    logp = jax_function(model.value_vars, [model.logp()], "the log density", now=True)
    kept, graphs = _shown_of(model)
    constrain = jax_function(model.value_vars, graphs, "a deterministic")

    def logdensity(position: Position) -> Float[Array, ""]:
        return jnp.asarray(logp(*_of(position, names))[0]).reshape(())

    def shown(position: Position) -> dict[str, Array]:
        values = constrain(*_of(position, names))
        return {name: jnp.asarray(value) for name, value in zip(kept, values, strict=True)}

    return Model(logdensity, _init_of(model), shown, **_after(model, names), **_data_of(model))


def is_pymc(model: Any) -> bool:
    """Whether it is a PyMC model; this does not import PyMC."""
    pymc = sys.modules.get("pymc")
    return pymc is not None and isinstance(model, pymc.Model)


def _the_library() -> Any:
    try:
        with flags_kept():
            import pymc
            import pymc.sampling.jax
    except ImportError:
        raise OptionError("from_pymc needs PyMC: pip install pymc.") from None
    return pymc


def _must_be_continuous(model: Any) -> None:
    if not model.value_vars:
        raise OptionError("the PyMC model has no free variables: there is nothing to sample.")
    for variable in model.free_RVs:
        if not np.issubdtype(variable.dtype, np.floating):
            missing = variable.name.endswith("_unobserved")
            fix = (
                "leave the missing observations out of the data"
                if missing
                else "sum it out of the model (pymc.Mixture, or marginalize of pymc-extras), or sample with pymc.sample"
            )
            raise OptionError(
                f"{variable.name} is of type {variable.dtype}; these samplers move along gradients, which such a"
                f" variable has none of: {fix}."
            )


def _of(values: Any, names: list[str]) -> list[Any]:
    return [values[name] for name in names]


def _shown_of(model: Any) -> tuple[list[str], Any]:
    """The names of free variables and deterministics, and their graphs by the values of a position."""
    variables = [*model.free_RVs, *model.deterministics]
    return [variable.name for variable in variables], model.replace_rvs_by_values(variables)


def _init_of(model: Any) -> Any:
    """PyMC's starts: its initial point, with up to one added or subtracted in unconstrained coordinates."""
    point = {name: np.asarray(value, float) for name, value in model.initial_point().items()}

    def init(key: Key[Array, ""]) -> Position:
        keys = jax.random.split(key, len(point))
        return {
            name: jnp.asarray(value, float) + jax.random.uniform(k, value.shape, float, -1.0, 1.0)
            for (name, value), k in zip(point.items(), keys, strict=True)
        }

    return init


def _after(model: Any, names: list[str]) -> dict[str, Any]:
    """What is computed after sampling: positions of kept draws, log likelihoods, predictions, the prior."""
    from pymc.sampling.forward import observed_dependent_deterministics

    inputs = {variable: variable.type(name=variable.name) for variable in model.free_RVs}
    free = [variable.name for variable in inputs]
    transform = jax_function(
        list(inputs.values()), _replaced(_transforms_of(model), inputs), "a transform"
    )

    def unconstrained(quantities: dict[str, Array]) -> Position:
        values = transform(*_of(quantities, free))
        return {name: jnp.asarray(value) for name, value in zip(names, values, strict=True)}

    def prior(key: Key[Array, ""]) -> dict[str, Array]:
        if model.potentials:
            warnings.warn(
                "The effect of pymc.Potential is left out of draws from the prior.",
                UserWarning,
                stacklevel=2,
            )
        return dict(zip(all_names, draw_all(key), strict=True))

    everything = [*model.free_RVs, *model.deterministics, *model.observed_RVs]
    all_names = [variable.name for variable in everything]
    draw_all = drawing(everything, {})
    fields = {"unconstrained": unconstrained, "prior": prior}
    if not model.observed_RVs:
        return fields

    observed = [variable.name for variable in model.observed_RVs]
    predicted = [*model.observed_RVs, *observed_dependent_deterministics(model)]
    predicted_names = [variable.name for variable in predicted]
    pointwise = jax_function(
        model.value_vars, model.logp(model.observed_RVs, sum=False), "the log likelihood"
    )
    draw_observed = drawing(predicted, inputs)
    constrain = jax_function(
        model.value_vars, model.replace_rvs_by_values(model.free_RVs), "what is kept of a draw"
    )

    def log_likelihood(position: Position) -> dict[str, Array]:
        values = pointwise(*_of(position, names))
        return {name: jnp.asarray(value) for name, value in zip(observed, values, strict=True)}

    def predictive(key: Key[Array, ""], position: Position) -> dict[str, Array]:
        drawn = draw_observed(key, *constrain(*_of(position, names)))
        return dict(zip(predicted_names, drawn, strict=True))

    return fields | {"log_likelihood": log_likelihood, "predictive": predictive}


def _transforms_of(model: Any) -> list[Any]:
    """The values of a position as graphs of the free variables."""
    transforms = [(variable, model.rvs_to_transforms[variable]) for variable in model.free_RVs]
    return [
        variable if transform is None else transform.forward(variable, *variable.owner.inputs)
        for variable, transform in transforms
    ]


def _replaced(graphs: list[Any], inputs: dict[Any, Any]) -> list[Any]:
    from pytensor.graph.replace import clone_replace

    return list(clone_replace(graphs, replace=inputs))


def _data_of(model: Any) -> dict[str, Any]:
    from pymc.backends.arviz import (
        coords_and_dims_for_inferencedata,
        find_constants,
        find_observations,
    )

    coords, dims = coords_and_dims_for_inferencedata(model)
    return {
        "observed": find_observations(model),
        "constant": find_constants(model),
        "coords": coords,
        "dims": dims,
    }
