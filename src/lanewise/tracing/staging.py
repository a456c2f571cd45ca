"""How a program is traced, recursion above all.

A call met while its own function is still being traced cannot be traced again: it becomes a `call`
equation, whose result type must be known. The first round does not know it, so the call raises
`ResultUnknown`; branch tracing takes the type from the side that does not recurse. The next round
assumes that type, and so on until the type that comes out is the type that went in (weak types and
promotions may need a round more). Functions that call each other settle together: the outermost of
them owns the table, as in Tarjan's strongly connected components. A function that calls nothing in
progress is a program of its own, and its call is an ordinary nested `program_p`.

A recursion called with Python scalars may call itself at types that are stronger, and nothing else: see
`weak_types.py`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from lanewise import _jax
from lanewise.core.errors import (
    Location,
    ProgramError,
    ResultTypeError,
    ResultUnknown,
    TransformError,
)
from lanewise.core.objects import let_go, none_filled
from lanewise.core.program import Function, Program, call_p
from lanewise.frontend import values
from lanewise.frontend.branch import progress, tracing_program
from lanewise.tracing import weak_types
from lanewise.tracing.blame import name_the_line
from lanewise.tracing.captured import Captured, Places
from lanewise.tracing.signature import (
    DYNAMIC,
    CallStatics,
    StaticLeaves,
    as_hashable,
    is_array_like,
    split_leaves,
)

MAX_ROUNDS = 12


@dataclass(frozen=True)
class ResultType:
    """The structure and the types of a function's results."""

    tree: Any
    static: StaticLeaves
    avals: tuple[_jax.ShapedArray, ...]

    def join(self, other: ResultType, name: str) -> ResultType:
        if self.tree != other.tree:
            self, other = _none_filled(self, other)
        if (self.tree, self.static) != (other.tree, other.static):
            raise ResultTypeError(
                f"the result of `{name}` changes its structure with the path taken: {self} on one, {other} on another."
                " Return the same structure everywhere."
            )
        joined = [values.join(a, b) for a, b in zip(self.avals, other.avals, strict=True)]
        for before, after, both in zip(self.avals, other.avals, joined, strict=True):
            if both is None:
                raise ResultTypeError(
                    f"the result type of `{name}` never settles: a path that does not recurse gives"
                    f" {before.str_short()}, and with it the recursive path gives {after.str_short()}."
                    " Convert the result, e.g. with `.astype`, so that both agree."
                )
        return ResultType(
            self.tree, self.static, tuple(aval for aval in joined if aval is not None)
        )

    def _with(self, leaves: Sequence[Any]) -> Any:
        return jax.tree.unflatten(self.tree, self.static.join(leaves))

    def __str__(self) -> str:
        return str(self._with([aval.str_short() for aval in self.avals]))


def _none_filled(one: ResultType, other: ResultType) -> tuple[ResultType, ResultType]:
    """None in a result as a value that may be None, where the other has one."""
    try:
        filled = none_filled(one._with(one.avals), other._with(other.avals))
    except (ValueError, TypeError):
        return one, other
    made = []
    for value in filled:
        leaves, tree = jax.tree.flatten(value)
        avals = [
            x if isinstance(x, _jax.ShapedArray) else _jax.aval_of(x) if is_array_like(x) else None
            for x in leaves
        ]
        static = StaticLeaves(
            tuple(as_hashable(x) if a is None else DYNAMIC for x, a in zip(leaves, avals))
        )
        made.append(ResultType(tree, static, tuple(a for a in avals if a is not None)))
    return made[0], made[1]


@dataclass(frozen=True, eq=False)
class Staged:
    """A program traced at one signature, the values it captured, and how to rebuild its result.

    `avals`: the types it takes. `stronger`: those with which it calls itself, if they differ from these in weak types.
    `members`: what its functions are traces of.
    """

    program: Program
    captures: tuple[Any, ...]
    result: ResultType
    captured: Captured
    avals: tuple[_jax.ShapedArray, ...]
    stronger: tuple[_jax.ShapedArray, ...] | None
    members: tuple[tuple[Source, Key], ...]

    @property
    def code(self) -> _jax.Jaxpr:
        return self.program.functions[self.program.entry].jaxpr


