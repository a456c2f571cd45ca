"""Staged branches: both sides are traced once, their variables joined, and one `lax.cond` emitted.

What the sides leave in a variable decides what becomes of it:

* the same object or the same plain number on both: it stays as it is, outside of the `cond`;
* arrays whose types join: an output of the `cond`, converted on each side;
* a value on one side that is not read if that side ran (it ended in a jump): the other side's value,
  and a placeholder of its type here;
* undefined on one side only: undefined afterwards, with a note of what left it so; only a read raises;
* anything else: an error that names the variable and both types.

Expressions that choose are such branches too: `and`, `or`, conditional expressions, chained comparisons, `in`, and the
built-in functions that would ask a traced value for a plain one (`max`, `min`, `any`, `all`, `int`, `float`, `bool`).
A held value (`core/objects.py`) answers `is`, `isinstance` and `len` itself.
"""

from __future__ import annotations

import builtins
import contextlib
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray

from lanewise import _jax
from lanewise._jax import Traced
from lanewise.core.errors import BranchTypeError, ProgramError, ResultTypeError, ResultUnknown
from lanewise.core.objects import Items, asked, is_held, not_same, same
from lanewise.frontend import values
from lanewise.frontend.values import RESULT, Construct, Undefined, Value, is_traced

_Sides = Callable[[], Sequence[Any]]
_Thunk = Callable[[], Any]
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Is": same,
    "IsNot": not_same,
    "In": lambda a, b: a in b,
    "NotIn": lambda a, b: a not in b,
}


class _Progress(threading.local):
    """How tracing goes on in this thread."""

    provisional = 0  # counts the branches of which only one side could be traced so far
    settled = 0  # that count when the trace of the current program began
    returned: int | None = None  # the line of the `return` met last


progress = _Progress()


@contextlib.contextmanager
def tracing_program() -> Iterator[None]:
    """One program's trace: what goes wrong in it after a branch was left half open may be due to that."""
    before, progress.settled = progress.settled, progress.provisional
    try:
        yield
    finally:
        progress.settled = before


@dataclass(frozen=True)
class Side:
    """One side of a branch, traced: its variables, and where each array leaf is among the outputs."""

    values: tuple[Value, ...]
    traced: Traced
    places: tuple[tuple[int | None, ...], ...]
    returned: int | None = None

    def results(self) -> list[Any]:
        """Replay the side in the current trace and return its variables."""
        flat = self.traced()
        out = []
        for value, places in zip(self.values, self.places, strict=True):
            pairs = zip(value.leaves, places, strict=True)
            leaves = [leaf if i is None or values.is_number(leaf) else flat[i] for leaf, i in pairs]
            out.append(value.rebuild(leaves))
        return out

    def with_value(self, index: int, value: Value) -> Side:
        """Another value in a variable, made of leaves of the side and of plain ones."""
        taken, places = values.with_value(self.values, self.places, index, value)
        return replace(self, values=taken, places=places)


def trace_side(thunk: _Sides) -> Side:
    """Trace a side on no operands; values of enclosing traces are closed over."""
    taken: list[Value] = []

    def run() -> list[Any]:
        taken.extend(values.take_apart(value) for value in thunk())
        return [leaf for value in taken for leaf in value.leaves if values.is_array(leaf)]

    before, progress.returned = progress.returned, None
    traced = _jax.trace(run, [])
    side = Side(tuple(taken), traced, places_of(taken), progress.returned)
    progress.returned = progress.returned or before
    return side


def places_of(taken: Sequence[Value]) -> tuple[tuple[int | None, ...], ...]:
    """For each leaf of each variable its position among all array leaves, or None."""
    count = 0
    out = []
    for value in taken:
        row: list[int | None] = []
        for leaf in value.leaves:
            row.append(count if values.is_array(leaf) else None)
            count += values.is_array(leaf)
        out.append(tuple(row))
    return tuple(out)


@dataclass(frozen=True)
class _Output:
    """An output of the `cond`: its type and, for each side, the position and the raw leaf."""

    aval: ShapedArray
    sources: tuple[tuple[int, Any] | None, tuple[int, Any] | None]


def truth(value: Any, construct: Construct) -> Any:
    """The truth of a value as a condition: a plain bool, or a traced boolean scalar."""
    value = asked(value)
    if not values.is_traced(value):
        return bool(value)
    aval = _jax.aval_of(value)
    if aval.shape != () or _jax.is_extended(aval.dtype):
        raise BranchTypeError(
            f"the condition of this {construct.what} is {values.type_text(aval)}; a condition is a single "
            "boolean. Reduce it with `jnp.all` or `jnp.any`, or choose elementwise with `jnp.where`, "
            "`&`, `|` and `~`",
            construct.location,
        )
    return value if aval.dtype == jnp.bool_ else value != 0


