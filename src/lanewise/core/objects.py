"""Values that answer for themselves where Python would ask for a plain object.

`x is None`, `isinstance(x, C)`, `len(x)` and `for item in x` cannot be overloaded in Python. Inside a program the front
end asks these classes first. They are pytrees; `lanewise.records` has the references and lists that implement them.
Their methods begin with `_lw_`: every other name may be a field of the user's.

A held value is a few numbers of its own, its *parts*, and arrays that it shares with others. Branches and loops merge
the parts and read the shared arrays where they are; what leaves a program are the parts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from lanewise.core.errors import OptionError


class Held:
    """A value that is one of many in arrays which all lanes share."""

    __slots__ = ()

    def _lw_parts(self) -> tuple[Any, ...]:
        """The numbers that are its own."""
        raise NotImplementedError

    def _lw_with(self, parts: Sequence[Any]) -> Any:
        """The value with other numbers."""
        raise NotImplementedError

    def _lw_type(self) -> Any:
        """What two values must have in common to be merged; compared by `==`."""
        raise NotImplementedError

    def _lw_is_none(self, gone: Sequence[Any] = ()) -> Any:
        """Whether it is None: a bool, or a traced one. It is of none of the classes that are gone."""
        raise NotImplementedError

    def _lw_is_same(self, other: Any) -> Any:
        """Whether it is that object."""
        return self is other

    def _lw_is_instance(self, cls: Any, gone: Sequence[Any] = ()) -> Any:
        """Whether it is of that class, or of one of these classes, if it is of none that are gone."""
        return isinstance(self, cls)

    def _lw_truth(self) -> Any:
        """Whether it counts as true in a condition."""
        raise NotImplementedError

    def _lw_none(self) -> Any:
        """None as a value of this type; raises TypeError where there is none."""
        raise TypeError

    def _lw_given(self, value: Any) -> Any:
        """A plain value as one of this type; raises TypeError where there is none."""
        raise TypeError

    def _lw_loose(self) -> Any:
        """The value without the arrays that it shares."""
        raise NotImplementedError

    def _lw_held_by(self, others: Sequence[Held]) -> Any:
        """A loose value with the arrays of the first other one that has those it needs; else as it is."""
        return self

    def _lw_lanes(self, axis: int) -> tuple[Any, Any]:
        """The value as an argument of `jax.vmap` over its own numbers, and the axes to give."""
        raise NotImplementedError


class Items(Held):
    """A sequence whose length is known at run time alone, and is at most `_lw_most`."""

    __slots__ = ()

    def _lw_most(self) -> int:
        raise NotImplementedError

    def _lw_length(self) -> Any:
        raise NotImplementedError

    def _lw_item(self, index: Any) -> Any:
        """The item at an index that is in range."""
        raise NotImplementedError


# What turns an object into a held value, by its class: a program called with a record takes it as a reference.
_taken_as: dict[type, Any] = {}


def take_as(cls: type, convert: Any) -> None:
    """Register how a program takes an argument of a class."""
    _taken_as[cls] = convert


def taken(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as a program takes them."""
    if not _taken_as or not any(type(arg) in _taken_as for arg in (*args, *kwargs.values())):
        return args, kwargs

    def take(arg: Any) -> Any:
        return _taken_as[type(arg)](arg) if type(arg) in _taken_as else arg

    return tuple(map(take, args)), {name: take(arg) for name, arg in kwargs.items()}


def holds(arg: Any) -> bool:
    """Whether an argument is held, or a dictionary, list or tuple with such inside."""
    if isinstance(arg, dict):
        return any(map(holds, arg.values()))
    if isinstance(arg, list | tuple):
        return any(map(holds, arg))
    return is_held(arg)


def over_lanes(args: tuple[Any, ...], in_axes: Any) -> tuple[tuple[Any, ...], Any]:
    """Arguments and axes for `jax.vmap`, with lanes along the parts of held arguments: what they share is shared."""
    if not any(map(holds, args)):
        return args, in_axes
    each = in_axes if isinstance(in_axes, tuple | list) else (in_axes,) * len(args)
    if len(each) != len(args):
        raise OptionError(f"in_axes={in_axes!r} has {len(each)} entries for {len(args)} arguments.")
    pairs = [_over_lanes(arg, axes) for arg, axes in zip(args, each, strict=True)]
    return tuple(arg for arg, _ in pairs), tuple(axes for _, axes in pairs)