class Key(NamedTuple):
    """What a trace depends on: the static half of the arguments, the types of the rest, JAX's settings."""

    statics: CallStatics
    avals: tuple[_jax.ShapedArray, ...]
    context: Hashable


@dataclass(frozen=True, eq=False)
class Source:
    """A Python function to be traced, and what its traces gave so far."""

    name: str
    python: Callable[..., Any]
    from_source: bool
    cache: dict[Key, Staged] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return Source, (self.name, self.python, self.from_source)

    @functools.cached_property
    def traceable(self) -> Callable[..., Any]:
        if not self.from_source:
            return self.python
        # Imported where it is used: lifted functions do not need it.
        from lanewise.frontend.python import convert

        return convert(self.python)

    @functools.cached_property
    def places(self) -> Places:
        """What its code reads from outside."""
        return Places(self.python, self.name)

    @property
    def location(self) -> Location | None:
        from lanewise.frontend.python import location_of

        return location_of(self.python)


_EntryKey = tuple[int, Key]


@dataclass(eq=False)
class Entry:
    """A function being traced, at one signature. `met`: the entries that its last round added to the table."""

    source: Source
    key: Key
    name: str
    depth: int
    result: ResultType | None = None
    traced: _jax.Traced | None = None
    trace: Any = None
    lowest_called: int = 0
    stronger: tuple[_jax.ShapedArray, ...] | None = None
    met: list[_EntryKey] = field(default_factory=list)

    @property
    def place(self) -> _EntryKey:
        return id(self.source), self.key

    @property
    def is_inner(self) -> bool:
        """Whether it calls a function around it, so that the two settle together."""
        return self.lowest_called < self.depth

    def is_of(self, source: Source, key: Key) -> bool:
        """Whether it is a trace of this function with these static arguments, whatever the types."""
        mine = (self.key.statics, self.key.context)
        return self.source is source and mine == (key.statics, key.context)


class _Build(threading.local):
    """What is being traced on this thread; `stack` holds the entries in progress, outermost first."""

    def __init__(self) -> None:
        self.entries: dict[_EntryKey, Entry] = {}
        self.stack: list[Entry] = []
        # Entries of the last round: their names and types are where the next round starts.
        self.remembered: dict[_EntryKey, Entry] = {}
        self.unknowns = 0


_build = _Build()
_names_taken: dict[str, int] = {}
_names_lock = threading.Lock()


def _fresh_name(base: str) -> str:
    with _names_lock:
        count = _names_taken.get(base, 0)
        _names_taken[base] = count + 1
    return f"{base}.{count}" if count else base


def stage(
    source: Source, statics: CallStatics, dynamic: Sequence[Any]
) -> tuple[Staged | Entry, list[Any]]:
    """Trace a function at the types of its arguments, or find the trace, done or still in progress.

    Gives with it the operands: the arguments `dynamic` as arrays of the types the trace takes.
    """
    operands = [_as_array(leaf) for leaf in dynamic]
    avals = tuple(_jax.typed_without_mesh(_jax.aval_of(leaf)) for leaf in operands)
    with _jax.without_mesh():
        key = Key(statics, avals, _jax.trace_context())
    in_progress = _build.entries.get((id(source), key))
    if in_progress is not None:
        return in_progress, operands
    for entry in _build.entries.values():
        # A recursive call with Python scalars takes the types of the recursion it is part of.
        if entry.is_of(source, key) and _fits(key.avals, entry.key.avals):
            return entry, _converted(operands, entry.key.avals)
    found = _staged(source, key)
    _note_stronger([(source, key)] if isinstance(found, Entry) else found.members)
    return found, operands if isinstance(found, Entry) else _converted(operands, found.avals)


def _note_stronger(reached: Sequence[tuple[Source, Key]]) -> None:
    """See which functions in progress are reached again at types that differ from theirs in weak types."""
    for entry in _build.entries.values():
        for source, key in reached:
            if entry.is_of(source, key) and weak_types.weaker(entry.key.avals, key.avals):
                so_far = entry.stronger or entry.key.avals
                entry.stronger = weak_types.stronger(so_far, key.avals)


