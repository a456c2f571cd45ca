"""Draws as ArviZ has them."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from lanewise.core.errors import OptionError
from lanewise.mcmc.models import Model
from lanewise.mcmc.samplers import Info
from lanewise.mcmc.space import KEPT
from lanewise.mcmc.start import Layout, hashable


class Drawn(NamedTuple):
    """Draws on the host, along the axes of chains and draws, and what is reported of each."""

    positions: np.ndarray
    logdensity: np.ndarray
    info: Info


def inference_data(
    model: Model, layout: Layout, drawn: Drawn, step: np.ndarray, attributes: dict[str, Any]
) -> Any:
    """`InferenceData` of draws whose axes are chain, draw and dimension."""
    arviz = the_library()
    positions = layout.position(drawn.positions)
    if model.shown is not None:
        positions = of_all(hashable(model.shown))(positions)
    info = drawn.info
    stats = {
        "lp": drawn.logdensity,
        "acceptance_rate": info.acceptance,
        "step_size": np.broadcast_to(step[:, None], drawn.logdensity.shape),
        "tree_depth": info.tree_depth,
        "n_steps": info.leapfrogs,
        "diverging": info.diverging,
        "energy": info.energy,
    }
    with warnings.catch_warnings():
        # More chains than draws is no mistake here.
        warnings.simplefilter("ignore", UserWarning)
        return arviz.from_dict(
            posterior=named(positions),
            sample_stats={name: np.asarray(value) for name, value in stats.items()},
            posterior_attrs=attributes,
            sample_stats_attrs=attributes,
        )


@functools.lru_cache(KEPT)
def of_all(shown: Callable[..., Any]) -> Any:
    """What is shown of the positions of all chains and draws."""
    return jax.jit(jax.vmap(jax.vmap(shown)))


def must_have_library() -> None:
    """Raise if ArviZ is not installed. It is imported when there are draws: that takes seconds."""
    if importlib.util.find_spec("arviz") is None:
        raise OptionError('lanewise.mcmc.sample gives ArviZ data: pip install "lanewise[mcmc]".')


def the_library() -> Any:
    """ArviZ, without the announcement of its next version."""
    must_have_library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def named(positions: Any) -> dict[str, np.ndarray]:
    """Arrays by the way to them in a pytree; a lone array is `x`.

    >>> sorted(named({"group": {"mean": np.zeros(2)}, "scale": np.ones(2)}))
    ['group.mean', 'scale']
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(positions)
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") or "x": np.asarray(leaf)
        for path, leaf in leaves
    }
