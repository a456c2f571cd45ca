"""`break`, `continue` and `return` made into structure.

A traced branch or loop has one way in and one way out, so an early exit has to become something else.
Where one side of an `if` always exits, the statements that follow it move into the other side:

    if a: return x          if a: return x
    rest            ==>     else: rest

and nothing needs to be remembered. Where a side only may exit, the rest is put under a `Guard` that
looks at a flag, which the exit sets to a literal True. A loop with `break` or `return` in it has a flag
`done` that its test looks at first. Later passes thread these constants, so an exit is a jump again in
the end; a flag that is never set under a traced condition is a plain Python bool and costs nothing.

Statements that no path reaches are dropped before all this: under a flag they would be traced, where
the variables that they read are no longer stored.

A `with` whose body always exits still reaches its end if its manager swallows an exception (as
`contextlib.suppress` does). So it counts as one that may exit: what follows is kept, under a flag. Where
only such a `with` leads to what follows, the guard is `swallowed`: it runs if the flag is plainly unset
and is otherwise not even traced, as before a traced branch or loop ends the run-time has refused a `with`
that fell through inside of it.

`Exit` and `Guard` are statements of our own, for the analysis (`names.py`: an `Exit` is a jump there)
and for the emitter (`statements.py`: there it is assignments to flags).

What no program can hold, such as a generator, is an error here too, with what to write instead.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lanewise.core.errors import Location, UnsupportedSyntaxError
from lanewise.frontend.values import FLAG

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
# Python that a program cannot hold, and what to write instead.
_ADVICE: dict[type[ast.AST], str] = {
    ast.Yield: "a generator. Collect the values in an array, or return them",
    ast.YieldFrom: "a generator. Collect the values in an array, or return them",
    ast.Await: "`await`. A program runs from start to end on its own; await its answer outside",
    ast.AsyncFor: "`async for`. Use `for`",
    ast.AsyncWith: "`async with`. Use it around the call of the program",
    ast.Global: "`global`. Take the value as an argument, and return the new one",
    ast.Nonlocal: "`nonlocal`. Take the value as an argument, and return the new one",
}


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is below it in the same scope (comprehensions count, nested functions do not)."""
    yield node
    if isinstance(node, SCOPES):
        return
    for child in ast.iter_child_nodes(node):
        yield from own_nodes(child)


