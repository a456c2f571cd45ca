"""Recursive data classes, and the meaning of their annotations.

`@record` makes a data class whose fields are numbers, arrays, other records, or lists of these. A `Schema` says how a
set of such classes is stored in arrays. Classes that occur together in one union make one *kind*: they share a
numbering of rows, and a column says which class a row is of. A field of one name has one column in its kind.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

from lanewise.core.errors import OptionError

_Class = TypeVar("_Class", bound=type)
_MARK = "__lanewise_record__"
_NUMBERS: dict[Any, Any] = {
    bool: np.bool_,
    int: np.int64,
    float: np.float64,
    complex: np.complex128,
}
_LISTS = (list, tuple, collections.abc.Sequence)


@typing.overload
@typing.dataclass_transform()
def record(cls: _Class, /) -> _Class: ...
@typing.overload
@typing.dataclass_transform()
def record(**options: Any) -> Callable[[_Class], _Class]: ...
@typing.dataclass_transform()
def record(cls: Any = None, /, **options: Any) -> Any:
    """Make a data class of records that `lanewise.pack` turns into arrays.

    A field is a number, an array (of one shape for all records), a record (`"Tree"`, `"Tree | None"`, `"Leaf | Node"`),
    or a list of these. `str` fields are packed if `pack` is given their codes. Options are those of
    `dataclasses.dataclass`; `slots` is on unless you say otherwise.

    >>> import lanewise as lw
    >>> @lw.record
    ... class Chain:
    ...     value: int
    ...     next: "Chain | None" = None
    >>> Chain(1, Chain(2)).next.value
    2
    """
    if cls is None:
        return functools.partial(record, **options)
    if not isinstance(cls, type):
        raise OptionError(f"lanewise.record takes a class; got {cls!r}.")
    made = dataclasses.dataclass(**{"slots": "__slots__" not in vars(cls), **options})(cls)
    setattr(made, _MARK, made)
    _siblings(made)[made.__name__] = made
    for listener in _listeners:
        listener(made)
    return made


_listeners: list[Callable[[type], None]] = []


def on_record(listener: Callable[[type], None]) -> None:
    """Call this with each class that becomes a record."""
    _listeners.append(listener)


# Records by the place where they are defined: annotations of one may name another that comes later.
_defined: dict[tuple[str, str], dict[str, type]] = {}


def _siblings(cls: type) -> dict[str, type]:
    place = (cls.__module__, cls.__qualname__.rpartition(".")[0])
    return _defined.setdefault(place, {})


def is_record(cls: Any) -> bool:
    """Whether a class itself is a record, not only a base of it.

    >>> is_record(int)
    False
    """
    return isinstance(cls, type) and vars(cls).get(_MARK) is cls


@dataclass(frozen=True)
class Field:
    """One field of a class: `what` is "value", "text", "one" (a record) or "many" (a list)."""

    name: str
    what: str
    optional: bool = False
    dtype: Any = None  # of values; None: as the data has it
    classes: tuple[type, ...] = ()
    item: Field | None = None  # of "many"


@dataclass(frozen=True, eq=False)
class Kind:
    """Classes that share a numbering of rows."""

    classes: tuple[type, ...]
    fields: dict[str, Field]
    optional: bool  # whether an annotation says that a record of this kind may be None

    @property
    def name(self) -> str:
        return " | ".join(cls.__name__ for cls in self.classes)

    def fields_of(self, cls: type) -> list[Field]:
        names = {f.name for f in dataclasses.fields(cls)}
        return [field for name, field in self.fields.items() if name in names]


@dataclass(frozen=True, eq=False)
class Schema:
    """The kinds that can be reached from some classes. There is one schema for the same classes and codes."""

    kinds: tuple[Kind, ...]
    coded: frozenset[str]

    @functools.cached_property
    def kind_of(self) -> dict[type, int]:
        return {cls: i for i, kind in enumerate(self.kinds) for cls in kind.classes}

    @functools.cached_property
    def ends(self) -> tuple[int, ...]:
        """For each kind, a class where a recursion can end: its records need no others, or only ones that end first.

        Row 0, which is read where there is no record, is of that class unless a record of the kind may be None.
        """
        found: dict[int, int] = {}
        for _ in self.kinds:
            for k, kind in enumerate(self.kinds):
                for place, cls in enumerate(kind.classes):
                    needs = [f for f in kind.fields_of(cls) if f.what == "one" and not f.optional]
                    if k not in found and all(self.target(f) in found for f in needs):
                        found[k] = place
        return tuple(found.get(k, 0) for k in range(len(self.kinds)))

    def target(self, field: Field) -> int:
        """The kind that a field of records points into."""
        return self.kind_of[field.classes[0]]

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (tuple(kind.classes for kind in self.kinds), self.coded)

    def __repr__(self) -> str:
        return f"Schema({', '.join(kind.name for kind in self.kinds)})"


_schemas: dict[Any, Schema] = {}


def schema_of(classes: Iterable[type], coded: Iterable[str] = ()) -> Schema:
    """The schema of what can be reached from these classes."""
    key = (frozenset(classes), frozenset(coded), jax.dtypes.canonicalize_dtype(np.float64))
    found = _schemas.get(key)
    if found is None:
        found = _schemas[key] = _again([key[0]], key[1])
    return found


def _again(groups: Sequence[Iterable[type]], coded: frozenset[str]) -> Schema:
    """The schema of groups of classes, each of which is in one kind: one object for equal groups."""
    made = _made([sorted(group, key=_place) for group in groups], coded)
    wide = jax.dtypes.canonicalize_dtype(np.float64)
    return _schemas.setdefault((tuple(kind.classes for kind in made.kinds), coded, wide), made)


def _place(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _made(roots: Sequence[Sequence[type]], coded: frozenset[str]) -> Schema:
    fields: dict[type, dict[str, Field]] = {}
    left = [cls for group in roots for cls in group]
    groups: list[set[type]] = [set(group) for group in roots]
    while left:
        cls = left.pop()
        if cls in fields:
            continue
        fields[cls] = _fields_of(cls)
        for field in fields[cls].values():
            for part in (field, *([field.item] if field.item else [])):
                if part.classes:
                    groups.append(set(part.classes))
                    left.extend(reversed(part.classes))
    kinds = []
    for group in sorted(
        _joined([*groups, *({cls} for cls in fields)]), key=lambda g: min(map(_place, g))
    ):
        members = tuple(sorted(group, key=_place))
        columns: dict[str, Field] = {}
        for cls in members:
            for name, field in fields[cls].items():
                other = columns.setdefault(name, field)
                if not _same_column(other, field):
                    first = next(c for c in members if name in fields[c])
                    raise OptionError(
                        f"`{name}` is {_text(other)} in {first.__name__} and {_text(field)} in {cls.__name__}, which"
                        " occur in one union. Give the fields one type, or two names."
                    )
                if field.optional:
                    columns[name] = field
        optional = any(
            part.optional and part.classes and part.classes[0] in group
            for each in fields.values()
            for field in each.values()
            for part in (field, *([field.item] if field.item else []))
        )
        kinds.append(Kind(members, columns, optional))
    return Schema(tuple(kinds), coded)


def _same_column(a: Field, b: Field) -> bool:
    return dataclasses.replace(a, optional=False) == dataclasses.replace(b, optional=False)


def _joined(groups: Sequence[set[type]]) -> list[set[type]]:
    """Groups that share a member, merged."""
    found: list[set[type]] = []
    for group in groups:
        meets = [other for other in found if other & group]
        for other in meets:
            group = group | other
            found.remove(other)
        if group:
            found.append(group)
    return found


def _fields_of(cls: type) -> dict[str, Field]:
    try:
        hints = typing.get_type_hints(cls, localns={**_siblings(cls), cls.__name__: cls})
    except NameError as error:
        raise OptionError(
            f"{cls.__name__}: an annotation names {error.name!r}, which is not defined. Define the class before"
            " records are packed."
        ) from None
    found: dict[str, Field] = {}
    for f in dataclasses.fields(cls):
        if f.name.startswith("_"):
            raise OptionError(f"{cls.__name__}.{f.name}: names of fields begin with a letter.")
        found[f.name] = _field(cls, f.name, hints[f.name])
    return found


def _field(cls: type, name: str, hint: Any) -> Field:
    parts, optional = _parts(hint)
    if len(parts) == 1:
        (part,) = parts
        origin = typing.get_origin(part)
        if origin in _LISTS or part in (list, tuple):
            return Field(name, "many", optional, item=_item(cls, name, part))
        if part is str:
            return Field(name, "text", optional, np.int32)
        if part in _NUMBERS:
            return Field(name, "value", optional, jax.dtypes.canonicalize_dtype(_NUMBERS[part]))
        if isinstance(part, type) and issubclass(part, np.generic):
            return Field(name, "value", optional, jax.dtypes.canonicalize_dtype(part))
        if _is_array(part):
            return Field(name, "value", optional)
    if parts and all(map(is_record, parts)):
        return Field(name, "one", optional, classes=tuple(parts))
    others = [part for part in parts if not is_record(part)]
    shown = ", ".join(getattr(part, "__name__", str(part)) for part in others)
    raise OptionError(
        f"{cls.__name__}.{name} is annotated {_shown(hint)}; {shown} is not a number, an array, a record (a class with"
        " @lanewise.record) or a list of these."
    )


def _item(cls: type, name: str, part: Any) -> Field:
    arguments = [each for each in typing.get_args(part) if each is not Ellipsis]
    if len(arguments) != 1:
        raise OptionError(
            f"{cls.__name__}.{name} is annotated {_shown(part)}; say what its items are, as in `list[{cls.__name__}]`."
        )
    item = _field(cls, name, arguments[0])
    if item.what == "many" or (item.optional and item.what != "one"):
        raise OptionError(
            f"{cls.__name__}.{name} is annotated {_shown(part)}; items are numbers, arrays or records."
        )
    return item


def _parts(hint: Any) -> tuple[list[Any], bool]:
    """The members of a union, and whether None is one of them."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = typing.get_args(hint)
        return [part for part in members if part is not type(None)], type(None) in members
    if typing.get_origin(hint) is typing.Annotated:
        return _parts(typing.get_args(hint)[0])
    return [hint], False


def _is_array(part: Any) -> bool:
    origin = typing.get_origin(part) or part
    if not isinstance(origin, type):
        return False
    if hasattr(origin, "array_type"):  # jaxtyping's
        return True
    return issubclass(origin, np.ndarray) or origin is jax.Array or issubclass(origin, jax.Array)


def _text(field: Field) -> str:
    if field.what == "one":
        return " | ".join(cls.__name__ for cls in field.classes)
    if field.item is not None:
        return f"a list of {_text(field.item)}"
    return (
        "a str"
        if field.what == "text"
        else ("an array" if field.dtype is None else field.dtype.name)
    )


def _shown(hint: Any) -> str:
    plain = isinstance(hint, type) and not typing.get_args(hint)
    return hint.__name__ if plain else str(hint).replace("typing.", "")
