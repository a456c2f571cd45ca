"""Programs outside `jit`.

The host has a part in such a run. When a stack or a tape is full it makes room, and the machine goes on from the state
it stopped in. It looks at some lanes before it decides how to run them all. And an interrupt ends the run: a machine
by ticks comes back to Python every now and then (`growing.py`), and kernels are left (`kernel/signals.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np

from lanewise import _jax, compiling, watchers
from lanewise.machine import given_up, observe
from lanewise.machine.axes import Mapped, lanes_first, no_lanes, of_rows
from lanewise.machine.choose import ONE_LANE_CARRIERS, Plan, blocks_of
from lanewise.machine.draws import as_it_runs
from lanewise.machine.execute import (
    answer_axes,
    execute,
    expand,
    folded_for,
    one_by_one,
    phases_of,
    plan,
    refills,
    refuse_too_large,
    run_folded,
    shaped,
)
from lanewise.machine.explain import explainable
from lanewise.machine.folded import Folded
from lanewise.machine.given_up import or_given_up
from lanewise.machine.growing import FIRST_DEPTH, Around, Growing, Whole, most_depth
from lanewise.machine.link import link
from lanewise.machine.local import run_local
from lanewise.machine.refill import num_dear
from lanewise.machine.rerun import Rerun, RerunLarger
from lanewise.machine.split import Split
from lanewise.options import Options
from lanewise.outcomes import FULL_TAPE
from lanewise.program import Program

# The frames a stack holds where only a few lanes are in flight and memory is not touched before it is used.
DEEP = 1 << 16


def execute_on_host(
    *operands: Any, program: Program, lanes: tuple[int, ...], mapped: Mapped, options: Options
) -> list[Any]:
    """Answers of all lanes, then what else is wanted; stacks grow as far as `max_depth` allows."""
    if watchers.recorded():
        options = options.as_recorded()
    platform, devices = _jax.placed(operands)
    run = on_host(program, lanes, mapped, options, platform or _jax.default_platform())
    if devices > 1 and math.prod(lanes):
        split = Split.of_values(operands)
        if split is not None:
            split.refuse(program.name, run.plan(operands))
    if not options.watched:
        out = run(operands)
    else:
        with watchers.call(program.name):
            out = run(operands)
            out = jax.block_until_ready(out) if options.recorded else out
    if program.formats:
        explainable(out[len(program.out_avals)], run.program, operands, mapped, expand)
    return out


class OnHost:
    """What runs a program outside `jit`: chosen at the first call, which has lanes to look at, for all later ones."""

    def __init__(
        self, program: Program, lanes: tuple[int, ...], mapped: Mapped, options: Options, where: str
    ) -> None:
        self.program = as_it_runs(program, options)
        self._signature = (self.program, lanes, mapped, options, where)
        self._plan: Plan | None = None
        self._failed: str | None = None
        self._run: Callable[[Sequence[Any]], list[Any]] | None = None

    def plan(self, operands: Sequence[Any]) -> Plan:
        """How the program runs; these operands may be sampled if none have been."""
        program, lanes, mapped, options, where = self._signature
        if self._plan is None or given_up.reason(program):
            if options.watched:
                # As it is without anybody looking.
                alone = on_host(program, lanes, mapped, options.unwatched(), where)
                self._plan = alone.plan(operands)
            elif (inner := self._folded()) is not None:
                fold, run = inner
                self._plan = run.plan(fold.operands(operands, mapped))
            else:
                self._plan = plan(*self._signature, operands)
        return self._plan

    def _folded(self) -> tuple[Folded, OnHost] | None:
        """The program with some axes of lanes inside, and what runs that, if it is better."""
        fold = folded_for(*self._signature)
        if fold is None:
            return None
        _, _, _, options, where = self._signature
        return fold, on_host(fold.program, fold.lanes, fold.mapped, options, where)

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        program, _, _, options, _ = self._signature
        return or_given_up(program, options, lambda: self._latest(operands)(operands))

    def _latest(self, operands: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
        failed = given_up.reason(self._signature[0])
        if self._run is None or failed != self._failed:
            self._run, self._failed = self._made(operands), failed
        return self._run

    def _made(self, operands: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
        program, lanes, mapped, options, _ = self._signature
        if math.prod(lanes) == 0:
            return lambda operands: no_lanes(program, lanes, options)
        inner = self._folded()
        if inner is not None:
            fold, run = inner
            return lambda operands: run_folded(fold, run, operands, lanes, mapped, options)
        compiling.watch(program.name, progress=options.progress, new=True)
        chosen = self.plan(operands)
        compiling.watch(program.name, chosen.words, options.progress)
        run = self._as_chosen(chosen)
        if program.larger is None or FULL_TAPE not in program.sites:
            return run
        return self._with_larger_tapes(run, chosen).run_growing

    def _as_chosen(self, chosen: Plan) -> Callable[[Sequence[Any]], list[Any]]:
        program, lanes, mapped, options, platform = self._signature
        if chosen.schedule == "local":

            def run(operands: Sequence[Any]) -> list[Any]:
                flat, flags = lanes_first(operands, lanes, mapped)
                site = observe.site_of(program, lanes, mapped, options, chosen)
                number = None if site is None else watchers.begin(site)
                with _jax.our_transfers():
                    ran = run_local(chosen.linked, flat, flags, math.prod(lanes), options)
                watchers.end(number, {})
                return shaped(ran, program, lanes, mapped, options)

            return run
        return _compiled(program, lanes, mapped, options, platform, chosen).run_growing

    def _with_larger_tapes(
        self, run: Callable[[Sequence[Any]], list[Any]], chosen: Plan
    ) -> RerunLarger:
        """The same, with lanes run again whose tapes were full in the end."""
        program, lanes, mapped, options, platform = self._signature
        alone = chosen.carrier in ONE_LANE_CARRIERS
        again = options.updated(carrier=chosen.carrier) if alone else options
        codes, full = len(program.out_avals), program.sites.index(FULL_TAPE)

        def whole(operands: Sequence[Any]) -> list[Any]:
            assert program.larger is not None
            larger, constants = program.larger()
            given = (*constants, *operands[len(constants) :])
            return on_host(larger, lanes, mapped, again, platform)(given)

        def part(operands: Sequence[Any], rows: np.ndarray) -> list[Any]:
            assert program.larger is not None
            larger, constants = program.larger()
            given = (*constants, *operands[len(constants) :])
            taken, axes = of_rows(given, rows, lanes, mapped)
            return on_host(larger, rows.shape, axes, again, platform)(taken)

        apart = alone and _apart(program, lanes, mapped, options)
        return RerunLarger(run, whole, part if apart else None, codes, full)


on_host = functools.lru_cache(maxsize=512)(OnHost)


def _compiled(
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    platform: str,
    chosen: Plan,
) -> Whole | Growing | Rerun:
    if chosen.carrier in ONE_LANE_CARRIERS:
        refuse_too_large(program, chosen, lanes, mapped, options, 1, platform, inside_jit=False)
        alone = functools.partial(
            one_by_one,
            program=program,
            lanes=lanes,
            mapped=mapped,
            options=options,
            chosen=chosen,
            stops=True,
        )
        around = _stoppable(chosen.carrier)
        if not program.recursive:
            return Whole(alone, around)
        from lanewise.machine.kernel.carry import blocks_for
        from lanewise.machine.kernel.foreign import cores

        # A CPU has a lane in flight on each core, so their stacks may be deep from the start. A GPU has fewer in flight
        # the more memory a lane takes.
        on_cpu = chosen.carrier == "native"
        varying = tuple(any(axes) for axes in mapped)
        linked = blocks_for(program, varying, options, expand)
        most = most_depth(linked, cores() if on_cpu else 1, options)
        first = min(most, DEEP if on_cpu else FIRST_DEPTH)

        def part(*operands: Any, rows: Any, capacity: int) -> list[Any]:
            taken, axes = of_rows(operands, rows, lanes, mapped)
            return alone(*taken, lanes=rows.shape, mapped=axes, capacity=capacity)

        apart = _apart(program, lanes, mapped, options)
        codes = len(program.out_avals)
        return Rerun(alone, part if apart else None, codes, first, most, around)
    linked = chosen.linked
    if chosen.plain or linked is None:
        return Whole(
            functools.partial(
                execute,
                program=program,
                lanes=lanes,
                mapped=mapped,
                options=options,
                platform=platform,
                chosen=chosen,
            )
        )
    return _growing(program, lanes, mapped, options, chosen, platform)


# Whether to wait for a GPU outside `jit`, so that an interrupt ends what it runs.
_waits: ContextVar[bool] = ContextVar("waits", default=True)


@contextlib.contextmanager
def not_waiting() -> Iterator[None]:
    """Where the host has other work to do while a GPU runs."""
    token = _waits.set(False)
    try:
        yield
    finally:
        _waits.reset(token)


def _stoppable(carrier: str) -> Around:
    """What lets an interrupt end the runs of a carrier that runs each lane by itself."""
    # Imported here as in choose.py: only what carries the program.
    if carrier == "native":
        from lanewise.machine.kernel.signals import stoppable

        return stoppable
    from lanewise.machine.kernel import waiting

    return functools.partial(waiting.stoppable, waits=_waits.get)


def _apart(program: Program, lanes: tuple[int, ...], mapped: Mapped, options: Options) -> bool:
    """Whether what some lanes give can take its place among what the others gave.

    Statistics are of one run, and what is the same for all lanes of an axis belongs to none of them.
    """
    return not options.stats and all(map(all, answer_axes(program, mapped, options, lanes)))


def _growing(
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    chosen: Plan,
    platform: str,
) -> Growing:
    """A machine by ticks whose host makes room."""
    linked = chosen.linked
    assert linked is not None
    width = (options.lanes if refills(lanes, options) else math.prod(lanes)) or 1
    most = most_depth(linked, width, options)
    first = min(FIRST_DEPTH, most)
    refuse_too_large(program, chosen, lanes, mapped, options, first, platform, inside_jit=False)

    def larger() -> tuple[Growing, Callable[[Sequence[Any]], Sequence[Any]]]:
        assert program.larger is not None
        roomier, constants = program.larger()
        varying = tuple(any(flags) for flags in mapped)
        relinked = link(blocks_of(roomier, varying, options, expand), varying)
        plan = dataclasses.replace(chosen, linked=relinked)
        return (
            _growing(roomier, lanes, mapped, options, plan, platform),
            lambda operands: (*constants, *operands[len(constants) :]),
        )

    return Growing(
        phases_of(program, lanes, mapped, options, chosen, most),
        linked,
        width,
        most,
        num_dear(linked, width, chosen.schedule),
        larger if linked.waiting else None,
        watched=options.watched,
    )
