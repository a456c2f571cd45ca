"""A program run by levels: the slice for control, a table for the values.

The slice runs for all lanes, as any program does, on the host. What it recorded is a table, which is fitted into an
envelope and run level by level. Only the operands that decide control have to be known for the first half; for the
second, operands may be traced, so derivatives are those of the table (`run.py`). Typed PRNG keys are given, and come
back, as the integers that they are made of.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lanewise import _jax
from lanewise.core.errors import CompilerError, OptionError
from lanewise.core.options import Options
from lanewise.core.outcomes import Site
from lanewise.core.program import Program, program_p
from lanewise.dynamic.answers import Decided, Values
from lanewise.dynamic.merged import merged, worth_merging
from lanewise.dynamic.recorded import Given, recorded
from lanewise.dynamic.run import STORE, prepare
from lanewise.dynamic.slice import Sliced, pieces_of, sliced
from lanewise.dynamic.table import Type
from lanewise.job.job import answer_axes

# Calls that a lane's record has room for at first. Another room is another compilation of the slice.
FIRST_ROOM = 256


class ByLevels:
    """Runs a program by levels, for any number of lanes that differ in these operands. Raises `NotSliced`."""

    def __init__(
        self, program: Program, varying: tuple[bool, ...], max_depth: int | None, loops: bool
    ) -> None:
        self.program, self.varying, self.loops = program, varying, loops
        self.options = Options(carrier="native", max_depth=max_depth)
        self.pieces = pieces_of(program, varying, loops)
        self.room = FIRST_ROOM

    @property
    def slice(self) -> Sliced:
        return sliced(self.program, self.varying, self.room, self.loops)

    @functools.cached_property
    def given(self) -> tuple[Given, ...]:
        entry = self.pieces.control.table.functions[self.pieces.control.table.entry]
        return tuple(
            Given(i, Type(tuple(v.aval.shape), np.dtype(v.aval.dtype)), self.varying[i])
            for i, v in enumerate(entry.ins)
            if self.pieces.control.is_row(v)
        )

    @functools.cached_property
    def reads(self) -> frozenset[int]:
        """The operands whose values decide."""
        return self.slice.reads

    def decide(self, operands: Sequence[Any], lanes: int) -> Decided:
        """Run the slice. Operands that vary have one lane axis; only those that decide are read."""
        found = self._run(operands, lanes)
        most = int(found[0].max(initial=0))
        if most > self.room:
            self.room = max(self.room, 1 << (most - 1).bit_length())
            found = self._run(operands, lanes)
        top, tape, *rest = found
        code, site = rest[-2:]
        top = np.where(code == 0, top, 0) if code.any() else top
        flags = self.slice.is_row
        answers = dict(enumerate(rest[: len(flags)]))
        rows = {i: x for i, x in answers.items() if flags[i]}
        values = {i: x for i, x in answers.items() if not flags[i]}
        table = recorded(self.slice, top, tape, rows, self.given)
        if table.begins and worth_merging(table.table, table.alone):
            less, wanted = merged(table.table, table.wanted)
            table = replace(table, table=less, wanted=wanted)
        return Decided(table, values, rows, code, _own_sites(site, self.slice, self.program))

    def _run(self, operands: Sequence[Any], lanes: int) -> list[np.ndarray]:
        """What the slice gives for each lane, then codes and sites."""
        own = self.slice
        held = [*(operands[i] for i in own.captured), *own.constants]
        given = [*held, *(operands[i] for i in own.params)]
        # Without operands that vary there is one way for all lanes.
        axes: tuple[int, ...] = (lanes,) if any(self.varying[i] for i in own.params) else ()
        mapped = (
            *[(False,) * len(axes)] * len(held),
            *((self.varying[i],) * len(axes) for i in own.params),
        )
        with _jax.our_transfers():
            outs = self._bound([_jax.on_host_cpu(x) for x in given], own, axes, mapped)
            outs = [np.asarray(x) for x in outs]
        has = answer_axes(own.program, mapped, self.options, axes)
        num = len(has)
        answers = [
            x if any(flags) else np.broadcast_to(x, (lanes, *x.shape))
            for x, flags in zip(outs[:num], has, strict=True)
        ]
        if len(outs) == num:
            return [*answers, np.zeros(lanes, np.int32), np.full(lanes, -1, np.int32)]
        return [*answers, *(np.broadcast_to(x, (lanes,)) for x in outs[num:])]

    def _bound(
        self, given: Sequence[Any], own: Sliced, axes: tuple[int, ...], mapped: Any
    ) -> list[Any]:
        params = {"program": own.program, "lanes": axes, "mapped": mapped}
        run: Any = program_p.impl
        try:
            return run(*given, **params, options=self.options)
        except (CompilerError, OptionError):
            if self.options.carrier == "auto":
                raise
            self.options = self.options.updated(carrier="auto")
            return run(*given, **params, options=self.options)

    def values(self, decided: Decided, lanes: int, *, gradient: bool) -> Values:
        """The second half, ready to run."""
        found = decided.recorded
        ready = (
            prepare(found.table, found.wanted, gradient=gradient, store=STORE)
            if found.begins
            else None
        )
        own = self.slice
        kept = tuple(map(_jax.stored_aval, self.program.out_avals))
        return Values(
            ready,
            decided.values,
            decided.own(self.given),
            tuple(found.begins.items()),
            lanes,
            own.shared,
            self.given,
            kept,
        )


def _own_sites(site: np.ndarray, own: Sliced, program: Program) -> np.ndarray:
    """Sites by the numbers that they have in the program."""
    numbers: dict[Site, int] = {s: i for i, s in enumerate(program.sites)}
    if own.program.sites == program.sites:
        return site
    new = np.array([*(numbers.get(s, -1) for s in own.program.sites), -1], np.int32)
    return new[site]


@functools.lru_cache(maxsize=256)
def by_levels(
    program: Program, varying: tuple[bool, ...], max_depth: int | None, loops: bool = False
) -> ByLevels:
    """What runs a program by levels, remembered with its room. Raises `NotSliced`.

    `loops`: those on values are run inside a level, for its rows together.
    """
    return ByLevels(program, varying, max_depth, loops)
