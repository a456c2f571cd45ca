"""A machine's state goes on in a machine of the same program with larger tapes.

The forward program of a gradient, made with more room, is the same code except for the sizes of its tapes. So its
blocks, and the variables at the same places of the code, correspond one to one to those of the smaller program. A state
is moved by giving each variable what its counterpart held, with zeros in the new room: a tape is zero where nothing was
written yet. Lanes that waited for room go on; nothing is run again.

Passes over blocks may decide by the size of arrays (whether a branch becomes a select, which copies share a place).
Where the two programs differ by such a decision, `counterparts` finds none and the caller runs the program again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from lanewise._jax import Literal, Var, storage_struct
from lanewise.blocks.form import Block, Call, TailCall, successors, terminator_atoms
from lanewise.blocks.link import Linked
from lanewise.core.errors import Outcome
from lanewise.machine.state import State, waits_for_tape

Counterparts = dict[Var, Var]
"""For each variable of the larger program, its counterpart in the smaller one."""


class _Differ(Exception):
    """The two programs are not the same code."""


def counterparts(smaller: Linked, larger: Linked) -> Counterparts | None:
    """Which variables stand at the same places of two programs; None if their code differs by more than sizes."""
    found: Counterparts = {}
    taken: dict[Var, Var] = {}

    def same(old: Iterable[Any], new: Iterable[Any]) -> None:
        for a, b in zip(old, new, strict=True):
            if isinstance(a, Literal) and isinstance(b, Literal):
                continue
            if isinstance(a, Literal) or isinstance(b, Literal) or a.aval.dtype != b.aval.dtype:
                raise _Differ
            if found.setdefault(b, a) is not a or taken.setdefault(a, b) is not b:
                raise _Differ

    try:
        same(smaller.program.inputs, larger.program.inputs)
        same(_constants(smaller), _constants(larger))
        for old, new in zip(
            smaller.program.functions.values(), larger.program.functions.values(), strict=True
        ):
            same((*old.params, *old.results), (*new.params, *new.results))
        for a, b in zip(smaller.order, larger.order, strict=True):
            _compare(a, b, same)
        for old, new in (
            (smaller.registers, larger.registers),
            (smaller.uniforms, larger.uniforms),
            (smaller.storage.stacks, larger.storage.stacks),
        ):
            if {found.get(var) for var in new} != set(old):
                return None
    except (_Differ, ValueError):  # what `zip` raises where one has more than the other
        return None
    return found


def _constants(linked: Linked) -> list[Var]:
    return [var for var, _ in linked.program.constants]


def _compare(old: Any, new: Any, same: Callable[[Iterable[Any], Iterable[Any]], None]) -> None:
    """Raise unless two blocks, or points of return, are the same code."""
    if type(old) is not type(new):
        raise _Differ
    if not isinstance(old, Block):
        same((*old.moves.push, *old.moves.pop), (*new.moves.push, *new.moves.pop))
        return
    ends = old.terminator, new.terminator
    alike = (type(ends[0]), successors(old), [e.primitive for e in old.eqns])
    if alike != (type(ends[1]), successors(new), [e.primitive for e in new.eqns]):
        raise _Differ
    for a, b in zip(old.eqns, new.eqns, strict=True):
        same((*a.invars, *a.outvars), (*b.invars, *b.outvars))
    for side in (0, 1):
        same((pair[side] for pair in old.assigns), (pair[side] for pair in new.assigns))
    same(terminator_atoms(ends[0]), terminator_atoms(ends[1]))
    if isinstance(ends[0], Call | TailCall):
        same((var for var, _ in ends[0].arguments), (var for var, _ in ends[1].arguments))


def moved(
    state: State, smaller: Linked, larger: Linked, pairs: Counterparts, num_expensive: int
) -> State:
    """The state of a machine of the smaller program as one of the larger; lanes that waited for a tape go on.

    `num_expensive` is the number of blocks whose waiting lanes the larger one counts; the counts so far are dropped.
    """

    def given(new: Sequence[Var], old: Sequence[Var], arrays: Sequence[Any]) -> tuple[Any, ...]:
        held = dict(zip(old, arrays, strict=True))
        return tuple(with_room(held[pairs[var]], var) for var in new)

    waits = waits_for_tape(state)
    return state.with_(
        pc=jnp.where(waits, -1 - state.pc, state.pc),
        code=jnp.where(waits, int(Outcome.DONE), state.code),
        registers=given(larger.registers, smaller.registers, state.registers),
        uniforms=given(larger.uniforms, smaller.uniforms, state.uniforms),
        stacks=given(larger.storage.stacks, smaller.storage.stacks, state.stacks),
        waited=jnp.zeros((num_expensive,), state.waited.dtype),
        spent=jnp.zeros((num_expensive,), state.spent.dtype),
    )


def with_room(array: Any, var: Var) -> Any:
    """An array of values with zeros at the ends of those axes that the variable has longer."""
    wanted = storage_struct(var).shape
    front = array.ndim - len(wanted)
    more = [(0, 0)] * front + [(0, b - a) for a, b in zip(array.shape[front:], wanted, strict=True)]
    return jnp.pad(array, more) if any(extra for _, extra in more) else array
