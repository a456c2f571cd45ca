"""Which names a piece of a function reads, binds and mutates, and which are live where.

The analysis runs on the structured body that `exits.py` leaves: no jumps but `Exit`, which goes to a
place known in advance (the loop's head, what follows the loop, the end of the function). Liveness is
therefore one backward walk, repeated over a loop until it settles. For each `if`, `Guard` and loop it
records which of the modified variables matter afterwards, and on which side they are not read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lanewise.frontend.exits import (
    SCOPES,
    Exit,
    Guard,
    Region,
    always_exits,
    blocks_of,
    breaks,
    is_true,
    own_nodes,
    swallows,
)
from lanewise.frontend.values import FLAG, RESULT

Names = frozenset[str]
_NONE: Names = frozenset()
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

# Methods that change the object they are called on, of the containers that Python has built in.
MUTATORS = frozenset(
    "append extend insert remove pop clear sort reverse update setdefault popitem add discard "
    "appendleft extendleft popleft rotate difference_update intersection_update "
    "symmetric_difference_update".split()
)
# Those of them whose value is wanted too, so that they are met inside of expressions.
TAKERS = frozenset("pop popitem popleft setdefault".split())


def _inner_scopes(node: ast.AST) -> Iterator[ast.AST]:
    for child in own_nodes(node):
        if isinstance(child, SCOPES):
            yield child


def bound(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The names a piece of code binds in its own scope, with where."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name, node
        for part in (*node.decorator_list, *_defaults(node)):
            yield from bound(part)
        return
    if isinstance(node, ast.Lambda):
        for part in _defaults(node):
            yield from bound(part)
        return
    if isinstance(node, _COMPREHENSIONS):
        for child in own_nodes(node):
            if isinstance(child, ast.NamedExpr) and isinstance(child.target, ast.Name):
                yield child.target.id, child
        return
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id, node
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield (alias.asname or alias.name).split(".")[0], node
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name, node
    elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name, node
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest, node
    elif isinstance(node, Exit):
        if node.kind == "return":
            yield RESULT, node
        for name in node.flags():
            yield name, node
    for child in ast.iter_child_nodes(node):
        yield from bound(child)
    if isinstance(node, ast.While | ast.For):
        region: Region | None = getattr(node, "lw_region", None)
        for name in (region.flag, region.done) if region is not None else ():
            if name is not None:
                yield name, node


def _defaults(node: ast.AST) -> list[ast.expr]:
    arguments = getattr(node, "args", None)
    if not isinstance(arguments, ast.arguments):
        return []
    return [*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]


def bound_names(nodes: Iterable[ast.AST]) -> Names:
    return frozenset(name for node in nodes for name, _ in bound(node))


def reads(node: ast.AST | None) -> Names:
    """The names a piece of code may read, those of functions nested in it included."""
    if node is None:
        return _NONE
    out = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load | ast.Del):
            out.add(child.id)
        elif isinstance(child, ast.AugAssign) and isinstance(child.target, ast.Name):
            out.add(child.target.id)
    return frozenset(out)


def captured_names(nodes: Iterable[ast.AST]) -> Names:
    """The names that nested functions read: they may do so at any later time."""
    return frozenset(
        name
        for node in nodes
        for scope in _inner_scopes(node)
        for part in _bodies(scope)
        for name in reads(part)
    )


def _bodies(scope: ast.AST) -> Sequence[ast.AST]:
    body = getattr(scope, "body", [])
    return body if isinstance(body, list) else [body]


def root(node: ast.AST) -> str | None:
    """The variable at the bottom of `a.b[c].d`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


@dataclass(frozen=True)
class Mutation:
    name: str
    certain: (
        bool  # an assignment to a part or a method known to change its object, not just any call
    )


def mutations(node: ast.AST) -> Iterator[Mutation]:
    """The variables whose objects a piece of code changes in place, as far as its text shows."""
    for child in own_nodes(node):
        if isinstance(child, ast.Attribute | ast.Subscript):
            if not isinstance(child.ctx, ast.Load):
                name = root(child)
                if name is not None:
                    yield Mutation(name, True)
        elif isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
            called = child.value.func
            name = root(called)
            if name is not None and isinstance(called, ast.Attribute):
                yield Mutation(name, called.attr in MUTATORS)
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            name = root(child.func)
            if name is not None and child.func.attr in TAKERS:
                yield Mutation(name, True)


