"""Arguments as a hashable static part and a list of arrays, and back.

Leaves that are arrays or Python scalars are traced; all other leaves (functions, strings, a module's
static fields) and the arguments declared static are part of the signature, as `equinox.filter_jit` has it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lanewise.core.errors import OptionError


class _Dynamic:
    def __repr__(self) -> str:
        return "*"


DYNAMIC = _Dynamic()


@dataclass(frozen=True)
class Identity:
    """Stands for an unhashable static leaf: the same object is the same leaf."""

    value: Any

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value


@dataclass(frozen=True)
class _Declared:
    """An argument the user declared static."""

    value: Any


@dataclass(frozen=True)
class StaticLeaves:
    """A flattened pytree with its array leaves taken out."""

    leaves: tuple[Any, ...]

    def join(self, dynamic: Sequence[Any]) -> list[Any]:
        arrays = iter(dynamic)
        return [next(arrays) if leaf is DYNAMIC else _unwrap(leaf) for leaf in self.leaves]


def _unwrap(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, Identity | _Declared) else leaf


# As tuples, not as unions: a union is created each time it is evaluated, and this runs for every leaf.
_NUMPY = (np.ndarray, np.generic)
_SCALARS = (bool, int, float, complex)


def is_array_like(leaf: Any) -> bool:
    """Whether a leaf is traced.

    >>> is_array_like(1.5), is_array_like("relu")
    (True, False)
    """
    if isinstance(leaf, jax.Array):
        return True
    if isinstance(leaf, _NUMPY):
        return leaf.dtype.kind in "biufcV" and leaf.dtype.names is None
    return isinstance(leaf, _SCALARS) or hasattr(leaf, "__jax_array__")


def split_leaves(value: Any) -> tuple[list[Any], StaticLeaves, Any]:
    """Array leaves, the rest, and the tree.

    >>> split_leaves({"x": 1.0, "f": "sum"})[:2]
    ([1.0], StaticLeaves(leaves=('sum', *)))
    """
    leaves, tree = jax.tree.flatten(value)
    static = tuple(DYNAMIC if is_array_like(leaf) else as_hashable(leaf) for leaf in leaves)
    dynamic = [leaf for leaf, kept in zip(leaves, static, strict=True) if kept is DYNAMIC]
    return dynamic, StaticLeaves(static), tree


def join_leaves(dynamic: Sequence[Any], static: StaticLeaves, tree: Any) -> Any:
    return jax.tree.unflatten(tree, static.join(dynamic))


def hashable(value: Any) -> Hashable:
    """A pytree of settings as something that can be looked up.

    >>> hashable([0, None]) == hashable([0, None]), hashable([0, None]) == hashable((0, None))
    (True, False)
    """
    leaves, tree = jax.tree.flatten(value, is_leaf=lambda leaf: leaf is None)
    return tuple(map(as_hashable, leaves)), tree


def as_hashable(leaf: Any) -> Any:
    """A static leaf as something that can be looked up: itself, or what stands for it."""
    try:
        hash(leaf)
    except TypeError:
        return Identity(leaf)
    return leaf


@dataclass(frozen=True)
class CallStatics:
    """The hashable half of one call's arguments."""

    tree: Any
    leaves: StaticLeaves

    def join(self, dynamic: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = join_leaves(dynamic, self.leaves, self.tree)
        return args, kwargs


@dataclass(frozen=True)
class Signature:
    """Which arguments of a function are static."""

    positions: frozenset[int]
    names: frozenset[str]

    @classmethod
    def of(
        cls,
        fun: Callable[..., Any],
        static_argnums: int | Sequence[int] | None,
        static_argnames: str | Sequence[str] | None,
    ) -> Signature:
        positions = _as_tuple(static_argnums, int, "static_argnums")
        names = _as_tuple(static_argnames, str, "static_argnames")
        try:
            parameters = list(inspect.signature(fun).parameters.values())
        except (ValueError, TypeError):
            return cls(frozenset(positions), frozenset(names))
        variadic = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
        by_name = {p.name: i for i, p in enumerate(parameters)}
        if not variadic:
            for name in names:
                if name not in by_name:
                    raise OptionError(
                        f"static_argnames={name!r} is not a parameter of {fun.__name__}; it has {', '.join(by_name)}."
                    )
            for position in positions:
                if not -len(parameters) <= position < len(parameters):
                    raise OptionError(
                        f"static_argnums={position} is out of range: {fun.__name__} has {len(parameters)} parameters."
                    )
        if not variadic:
            positions = tuple(p % len(parameters) for p in positions)
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        all_names = set(names) | {parameters[p].name for p in positions if p < len(parameters)}
        all_positions = set(positions) | {
            by_name[n] for n in names if n in by_name and parameters[by_name[n]].kind in positional
        }
        return cls(frozenset(all_positions), frozenset(all_names))

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], CallStatics]:
        """Array leaves of a call's arguments, and everything else about them, hashable."""
        dynamic, static, tree = split_leaves(self._declared(args, kwargs))
        return dynamic, CallStatics(tree, static)

    def flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
        """All leaves of a call's arguments, those declared static as one each, and their tree."""
        return jax.tree.flatten(self._declared(args, kwargs))

    def _declared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not (self.positions or self.names):
            return args, kwargs
        return (
            tuple(
                _declare(value, f"argument {i}") if i in self.positions else value
                for i, value in enumerate(args)
            ),
            {
                name: _declare(value, f"argument {name!r}") if name in self.names else value
                for name, value in kwargs.items()
            },
        )


def _declare(value: Any, what: str) -> _Declared:
    try:
        hash(value)
    except TypeError:
        raise OptionError(
            f"{what} is declared static and must be hashable; got {type(value).__name__}."
            " Pass a tuple or another hashable value, or do not declare it static."
        ) from None
    return _Declared(value)


def _as_tuple(value: Any, kind: type, name: str) -> tuple[Any, ...]:
    if value is None:
        return ()
    if kind is int and isinstance(value, np.integer):
        value = int(value)
    one = isinstance(value, kind) or not isinstance(value, Iterable)
    items = (value,) if one else tuple(value)
    for item in items:
        if not isinstance(item, kind) or isinstance(item, bool):
            raise OptionError(f"{name} takes {kind.__name__} or a sequence of them; got {item!r}.")
    return items
