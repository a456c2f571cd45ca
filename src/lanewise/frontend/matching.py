"""`match` written as `if`, so that its subject may hold traced values.

A pattern checks two kinds of things. What the subject is made of (a sequence of three, a mapping with these keys, an
instance of that class) is known while tracing: a plain bool, so a case that does not fit is gone. What its parts are
equal to, and what the guard says, may be traced: then the case is a branch. A case is the test

    structure and ... and values and ... and guard

and its body begins with the names that the pattern binds. A guard reads the parts of the subject themselves: names are
bound when the whole case holds, where Python binds them before it evaluates the guard.

What patterns check at run time, as Python's own `match` does, is at the end.
"""

from __future__ import annotations

import ast
import builtins
import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise.core.errors import Location, UnsupportedSyntaxError
from lanewise.core.objects import is_held
from lanewise.frontend.values import is_traced, type_text


@dataclass
class _Asked:
    """What a pattern checks of its subject, in the order it may be checked, and the names it binds."""

    structure: list[ast.expr] = field(default_factory=list)
    values: list[ast.expr] = field(default_factory=list)
    binds: dict[str, ast.expr] = field(default_factory=dict)

    def add(self, other: _Asked) -> None:
        self.structure += other.structure
        self.values += other.values
        self.binds |= other.binds

    def test(self, *more: ast.expr) -> ast.expr | None:
        return _all([*self.structure, *self.values, *more])


def match_as_if(node: ast.Match, subject: str) -> list[ast.stmt]:
    """The statements that stand for a `match`."""
    orelse: list[ast.stmt] = []
    for place, case in reversed(list(enumerate(node.cases))):
        gone = [cls for earlier in node.cases[:place] for cls in _taken_whole(earlier)]
        asked = _ask(case.pattern, ast.Name(subject, ast.Load()), gone)
        guard = [] if case.guard is None else [_Substitute(asked.binds).visit(case.guard)]
        binds: list[ast.stmt] = [
            ast.Assign([ast.Name(name, ast.Store())], value) for name, value in asked.binds.items()
        ]
        body = [*binds, *case.body]
        test = asked.test(*guard)
        if test is None:
            orelse = [_locate(statement, case.pattern) for statement in body]
            continue
        branch = ast.If(test, body, orelse)
        branch.lw_what = "`case`"  # type: ignore[attr-defined]
        orelse = [_locate(branch, case.pattern)]
    first = ast.Assign([ast.Name(subject, ast.Store())], node.subject)
    return [_locate(statement, node.subject) for statement in (first, *orelse)]


def _taken_whole(case: ast.match_case) -> list[ast.expr]:
    """The classes, or None, whose subjects never get past a case."""

    def whole(pattern: ast.pattern) -> list[ast.expr]:
        match pattern:
            case ast.MatchAs(ast.pattern() as inner, _):
                return whole(inner)
            case ast.MatchOr(patterns):
                return [cls for part in patterns for cls in whole(part)]
            case ast.MatchSingleton(None):
                return [ast.Constant(None)]
            case ast.MatchClass(cls, patterns, _, named):
                parts = [*patterns, *named]
                anything = all(isinstance(p, ast.MatchAs) and p.pattern is None for p in parts)
                return [cls] if anything else []
            case _:
                return []

    return whole(case.pattern) if case.guard is None else []


def _ask(pattern: ast.pattern, subject: ast.expr, gone: Sequence[ast.expr] = ()) -> _Asked:
    match pattern:
        case ast.MatchValue(value):
            return _Asked(values=[ast.Compare(subject, [ast.Eq()], [value])])
        case ast.MatchSingleton(value):
            others = ast.Tuple(list(gone), ast.Load())
            test = _runtime("is_singleton", subject, ast.Constant(value), others)
            return _Asked(values=[test])
        case ast.MatchAs(None, None):
            return _Asked()
        case ast.MatchAs(inner, name):
            asked = _Asked() if inner is None else _ask(inner, subject, gone)
            return _Asked(asked.structure, asked.values, asked.binds | {str(name): subject})
        case ast.MatchOr(patterns):
            return _any_of([_ask(part, subject) for part in patterns])
        case ast.MatchSequence(patterns):
            return _sequence(patterns, subject)
        case ast.MatchMapping(keys, patterns, rest):
            return _mapping(keys, patterns, rest, subject)
        case ast.MatchClass(cls, patterns, names, named):
            return _instance(cls, patterns, names, named, subject, gone)
        case _:
            raise AssertionError(f"no such pattern: {pattern!r}")


