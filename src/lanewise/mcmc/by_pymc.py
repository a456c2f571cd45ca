"""Models written in PyMC."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from lanewise.core.errors import OptionError
from lanewise.mcmc.models import Model, Position


def from_pymc(model: Any) -> Model:
    """A PyMC model, by the log density that PyMC compiles to JAX; free variables are kept by PyMC's own names.

    PyMC's JAX backend turns on double precision for the whole process when it is imported, which is here.
    """
    try:
        import pymc
        from pymc.sampling.jax import get_jaxified_graph, get_jaxified_logp
    except ImportError:
        raise OptionError("from_pymc needs PyMC: pip install pymc.") from None
    if not isinstance(model, pymc.Model):
        raise OptionError(f"from_pymc takes a pymc.Model; got {type(model).__name__}.")
    for variable in model.value_vars:
        if not np.issubdtype(variable.dtype, np.floating):
            raise OptionError(
                f"{variable.name} is of type {variable.dtype}; samplers move along gradients, so sum such variables out"
                " of the model."
            )
    names = [variable.name for variable in model.value_vars]
    point = model.initial_point()
    logp = get_jaxified_logp(model)
    outputs = model.unobserved_value_vars
    constrain: Any = get_jaxified_graph(inputs=model.value_vars, outputs=outputs)

    def logdensity(position: Position) -> Float[Array, ""]:
        return jnp.asarray(logp([position[name] for name in names])).reshape(())

    def init(key: Key[Array, ""]) -> Position:
        keys = jax.random.split(key, len(names))
        return {
            name: jnp.asarray(point[name], float)
            + jax.random.uniform(k, jnp.shape(point[name]), float, -1.0, 1.0)
            for name, k in zip(names, keys)
        }

    def shown(position: Position) -> dict[str, Array]:
        values = constrain(*[position[name] for name in names])
        return {variable.name: value for variable, value in zip(outputs, values, strict=True)}

    return Model(logdensity, init, shown)
