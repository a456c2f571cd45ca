"""Rules of code inside equations: calls, functions, and the loops and branches that lanes go through together.

Control flow that lanes part in has become blocks before a kernel is written; what is left inside a block becomes a
`for` or an `if` of its own. A loop's carried values are in memory of its own, which its body may write over in place.

Code that stands at several places (`outline.py`) is written once, as a function. Scalars are passed by value and given
back through references; arrays stay where the caller has them, and results are written where the caller wants them. The
parameters' memory never overlaps, and what is given is only read, so all pointers are `__restrict__`. Arrays in the
scratch memory are passed as they are; a function's own come after those that the caller has there. Constants that are
operands of the kernel are handed down.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lanewise import _jax
from lanewise._jax import Atom, DropVar, Jaxpr, JaxprEqn
from lanewise.blocks.equations import inside, tests_many, with_one_test
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.dtypes import Layout
from lanewise.cpp.emit.outline import Likeness
from lanewise.cpp.emit.rules import Unsupported, rule
from lanewise.cpp.emit.values import (
    Index,
    Part,
    Place,
    Scalar,
    Scope,
    Stored,
    Value,
    times,
    uses_of,
    view,
)
from lanewise.cpp.emit.writer import Writer

# A loop of known length is unrolled if that makes at most this many equations.
UNROLLED_EQUATIONS = 256
# A function takes arrays that are in memory. What would have to be stored for it, and is longer, is not passed.
MOST_STORED = 512
# Below this weight CUDA's compiler may inline a function.
CALLED_ON_GPU = 48.0


@rule(
    *"""jit pjit closed_call core_call eval_jaxpr remat2 remat checkpoint custom_jvp_call custom_vjp_call
    custom_vjp_call_jaxpr custom_linear_solve unvmap_any unvmap_all unvmap_max nonbatchable select_if_vmap
    noinline composite linear_call program""".split()
)
def _call(w: Writer, eqn: JaxprEqn) -> None:
    """Code that an equation runs once: it is written where the equation is."""
    found = inside(eqn)
    if found is None:
        raise Unsupported("a recursive program inside a loop that all lanes run alike")
    w.inline(found.jaxpr, found.operands, eqn.outvars, found.consts)
    # A program called inside another has an outcome; had it failed, we would not be here.
    for var, code in zip(eqn.outvars[len(found.jaxpr.outvars) :], (0, -1), strict=False):
        w.define(var, w.constant(code, var.aval.dtype))


@rule("throw")
def _throw(w: Writer, eqn: JaxprEqn) -> None:
    for var, atom in zip(eqn.outvars, eqn.invars, strict=False):
        w.hand_on(var, atom)


# -- functions -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    """A function of the kernel: its name, the scratch memory it takes, and the kernel's operands it reads."""

    name: str
    bytes: int
    constants: tuple[str, ...]


@rule("shared")
def _shared(w: Writer, eqn: JaxprEqn) -> None:
    jaxpr: Jaxpr = eqn.params["jaxpr"]
    values = [w.value(atom) for atom in eqn.invars]
    if any(not _passes(value) and value.size > MOST_STORED for value in values):
        w.inline(jaxpr, eqn.invars, eqn.outvars)
        return
    given = [w.named(value) for value in values]
    rooms = [
        w.room(var.aval.shape, var.aval.dtype) if isinstance(var, DropVar) else w.store(var)
        for var in eqn.outvars
    ]
    key = (id(jaxpr), tuple(_strided(value) for value in (*given, *rooms)))
    if key not in w.functions:
        w.functions[key] = _written(w, jaxpr, given, rooms)
    function = w.functions[key]
    used = w.layout.lend(function.bytes)
    names = [value.text if isinstance(value, Scalar) else value.name for value in (*given, *rooms)]  # type: ignore[attr-defined]
    memory = [f"scratch + {used} * lanes", "lane", "lanes"] if function.bytes else []
    w.line(f"{function.name}({', '.join([*names, *memory, *function.constants])});")


def _passes(value: Value) -> bool:
    return isinstance(value, Scalar | Stored)


def _strided(value: Value) -> bool:
    return isinstance(value, Stored) and value.strided


