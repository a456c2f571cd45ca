"""Staged loops: the body is traced until the types of what it carries settle, then emitted once.

A loop starts with the types its variables have at the entry. One pass over the body gives the types
they have at its end; where the two join to something wider (a Python `0` that becomes a float32) the
entry is converted and the body traced again. What the body gives back untouched is not part of the
carry. A variable that is undefined at the entry is undefined in the traced body too, so that a read
of it is found there; if the body assigns it, it leaves the loop defined only when the loop is known to
run at least once, or when only a jump out of the loop leads to its readers.

A `while` whose first test is plain but whose later ones may be traced (`done = False; while not done`)
is looked at before it runs: its first iteration is traced aside (`try_once`); if the next test then is traced,
the loop is staged from its start and the trial forgotten; if not, the trial becomes the first iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax import lax
from jax.core import ShapedArray

from lanewise import _jax
from lanewise._jax import Traced
from lanewise.core.errors import LoopTypeError, ProgramError
from lanewise.core.objects import asked
from lanewise.frontend import values
from lanewise.frontend.branch import Side, places_of, progress, result_mismatch, trace_side, truth
from lanewise.frontend.values import RESULT, Construct, Undefined, Value, Variables, is_traced

_MOST_PASSES = 16


@dataclass(frozen=True)
class LoopSpec:
    """A loop to stage. `body` is given one slice of each of `xs`; without a `test` it is a scan."""

    variables: Variables
    body: Callable[[Sequence[Any]], None]
    test: Callable[[], Any] | None = None
    xs: tuple[Any, ...] = ()
    length: int | None = None
    at_least_once: bool = False

    @property
    def construct(self) -> Construct:
        return self.variables.construct


@dataclass(frozen=True)
class Stageable:
    """A sequence that a staged loop can step through.

    `item(k, slices)` is the k-th item, given the k-th slice of each of `xs`; `counts` says whether it
    reads `k`. `length` is a plain int, or traced. `python` is what plain Python would iterate, where
    the length is plain: short ones, and bodies that cannot be staged, are unrolled over it.
    """

    length: Any
    item: Callable[[Any, Sequence[Any]], Any]
    xs: tuple[Any, ...] = ()
    counts: bool = False
    python: Callable[[], Any] | None = None


class Counting:
    """A loop's hidden index, as one more variable in front of the loop's own."""

    def __init__(self, variables: Variables) -> None:
        self.index: Any = 0
        construct = variables.construct

        def assign(new: tuple[Any, ...]) -> None:
            self.index = new[0]
            variables.set(new[1:])

        self.variables = Variables(
            replace(construct, names=("_lw_index", *construct.names), live=construct.live + 1),
            lambda: (self.index, *variables.get()),
            assign,
        )


@dataclass(frozen=True)
class _Pass:
    """One traced pass over the body, from the entry types to what it leaves."""

    traced: Traced
    outs: tuple[Value, ...]
    places: tuple[tuple[int | None, ...], ...]
    unchanged: frozenset[tuple[int, int]]

    def with_out(self, index: int, value: Value) -> _Pass:
        """Another value at the end of the body, made of its leaves and of plain ones."""
        outs, places = values.with_value(self.outs, self.places, index, value)
        return replace(self, outs=outs, places=places)


_Types = list[list[ShapedArray | None]]


def stage_loop(spec: LoopSpec) -> None:
    """Trace and emit the loop, and leave its results in the variables."""
    construct = spec.construct
    saved = spec.variables.get()
    entry = [values.take_apart(value) for value in spec.variables.read()]
    for index, name in enumerate(construct.names[: construct.live]):
        if name in construct.dead_entry and entry[index].undefined is None:
            entry[index] = Value((), None, Undefined(name))
    try:
        entry, types, done = _settle(spec, entry)
        test = _trace_test(spec, entry, types) if spec.test is not None else None
    finally:
        spec.variables.set(saved)
    _emit(spec, entry, types, done, test)


def _settle(spec: LoopSpec, entry: list[Value]) -> tuple[list[Value], _Types, _Pass]:
    types: _Types = [_types_of(value) for value in entry]
    for _ in range(_MOST_PASSES):
        done = _trace_body(spec, entry, types)
        again = False
        for index, out in enumerate(done.outs):
            before = entry[index]
            if before.undefined is not None:
                continue
            if out.undefined is not None and not out.undefined.why:
                continue  # every path leaves the loop before it matters: a dead temporary
            if out.undefined is not None:
                entry[index] = Value((), None, out.undefined)
                types[index] = []
                again = True
                continue
            if before.treedef != out.treedef and (filled := values.none_filled(before, out)):
                if filled[0].treedef != before.treedef:
                    entry[index], types[index] = filled[0], _types_of(filled[0])
                    again = True
                    continue
                out = filled[1]
                done = done.with_out(index, out)
            joined = _join_variable(spec.construct, index, before, types[index], out)
            again |= not _equal_types(joined, types[index])
            types[index] = joined
        if not again:
            return entry, types, done
    raise LoopTypeError("the types of this loop's variables never settle", spec.construct.location)


def _types_of(value: Value) -> list[ShapedArray | None]:
    return [_jax.aval_of(leaf) if values.is_array(leaf) else None for leaf in value.leaves]


def _equal_types(a: Sequence[ShapedArray | None], b: Sequence[ShapedArray | None]) -> bool:
    return all(
        x is y or (x is not None and y is not None and values.same_type(x, y))
        for x, y in zip(a, b, strict=True)
    )


def _join_variable(
    construct: Construct, index: int, before: Value, types: list[ShapedArray | None], out: Value
) -> list[ShapedArray | None]:
    if before.treedef != out.treedef:
        raise _mismatch(construct, index, before, out)
    joined: list[ShapedArray | None] = []
    for leaf, aval, after in zip(before.leaves, types, out.leaves, strict=True):
        if aval is None:
            if values.is_array(after) or not values.same_fixed(leaf, after):
                raise _mismatch(construct, index, before, out)
            joined.append(None)
            continue
        wider = values.join(aval, _jax.aval_of(after)) if values.is_array(after) else None
        if wider is None:
            raise _mismatch(construct, index, before, out)
        joined.append(wider)
    return joined


def _mismatch(construct: Construct, index: int, before: Value, out: Value) -> ProgramError:
    name, found = construct.names[index], values.mismatch(before, out)
    if name == RESULT:
        return result_mismatch(found, None, None, construct)
    return LoopTypeError(
        f"`{name}{found.path}` is {found.first} before the {construct.what} and {found.second} after one "
        "iteration; a loop's variables keep their type, shape and structure. Start with the type the "
        "body gives it, or convert it in the body",
        construct.location,
    )


def _load(spec: LoopSpec, entry: Sequence[Value], arrays: Sequence[Any]) -> None:
    """Put arrays into the variables, in the containers of the entry."""
    out = []
    for value, row in zip(entry, places_of(entry), strict=True):
        pairs = zip(value.leaves, row, strict=True)
        out.append(value.rebuild([leaf if i is None else arrays[i] for leaf, i in pairs]))
    spec.variables.write(out)


def _flat(types: _Types) -> list[ShapedArray]:
    return [aval for row in types for aval in row if aval is not None]


def _trace_body(spec: LoopSpec, entry: list[Value], types: _Types) -> _Pass:
    taken: list[Value] = []
    inputs: list[Any] = []
    slices = [_slice_type(x) for x in spec.xs]

    def run(*args: Any) -> list[Any]:
        items, arrays = args[: len(slices)], args[len(slices) :]
        inputs.extend(arrays)
        _load(spec, entry, arrays)
        spec.body(items)
        taken.extend(values.take_apart(value) for value in spec.variables.read())
        return [leaf for value in taken for leaf in value.leaves if values.is_array(leaf)]

    traced = _jax.trace(run, [*slices, *_flat(types)])
    unchanged = set()
    for index, (row, out) in enumerate(zip(places_of(entry), taken, strict=True)):
        if out.undefined is not None:
            unchanged.update((index, i) for i in range(len(row)))
        elif len(row) == len(out.leaves):
            for i, (place, leaf) in enumerate(zip(row, out.leaves, strict=True)):
                if place is None:
                    continue
                if leaf is inputs[place] or values.same_number(leaf, entry[index].leaves[i]):
                    unchanged.add((index, i))
    return _Pass(traced, tuple(taken), places_of(taken), frozenset(unchanged))


def _slice_type(x: Any) -> ShapedArray:
    aval = _jax.aval_of(x)
    return _jax.shaped(aval.shape[1:], aval.dtype, bool(aval.weak_type))


def _trace_test(spec: LoopSpec, entry: list[Value], types: _Types) -> Traced:
    assert spec.test is not None
    test = spec.test

    def run(*arrays: Any) -> list[Any]:
        _load(spec, entry, arrays)
        return [truth(test(), spec.construct)]

    return _jax.trace(run, _flat(types))


@dataclass(frozen=True)
class _Slot:
    """One array that the loop carries: its type, where the body reads it and where it writes it."""

    aval: ShapedArray
    start: Any
    read: int | None
    write: int
    leaf: Any


def _emit(
    spec: LoopSpec, entry: list[Value], types: _Types, done: _Pass, test: Traced | None
) -> None:
    fixed: dict[int, Any] = {}  # what the body reads and never changes
    slots: list[_Slot] = []
    finish: list[Callable[[Sequence[Any]], Any]] = []
    reads = places_of(entry)
    for index, (before, out) in enumerate(zip(entry, done.outs, strict=True)):
        build: list[Any] = []
        if before.undefined is not None:
            finish.append(_finish_born(spec, index, out, done, slots))
            continue
        for i, leaf in enumerate(before.leaves):
            place = reads[index][i]
            aval = types[index][i]
            if place is None or aval is None:
                build.append((None, leaf))
            elif (index, i) in done.unchanged:
                fixed[place] = values.as_type(leaf, aval)
                build.append((None, leaf))
            else:
                write = done.places[index][i]
                assert write is not None
                build.append((len(slots), None))
                start = values.as_type(leaf, aval)
                slots.append(_Slot(aval, start, place, write, out.leaves[i]))
        finish.append(_finish(before, build))

    count = len(_flat(types))

    def assemble(carry: Sequence[Any]) -> list[Any]:
        arrays: list[Any] = [fixed.get(place) for place in range(count)]
        for slot, value in zip(slots, carry, strict=True):
            if slot.read is not None:
                arrays[slot.read] = value
        return arrays

    def body(carry: Sequence[Any], items: Sequence[Any]) -> list[Any]:
        flat = done.traced(*items, *assemble(carry))
        raw = [slot.leaf if values.is_number(slot.leaf) else flat[slot.write] for slot in slots]
        return [values.as_type(value, slot.aval) for value, slot in zip(raw, slots, strict=True)]

    start = [slot.start for slot in slots]
    if test is not None:
        final = lax.while_loop(
            lambda carry: test(*assemble(carry))[0], lambda carry: body(carry, ()), start
        )
    else:
        final, _ = lax.scan(
            lambda carry, items: (body(carry, items), None), start, spec.xs, length=spec.length
        )
    spec.variables.write([build(final) for build in finish])


def _finish(before: Value, build: list[Any]) -> Callable[[Sequence[Any]], Any]:
    def run(final: Sequence[Any]) -> Any:
        return before.rebuild([leaf if at is None else final[at] for at, leaf in build])

    return run


def _finish_born(
    spec: LoopSpec, index: int, out: Value, done: _Pass, slots: list[_Slot]
) -> Callable[[Sequence[Any]], Any]:
    """A variable that the loop's body is the first to assign."""
    construct = spec.construct
    name = construct.names[index]
    if out.undefined is not None:
        left = out.undefined
        return lambda final: left
    if not (spec.at_least_once or name in construct.dead_entry or name == RESULT):
        left = Undefined(
            name,
            f"the {construct.what} of line {construct.line} assigns it, but may run zero times",
            f"Assign `{name}` before line {construct.line}",
        )
        return lambda final: left
    build: list[Any] = []
    for leaf, write in zip(out.leaves, done.places[index], strict=True):
        if write is None or values.is_number(leaf):
            build.append((None, leaf))
            continue
        aval = _jax.aval_of(leaf)
        build.append((len(slots), None))
        slots.append(_Slot(aval, values.placeholder(aval), None, write, leaf))
    return _finish(out, build)


def try_once(
    variables: Variables, test: Callable[[], Any], body: Callable[[], None]
) -> tuple[Side | None, bool]:
    """Trace one iteration aside: what it did (None: do it again), and whether the next test is traced."""
    saved, turn = variables.get(), variables.from_here(body)
    traced_next: list[bool] = []
    met = progress.provisional

    def run() -> list[Any]:
        after = turn()
        if progress.provisional == met:
            traced_next.append(is_traced(aside(test)))
        return after

    try:
        side = trace_side(run)
    finally:
        variables.set(saved)
    if any(traced_next):
        return None, True
    fixed = [leaf for value in side.values for leaf in value.leaves if not values.is_array(leaf)]
    # A function or an object of the user's may hold what was traced aside: then it is made anew.
    simple = all(isinstance(leaf, str | bytes) for leaf in fixed)
    return (side if simple else None), False


def aside(test: Callable[[], Any]) -> Any:
    """What a test gives, without leaving its operations in the current trace."""
    seen: list[Any] = []

    def run() -> list[Any]:
        seen.append(test())
        return []

    _jax.trace(run, [])
    return asked(seen[0])