def _staged(source: Source, key: Key) -> Staged | Entry:
    """The trace at these types, or at stronger ones that serve for them too."""
    found = source.cache.get(key)
    if found is not None:
        found.captured.check()
        return found
    found = _settle(source, key)
    if isinstance(found, Entry) or found.stronger is None:
        return found
    strong = _staged(source, key._replace(avals=found.stronger))
    if isinstance(strong, Entry) or found.result != strong.result:
        return found
    if not weak_types.same_code(found.code, strong.code):
        return found
    if key in source.cache:
        source.cache[key] = strong
    return strong


def _converted(operands: Sequence[Any], avals: Sequence[_jax.ShapedArray]) -> list[Any]:
    return [values.convert(x, aval) for x, aval in zip(operands, avals, strict=True)]


def inside_a_program() -> bool:
    """Whether a program is being traced on this thread."""
    return bool(_build.stack)


def call_in_progress(entry: Entry, operands: Sequence[Any]) -> Any:
    """Call a function whose trace is not done: a `call` equation, once its result type is known."""
    _note_call(entry.depth)
    if entry.result is None:
        _build.unknowns += 1
        raise ResultUnknown(entry.name)
    result = entry.result
    answers = call_p.bind(*operands, name=entry.name, out_avals=result.avals, jvp_of=None)
    return jax.tree.unflatten(result.tree, result.static.join(answers))


@_jax.ROOM
def _settle(source: Source, key: Key) -> Staged | Entry:
    """Trace to a fixed point. Gives a `Staged`, or the entry if it belongs to an outer recursion."""
    for aval in key.avals:
        if _jax.is_symbolic(*aval.shape):
            raise TransformError(
                f"`{source.name}` takes an array of the symbolic shape {aval.shape}: a lane's arrays have known sizes."
                " Export it for fixed shapes.",
                source.location,
            )
    source.places.begin()
    last = _build.remembered.get((id(source), key))
    name = last.name if last else _fresh_name(source.name)
    entry = Entry(source, key, name, len(_build.stack), last.result if last else None)
    unknown_outside, half_open_outside = _build.unknowns, progress.provisional
    _build.stack.append(entry)
    try:
        _find_result_type(entry)
        if entry.is_inner:
            # Part of an outer recursion: stays in that one's table.
            _note_call(entry.lowest_called)
            return entry
        members = [entry, *(_build.entries[k] for k in entry.met)]
        staged = _members_staged(members)
        _discard([entry.place, *entry.met])
        # What this one did not know at first it knows now: the trace around it is as whole as it was.
        _build.unknowns, progress.provisional = unknown_outside, half_open_outside
        _cache(members, staged)
        return staged[0]
    except BaseException:
        _discard([entry.place, *entry.met])
        raise
    finally:
        _build.stack.pop()
        if not _build.stack:
            _build.remembered.clear()
            progress.provisional = 0


def _find_result_type(entry: Entry) -> None:
    """Trace in rounds, each with the type that the one before gave."""
    for _ in range(MAX_ROUNDS):
        _discard(entry.met)
        if _is_last_round(entry):
            return
    raise ResultTypeError(
        f"the result type of `{entry.name}` never settles: after {MAX_ROUNDS} rounds it still changes"
        f" ({entry.result}). Convert the result to one type.",
        entry.source.location,
    )


def _is_last_round(entry: Entry) -> bool:
    """Trace once; returns whether another round would give the same."""
    entry.lowest_called = entry.depth
    _build.entries[entry.place] = entry
    before, unknowns = set(_build.entries), _build.unknowns
    try:
        result = _trace_once(entry)
    except ResultUnknown:
        if entry.is_inner:
            # The outer function's type will show; it traces this one again then.
            raise
        raise ResultTypeError(
            f"the result type of `{entry.name}` cannot be inferred: every path through it recurses."
            " Add a branch that returns without calling itself.",
            entry.source.location,
        ) from None
    finally:
        entry.met = [k for k in _build.entries if k not in before]
    assumed = entry.result
    entry.result = result if assumed is None else assumed.join(result, entry.name)
    if _build.unknowns != unknowns:
        return entry.is_inner and assumed == result == entry.result
    recursive = entry.traced is not None and _calls(entry.traced.jaxpr, entry.name)
    return assumed == result or not (recursive or entry.met or entry.is_inner)


