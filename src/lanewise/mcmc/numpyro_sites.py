"""The sites of a NumPyro model: found by tracing alone, and refused with our own message where no chain can move.

NumPyro prepares a model by running it, operation by operation, each compiled separately. Here the model runs once,
under `jax.eval_shape`, and only names, shapes and supports are kept. NumPyro is imported where it is needed: it is not
a dependency of this library.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lanewise import _jax
from lanewise.core.errors import OptionError


@dataclass(frozen=True, eq=False)
class Bound:
    """A NumPyro model with its arguments."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def trace(self, key: Any, strategy: Callable[[Any], Any] | None = None) -> dict[str, Any]:
        """The sites of a run; a strategy of NumPyro's gives values to those that are free."""
        from numpyro import handlers

        model = handlers.seed(self.model, rng_seed=key)
        if strategy is not None:
            model = handlers.substitute(model, substitute_fn=strategy)
        return handlers.trace(model).get_trace(*self.args, **self.kwargs)

    def substituted(self, values: Mapping[str, Any]) -> Bound:
        from numpyro import handlers

        return Bound(handlers.substitute(self.model, data=dict(values)), self.args, self.kwargs)

    def arguments(self) -> dict[str, Any]:
        """The arrays among the arguments, by the model's names for them."""
        try:
            bound = inspect.signature(self.model).bind(*self.args, **self.kwargs)
        except (TypeError, ValueError):  # a partial, a handler: no names
            named = dict(self.kwargs)
        else:
            named = dict(bound.arguments)
        return {name: value for name, value in named.items() if _is_data(value)}


@dataclass(frozen=True, eq=False)
class Sites:
    """The sites of a model by what they are, each by its name.

    `position`: what the free sites are like without their constraints. `fixed`: values of parameters and of state,
    which no chain moves.
    """

    free: tuple[str, ...]
    discrete: tuple[str, ...]
    observed: tuple[str, ...]
    position: dict[str, jax.ShapeDtypeStruct]
    values: dict[str, Any]
    fixed: dict[str, Any]
    dims: dict[str, list[str]]
    shapes: dict[str, tuple[int, ...]]
    plates: dict[str, int]


def sites_of(bound: Bound) -> Sites:
    """Run the model once, without any arithmetic, and record its sites."""
    found: dict[str, Any] = {}

    def example() -> Any:
        found.update(bound.trace(0, _tolerant))
        return unconstrained_values(found, _names(found, _is_free))

    try:
        position = jax.eval_shape(_checked(example, found))
    except jax.errors.ConcretizationTypeError as error:
        raise OptionError(f"{_where(error)}{_BRANCHES}") from error
    observed = _names(found, _is_observed)
    fixed = _names(found, lambda site: site["type"] in ("param", "mutable"))
    known = _concrete(bound, found, (*observed, *fixed))
    shown = _names(found, lambda site: _is_random(site) or site["type"] == "deterministic")
    return Sites(
        free=_names(found, _is_free),
        discrete=_names(found, _is_discrete),
        observed=observed,
        position=position,
        values={name: known[name] for name in observed},
        fixed={name: known[name] for name in fixed},
        dims={name: named for name in shown if (named := _dims(found[name]))},
        shapes={name: np.shape(found[name]["value"]) for name in shown},
        plates={name: site["args"][0] for name, site in found.items() if site["type"] == "plate"},
    )


_BRANCHES = (
    "the model asks Python for a value that only a chain will have (an `if`, `while` or `float()` of a site). Use"
    " jnp.where, or numpyro.contrib.control_flow.cond or scan; or write the density as a function, in which `if` and"
    " `while` work, and give that to mcmc.sample."
)


