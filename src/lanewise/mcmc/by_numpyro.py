"""Models written in NumPyro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float, Key

from lanewise.core.errors import OptionError
from lanewise.mcmc.models import Model, Position


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
