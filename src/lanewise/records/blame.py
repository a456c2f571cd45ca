"""What is wrong with records, and where: found by a walk that checks one record after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.core.errors import RecordError
from lanewise.records.schema import Field, Schema, is_record
from lanewise.records.values import Wrong, listed, taker


def blame(
    what: str, roots: Sequence[Any], schema: Schema, codes: Mapping[str, Any]
) -> RecordError | None:
    """The first mistake, if there is one."""
    shapes: dict[tuple[int, str], tuple[Any, _Place]] = {}
    for place, root in enumerate(roots):
        found = _from(root, _Place(f"{what}[{place}]"), schema, codes, shapes)
        if found is not None:
            return found
    return None


class _Place:
    """Where something is, written out when it is reported: a chain of 10,000 records has long paths."""

    def __init__(self, text: str, parent: _Place | None = None) -> None:
        self.text = text
        self.parent = parent

    def __str__(self) -> str:
        parts, at = [], self
        while at is not None:
            parts.append(at.text)
            at = at.parent
        text = "".join(reversed(parts))
        return text if len(text) <= 400 else f"{text[:200]} ... {text[-200:]}"


class _Step:
    """A record on the way from a root, and what is left to check in it."""

    def __init__(self, record: Any, place: _Place, schema: Schema) -> None:
        self.record = record
        self.left = _children(record, place, schema)


def _from(
    root: Any, path: _Place, schema: Schema, codes: Mapping[str, Any], shapes: dict[Any, Any]
) -> RecordError | None:
    if root is None:
        return None
    if type(root) not in schema.kind_of:
        return RecordError(f"{path} is {_shown(root)}; records are {_names(schema)}.")
    done: set[int] = set()
    around = {id(root): path}
    wrong = _values(root, path, schema, codes, shapes)
    if wrong is not None:
        return wrong
    steps = [_Step(root, path, schema)]
    while steps:
        step = steps[-1]
        found = next(step.left, None)
        if found is None:
            steps.pop()
            del around[id(step.record)]
            done.add(id(step.record))
            continue
        field, child, place = found
        if child is None:
            if field.optional:
                continue
            names = " | ".join(cls.__name__ for cls in field.classes)
            return RecordError(
                f"{place} is None, and its annotation is `{names}`. Give it a record, or annotate it `{names} | None`."
            )
        if type(child) not in field.classes:
            names = " | ".join(cls.__name__ for cls in field.classes)
            return RecordError(f"{place} is {_shown(child)}; its annotation is `{names}`.")
        if id(child) in around:
            return RecordError(
                f"{place} is the same record as {around[id(child)]}, which it is part of: a cycle. Records may be"
                " shared, but not be part of themselves."
            )
        if id(child) in done:
            continue
        wrong = _values(child, place, schema, codes, shapes)
        if wrong is not None:
            return wrong
        around[id(child)] = place
        steps.append(_Step(child, place, schema))
    return None


def _children(record: Any, path: _Place, schema: Schema) -> Iterator[tuple[Field, Any, _Place]]:
    for field in schema.kinds[schema.kind_of[type(record)]].fields_of(type(record)):
        value: Any = getattr(record, field.name, None)
        if field.what == "one":
            yield field, value, _Place(f".{field.name}", path)
        elif field.item is not None and field.item.what == "one":
            for i, item in enumerate(value):
                yield field.item, item, _Place(f".{field.name}[{i}]", path)


def _values(
    record: Any, path: _Place, schema: Schema, codes: Mapping[str, Any], shapes: dict[Any, Any]
) -> RecordError | None:
    """What is wrong with the fields of one record that are not records."""
    kind = schema.kind_of[type(record)]
    for field in schema.kinds[kind].fields_of(type(record)):
        place = _Place(f".{field.name}", path)
        if not hasattr(record, field.name):
            return RecordError(f"{place} has no value.")
        value = getattr(record, field.name)
        if field.what == "many":
            try:
                listed(value)
            except Wrong:
                return RecordError(f"{place} is {_shown(value)}; its annotation asks for a list.")
            assert field.item is not None
            parts = [(field.item, x, _Place(f"[{i}]", place)) for i, x in enumerate(value)]
        else:
            parts = [(field, value, place)]
        for part, x, at in parts:
            if part.what == "one" or (part.what == "text" and field.name not in schema.coded):
                continue
            wrong = _value(part, x, at, codes.get(field.name), (kind, field.name), shapes)
            if wrong is not None:
                return wrong
    return None


def _value(
    field: Field, value: Any, place: _Place, codes: Any, key: Any, shapes: dict[Any, Any]
) -> RecordError | None:
    if value is None and not field.optional:
        return RecordError(f"{place} is None. Give it a value, or add `| None` to its annotation.")
    if value is None:
        return None
    try:
        taker(field, codes)([value])
    except Wrong:
        if field.what == "text":
            return RecordError(
                f"{place} is {_shown(value)}, for which `codes` {_of_code(codes, value)}."
            )
        wanted = "a number or an array" if field.dtype is None else f"one {field.dtype.name}"
        return RecordError(f"{place} is {_shown(value)}, which does not fit {wanted}.")
    if field.dtype is None:
        array = np.asarray(value)
        mine = (array.shape, array.dtype)
        theirs, first = shapes.setdefault(key, (mine, place))
        if theirs != mine:
            return RecordError(
                f"{place} is {_type(*mine)}, and {first} is {_type(*theirs)}. Arrays in one field have one shape and"
                " dtype."
            )
    return None


def _of_code(codes: Any, value: Any) -> str:
    try:
        return f"has {codes(value) if callable(codes) else codes[value]!r}, which is no int32"
    except (KeyError, TypeError):
        return "has no number"


def _type(shape: tuple[int, ...], dtype: Any) -> str:
    return f"{dtype.name}[{','.join(map(str, shape))}]"


def _shown(value: Any) -> str:
    if value is None:
        return "None"
    if is_record(type(value)):
        return f"a record {type(value).__name__}"
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "aval"):
        return _type(np.shape(value), np.asarray(value).dtype)
    return f"{value!r:.60} ({type(value).__name__})"


def _names(schema: Schema) -> str:
    return ", ".join(kind.name for kind in schema.kinds)
