"""Axes of lanes along which all lanes take the same path, made a part of each lane.

`jax.jacfwd` of a batch adds an axis of directions. Along it tangents differ; the primal, which alone decides the path
through the program, does not. As lanes of their own, the directions would compute the primal once each, with everything
they share. So on a CPU such an axis goes inside: a lane is one example in all directions, by JAX's own batching, which
has no loop to wait for there and no branch to take twice. Forward Jacobians of a batch ran 3 to 16 times as fast this
way.

It is done only where some answer is the same all along the axis: that shows that there is work to share. It is not done
where an axis is long or few lanes are left, which would not fill the cores; and not on a GPU, where a lane is a thread,
and many small ones are better than a few with long arrays.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise.blocks.divergence import dependence, one_lane
from lanewise.blocks.equations import sees_batch
from lanewise.core.program import Function, Program
from lanewise.job.job import Job, Mapped, with_axes

# The most entries of axes that go inside, together, and the fewest lanes that must be left.
MOST_INSIDE = 256
FEWEST_LANES = 32


@dataclass(frozen=True, eq=False)
class Folded:
    """A job with some of its lane axes inside its program: `inner`. `inside`: for each axis of `job` whether it is."""

    job: Job
    inner: Job
    inside: tuple[bool, ...]

    def operands(self, operands: Sequence[Any]) -> list[Any]:
        """The operands of the job for the inner one: axes that are left come first."""
        moved = []
        for value, axes in zip(operands, self.job.mapped, strict=True):
            inside = list(itertools.compress(self.inside, axes))
            order = sorted(range(len(inside)), key=inside.__getitem__)
            moved.append(_transposed(value, order))
        return moved

    def answers(self, outs: Sequence[Any]) -> list[Any]:
        """The inner job's results, as the job returns them."""
        left = [not inside for inside in self.inside]
        answers = []
        found, wanted_axes = self.inner.answer_axes, self.job.answer_axes
        for value, has, wanted in zip(outs, found, wanted_axes, strict=False):
            value = with_axes(value, has, tuple(itertools.compress(wanted, left)), self.inner.lanes)
            inside = list(itertools.compress(self.inside, wanted))
            order = sorted(range(len(inside)), key=inside.__getitem__)
            answers.append(_transposed(value, sorted(range(len(order)), key=order.__getitem__)))
        codes = [
            with_axes(x, tuple(left), (True,) * len(left), self.job.lanes)
            for x in outs[len(answers) :]
        ]
        return answers + codes


def _transposed(value: Any, order: list[int]) -> Any:
    """An array with its first axes in another order."""
    if order == sorted(order):
        return value
    return jnp.transpose(value, (*order, *range(len(order), value.ndim)))


@functools.lru_cache(maxsize=512)
def folded(job: Job) -> Folded | None:
    """The job with the axes inside that belong there; None if there are none."""
    program, lanes, mapped, options = job.program, job.lanes, job.mapped, job.options
    if job.platform != "cpu" or job.examples == 0 or job.room is not None:
        return None
    free = options.schedule == "auto" and options.lanes is None and not options.stats
    if not (free and job.can_be_plain and not sees_batch(program)):
        return None
    inside = tuple(
        _shares(program, tuple(axes[level] for axes in mapped)) for level in range(len(lanes))
    )
    sizes = tuple(itertools.compress(lanes, inside))
    left = tuple(itertools.compress(lanes, (not flag for flag in inside)))
    if not sizes or math.prod(sizes) > MOST_INSIDE or math.prod(left) < FEWEST_LANES:
        return None
    made = _with_axes_inside(program, lanes, mapped, inside, job.answer_axes)
    if made is None:
        return None
    outside = tuple(
        tuple(has for has, flag in zip(axes, inside, strict=True) if not flag) for axes in mapped
    )
    inner = replace(job, program=made, lanes=left, mapped=outside)
    return Folded(job, inner, inside)


def _shares(program: Program, flags: tuple[bool, ...]) -> bool:
    """Whether lanes along an axis of these operands take the same path, and some answers are the same for all."""
    if not any(flags):
        return False
    depends, control = dependence(program, flags)
    return not control and not all(depends)


def _with_axes_inside(
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    inside: tuple[bool, ...],
    wanted: Mapped,
) -> Program | None:
    """The program of one lane with these axes; None if it would have constants of its own."""
    run = one_lane(program)
    for level in reversed(range(len(lanes))):
        if inside[level]:
            ins = tuple(0 if axes[level] else None for axes in mapped)
            outs = [0 if axes[level] else None for axes in wanted]
            run = jax.vmap(run, in_axes=ins, out_axes=outs, axis_size=lanes[level])
    structs = []
    for aval, axes in zip(program.operand_avals, mapped, strict=True):
        struct = _jax.shape_dtype_struct(aval)
        front = [n for n, flag, has in zip(lanes, inside, axes, strict=True) if flag and has]
        structs.append(struct.update(shape=(*front, *struct.shape)))
    traced = _jax.trace(run, structs)
    if traced.captures:
        return None
    entry = Function(program.entry, traced.jaxpr, tuple(range(program.num_captures)))
    return Program({program.entry: entry}, program.entry, program.num_captures)
