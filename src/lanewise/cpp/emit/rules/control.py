"""Rules of code inside equations: calls, and the loops and branches that lanes go through together.

Control flow that lanes part in has become blocks before a kernel is written; what is left inside a block becomes a
`for` or an `if` of its own. A loop's carried values lie in memory of its own, which its body may write over in place.
"""

from __future__ import annotations

from collections.abc import Sequence

from lanewise import _jax
from lanewise._jax import Atom, DropVar, Jaxpr, JaxprEqn
from lanewise.blocks.divergence import changed_carry
from lanewise.blocks.equations import inside, tests_many, with_one_test
from lanewise.cpp.emit.rules import Unsupported, rule
from lanewise.cpp.emit.stores import assign
from lanewise.cpp.emit.values import Index, Part, Place, Stored, Value, times
from lanewise.cpp.emit.writer import Writer

# A loop of known length is unrolled if that makes at most this many equations.
UNROLLED_EQUATIONS = 256


@rule(
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remat2",
    "remat",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "custom_linear_solve",
    "unvmap_any",
    "unvmap_all",
    "unvmap_max",
    "nonbatchable",
    "select_if_vmap",
    "noinline",
    "program",
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


@rule("cond")
def _cond(w: Writer, eqn: JaxprEqn) -> None:
    index, *operands = eqn.invars
    branches = eqn.params["branches"]
    rooms = [w.room(var.aval.shape, var.aval.dtype) for var in eqn.outvars]
    which = w.value(index).at(())

    def branch(number: int) -> None:
        code = branches[number]
        owned = [w.dies(atom) for atom in operands]
        outs = w.run(code, [w.value(atom) for atom in operands], owned, rooms)
        kept = [not isinstance(var, DropVar) for var in eqn.outvars]
        assign(w, [p for p, keep in zip(zip(rooms, outs, strict=True), kept, strict=True) if keep])

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
    cond_n, body_n = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    test, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    operands = eqn.invars
    cond_consts = [w.value(atom) for atom in operands[:cond_n]]
    body_consts = [w.value(atom) for atom in operands[cond_n : cond_n + body_n]]
    changed = changed_carry(body, body_n)
    carry = _carried(w, operands[cond_n + body_n :], changed)
    with w.block("for (;;)"):
        (going,) = w.run(test, [*cond_consts, *carry])
        w.line(f"if (!{going.at(())}) break;")
        outs = w.run(
            body,
            [*body_consts, *carry],
            [*(False for _ in body_consts), *changed],
            [None if not change else place for place, change in zip(carry, changed, strict=True)],
        )
        _store_carry(w, carry, outs, changed)
    for var, value, change in zip(eqn.outvars, carry, changed, strict=True):
        _bind(w, var, value, change)


@rule("scan")
def _scan(w: Writer, eqn: JaxprEqn) -> None:
    parts, body = _jax.scan_parts(eqn), eqn.params["jaxpr"]
    num_consts, num_carry = parts.num_consts, parts.num_carry
    consts = [w.value(atom) for atom in eqn.invars[:num_consts]]
    changed = changed_carry_of_scan(body, num_consts, num_carry)
    carry = _carried(w, eqn.invars[num_consts : num_consts + num_carry], changed)
    arrays = [w.value(atom) for atom in eqn.invars[num_consts + num_carry :]]
    rooms = [w.room(var.aval.shape, var.aval.dtype) for var in eqn.outvars[num_carry:]]
    turn = w.fresh("i")
    # Loops inside would be written again for each turn.
    innermost = not any(_holds_loop(inner) for inner in body.eqns)
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
        rows = [
            (_row(room, turn), out)
            for room, out in zip(rooms, outs[num_carry:], strict=True)
            if room.size
        ]
        _store_carry(w, carry, outs[:num_carry], changed, rows)
    for var, value, change in zip(eqn.outvars, carry, changed, strict=False):
        _bind(w, var, value, change)
    for var, room in zip(eqn.outvars[num_carry:], rooms, strict=True):
        w.give(var, room)


def changed_carry_of_scan(body: Jaxpr, num_consts: int, num_carry: int) -> list[bool]:
    """Which carried values a scan's body may change."""
    carried = body.invars[num_consts : num_consts + num_carry]
    return [out is not var for out, var in zip(body.outvars, carried, strict=False)]


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

    return w.view(shape, array.dtype, element, array)


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
    assign(w, [*pairs, *more])  # type: ignore[list-item]


def _bind(w: Writer, var: _jax.Var, value: Value, own: bool) -> None:
    if own:
        w.give(var, value)  # type: ignore[arg-type]
    else:
        w.define(var, value)


def _holds_loop(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in ("scan", "while") or any(
        _holds_loop(inner) for jaxpr in _jax.subjaxprs(eqn) for inner in jaxpr.eqns
    )