def _members_staged(members: Sequence[Entry]) -> list[Staged]:
    """Functions that recurse together as one program, entered at each of them."""
    program, captures = _assemble(members)
    reached = tuple((member.source, member.key) for member in members)
    staged = []
    for member in members:
        assert member.result is not None
        own = replace(program, entry=member.name)
        now, avals = member.source.places.now(), member.key.avals
        staged.append(Staged(own, captures, member.result, now, avals, member.stronger, reached))
    return staged


def _cache(members: Sequence[Entry], staged: Sequence[Staged]) -> None:
    """Keep traces that belong to no trace around them."""
    if any(isinstance(value, Tracer) for value in staged[0].captures):
        return
    members[0].source.cache[members[0].key] = staged[0]
    # A later call of another of these functions finds it in this table, and makes none that calls this one.
    sources = [member.source for member in members]
    for member, found in zip(members, staged, strict=True):
        if sources.count(member.source) == 1:
            member.source.cache[member.key] = found


def _discard(keys: Sequence[_EntryKey]) -> None:
    for key in keys:
        entry = _build.entries.pop(key, None)
        if entry is not None:
            _build.remembered[key] = entry


def _trace_once(entry: Entry) -> ResultType:
    source, key = entry.source, entry.key
    trees: list[Any] = []

    def flat(*leaves: Any) -> Sequence[Any]:
        entry.trace = _jax.current_trace()
        args, kwargs = key.statics.join(leaves)
        with tracing_program():
            value = let_go(source.traceable(*args, **kwargs))
        dynamic, static_out, tree = split_leaves(value)
        trees.append((tree, static_out))
        if entry.result is not None and (entry.result.tree, entry.result.static) == (
            tree,
            static_out,
        ):
            wanted = [
                values.join(_jax.aval_of(x), a)
                for x, a in zip(dynamic, entry.result.avals, strict=True)
            ]
            dynamic = [
                x if aval is None else values.convert(x, aval)
                for x, aval in zip(dynamic, wanted, strict=True)
            ]
        return [_as_array(leaf) for leaf in dynamic]

    try:
        with _jax.unchecked():
            entry.traced = _jax.trace(flat, key.avals)
    except jax.errors.TracerBoolConversionError as error:
        error.add_note(
            f"Lanewise: while tracing the program `{entry.name}`. Only the program's own source is converted: put"
            " @lanewise.program on the helper function that holds this `if` or `while` too."
            if source.from_source
            else f"Lanewise: `{entry.name}` was lifted, so its Python `if` and `while` run while tracing: use"
            " @lanewise.program to convert its source."
        )
        name_the_line(error)
        raise
    except Exception as error:
        name_the_line(error)
        raise
    tree, static_out = trees[-1]
    # Shape, dtype and weak type only: under a mesh, types carry shardings that rounds need not agree on.
    avals = tuple(_jax.shaped(a.shape, a.dtype, a.weak_type) for a in entry.traced.out_avals)
    return ResultType(tree, static_out, avals)


def _fits(given: Sequence[Any], wanted: Sequence[Any]) -> bool:
    return len(given) == len(wanted) and all(
        values.join(g, w) == w for g, w in zip(given, wanted, strict=True)
    )


def _as_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)


def _note_call(depth: int) -> None:
    for entry in _build.stack[depth:]:
        entry.lowest_called = min(entry.lowest_called, depth)


def _calls(jaxpr: _jax.Jaxpr, name: str) -> bool:
    return any(
        eqn.primitive is call_p and eqn.params["name"] == name for eqn in _jax.equations(jaxpr.eqns)
    )


def _assemble(members: Sequence[Entry]) -> tuple[Program, tuple[Any, ...]]:
    """One table of functions that recurse together; what they capture is shared by identity."""
    captures: list[Any] = []
    index: dict[int, int] = {}
    functions = {}
    for member in members:
        assert member.traced is not None
        for value in member.traced.captures:
            if isinstance(value, Tracer) and any(_jax.trace_of(value) is m.trace for m in members):
                raise ProgramError(
                    f"`{member.name}` closes over a value computed inside a function with which it is mutually"
                    " recursive. Pass the value as an argument instead."
                )
            if id(value) not in index:
                index[id(value)] = len(captures)
                captures.append(_jax.to_device(value))
        ids = tuple(index[id(value)] for value in member.traced.captures)
        functions[member.name] = Function(member.name, member.traced.jaxpr, ids)
    return Program(functions, members[0].name, len(captures)), tuple(captures)
