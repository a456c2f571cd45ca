"""Where chains start: positions as vectors, checked before anything runs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from lanewise import _jax
from lanewise.core.errors import OptionError
from lanewise.mcmc.again import hashable, known_once
from lanewise.mcmc.models import Model, Position
from lanewise.mcmc.space import KEPT
from lanewise.mcmc.written import traceable


@dataclass(frozen=True)
class Layout:
    """How a position is laid out in a vector."""

    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @staticmethod
    def of(position: Position) -> Layout:
        leaves, tree = jax.tree.flatten(position)
        return Layout(
            tree, tuple(leaf.shape for leaf in leaves), tuple(str(leaf.dtype) for leaf in leaves)
        )

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def dtype(self) -> Any:
        """The type of the vectors, which every array's type fits into."""
        return functools.reduce(jnp.promote_types, map(np.dtype, self.dtypes))

    @property
    def structs(self) -> Position:
        """A position, as shapes and types alone."""
        leaves = [jax.ShapeDtypeStruct(*leaf) for leaf in zip(self.shapes, self.dtypes)]
        return jax.tree.unflatten(self.tree, leaves)

    def vectors(self, positions: Position) -> np.ndarray:
        """The vectors of positions with an axis of chains in front."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(positions)]
        flat = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
        return np.concatenate(flat, axis=1, dtype=self.dtype)

    def position(self, vector: Any) -> Position:
        """The position that a vector stands for; leading axes of the vector lead in every array."""
        leaves, at = [], 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            size = math.prod(shape)
            part = vector[..., at : at + size]
            leaves.append(part.reshape(*vector.shape[:-1], *shape).astype(dtype))
            at += size
        return jax.tree.unflatten(self.tree, leaves)


@dataclass(frozen=True)
class FlatDensity:
    """A log density of vectors. Equal for equal densities and layouts, so that cached programs are found."""

    logdensity: Callable[[Position], Float[Array, ""]]
    layout: Layout

    def __call__(self, vector: Float[Array, " d"]) -> Float[Array, ""]:
        return self.logdensity(self.layout.position(vector))


@dataclass(frozen=True)
class _Gradient:
    """A density and its gradient; equal for equal densities."""

    density: FlatDensity

    def __call__(self, vector: Float[Array, " d"]) -> Any:
        return jax.value_and_grad(self.density)(vector)


@dataclass(frozen=True, eq=False)
class Starts:
    """The density of vectors, a vector to start from for each chain, and how to draw them anew.

    `again(attempt)` is None where positions were given.
    """

    density: FlatDensity
    positions: np.ndarray
    keys: Key[Array, " chains"]
    again: Callable[[int], np.ndarray] | None


def starts(
    model: Model, init: Any, chains: int, key: Key[Array, ""], lanes: int | None = None
) -> Starts:
    """Make and check where chains start, and their keys; one function has all that JAX computes for this.

    With `lanes` there are this many starts and keys, more than there are chains.
    """
    lanes = lanes or chains
    refined: Any = getattr(init, "refined", None)  # as `Pathfinder` has it, around another init
    if refined is not None and isinstance(init, type):
        raise OptionError(f"init={init!r} must be {init.__name__}(...), not its class.")
    init = init.init if refined else init
    init = model.init if init is None else init
    if init is None:
        raise OptionError(
            "init is missing: give positions with an axis of chains in front, or a function of a key that makes one."
        )
    drawn = callable(init)
    maker = None
    if drawn:
        maker = hashable(init)
        maker = known_once(maker, maker, jax.ShapeDtypeStruct((), key.dtype))
    begin = beginning(maker, lanes, _jax.default_platform())
    try:
        _, shapes = begin.eval_shape(key, None)
    except TypeError as error:
        raise OptionError(f"init must take a key and give a position: {error}") from error
    given = None if drawn else _given(init, chains)
    structs = _floats(shapes if drawn else given)
    layout = Layout.of(jax.tree.map(_one_of, structs))
    logdensity = traceable(hashable(model.logdensity), layout.structs)
    density = FlatDensity(logdensity, layout)
    _check_density(density, layout)
    like = jax.ShapeDtypeStruct((layout.size,), layout.dtype)
    # The gradient is compiled, too, and has the code of rules that the density itself only names.
    density = FlatDensity(known_once(logdensity, _Gradient(density), like), layout)
    keys, positions = begin(key, None)

    def again(attempt: int) -> np.ndarray:
        vectors = layout.vectors(begin(key, np.int32(attempt))[1])
        return refined(density, vectors, keys) if refined else vectors

    vectors = layout.vectors(positions if drawn else given)
    if len(vectors) < lanes:
        vectors = np.concatenate([vectors, np.repeat(vectors[-1:], lanes - chains, axis=0)])
    vectors = refined(density, vectors, keys) if refined else vectors
    return Starts(density, vectors, keys, again if drawn else None)


@functools.lru_cache(KEPT)
def beginning(init: Callable[..., Position] | None, chains: int, platform: str) -> Any:
    """What makes chains' keys and, by `init`, their positions, from a key and an attempt's number or None."""

    def begin(key: Key[Array, ""], attempt: Any) -> tuple[Any, Position]:
        start_key, chain_key = jax.random.split(key)
        positions = None
        if init is not None:
            keys = jax.random.split(start_key, chains)
            if attempt is not None:
                keys = jax.vmap(jax.random.fold_in, (0, None))(keys, attempt)
            positions = jax.vmap(init)(keys)
        return jax.random.split(chain_key, chains), positions

    # It runs once: on a CPU, XLA's optimizations would take longer than they save.
    quickly = {"xla_backend_optimization_level": 0} if platform == "cpu" else None
    return jax.jit(begin, compiler_options=quickly)


def _one_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """One chain's part of an array with an axis of chains."""
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _given(init: Any, chains: int) -> Position:
    positions = _floats(jax.tree.map(_array, init))
    for path, leaf in jax.tree_util.tree_flatten_with_path(positions)[0]:
        if leaf.ndim == 0 or leaf.shape[0] != chains:
            raise OptionError(
                f"init{jax.tree_util.keystr(path)} has shape {leaf.shape}; with chains={chains} its first axis must be"
                f" {chains}, a start for each chain. Or give a function of a key that makes one position."
            )
    return positions


def _array(leaf: Any) -> Any:
    """With JAX's type: double precision where that is turned on."""
    if isinstance(leaf, jax.Array):
        return leaf
    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


def _floats(positions: Any) -> Position:
    leaves = jax.tree.leaves(positions)
    if not leaves:
        raise OptionError("init gives a position without any array.")
    for path, leaf in jax.tree_util.tree_flatten_with_path(positions)[0]:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise OptionError(
                f"init{jax.tree_util.keystr(path)} is of type {leaf.dtype}; positions are arrays of floats, since"
                " samplers move along gradients."
            )
        if jnp.finfo(leaf.dtype).bits < 32:
            raise OptionError(
                f"init{jax.tree_util.keystr(path)} is of type {leaf.dtype}; positions are arrays of float32 or float64:"
                " energies need the digits."
            )
    return positions


def _check_density(density: FlatDensity, layout: Layout) -> None:
    try:
        out = jax.eval_shape(density, jax.ShapeDtypeStruct((layout.size,), layout.dtype))
    except (TypeError, ValueError) as error:
        shapes = jax.tree.unflatten(layout.tree, layout.shapes)
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
