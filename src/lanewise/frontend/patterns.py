"""`match` over plain values written as `if`, so that its subject may be traced.

Only patterns that compare (`case 0 | 1:`, `case Color.RED if x > 2:`, `case _:`, a bare name without a
guard) mean the same as `==` or `is`; a `match` with any other pattern stays as it is, plain Python.
"""

from __future__ import annotations

import ast


def match_as_if(node: ast.Match, subject: str) -> list[ast.stmt] | None:
    """The statements that stand for a `match`, or None where it has patterns that take things apart."""
    orelse: list[ast.stmt] = []
    for case in reversed(node.cases):
        body = list(case.body)
        pattern = case.pattern
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
            if pattern.name is not None:
                if case.guard is not None:
                    return None
                value = ast.Name(subject, ast.Load())
                body.insert(0, ast.Assign([ast.Name(pattern.name, ast.Store())], value))
            test = case.guard
        else:
            test = _test(pattern, subject)
            if test is None:
                return None
            if case.guard is not None:
                test = ast.BoolOp(ast.And(), [test, case.guard])
        if test is None:
            orelse = body
            continue
        orelse = [_locate(ast.If(test, body, orelse), pattern)]
    first = ast.Assign([ast.Name(subject, ast.Store())], node.subject)
    _locate(first, node.subject)
    for statement in orelse:
        _locate(statement, node.subject)
    return [first, *orelse]


def _test(pattern: ast.pattern, subject: str) -> ast.expr | None:
    read = ast.Name(subject, ast.Load())
    if isinstance(pattern, ast.MatchValue):
        return ast.Compare(read, [ast.Eq()], [pattern.value])
    if isinstance(pattern, ast.MatchSingleton):
        return ast.Compare(read, [ast.Is()], [ast.Constant(pattern.value)])
    if isinstance(pattern, ast.MatchOr):
        tests = [_test(part, subject) for part in pattern.patterns]
        found = [test for test in tests if test is not None]
        return ast.BoolOp(ast.Or(), list(found)) if len(found) == len(tests) else None
    return None


def _locate(node: ast.stmt, origin: ast.AST) -> ast.stmt:
    for child in ast.walk(node):
        if "lineno" in child._attributes and getattr(child, "lineno", None) is None:
            ast.copy_location(child, origin)
    return node
