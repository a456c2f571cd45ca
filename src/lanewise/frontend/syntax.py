"""Python that a program cannot hold, refused with what to write instead."""

from __future__ import annotations

import ast

from lanewise.core.errors import Location, UnsupportedSyntaxError
from lanewise.frontend.names import own_nodes

_ADVICE: dict[type[ast.AST], str] = {
    ast.Yield: "a generator. Collect the values in an array, or return them",
    ast.YieldFrom: "a generator. Collect the values in an array, or return them",
    ast.Await: "`await`. A program runs from start to end by itself; await its answer outside",
    ast.AsyncFor: "`async for`. Use `for`",
    ast.AsyncWith: "`async with`. Use it around the call of the program",
    ast.Global: "`global`. Take the value as an argument, and return the new one",
    ast.Nonlocal: "`nonlocal`. Take the value as an argument, and return the new one",
}


def refuse_unsupported(node: ast.FunctionDef | ast.AsyncFunctionDef, filename: str) -> None:
    """Raise at the first statement of a function that no program can hold."""
    if isinstance(node, ast.AsyncFunctionDef):
        raise UnsupportedSyntaxError(
            "a program cannot be `async`. A program runs from start to end by itself; "
            "make it a plain function and await its answer outside",
            Location(filename, node.lineno, node.name),
        )
    for statement in node.body:
        for child in own_nodes(statement):
            advice = _ADVICE.get(type(child))
            if isinstance(child, ast.comprehension) and child.is_async:
                advice = _ADVICE[ast.AsyncFor]
            if advice is not None:
                line = getattr(child, "lineno", node.lineno)
                raise UnsupportedSyntaxError(
                    f"a program cannot hold {advice}", Location(filename, line, node.name)
                )
