"""The blocks of a job, made once and remembered."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from lanewise.blocks.flatten import flatten
from lanewise.blocks.form import BlockProgram
from lanewise.blocks.link import Linked, link
from lanewise.blocks.simplify import simplify
from lanewise.core.options import Options
from lanewise.core.profile import Profile
from lanewise.core.program import Program
from lanewise.job.job import Job


def blocks_of(program: Program, varying: Sequence[bool], options: Options) -> BlockProgram:
    """The program's blocks, simplified."""
    return _blocks(program, tuple(varying), options.max_steps is not None)


@functools.lru_cache(maxsize=512)
def _blocks(program: Program, varying: tuple[bool, ...], every_loop: bool) -> BlockProgram:
    return simplify(flatten(program, varying, every_loop=every_loop))


def linked_for(job: Job) -> Linked:
    """The same for a job, linked."""
    every_loop = job.options.max_steps is not None
    return _linked(job.program, job.varying, every_loop, job.profile)


@functools.lru_cache(maxsize=512)
def _linked(
    program: Program, varying: tuple[bool, ...], every_loop: bool, profile: Profile
) -> Linked:
    return link(_blocks(program, varying, every_loop), varying, profile)
