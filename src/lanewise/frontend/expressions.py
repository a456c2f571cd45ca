"""Expressions rewritten: `and`, `or`, `not`, `a if t else b`, `a < b < c` and reads of variables that
may be undefined become calls of the run-time, with what Python would not compute yet wrapped in a lambda."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, TypeVar

from lanewise.core.errors import Location, UnsupportedSyntaxError
from lanewise.frontend.exits import own_nodes
from lanewise.frontend.names import Names, parameters
from lanewise.frontend.values import Construct

_Node = TypeVar("_Node", bound=ast.AST)
_BUILTINS = frozenset({"max", "min", "any", "all", "int", "float", "bool", "len", "isinstance"})
_ITERABLES = frozenset({"range", "zip", "enumerate", "reversed"})


class Unit:
    """What is being compiled together: a function and all that is nested in it."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.constructs: list[Construct | None] = []
        self.count = 0

    def new_name(self, stem: str) -> str:
        self.count += 1
        return f"_lw_{stem}{self.count}"

    def reserve(self) -> int:
        self.constructs.append(None)
        return len(self.constructs) - 1


def load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def store(name: str) -> ast.Name:
    return ast.Name(name, ast.Store())


def runtime_call(method: str, *args: ast.expr, origin: ast.AST) -> ast.Call:
    """`_lw.method(...)`, at the place of `origin`."""
    func = ast.Attribute(load("_lw"), method, ast.Load())
    return locate(ast.Call(func, list(args), []), origin)


def locate(node: _Node, origin: ast.AST) -> _Node:
    """Give a new node, and what is new below it, the place of the code it stands for.

    A statement with a body stands at its first line: a call that spans many is reported at its last.
    """
    origin = _header(origin)
    for child in ast.walk(node):
        if "lineno" in child._attributes and getattr(child, "lineno", None) is None:
            ast.copy_location(child, origin)
    return node


def _header(origin: ast.AST) -> ast.AST:
    if not isinstance(getattr(origin, "body", None), list) or not hasattr(origin, "lineno"):
        return origin
    line, column = origin.lineno, origin.col_offset  # type: ignore[attr-defined]
    condition = getattr(origin, "test", None) or getattr(origin, "iter", None)
    end = column + 1
    if condition is not None and condition.end_lineno == line:
        end = condition.end_col_offset
    return ast.Pass(lineno=line, col_offset=column, end_lineno=line, end_col_offset=end)


def no_arguments() -> ast.arguments:
    return ast.arguments(
        posonlyargs=[], args=[], vararg=None, kwonlyargs=[], kw_defaults=[], kwarg=None, defaults=[]
    )


