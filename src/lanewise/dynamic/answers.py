"""The second half of a run by levels: answers as a function of operands, and its reverse.

Control is decided and the table is ready. What is left is one compiled function, from the operands that pieces share
and those that are rows to the answers of all lanes; and one for the reverse, from adjoints of answers to those of
operands. They are called for every minibatch, so each is one call of compiled code and nothing around it: at a few
milliseconds a step, JAX's own ways to differentiate a function would cost as much again.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise.dynamic import compute
from lanewise.dynamic import reverse as backwards
from lanewise.dynamic.compiled import compiled
from lanewise.dynamic.compute import Ran
from lanewise.dynamic.derivatives import Moves
from lanewise.dynamic.envelope import Envelope
from lanewise.dynamic.layout import layout
from lanewise.dynamic.recorded import Given, Recorded
from lanewise.dynamic.run import Prepared, carried_rows
from lanewise.dynamic.table import Type


@dataclass(frozen=True)
class Decided:
    """What control came to: the table, answers that are not of it, and how lanes ended."""

    recorded: Recorded
    values: Mapping[int, np.ndarray]  # answers that the slice gave
    rows: Mapping[int, np.ndarray]  # rows of the others
    code: np.ndarray
    site: np.ndarray

    def own(self, given: Sequence[Given]) -> dict[int, dict[int, np.ndarray]]:
        """For answers that are operands of their lane: in which lanes, by the operand's number."""
        found: dict[int, dict[int, np.ndarray]] = {}
        for i, rows in self.rows.items():
            if (rows < 0).any():
                masks = {each.number: rows == -1 - each.number for each in given}
                found[i] = {number: mask for number, mask in masks.items() if mask.any()}
        return found


