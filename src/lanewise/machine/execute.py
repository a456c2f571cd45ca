"""From operands to answers: the one entry to the machine.

`execute` is traceable JAX code, for use inside `jit` and inside other programs; there a stack holds a fixed number of
frames. `execute_on_host` runs outside `jit`: when a stack is full the host makes room and the machine goes on from the
state it stopped in.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax, compiling, watchers
from lanewise._jax import Jaxpr, JaxprEqn
from lanewise.blocks.dependence import dependence
from lanewise.blocks.flatten import operand_avals
from lanewise.errors import OptionError
from lanewise.machine import given_up, observe
from lanewise.machine.axes import Mapped, lanes_first, no_lanes, of_rows, one_lane
from lanewise.machine.choose import (
    ONE_LANE_CARRIERS,
    Plan,
    blocks_of,
    can_be_plain,
    measured_plan,
    plan_for,
)
from lanewise.machine.draws import as_it_runs
from lanewise.machine.explain import explainable
from lanewise.machine.given_up import or_given_up
from lanewise.machine.growing import FIRST_DEPTH, Growing, Phases, Whole, most_depth
from lanewise.machine.larger import flow_moved, moved
from lanewise.machine.link import link
from lanewise.machine.local import run_local
from lanewise.machine.refill import Refill, flow_grown, num_dear
from lanewise.machine.rerun import Rerun, RerunLarger
from lanewise.machine.sample import take_sample
from lanewise.machine.shrink import run_shrinking, widths_for
from lanewise.machine.split import Split
from lanewise.machine.state import State, grown, initial_state
from lanewise.machine.ticks import answers, statistics
from lanewise.options import DEPTH_INSIDE_JIT, Options
from lanewise.outcomes import FULL_TAPE, counts
from lanewise.program import Program

# The frames a stack holds where only a few lanes are in flight and memory is not touched before it is used.
DEEP = 1 << 16


def plan(
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    platform: str | None = None,
    operands: Sequence[Any] | None = None,
) -> Plan:
    """How the program will run for these lanes on a platform; without one, by ticks, which run on any.

    Where operands are given, a sample of their lanes may be run to decide.
    """
    options = options.unwatched()
    varying = tuple(any(flags) for flags in mapped)
    count = math.prod(lanes) if lanes else None
    given = (program, varying, count, options, expand, platform)
    if operands is None:
        found = plan_for(*given)
    else:
        found = measured_plan(
            *given, lambda linked: take_sample(linked, operands, lanes, mapped, options, expand)
        )
    # A carrier that runs each lane by itself starts the next example when one ends, whatever the number of lanes.
    if not refills(lanes, options) or found.carrier in ONE_LANE_CARRIERS:
        return found
    # Refilled lanes do not wait for each other, so no program is better off without a machine.
    schedule = "sweep" if options.schedule == "auto" else options.schedule
    machine = options.updated(schedule=schedule)
    found = plan_for(program, varying, options.lanes, machine, expand, platform)
    why = f"{math.prod(lanes)} examples through {options.lanes} lanes, refilled as they end"
    return dataclasses.replace(found, why=why)


def refills(lanes: tuple[int, ...], options: Options) -> bool:
    """Whether there are more examples (the sizes of the lane axes, multiplied) than lanes to run them."""
    return bool(lanes) and options.lanes is not None and math.prod(lanes) > options.lanes


def expand(eqn: JaxprEqn) -> Jaxpr:
    """The code of a program under an inner `jax.vmap`: a machine of its own, as a jaxpr; the outer one is watched.

    It is carried by what carries the whole, as code of one lane: no library is called from inside another.
    """
    options = eqn.params["options"].unwatched().updated(carrier="auto")
    params = eqn.params | {"options": options}
    run = functools.partial(execute, **params)
    with watchers.not_recording():
        return _jax.trace(run, [atom.aval for atom in eqn.invars]).jaxpr


def execute(*operands: Any, program: Program, options: Options, **how: Any) -> list[Any]:
    """Answers, then outcomes and statistics if they are wanted, as traceable code for a platform, or for any.

    `split`: how XLA may split what is traced over devices.
    """
    run = functools.partial(_execute, *operands, program=program, options=options, **how)
    return or_given_up(program, options, run)


def _execute(
    *operands: Any,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    platform: str | None = None,
    chosen: Plan | None = None,
    split: Split | None = None,
) -> list[Any]:
    if math.prod(lanes) == 0:
        return no_lanes(program, lanes, options)
    if watchers.recorded():
        options = options.as_recorded()
    program = as_it_runs(program, options)
    chosen = chosen or plan(program, lanes, mapped, options, platform)
    if split is not None:
        split.refuse(program.name, chosen)
    compiling.watch(program.name, chosen.words, options.progress)
    if chosen.schedule == "local":
        raise OptionError(
            'schedule="local" recurses on the host and runs only outside jit; use "auto", "sweep", "most" or "lowest".'
        )
    if chosen.plain:
        return _plain(operands, program, lanes, mapped, options, chosen)
    capacity = options.max_depth or DEPTH_INSIDE_JIT
    if chosen.carrier in ONE_LANE_CARRIERS:
        return _one_by_one(
            *operands,
            program=program,
            lanes=lanes,
            mapped=mapped,
            options=options,
            chosen=chosen,
            capacity=capacity,
        )
    phases = _phases(program, lanes, mapped, options, chosen, capacity)
    return phases.finish(phases.run(phases.start(capacity, *operands), *operands))


def execute_on_host(
    *operands: Any, program: Program, lanes: tuple[int, ...], mapped: Mapped, options: Options
) -> list[Any]:
    """The same outside `jit`, where stacks grow as far as `max_depth` allows."""
    if watchers.recorded():
        options = options.as_recorded()
    program = as_it_runs(program, options)
    run = on_host(program, lanes, mapped, options, _platform(operands))
    split = Split.of_values(operands)
    if split is not None and math.prod(lanes):
        split.refuse(program.name, run.plan(operands))
    if not options.watched:
        out = run(operands)
    else:
        with watchers.call(program.name):
            out = run(operands)
            out = jax.block_until_ready(out) if options.recorded else out
    if program.formats:
        explainable(out[len(program.out_avals)], program, operands, mapped, expand)
    return out


class OnHost:
    """What runs a program outside `jit`: chosen at the first call, which has lanes to look at, for all later ones."""

    def __init__(
        self, program: Program, lanes: tuple[int, ...], mapped: Mapped, options: Options, where: str
    ) -> None:
        self._signature = (program, lanes, mapped, options, where)
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
            else:
                self._plan = plan(*self._signature, operands)
        return self._plan

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        program, _, _, options, _ = self._signature
        return or_given_up(program, options, lambda: self._latest(operands)(operands))

    def _latest(self, operands: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
        failed = given_up.reason(self._signature[0])
        if self._run is None or failed != self._failed:
            self._run, self._failed = self._made(operands), failed
        return self._run

    def _made(self, operands: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
        program, lanes, _, options, _ = self._signature
        if math.prod(lanes) == 0:
            return lambda operands: no_lanes(program, lanes, options)
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
                return _shaped(ran, program, lanes, mapped, options)

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
        one_by_one = functools.partial(
            _one_by_one,
            program=program,
            lanes=lanes,
            mapped=mapped,
            options=options,
            chosen=chosen,
        )
        if not program.recursive:
            return Whole(one_by_one)
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
            return one_by_one(*taken, lanes=rows.shape, mapped=axes, capacity=capacity)

        apart = _apart(program, lanes, mapped, options)
        codes = len(program.out_avals)
        return Rerun(one_by_one, part if apart else None, codes, first, most)
    linked = chosen.linked
    if chosen.plain or linked is None or not (linked.has_calls or linked.waiting):
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
    return _growing(program, lanes, mapped, options, chosen)


def _apart(program: Program, lanes: tuple[int, ...], mapped: Mapped, options: Options) -> bool:
    """Whether what some lanes give can take its place among what the others gave.

    Statistics are of one run, and what is the same for all lanes of an axis belongs to none of them.
    """
    return not options.stats and all(map(all, answer_axes(program, mapped, options, lanes)))


def _growing(
    program: Program, lanes: tuple[int, ...], mapped: Mapped, options: Options, chosen: Plan
) -> Growing:
    """A machine by ticks whose host makes room."""
    linked = chosen.linked
    assert linked is not None
    width = (options.lanes if refills(lanes, options) else math.prod(lanes)) or 1
    most = most_depth(linked, width, options)

    def larger() -> tuple[Growing, Callable[[Sequence[Any]], Sequence[Any]]]:
        assert program.larger is not None
        roomier, constants = program.larger()
        varying = tuple(any(flags) for flags in mapped)
        relinked = link(blocks_of(roomier, varying, options, expand), varying)
        plan = dataclasses.replace(chosen, linked=relinked)
        return (
            _growing(roomier, lanes, mapped, options, plan),
            lambda operands: (*constants, *operands[len(constants) :]),
        )

    return Growing(
        _phases(program, lanes, mapped, options, chosen, most),
        linked,
        most,
        num_dear(linked, width, chosen.schedule),
        larger if linked.waiting else None,
    )


def _phases(
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    chosen: Plan,
    most: int,
) -> Phases:
    """The phases of a machine whose stacks grow to `most` frames."""
    linked, width = chosen.linked, math.prod(lanes)
    assert linked is not None
    site = observe.site_of(program, lanes, mapped, options, chosen)

    def watched(flow: Any, operands: Sequence[Any]) -> Any:
        return flow.with_(machine=observe.watched(flow.machine, site, linked.halt, operands))

    if refills(lanes, options):
        assert options.lanes is not None
        flags = [any(axes) for axes in mapped]
        refill = Refill(linked, options.lanes, width, flags, options, chosen.schedule, most)
        return Phases(
            start=lambda capacity, *operands: watched(
                refill.start(capacity, lanes_first(operands, lanes, mapped)[0]), operands
            ),
            run=lambda flow, *operands: refill.run(flow, lanes_first(operands, lanes, mapped)[0]),
            finish=lambda flow: _shaped(refill.finish(flow), program, lanes, mapped, options),
            machine=lambda flow: flow.machine,
            grown=flow_grown,
            moved=flow_moved,
        )

    def start(capacity: int, *operands: Any) -> State:
        flat, flags = lanes_first(operands, lanes, mapped)
        dear = num_dear(linked, width, chosen.schedule)
        state = initial_state(linked, flat, flags, width, capacity, dear)
        return observe.watched(state, site, linked.halt, operands)

    def run(state: State, *operands: Any) -> State:
        del operands
        widths = widths_for(linked, width, chosen.schedule)
        return run_shrinking(linked, state, options, chosen.schedule, widths)

    def finish(state: State) -> list[Any]:
        values, code, places = answers(linked, state)
        observe.finished(state, code, lives_of_lanes=True)
        return _shaped((values, code, places, statistics(state)), program, lanes, mapped, options)

    return Phases(start, run, finish, lambda state: state, grown, moved)


def _platform(operands: Sequence[Any]) -> str:
    """Where operands lie."""
    for value in operands:
        if isinstance(value, jax.Array):
            return next(iter(value.devices())).platform
    return _jax.default_platform()


def _one_by_one(
    *operands: Any,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    chosen: Plan,
    capacity: int = 1,
) -> list[Any]:
    """Each lane by itself."""
    flat, flags = lanes_first(operands, lanes, mapped)
    width = math.prod(lanes)
    site = observe.site_of(program, lanes, mapped, options, chosen)
    # Imported here as in choose.py: only what carries the program.
    if chosen.carrier == "native":
        from lanewise.machine.native import run_native

        ran = run_native(program, flat, flags, width, options, expand, chosen.path, capacity, site)
    else:
        from lanewise.machine.kernel import device
        from lanewise.machine.kernel.carry import kernel_for, run_kernel

        emitted = kernel_for(program, tuple(flags), options, expand)
        on_gpu = functools.partial(device.call, lanes=options.lanes, site=site)
        ran = run_kernel(emitted, program, flat, width, capacity, on_gpu)
    return _shaped(ran, program, lanes, mapped, options)


def _shaped(
    ran: Any, program: Program, lanes: tuple[int, ...], mapped: Mapped, options: Options
) -> list[Any]:
    """Answers with their lane axes apart again, then what else is wanted."""
    values, code, site, stats = ran
    out = []
    axes_of = answer_axes(program, mapped, options, lanes)
    for value, axes, aval in zip(values, axes_of, program.out_avals, strict=True):
        apart = value.reshape(*lanes, *value.shape[1:])
        if aval.weak_type:
            # Kernels know nothing of weak types.
            apart = _jax.convert_to_aval(apart, aval)
        # All entries along an axis that the answer does not depend on are the same.
        out.append(apart[tuple(slice(None) if has else 0 for has in axes)])
    if program.gives_outcomes(options):
        out += [code.reshape(lanes), site.reshape(lanes)]
    return out + (list(stats) if options.stats else [])


def _plain(
    operands: Sequence[Any],
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    chosen: Plan,
) -> list[Any]:
    """Structured code under `jax.vmap`, one call for each lane axis. It cannot fail."""
    site = observe.site_of(program, lanes, mapped, options, chosen)
    whole = None if site is None else observe.Whole(site, operands)
    run = one_lane(program)
    has_axes = answer_axes(program, mapped, options, lanes)
    for level in reversed(range(len(lanes))):
        axes = tuple(0 if flags[level] else None for flags in mapped)
        outs = [0 if flags[level] else None for flags in has_axes]
        run = jax.vmap(run, in_axes=axes, out_axes=outs, axis_size=lanes[level])
    out = run(*operands)
    if whole is not None:
        whole.ended(next(iter(out), None))
    if program.gives_outcomes(options):
        out += [jnp.zeros(lanes, jnp.int32), jnp.full(lanes, -1, jnp.int32)]
    if options.stats:
        width = math.prod(lanes)
        out += counts(1, 1, width, width, steps=0, deepest=0)
    return out


@functools.lru_cache(maxsize=1024)
def answer_axes(
    program: Program, mapped: Mapped, options: Options, lanes: tuple[int, ...]
) -> Mapped:
    """For each answer, which lane axes it has: those of the operands it depends on."""
    if 0 in lanes:
        return ((True,) * len(lanes),) * len(program.out_avals)
    plain_ok = can_be_plain(program, options)
    structs = [_jax.shape_dtype_struct(aval) for aval in operand_avals(program)]
    by_axis = []
    for level in range(len(lanes)):
        flags = tuple(axes[level] for axes in mapped)
        depends, control_depends = dependence(program, flags, expand)
        # Whether a lane fails, and so blanks its answers, depends on the way it takes.
        blanked = control_depends and not options.throw and program.can_fail(options)
        # The same for every carrier, so it is all that any of them finds to vary.
        plainly = (
            _jax.batched_outputs(one_lane(program), structs, flags)
            if plain_ok
            else (False,) * len(depends)
        )
        by_axis.append(tuple(blanked or a or b for a, b in zip(depends, plainly, strict=True)))
    return tuple(tuple(flags[i] for flags in by_axis) for i in range(len(program.out_avals)))
