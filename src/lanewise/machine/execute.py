"""From operands to answers, as traceable code: the one entry to the machine.

`execute` is traceable JAX code, for use inside `jit` and inside other programs; there a stack holds a fixed number of
frames. What runs outside `jit` is in `on_host.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax, compiling, watchers
from lanewise._jax import Jaxpr, JaxprEqn
from lanewise.blocks.dependence import dependence
from lanewise.blocks.flatten import operand_avals
from lanewise.errors import OptionError
from lanewise.machine import observe
from lanewise.machine.axes import Mapped, lanes_first, no_lanes, one_lane
from lanewise.machine.choose import (
    ONE_LANE_CARRIERS,
    Plan,
    can_be_plain,
    measured_plan,
    plan_for,
)
from lanewise.machine.draws import as_it_runs
from lanewise.machine.folded import Folded, folded
from lanewise.machine.given_up import or_given_up
from lanewise.machine.growing import Phases
from lanewise.machine.larger import flow_moved, moved
from lanewise.machine.memory import parts_of_answers, parts_of_state, refuse_parts
from lanewise.machine.refill import Refill, flow_grown, num_dear
from lanewise.machine.sample import take_sample
from lanewise.machine.shrink import run_shrinking, widths_for
from lanewise.machine.split import Split
from lanewise.machine.state import State, grown, initial_state
from lanewise.machine.ticks import answers, statistics
from lanewise.options import DEPTH_INSIDE_JIT, Options
from lanewise.outcomes import counts
from lanewise.program import Program


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
    fold = None if chosen else folded_for(program, lanes, mapped, options, platform)
    if fold is not None:
        run = functools.partial(
            _execute,
            program=fold.program,
            lanes=fold.lanes,
            mapped=fold.mapped,
            options=options,
            platform=platform,
            split=split,
        )
        return run_folded(fold, lambda given: run(*given), operands, lanes, mapped, options)
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
    refuse_too_large(program, chosen, lanes, mapped, options, capacity, platform, inside_jit=True)
    if chosen.carrier in ONE_LANE_CARRIERS:
        return one_by_one(
            *operands,
            program=program,
            lanes=lanes,
            mapped=mapped,
            options=options,
            chosen=chosen,
            capacity=capacity,
        )
    phases = phases_of(program, lanes, mapped, options, chosen, capacity)
    return phases.finish(phases.run(phases.start(capacity, *operands), *operands))


def folded_for(
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    platform: str | None,
) -> Folded | None:
    """The program with those of its lane axes inside that belong there; None if there are none."""
    if platform != "cpu" or len(lanes) < 2:
        return None
    options = options.unwatched()
    wanted = answer_axes(program, mapped, options, lanes)
    return folded(program, lanes, mapped, options, expand, wanted)


def run_folded(
    fold: Folded,
    run: Callable[[list[Any]], list[Any]],
    operands: Sequence[Any],
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
) -> list[Any]:
    """Answers for these operands, by what runs the program with axes inside."""
    found = answer_axes(fold.program, fold.mapped, options, fold.lanes)
    return fold.answers(run(fold.operands(operands, mapped)), found, lanes)


def refuse_too_large(
    program: Program,
    chosen: Plan,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    capacity: int,
    platform: str | None,
    *,
    inside_jit: bool,
) -> None:
    """Raise if a run with stacks of so many frames needs more memory than the platform has."""
    if platform is None or chosen.plain:
        return
    width = math.prod(lanes)
    axes = answer_axes(program, mapped, options, lanes)
    own = [aval for aval, has in zip(program.out_avals, axes, strict=True) if all(has)]
    parts = parts_of_answers(own, width)
    if chosen.linked is not None and chosen.carrier == "ticks":
        if refills(lanes, options):
            width = options.lanes or 1
            parts += parts_of_state(chosen.linked, width, capacity)
        else:
            # Answers are registers.
            parts = parts_of_state(chosen.linked, width, capacity)
    refuse_parts(program, parts, width, platform, inside_jit)


def phases_of(
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
            finish=lambda flow: shaped(refill.finish(flow), program, lanes, mapped, options),
            machine=lambda flow: flow.machine,
            with_machine=lambda flow, machine: flow.with_(machine=machine),
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
        return shaped((values, code, places, statistics(state)), program, lanes, mapped, options)

    return Phases(start, run, finish, lambda state: state, lambda _, state: state, grown, moved)


def one_by_one(
    *operands: Any,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    chosen: Plan,
    capacity: int = 1,
    stops: bool = False,
) -> list[Any]:
    """Each lane by itself; `stops`: until an interrupt comes."""
    flat, flags = lanes_first(operands, lanes, mapped)
    width = math.prod(lanes)
    site = observe.site_of(program, lanes, mapped, options, chosen)
    # Imported here as in choose.py: only what carries the program.
    if chosen.carrier == "native":
        from lanewise.machine.native import run_native

        given = (program, flat, flags, width, options, expand, chosen.path, capacity, site)
        ran = run_native(*given, stops)
    else:
        from lanewise.machine.kernel import device
        from lanewise.machine.kernel.carry import kernel_for, run_kernel

        emitted = kernel_for(program, tuple(flags), options, expand)
        if stops:
            emitted = emitted.stopped_by_flag(device.LISTENING_TICKS)
        on_gpu = functools.partial(device.call, lanes=options.lanes, site=site)
        ran = run_kernel(emitted, program, flat, width, capacity, on_gpu)
    return shaped(ran, program, lanes, mapped, options)


def shaped(
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
