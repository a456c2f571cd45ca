"""Rows that blocks add to sums, held until there are enough of them for one product.

The adjoint of a weight matrix is a sum of outer products. A block that runs for 16 lanes adds a product of 16 rows to
it: each run reads and writes the whole matrix, for few operations. Here the factors of such a product are *held*: their
rows are appended to a buffer, and when that is full they are added as one product of many rows, which is several times
as fast. What is left is added at the end.

A sum is held if it is much larger than the rows it is made of, and only where all that a row adds is its own: not where
it is multiplied by something shared, nor where it is added at an index. On a GPU, where a product of few rows costs a
launch like one of many, nothing is held.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise._jax import JaxprEqn, Var
from lanewise.blocks.form import Block
from lanewise.blocks.link import Linked
from lanewise.core.accumulate import accumulate_p, held_as
from lanewise.core.one_function import as_one_function
from lanewise.core.push import push_p
from lanewise.core.summed import RowSum
from lanewise.machine.rows import put
from lanewise.machine.sums import BlockSums
from lanewise.machine.together import lookups

# How many rows are added at a time. A product that adds 64, 128, 256 and 512 rows to a matrix of 256 x 512 reaches
# 150, 175, 190 and 195 GFLOP/s on a core, one that adds 16 rows 75.
ROWS = 256
# A block with more rows at once adds them directly.
WIDEST = 64
# A sum is held if it has this many elements, and this many times those of the rows it is made of.
LEAST_ELEMENTS, LEAST_RATIO = 4096, 8


@partial(jax.tree_util.register_dataclass, data_fields=["number", "values"], meta_fields=[])
@dataclass(frozen=True)
class Held:
    """Rows that a block has made and not added yet: how many, and their values."""

    number: Any
    values: tuple[Any, ...]


@partial(jax.tree_util.register_dataclass, data_fields=["totals", "held"], meta_fields=[])
@dataclass(frozen=True)
class Sums:
    """The sums of a machine: what was added, and for each block of `holding` what is held."""

    totals: tuple[Any, ...]
    held: tuple[Held, ...]


@functools.lru_cache(maxsize=512)
def holding(linked: Linked) -> tuple[int, ...]:
    """The blocks that hold rows."""
    if linked.profile.host_reads_guards:
        return ()
    return tuple(
        pc
        for pc, item in enumerate(linked.order)
        if isinstance(item, Block) and _own_sums(linked, item).eqns
    )


def no_sums(linked: Linked) -> Sums:
    """The sums before anything is added."""
    totals = tuple(jnp.zeros(a.shape, held_as(a.dtype)) for a in linked.program.sums)
    return Sums(totals, tuple(_empty(_sums_of(linked, pc).needs) for pc in holding(linked)))


def added(
    linked: Linked, sums: Sums, block: Block, parts: BlockSums, values: Sequence[Any], mask: Any
) -> Sums:
    """The sums with what the lanes of a mask add in a block, where these are the values of what its parts need."""
    pc = linked.pc_of.get(block.label)
    if not parts.eqns:
        return sums
    if pc not in holding(linked) or mask.shape[0] > WIDEST:
        return Sums(parts.added(sums.totals, values, mask), sums.held)
    known = dict(zip(parts.needs, values, strict=True))
    held = parts.only(_is_held(parts))
    now = parts.only(lambda eqn, total: not _is_held(parts)(eqn, total))
    totals = now.added(sums.totals, [known[var] for var in now.needs], mask)
    at = holding(linked).index(pc)
    totals, own = _appended(held, totals, sums.held[at], [known[var] for var in held.needs], mask)
    return Sums(totals, (*sums.held[:at], own, *sums.held[at + 1 :]))


def totals_of(linked: Linked, sums: Sums) -> tuple[Any, ...]:
    """The sums with all that is held."""
    totals = sums.totals
    for pc, held in zip(holding(linked), sums.held, strict=True):
        totals = _flushed(_sums_of(linked, pc), totals, held)
    return totals


def _empty(needs: Sequence[Var]) -> Held:
    values = tuple(jnp.zeros((ROWS, *var.aval.shape), var.aval.dtype) for var in needs)
    return Held(jnp.int32(0), values)


def _appended(
    parts: BlockSums, totals: tuple[Any, ...], held: Held, values: Sequence[Any], mask: Any
) -> tuple[tuple[Any, ...], Held]:
    """Sums and rows after more rows; where there is no room for as many again, all have been added."""
    touched = sorted({eqn.params["number"] for eqn in parts.eqns})

    def account(number: Any, mask: Any) -> list[Any]:
        """Where each row goes, one after the other; how many there are then, and after a product that is due."""

        def step(row: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            number, found = carry
            place = jnp.where(mask[row], number, ROWS).astype(jnp.int32)
            found = lax.dynamic_update_slice(found, place[None], (row,))
            return number + mask[row].astype(jnp.int32), found

        start = (number, jnp.zeros(mask.shape, jnp.int32))
        number, places = lax.fori_loop(0, mask.shape[0], step, start)
        full = number > ROWS - WIDEST
        return [places, number, full, jnp.where(full, 0, number)]

    places, number, full, left = as_one_function(account, held.number, mask)
    rows = (put(whole, places, own) for whole, own in zip(held.values, values, strict=True))
    more = Held(number, tuple(rows))

    def whole(some: Sequence[Any]) -> tuple[Any, ...]:
        found = dict(zip(touched, some, strict=True))
        return tuple(found.get(i, total) for i, total in enumerate(totals))

    def flush(carry: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
        done = _flushed(parts, whole(carry[1]), more)
        return jnp.array(False), [done[i] for i in touched]

    # A loop of at most one turn: XLA copies the operands of a `cond`.
    start = (full, [totals[i] for i in touched])
    _, some = lax.while_loop(lambda carry: carry[0], flush, start)
    return whole(some), Held(left, more.values)


def _flushed(parts: BlockSums, totals: tuple[Any, ...], held: Held) -> tuple[Any, ...]:
    return parts.added(totals, held.values, jnp.arange(ROWS) < held.number)


def _sums_of(linked: Linked, pc: int) -> BlockSums:
    block = linked.order[pc]
    assert isinstance(block, Block)
    return _own_sums(linked, block)


def _own_sums(linked: Linked, block: Block) -> BlockSums:
    """The sums of a block that are held."""
    nothing = BlockSums((), (), (), frozenset(), {})
    is_uniform = frozenset(linked.uniforms).__contains__
    if not any(eqn.primitive is accumulate_p for eqn in block.eqns):
        return nothing
    # Lanes that agree on an index, and code that is run without its pushes, have other parts in every run.
    if lookups(block, is_uniform) or any(eqn.primitive is push_p for eqn in block.eqns):
        return nothing
    parts = BlockSums.of(block, linked, {})
    return parts.only(_is_held(parts))


def _is_held(parts: BlockSums) -> Any:
    def worth(eqn: JaxprEqn, total: RowSum) -> bool:
        if len(eqn.invars) > 1 or eqn.params["places"] is not None:
            return False
        size = math.prod(eqn.invars[0].aval.shape)
        rows = sum(math.prod(var.aval.shape) for var in total.needs)
        own = all(var in parts.varying for var in total.needs)
        return own and size >= max(LEAST_ELEMENTS, LEAST_RATIO * rows)

    return worth
