"""Compile a function's tree as if it still stood in its place: inside its class, over the names it closes over."""

from __future__ import annotations
import __future__

import ast
from collections.abc import Iterable
from types import CodeType

from lanewise.frontend.expressions import locate, no_arguments, store
from lanewise.frontend.statements import function

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag


def compile_within(
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


def strip(arguments: ast.arguments) -> None:
    """Take defaults and annotations out: they were evaluated when the user's function was made."""
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
