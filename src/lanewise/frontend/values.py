"""The values that variables hold at trace time: their leaves, their types, and how two of them join.

A variable's value is a pytree. Its leaves are of two sorts: *arrays* (JAX and NumPy arrays and Python
numbers: what a loop can carry) and *fixed* (functions, strings, any other object: must be the same on
every path). A variable that no path has assigned holds an `Undefined`, which remembers who left it so.

Two types join by JAX's own promotion: a weakly typed value (a Python number) gives way to a strong
type that can hold it, two weak ones promote, everything else must be equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util
from jax.core import ShapedArray, Tracer

from lanewise import _jax
from lanewise.core import promotion
from lanewise.core.objects import in_shells, is_held

_NUMBERS = (bool, int, float, complex)


@dataclass(frozen=True)
class Undefined:
    """Stands in a variable that no assignment has reached; `why` tells which statement left it so."""

    name: str
    why: str = ""
    fix: str = ""


def is_traced(value: Any) -> bool:
    return isinstance(value, Tracer)


def is_array(leaf: Any) -> bool:
    """Whether a leaf can be carried by staged control flow.

    >>> is_array(1.5), is_array("text")
    (True, False)
    """
    if isinstance(leaf, _NUMBERS) or isinstance(leaf, jax.Array):
        return True
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind in "biufc" or leaf.dtype == jnp.bfloat16
    return False


@dataclass(frozen=True)
class Value:
    """One variable taken apart: `leaves` in the order of `treedef`, or `undefined`."""

    leaves: tuple[Any, ...]
    treedef: Any
    undefined: Undefined | None = None

    def rebuild(self, leaves: Sequence[Any] | None = None) -> Any:
        """The variable's value again, in containers of its own."""
        if self.undefined is not None:
            return self.undefined
        return tree_util.tree_unflatten(self.treedef, self.leaves if leaves is None else leaves)


def take_apart(value: Any) -> Value:
    """Flatten a variable's value, registering the plain dataclasses it meets."""
    if isinstance(value, Undefined):
        return Value((), None, value)
    while True:
        leaves, treedef = tree_util.tree_flatten(value, is_leaf=is_held)
        if any(map(is_held, leaves)):
            leaves, treedef = tree_util.tree_flatten(in_shells(value))
        strangers = {type(leaf) for leaf in leaves if _is_plain_dataclass(leaf)}
        if not strangers:
            return Value(tuple(leaves), treedef)
        for cls in strangers:
            register_plain_dataclass(cls)


def _is_plain_dataclass(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) and not is_array(leaf)


def register_plain_dataclass(cls: type) -> None:
    """Make a dataclass a pytree, as JAX would: fields marked static in their metadata are no leaves."""
    fields = [field for field in dataclasses.fields(cls) if field.init]
    static = [field.name for field in fields if field.metadata.get("static", False)]
    data = [field.name for field in fields if field.name not in static]
    tree_util.register_dataclass(cls, data_fields=data, meta_fields=static)


def same_number(a: Any, b: Any) -> bool:
    """Whether two leaves are one and the same plain Python number (0.0 and -0.0 are two).

    >>> same_number(1, 1), same_number(1, 1.0), same_number(0.0, -0.0)
    (True, False, False)
    """
    if type(a) is not type(b) or not isinstance(a, _NUMBERS):
        return False
    if isinstance(a, float):
        return repr(a) == repr(b)
    if isinstance(a, complex):
        return repr(a) == repr(b)
    return a == b


def same_leaf(a: Any, b: Any) -> bool:
    """Whether two leaves need no merging: the very same array, or equal plain numbers."""
    return a is b or same_number(a, b)


def same_fixed(a: Any, b: Any) -> bool:
    """Whether two leaves that are not arrays are equal."""
    if a is b:
        return True
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # an object's own `==` may do anything; unequal is the safe answer
        return False


def same_type(a: ShapedArray, b: ShapedArray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(a.weak_type) == bool(b.weak_type)


def as_type(value: Any, aval: ShapedArray) -> Any:
    """Give an array-like a type it joins to. Python numbers stay literals: later passes follow them."""
    weak = bool(aval.weak_type)
    value = _jax.varying_untold(value)
    if same_type(_jax.aval_of(value), aval):
        return value
    if isinstance(value, _NUMBERS):
        if not weak:
            return np.asarray(value).astype(aval.dtype)[()]
        return type(promotion.weak_example(aval.dtype))(value)
    return promotion.convert(value, aval)


def placeholder(aval: ShapedArray) -> Any:
    """A value of a type for a path on which nobody looks at it."""
    if _jax.is_extended(aval.dtype):
        return _jax.zeros(aval)
    if aval.shape == ():
        if aval.weak_type:
            return promotion.weak_example(aval.dtype)
        return np.zeros((), aval.dtype)[()]
    return _jax.zeros(aval)


def type_text(value: Any) -> str:
    """A value's type as messages write it.

    >>> type_text(jnp.zeros(3)), type_text(1), type_text(None), type_text("x")
    ('float32[3]', 'int32[] (a Python int)', 'None', "the str 'x'")
    """
    if isinstance(value, Undefined):
        return "undefined"
    if value is None:
        return "None"
    if isinstance(value, ShapedArray):
        return promotion.show(value)
    if is_array(value):
        text = type_text(_jax.aval_of(value))
        return f"{text} (a Python {type(value).__name__})" if isinstance(value, _NUMBERS) else text
    if is_held(value):
        return repr(value)
    if isinstance(value, dict):
        return f"a dict with keys {sorted(map(repr, value))}".replace('"', "")
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, str):
        return f"the str {value!r}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    return f"a {type(value).__name__}"


@dataclass(frozen=True)
class Mismatch:
    """Where two values first differ: the path inside the variable, and both types."""

    path: str
    first: str
    second: str


def first_mismatch(a: Any, b: Any, path: str = "") -> Mismatch | None:
    """Look for the first place where two values do not join, descending together."""
    if is_array(a) and is_array(b):
        if promotion.join(_jax.aval_of(a), _jax.aval_of(b)) is None:
            first, second = type_text(_jax.aval_of(a)), type_text(_jax.aval_of(b))
            return Mismatch(path, first, second)
        return None
    a_kids, b_kids = _children(a), _children(b)
    if a_kids is None or b_kids is None:
        if a_kids is None and b_kids is None and (is_array(a) == is_array(b)) and same_fixed(a, b):
            return None
        return Mismatch(path, *_tell_apart(a, b))
    if type(a) is not type(b) or [k for k, _ in a_kids] != [k for k, _ in b_kids]:
        return Mismatch(path, *_tell_apart(a, b))
    for (key, x), (_, y) in zip(a_kids, b_kids, strict=True):
        found = first_mismatch(x, y, path + key)
        if found is not None:
            return found
    if tree_util.tree_structure(a) != tree_util.tree_structure(b):
        return Mismatch(path, *_tell_apart(a, b))
    return None


def _tell_apart(a: Any, b: Any) -> tuple[str, str]:
    first, second = type_text(a), type_text(b)
    if first != second:
        return first, second
    return f"{first} ({a!r:.60})", f"{second} ({b!r:.60})"


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """One level of a pytree as (key text, child), or None for a leaf or None."""
    if value is None or is_array(value) or is_held(value):
        return None
    pairs, _ = tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)
    if len(pairs) == 1 and pairs[0][1] is value:
        return None
    return [(tree_util.keystr(path), child) for path, child in pairs]