def _written(
    w: Writer, jaxpr: Jaxpr, given: Sequence[Value], rooms: Sequence[Scalar | Stored]
) -> Function:
    """Write the function for values of these kinds."""
    name = w.fresh("shared")
    scope = Scope(uses_of(jaxpr.eqns, jaxpr.outvars))
    parameters = []
    for var, value in zip(jaxpr.invars, given, strict=True):
        text, scope.values[var] = _parameter(w.fresh("p"), value, given=True)
        parameters.append(text)
    results: list[Scalar | Stored] = []
    for atom, room in zip(jaxpr.outvars, rooms, strict=True):
        text, result = _parameter(w.fresh("r"), room, given=False)
        parameters.append(text)
        results.append(result)
        if isinstance(result, Stored):
            scope.destinations[atom] = result  # type: ignore[index]
    with _apart(w, scope) as (lines, layout):
        w.eqns(jaxpr.eqns)
        scope.current = None
        w.assign([(room, w.value(a)) for room, a in zip(results, jaxpr.outvars, strict=True)])
    body = "\n".join(lines)
    constants = tuple(sorted(set(re.findall(r"\bconstant\d+\b", body)), key=lambda c: int(c[8:])))
    if layout.most:
        parameters += ["char* scratch", "const long long lane", "const long long lanes"]
    for constant in constants:
        kind = dtypes.ctype(w.constants[int(constant[8:])].dtype)
        parameters.append(f"const {kind}* __restrict__ {constant}")
    # A call puts a lane's arrays in memory, which a GPU has for each lane, but slower than registers.
    heavy = Likeness().weights(jaxpr.eqns) >= CALLED_ON_GPU
    head = "LW_CALLED" if heavy else "LW_CALLED_ON_HOST"
    w.texts.append(f"{head} {name}({', '.join(parameters)}) {{\n{body}\n}}")
    return Function(name, layout.most, constants)


def _parameter(name: str, value: Value, *, given: bool) -> tuple[str, Scalar | Stored]:
    """A parameter's declaration, and its value inside the function."""
    kind = dtypes.ctype(value.dtype)
    if not value.shape:
        text = f"const {kind} {name}" if given else f"{kind}& {name}"
        return text, Scalar((), value.dtype, name, place=not given)
    inside = Stored(value.shape, value.dtype, name, constant=given, strided=_strided(value))
    if inside.strided:
        return f"const lw_strided<{kind}> {name}", inside
    return f"{'const ' if given else ''}{kind}* __restrict__ {name}", inside


@contextmanager
def _apart(w: Writer, scope: Scope) -> Iterator[tuple[list[str], Layout]]:
    """Write into a text of its own, which knows of no other code."""
    before = w.lines, w.depth, w.scopes, w.layout, w.unrolling
    w.lines, w.depth, w.scopes, w.layout, w.unrolling = [], 1, [scope], Layout(), 1
    yield w.lines, w.layout
    w.lines, w.depth, w.scopes, w.layout, w.unrolling = before


# -- loops and branches --------------------------------------------------------------------------------


@rule("cond")
def _cond(w: Writer, eqn: JaxprEqn) -> None:
    parts = _jax.Cond.of(eqn, eqn.invars)
    branches, operands = parts.branches, parts.operands
    rooms = [w.room(var.aval.shape, var.aval.dtype) for var in eqn.outvars]
    which = w.value(parts.index).at(())

    def branch(number: int) -> None:
        code = branches[number]
        owned = [w.dies(atom) for atom in operands]
        outs = w.run(code, [w.value(atom) for atom in operands], owned, rooms)
        kept = [not isinstance(var, DropVar) for var in eqn.outvars]
        w.assign([p for p, keep in zip(zip(rooms, outs, strict=True), kept, strict=True) if keep])

    if len(branches) == 1:
        with w.block():
            branch(0)
    elif len(branches) == 2:
        with w.block(f"if ({which})"):
            branch(1)
        with w.block("else"):
            branch(0)
    else:
        for number in range(len(branches)):
            last = number == len(branches) - 1
            test = "else" if last else f"{'else ' if number else ''}if ({which} == {number})"
            with w.block(test):
                branch(number)
    for var, room in zip(eqn.outvars, rooms, strict=True):
        w.give(var, room)


