"""Python source to traceable code: `convert`.

A function's source is parsed, its control flow rewritten into calls of a run-time (`statements.py`), and
compiled again under the user's file name and lines, over the same globals and the same closure cells: so
late binding, recursion and tracebacks are as they were. Called under a JAX trace, the new function emits
`lax.cond`, `lax.while_loop` and `lax.scan` where a condition is traced, and is plain Python elsewhere.

    convert:  exits, matching (structure) -> names (liveness) -> statements, expressions (emit)
    run time: control -> branch, loop -> values; iterate (what a `for` runs over), messages (of `assert`)

The whole file is parsed (once) and the function found by its line, so that lines and columns are the
user's own, whatever the indentation, and a lambda in the middle of a call is found too.

Several lambdas may begin on one line, beside or inside each other. Code knows the columns of the text it was compiled
from, and of the lambdas that hold all of these the narrowest is its own: the code of one that holds another also
makes the other, with text outside the other's body. Where Python keeps no columns (`-X no_debug_ranges`), or
code without any text, each lambda is compiled and compared; two that are compiled to the same mean the same.
"""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import inspect
import linecache
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import jax

from lanewise.core.errors import Location, UnsupportedSyntaxError
from lanewise.frontend.control import Runtime
from lanewise.frontend.expressions import Expressions, Unit, locate, no_arguments, store
from lanewise.frontend.statements import convert_function, function

_JAX = os.path.dirname(jax.__file__) + os.sep

_Key = tuple[str, CodeType]
_converted: dict[_Key, tuple[CodeType, Runtime]] = {}
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
    if isinstance(fun, MethodType):
        return MethodType(convert(fun.__func__), fun.__self__)
    if not isinstance(fun, FunctionType):
        raise UnsupportedSyntaxError(
            f"{fun!r} is not a Python function, so there is no source to make a program from. Give the "
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


def _rebuild(fun: FunctionType, code: CodeType, runtime: Runtime) -> FunctionType:
    cells = dict(zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True))
    cells["_lw"] = CellType(runtime)
    closure = tuple(cells[name] for name in code.co_freevars)
    new = FunctionType(code, fun.__globals__, fun.__name__, fun.__defaults__, closure)
    new.__kwdefaults__ = fun.__kwdefaults__
    new.__doc__, new.__module__, new.__qualname__ = fun.__doc__, fun.__module__, fun.__qualname__
    return new


def _compile(fun: FunctionType) -> tuple[CodeType, Runtime]:
    code = fun.__code__
    node, owner = _find(fun)
    unit = Unit(code.co_filename)
    if isinstance(node, ast.AsyncFunctionDef):
        raise UnsupportedSyntaxError(
            "a program cannot be `async`. Make it a plain function and await its answer outside",
            Location(code.co_filename, node.lineno, node.name),
        )
    _strip(node)
    if isinstance(node, ast.Lambda):
        inner = locate(ast.Expr(Expressions(unit, "<lambda>").visit(node)), node)
    else:
        inner = convert_function(node, unit, frozenset(), "__class__" in code.co_freevars)
    made = _compile_within(inner, owner, {*code.co_freevars, "_lw"}, code)
    # Lines are kept as distances from the first one, which is that of the `def` here, not of a decorator above it.
    made = _rename(made, code.co_name).replace(co_name=code.co_name, co_qualname=code.co_qualname)
    _claim(made)
    return made, Runtime([construct for construct in unit.constructs if construct is not None])


def _rename(code: CodeType, name: str) -> CodeType:
    """Blocks of a function bear its name in tracebacks."""
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            ours = constant.co_name.startswith("_lw_") or constant.co_name == "<lambda>"
            constant = _rename(constant, name if ours else constant.co_name)
            if constant.co_name.startswith("_lw_"):
                constant = constant.replace(co_name=name)
        constants.append(constant)
    return code.replace(co_consts=tuple(constants))


def _claim(code: CodeType) -> None:
    _ours.add((code.co_filename, code))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _claim(constant)


# -- a function's own tree in its file ---------------------------------------------------------------

_Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Found = tuple[_Node, str | None]  # a function's tree, and the class around it (for private names)
_files: dict[str, tuple[str, dict[int, list[_Found]]]] = {}  # the text, and its functions by line


def _no_source(here: Location) -> UnsupportedSyntaxError:
    return UnsupportedSyntaxError(
        f"the source of `{here.function}` cannot be found, and a program is made from its source. "
        "Put the function into a file, or write it with `jax.lax` control flow and use "
        "`lanewise.lift`",
        here,
    )


def _find(fun: FunctionType) -> _Found:
    """A function's own tree, a copy to work on."""
    code = fun.__code__
    lines = linecache.getlines(code.co_filename, fun.__globals__)
    here = Location(code.co_filename, code.co_firstlineno, code.co_name)
    if not lines:
        raise _no_source(here)
    try:
        functions = _parse(code.co_filename, "".join(lines))
    except SyntaxError as error:
        raise UnsupportedSyntaxError(
            f"the file of `{code.co_name}` no longer parses ({error.msg})", here
        ) from None
    candidates = [
        (node, owner)
        for node, owner in functions.get(code.co_firstlineno, [])
        if getattr(node, "name", "<lambda>") == code.co_name
    ]
    if len(candidates) > 1 and list(_texts(code)):
        candidates = _narrowest([pair for pair in candidates if _holds(pair[0], code)])
    if len(candidates) > 1:
        candidates = [pair for pair in candidates if _compiles_to(*pair, code)][:1]
    if not candidates and code.co_filename == "<string>":
        # Since 3.13 Python keeps the text of `python -c` under this name; what `exec` ran has the same.
        raise _no_source(here)
    if len(candidates) != 1:
        raise UnsupportedSyntaxError(
            f"the source of `{code.co_name}` is not at its line any more, or is not the only one there. Give"
            " the function a line of its own, or use `lanewise.lift`",
            here,
        )
    node, owner = candidates[0]
    return copy.deepcopy(node), owner


