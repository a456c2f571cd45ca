"""Python values that a program reads from outside: its globals and closure, read while it is traced and never again.

As with `jax.jit`, a trace keeps the values it met. A program whose `RATE = 0.1` at the top of the file becomes 0.2
later goes on with 0.1, silently; so each trace remembers what it met, and a later call that finds another value under
the name warns, once. That is checked at each call, so it compares identities and no more; only what is another object
is compared for equality.

The names that a program's own code reads are watched, and those that the plain functions and programs it names read
in turn, if they are in the same file. A list, dict or set of plain values is compared with a copy of it. Other
changes in place (an element of a NumPy array, an attribute of an object) are not seen.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lanewise.core.errors import CapturedValueWarning

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, dict, set)
MOST_COPIED = 64
_MISSING = object()
_HIDDEN = (__name__.split(".")[0], "jax")  # not the user's code


@dataclass(frozen=True)
class _Place:
    """Where a value is found: a name in a module's globals, or a cell of a closure."""

    name: str
    where: dict[str, Any] | types.CellType

    def read(self) -> Any:
        if isinstance(self.where, dict):
            return self.where.get(self.name, _MISSING)
        try:
            return self.where.cell_contents
        except ValueError:
            return _MISSING


class Places:
    """Everything that a function's code reads from outside."""

    def __init__(self, fun: Callable[..., Any], name: str) -> None:
        self.name = name
        self._fun = fun
        self._warned: set[str] = set()
        self._before: dict[str, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Places, (self._fun, self.name)

    @functools.cached_property
    def _found(self) -> tuple[_Place, ...]:
        return tuple(_places(_function(self._fun), set()))

    def begin(self) -> None:
        """A trace begins: what it changes itself (a list that counts traces) is none of what is watched."""
        for place in self._found:
            value = place.read()
            if type(value) in _CONTAINERS and _is_plain(value):
                self._before[place.name] = value.copy()

    def now(self) -> Captured:
        """What is there now, read after a trace: it may itself have changed something."""
        globals_, cells, copies = [], [], []
        for place in self._found:
            value = place.read()
            if isinstance(place.where, dict):
                globals_.append((place.where, place.name, value))
            else:
                cells.append((place, value))
            if type(value) in _CONTAINERS and _is_plain(value):
                if self._before.get(place.name, value) != value:
                    self._warned.add(place.name)
                copies.append((place.name, value, value.copy()))
        return Captured(self, globals_, cells, copies)

    def warn(self, name: str, old: Any, new: Any) -> None:
        """Warn that a value has changed, once for each name."""
        if name in self._warned:
            return
        self._warned.add(name)
        gone = new is _MISSING
        warnings.warn(
            f"`{name}` {'is gone' if gone else 'has changed'} since the program `{self.name}` was traced"
            f" ({_shown(old)} then{'' if gone else f', {_shown(new)} now'}), and the program goes on with what it was:"
            " values from outside are read at the first call only. Pass it as an argument, or make a new program.",
            CapturedValueWarning,
            stacklevel=_callers_level(),
        )


class Captured:
    """What a function's code read from outside when it was traced."""

    __slots__ = ("_cells", "_copies", "_globals", "_places")

    def __init__(
        self, places: Places, globals_: list[Any], cells: list[Any], copies: list[Any]
    ) -> None:
        self._places = places
        self._globals: list[tuple[dict[str, Any], str, Any]] = globals_
        self._cells: list[tuple[_Place, Any]] = cells
        self._copies: list[tuple[str, Any, Any]] = copies

    def check(self) -> None:
        """Warn if something is not what it was. This runs at each call of a program and does no more than it must."""
        for where, name, value in self._globals:
            if where.get(name, _MISSING) is not value:
                self._look_closer()
                return
        for place, value in self._cells:
            if place.read() is not value:
                self._look_closer()
                return
        for name, value, copy in self._copies:
            if value != copy:
                self._places.warn(name, copy, value)

    def _look_closer(self) -> None:
        """Something is another object: warn of what is not equal, and take what is for what it was."""
        for i, (where, name, value) in enumerate(self._globals):
            new = where.get(name, _MISSING)
            if _same(value, new):
                self._globals[i] = (where, name, new)
            else:
                self._places.warn(name, value, new)
        for i, (place, value) in enumerate(self._cells):
            new = place.read()
            if _same(value, new):
                self._cells[i] = (place, new)
            else:
                self._places.warn(place.name, value, new)


def _function(fun: Any) -> types.FunctionType | None:
    """The Python function behind a partial, a method or a program."""
    while not isinstance(fun, types.FunctionType):
        if isinstance(fun, functools.partial):
            fun = fun.func
        elif isinstance(fun, types.MethodType):
            fun = fun.__func__
        elif (inner := getattr(fun, "__dict__", {}).get("python")) is not fun:
            # A program's; what an object makes up when it is asked (a mock does) is none.
            fun = inner
        else:
            return None
    return fun


def _places(fun: types.FunctionType | None, seen: set[types.CodeType]) -> Iterator[_Place]:
    # Code that was given no module (by `exec`) has None for its name.
    if fun is None or fun.__code__ in seen or str(fun.__module__).split(".")[0] in _HIDDEN:
        return
    seen.add(fun.__code__)
    places = [_Place(name, fun.__globals__) for name in _global_names(fun.__code__)]
    places += [
        _Place(name, cell)
        for name, cell in zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True)
    ]
    for place in places:
        value = place.read()
        if value is _MISSING or isinstance(value, types.ModuleType):
            continue
        yield place
        inner = None if isinstance(value, type) else _function(value)
        if inner is not None and inner.__globals__ is fun.__globals__:
            yield from _places(inner, seen)


@functools.lru_cache(maxsize=512)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    names = [
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    ]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _global_names(constant)
    return tuple(dict.fromkeys(names))


def _is_plain(container: Any) -> bool:
    items = container.values() if isinstance(container, dict) else container
    return len(container) <= MOST_COPIED and all(type(item) in _PLAIN for item in items)


def _same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if new is _MISSING or type(old) is not type(new):
        return False
    before, after = (None if isinstance(x, type) else _function(x) for x in (old, new))
    if before is not None and after is not None:
        # A cell of a notebook that ran again has made the same function again.
        return before.__code__ == after.__code__ and getattr(old, "options", None) == getattr(
            new, "options", None
        )
    try:
        if isinstance(old, np.ndarray | jax.Array):
            return old.shape == new.shape and bool(np.array_equal(old, new, equal_nan=True))
        return bool(old == new)
    except Exception:  # an object's own `==` may do anything; another object is another value
        return False


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(value).__name__}"


def _callers_level() -> int:
    """How far up the first frame is that is the user's, as `warnings.warn` counts from its caller."""
    level, frame = 1, sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] in _HIDDEN:
        level, frame = level + 1, frame.f_back
    return level
