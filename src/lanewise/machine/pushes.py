"""Records that frames of a machine that forks leave on the tapes of their examples.

A block may push for many frames at once, several of one example among them. Each gets a place of its own: how many of
the same example come before it in the tile, after what the example's tape has already (`core/push.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import Atom, Literal, Var, stored
from lanewise.blocks.form import Block, substitute_block
from lanewise.blocks.link import Linked
from lanewise.core.push import push_p
from lanewise.machine.advance import Advance
from lanewise.machine.state import State


class Push(NamedTuple):
    """A push of a block: the lane state it changes, what it writes, and what says where that is and if it fits."""

    tape: Var
    top: Var
    entries: Atom
    at: Var
    fits: Var


@functools.lru_cache(maxsize=4096)
def without_pushes(linked: Linked, pc: int) -> tuple[Block, tuple[Push, ...]]:
    """A block without its pushes, which reads what they give."""
    block = linked.order[pc]
    assert isinstance(block, Block)
    found = [eqn for eqn in block.eqns if eqn.primitive is push_p]
    if not found:
        return block, ()
    pushes, given = [], {}
    for eqn in found:
        tape, top, entries = eqn.invars
        assert isinstance(tape, Var) and isinstance(top, Var)
        own = {var: _jax.new_var(var.aval) for var in eqn.outvars[2:]}
        given |= own
        pushes.append(Push(tape, top, entries, *own.values()))
    assigned = {var for var, _ in block.assigns}
    rest = block.with_(eqns=tuple(eqn for eqn in block.eqns if eqn.primitive is not push_p))
    rest = substitute_block(dict(given), rest)
    more = tuple((var, new) for var, new in given.items() if var not in assigned)
    return rest.with_(assigns=(*rest.assigns, *more)), tuple(pushes)


def pushed(
    state: State,
    pushes: Sequence[Push],
    before: State,
    block: Block,
    root: Any,
    mask: Any,
    advance: Advance,
) -> tuple[State, dict[Var, Any]]:
    """The state with what the frames of the mask push, and the values of what their pushes give."""
    if not pushes:
        return state, {}
    made = [push.entries for push in pushes if isinstance(push.entries, Var)]
    values = dict(zip(made, advance.values_of(before, block, made, mask), strict=True))
    same = (root[:, None] == root) & mask & jnp.tri(mask.shape[0], k=-1, dtype=bool)
    rank = same.sum(1, dtype=jnp.int32)
    registers = list(state.registers)
    known: dict[Var, Any] = {}
    for push in pushes:
        number = push.entries.aval.shape[0]
        tape, top = (registers[advance.place[var]] for var in (push.tape, push.top))
        at = top[root] + number * rank
        fits = at + number <= tape.shape[1]
        to = jnp.where(mask & fits, root, tape.shape[0])
        if isinstance(push.entries, Literal):
            entries = jnp.broadcast_to(push.entries.val, (*mask.shape, *push.entries.aval.shape))
        else:
            entries = stored(values[push.entries], push.entries.aval)
        where = (to[:, None], at[:, None] + jnp.arange(number))
        registers[advance.place[push.tape]] = tape.at[where].set(entries, mode="drop")
        adds = jnp.where(mask, root, top.shape[0])
        registers[advance.place[push.top]] = top.at[adds].add(number, mode="drop")
        known |= {push.at: at, push.fits: fits}
    return state.with_(registers=tuple(registers)), known
