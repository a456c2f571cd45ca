"""The variables of a statement at trace time: what they hold, their types, how two of them join, and what is asking.

A variable's value is a pytree. Its leaves are of two sorts: *arrays* (JAX and NumPy arrays and Python
numbers: what a loop can carry) and *fixed* (functions, strings, any other object: must be the same on
every path). A variable that no path has assigned holds an `Undefined`, which remembers what left it so.

Two types join by JAX's own promotion: a weakly typed value (a Python number) gives way to a strong
type that can hold it, two weak ones promote, everything else must be equal.

A `Construct` is what the converted code passes its run-time about one statement of the user's source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util
from jax.core import ShapedArray, Tracer

from lanewise import _jax
from lanewise.core import objects
from lanewise.core.errors import Location, UnsupportedSyntaxError
from lanewise.core.objects import in_shells, is_held

_NUMBERS = (bool, int, float, complex)
RESULT = "_lw_result"  # the variable that holds a function's return value
FLAG = "_lw_flag_"  # how the names of the flags that exits set begin


@dataclass(frozen=True)
class Undefined:
    """Stands in a variable that no assignment has reached; `why` says which statement left it so."""

    name: str
    why: str = ""
    fix: str = ""


def is_traced(value: Any) -> bool:
    return isinstance(value, Tracer)


def is_number(leaf: Any) -> bool:
    return isinstance(leaf, _NUMBERS)


def is_array(leaf: Any) -> bool:
    """Whether a leaf can be carried by staged control flow.

    >>> is_array(1.5), is_array("text")
    (True, False)
    """
    if is_number(leaf) or isinstance(leaf, jax.Array):
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


def none_filled(one: Value, other: Value) -> tuple[Value, Value] | None:
    """Two values with None as one that may be None where the other has such a one, if that makes them one type."""
    try:
        filled = objects.none_filled(one.rebuild(), other.rebuild())
    except (ValueError, TypeError):
        return None
    first, second = map(take_apart, filled)
    return (first, second) if first.treedef == second.treedef else None


Places = tuple[tuple[int | None, ...], ...]


def with_value(
    taken: Sequence[Value], places: Places, index: int, value: Value
) -> tuple[tuple[Value, ...], Places]:
    """Another value in one of several variables, made of leaves of theirs and of plain ones, and the places of all."""
    known = {
        id(leaf): place
        for each, row in zip(taken, places, strict=True)
        for leaf, place in zip(each.leaves, row, strict=True)
    }
    row = tuple(known.get(id(leaf), 0) if is_array(leaf) else None for leaf in value.leaves)
    return (
        (*taken[:index], value, *taken[index + 1 :]),
        (*places[:index], row, *places[index + 1 :]),
    )


def _is_plain_dataclass(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) and not is_array(leaf)


def register_plain_dataclass(cls: type) -> None:
    """Make a dataclass a pytree, as JAX would: fields marked static in their metadata are not leaves."""
    fields = [field for field in dataclasses.fields(cls) if field.init]
    static = [field.name for field in fields if field.metadata.get("static", False)]
    data = [field.name for field in fields if field.name not in static]
    tree_util.register_dataclass(cls, data_fields=data, meta_fields=static)


def same_number(a: Any, b: Any) -> bool:
    """Whether two leaves are one and the same plain Python number (0.0 and -0.0 are two).

    >>> same_number(1, 1), same_number(1, 1.0), same_number(0.0, -0.0)
    (True, False, False)
    """
    if type(a) is not type(b) or not is_number(a):
        return False
    return repr(a) == repr(b) if isinstance(a, float | complex) else a == b


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


def join(first: ShapedArray, second: ShapedArray) -> ShapedArray | None:
    """The type both can become, or None where there is none.

    A weak type (a Python scalar's) becomes the strong type it meets if JAX's promotion says so.

    >>> weak_int = _jax.aval_of(1)
    >>> join(weak_int, _jax.shaped((), jnp.int8))
    ShapedArray(int8[])
    >>> join(_jax.shaped((), jnp.int32), _jax.shaped((), jnp.float32)) is None
    True
    """
    if first.shape != second.shape:
        return None
    first_weak, second_weak = bool(first.weak_type), bool(second.weak_type)
    if first.dtype == second.dtype:
        return _jax.shaped(first.shape, first.dtype, first_weak and second_weak)
    if _jax.is_extended(first.dtype) or _jax.is_extended(second.dtype):
        return None
    if first_weak and second_weak:
        return _jax.shaped(first.shape, jnp.promote_types(first.dtype, second.dtype), True)
    if first_weak and _gives_way(first, second):
        return second
    if second_weak and _gives_way(second, first):
        return first
    return None


def _gives_way(weak: ShapedArray, strong: ShapedArray) -> bool:
    # `jnp.result_type` looks for a weak type on values only: a `ShapeDtypeStruct` always counts as strong.
    return jnp.result_type(weak_example(weak.dtype), strong.dtype) == strong.dtype


def weak_example(dtype: Any) -> Any:
    """A Python number, so weakly typed, of a dtype's kind.

    >>> weak_example(jnp.int32), weak_example(jnp.float32)
    (0, 0.0)
    """
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return 0j
    return 0.0 if jnp.issubdtype(dtype, jnp.floating) else 0


def convert(value: Any, aval: Any) -> Any:
    """`value` as exactly the type `aval`, weak type included."""
    have = _jax.aval_of(value)
    if have.dtype == aval.dtype and have.weak_type == aval.weak_type:
        return value
    return _jax.convert_to_aval(value, aval)


def same_type(a: ShapedArray, b: ShapedArray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(a.weak_type) == bool(b.weak_type)


def as_type(value: Any, aval: ShapedArray) -> Any:
    """Give an array-like a type it joins to. Python numbers stay literals: later passes follow them."""
    weak = bool(aval.weak_type)
    value = _jax.varying_untold(value)
    if same_type(_jax.aval_of(value), aval):
        return value
    if is_number(value):
        if not weak:
            return np.asarray(value).astype(aval.dtype)[()]
        return type(weak_example(aval.dtype))(value)
    return convert(value, aval)


def placeholder(aval: ShapedArray) -> Any:
    """A value of a type for a path on which it is not read."""
    if _jax.is_extended(aval.dtype):
        return _jax.zeros(aval)
    if aval.shape == ():
        if aval.weak_type:
            return weak_example(aval.dtype)
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
        return value.str_short()
    if is_array(value):
        text = type_text(_jax.aval_of(value))
        return f"{text} (a Python {type(value).__name__})" if is_number(value) else text
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


def mismatch(first: Value, second: Value) -> Mismatch:
    """Where two variables that do not join differ."""
    a, b = first.rebuild(), second.rebuild()
    return _first_mismatch(a, b) or Mismatch("", type_text(a), type_text(b))


def _first_mismatch(a: Any, b: Any, path: str = "") -> Mismatch | None:
    """Look for the first place where two values do not join, descending together."""
    if is_array(a) and is_array(b):
        if join(_jax.aval_of(a), _jax.aval_of(b)) is None:
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
        found = _first_mismatch(x, y, path + key)
        if found is not None:
            return found
    if tree_util.tree_structure(a) != tree_util.tree_structure(b):
        return Mismatch(path, *_tell_apart(a, b))
    return None


def _tell_apart(a: Any, b: Any) -> tuple[str, str]:
    first, second = type_text(a), type_text(b)
    if first != second:
        return first, second
    if hasattr(a, "__code__") and hasattr(b, "__code__"):
        lines = a.__code__.co_firstlineno, b.__code__.co_firstlineno
        return f"{first} of line {lines[0]}", f"{second} of line {lines[1]}"
    return f"{first} ({a!r:.60})", f"{second} ({b!r:.60})"


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """One level of a pytree as (key text, child), or None for a leaf or None."""
    if value is None or is_array(value) or is_held(value):
        return None
    pairs, _ = tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)
    if len(pairs) == 1 and pairs[0][1] is value:
        return None
    return [(tree_util.keystr(path), child) for path, child in pairs]


@dataclass(frozen=True)
class Construct:
    """One control-flow statement or expression.

    `names` are the variables it may modify; the first `live` of them matter afterwards, the others are
    temporaries. `dead_then` and `dead_else` are those whose value is not read when that side ran (it
    ended in a jump past every read); `dead_entry` those whose value at a loop's entry is not read.
    """

    location: Location
    what: str
    names: tuple[str, ...] = ()
    live: int = 0
    dead_then: frozenset[str] = frozenset()
    dead_else: frozenset[str] = frozenset()
    dead_entry: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()  # those of `names` whose objects it changes in place
    inside: tuple[tuple[str, int], ...] = ()  # each `try` and `with` around it, and its line
    binds: tuple[tuple[str, int], ...] = ()  # `:=` in operands that may not be computed
    acts: bool = False  # its body may act on Python objects other than through `names`
    once: bool = False  # a loop whose body always leaves it

    @property
    def line(self) -> int:
        return self.location.line

    def at(self, line: int) -> Location:
        return Location(self.location.filename, line, self.location.function)

    def forbid_staging(self, naming: Collection[int] = ()) -> None:
        """Raise if the statement cannot be traced because of where it is or what it assigns.

        `naming`: the lines of `with` statements that name what is traced inside them and do nothing else.
        """
        for what, line in self.inside:
            if what == "with" and line in naming:
                continue
            raise UnsupportedSyntaxError(
                f"this `{what}` surrounds the {self.what} of line {self.line}, whose condition is only "
                f"known at run time. Move the `{what}` inside the branch or loop body, or around the "
                "call of the whole program",
                self.at(line),
            )
        for name, line in self.binds:
            raise UnsupportedSyntaxError(
                f"`{name} := ...` inside the {self.what} of line {self.line} may or may not run, and "
                f"that is only known at run time. Assign `{name}` in a statement of its own",
                self.at(line),
            )


@dataclass(frozen=True)
class Variables:
    """The variables of one statement, as cells of the running function."""

    construct: Construct
    get: Callable[[], tuple[Any, ...]]
    set: Callable[[tuple[Any, ...]], None]

    def read(self) -> list[Any]:
        """The variables that matter after the statement."""
        return list(self.get()[: self.construct.live])

    def from_here(self, block: Callable[[], None]) -> Callable[[], list[Any]]:
        """How to run a block on copies of what the variables hold now; gives what it leaves in those that matter."""
        entry = [take_apart(value) for value in self.get()]

        def run() -> list[Any]:
            self.set(tuple(value.rebuild() for value in entry))
            block()
            return self.read()

        return run

    def write(self, values: list[Any]) -> None:
        """Give the variables that matter their values; the temporaries become undefined."""
        temporaries = self.construct.names[self.construct.live :]
        self.set((*values, *(Undefined(name) for name in temporaries)))
