"""Find a function's own syntax tree in its file.

The whole file is parsed (once) and the function found by its line, so that lines and columns are the
user's own, whatever the indentation, and a lambda in the middle of a call is found as well.
"""

from __future__ import annotations

import ast
import copy
import linecache
from dataclasses import dataclass
from types import CodeType, FunctionType

from lanewise.errors import Location, UnsupportedSyntaxError

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


def find(fun: FunctionType) -> Source:
    code = fun.__code__
    lines = linecache.getlines(code.co_filename, fun.__globals__)
    here = Location(code.co_filename, code.co_firstlineno, code.co_name)
    if not lines:
        raise UnsupportedSyntaxError(
            f"the source of `{code.co_name}` is not to be found, and a program is made from its source. "
            "Put the function into a file, or write it with `jax.lax` control flow and use "
            "`lanewise.lift`",
            here,
        )
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
    if len(candidates) > 1:
        candidates = [pair for pair in candidates if _holds(pair[0], code)]
        widest = [p for p in candidates if not any(_within(p[0], q[0]) for q in candidates)]
        candidates = _by_arguments(candidates, code) if len(widest) != 1 else widest
    if len(candidates) != 1:
        raise UnsupportedSyntaxError(
            f"the source of `{code.co_name}` "
            + (
                "is not at its line any more"
                if not candidates
                else "cannot be told apart on its line"
            )
            + ". Give the function a line of its own, or use `lanewise.lift`",
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


def _holds(node: FunctionNode, code: CodeType) -> bool:
    """Whether all of the code's positions lie inside the node."""
    start, end = _span(node)
    for line, end_line, column, end_column in code.co_positions():
        if line is None or column is None or end_line is None or end_column is None:
            continue
        if (end_line, end_column) == (line, column):  # no text of its own
            continue
        if not (start <= (line, column) and (end_line, end_column) <= end):
            return False
    return True


def _within(inner: FunctionNode, outer: FunctionNode) -> bool:
    a, b = _span(inner), _span(outer)
    return inner is not outer and b[0] <= a[0] and a[1] <= b[1]


def _by_arguments(
    candidates: list[tuple[FunctionNode, str | None]], code: CodeType
) -> list[tuple[FunctionNode, str | None]]:
    wanted = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [
        pair
        for pair in candidates
        if tuple(
            arg.arg
            for arg in (*pair[0].args.posonlyargs, *pair[0].args.args, *pair[0].args.kwonlyargs)
        )
        == wanted
    ]
