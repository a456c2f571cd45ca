"""Registers of slots in banks: those of one type are side by side in one array.

A machine that forks takes rows out of its registers for each tile and puts rows back. Each is a loop of its own to XLA,
with its own compilation; a program that counts and numbers its calls has dozens of registers, most of them integers. In
a bank, with an axis for slots and one for variables, one scatter writes all that a block writes of one type.

A bank has one row more than there are slots, which belongs to no slot: what is written there is never used. So all rows
that a tile reads or writes are in the bank, and XLA need not check.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from lanewise._jax import Var, storage_struct
from lanewise.blocks.link import Linked
from lanewise.core.one_function import as_one_function


class Place(NamedTuple):
    """Where a variable is: the number of its bank, and its column there."""

    bank: int
    column: int


class Write(NamedTuple):
    """Rows for some slots, and their column, which may be another for each row."""

    bank: int
    column: Any
    slots: Any
    rows: Any


@functools.lru_cache(maxsize=512)
def _banks(linked: Linked) -> tuple[tuple[Var, ...], ...]:
    found: dict[Any, list[Var]] = {}
    for var in linked.registers:
        if var not in linked.held_by_lanes:
            struct = storage_struct(var)
            found.setdefault((struct.shape, struct.dtype), []).append(var)
    return tuple(map(tuple, found.values()))


@functools.lru_cache(maxsize=512)
def places(linked: Linked) -> Mapping[Var, Place]:
    """Where each variable of the slots' own is."""
    banks = enumerate(_banks(linked))
    return {var: Place(bank, i) for bank, own in banks for i, var in enumerate(own)}


def is_number(var: Var) -> bool:
    """Whether a variable takes one element of its bank."""
    return storage_struct(var).shape == ()


def in_banks(linked: Linked, registers: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Registers as banks, and the remaining ones, which lanes hold."""
    values = dict(zip(linked.registers, registers, strict=True))
    banks = tuple(jnp.stack([values[var] for var in own], axis=1) for own in _banks(linked))
    where = places(linked)
    nothing = jnp.zeros((0,), jnp.int32)
    return (
        tuple(with_rows(bank, bank.shape[0] + 1) for bank in banks),
        tuple(nothing if var in where else x for var, x in values.items()),
    )


def with_rows(bank: Any, rows: int) -> Any:
    """A bank with this many rows."""
    more = rows - bank.shape[0]
    return jnp.pad(bank, [(0, more)] + [(0, 0)] * (bank.ndim - 1))


def out_of_banks(
    linked: Linked, banks: Sequence[Any], registers: Sequence[Any], lanes: int
) -> tuple[Any, ...]:
    """The registers that `in_banks` was given, of the first slots."""
    where = places(linked)
    pairs = zip(linked.registers, registers, strict=True)
    return tuple(
        banks[where[var].bank][:lanes, where[var].column] if var in where else x for var, x in pairs
    )


def read(banks: Sequence[Any], place: Place, slots: Any) -> Any:
    """The slots' values of a variable."""
    bank = banks[place.bank]
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(1, bank.ndim - 1)),
        collapsed_slice_dims=(0, 1),
        start_index_map=(0, 1),
    )
    at = jnp.stack([slots, jnp.full_like(slots, place.column)], axis=1)
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(bank, at, numbers, (1, 1, *bank.shape[2:]), mode=mode)


def written(banks: Sequence[Any], writes: Sequence[Write]) -> tuple[Any, ...]:
    """Banks after writes, no two of which are at the same place."""
    own = {i: [write for write in writes if write.bank == i] for i in range(len(banks))}
    own = {i: some for i, some in own.items() if some}
    # Most writes are at the same slots, and in columns that are known.
    slots = {id(write.slots): write.slots for write in writes}
    columns = {id(w.column): w.column for w in writes if not isinstance(w.column, int)}

    def find(*given: Any) -> list[Any]:
        arrays = dict(zip([*slots, *columns], given, strict=True))

        def at(write: Write) -> Any:
            rows = arrays[id(write.slots)]
            column = arrays.get(id(write.column), write.column)
            return jnp.stack(
                [rows, jnp.broadcast_to(column, rows.shape).astype(rows.dtype)], axis=1
            )

        return [jnp.concatenate(list(map(at, some))) for some in own.values()]

    places = as_one_function(find, *slots.values(), *columns.values()) if own else []
    found = list(banks)
    for (number, some), at in zip(own.items(), places, strict=True):
        rows = jnp.concatenate([write.rows for write in some]).astype(banks[number].dtype)
        found[number] = _scattered(banks[number], at, rows)
    return tuple(found)


def _scattered(bank: Any, at: Any, rows: Any) -> Any:
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, bank.ndim - 1)),
        inserted_window_dims=(0, 1),
        scatter_dims_to_operand_dims=(0, 1),
    )
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.scatter(bank, at, rows, numbers, mode=mode)
