"""Python source to traceable code: `convert`.

A function's source is parsed, its control flow rewritten into calls of a run-time (`statements.py`), and
compiled again under the user's file name and lines, over the same globals and the same closure cells: so
late binding, recursion and tracebacks are as they were. Called under a JAX trace, the new function emits
`lax.cond`, `lax.while_loop` and `lax.scan` where a condition is traced, and is plain Python elsewhere.

    convert:  source -> syntax (refuse) -> exits, patterns (structure) -> names (liveness)
              -> statements, expressions (emit)
    run time: control, operators, mutation -> branch, loop -> values; iterate (what a `for` runs
              over), site (who is asking)
"""

from __future__ import annotations

import ast
import inspect
import os
import types
from collections.abc import Callable
from typing import Any

import jax

from lanewise.core.errors import Location, UnsupportedSyntaxError
from lanewise.frontend import source
from lanewise.frontend.control import Runtime
from lanewise.frontend.expressions import Expressions, Unit, locate
from lanewise.frontend.statements import convert_function
from lanewise.frontend.within import compile_within, strip

_JAX = os.path.dirname(jax.__file__) + os.sep

_Key = tuple[str, types.CodeType]
_converted: dict[_Key, tuple[types.CodeType, Runtime]] = {}
_ours: set[_Key] = set()  # code that is converted already, nested functions among it


def convert(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with its control flow open to tracing.

    >>> import jax
    >>> from lanewise.frontend.python import convert
    >>> def halve(n):
    ...     while n > 1:
    ...         n = n // 2
    ...     return n
    >>> int(jax.jit(convert(halve))(40))
    1
    """
    if isinstance(fun, types.MethodType):
        return types.MethodType(convert(fun.__func__), fun.__self__)
    if not isinstance(fun, types.FunctionType):
        raise UnsupportedSyntaxError(
            f"{fun!r} is no Python function, so there is no source to make a program from. Give the "
            "function it wraps, or use `lanewise.lift`"
        )
    code = fun.__code__
    if code.co_filename.startswith(_JAX):
        raise UnsupportedSyntaxError(
            f"`{fun.__name__}` is what a transformation of JAX made, and its source is JAX's. Use "
            "`lanewise.lift`, or make a program of the function that is transformed"
        )
    key = (code.co_filename, code)
    if key in _ours:
        return fun
    known = _converted.get(key)
    if known is None:
        known = _converted[key] = _compile(fun)
    return _rebuild(fun, *known)


def location_of(fun: Callable[..., Any]) -> Location | None:
    """Where a function begins, for messages."""
    code = getattr(inspect.unwrap(fun), "__code__", None)
    if code is None:
        return None
    return Location(code.co_filename, code.co_firstlineno, code.co_name)


def _rebuild(fun: types.FunctionType, code: types.CodeType, runtime: Runtime) -> types.FunctionType:
    cells = dict(zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True))
    cells["_lw"] = types.CellType(runtime)
    closure = tuple(cells[name] for name in code.co_freevars)
    new = types.FunctionType(code, fun.__globals__, fun.__name__, fun.__defaults__, closure)
    new.__kwdefaults__ = fun.__kwdefaults__
    new.__doc__, new.__module__, new.__qualname__ = fun.__doc__, fun.__module__, fun.__qualname__
    return new


def _compile(fun: types.FunctionType) -> tuple[types.CodeType, Runtime]:
    code = fun.__code__
    found = source.find(fun)
    unit = Unit(code.co_filename)
    node = found.node
    if isinstance(node, ast.AsyncFunctionDef):
        raise UnsupportedSyntaxError(
            "a program cannot be `async`. Make it a plain function and await its answer outside",
            Location(code.co_filename, node.lineno, node.name),
        )
    if isinstance(node, ast.Lambda):
        inner: ast.stmt = _convert_lambda(node, unit)
    else:
        node.decorator_list = []
        strip(node.args)
        node.returns = None
        if getattr(node, "type_params", None):
            node.type_params = []  # type: ignore[attr-defined]
        inner = convert_function(node, unit, frozenset(), "__class__" in code.co_freevars)
    names = {*code.co_freevars, "_lw"}
    made = compile_within(inner, found.class_name, names, code)
    # Lines are kept as distances from the first one, which is that of the `def` here, not of a decorator above it.
    made = _rename(made, code.co_name).replace(co_name=code.co_name, co_qualname=code.co_qualname)
    _claim(made)
    return made, Runtime([site for site in unit.sites if site is not None])


def _convert_lambda(node: ast.Lambda, unit: Unit) -> ast.stmt:
    strip(node.args)
    return locate(ast.Expr(Expressions(unit, "<lambda>").visit(node)), node)


def _rename(code: types.CodeType, name: str) -> types.CodeType:
    """Blocks of a function bear its name in tracebacks."""
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            ours = constant.co_name.startswith("_lw_") or constant.co_name == "<lambda>"
            constant = _rename(constant, name if ours else constant.co_name)
            if constant.co_name.startswith("_lw_"):
                constant = constant.replace(co_name=name)
        constants.append(constant)
    return code.replace(co_consts=tuple(constants))


def _claim(code: types.CodeType) -> None:
    _ours.add((code.co_filename, code))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _claim(constant)