@dataclass(frozen=True)
class _Places:
    """What compiled code is compiled for, beside shapes: where answers are stored, and which operands are rows."""

    envelope: Envelope
    begins: tuple[tuple[int, int], ...]  # of answers: the number of the type, and the first row
    lanes: int
    given: tuple[Given, ...]

    def carried(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """Carried rows by type, of the operands that are rows."""
        parts: dict[Type, list[Any]] = {}
        for each, value in zip(self.given, given, strict=True):
            parts.setdefault(each.type, []).append(value if each.varies else value[None])
        envelope = self.envelope
        return tuple(
            carried_rows(jnp.concatenate(parts[t]) if t in parts else None, size, t)
            for t, size in zip(envelope.types, envelope.carried, strict=True)
        )

    def picked(self, rows: Sequence[Any]) -> list[Any]:
        return [rows[t][begin : begin + self.lanes] for t, begin in self.begins]

    def seeds(self, adjoints: Sequence[Any]) -> list[Any]:
        """Adjoints of wanted rows by type, of those of answers."""
        envelope = self.envelope
        wanted = envelope.wanted or ()
        found: list[Any] = [
            jnp.zeros((size, *t.shape), t.dtype) if t.differentiable else None
            for t, size in zip(envelope.types, wanted, strict=True)
        ]
        for (t, begin), adjoint in zip(self.begins, adjoints, strict=True):
            if found[t] is not None:
                found[t] = found[t].at[begin : begin + self.lanes].set(adjoint)
        return found

    def of_given(self, carried: Sequence[Any]) -> list[Any]:
        """Adjoints of operands that are rows, of those of carried rows; None where there is none."""
        begin = dict.fromkeys(self.envelope.types, 0)
        found = []
        for each in self.given:
            # A type that no piece reads is of no value either.
            known = each.type in begin and carried[self.envelope.types.index(each.type)] is not None
            if not known:
                found.append(None)
                continue
            size = self.lanes if each.varies else 1
            rows = carried[self.envelope.types.index(each.type)]
            part = rows[begin[each.type] : begin[each.type] + size]
            found.append(part if each.varies else part[0])
            begin[each.type] += size
        return found


@functools.partial(compiled, static_argnums=0)
def _forward(at: _Places, tables: Any, payload: Any, shared: Any, given: Any) -> Any:
    lay = layout(at.envelope)
    ran = compute.forward(lay, tables, payload, at.carried(given), shared)
    return at.picked(compute.answers(lay, tables, ran.arenas))


@functools.partial(compiled, static_argnums=(0, 1))
def _saving(at: _Places, moves: Moves, tables: Any, payload: Any, shared: Any, given: Any) -> Any:
    lay = layout(at.envelope)
    active = moves.of_pieces(at.envelope)
    ran = compute.forward(lay, tables, payload, at.carried(given), shared, active)
    return at.picked(compute.answers(lay, tables, ran.arenas)), ran


@functools.partial(compiled, static_argnums=(0, 1))
def _reverse(
    at: _Places,
    moves: Moves,
    tables: Any,
    payload: Any,
    shared: Any,
    ran: Ran,
    adjoints: Any,
) -> Any:
    lay = layout(at.envelope)
    active = moves.of_pieces(at.envelope)
    seeds = at.seeds(adjoints)
    carried, of_shared = backwards.reverse(lay, tables, payload, shared, Ran(*ran), active, seeds)
    return of_shared, at.of_given(carried)


@dataclass(frozen=True, eq=False)
class Values:
    """The answers of all lanes as a function of operands. Operands that vary, and answers, have one lane axis.

    A pytree: an argument of compiled code, which is compiled anew only for another envelope or other ends of lanes.
    """

    ready: Prepared | None
    of_slice: Mapping[int, Any]  # answers that the slice gave
    own: Mapping[int, Mapping[int, Any]]  # see `Decided.own`
    begins: tuple[
        tuple[int, tuple[int, int]], ...
    ]  # as `Recorded.begins`, of answers that are wanted rows
    lanes: int
    shared: tuple[int, ...]
    given: tuple[Given, ...]
    out_avals: tuple[Any, ...]

    @functools.cached_property
    def _places(self) -> _Places:
        assert self.ready is not None
        begins = tuple(place for _, place in self.begins)
        return _Places(self.ready.envelope, begins, self.lanes, self.given)

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        """The answers; without what the reverse reads."""
        made: list[Any] = []
        if self.ready is not None:
            taken = self._taken(operands)
            made = _forward(self._places, self.ready.tables, self.ready.payload, *taken)
        return self._answers(made, operands)

    def traced(self, operands: Sequence[Any]) -> list[Any]:
        """The answers inside `jax.jit`, with the derivatives of a table where its reverse is prepared."""
        made: list[Any] = []
        if self.ready is not None:
            shared, given = self._taken(operands)
            made = self._places.picked(self.ready.rows(shared, self._places.carried(given)))
        return self._answers(made, operands)

    def saving(self, operands: Sequence[Any], active: Sequence[bool]) -> tuple[list[Any], Any]:
        """The answers, and what the reverse by active operands reads."""
        if self.ready is None:
            return self._answers([], operands), ()
        taken = self._taken(operands)
        moves = self._moves(active)
        made, ran = _saving(self._places, moves, self.ready.tables, self.ready.payload, *taken)
        return self._answers(made, operands), ran

    def reverse(
        self,
        operands: Sequence[Any],
        saved: Any,
        active: Sequence[bool],
        adjoints: Sequence[Any],
    ) -> dict[int, Any]:
        """Adjoints of operands by their numbers, of those of answers (None for answers that have none)."""
        found: dict[int, Any] = {}
        if self.ready is not None:
            wanted = [self._at_table(adjoints[i], i) for i, _ in self.begins]
            shared, _ = self._taken(operands)
            of_shared, of_given = _reverse(
                self._places,
                self._moves(active),
                self.ready.tables,
                self.ready.payload,
                shared,
                saved,
                wanted,
            )
            found.update(zip(self.shared, of_shared, strict=True))
            found.update((g.number, x) for g, x in zip(self.given, of_given, strict=True))
        varies = {each.number: each.varies for each in self.given}
        for i, masks in self.own.items():
            adjoint = adjoints[i]
            if adjoint is None:
                continue
            for number, mask in masks.items():
                part = jnp.where(_of_lanes(mask, adjoint), adjoint, 0)
                part = part if varies[number] else part.sum(0)
                before = found.get(number)
                found[number] = part if before is None else before + part
        return {number: x for number, x in found.items() if x is not None}

    # -- operands ----------------------------------------------------------------------------------

    def _taken(self, operands: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        shared = tuple(operands[i] for i in self.shared)
        return shared, tuple(operands[g.number] for g in self.given)

    def _moves(self, active: Sequence[bool]) -> Moves:
        return Moves(tuple(bool(active[i]) for i in self.shared))

    # -- answers -----------------------------------------------------------------------------------

    def _at_table(self, adjoint: Any, i: int) -> Any:
        """The adjoint of an answer as the table has it: not in lanes where it is an operand."""
        if adjoint is None:
            aval = self.out_avals[i]
            return jnp.zeros((self.lanes, *aval.shape), aval.dtype)
        for mask in self.own.get(i, {}).values():
            adjoint = jnp.where(_of_lanes(mask, adjoint), 0, adjoint)
        return adjoint

    def _answers(self, made: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        of_table = dict(zip((i for i, _ in self.begins), made, strict=False))
        found = []
        for i, aval in enumerate(self.out_avals):
            if i in self.of_slice:
                found.append(jnp.asarray(self.of_slice[i]))
                continue
            value = of_table.get(i)
            if value is None:
                value = jnp.zeros((self.lanes, *aval.shape), aval.dtype)
            for number, mask in self.own.get(i, {}).items():
                value = jnp.where(_of_lanes(mask, value), operands[number], value)
            found.append(value)
        return found


jax.tree_util.register_dataclass(
    Values,
    data_fields=["ready", "of_slice", "own"],
    meta_fields=["begins", "lanes", "shared", "given", "out_avals"],
)


def _of_lanes(mask: Any, rows: Any) -> Any:
    """A mask of lanes beside rows."""
    return mask.reshape(-1, *[1] * (rows.ndim - 1))
