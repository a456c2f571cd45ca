"""What is sampled: a log density, where chains start, and what a position stands for.

`Model` holds the three; `from_numpyro` and `from_pymc` make one of a model in those languages. Their own unconstrained
coordinates and densities are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from lanewise.core.errors import OptionError

Position = Any  # any pytree of arrays of floats


@dataclass(frozen=True)
class Model:
    """A density to sample.

    `logdensity` takes a position, any pytree of arrays, and gives a number. `init` makes a position of a key. `shown`
    turns a position into the named quantities that are kept; None keeps the position itself.

    >>> import jax
    >>> normal = Model(lambda x: -0.5 * x @ x, init=lambda key: jax.random.normal(key, (3,)))
    >>> normal.logdensity(normal.init(jax.random.key(0))).shape
    ()
    """

    logdensity: Callable[[Position], Float[Array, ""]]
    init: Callable[[Key[Array, ""]], Position] | None = None
    shown: Callable[[Position], dict[str, Array]] | None = None


def from_numpyro(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Model:
    """A NumPyro model with its arguments, in its unconstrained coordinates; sites are kept constrained."""
    try:
        from numpyro.infer import util
    except ImportError:
        raise OptionError("from_numpyro needs NumPyro: pip install numpyro.") from None
    shapes = _unconstrained_shapes(model, args, kwargs)
    if shapes is None:
        shapes, potential, shown = _prepared_by_numpyro(model, args, kwargs)
    else:

        def potential(position: Position) -> Any:
            return util.potential_energy(model, args, kwargs, position)

        def shown(position: Position) -> dict[str, Array]:
            return util.constrain_fn(model, args, kwargs, position, return_deterministic=True)

    leaves, tree = jax.tree.flatten(shapes)

    def logdensity(position: Position) -> Float[Array, ""]:
        return -potential(position)

    def init(key: Key[Array, ""]) -> Position:
        keys = jax.random.split(key, len(leaves))
        starts = [
            jax.random.uniform(k, leaf.shape, leaf.dtype, -2.0, 2.0)
            for k, leaf in zip(keys, leaves)
        ]
        return jax.tree.unflatten(tree, starts)

    return Model(logdensity, init, shown)


def _unconstrained_shapes(model: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a position of the model is like, found by tracing alone; None for a model that NumPyro must prepare.

    NumPyro prepares a model by running it, operation by operation, each compiled by itself. That is needed where
    discrete sites are to be summed out, and for parameters, state, loops and keys of its own.
    """
    from numpyro import handlers
    from numpyro.distributions import Delta
    from numpyro.infer.util import unconstrain_fn

    plain = True

    def example() -> Any:
        nonlocal plain
        seeded = handlers.seed(model, rng_seed=0)
        sites = handlers.trace(seeded).get_trace(*args, **kwargs)
        free = {
            name: site
            for name, site in sites.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        known = {"sample", "deterministic", "plate"}
        plain = all(
            site["type"] in known and not (site["type"] == "plate" and _subsamples(site))
            for site in sites.values()
        ) and not any(
            site["fn"].support.is_discrete or isinstance(site["fn"], Delta)
            for site in free.values()
        )
        if not plain:
            return None
        values = {name: site["value"] for name, site in free.items()}
        return unconstrain_fn(seeded, args, kwargs, values)

    shapes = jax.eval_shape(example)
    return shapes if plain else None


def _subsamples(plate: Any) -> bool:
    size, subsample_size = plate["args"]
    return subsample_size is not None and subsample_size != size


def _prepared_by_numpyro(
    model: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[Any, Callable[..., Any], Callable[..., Any]]:
    """What a position is like, the potential energy there, and what is shown of it."""
    from numpyro.infer import init_to_uniform
    from numpyro.infer.util import initialize_model

    info = initialize_model(
        jax.random.PRNGKey(0),
        model,
        init_strategy=init_to_uniform,
        model_args=args,
        model_kwargs=kwargs,
        dynamic_args=False,
    )
    return info.param_info.z, info.potential_fn, info.postprocess_fn


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
