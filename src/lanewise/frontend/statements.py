"""Statements rewritten: the blocks of an `if` or a loop become functions that the run-time calls.

    if x > 0:              def _lw_then1():
        y = x                  nonlocal y
    else:            ==>       y = x
        y = -x             def _lw_else2(): ...
                           def _lw_set3(_lw_v): nonlocal y; (y,) = _lw_v
                           _lw.if_(0, x > 0, _lw_then1, _lw_else2, lambda: (y,), _lw_set3)

The user's variables stay variables of the function, shared with these blocks as cells: plain Python runs
as it is written, closures see every assignment, and the run-time swaps tracers in and out with the two
accessors. Every such variable starts as an `Undefined`; reads are checked where some path may come to
them without an assignment.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from lanewise.frontend.exits import Exit, Exits, Guard, blocks_of, refuse_unsupported, runs_once
from lanewise.frontend.expressions import (
    Expressions,
    Unit,
    load,
    locate,
    no_arguments,
    runtime_call,
    store,
)
from lanewise.frontend.names import (
    MUTATORS,
    Analysis,
    Liveness,
    Locals,
    Names,
    bound_names,
    captured_names,
    flags_set,
    parameters,
    reset_flags,
    root,
)
from lanewise.frontend.values import RESULT, Construct

_CONTROL = (ast.If, Guard, ast.While, ast.For)
_NOTHING: Names = frozenset()


def convert_function(
    node: ast.FunctionDef, unit: Unit, outer: Names, method_of_class: bool
) -> ast.FunctionDef:
    """Rewrite a function's body; `outer` are names of enclosing functions that may be undefined."""
    refuse_unsupported(node, unit.filename)
    inputs = parameters(node.args)
    emitter = Statements(unit, node.name)
    if method_of_class and inputs:
        emitter.first_parameter = inputs[0]
    declared = bound_names(node.body)
    body, whole = Exits(unit.filename, node.name).body(node.body, node)
    own = bound_names(body) | declared | frozenset(inputs)
    emitter.locals = Locals.of(body, own)
    emitter.analysis = Analysis(emitter.locals, captured_names(body) & own)
    emitter.analysis.function(body)
    shared = _shared(body, emitter.locals) | (declared - bound_names(body))
    emitter.maybe = (shared - frozenset(inputs)) | _deleted(body, shared) | (outer - own)
    emitter.definite = frozenset(inputs)
    statements = emitter.block(body)
    if emitter.result_used:
        result = runtime_call(
            "result", emitter.construct(node, "function"), load(RESULT), origin=node
        )
        statements.append(locate(ast.Return(result), body[-1]))
    start: list[ast.stmt] = []
    for name in sorted((shared | frozenset(emitter.setters)) - frozenset(inputs)):
        start.append(assign(name, runtime_call("undefined", ast.Constant(name), origin=node), node))
    if whole.flag is not None:
        start.append(assign(whole.flag, ast.Constant(False), node))
    for name, setter in emitter.setters.items():
        start.append(_setter(name, setter, node))
    node.body = [*start, *statements] or [locate(ast.Pass(), node)]
    return node


def _shared(body: Sequence[ast.stmt], own: Locals) -> Names:
    """The variables that blocks and their function share."""
    out: Names = _NOTHING
    for node in body:
        if isinstance(node, _CONTROL):
            out |= own.modified([node])
        else:
            for block in blocks_of(node):
                out |= _shared(block, own)
    return out & (own.own | {RESULT})


def _deleted(body: Sequence[ast.stmt], shared: Names) -> Names:
    found = {
        child.id
        for node in body
        for child in ast.walk(node)
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Del)
    }
    return frozenset(found) & shared


def assign(name: str, value: ast.expr, origin: ast.AST) -> ast.stmt:
    return locate(ast.Assign([store(name)], value), origin)


def _setter(name: str, setter: str, origin: ast.AST) -> ast.stmt:
    arguments = no_arguments()
    arguments.args = [ast.arg("_lw_v")]
    body: list[ast.stmt] = [
        ast.Nonlocal([name]),
        ast.Assign([store(name)], load("_lw_v")),
        ast.Return(load("_lw_v")),
    ]
    return locate(function(setter, arguments, body), origin)