class Expressions(ast.NodeTransformer):
    """Rewrites expressions of one function; the statement emitter keeps `definite` up to date."""

    def __init__(self, unit: Unit, function: str) -> None:
        self.unit = unit
        self.function = function
        self.maybe: Names = frozenset()  # variables that may hold an `Undefined`
        self.definite: Names = frozenset()  # those of them that do not, here
        self.inside: tuple[tuple[str, int], ...] = ()
        self.first_parameter: str | None = None
        self.setters: dict[str, str] = {}
        self.thunks = 0
        self.nested: Callable[[ast.AST], ast.AST] | None = None

    def location(self, node: ast.AST) -> Location:
        return Location(self.unit.filename, getattr(node, "lineno", 0), self.function)

    def construct(self, node: ast.AST, what: str, **more: Any) -> ast.Constant:
        """Note an expression; returns its number as code."""
        inside = tuple(each for each in self.inside if each[0] == "try")
        names = more.pop("names", ("",))
        self.unit.constructs.append(
            Construct(self.location(node), what, names, len(names), inside=inside, **more)
        )
        return ast.Constant(len(self.unit.constructs) - 1)

    def thunk(
        self, node: ast.expr, visit: Callable[[ast.expr], ast.expr] | None = None
    ) -> ast.expr:
        self.thunks += 1
        try:
            body = (visit or self.expression)(node)
        finally:
            self.thunks -= 1
        return locate(ast.Lambda(no_arguments(), body), node)

    def expression(self, node: ast.expr) -> ast.expr:
        return self.visit(node)

    def test(self, node: ast.expr) -> ast.expr:
        """An expression of which only the truth is wanted."""
        if isinstance(node, ast.BoolOp):
            return self._bool_op(node, self._truth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            k = self.construct(node, "`not`")
            return runtime_call("not_", k, self.test(node.operand), origin=node)
        return self.expression(node)

    def _truth(self, node: ast.expr) -> ast.expr:
        return runtime_call(
            "truth", self.construct(node, "condition"), self.test(node), origin=node
        )

    def _bool_op(self, node: ast.BoolOp, operand: Callable[[ast.expr], ast.expr]) -> ast.expr:
        word = "and" if isinstance(node.op, ast.And) else "or"
        k = self.construct(node, f"`{word}`", **self._binds(*node.values[1:]))
        first = operand(node.values[0])
        rest = [self.thunk(value, operand) for value in node.values[1:]]
        return runtime_call(word + "_", k, first, *rest, origin=node)

    def _binds(self, *lazy: ast.expr) -> dict[str, Any]:
        """The `:=` in operands that may not be computed: they cannot be staged."""
        found = tuple(
            (child.target.id, child.lineno)
            for part in lazy
            for child in own_nodes(part)
            if isinstance(child, ast.NamedExpr) and isinstance(child.target, ast.Name)
        )
        return {"binds": found}

    # -- the constructs ----------------------------------------------------------------------

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        return self._bool_op(node, self.expression)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.Not):
            return self.test(node)
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        k = self.construct(node, "conditional expression", **self._binds(node.body, node.orelse))
        return runtime_call(
            "choose",
            k,
            self.test(node.test),
            self.thunk(node.body),
            self.thunk(node.orelse),
            origin=node,
        )

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) == 1:
            if isinstance(node.ops[0], ast.In | ast.NotIn):
                k = self.construct(node, "`in`")
                left, right = self.expression(node.left), self.expression(node.comparators[0])
                method = "in_" if isinstance(node.ops[0], ast.In) else "not_in"
                return runtime_call(method, k, left, right, origin=node)
            if isinstance(node.ops[0], ast.Is | ast.IsNot):
                left, right = self.expression(node.left), self.expression(node.comparators[0])
                method = "is_" if isinstance(node.ops[0], ast.Is) else "is_not"
                return runtime_call(method, left, right, origin=node)
            return self.generic_visit(node)
        k = self.construct(node, "comparison", **self._binds(*node.comparators[1:]))
        rest: list[ast.expr] = []
        for op, operand in zip(node.ops, node.comparators, strict=True):
            rest += [ast.Constant(type(op).__name__), self.thunk(operand)]
        return runtime_call("compare", k, self.expression(node.left), *rest, origin=node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        name = node.target.id
        value = self.expression(node.value)
        if not self.thunks:
            return ast.copy_location(ast.NamedExpr(node.target, value), node)
        setter = self.setters.get(name)
        if setter is None:
            setter = self.setters[name] = self.unit.new_name("assign")
        return locate(ast.Call(load(setter), [value], []), node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        wanted = isinstance(node.ctx, ast.Load) and node.id in self.maybe
        if not wanted or node.id in self.definite:
            return node
        return runtime_call("read", self.construct(node, "read"), node, origin=node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if (
            isinstance(node.func, ast.Name)
            and node.func.id == "super"
            and not node.args
            and not node.keywords
            and self.first_parameter is not None
        ):
            args = [load("__class__"), load(self.first_parameter)]
            return locate(ast.Call(node.func, list(args), []), node)
        if isinstance(node.func, ast.Name) and node.func.id in _BUILTINS:
            k = self.construct(node, f"`{node.func.id}`")
            node = self.generic_visit(node)  # type: ignore[assignment]
            call = runtime_call("builtin", k, node.func, *node.args, origin=node)
            call.keywords = node.keywords
            return call
        return self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        arguments = self.visit(node.args)
        before, thunks, setters = self.maybe, self.thunks, self.setters
        self.maybe, self.thunks = before - frozenset(parameters(node.args)), 0
        self.setters = {}
        body = self.expression(node.body)
        if self.setters:
            raise UnsupportedSyntaxError(
                "`:=` inside of `and`, `or` or a conditional expression of a lambda. Use `def`",
                self.location(node),
            )
        self.maybe, self.thunks, self.setters = before, thunks, setters
        return ast.copy_location(ast.Lambda(arguments, body), node)

    def iterable(self, node: ast.expr) -> ast.expr:
        """What a `for` runs over: the built-in iterables take traced arguments."""
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _ITERABLES
            and not any(isinstance(arg, ast.Starred) for arg in node.args)
        ):
            return self.expression(node)
        k = self.construct(node, f"`{node.func.id}`")
        pieces = self.expression if node.func.id == "range" else self.iterable
        call = runtime_call(
            "iterable", k, self.expression(node.func), *map(pieces, node.args), origin=node
        )
        for word in node.keywords:
            word.value = self.expression(word.value)
            call.keywords.append(word)
        return call