def _any_of(parts: Sequence[_Asked]) -> _Asked:
    """The first of several patterns that holds; it also says what the names are."""
    tests = [part.test() or ast.Constant(True) for part in parts]
    binds: dict[str, ast.expr] = {}
    for name in parts[-1].binds:
        value = parts[-1].binds[name]
        for test, part in zip(reversed(tests[:-1]), reversed(parts[:-1]), strict=True):
            value = ast.IfExp(copy.deepcopy(test), part.binds[name], value)
        binds[name] = value
    either = ast.BoolOp(ast.Or(), tests)
    if any(part.values for part in parts):
        return _Asked([], [either], binds)
    return _Asked([either], [], binds)


def _sequence(patterns: Sequence[ast.pattern], subject: ast.expr) -> _Asked:
    stars = [i for i, part in enumerate(patterns) if isinstance(part, ast.MatchStar)]
    count = len(patterns) - len(stars)
    test = _runtime("is_sequence", subject, ast.Constant(count), ast.Constant(bool(stars)))
    asked = _Asked([test])
    for i, part in enumerate(patterns):
        if isinstance(part, ast.MatchStar):
            if part.name is not None:
                after = len(patterns) - 1 - i
                asked.binds[part.name] = _runtime(
                    "items_between", subject, ast.Constant(i), ast.Constant(after)
                )
            continue
        place = i if not stars or i < stars[0] else i - len(patterns)
        asked.add(_ask(part, _item(subject, ast.Constant(place))))
    return asked


def _mapping(
    keys: Sequence[ast.expr], patterns: Sequence[ast.pattern], rest: str | None, subject: ast.expr
) -> _Asked:
    wanted = ast.Tuple(list(keys), ast.Load())
    asked = _Asked([_runtime("has_keys", subject, wanted)])
    for key, part in zip(keys, patterns, strict=True):
        asked.add(_ask(part, _item(subject, key)))
    if rest is not None:
        asked.binds[rest] = _runtime("other_items", subject, wanted)
    return asked


def _instance(
    cls: ast.expr,
    patterns: Sequence[ast.pattern],
    names: Sequence[str],
    named: Sequence[ast.pattern],
    subject: ast.expr,
    gone: Sequence[ast.expr],
) -> _Asked:
    attributes = ast.Tuple([ast.Constant(name) for name in names], ast.Load())
    count = ast.Constant(len(patterns))
    others = ast.Tuple(list(gone), ast.Load())
    asked = _Asked([_runtime("is_instance", subject, cls, count, attributes, others)])
    for i, part in enumerate(patterns):
        asked.add(_ask(part, _runtime("part", subject, cls, ast.Constant(i))))
    for name, part in zip(names, named, strict=True):
        asked.add(_ask(part, ast.Attribute(copy.deepcopy(subject), name, ast.Load())))
    return asked


def _runtime(question: str, *args: ast.expr) -> ast.expr:
    """A call of a function of this module, which converted code has as `_lw.matching`."""
    here = ast.Attribute(ast.Name("_lw", ast.Load()), "matching", ast.Load())
    func = ast.Attribute(here, question, ast.Load())
    return ast.Call(func, [copy.deepcopy(arg) for arg in args], [])


def _item(subject: ast.expr, key: ast.expr) -> ast.expr:
    return ast.Subscript(copy.deepcopy(subject), copy.deepcopy(key), ast.Load())


def _all(tests: list[ast.expr]) -> ast.expr | None:
    if len(tests) < 2:
        return tests[0] if tests else None
    return ast.BoolOp(ast.And(), tests)


