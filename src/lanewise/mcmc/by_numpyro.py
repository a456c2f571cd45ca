"""Models written in NumPyro.

NumPyro's own functions are used (`numpyro.infer.util`): its unconstrained coordinates and its density are the model.
Everything here is a function of one position, so that it can be batched in whatever pieces fit into memory.

The parts of a model that ask for a key (loops, parameters of networks) get one, always the same. Free sites never ask:
they have values when the density is evaluated.

Discrete sites are summed out by NumPyro, with Funsor, if they have finitely many values. Predictions are then drawn in
two steps: the discrete sites from their posterior at the position, then the data. Such a model has no log likelihood of
single observations: they are not independent once a site that they share is summed over.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from lanewise.core.errors import OptionError
from lanewise.mcmc.models import Model, Position
from lanewise.mcmc.numpyro_sites import Bound, Sites, sites_of, unconstrained_values


def from_numpyro(
    model: Callable[..., Any],
    *args: Any,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
    init_strategy: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> Model:
    """A NumPyro model with its arguments, in its unconstrained coordinates; sites are kept constrained.

    * `dims` names the axes of sites; those of plates are named already, after the plate. `coords` has the places along
      them.
    * `init_strategy`: one of NumPyro's, such as `init_to_median` or `init_to_value(values=...)`; without one,
      coordinates are uniform between -2 and 2, as in NumPyro.

    A model with an argument of one of these names gets it by `functools.partial(model, dims=...)`.
    """
    try:
        import numpyro.infer  # noqa: F401
    except ImportError:
        raise OptionError("from_numpyro needs NumPyro: pip install numpyro.") from None
    if not callable(model):
        raise OptionError(f"from_numpyro takes a NumPyro model, a function; got {model!r}.")
    bound = Bound(model, args, kwargs)
    sites = sites_of(bound)
    if not sites.free:
        raise OptionError("the NumPyro model has no site that is sampled and not observed.")
    bound = bound.substituted(sites.fixed) if sites.fixed else bound
    named = sites.dims | {name: list(axes) for name, axes in (dims or {}).items()}
    _check_names(sites, named, coords or {})
    constant = {
        name: value
        for name, value in Bound(model, args, kwargs).arguments().items()
        if name not in sites.shapes and not any(value is seen for seen in sites.values.values())
    }
    predictive, prior = _predictions(bound, sites)
    return Model(
        logdensity=_logdensity(bound, sites),
        init=_init(bound, sites, init_strategy),
        shown=functools.partial(_shown, bound),
        unconstrained=functools.partial(_unconstrained, bound, sites),
        log_likelihood=_log_likelihood(bound, sites),
        predictive=predictive,
        prior=prior,
        observed=sites.values,
        constant=constant,
        dims=named,
        coords=dict(coords or {}),
    )


def _seeded() -> Any:
    """Keys for sites that ask for one. Outermost, so that a site that has a value by then asks for none."""
    from numpyro import handlers

    return handlers.seed(rng_seed=0)


def _logdensity(bound: Bound, sites: Sites) -> Callable[[Position], Float[Array, ""]]:
    from numpyro.infer import util

    def plain(position: Position) -> Any:
        with _seeded():
            return util.potential_energy(bound.model, bound.args, bound.kwargs, position)

    potential = _summed(bound) if sites.discrete else plain

    def logdensity(position: Position) -> Float[Array, ""]:
        return -potential(position)

    return logdensity


def _summed(bound: Bound) -> Callable[[Position], Any]:
    """The potential energy of a model whose discrete sites NumPyro sums out."""
    from numpyro.infer.util import initialize_model

    with warnings.catch_warnings():
        # Here sites are meant to be summed out without being marked.
        warnings.simplefilter("ignore", FutureWarning)
        prepared = initialize_model(
            jax.random.PRNGKey(0),
            bound.model,
            model_args=bound.args,
            model_kwargs=bound.kwargs,
            validate_grad=False,
        )
    return prepared.potential_fn


def _shown(bound: Bound, position: Position) -> dict[str, Array]:
    from numpyro.infer import util

    with _seeded():
        return util.constrain_fn(
            bound.model, bound.args, bound.kwargs, position, return_deterministic=True
        )


def _constrained(bound: Bound, position: Position) -> dict[str, Array]:
    from numpyro.infer import util

    with _seeded():
        return util.constrain_fn(bound.model, bound.args, bound.kwargs, position)


def _unconstrained(bound: Bound, sites: Sites, values: Mapping[str, Any]) -> Position:
    """The position of constrained values; those of other sites are ignored."""
    from numpyro.infer import util

    missing = [name for name in sites.free if name not in values]
    if missing:
        raise OptionError(
            f"values of {', '.join(missing)} are missing: a position is made of all of {', '.join(sites.free)}."
        )
    free = {name: jnp.asarray(values[name]) for name in sites.free}
    for name, value in free.items():
        if value.shape != sites.shapes[name]:
            raise OptionError(
                f"{name} has shape {value.shape}; the model has {sites.shapes[name]} for it."
            )
    with _seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about angles, reported already
        position = util.unconstrain_fn(bound.model, bound.args, bound.kwargs, free)
    return {name: position[name].astype(sites.position[name].dtype) for name in sites.free}


def _init(
    bound: Bound, sites: Sites, strategy: Callable[..., Any] | None
) -> Callable[[Key[Array, ""]], Position]:
    leaves, tree = jax.tree.flatten(sites.position)
    if strategy is not None and not callable(strategy):
        raise OptionError(
            f"init_strategy={strategy!r} must be one of NumPyro's, such as init_to_median."
        )
    given = getattr(strategy, "keywords", {}).get("values", {})
    unknown = sorted(set(given) - set(sites.free))
    if unknown:
        raise OptionError(
            f"init_strategy has values for {', '.join(unknown)}; the model samples {', '.join(sites.free)}."
        )

    def uniform(key: Key[Array, ""]) -> Position:
        keys = jax.random.split(key, len(leaves))
        starts = [
            jax.random.uniform(k, leaf.shape, leaf.dtype, -2.0, 2.0)
            for k, leaf in zip(keys, leaves)
        ]
        return jax.tree.unflatten(tree, starts)

    def by_strategy(key: Key[Array, ""]) -> Position:
        found = bound.trace(key, strategy)
        values = unconstrained_values(found, sites.free)
        return {
            name: _like(name, values[name], leaf) for name, leaf in sorted(sites.position.items())
        }

    return uniform if strategy is None else by_strategy


def _like(name: str, value: Any, leaf: jax.ShapeDtypeStruct) -> Array:
    value = jnp.asarray(value, leaf.dtype)
    if value.shape != leaf.shape:
        raise OptionError(
            f"init_strategy gives {name} the shape {value.shape} without constraints; the model has {leaf.shape}."
        )
    return value


def _log_likelihood(bound: Bound, sites: Sites) -> Callable[[Position], dict[str, Array]] | None:
    from numpyro import infer

    if sites.discrete:
        return None

    def log_likelihood(position: Position) -> dict[str, Array]:
        values = _constrained(bound, position)
        with _seeded():
            return infer.log_likelihood(
                bound.model, values, *bound.args, parallel=True, batch_ndims=0, **bound.kwargs
            )

    return log_likelihood


def _predictions(bound: Bound, sites: Sites) -> tuple[Any, Any]:
    """A function that draws data at a position, and one that draws all from the prior; None where the model cannot.

    Older versions of NumPyro cannot remove the observations of a `scan` from outside. A flat prior has no draws.
    """
    from numpyro import handlers
    from numpyro.infer import Predictive

    free_of_data = Bound(handlers.uncondition(bound.model), bound.args, bound.kwargs)

    def predictive(key: Key[Array, ""], position: Position) -> dict[str, Array]:
        values = _constrained(bound, position)
        draw_key, data_key = jax.random.split(key)
        if sites.discrete:
            values |= _discrete(bound, sites, draw_key, values)
        draws = Predictive(
            free_of_data.model, values, batch_ndims=0, parallel=True, return_sites=sites.observed
        )
        return draws(data_key, *bound.args, **bound.kwargs)

    def prior(key: Key[Array, ""]) -> dict[str, Array]:
        found = free_of_data.trace(key)
        return {name: found[name]["value"] for name in sites.shapes if name in found}

    key = jax.eval_shape(lambda: jax.random.key(0))
    redrawn: set[str] = set()

    def probe(key: Any) -> Any:
        found = free_of_data.trace(key)
        redrawn.update(name for name in sites.observed if not found[name]["is_observed"])
        return 0

    proper = True
    try:
        jax.eval_shape(probe, key)
    except NotImplementedError:
        proper = False
        redrawn.update(sites.observed if _redraws(free_of_data, sites) else ())
    whole = redrawn == set(sites.observed)
    return (predictive if whole and sites.observed else None), (prior if whole and proper else None)


def _redraws(free_of_data: Bound, sites: Sites) -> bool:
    """Whether data are drawn in a model some of whose priors have no draws."""
    from numpyro.infer import init_to_uniform

    seen: list[bool] = []

    def probe() -> Any:
        found = free_of_data.trace(0, init_to_uniform)
        seen.append(not any(found[name]["is_observed"] for name in sites.observed))
        return 0

    jax.eval_shape(probe)
    return seen[0]


def _discrete(bound: Bound, sites: Sites, key: Any, values: Mapping[str, Array]) -> dict[str, Any]:
    """The discrete sites, drawn from their posterior at a position."""
    from numpyro.infer import Predictive

    draws = Predictive(
        bound.model,
        dict(values),
        batch_ndims=0,
        parallel=True,
        infer_discrete=True,
        return_sites=sites.discrete,
    )
    return draws(key, *bound.args, **bound.kwargs)


def _check_names(
    sites: Sites, dims: Mapping[str, Sequence[str]], coords: Mapping[str, Any]
) -> None:
    """Raise if names of axes or places along them do not fit the model."""
    lengths: dict[str, int] = dict(sites.plates)
    for name, axes in dims.items():
        shape = sites.shapes.get(name)
        if shape is None:
            continue  # of data, which may have any name
        if len(axes) != len(shape):
            raise OptionError(
                f"dims[{name!r}] names {len(axes)} axes; the site has shape {tuple(shape)}."
            )
        lengths |= dict(zip(axes, shape))
    for axis, places in coords.items():
        if axis in lengths and len(places) != lengths[axis]:
            raise OptionError(
                f"coords[{axis!r}] has {len(places)} places; the model has {lengths[axis]} along it."
            )
        if axis not in lengths and not any(axis in axes for axes in dims.values()):
            known = ", ".join(sorted(lengths)) or "none"
            raise OptionError(
                f"coords[{axis!r}] is no axis of the model: name it in dims=. Axes that have a name: {known}."
            )
