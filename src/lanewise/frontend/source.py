"""Find a function's own syntax tree in its file.

The whole file is parsed (once) and the function found by its line, so that lines and columns are the
user's own, whatever the indentation, and a lambda in the middle of a call is found as well.

Several lambdas may begin on one line, beside or inside each other. Code knows the columns of the text it was compiled
from, and of the lambdas that hold all of these the narrowest is its own: the code of one that holds another has the
making of the other in it, which lies outside the other's body. Where Python keeps no columns (`-X no_debug_ranges`), or
code without any text, each lambda is compiled and compared; two that are compiled to the same mean the same.
"""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType

from lanewise.core.errors import Location, UnsupportedSyntaxError
from lanewise.frontend.within import compile_within, strip

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Source:
    """A function's tree, a copy to work on, and the class around it (for private names)."""

    node: FunctionNode
    class_name: str | None


@dataclass(frozen=True)
class _File:
    text: str
    found: dict[int, list[tuple[FunctionNode, str | None]]]


_files: dict[str, _File] = {}


def _no_source(here: Location) -> UnsupportedSyntaxError:
    return UnsupportedSyntaxError(
        f"the source of `{here.function}` is not to be found, and a program is made from its source. "
        "Put the function into a file, or write it with `jax.lax` control flow and use "
        "`lanewise.lift`",
        here,
    )


def find(fun: FunctionType) -> Source:
    code = fun.__code__
    lines = linecache.getlines(code.co_filename, fun.__globals__)
    here = Location(code.co_filename, code.co_firstlineno, code.co_name)
    if not lines:
        raise _no_source(here)
    try:
        file = _parse(code.co_filename, "".join(lines))
    except SyntaxError as error:
        raise UnsupportedSyntaxError(
            f"the file of `{code.co_name}` no longer parses ({error.msg})", here
        ) from None
    candidates = [
        (node, owner)
        for node, owner in file.found.get(code.co_firstlineno, [])
        if _name_of(node) == code.co_name
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
    return Source(copy.deepcopy(node), owner)


def _parse(filename: str, text: str) -> _File:
    known = _files.get(filename)
    if known is not None and known.text == text:
        return known
    found: dict[int, list[tuple[FunctionNode, str | None]]] = {}

    def walk(node: ast.AST, owner: str | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                decorators = getattr(child, "decorator_list", [])
                line = min([child.lineno, *(d.lineno for d in decorators)])
                found.setdefault(line, []).append((child, owner))
            walk(child, child.name if isinstance(child, ast.ClassDef) else owner)

    walk(ast.parse(text), None)
    _files[filename] = _File(text, found)
    return _files[filename]


def _name_of(node: FunctionNode) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


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


def _holds(node: FunctionNode, code: CodeType) -> bool:
    """Whether all of the code's text lies inside the node."""
    start, end = _span(node)
    return all(start <= first and last <= end for first, last in _texts(code))


def _narrowest(
    candidates: list[tuple[FunctionNode, str | None]],
) -> list[tuple[FunctionNode, str | None]]:
    """Those in which no other one lies."""

    def within(inner: FunctionNode, outer: FunctionNode) -> bool:
        a, b = _span(inner), _span(outer)
        return inner is not outer and b[0] <= a[0] and a[1] <= b[1]

    return [p for p in candidates if not any(within(q[0], p[0]) for q in candidates)]


def _compiles_to(node: FunctionNode, owner: str | None, code: CodeType) -> bool:
    """Whether the node is compiled to this code, wherever it stands."""
    node = copy.deepcopy(node)
    strip(node.args)
    if isinstance(node, ast.Lambda):
        statement: ast.stmt = ast.copy_location(ast.Expr(node), node)
    else:
        node.decorator_list, node.returns = [], None
        statement = node
    return _same(code, compile_within(statement, owner, code.co_freevars, code))


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