@dataclass(frozen=True)
class Locals:
    """A function's own variables, and which of them may be a part of which others' objects."""

    own: Names
    aliases: Mapping[str, Names]

    @staticmethod
    def of(body: Sequence[ast.stmt], own: Names) -> Locals:
        direct: dict[str, set[str]] = {}
        for statement in body:
            for node in own_nodes(statement):
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    source, target = root(node.value), node.targets[0].id
                elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                    source, target = root(node.iter), node.target.id
                else:
                    continue
                if source is not None and source in own and source != target:
                    direct.setdefault(target, set()).add(source)
        return Locals(own, {name: _reach(name, direct) for name in direct})

    def changed(self, nodes: Iterable[ast.AST]) -> Names:
        """The variables whose objects code changes in place for certain, and those they are part of."""
        found = {m.name for node in nodes for m in mutations(node) if m.certain}
        out = set(found)
        for name in found:
            out |= self.aliases.get(name, _NONE)
        return frozenset(out) & self.own

    def modified(self, nodes: Sequence[ast.AST]) -> Names:
        """The variables that code binds or whose objects it may change."""
        called = {m.name for node in nodes for m in mutations(node)}
        return bound_names(nodes) | (frozenset(called) & self.own) | self.changed(nodes)

    def outside(self, nodes: Iterable[ast.AST]) -> Names:
        """The names of other scopes whose objects code changes in place."""
        found = {m.name for node in nodes for m in mutations(node) if m.certain}
        return frozenset(found) - self.own

    def acts(self, nodes: Sequence[ast.AST]) -> bool:
        """Whether code may act on Python objects other than its own variables: a call for its effect."""
        for node in nodes:
            for child in own_nodes(node):
                if isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
                    name = root(child.value.func)
                    method = isinstance(child.value.func, ast.Attribute)
                    if not (method and name is not None and (name in self.own or name == "jax")):
                        return True
        return bool(self.outside(nodes))


def _reach(name: str, direct: Mapping[str, set[str]]) -> Names:
    seen: set[str] = set()
    todo = [name]
    while todo:
        for other in direct.get(todo.pop(), ()):
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return frozenset(seen - {name})


def flags(names: Names) -> Names:
    """Those of the names that are flags of exits."""
    return frozenset(name for name in names if name.startswith(FLAG))


def reset_flags(node: ast.While | ast.For) -> Names:
    """The flags that an iteration may set. It only starts where none of them is set."""
    region: Region = node.lw_region  # type: ignore[attr-defined]
    own = frozenset({region.flag} if region.flag is not None else ())
    return own | flags_set(node.body)


def flags_set(block: Iterable[ast.AST]) -> Names:
    """The flags of enclosing regions that exits inside a block set."""
    return frozenset(
        name
        for node in block
        for child in own_nodes(node)
        if isinstance(child, Exit)
        for name in child.flags()
    ) - _flags_of_loops(block)


def _flags_of_loops(block: Iterable[ast.AST]) -> Names:
    inner = {
        name
        for node in block
        for child in own_nodes(node)
        if isinstance(child, ast.While | ast.For)
        for name in (child.lw_region.flag, child.lw_region.done)  # type: ignore[attr-defined]
        if name is not None
    }
    return frozenset(inner)


def parameters(arguments: ast.arguments) -> list[str]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return [a.arg for a in every]


@dataclass(frozen=True)
class Liveness:
    """What the walk found out about one statement."""

    live: Names
    dead_then: Names = _NONE
    dead_else: Names = _NONE
    dead_entry: Names = _NONE