def _parse(filename: str, text: str) -> dict[int, list[_Found]]:
    known = _files.get(filename)
    if known is not None and known[0] == text:
        return known[1]
    found: dict[int, list[_Found]] = {}

    def walk(node: ast.AST, owner: str | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                decorators = getattr(child, "decorator_list", [])
                line = min([child.lineno, *(d.lineno for d in decorators)])
                found.setdefault(line, []).append((child, owner))
            walk(child, child.name if isinstance(child, ast.ClassDef) else owner)

    walk(ast.parse(text), None)
    _files[filename] = text, found
    return found


def _span(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
    body = node.body if isinstance(node, ast.Lambda) else node
    return (
        (body.lineno, body.col_offset),  # type: ignore[attr-defined]
        (body.end_lineno or 0, body.end_col_offset or 0),  # type: ignore[attr-defined]
    )


def _texts(code: CodeType) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where the text of each instruction begins and ends, of those that have one."""
    for line, end_line, column, end_column in code.co_positions():
        if line is None or column is None or end_line is None or end_column is None:
            continue
        if (line, column) != (end_line, end_column):
            yield (line, column), (end_line, end_column)


def _holds(node: _Node, code: CodeType) -> bool:
    """Whether all of the code's text is inside the node."""
    start, end = _span(node)
    return all(start <= first and last <= end for first, last in _texts(code))


def _narrowest(candidates: list[_Found]) -> list[_Found]:
    """Those that contain no other."""

    def within(inner: _Node, outer: _Node) -> bool:
        a, b = _span(inner), _span(outer)
        return inner is not outer and b[0] <= a[0] and a[1] <= b[1]

    return [p for p in candidates if not any(within(q[0], p[0]) for q in candidates)]


def _compiles_to(node: _Node, owner: str | None, code: CodeType) -> bool:
    """Whether the node is compiled to this code, wherever it stands."""
    node = copy.deepcopy(node)
    _strip(node)
    statement = ast.copy_location(ast.Expr(node), node) if isinstance(node, ast.Lambda) else node
    return _same(code, _compile_within(statement, owner, code.co_freevars, code))


def _same(a: CodeType, b: CodeType) -> bool:
    """Whether two codes do the same, lines and columns aside."""
    facts = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount")
    if any(getattr(a, fact) != getattr(b, fact) for fact in facts):
        return False
    if (a.co_flags ^ b.co_flags) & ~inspect.CO_NESTED:
        return False
    return len(a.co_consts) == len(b.co_consts) and all(map(_alike, a.co_consts, b.co_consts))


def _alike(a: object, b: object) -> bool:
    if isinstance(a, CodeType) and isinstance(b, CodeType):
        return _same(a, b)
    # -0.0 and 0.0, 1 and True are equal, and not the same.
    return type(a) is type(b) and a == b and (isinstance(a, frozenset) or repr(a) == repr(b))


# -- a tree compiled as if it still stood in its place: inside its class, over the names it closes over

_FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


def _compile_within(
    inner: ast.stmt, owner: str | None, closed_over: Iterable[str], code: CodeType
) -> CodeType:
    """The code of the function that `inner` makes, a statement; `code` is that of the user's own function."""
    origin = inner
    if owner is not None:
        around = ast.ClassDef(owner, [], [], [inner], [])
        if "type_params" in ast.ClassDef._fields:
            around.type_params = []  # type: ignore[attr-defined]
        inner = around
    names = sorted(closed_over)
    # What is defined in the factory must not hide a global of that name.
    outermost = code.co_name if owner is None else owner
    body: list[ast.stmt] = []
    if outermost.isidentifier() and outermost not in names:
        body.append(ast.Global([outermost]))
    if names:
        body.append(ast.Assign([store(name) for name in names], ast.Constant(None)))
    factory = locate(function("_lw_factory", no_arguments(), [*body, inner]), origin)
    module = ast.fix_missing_locations(ast.Module([factory], []))
    flags = code.co_flags & _FUTURE
    compiled = compile(module, code.co_filename, "exec", flags=flags, dont_inherit=True)
    for name in ("_lw_factory", *([owner] if owner is not None else []), code.co_name):
        compiled = _descend(compiled, name)
    return compiled


def _strip(node: _Node) -> None:
    """Remove decorators, defaults and annotations: they were evaluated when the user's function was made."""
    if not isinstance(node, ast.Lambda):
        node.decorator_list, node.returns = [], None
        if getattr(node, "type_params", None):
            node.type_params = []  # type: ignore[attr-defined]
    arguments = node.args
    arguments.defaults = [locate(ast.Constant(None), d) for d in arguments.defaults]
    arguments.kw_defaults = [
        None if d is None else locate(ast.Constant(None), d) for d in arguments.kw_defaults
    ]
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for argument in (*every, arguments.vararg, arguments.kwarg):
        if argument is not None:
            argument.annotation = None


def _descend(code: CodeType, name: str) -> CodeType:
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and constant.co_name == name:
            return constant
    raise AssertionError(f"{name} was not compiled")