def stage_branch(pred: Any, then: _Sides, orelse: _Sides, construct: Construct) -> list[Any]:
    """Trace both sides and emit the `cond`; returns the variables' values after it."""
    sides: list[Side | None] = []
    problems: list[Exception] = []
    for thunk in (then, orelse):
        try:
            sides.append(trace_side(thunk))
        except Exception as problem:
            half_open = progress.provisional > progress.settled
            if not (isinstance(problem, ResultUnknown) or half_open):
                raise
            sides.append(None)
            problems.append(problem)
    first, second = sides
    if first is None and second is None:
        raise next((p for p in problems if not isinstance(p, ResultUnknown)), problems[0])
    if first is None or second is None:
        known = first or second
        assert known is not None
        progress.provisional += 1
        return known.results()
    return merge(pred, first, second, construct)


def merge(pred: Any, first: Side, second: Side, construct: Construct) -> list[Any]:
    outputs: list[_Output] = []
    finish = [
        _join(name, index, first, second, construct, outputs)
        for index, name in enumerate(construct.names[: len(first.values)])
    ]
    results: Sequence[Any] = ()
    if outputs or first.traced.jaxpr.effects or second.traced.jaxpr.effects:
        branches = [_branch(side, which, outputs) for which, side in enumerate((first, second))]
        results = lax.cond(pred, *branches)
    return [build(results) for build in finish]


def _branch(side: Side, which: int, outputs: Sequence[_Output]) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        flat = side.traced()
        out = []
        for output in outputs:
            source = output.sources[which]
            if source is None:
                out.append(values.placeholder(output.aval))
            else:
                place, leaf = source
                value = leaf if values.is_number(leaf) else flat[place]
                out.append(values.as_type(value, output.aval))
        return out

    return run


def _join(
    name: str, index: int, first: Side, second: Side, construct: Construct, outputs: list[_Output]
) -> Callable[[Sequence[Any]], Any]:
    """Decide on one variable; returns how to build it from the `cond`'s results."""
    a, b = first.values[index], second.values[index]
    dead_a, dead_b = name in construct.dead_then, name in construct.dead_else
    if a.undefined is not None or b.undefined is not None:
        if name == RESULT:  # a path that has not returned yet: its flags show that
            dead_a, dead_b = a.undefined is not None, b.undefined is not None
        if a.undefined is None and dead_b:
            return _one_sided(index, first, 0, outputs)
        if b.undefined is None and dead_a:
            return _one_sided(index, second, 1, outputs)
        left = _left_undefined(name, a.undefined, b.undefined, construct)
        return lambda results: left
    if dead_a != dead_b:
        live, which = (second, 1) if dead_a else (first, 0)
        if not _fits(a, b, which):
            return _one_sided(index, live, which, outputs)
    if a.treedef != b.treedef:
        filled = values.none_filled(a, b)
        if filled is None:
            raise _mismatch(name, index, first, second, construct)
        a, b = filled
        first, second = first.with_value(index, a), second.with_value(index, b)
    build: list[Callable[[Sequence[Any]], Any]] = []
    for i, (x, y) in enumerate(zip(a.leaves, b.leaves, strict=True)):
        place_a, place_b = first.places[index][i], second.places[index][i]
        if values.same_leaf(x, y):
            build.append(_constant(x))
        elif place_a is None or place_b is None:
            if place_a is not None or place_b is not None or not values.same_fixed(x, y):
                raise _mismatch(name, index, first, second, construct)
            build.append(_constant(x))
        else:
            aval = values.join(_jax.aval_of(x), _jax.aval_of(y))
            if aval is None:
                raise _mismatch(name, index, first, second, construct)
            build.append(_pick(len(outputs)))
            outputs.append(_Output(aval, ((place_a, x), (place_b, y))))
    return lambda results: a.rebuild([leaf(results) for leaf in build])


def _constant(value: Any) -> Callable[[Sequence[Any]], Any]:
    return lambda results: value


def _pick(place: int) -> Callable[[Sequence[Any]], Any]:
    return lambda results: results[place]


