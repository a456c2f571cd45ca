"""A function as code, and the arrays that it closes over.

A function created at each call, as `lambda x: a * jnp.cos(x)` is, has the same code each time; what differs is what
it closes over. `taken_apart` gives its arrays, which are to be traced, and everything else about it as something that
can be looked up, so that the second of two such functions need not be traced again. `put_together` makes the function
for other arrays.

What counts as the same: code, what it closes over, and the globals that it and functions of its module read, all by
value. A variable that the function assigns itself is its own, and no part of that. An object that may hold anything,
such as an instance of a class that is no pytree, may change unseen: a function that closes over one is like no other.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

from lanewise.tracing.signature import Identity


@dataclass(frozen=True)
class _Array:
    """Stands for an array, or a number that is traced."""


@dataclass(frozen=True)
class _Fixed:
    """A value that is part of what a function is: `key` is the same for the same ones."""

    key: Hashable
    value: Any = field(compare=False)


@dataclass(frozen=True, eq=False)
class _Opaque:
    """A value that may change unseen: like no other, itself included."""

    value: Any


@dataclass(frozen=True)
class _Tree:
    tree: Any
    children: tuple[Hashable, ...]


@dataclass(frozen=True)
class _Function:
    code: CodeType
    globals: Identity
    names: tuple[str, str, str]
    cells: tuple[Hashable, ...]
    defaults: Hashable
    reads: Hashable


@dataclass(frozen=True)
class _Bound:
    """A method with its object, or a partial with its arguments."""

    kind: type
    parts: tuple[Hashable, ...]


_ARRAYS = (jax.Array, np.ndarray, np.generic)
# What does not change, and is equal if it is the same.
_PLAIN = (
    bool,
    int,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    type,
    ModuleType,
    BuiltinFunctionType,
    np.dtype,
    range,
)
# Functions that are objects of these are made once and do not change.
_LIBRARIES = frozenset(("jax", "jaxlib", "numpy", "lanewise", "functools"))
# A global array of NumPy's may be written to. Up to this many bytes it is compared; a larger one may change unseen.
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Apart:
    """A function taken apart. One that does not last is not to be looked up."""

    arrays: list[Any]
    spec: Hashable
    lasting: bool


def taken_apart(function: Callable[..., Any], *, numbers: bool = True) -> Apart:
    """The arrays that a function closes over, with `numbers` its floats too; and all the rest of it.

    >>> import jax.numpy as jnp
    >>> scaled = lambda by: lambda x: by * x
    >>> one, other = taken_apart(scaled(jnp.ones(2))), taken_apart(scaled(jnp.zeros(2)))
    >>> one.spec == other.spec, put_together(one.spec, other.arrays)(3.0).tolist()
    (True, [0.0, 0.0])
    """
    taking = _Taking(numbers)
    spec = taking.apart(function, ())
    return Apart(taking.arrays, spec, taking.lasting)


def put_together(spec: Hashable, arrays: Sequence[Any]) -> Callable[..., Any]:
    """The function that `taken_apart` took apart, with other arrays."""
    return _together(spec, iter(arrays))


class _Taking:
    """One function being taken apart."""

    def __init__(self, numbers: bool) -> None:
        self.numbers = numbers
        self.arrays: list[Any] = []
        self.lasting = True

    def apart(self, value: Any, around: tuple[int, ...]) -> Hashable:
        if isinstance(value, _ARRAYS) or (self.numbers and type(value) in (float, complex)):
            self.arrays.append(value)
            return _Array()
        if id(value) in around:
            return Identity(value)
        around = (*around, id(value))
        if isinstance(value, FunctionType):
            return self._function(value, around)
        if isinstance(value, MethodType):
            return self._bound(MethodType, (value.__func__, value.__self__), around)
        if isinstance(value, functools.partial):
            return self._bound(functools.partial, (value.func, value.args, value.keywords), around)
        leaves, tree = jax.tree.flatten(value, is_leaf=lambda leaf: leaf is not value)
        if len(leaves) == 1 and leaves[0] is value:
            return self._fixed(value)
        return _Tree(tree, tuple(self.apart(leaf, around) for leaf in leaves))

    def _bound(self, kind: type, parts: tuple[Any, ...], around: tuple[int, ...]) -> Hashable:
        return _Bound(kind, tuple(self.apart(part, around) for part in parts))

    def _function(self, value: FunctionType, around: tuple[int, ...]) -> Hashable:
        code, own = value.__code__, _assigned(value.__code__)
        cells = tuple(
            # As it is: the function's own to assign, or assigned later.
            Identity(cell)
            if name in own or _is_empty(cell)
            else self.apart(cell.cell_contents, around)
            for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True)
        )
        return _Function(
            code,
            Identity(value.__globals__),
            (value.__name__, value.__qualname__, value.__module__ or ""),
            cells,
            self.apart((value.__defaults__, value.__kwdefaults__), around),
            self._globals_read(code, value.__globals__, ()),
        )

    def _globals_read(
        self, code: CodeType, namespace: dict[str, Any], around: tuple[CodeType, ...]
    ) -> Hashable:
        """The globals that code reads, and those that functions of the same module read that it names."""
        found: list[Hashable] = []
        for name in _names(code):
            if name not in namespace:
                continue
            value = namespace[name]
            if isinstance(value, FunctionType):
                found.append((name, Identity(value)))
                inner = value.__code__
                if value.__globals__ is namespace and inner not in (*around, code):
                    found.append(self._globals_read(inner, namespace, (*around, code)))
            else:
                found.append((name, self._of_global(value)))
        return tuple(found)

    def _of_global(self, value: Any) -> Hashable:
        if isinstance(value, jax.Array):
            return Identity(value)
        if isinstance(value, np.ndarray | np.generic):
            if value.nbytes > _MOST_BYTES:
                return self._opaque(value)
            return value.shape, str(value.dtype), value.tobytes()
        if isinstance(value, list | tuple | dict):
            inside = value.items() if isinstance(value, dict) else value
            return type(value), tuple(self._of_global(each) for each in inside)
        return self._fixed(value)

    def _fixed(self, value: Any) -> Hashable:
        if type(value) in (float, complex):
            # Zeros of either sign are equal, and a NaN not even to itself.
            return _Fixed((type(value), repr(value)), value)
        if isinstance(value, _PLAIN):
            return _Fixed((type(value), value), value)
        if type(value).__module__.partition(".")[0] in _LIBRARIES:
            return Identity(value)
        return self._opaque(value)

    def _opaque(self, value: Any) -> Hashable:
        self.lasting = False
        return _Opaque(value)


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType) -> tuple[str, ...]:
    """The globals that code, and code inside it, reads and does not assign."""
    instructions = list(dis.get_instructions(code))
    reads = {i.argval for i in instructions if i.opname == "LOAD_GLOBAL"}
    assigns = {i.argval for i in instructions if i.opname == "STORE_GLOBAL"}
    inside = [_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)]
    return tuple(sorted((reads - assigns).union(*inside)))


@functools.lru_cache(maxsize=1024)
def _assigned(code: CodeType) -> frozenset[str]:
    """The variables around a function that it assigns, or functions inside it do."""
    assigns = ("STORE_DEREF", "DELETE_DEREF")
    own = {i.argval for i in dis.get_instructions(code) if i.opname in assigns}
    inside = [_assigned(inner) for inner in code.co_consts if isinstance(inner, CodeType)]
    return frozenset(own.union(*inside)) & frozenset(code.co_freevars)


def _is_empty(cell: CellType) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True


def _together(spec: Any, arrays: Iterator[Any]) -> Any:
    if isinstance(spec, _Array):
        return next(arrays)
    if isinstance(spec, Identity | _Fixed | _Opaque):
        return spec.value
    if isinstance(spec, _Tree):
        return jax.tree.unflatten(spec.tree, [_together(child, arrays) for child in spec.children])
    if isinstance(spec, _Function):
        closure = tuple(_cell(cell, arrays) for cell in spec.cells)
        name, qualname, module = spec.names
        function = FunctionType(spec.code, spec.globals.value, name, None, closure)
        function.__defaults__, function.__kwdefaults__ = _together(spec.defaults, arrays)
        function.__qualname__, function.__module__ = qualname, module
        return function
    assert isinstance(spec, _Bound)
    parts = [_together(part, arrays) for part in spec.parts]
    if spec.kind is MethodType:
        return MethodType(*parts)
    function, args, keywords = parts
    return functools.partial(function, *args, **keywords)


def _cell(spec: Any, arrays: Iterator[Any]) -> CellType:
    if isinstance(spec, Identity) and isinstance(spec.value, CellType):
        return spec.value
    return CellType(_together(spec, arrays))
