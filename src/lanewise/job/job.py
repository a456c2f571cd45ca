"""A job: what is asked for. A program, the lanes it runs for, options, and where.

A lone call has no lanes. `lanes` are the sizes of the lane axes, outermost first, and `mapped` says which of them each
operand has, in front. What follows from these alone is here, so that it is worked out once: which operands vary,
how many examples there are, how many are in flight, which lane axes each answer has, and the job's blocks. So is what
makes one axis of several for a machine, and several of one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise.blocks.divergence import dependence, found_by_jax
from lanewise.blocks.flatten import flatten
from lanewise.blocks.form import BlockProgram
from lanewise.blocks.link import Linked, link
from lanewise.blocks.simplify import simplify
from lanewise.core import events
from lanewise.core.options import Options
from lanewise.core.profile import Profile, profile_of
from lanewise.core.program import Program, program_p
from lanewise.job.draws import as_it_runs

# For each operand, which axes of lanes it has.
Mapped = tuple[tuple[bool, ...], ...]


class Params(NamedTuple):
    """The parameters of `program_p` (`rules/bind.py`)."""

    program: Program
    lanes: tuple[int, ...]
    mapped: Mapped
    options: Options
    summed: tuple[int, ...] = ()

    def bind(self, *operands: Any) -> list[Any]:
        return program_p.bind(*operands, **self._asdict())

    @property
    def answer_axes(self) -> Mapped:
        """For each answer, which lane axes it has before it is summed."""
        return answer_axes(self.program, self.mapped, self.options, self.lanes)

    @property
    def none(self) -> tuple[bool, ...]:
        """No lane axis."""
        return (False,) * len(self.lanes)

    def with_axis(self, size: int, dims: Sequence[int | None]) -> Params:
        """The same with one more lane axis, in front."""
        mapped = tuple((d is not None, *axes) for d, axes in zip(dims, self.mapped, strict=True))
        return self._replace(lanes=(size, *self.lanes), mapped=mapped)

    def of(self, program: Program, mapped: Mapped) -> Params:
        """The same lanes and options for another program."""
        return Params(program, self.lanes, mapped, self.options)


class Room(Protocol):
    """What `diff/vjp.py` provides for a gradient whose tapes can grow."""

    @property
    def forward(self) -> tuple[Program, tuple[Any, ...]]:
        """The forward program, and the constants that are its first operands."""
        ...

    @property
    def records(self) -> int:
        """How many records its tapes have room for."""
        ...

    def larger(self) -> Room | None:
        """The same with longer tapes; None if they are as long as they may be."""
        ...


@dataclass(frozen=True)
class Job:
    """A program and its lanes. `platform` is where it runs; without one it can be anywhere.

    `streamed`: examples come from the host, and their number is not known; `lanes` is then how many are in flight.
    `room`: the program is the forward one of a gradient, whose tapes the host makes longer; its last result is the
    number of records they have room for then. `summed`: the places of the program's accumulators among the job's
    results.
    """

    program: Program
    lanes: tuple[int, ...]
    mapped: Mapped
    options: Options
    platform: str | None = None
    streamed: bool = False
    room: Room | None = None
    summed: tuple[int, ...] = ()

    @functools.cached_property
    def varying(self) -> tuple[bool, ...]:
        """Which operands differ between lanes."""
        return tuple(any(axes) for axes in self.mapped)

    @functools.cached_property
    def examples(self) -> int:
        """How many examples there are."""
        return math.prod(self.lanes)

    @property
    def refilled(self) -> bool:
        """Whether a lane takes the next example when it has ended one."""
        most = self.options.lanes
        return self.streamed or (bool(self.lanes) and most is not None and self.examples > most)

    @property
    def width(self) -> int:
        """How many lanes are in flight."""
        most = self.options.lanes
        return most if self.refilled and most is not None else self.examples

    @property
    def profile(self) -> Profile:
        """What things cost where the job runs."""
        return profile_of(self.platform)

    @functools.cached_property
    def answer_axes(self) -> Mapped:
        """For each answer, which lane axes it has."""
        return answer_axes(self.program, self.mapped, self.options, self.lanes)

    @property
    def can_be_plain(self) -> bool:
        """Whether JAX's own control flow can express all of the program."""
        return can_be_plain(self.program, self.options)

    def larger(self) -> Job | None:
        """The same job with more room on its tapes, if there can be more."""
        more = None if self.room is None else self.room.larger()
        if more is None:
            return None
        return replace(self, program=more.forward[0], room=more).as_it_runs()

    def given(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Operands for this job, from those of the same job with less room."""
        constants = () if self.room is None else self.room.forward[1]
        return (*constants, *operands[len(constants) :])

    def with_options(self, **changes: Any) -> Job:
        """The same job with other options."""
        return replace(self, options=self.options.updated(**changes))

    def as_it_runs(self) -> Job:
        """The same job with the program as it runs: options reach inside, and lanes draw on their own."""
        program = as_it_runs(self.program, self.options)
        return self if program is self.program else replace(self, program=program)

    def unwatched(self) -> Job:
        """The same job, unobserved: what is decided does not depend on that."""
        return replace(self, options=self.options.unwatched()) if self.options.watched else self


def job_for(
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    *,
    platform: str | None,
    room: Room | None = None,
    summed: tuple[int, ...] = (),
) -> Job:
    """The job of running `program_p` with these parameters here and now."""
    if events.recorded():
        options = options.as_recorded()
    if summed:
        # Imported where it is used: most programs do not differentiate.
        from lanewise.diff.accumulate import accumulating

        program = accumulating(program, summed)
    return Job(program, lanes, mapped, options, platform, room=room, summed=summed)


def can_be_plain(program: Program, options: Options) -> bool:
    """Whether JAX's own control flow can express all of the program."""
    return not (
        program.recursive or program.sites or program.has_tapes or program.sums or options.max_steps
    )


@functools.lru_cache(maxsize=1024)
def answer_axes(
    program: Program, mapped: Mapped, options: Options, lanes: tuple[int, ...]
) -> Mapped:
    """For each answer, which lane axes it has: those of the operands it depends on."""
    if 0 in lanes:
        return ((True,) * len(lanes),) * len(program.out_avals)
    plain_ok = can_be_plain(program, options)
    structs = [_jax.shape_dtype_struct(aval) for aval in program.operand_avals]
    by_axis = []
    for level in range(len(lanes)):
        flags = tuple(axes[level] for axes in mapped)
        depends, control_depends = dependence(program, flags)
        # Whether a lane fails, and so blanks its answers, depends on the way it takes.
        blanked = control_depends and not options.throw and program.can_fail(options)
        # The same for every carrier, so none of them finds more to vary.
        plainly = found_by_jax(program, structs, flags) if plain_ok else (False,) * len(depends)
        by_axis.append(tuple(blanked or a or b for a, b in zip(depends, plainly, strict=True)))
    return tuple(tuple(flags[i] for flags in by_axis) for i in range(len(program.out_avals)))


def blocks_of(program: Program, varying: Sequence[bool], options: Options) -> BlockProgram:
    """The program's blocks, simplified."""
    return _blocks(program, tuple(varying), options.max_steps is not None)


@functools.lru_cache(maxsize=512)
@_jax.without_mesh()
def _blocks(program: Program, varying: tuple[bool, ...], every_loop: bool) -> BlockProgram:
    return simplify(flatten(program, varying, every_loop=every_loop))


def linked_for(job: Job) -> Linked:
    """The same for a job, linked."""
    every_loop = job.options.max_steps is not None
    return _linked(job.program, job.varying, every_loop, job.profile)


@functools.lru_cache(maxsize=512)
@_jax.without_mesh()
def _linked(
    program: Program, varying: tuple[bool, ...], every_loop: bool, profile: Profile
) -> Linked:
    return link(_blocks(program, varying, every_loop), varying, profile)


def lanes_first(
    operands: Sequence[Any], lanes: tuple[int, ...], mapped: Mapped
) -> tuple[list[Any], list[bool]]:
    """Operands with all their lane axes flattened into one; those that do not vary stay as they are."""
    flat, flags = [], []
    for value, axes in zip(operands, mapped, strict=True):
        varies = any(axes)
        if varies and len(lanes) > 1:
            inner = value.shape[sum(axes) :]
            spread = tuple(size if has else 1 for size, has in zip(lanes, axes, strict=True))
            value = jnp.broadcast_to(value.reshape(*spread, *inner), (*lanes, *inner))
            value = value.reshape(math.prod(lanes), *inner)
        flat.append(value)
        flags.append(varies)
    return flat, flags


def of_rows(
    operands: Sequence[Any], rows: Any, lanes: tuple[int, ...], mapped: Mapped
) -> tuple[list[Any], Mapped]:
    """The operands of some lanes, and which of them have an axis of those lanes."""
    flat, flags = lanes_first(operands, lanes, mapped)
    taken = [x[rows] if varies else x for x, varies in zip(flat, flags, strict=True)]
    return taken, tuple((varies,) for varies in flags)


def with_constants(constants: Sequence[Any], mapped: Mapped, lanes: tuple[int, ...]) -> Mapped:
    """Which lane axes operands have, those of a program's constants first, which have none."""
    return (*[(False,) * len(lanes)] * len(constants), *mapped)


def with_axes(
    value: Any, found: tuple[bool, ...], wanted: tuple[bool, ...], lanes: tuple[int, ...]
) -> Any:
    """A value that has these of the lane axes in front, with those that are wanted."""
    for axis, (have, want) in enumerate(zip(found, wanted, strict=True)):
        place = sum(wanted[:axis])
        if want and not have:
            whole = jnp.expand_dims(value, place)
            value = jnp.broadcast_to(
                whole, (*whole.shape[:place], lanes[axis], *whole.shape[place + 1 :])
            )
        elif have and not want:
            # The answer depends on nothing that varies along the axis, so it is the same for all of it.
            value = jax.lax.index_in_dim(value, 0, place, keepdims=False)
    return value
