"""Records that frames of a machine that forks leave on the tapes of their examples.

A block may push for many frames at once, several of one example among them. Each gets a place of its own: after the
entries that the example's tape has already, and after the frames of the same example that come before it in the tile
(`core/push.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise._jax import Atom, Literal, Var, stored
from lanewise.blocks.form import Block, substitute_block
from lanewise.blocks.link import Linked
from lanewise.core.one_function import as_one_function
from lanewise.core.push import push_p
from lanewise.machine.advance import Advance
from lanewise.machine.state import State


class Push(NamedTuple):
    """A push of a block: the lane state it changes, what it writes, where, and whether it fits."""

    tape: Var
    top: Var
    entries: Atom
    at: Var
    fits: Var


@functools.lru_cache(maxsize=4096)
def without_pushes(linked: Linked, pc: int) -> tuple[Block, tuple[Push, ...]]:
    """A block without its pushes, which reads their results."""
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
    """The state with what the frames of the mask push, and the results of their pushes."""
    if not pushes:
        return state, {}
    made = [push.entries for push in pushes if isinstance(push.entries, Var)]
    values = dict(zip(made, advance.values_of(before, block, made, mask), strict=True))
    registers = list(state.registers)
    tapes = [registers[advance.place[push.tape]] for push in pushes]
    numbers = [push.entries.aval.shape[0] for push in pushes]
    width = mask.shape[0]

    def find(root: Any, mask: Any, *tops: Any) -> list[Any]:
        at_once = advance.linked.profile.host_reads_guards
        numbered = _numbered_at_once if at_once else _numbered_in_turn
        after, places = numbered(root, mask, tops, numbers)
        found = [*after, *places]
        for at, number, tape in zip(places, numbers, tapes, strict=True):
            fits = at + number <= tape.shape[1]
            to = jnp.where(mask & fits, root, tape.shape[0])
            rows = jnp.broadcast_to(to[:, None], (width, number))
            found += [fits, jnp.stack([rows, at[:, None] + jnp.arange(number)], axis=2)]
        return found

    tops = [registers[advance.place[push.top]] for push in pushes]
    given = as_one_function(find, root, mask, *tops)
    tops, places, more = (
        given[: len(pushes)],
        given[len(pushes) : 2 * len(pushes)],
        given[2 * len(pushes) :],
    )
    known: dict[Var, Any] = {}
    for i, push in enumerate(pushes):
        if isinstance(push.entries, Literal):
            entries = jnp.broadcast_to(push.entries.val, (*mask.shape, *push.entries.aval.shape))
        else:
            entries = stored(values[push.entries], push.entries.aval)
        fits, where = more[2 * i : 2 * i + 2]
        registers[advance.place[push.tape]] = _written(tapes[i], where, entries)
        registers[advance.place[push.top]] = tops[i]
        known |= {push.at: places[i], push.fits: fits}
    return state.with_(registers=tuple(registers)), known


def _numbered_in_turn(
    root: Any, mask: Any, tops: Sequence[Any], numbers: Sequence[int]
) -> tuple[list[Any], list[Any]]:
    """How many entries tapes have after rows of the mask have pushed, and before each of them."""

    def step(row: Any, carry: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
        tops, found = carry
        lane, adds = root[row], mask[row].astype(jnp.int32)
        found = [_with(at, row, top[lane]) for at, top in zip(found, tops, strict=True)]
        more = zip(tops, numbers, strict=True)
        return [_with(top, lane, top[lane] + n * adds) for top, n in more], found

    nothing = jnp.zeros(mask.shape, jnp.int32)
    return lax.fori_loop(0, mask.shape[0], step, (list(tops), [nothing for _ in tops]))


def _numbered_at_once(
    root: Any, mask: Any, tops: Sequence[Any], numbers: Sequence[int]
) -> tuple[list[Any], list[Any]]:
    """The same where a loop is expensive: on a GPU."""
    before = (root[:, None] == root) & mask & jnp.tri(mask.shape[0], k=-1, dtype=bool)
    rank = before.sum(1, dtype=jnp.int32)
    pairs = list(zip(tops, numbers, strict=True))
    adds = [jnp.where(mask, root, top.shape[0]) for top in tops]
    return (
        [top.at[to].add(n, mode="drop") for to, (top, n) in zip(adds, pairs, strict=True)],
        [top[root] + n * rank for top, n in pairs],
    )


def _with(array: Any, at: Any, value: Any) -> Any:
    return lax.dynamic_update_slice(array, jnp.asarray(value, array.dtype)[None], (at,))


def _written(tape: Any, where: Any, entries: Any) -> Any:
    """Tapes with entries at these pairs of lane and place; an entry without a lane is dropped."""
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(2, tape.ndim)),
        inserted_window_dims=(0, 1),
        scatter_dims_to_operand_dims=(0, 1),
    )
    mode = lax.GatherScatterMode.FILL_OR_DROP
    return lax.scatter(tape, where, entries.astype(tape.dtype), numbers, mode=mode)