def _one_sided(
    index: int, side: Side, which: int, outputs: list[_Output]
) -> Callable[[Sequence[Any]], Any]:
    """The variable as one side leaves it; the other side gives placeholders."""
    value = side.values[index]
    build: list[Callable[[Sequence[Any]], Any]] = []
    for leaf, place in zip(value.leaves, side.places[index], strict=True):
        if place is None or values.is_number(leaf):
            build.append(_constant(leaf))
            continue
        build.append(_pick(len(outputs)))
        source = (place, leaf)
        sources = (source, None) if which == 0 else (None, source)
        outputs.append(_Output(_jax.aval_of(leaf), sources))
    return lambda results: value.rebuild([leaf(results) for leaf in build])


def _fits(a: Value, b: Value, which: int) -> bool:
    """Whether the dead side's value can stand for itself under the live side's type."""
    live, dead = (b, a) if which == 1 else (a, b)
    if live.treedef != dead.treedef:
        return False
    for x, y in zip(live.leaves, dead.leaves, strict=True):
        if values.is_array(x) != values.is_array(y):
            return False
        if not values.is_array(x):
            if not values.same_fixed(x, y):
                return False
        else:
            aval = _jax.aval_of(x)
            joined = values.join(aval, _jax.aval_of(y))
            if joined is None or not values.same_type(joined, aval):
                return False
    return True


def _left_undefined(
    name: str, a: Undefined | None, b: Undefined | None, construct: Construct
) -> Undefined:
    if a is not None and b is not None:
        return a if a.why else b
    lacking = "when its condition holds" if a is not None else "when its condition does not hold"
    earlier = a or b
    if earlier is not None and earlier.why:
        return earlier
    return Undefined(
        name,
        f"the {construct.what} of line {construct.line} leaves it undefined {lacking}",
        f"Assign `{name}` on both sides, or before line {construct.line}",
    )


def _mismatch(
    name: str, index: int, first: Side, second: Side, construct: Construct
) -> ProgramError:
    found = values.mismatch(first.values[index], second.values[index])
    if name == RESULT:
        return result_mismatch(found, first.returned, second.returned, construct)
    if not name:
        subject = f"the value{found.path and ' at ' + found.path} of this {construct.what}"
    else:
        subject = f"`{name}{found.path}`"
    return BranchTypeError(
        f"{subject} is {found.first} when the condition of the {construct.what} holds and {found.second} when "
        "it does not. Give it the same type on both sides" + _how(found),
        construct.location,
    )


def result_mismatch(
    found: values.Mismatch, first: int | None, second: int | None, construct: Construct
) -> ProgramError:
    """Two paths return different types; the lines of their `return` are named where they are known."""
    lines = [f" (line {line})" if line else "" for line in (first, second)]
    return ResultTypeError(
        f"the function's result{found.path and ' at ' + found.path} is {found.first}{lines[0]} on one "
        f"path and {found.second}{lines[1]} on another; they part at the {construct.what} of line {construct.line}."
        " Return the same type on every path" + _how(found),
        construct.location,
    )


def _how(found: values.Mismatch) -> str:
    """The fix, as far as the two types show it."""
    first, second = found.first.split(" ")[0], found.second.split(" ")[0]
    if "[" in first and "[" in second and first.split("[")[1] == second.split("[")[1]:
        return ", for example with `.astype(...)`"
    if "None" in (found.first, found.second):
        return "; None is not an array"
    return ""


# -- expressions -------------------------------------------------------------------------------------