class _Substitute(ast.NodeTransformer):
    """The names that a pattern binds, replaced by what they will be."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> Any:
        if isinstance(node.ctx, ast.Load) and node.id in self.values:
            return copy.deepcopy(self.values[node.id])
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        every += [arg for arg in (node.args.vararg, node.args.kwarg) if arg is not None]
        return self._without({arg.arg for arg in every}, node)

    def _comprehension(self, node: Any) -> Any:
        targets = {
            child.id
            for part in node.generators
            for child in ast.walk(part.target)
            if isinstance(child, ast.Name)
        }
        return self._without(targets, node)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _without(self, names: set[str], node: ast.AST) -> Any:
        left = {name: value for name, value in self.values.items() if name not in names}
        return _Substitute(left).generic_visit(node)


def _locate(node: ast.stmt, origin: ast.AST) -> ast.stmt:
    for child in ast.walk(node):
        if "lineno" in child._attributes and getattr(child, "lineno", None) is None:
            ast.copy_location(child, origin)
    return node


# -- what patterns check at run time -------------------------------------------------------------------

# Classes whose one positional pattern is the subject itself.
_THEMSELVES = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)
_NUMBERS = (bool, int, float, complex)


def is_singleton(subject: Any, value: Any, gone: tuple[Any, ...]) -> Any:
    """`case None`, `case True`, `case False`; a traced bool is compared."""
    if is_held(subject):
        return subject._lw_is_none(gone) if value is None else False
    if is_traced(subject) and value is not None and _jax.aval_of(subject).dtype == jnp.bool_:
        return subject if value else jnp.logical_not(subject)
    return subject is value


def is_sequence(subject: Any, count: int, more: bool) -> bool:
    if not isinstance(subject, Sequence) or isinstance(subject, str | bytes | bytearray):
        return False
    return len(subject) >= count if more else len(subject) == count


def items_between(subject: Any, before: int, after: int) -> list[Any]:
    return list(subject[before : len(subject) - after])


def has_keys(subject: Any, keys: tuple[Any, ...]) -> bool:
    return isinstance(subject, Mapping) and all(key in subject for key in keys)


def other_items(subject: Any, keys: tuple[Any, ...]) -> dict[Any, Any]:
    return {key: value for key, value in subject.items() if key not in keys}


def is_instance(
    subject: Any, cls: Any, count: int, names: tuple[str, ...], gone: tuple[Any, ...]
) -> Any:
    """`case cls(...)`; earlier cases have taken what is of the classes `gone`, which may hold None."""
    if is_held(subject):
        return subject._lw_is_instance(cls, gone)
    if is_traced(subject) and cls in _NUMBERS:
        here = sys._getframe(1)
        raise UnsupportedSyntaxError(
            f"`case {cls.__name__}(...)` asks for a Python number, and the subject is {type_text(subject)}, whose"
            " value is only known at run time. Compare its values, or ask for its `dtype` in an `if`",
            Location(here.f_code.co_filename, here.f_lineno, here.f_code.co_name),
        )
    if not isinstance(subject, cls):
        return False
    if count > 1 and _is_itself(cls):
        raise TypeError(f"{cls.__name__}() accepts 1 positional sub-pattern ({count} given)")
    if not _is_itself(cls):
        known = getattr(cls, "__match_args__", ())
        if count > len(known):
            raise TypeError(
                f"{cls.__name__}() accepts {len(known)} positional sub-patterns ({count} given)"
            )
        names = (*known[:count], *names)
    return all(hasattr(subject, name) for name in names)


def part(subject: Any, cls: Any, place: int) -> Any:
    """What a positional pattern inside a class pattern is about."""
    return subject if _is_itself(cls) else getattr(subject, cls.__match_args__[place])


def _is_itself(cls: Any) -> bool:
    return not hasattr(cls, "__match_args__") and any(
        builtins.issubclass(cls, kind) for kind in _THEMSELVES
    )