def refuse_unsupported(node: ast.FunctionDef | ast.AsyncFunctionDef, filename: str) -> None:
    """Raise at the first statement of a function that no program can hold."""
    if isinstance(node, ast.AsyncFunctionDef):
        raise UnsupportedSyntaxError(
            "a program cannot be `async`. A program runs from start to end on its own; "
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


@dataclass(eq=False)
class Region:
    """What an exit leaves: a loop or the function. Flags are named when something must look at them."""

    number: int
    is_loop: bool
    flag: str | None = None  # set by every exit that ends this function or this iteration
    done: str | None = None  # set by every exit that ends the whole loop
    line: int = 0

    def need_flag(self) -> str:
        if self.flag is None:
            self.flag = f"{FLAG}{'skip' if self.is_loop else 'returned'}{self.number}"
        return self.flag

    def need_done(self) -> str:
        if self.done is None:
            self.done = f"{FLAG}done{self.number}"
        return self.done


class Exit(ast.stmt):
    """A jump: `kind` is "break", "continue" or "return"; `regions` are those it leaves, inmost first."""

    _fields = ("value",)
    value: ast.expr | None
    kind: str
    regions: tuple[Region, ...]

    def flags(self) -> list[str]:
        """The flags it sets."""
        names = []
        for region in self.regions:
            if region.flag is not None:
                names.append(region.flag)
            if region.done is not None and self.kind != "continue":
                names.append(region.done)
        return names


class Guard(ast.stmt):
    """Statements that run unless the region's flag is set, by a jump in the statement before them."""

    _fields = ("body",)
    body: list[ast.stmt]
    region: Region
    before: ast.stmt
    swallowed: bool  # only a `with` that swallowed an exception comes here


def blocks_of(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The statement lists directly inside a statement (not those of a nested function or class)."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
    for handler in getattr(node, "handlers", []):
        yield handler.body


def may_exit(node: ast.stmt, in_loop: bool = False) -> bool:
    """Whether a statement may jump out of the list it stands in."""
    if isinstance(node, ast.Return):
        return True
    if isinstance(node, ast.Break | ast.Continue):
        return not in_loop
    if isinstance(node, ast.While | ast.For):
        return any(may_exit(s, True) for s in node.body) or any(
            may_exit(s, in_loop) for s in node.orelse
        )
    return any(may_exit(s, in_loop) for block in blocks_of(node) for s in block)


def always_exits(block: Sequence[ast.stmt], swallowing: bool = True) -> bool:
    """Whether no path reaches the end of a list, `swallowing` or not what is raised inside a `with`."""
    return any(_always(node, swallowing) for node in block)


def runs_once(loop: ast.While | ast.For) -> bool:
    """Whether every path through the body leaves the loop, so that there is no second iteration."""
    region = loop.lw_region  # type: ignore[attr-defined]
    goes_on = any(
        isinstance(node, Exit) and node.kind == "continue" and node.regions[0] is region
        for child in loop.body
        for node in ast.walk(child)
    )
    return always_exits(loop.body) and not goes_on


def _always(node: ast.stmt, swallowing: bool) -> bool:
    if isinstance(node, ast.Return | ast.Break | ast.Continue | ast.Raise | Exit):
        return True
    if isinstance(node, ast.If):
        return always_exits(node.body, swallowing) and always_exits(node.orelse, swallowing)
    if isinstance(node, ast.With):
        return not swallowing and always_exits(node.body, swallowing)
    if isinstance(node, Guard):
        return always_exits(node.body, swallowing)
    if isinstance(node, ast.While | ast.For):
        endless = isinstance(node, ast.While) and is_true(node.test)
        return not breaks(node.body) and (endless or always_exits(node.orelse, swallowing))
    return False


def swallows(node: ast.With) -> bool:
    """Whether a `with` comes to its end only if it swallows an exception."""
    return always_exits(node.body, swallowing=False)


def is_true(test: ast.expr) -> bool:
    return isinstance(test, ast.Constant) and bool(test.value)


def breaks(block: Sequence[ast.stmt]) -> bool:
    """Whether a loop's body holds a `break` of that loop."""
    for node in block:
        if isinstance(node, ast.Break) or (isinstance(node, Exit) and node.kind == "break"):
            return True
        inner = [node.orelse] if isinstance(node, ast.While | ast.For) else blocks_of(node)
        if any(breaks(b) for b in inner):
            return True
    return False


def _returns(block: Sequence[ast.stmt]) -> bool:
    return any(
        isinstance(node, ast.Return) or any(_returns(b) for b in blocks_of(node)) for node in block
    )


@dataclass
class Exits:
    """Rewrites one function's body."""

    filename: str
    function: str
    regions: list[Region] = field(default_factory=list)  # outermost first
    count: int = 0

    def body(self, block: list[ast.stmt], origin: ast.AST) -> tuple[list[ast.stmt], Region]:
        whole = Region(0, is_loop=False)
        self.regions.append(whole)
        block = self.reachable(block)
        if _returns(block) and not always_exits(block):
            last = ast.copy_location(ast.Return(value=None), block[-1] if block else origin)
            block = [*block, last]
        out = self.block(block)
        self.regions.pop()
        return out, whole

    def reachable(self, block: list[ast.stmt]) -> list[ast.stmt]:
        """The statements that some path reaches; a `match` is written as `if`."""
        out: list[ast.stmt] = []
        for node in block:
            if isinstance(node, ast.Match):
                from lanewise.frontend.matching import match_as_if  # most programs have no `match`

                self.count += 1
                out += self.reachable(match_as_if(node, f"_lw_subject{self.count}"))
            else:
                if isinstance(node, ast.While) and is_true(node.test):
                    node.orelse = []
                for inner in blocks_of(node):
                    inner[:] = self.reachable(inner)
                out.append(node)
            if always_exits(out):
                break
        return out

    def block(self, block: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for index, node in enumerate(block):
            rest = block[index + 1 :]
            if isinstance(node, ast.Return | ast.Break | ast.Continue):
                out.append(self.exit(node))
                return out
            if isinstance(node, ast.If):
                if not may_exit(node) and not _ends_in_raise(node):
                    node.body, node.orelse = self.block(node.body), self.block(node.orelse)
                    out.append(node)
                    continue
                return out + self.exiting_if(node, rest)
            exits = may_exit(node)
            out.append(self.compound(node))
            if exits and rest:
                return [*out, self.guard(out[-1], rest)]
        return out

    def exiting_if(self, node: ast.If, rest: list[ast.stmt]) -> list[ast.stmt]:
        first, second = always_exits(node.body), always_exits(node.orelse)
        if first or second or _is_short(rest):
            # One side never comes back (or the rest is a mere jump): the rest goes where it is needed.
            body = node.body if first else [*node.body, *_copies(rest, second)]
            orelse = node.orelse if second else [*node.orelse, *rest]
            node.body, node.orelse = self.block(body), self.block(orelse)
            return [node]
        node.body, node.orelse = self.block(node.body), self.block(node.orelse)
        if not rest:
            return [node]
        return [node, self.guard(node, rest)]

    def guard(self, before: ast.stmt, rest: list[ast.stmt]) -> Guard:
        """The rest, to run unless the statement before it jumped."""
        node = Guard()
        node.region, node.before = self.regions[-1], before
        node.region.need_flag()
        node.swallowed = _always(before, swallowing=False)
        node.body = self.block(rest)
        return ast.copy_location(node, rest[0])

    def exit(self, origin: ast.Return | ast.Break | ast.Continue) -> Exit:
        node = Exit()
        returns = isinstance(origin, ast.Return)
        node.kind, node.value = type(origin).__name__.lower(), origin.value if returns else None
        node.regions = tuple(self.regions[::-1] if returns else self.regions[-1:])
        return ast.copy_location(node, origin)

    def compound(self, node: ast.stmt) -> ast.stmt:
        if isinstance(node, ast.While | ast.For):
            return self.loop(node)
        if isinstance(node, ast.With):
            node.lw_flag = self.regions[-1].need_flag() if swallows(node) else None  # type: ignore[attr-defined]
            node.body = self.block(node.body)
        elif isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            self.try_(node)  # type: ignore[arg-type]
        return node

    def try_(self, node: ast.Try) -> None:
        exits = any(may_exit(s) for s in node.body)
        node.body = self.block(node.body)
        for handler in node.handlers:
            handler.body = self.block(handler.body)
        if exits and node.orelse:
            node.orelse = [self.guard(node, node.orelse)]
        else:
            node.orelse = self.block(node.orelse)
        node.finalbody = self.block(node.finalbody)

    def loop(self, node: ast.While | ast.For) -> ast.stmt:
        self.count += 1
        region = Region(self.count, is_loop=True, line=node.lineno)
        if isinstance(node, ast.While) and _has_walrus(node.test):
            self.move_test(node)
        if breaks(node.body) or _returns(node.body):
            region.need_done()
        self.regions.append(region)
        node.body = self.block(node.body)
        self.regions.pop()
        node.orelse = self.block(node.orelse)
        node.lw_region = region  # type: ignore[attr-defined]
        return node

    def move_test(self, node: ast.While) -> None:
        """A test that assigns cannot be staged as a test: it becomes the body's first statement."""
        if node.orelse:
            raise UnsupportedSyntaxError(
                "`:=` in the test of a `while` with `else`. Assign before the loop and at the end of "
                "its body",
                Location(self.filename, node.lineno, self.function),
            )
        test = node.test
        stop = ast.If(
            test=ast.copy_location(ast.UnaryOp(ast.Not(), test), test),
            body=[ast.copy_location(ast.Break(), test)],
            orelse=[],
        )
        node.body.insert(0, ast.copy_location(stop, test))
        node.test = ast.copy_location(ast.Constant(True), test)


def _has_walrus(test: ast.expr) -> bool:
    return any(isinstance(node, ast.NamedExpr) for node in ast.walk(test))


def _ends_in_raise(node: ast.If) -> bool:
    return always_exits(node.body) or always_exits(node.orelse)


def _is_short(rest: Sequence[ast.stmt]) -> bool:
    """Whether statements are a jump that may be written twice instead of looking at a flag."""
    if len(rest) != 1:
        return False
    (node,) = rest
    if isinstance(node, ast.Break | ast.Continue):
        return True
    return isinstance(node, ast.Return) and (
        node.value is None or isinstance(node.value, ast.Constant | ast.Name)
    )


def _copies(rest: Sequence[ast.stmt], moved: bool) -> list[ast.stmt]:
    """The rest once more for the first side: the very nodes if the second side has no use for them."""
    return list(rest) if moved else [copy.deepcopy(node) for node in rest]
