"""The quick way to record a call: a function made for calls like one that was recorded.

Recording has to cost a microsecond, and a loop over arguments that asks what each of them is costs twice that. So
once a call was recorded, a function is written for its kind: it checks that each argument is the same shared array, a
lazy value of the same type, or a number or NumPy array of the same type, and appends what is to be appended. It gives
None where one is not, and the call is recorded the slow way. An op keeps such functions in each recorder, for the
last kinds it met.

Dictionaries, lists and tuples are looked into, at each call, as they may have changed. A module of weights that cannot
change (of Equinox, or a frozen data class) is compared as one object. Other classes are recorded the slow way.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from lanewise.dynamic.record import Kind, Recorder, type_number

_SHARED, _LAZY, _NUMBER, _ARRAY, _INSIDE = "shared", "lazy", "number", "array", "inside"
_NUMBERS = (bool, int, float, complex, np.generic)
_CONSTANTS = (str, bytes, type(None))


@dataclass
class _Seen:
    """What a call was made of. `roles` are hashable, and decide the function's text; `known` are its constants."""

    recorder: Recorder
    lazy: type
    types: Any  # the types of rows that are left
    roles: list[Any] = field(default_factory=list)
    known: list[Any] = field(default_factory=list)
    columns: list[Any] = field(default_factory=list)

    def add(self, value: Any) -> bool:
        """See an argument, or a part of one; False where the slow way has to."""
        if value.__class__ is self.lazy:
            next(self.types)
            return self._role(_LAZY, value._of)
        if isinstance(value, jax.Array) or isinstance(value, _CONSTANTS):
            # Strings are compared by `is`: most are one object, and the slow way serves those that are not.
            return self._role(_SHARED, value)
        if isinstance(value, _NUMBERS):
            self._column()
            return self._role(_NUMBER, value.__class__)
        if value.__class__ is np.ndarray:
            self._column()
            return self._role(_ARRAY, (value.shape, value.dtype))
        if value.__class__ is dict:
            # In the order in which JAX looks into it.
            try:
                keys = sorted(value)
            except TypeError:
                return False
            self._role((_INSIDE, dict, tuple(range(len(keys)))), tuple(keys))
            return all(self.add(value[key]) for key in keys)
        if value.__class__ is list or value.__class__ is tuple:
            self._role((_INSIDE, value.__class__, tuple(range(len(value)))), None)
            return all(map(self.add, value))
        return _settled(value) and self._role(_SHARED, value)

    def _role(self, role: Any, known: Any) -> bool:
        self.roles.append(role)
        self.known.append(known)
        return True

    def _column(self) -> None:
        self.columns.append(self.recorder.columns[type_number(*next(self.types))])