@dataclass
class Analysis:
    """Backward liveness over one function's body; `found` maps statements to what holds for them."""

    locals: Locals
    always: Names  # variables that nested functions capture
    found: dict[int, Liveness] = field(default_factory=dict)
    head: dict[Region, Names] = field(default_factory=dict)
    after: dict[Region, Names] = field(default_factory=dict)

    def function(self, body: Sequence[ast.stmt]) -> None:
        self.block(body, frozenset({RESULT}))

    def block(self, block: Sequence[ast.stmt], out: Names) -> Names:
        for node in reversed(block):
            out = self.statement(node, out)
        return out

    def target(self, node: Exit) -> Names:
        """The user's variables that are live where a jump goes.

        Flags are another matter: a jump is made by falling through to the tests of its flags.
        """
        if node.kind == "return":
            return self.always | {RESULT}
        there = self.head if node.kind == "continue" else self.after
        live = there.get(node.regions[0], _NONE)
        return (live - flags(live)) | self.always

    def ends(self, block: Sequence[ast.stmt], out: Names) -> Names:
        """What is live after a block, however it is left."""
        live = set(flags(out)) if always_exits(block, swallowing=False) else set(out)
        for node in block:
            live |= self.exits(node)
        return frozenset(live) | self.always

    def exits(self, node: ast.stmt) -> Names:
        live: Names = self.target(node) if isinstance(node, Exit) else _NONE
        for block in blocks_of(node):
            for inner in block:
                live |= self.exits(inner)
        return live

    def statement(self, node: ast.stmt, out: Names) -> Names:
        if isinstance(node, Exit):
            live = self.target(node) | (flags(out) - frozenset(node.flags()))
            return reads(node.value) | (live - {RESULT} if node.kind == "return" else live)
        if isinstance(node, ast.If):
            first, second = self.block(node.body, out), self.block(node.orelse, out)
            a, b = self.ends(node.body, out), self.ends(node.orelse, out)
            changed = self.locals.modified([*node.body, *node.orelse])
            self.note(node, changed & (a | b), a, b)
            return first | second | reads(node.test)
        if isinstance(node, Guard):
            inner = self.block(node.body, out)
            left, b = self.left(node, out), self.ends(node.body, out)
            self.note(node, self.locals.modified(node.body) & (left | b), left, b)
            return inner | flags(out) | {node.region.need_flag()}  # where skipped, flags pass by
        if isinstance(node, ast.While | ast.For):
            return self.loop(node, out)
        if isinstance(node, ast.With):
            inner = self.block(node.body, out)
            if swallows(node):
                inner |= out
            return inner | frozenset().union(*(reads(item) for item in node.items))
        blocks = list(blocks_of(node))
        if blocks:  # try, match: any part may or may not have run
            live = set(out)
            for block in blocks:
                live |= self.block(block, frozenset(live))
            return frozenset(live) | reads(node)
        if isinstance(
            node, ast.Assign | ast.AnnAssign | ast.FunctionDef | ast.Import | ast.ImportFrom
        ):
            return (out - self.killed(node)) | reads(node)
        if isinstance(node, ast.Delete):
            return (out - bound_names([node])) | reads(node)
        return out | reads(node)

    def killed(self, node: ast.stmt) -> Names:
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return _NONE
        return bound_names([node])

    def left(self, node: Guard, out: Names) -> Names:
        """What is live wherever a jump goes that set the flag: one of the statement right before."""
        jumps = (
            child
            for child in own_nodes(node.before)
            if isinstance(child, Exit) and node.region in child.regions
        )
        return frozenset().union(*map(self.target, jumps)) | flags(out) | self.always

    def note(self, node: ast.stmt, live: Names, first: Names, second: Names) -> None:
        self.found[id(node)] = Liveness(live, live - first, live - second)

    def loop(self, node: ast.While | ast.For, out: Names) -> Names:
        region: Region = node.lw_region  # type: ignore[attr-defined]
        done = frozenset({region.done} if region.done is not None else ())
        normal = self.block(node.orelse, out)
        if isinstance(node, ast.While) and is_true(node.test):
            normal = flags(out)  # the test never ends it: only a jump leads out
        self.after[region] = out | done
        test = reads(node.test) if isinstance(node, ast.While) else _NONE
        local = bound_names([node.target]) if isinstance(node, ast.For) else _NONE
        reset = reset_flags(node)
        head = test | normal | done | flags(out)  # a `break` passes the `else` by
        while True:
            self.head[region] = head
            wider = head | (self.block(node.body, head) - local - reset)
            if wider == head:
                break
            head = wider
        changed = self.locals.modified(node.body) | local | reset
        leaves = self.ends(node.body, head) | head | out
        live = changed & (leaves | self.always | done)
        when_done = head | out | self.exits_of(node.body) | self.always
        self.found[id(node)] = Liveness(live, live - when_done, _NONE, live - head - self.always)
        if node.orelse:
            self.note_else(node, region, out)
        used = reads(node.iter) if isinstance(node, ast.For) else _NONE
        return (head - done) | used

    def exits_of(self, block: Sequence[ast.stmt]) -> Names:
        return frozenset().union(*(self.exits(node) for node in block))

    def note_else(self, node: ast.While | ast.For, region: Region, out: Names) -> None:
        b = self.ends(node.orelse, out)
        left = (out if breaks(node.body) else flags(out)) | {RESULT} | self.always
        live = self.locals.modified(node.orelse) & (left | b)
        node.lw_else = Liveness(live, live - left, live - b)  # type: ignore[attr-defined]
