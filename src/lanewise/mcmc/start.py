"""Where chains start: positions as vectors, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key

from lanewise.errors import OptionError
from lanewise.mcmc.models import Model, Position

# How often a start with no finite density is drawn anew.
TRIES = 100


@dataclass(frozen=True)
class Layout:
    """How a position lies in a vector."""

    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @staticmethod
    def of(position: Position) -> Layout:
        leaves, tree = jax.tree.flatten(position)
        return Layout(
            tree, tuple(leaf.shape for leaf in leaves), tuple(str(leaf.dtype) for leaf in leaves)
        )

    def position(self, vector: Float[Array, " d"]) -> Position:
        """The position that a vector stands for; leading axes of the vector lead in every array."""
        leaves, at = [], 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            size = int(np.prod(shape))
            part = vector[..., at : at + size]
            leaves.append(part.reshape(*vector.shape[:-1], *shape).astype(dtype))
            at += size
        return jax.tree.unflatten(self.tree, leaves)


@dataclass(frozen=True)
class FlatDensity:
    """A log density of vectors. Equal for equal densities and layouts, so that programs are found again."""

    logdensity: Callable[[Position], Float[Array, ""]]
    layout: Layout

    def __call__(self, vector: Float[Array, " d"]) -> Float[Array, ""]:
        return self.logdensity(self.layout.position(vector))


@dataclass(frozen=True, eq=False)
class Starts:
    """The density of vectors, and a vector to start from for each chain."""

    density: FlatDensity
    positions: Float[Array, "chains d"]
    finite: np.ndarray  # of each chain's start


def starts(model: Model, init: Any, chains: int, key: Key[Array, ""]) -> Starts:
    """Make and check where chains start."""
    init = model.init if init is None else init
    if init is None:
        raise OptionError(
            "init is missing: give positions with an axis of chains in front, or a function of a key that makes one."
        )
    drawn = callable(init)
    if drawn:
        keys = jax.random.split(key, chains)
        positions = _made(init, keys)
    else:
        positions = _given(init, chains)
    example = jax.tree.map(lambda leaf: leaf[0], positions)
    density = FlatDensity(_hashable(model.logdensity), Layout.of(example))
    _check_density(model.logdensity, example)
    vectors = jax.vmap(lambda p: ravel_pytree(p)[0])(positions)
    ask = jax.jit(jax.vmap(jax.value_and_grad(density)))

    def is_finite(vectors: Any) -> np.ndarray:
        value, gradient = ask(vectors)
        return np.asarray(jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient), axis=1))

    finite = is_finite(vectors)
    if drawn:
        for attempt in range(TRIES):
            if finite.all():
                break
            again = _made(init, jax.vmap(jax.random.fold_in, (0, None))(keys, attempt))
            renewed = jax.vmap(lambda p: ravel_pytree(p)[0])(again)
            vectors = jnp.where(finite[:, None], vectors, renewed)
            finite = is_finite(vectors)
    if not finite.any():
        tried = f" in {TRIES} tries each" if drawn else ""
        raise OptionError(
            f"logdensity or its gradient is not a finite number at the start of any of the {chains} chains{tried}:"
            " check the density, or start elsewhere with init=."
        )
    return Starts(density, vectors, finite)


def _hashable(logdensity: Callable[[Position], Any]) -> Callable[[Position], Any]:
    """The density itself if programs can be kept for it; an object that holds arrays has no hash."""
    try:
        hash(logdensity)
    except TypeError:
        return lambda position: logdensity(position)
    return logdensity


def _made(init: Callable[..., Position], keys: Any) -> Position:
    try:
        positions = jax.vmap(init)(keys)
    except TypeError as error:
        raise OptionError(f"init must take a key and give a position: {error}") from error
    return _floats(positions)


def _given(init: Any, chains: int) -> Position:
    positions = _floats(init)
    for path, leaf in jax.tree_util.tree_flatten_with_path(positions)[0]:
        if leaf.ndim == 0 or leaf.shape[0] != chains:
            raise OptionError(
                f"init{jax.tree_util.keystr(path)} has shape {leaf.shape}; with chains={chains} its first axis must be"
                f" {chains}, a start for each chain. Or give a function of a key that makes one position."
            )
    return positions


def _floats(positions: Any) -> Position:
    leaves = jax.tree.leaves(positions)
    if not leaves:
        raise OptionError("init gives a position without any array.")
    positions = jax.tree.map(jnp.asarray, positions)
    for path, leaf in jax.tree_util.tree_flatten_with_path(positions)[0]:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise OptionError(
                f"init{jax.tree_util.keystr(path)} is of type {leaf.dtype}; positions are arrays of floats, since"
                " samplers move along gradients."
            )
    return positions


def _check_density(logdensity: Callable[..., Any], example: Position) -> None:
    try:
        out = jax.eval_shape(logdensity, example)
    except (TypeError, ValueError) as error:
        shapes = jax.tree.map(lambda leaf: leaf.shape, example)
        raise OptionError(
            f"logdensity does not take a position of shapes {shapes}, as init gives it: {error}"
        ) from error
    leaves = jax.tree.leaves(out)
    shape = tuple(leaves[0].shape) if len(leaves) == 1 else None
    if shape != () or not jnp.issubdtype(leaves[0].dtype, jnp.floating):
        given = f"shape {shape} and type {leaves[0].dtype}" if shape is not None else f"{out}"
        raise OptionError(
            f"logdensity must give one float, the log density of a position; it gives {given}. Sum what belongs to"
            " one position."
        )