def _settled(value: Any) -> bool:
    """Whether this is an object of shared arrays and constants alone that cannot change."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    if any(isinstance(leaf, (*_NUMBERS, np.ndarray)) for leaf in jax.tree.leaves(value)):
        return False
    equinox = sys.modules.get("equinox")
    module = equinox is not None and isinstance(value, equinox.Module)
    frozen = module or type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]
    return frozen and all(_fixed(getattr(value, f.name, None)) for f in dataclasses.fields(value))


def _fixed(part: Any) -> bool:
    if part.__class__ is tuple:
        return all(map(_fixed, part))
    if isinstance(part, (jax.Array, *_CONSTANTS, *_NUMBERS)):
        return True
    return _settled(part) if dataclasses.is_dataclass(part) else callable(part)


def quick_way(
    recorder: Recorder,
    kind: Kind,
    args: Sequence[Any],
    lazy: type,
) -> Callable[..., Any] | None:
    """The function for calls like this one, or None where some argument is for the slow way."""
    seen = _Seen(recorder, lazy, iter(kind.piece.rows))
    ends = []
    for a in args:
        if not seen.add(a):
            return None
        ends.append(len(seen.roles))
    tree = kind.tree
    many = 0 if tree is None else len(kind.results)
    make = _factory(tuple(seen.roles), tuple(ends), many)
    return make(
        recorder,
        lazy,
        kind.number,
        seen.known,
        seen.columns,
        [recorder.tag(k) for k in kind.results],
        tuple if tree == "tuple" else getattr(tree, "unflatten", None),
    )


@dataclass
class _Text:
    """The parts of a quick function."""

    checks: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    puts: list[str] = field(default_factory=list)

    def add(self, roles: Sequence[Any], i: int, a: str) -> int:
        """What role i says of the expression `a`; gives the number of the next role."""
        role = roles[i]
        if isinstance(role, tuple):
            _, cls, items = role
            self.checks.append(f"{a}.__class__ is not {cls.__name__} or len({a}) != {len(items)}")
            i += 1
            key = i - 1
            for j in items:
                at = f"{a}.get(k{key}[{j}])" if cls is dict else f"{a}[{j}]"
                name = f"b{i}"
                # Gives the part a name, and never ends the chain of `or`.
                self.checks.append(f"({name} := {at}) is {name} and False")
                i = self.add(roles, i, name)
            return i
        column = len(self.puts)
        if role == _LAZY:
            self.checks.append(f"{a}.__class__ is not Lazy or {a}._of is not k{i}")
            self.rows.append(f"{a}._number")
        elif role == _SHARED:
            self.checks.append(f"{a} is not k{i}")
        else:
            if role == _NUMBER:
                self.checks.append(f"{a}.__class__ is not k{i}")
                self.puts.append(f"c{column}.append({a})")
            else:
                self.checks.append(
                    f"{a}.__class__ is not ndarray or ({a}.shape, {a}.dtype) != k{i}"
                )
                # The caller may write into its array before what is recorded runs.
                self.puts.append(f"c{column}.append({a}.copy())")
            self.rows.append(f"~len(c{column})")
        return i + 1


@functools.lru_cache(maxsize=512)
def _factory(
    roles: tuple[Any, ...], ends: tuple[int, ...], many: int
) -> Callable[..., Callable[..., Any]]:
    """Written for arguments of these roles, and this many results (0: one, not in a sequence)."""
    text = _Text()
    for i, begin in enumerate((0, *ends[:-1]) if ends else ()):
        text.add(roles, begin, f"a{i}")
    taken = _one_column_each(text.rows, text.puts)
    results = [f"Lazy(r{j}, n + {j})" for j in range(many)] or ["Lazy(r0, n)"]
    made = "(" + ", ".join(results) + ",)" if many else results[0]
    lines = [
        "def make(recorder, Lazy, number, known, columns, tags, build):",
        "    call, extend = recorder.calls.append, recorder.operands.extend",
        *(f"    k{i} = known[{i}]" for i in range(len(roles))),
        *(f"    c{j} = columns[{j}]" for j in range(len(text.puts))),
        *(f"    r{j} = tags[{j}]" for j in range(max(many, 1))),
        f"    def quick({', '.join(f'a{i}' for i in range(len(ends)))}):",
        f"        if {' or '.join(text.checks) or 'False'}:",
        "            return None",
        *(f"        {line}" for line in taken),
        "        call(number)",
        "        n = recorder.count",
        f"        recorder.count = n + {max(many, 1)}",
        f"        return {made}" if many == 0 else f"        made = {made}",
        *(["        return made if build is tuple else build(made)"] if many else []),
        "    return quick",
    ]
    scope: dict[str, Any] = {"ndarray": np.ndarray}
    exec("\n".join(lines), scope)
    return scope["make"]


def _one_column_each(rows: Sequence[str], puts: Sequence[str]) -> list[str]:
    """Statements that append operands. Two numbers of one class go to one column, one after the other."""
    if not puts:
        return [f"extend(({', '.join(rows)},))"] if rows else []
    lines, put = [], iter(puts)
    for row in rows:
        lines.append(f"extend(({row},))")
        if row.startswith("~"):
            lines.append(next(put))
    return lines
