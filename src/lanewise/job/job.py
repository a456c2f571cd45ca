"""A job: what is asked for. A program, the lanes it runs for, options, and where.

A lone call has no lanes. `lanes` are the sizes of the lane axes, outermost first, and `mapped` says which of them each
operand has, in front. What follows from these alone is here, so that it is worked out once: which operands vary,
how many examples there are, how many are in flight, and which lane axes each answer has.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lanewise import _jax
from lanewise.blocks.dependence import dependence
from lanewise.blocks.flatten import operand_avals
from lanewise.core import events
from lanewise.core.options import Options
from lanewise.core.profile import Profile, profile_of
from lanewise.core.program import Program
from lanewise.diff.accumulate import accumulating
from lanewise.job.axes import Mapped, one_lane
from lanewise.job.draws import as_it_runs


class Room(Protocol):
    """What `diff/vjp.py` knows of a gradient whose tapes can grow."""

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

    `streamed`: examples come from the host, and nobody knows how many; `lanes` is then how many are in flight. `room`:
    the program is the forward one of a gradient, whose tapes the host makes longer; what it gives ends with the number
    of records they have room for then. `summed`: the places of the program's accumulators among what the job gives.
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
        """Whether JAX's own control flow can say all of the program."""
        return can_be_plain(self.program, self.options)

    def larger(self) -> Job | None:
        """The same job with more room on its tapes, if there can be more."""
        more = None if self.room is None else self.room.larger()
        if more is None:
            return None
        return replace(self, program=more.forward[0], room=more).as_it_runs()

    def given(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """The operands of the same job with less room, as those of this one."""
        constants = () if self.room is None else self.room.forward[1]
        return (*constants, *operands[len(constants) :])

    def with_options(self, **changes: Any) -> Job:
        """The same job with other options."""
        return replace(self, options=self.options.updated(**changes))

    def as_it_runs(self) -> Job:
        """The same job with the program as it runs: options reach inside, and lanes draw by themselves."""
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
        program = accumulating(program, summed)
    return Job(program, lanes, mapped, options, platform, room=room, summed=summed)


def can_be_plain(program: Program, options: Options) -> bool:
    """Whether JAX's own control flow can say all of the program."""
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
    structs = [_jax.shape_dtype_struct(aval) for aval in operand_avals(program)]
    by_axis = []
    for level in range(len(lanes)):
        flags = tuple(axes[level] for axes in mapped)
        depends, control_depends = dependence(program, flags)
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