def function(name: str, arguments: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
    node = ast.FunctionDef(name, arguments, body, [], None)
    if "type_params" in ast.FunctionDef._fields:
        node.type_params = []  # type: ignore[attr-defined]
    return node


class Statements(Expressions):
    """Emits one function's statements."""

    locals: Locals
    analysis: Analysis

    def __init__(self, unit: Unit, function_name: str) -> None:
        super().__init__(unit, function_name)
        self.depth = 0  # blocks around, inside this function
        self.around: tuple[int, ...] = ()  # the numbers of the statements around, outermost first
        self.result_used = False

    def block(self, block: Sequence[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for node in block:
            out.extend(self.statement(node))
        return out

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        warnings: list[ast.stmt] = []
        if not any(True for _ in blocks_of(node)) and not isinstance(node, Exit):
            for name in sorted(self.locals.outside([node])):
                k = self.construct(node, "change")
                warnings.append(self.call("outside", k, ast.Constant(name), origin=node))
        method = getattr(self, "emit_" + type(node).__name__, None)
        if method is not None:
            return warnings + method(node)
        out = self.generic_visit(node)
        self.definite |= bound_names([node])
        return [*warnings, out]  # type: ignore[list-item]

    # -- changes in place: the object is asked whether it may be changed here ------------------

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self._changing(node, not isinstance(node.ctx, ast.Load))

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return self._changing(node, not isinstance(node.ctx, ast.Load))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in MUTATORS and self.depth:
            node.args = [self.visit(arg) for arg in node.args]
            node.keywords = [self.visit(word) for word in node.keywords]
            node.func = self._changing(called, True)  # type: ignore[assignment]
            return node
        return super().visit_Call(node)

    def _changing(self, node: ast.Attribute | ast.Subscript, changes: bool) -> ast.AST:
        place = ast.copy_location(ast.Pass(), node)
        mine = root(node) in self.locals.own
        node = self.generic_visit(node)  # type: ignore[assignment]
        if changes and mine and self.depth:
            k, name = self.construct(place, "change"), ast.Constant(root(node))
            node.value = runtime_call("own", k, name, node.value, origin=place)
        return node

    # -- pieces ------------------------------------------------------------------------------

    def make_block(
        self,
        k: int,
        stem: str,
        block: Sequence[ast.stmt],
        origin: ast.AST,
        start: Sequence[ast.stmt] = (),
        item: bool = False,
    ) -> tuple[list[ast.stmt], ast.expr]:
        """A block of construct `k` as a function (of a loop's item, or nothing), and what refers to it."""
        if not block and not start:
            return [], locate(ast.Lambda(no_arguments(), ast.Constant(None)), origin)
        outside, self.around = self.around, (*self.around, k)
        # Before statements that stay what they are, such as `with`, take in names that are made up for their blocks.
        bound_here = bound_names([*start, *block])
        self.depth += 1
        body = [*start, *self.block(block)]
        self.depth -= 1
        self.around = outside
        shares = sorted(bound_here - ({RESULT} if not self.result_used else set()))
        if shares:
            body.insert(0, ast.Nonlocal(shares))
        name = self.unit.new_name(stem)
        arguments = no_arguments()
        if item:
            arguments.args = [ast.arg("_lw_item")]
        return [locate(function(name, arguments, body), origin)], load(name)

    def accessors(self, names: Sequence[str], origin: ast.AST) -> tuple[ast.stmt, list[ast.expr]]:
        """How the run-time reads and writes variables."""
        get = ast.Lambda(no_arguments(), ast.Tuple([load(name) for name in names], ast.Load()))
        setter = self.unit.new_name("set")
        arguments = no_arguments()
        arguments.args = [ast.arg("_lw_v")]
        body: list[ast.stmt] = [ast.Pass()]
        if names:
            targets = ast.Tuple([store(name) for name in names], ast.Store())
            body = [ast.Nonlocal(list(names)), ast.Assign([targets], load("_lw_v"))]
        define = locate(function(setter, arguments, body), origin)
        return define, [locate(get, origin), load(setter)]

    def describe(
        self, k: int, node: ast.stmt, what: str, block: Sequence[ast.stmt], found: Liveness
    ) -> tuple[str, ...]:
        """Fill in what is known of a statement; returns its variables, those that matter afterwards first."""
        changed = self.locals.modified(block) | found.live
        live = sorted(found.live)
        names = (*live, *sorted(changed - found.live))
        self.unit.constructs[k] = Construct(
            self.location(node),
            what,
            names,
            len(live),
            dead_then=found.dead_then,
            dead_else=found.dead_else,
            dead_entry=found.dead_entry,
            stored=self.locals.changed(block),
            inside=self.inside,
            acts=self.locals.acts(block),
            once=isinstance(node, ast.While | ast.For) and runs_once(node),
        )
        return names

    def call(self, method: str, *args: ast.expr, origin: ast.AST) -> ast.stmt:
        return locate(ast.Expr(runtime_call(method, *args, origin=origin)), origin)

    # -- control -----------------------------------------------------------------------------

    def emit_If(self, node: ast.If) -> list[ast.stmt]:
        k = self.unit.reserve()
        test = self.test(node.test)
        names = self.describe(
            k,
            node,
            getattr(node, "lw_what", "`if`"),
            [*node.body, *node.orelse],
            self.analysis.found[id(node)],
        )
        before = self.definite
        then_def, then = self.make_block(k, "then", node.body, node)
        after_then, self.definite = self.definite, before
        else_def, orelse = self.make_block(k, "else", node.orelse, node)
        if _raises(node.body):
            pass
        elif _raises(node.orelse):
            self.definite = after_then
        else:
            self.definite &= after_then
        setter, access = self.accessors(names, node)
        call = self.call("if_", ast.Constant(k), test, then, orelse, *access, origin=node)
        return [*then_def, *else_def, setter, call]

    def emit_Guard(self, node: Guard) -> list[ast.stmt]:
        found = self.analysis.found[id(node)]
        return self.guard(node, node.region.need_flag(), node.body, found)

    def guard(
        self, node: ast.stmt, flag: str, block: Sequence[ast.stmt], found: Liveness
    ) -> list[ast.stmt]:
        k = self.unit.reserve()
        names = self.describe(k, node, "early exit", block, found)
        before = self.definite
        # Where the rest begins its flags are not set, and where it is skipped this one is: constants
        # on both sides are what later passes follow.
        known = [f for f in sorted(flags_set(block)) if f == flag]
        start = [assign(name, ast.Constant(False), node) for name in known]
        skipped = [assign(name, ast.Constant(True), node) for name in known]
        define, rest = self.make_block(k, "rest", block, node, start)
        skip_def, skip = self.make_block(k, "skip", [], node, skipped)
        self.definite = before
        setter, access = self.accessors(names, node)
        method = "unless_left" if isinstance(node, Guard) and node.swallowed else "unless"
        call = self.call(method, ast.Constant(k), load(flag), skip, rest, *access, origin=node)
        return [*define, *skip_def, setter, call]

    def emit_While(self, node: ast.While) -> list[ast.stmt]:
        region = node.lw_region  # type: ignore[attr-defined]
        k = self.unit.reserve()
        names = self.describe(k, node, "`while`", node.body, self.analysis.found[id(node)])
        out: list[ast.stmt] = []
        if region.done is not None:
            out.append(assign(region.done, ast.Constant(False), node))
        test: ast.expr = self.thunk(node.test, self.test)
        if region.done is not None:
            going = runtime_call(
                "go_on", ast.Constant(k), load(region.done), test, origin=node.test
            )
            test = locate(ast.Lambda(no_arguments(), going), node.test)
        before = self.definite
        start = [assign(name, ast.Constant(False), node) for name in sorted(reset_flags(node))]
        define, body = self.make_block(k, "body", node.body, node, start)
        self.definite = before
        setter, access = self.accessors(names, node)
        call = self.call("while_", ast.Constant(k), test, body, *access, origin=node)
        return [*out, *define, setter, call, *self.loop_else(node)]

    def emit_For(self, node: ast.For) -> list[ast.stmt]:
        region = node.lw_region  # type: ignore[attr-defined]
        k = self.unit.reserve()
        target = ast.copy_location(ast.Assign([node.target], load("_lw_item")), node)
        whole: list[ast.stmt] = [target, *node.body]
        names = self.describe(k, node, "`for`", whole, self.analysis.found[id(node)])
        out: list[ast.stmt] = []
        done: list[ast.expr] = []
        if region.done is not None:
            out.append(assign(region.done, ast.Constant(False), node))
            done = [locate(ast.Lambda(no_arguments(), load(region.done)), node)]
        iterable = self.iterable(node.iter)
        before = self.definite
        start = [assign(name, ast.Constant(False), node) for name in sorted(reset_flags(node))]
        locate(target, node)
        define, body = self.make_block(k, "body", whole, node, start, item=True)
        self.definite = before
        setter, access = self.accessors(names, node)
        call = self.call("for_", ast.Constant(k), iterable, body, *access, *done, origin=node)
        return [*out, *define, setter, call, *self.loop_else(node)]

    def loop_else(self, node: ast.While | ast.For) -> list[ast.stmt]:
        if not node.orelse:
            return []
        region = node.lw_region  # type: ignore[attr-defined]
        if region.done is None:
            return self.block(node.orelse)
        found: Liveness = node.lw_else  # type: ignore[union-attr]
        return self.guard(node.orelse[0], region.done, node.orelse, found)

    def emit_Exit(self, node: Exit) -> list[ast.stmt]:
        value = self.expression(node.value) if node.value is not None else ast.Constant(None)
        if node.kind == "return" and self.depth == 0:
            return [locate(ast.Return(value), node)]
        out: list[ast.stmt] = []
        if node.kind == "return":
            self.result_used = True
            returned = runtime_call(
                "returning", self.construct(node, "`return`"), value, origin=node
            )
            out.append(assign(RESULT, returned, node))
        out += [assign(name, ast.Constant(True), node) for name in node.flags()]
        return out or [locate(ast.Pass(), node)]

    # -- the rest ----------------------------------------------------------------------------

    def emit_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:
        node.decorator_list = [self.expression(d) for d in node.decorator_list]
        node.args = self.visit(node.args)
        inner = self.maybe - self.definite
        self.definite |= {node.name}
        return [convert_function(node, self.unit, inner - {node.name}, False)]

    def emit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> list[ast.stmt]:
        refuse_unsupported(node, self.unit.filename)
        return [node]

    def emit_ClassDef(self, node: ast.ClassDef) -> list[ast.stmt]:
        self.definite |= {node.name}
        return [node]

    def emit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        """The annotation goes: a block cannot annotate its function's variable."""
        if node.value is None:
            return [locate(ast.Pass(), node)]
        return self.statement(ast.copy_location(ast.Assign([node.target], node.value), node))

    def emit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        """`x += 1` where `x` may be undefined is written out, so that the read is checked."""
        target = node.target
        value = self.expression(node.value)
        if isinstance(target, ast.Name) and target.id in self.maybe - self.definite:
            read = self.expression(ast.copy_location(load(target.id), target))
            check = locate(ast.Expr(read), node)
            node.value = value
            return [check, node]
        node.target = self.visit(target)
        node.value = value
        return [node]

    def emit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id in self.maybe:
                name = target.id
                read = self.expression(ast.copy_location(load(name), target))
                out.append(locate(ast.Expr(read), node))
                nothing = runtime_call(
                    "deleted", self.construct(node, "`del`"), ast.Constant(name), origin=node
                )
                out.append(assign(name, nothing, node))
                self.definite -= {name}
            else:
                out.append(ast.copy_location(ast.Delete([self.visit(target)]), node))
        return out

    def emit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        k = self.construct(node, "`assert`")
        source = ast.Constant(None if node.msg is None else ast.unparse(node.msg))
        message = ast.Constant(None) if node.msg is None else self.thunk(node.msg)
        return [self.call("assert_", k, self.test(node.test), message, source, origin=node)]

    def emit_Raise(self, node: ast.Raise) -> list[ast.stmt]:
        out = self.generic_visit(node)
        if not self.around:
            return [out]  # type: ignore[list-item]
        k = self.construct(node, "`raise`")
        warn = self.call("raising", k, ast.Constant(self.around[-1]), origin=node)
        return [warn, out]  # type: ignore[list-item]

    def emit_With(self, node: ast.With) -> list[ast.stmt]:
        node.items = [self.visit(item) for item in node.items]
        if len(node.items) == 1:
            item, line = node.items[0], ast.Constant(node.lineno)
            item.context_expr = runtime_call("manager", line, item.context_expr, origin=node)
        self.definite |= bound_names(node.items)
        flag = node.lw_flag if self.depth else None  # type: ignore[attr-defined]
        node.body = self.within("with", node, node.body)
        if flag is None:
            return [node]
        k = self.construct(node, "`with`")
        around = ast.Tuple([ast.Constant(construct) for construct in self.around], ast.Load())
        ended = self.call("ended", k, load(flag), around, origin=node)
        return [assign(flag, ast.Constant(False), node), node, ended]

    def within(self, what: str, node: ast.stmt, block: Sequence[ast.stmt]) -> list[ast.stmt]:
        outside = self.inside
        self.inside = (*outside, (what, node.lineno))
        out = self.block(block)
        self.inside = outside
        return out or [locate(ast.Pass(), node)]

    def emit_Try(self, node: ast.Try) -> list[ast.stmt]:
        before = self.definite
        node.body = self.within("try", node, node.body)
        self.definite = before
        for handler in node.handlers:
            if handler.type is not None:
                handler.type = self.expression(handler.type)
            self.definite = before | ({handler.name} if handler.name else set())
            handler.body = self.within("try", node, handler.body)
        self.definite = before
        if node.orelse:
            node.orelse = self.within("try", node, node.orelse)
        self.definite = before
        if node.finalbody:
            node.finalbody = self.within("try", node, node.finalbody)
        return [node]

    emit_TryStar = emit_Try


def _raises(block: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Raise) for node in block)