def unconstrained_values(sites: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The values of these sites in the coordinates without constraints."""
    from numpyro.distributions import biject_to
    from numpyro.infer.util import transform_fn

    transforms = {name: biject_to(sites[name]["fn"].support) for name in names}
    return transform_fn(transforms, {name: sites[name]["value"] for name in names}, invert=True)


def _checked(example: Callable[[], Any], found: dict[str, Any]) -> Callable[[], Any]:
    @functools.wraps(example)
    def run() -> Any:
        from numpyro.distributions import biject_to

        try:
            return example()
        except NotImplementedError:
            for name in _names(found, _is_free):
                try:
                    biject_to(found[name]["fn"].support)
                except NotImplementedError:
                    raise OptionError(_no_coordinates(name, found[name])) from None
            raise
        finally:
            for name, site in found.items():
                _refuse(name, site)

    return run


def _refuse(name: str, site: Any) -> None:
    """Raise if no chain can move along this site."""
    from numpyro.distributions import Delta, constraints

    if site["type"] == "plate" and _subsamples(site):
        size, part = site["args"]
        raise OptionError(
            f"plate {name!r} takes {part} of {size} at random: the density would be another one at every step. Leave"
            " subsample_size out; many chains over all data are what this sampler is for."
        )
    if not _is_random(site) or site["is_observed"]:
        return
    if isinstance(site["fn"], Delta):
        raise OptionError(
            f"site {name!r} has a Delta distribution, of which there is one value alone: use"
            f" numpyro.deterministic({name!r}, value)."
        )
    if _is_discrete(site):
        _refuse_discrete(name, site["fn"])
    elif _base(site["fn"].support) is constraints.circular:
        warnings.warn(
            f"site {name!r} is an angle: a chain cannot step over the seam at ±π. Reparameterize it:"
            f" numpyro.handlers.reparam(model, config={{{name!r}: CircularReparam()}}).",
            stacklevel=2,
        )


def _refuse_discrete(name: str, fn: Any) -> None:
    kind = type(fn).__name__
    if not fn.has_enumerate_support:
        raise OptionError(
            f"site {name!r} is discrete ({kind}) and has no end, so it cannot be summed over; samplers move along"
            " gradients. Sum it out of the model by hand, or write a continuous one."
        )
    if importlib.util.find_spec("funsor") is None:
        raise OptionError(
            f"site {name!r} is discrete ({kind}); samplers move along gradients, so it must be summed out. With"
            " `pip install funsor` NumPyro does that; or use a distribution that is summed already, such as"
            " MixtureSameFamily."
        )


def _no_coordinates(name: str, site: Any) -> str:
    return (
        f"site {name!r} ({type(site['fn']).__name__}) has a support that NumPyro has no unconstrained coordinates for:"
        f" {site['fn'].support}. Reparameterize it, as"
        f" numpyro.handlers.reparam(model, config={{{name!r}: ProjectedNormalReparam()}}) does for directions."
    )


def _tolerant(site: Any) -> Any:
    """A value for any site, for its shape: by its support, or else by its distribution."""
    from numpyro.infer import init_to_uniform

    try:
        return init_to_uniform(site)
    except (NotImplementedError, ValueError):
        return None


def _names(sites: Mapping[str, Any], holds: Callable[[Any], bool]) -> tuple[str, ...]:
    return tuple(name for name, site in sites.items() if holds(site))


def _is_random(site: Any) -> bool:
    return site["type"] == "sample"


def _is_discrete(site: Any) -> bool:
    return _is_random(site) and not site["is_observed"] and site["fn"].support.is_discrete


def _is_free(site: Any) -> bool:
    return _is_random(site) and not site["is_observed"] and not site["fn"].support.is_discrete


def _is_observed(site: Any) -> bool:
    """Observed data; `numpyro.factor` is one to NumPyro, and has none."""
    return _is_random(site) and site["is_observed"] and type(site["fn"]).__name__ != "Unit"


def _base(support: Any) -> Any:
    return getattr(support, "base_constraint", support)


def _subsamples(plate: Any) -> bool:
    size, subsample_size = plate["args"]
    return subsample_size is not None and subsample_size != size


def _is_data(value: Any) -> bool:
    return isinstance(value, np.ndarray | jax.Array) and np.issubdtype(value.dtype, np.number)


def _concrete(bound: Bound, sites: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The values of sites that do not depend on draws; what the model computes from its arguments is computed."""
    values = {name: sites[name]["value"] for name in names}
    traced = [
        name
        for name, value in values.items()
        if any(isinstance(leaf, _jax.Tracer) for leaf in jax.tree.leaves(value))
    ]
    if traced:
        again = jax.jit(lambda: {name: bound.trace(0, _tolerant)[name]["value"] for name in traced})
        values |= again()
    return values


def _dims(site: Any) -> list[str]:
    """Names of a site's axes: those of its plates, and of an event by `infer={"event_dims": [...]}`; [] if none.

    A deterministic site does not say how many axes an event of it has. Its plates are named if they fit its shape in
    one way alone.
    """
    shape = np.shape(site["value"])
    frames = [frame for frame in site["cond_indep_stack"] if frame.dim is not None]
    events = list(site.get("infer", {}).get("event_dims", ()))
    if _is_random(site):
        widths = [site["fn"].event_dim]
    else:
        widths = [width for width in range(len(shape) + 1) if _fits(shape, frames, width)]
    if len(widths) != 1 or not (frames or events) or not _fits(shape, frames, widths[0]):
        return []
    name, width = site["name"], widths[0]
    named = [f"{name}_dim_{axis}" for axis in range(len(shape))]
    for frame in frames:
        named[len(shape) - width + frame.dim] = frame.name
    if len(events) == width:
        named[len(shape) - width :] = events
    return named


def _fits(shape: tuple[int, ...], frames: Sequence[Any], width: int) -> bool:
    axes = [(len(shape) - width + frame.dim, frame.size) for frame in frames]
    return all(axis >= 0 and shape[axis] == size for axis, size in axes)


def _where(error: BaseException) -> str:
    """The file and line of the model at which it was raised."""
    import traceback

    import numpyro

    libraries = tuple(str(module.__file__).rsplit("/", 1)[0] + "/" for module in (jax, numpyro)) + (
        __file__.rsplit("/", 2)[0] + "/",
    )
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(libraries)
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
