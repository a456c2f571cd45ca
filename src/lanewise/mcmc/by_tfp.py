"""Joint distributions of TensorFlow Probability, in its JAX substrate, by their public methods.

`experimental_pin` holds the observed variables, and `experimental_default_event_space_bijector` makes the others from
unconstrained coordinates; TFP's own samplers use both.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from lanewise.core.errors import OptionError
from lanewise.mcmc.models import Model, Position

# Coordinates start between these, as in NumPyro and Stan.
LEAST, MOST = -2.0, 2.0


def from_tfp(
    joint: Any,
    observed: Mapping[str, Any],
    *,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
) -> Model:
    """A joint distribution of TensorFlow Probability (JAX substrate) with the values of its observed variables.

    Variables must have names: `JointDistributionNamed`, or a coroutine whose distributions have `name=`. Those that are
    not observed are kept constrained. `dims` names the axes of variables, `coords` the places along them.
    """
    distributions = _the_library()
    if not isinstance(joint, distributions.JointDistribution):
        raise OptionError(
            "from_tfp takes a joint distribution of tensorflow_probability.substrates.jax; got"
            f" {type(joint).__module__}.{type(joint).__name__}."
        )
    key = jax.random.key(0)
    batch = jax.eval_shape(lambda key: joint.log_prob(joint.sample(seed=key)), key).shape
    if batch != ():
        raise OptionError(
            f"the joint distribution is a batch, of shape {batch}: use tfd.Sample or tfd.Independent for the axes of"
            " its variables, and a joint distribution that is AutoBatched."
        )
    names = [*_named(joint.dtype)]
    if unknown := sorted(set(observed) - set(names)):
        raise OptionError(f"observed names {unknown}; the variables are {', '.join(names)}.")
    values = {name: jnp.asarray(value) for name, value in observed.items()}
    held = _Held(distributions, joint, joint.experimental_pin(**values) if values else joint)
    free = [name for name in names if name not in values]
    if not free:
        raise OptionError("every variable is observed: there is nothing to sample.")
    drawn_from, _ = joint.sample_distributions(seed=key, **values)
    for name in free:
        distribution = _named(drawn_from)[name]
        if distribution.experimental_default_event_space_bijector() is None:
            raise OptionError(
                f"{name} is a {type(distribution).__name__}, of whole numbers; these samplers move along gradients,"
                " which such a variable has none of: sum it out of the model (tfd.MixtureSameFamily)."
            )
    return Model(
        logdensity=functools.partial(_logdensity, held),
        init=functools.partial(_init, held),
        shown=functools.partial(_shown, held),
        unconstrained=functools.partial(_unconstrained, held),
        log_likelihood=functools.partial(_log_likelihood, held, values) if values else None,
        predictive=functools.partial(_predictive, held, [*values]) if values else None,
        prior=functools.partial(_prior, held),
        observed=values,
        dims=dict(dims or {}),
        coords=dict(coords or {}),
    )


@dataclass(frozen=True, eq=False)
class _Held:
    """A joint distribution, and the one of its variables that are free."""

    distributions: Any
    joint: Any
    free: Any

    @functools.cached_property
    def bijector(self) -> Any:
        return self.free.experimental_default_event_space_bijector()

    def sampled(self, key: Any) -> Any:
        """Free variables from the prior, in the structure that they have there."""
        if self.free is self.joint:
            return self.joint.sample(seed=key)
        return self.free.sample_unpinned(seed=key)

    @functools.cached_property
    def like(self) -> Any:
        """Free variables, as shapes and types."""
        return jax.eval_shape(self.sampled, jax.random.key(0))


def _the_library() -> Any:
    try:
        library = importlib.import_module("tensorflow_probability.substrates.jax")
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"from_tfp needs TensorFlow Probability for this version of JAX: pip install 'tfp-nightly[jax]' ({error})."
        ) from error
    return library.distributions


def _named(structure: Any) -> dict[str, Any]:
    if hasattr(structure, "_asdict"):
        return dict(structure._asdict())
    if isinstance(structure, Mapping):
        return dict(structure)
    raise OptionError(
        "the joint distribution's variables have no names: use JointDistributionNamed, or a coroutine."
    )


def _logdensity(held: _Held, position: Position) -> Float[Array, ""]:
    values = held.bijector.forward(position)
    return held.free.log_prob(values) + held.bijector.forward_log_det_jacobian(position)


def _init(held: _Held, key: Key[Array, ""]) -> Position:
    like = jax.eval_shape(held.bijector.inverse, held.like)
    leaves, tree = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    drawn = [
        jax.random.uniform(k, leaf.shape, leaf.dtype, LEAST, MOST) for k, leaf in zip(keys, leaves)
    ]
    return jax.tree.unflatten(tree, drawn)


def _shown(held: _Held, position: Position) -> dict[str, Array]:
    return _named(held.bijector.forward(position))


def _unconstrained(held: _Held, kept: dict[str, Array]) -> Position:
    values = {name: jnp.asarray(kept[name]) for name in _named(held.like)}
    like = held.like
    return held.bijector.inverse(values if isinstance(like, Mapping) else type(like)(**values))


def _log_likelihood(
    held: _Held, observed: dict[str, Array], position: Position
) -> dict[str, Array]:
    """The log density of each observation: `Sample` and `Independent` would sum theirs."""
    values = _shown(held, position) | observed
    found, _ = held.joint.sample_distributions(seed=jax.random.key(0), **values)
    likelihood = {}
    for name, distribution in _named(found).items():
        if name in observed:
            kinds = held.distributions.Sample, held.distributions.Independent
            while isinstance(distribution, kinds):
                distribution = distribution.distribution
            likelihood[name] = distribution.log_prob(observed[name])
    return likelihood


def _predictive(
    held: _Held, observed: list[str], key: Key[Array, ""], position: Position
) -> dict[str, Array]:
    drawn = _named(held.joint.sample(seed=key, **_shown(held, position)))
    return {name: drawn[name] for name in observed}


def _prior(held: _Held, key: Key[Array, ""]) -> dict[str, Array]:
    return _named(held.joint.sample(seed=key))