class Operators:
    """The part of a `Runtime` that expressions call."""

    def __init__(self, constructs: Sequence[Construct]) -> None:
        self.constructs = tuple(constructs)
        self._local = threading.local()
        # The lines of `with` statements that were last entered with what only names code.
        self.naming: set[int] = set()

    @property
    def staged(self) -> list[int]:
        """The statements being staged now in this thread, innermost last."""
        if not hasattr(self._local, "staged"):
            self._local.staged = []
        return self._local.staged

    @contextlib.contextmanager
    def staging(self, k: int) -> Iterator[None]:
        self.staged.append(k)
        try:
            yield
        finally:
            self.staged.pop()

    def choose(self, k: int, test: Any, then: _Thunk, orelse: _Thunk) -> Any:
        """A conditional expression."""
        test = asked(test)
        if not is_traced(test):
            return then() if test else orelse()
        return self._choose(k, truth(test, self.constructs[k]), then, orelse)

    def _choose(self, k: int, pred: Any, then: _Thunk, orelse: _Thunk) -> Any:
        construct = self.constructs[k]
        construct.forbid_staging(self.naming)
        with self.staging(k):
            (value,) = stage_branch(pred, lambda: (then(),), lambda: (orelse(),), construct)
        return value

    def truth(self, k: int, value: Any) -> Any:
        return truth(value, self.constructs[k])

    is_, is_not = staticmethod(same), staticmethod(not_same)

    def not_(self, k: int, value: Any) -> Any:
        value = asked(value)
        if not is_traced(value):
            return not value
        return jnp.logical_not(truth(value, self.constructs[k]))

    def and_(self, k: int, value: Any, *others: _Thunk) -> Any:
        """`and`, with the values of all operands but the first still to be computed."""
        if not others:
            return value
        if not is_traced(asked(value)):
            return self.and_(k, others[0](), *others[1:]) if value else value
        pred = truth(value, self.constructs[k])
        otherwise = False if _is_bool(value) else value
        rest = others[1:]
        return self._choose(k, pred, lambda: self.and_(k, others[0](), *rest), lambda: otherwise)

    def or_(self, k: int, value: Any, *others: _Thunk) -> Any:
        if not others:
            return value
        if not is_traced(asked(value)):
            return value if value else self.or_(k, others[0](), *others[1:])
        pred = truth(value, self.constructs[k])
        chosen = True if _is_bool(value) else value
        rest = others[1:]
        return self._choose(k, pred, lambda: chosen, lambda: self.or_(k, others[0](), *rest))

    def compare(self, k: int, left: Any, *rest: Any) -> Any:
        """A chain of comparisons: operator, operand still to be computed, operator, operand..."""
        right = rest[1]()
        result = _COMPARE[rest[0]](left, right)
        if len(rest) == 2:
            return result
        return self.and_(k, result, lambda: self.compare(k, right, *rest[2:]))

    def in_(self, k: int, value: Any, container: Any) -> Any:
        """`in`, where the value or what it is looked for among is traced."""
        if isinstance(container, jax.Array) and (is_traced(container) or is_traced(value)):
            return jnp.any(container == value)
        if isinstance(container, list | tuple | set | frozenset | range) and (
            is_traced(value) or any(map(is_traced, container))
        ):
            tests = [lambda item=item: value == item for item in container]
            return self.or_(k, False, *tests) if tests else False
        return value in container

    def not_in(self, k: int, value: Any, container: Any) -> Any:
        return self.not_(k, self.in_(k, value, container))

    def builtin(self, k: int, fun: Any, *args: Any, **kwargs: Any) -> Any:
        """Call what the name of a built-in function refers to."""
        if fun is builtins.isinstance and len(args) == 2 and is_held(args[0]):
            return args[0]._lw_is_instance(args[1])
        if fun is builtins.len and len(args) == 1 and isinstance(args[0], Items):
            return args[0]._lw_length()
        if kwargs or len(args) == 0:
            return fun(*args, **kwargs)
        only: Any = args[0] if len(args) == 1 else None
        if fun is builtins.max or fun is builtins.min:
            items = list(args) if len(args) > 1 else None
            if items is None and isinstance(only, list | tuple):
                items = list(only)
            if items is not None and any(map(is_traced, items)):
                return self._extreme(k, items, operator.gt if fun is builtins.max else operator.lt)
        elif len(args) > 1:
            pass
        elif (fun is builtins.any or fun is builtins.all) and not isinstance(only, jax.Array):
            items = list(only)
            if any(map(is_traced, items)):
                test = self.or_ if fun is builtins.any else self.and_
                return test(k, *self._each_truth(k, items))
            return fun(items)
        elif is_traced(only) and _jax.aval_of(only).shape == ():
            if fun is builtins.bool:
                return truth(only, self.constructs[k])
            if fun is builtins.int or fun is builtins.float:
                number = jnp.trunc(only) if fun is builtins.int and _floats(only) else only
                return values.convert(number, _jax.aval_of(fun(0)))
        return fun(*args)

    def _each_truth(self, k: int, items: Sequence[Any]) -> list[Any]:
        """The first truth, and the others still to be computed."""
        first, *others = items
        late = [lambda item=item: truth(item, self.constructs[k]) for item in others]
        return [truth(first, self.constructs[k]), *late]

    def _extreme(self, k: int, items: Sequence[Any], beats: Callable[[Any, Any], Any]) -> Any:
        """As Python's `max` and `min` do it: the first of the extreme ones stays."""
        best = items[0]
        for item in items[1:]:
            better = truth(beats(item, best), self.constructs[k])
            best = (
                jnp.where(better, item, best) if is_traced(better) else (item if better else best)
            )
        return best


def _is_bool(value: Any) -> bool:
    return not is_held(value) and _jax.aval_of(value).dtype == jnp.bool_


def _floats(value: Any) -> bool:
    return bool(jnp.issubdtype(_jax.aval_of(value).dtype, jnp.floating)) and values.is_array(value)