def _over_lanes(arg: Any, axes: Any) -> tuple[Any, Any]:
    """The same for one argument; `axes` is a prefix of its tree, in which a held value may stand for its own axes."""
    if not holds(arg):
        return arg, axes
    whole, prefix = jax.tree.flatten(axes, is_leaf=lambda x: x is None or is_held(x))
    parts, found = [], []
    for axis, part in zip(whole, prefix.flatten_up_to(arg), strict=True):
        leaves, tree = jax.tree.flatten(part, is_leaf=is_held)
        pairs = [
            leaf._lw_lanes(axis) if is_held(leaf) and isinstance(axis, int) else (leaf, axis)
            for leaf in leaves
        ]
        parts.append(tree.unflatten(leaf for leaf, _ in pairs))
        # Axes stay a prefix where nothing is held: an empty part has none.
        found.append(tree.unflatten(own for _, own in pairs) if holds(part) else axis)
    return prefix.unflatten(parts), prefix.unflatten(found)


def refuse_unpacked(arg: Any) -> None:
    """Records of a batch come packed."""
    if isinstance(arg, list | tuple) and any(map(is_taken, arg)):
        raise OptionError("a list of records is packed first: give `lanewise.pack(records)`.")


def is_taken(arg: Any) -> bool:
    """Whether a program takes an argument as something else: it is a record."""
    return type(arg) in _taken_as


def seen_plainly(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments for plain Python, which asks `is None` itself: what is known to be None is None."""

    def see(arg: Any) -> Any:
        return None if is_held(arg) and arg._lw_is_none() is True else arg

    return tuple(map(see, args)), {name: see(arg) for name, arg in kwargs.items()}


def is_held(value: Any) -> bool:
    return isinstance(value, Held)


def asked(value: Any) -> Any:
    """A condition as it is; a held value says itself whether it counts as true."""
    return value._lw_truth() if is_held(value) else value


def same(left: Any, right: Any) -> Any:
    """`is`; a held value says itself whether it is None, or another."""
    if not (is_held(left) or is_held(right)):
        return left is right
    if not is_held(left):
        left, right = right, left
    return left._lw_is_none() if right is None else left._lw_is_same(right)


def not_same(left: Any, right: Any) -> Any:
    answer = same(left, right)
    return jnp.logical_not(answer) if isinstance(answer, Tracer) else not answer


def let_go(value: Any) -> Any:
    """A result as it leaves a program: without the arrays that its references point into."""
    return jax.tree.map(lambda x: x._lw_loose() if is_held(x) else x, value, is_leaf=is_held)


def held_again(value: Any, given: Any) -> Any:
    """A result of a call inside a program: with the arrays that its arguments point into."""
    leaves, tree = jax.tree.flatten(value, is_leaf=is_held)
    if not any(map(is_held, leaves)):
        return value
    others = [x for x in jax.tree.leaves(given, is_leaf=is_held) if is_held(x)]
    return jax.tree.unflatten(tree, [x._lw_held_by(others) if is_held(x) else x for x in leaves])


class Shell:
    """A held value with nothing but its parts for leaves. Put together again it is the value."""

    __slots__ = ("value",)

    def __init__(self, value: Held) -> None:
        self.value = value


class _Around:
    """What a held value is besides its parts, as the static half of a pytree."""

    __slots__ = ("type", "value")

    def __init__(self, value: Held) -> None:
        self.value = value
        self.type = value._lw_type()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Around) and self.type == other.type

    def __hash__(self) -> int:
        return hash(type(self.value))


jax.tree_util.register_pytree_node(
    Shell,
    lambda shell: (shell.value._lw_parts(), _Around(shell.value)),
    lambda around, parts: around.value._lw_with(parts),
)


def in_shells(value: Any) -> Any:
    """A value whose leaves leave out what held values share."""
    return jax.tree.map(lambda x: Shell(x) if is_held(x) else x, value, is_leaf=is_held)


def none_filled(one: Any, other: Any) -> tuple[Any, Any]:
    """Two values with None as a held one where the other has a held one. ValueError or TypeError where that fails."""

    def leaf(x: Any) -> bool:
        return x is None or is_held(x)

    def fill(x: Any, y: Any) -> Any:
        if is_held(x) or not is_held(y):
            return x
        return y._lw_none() if x is None else y._lw_given(x)

    return jax.tree.map(fill, one, other, is_leaf=leaf), jax.tree.map(
        fill, other, one, is_leaf=leaf
    )