@rule("while")
def _while(w: Writer, eqn: JaxprEqn) -> None:
    if tests_many(eqn):
        w.inline_traced(with_one_test(eqn), eqn)
        return
    loop = _jax.While.of(eqn, eqn.invars)
    test_consts = [w.value(atom) for atom in loop.test_consts]
    consts = [w.value(atom) for atom in loop.consts]
    changed = loop.changed
    carry = _carried(w, loop.init, changed)
    with w.block("for (;;)"):
        (going,) = w.run(loop.test, [*test_consts, *carry])
        w.line(f"if (!{going.at(())}) break;")
        outs = w.run(
            loop.body,
            [*consts, *carry],
            [*(False for _ in consts), *changed],
            [None if not change else place for place, change in zip(carry, changed, strict=True)],
        )
        _store_carry(w, carry, outs, changed)
    for var, value, change in zip(eqn.outvars, carry, changed, strict=True):
        _bind(w, var, value, change)


@rule("scan")
def _scan(w: Writer, eqn: JaxprEqn) -> None:
    parts = _jax.Scan.of(eqn, eqn.invars)
    body, changed = parts.body, parts.changed
    consts = [w.value(atom) for atom in parts.consts]
    carry = _carried(w, parts.init, changed)
    arrays = [w.value(atom) for atom in parts.xs]
    final, stacked = parts.divided(eqn.outvars)
    rooms = [w.room(var.aval.shape, var.aval.dtype) for var in stacked]
    turn = w.fresh("i")
    # Loops inside would be written again for each turn.
    loops = (eqn.primitive.name in ("scan", "while") for eqn in _jax.equations(body.eqns))
    innermost = not any(loops)
    short = innermost and parts.length * len(body.eqns) <= UNROLLED_EQUATIONS
    if parts.reverse:
        header = f"for (int {turn} = {parts.length - 1}; {turn} >= 0; --{turn})"
    else:
        header = f"for (int {turn} = 0; {turn} < {parts.length}; ++{turn})"
    with w.turns(header, parts.length, short=short):
        slices = [_slice(w, array, turn) for array in arrays]
        outs = w.run(
            body,
            [*consts, *carry, *slices],
            [*(False for _ in consts), *changed, *(False for _ in slices)],
            [
                *(p if change else None for p, change in zip(carry, changed, strict=True)),
                *(None for _ in rooms),
            ],
        )
        state, ys = parts.divided(outs)
        rows = [(_row(room, turn), out) for room, out in zip(rooms, ys, strict=True) if room.size]
        _store_carry(w, carry, state, changed, rows)
    for var, value, change in zip(final, carry, changed, strict=True):
        _bind(w, var, value, change)
    for var, room in zip(stacked, rooms, strict=True):
        w.give(var, room)


def _carried(w: Writer, atoms: Sequence[Atom], changed: Sequence[bool]) -> list[Value]:
    """Memory for what a loop changes, filled; what it hands on as it is stays where it is."""
    for atom, change in zip(atoms, changed, strict=True):
        if change:
            w.settle(atom)
    return [
        w.editable(atom) if change else w.value(atom)
        for atom, change in zip(atoms, changed, strict=True)
    ]


def _slice(w: Writer, array: Value, turn: str) -> Value:
    shape = array.shape[1:]
    if not shape:
        return w.let(array.at((turn,)), array.dtype)

    def element(indices: tuple[Index, ...]) -> str:
        return array.at((turn, *indices))

    return view(shape, array.dtype, element, array)


def _row(room: Place, turn: str) -> Part:
    """The part of a scan's stacked results that one turn writes."""
    assert isinstance(room, Stored)
    return Part(room.shape[1:], room.dtype, room.name, times(turn, room.size // room.shape[0]))


def _store_carry(
    w: Writer,
    carry: Sequence[Value],
    outs: Sequence[Value],
    changed: Sequence[bool],
    more: Sequence[tuple[Place, Value]] = (),
) -> None:
    pairs = [
        (place, out) for place, out, change in zip(carry, outs, changed, strict=True) if change
    ]
    w.assign([*pairs, *more])  # type: ignore[list-item]


def _bind(w: Writer, var: _jax.Var, value: Value, own: bool) -> None:
    if own:
        w.give(var, value)  # type: ignore[arg-type]
    else:
        w.define(var, value)
