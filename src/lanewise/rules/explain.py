"""What the assertions of failed lanes say, with the values that their messages format.

Carriers hand out which assertion a lane has failed, not what was in its variables: that would be work and memory for
every lane, and most never fail. So a lane that has failed is run again by the reference interpreter, up to the
assertion, and its values are taken there. A lane that takes too long to come to it, or comes by another rounding to
another end, keeps its message with holes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from lanewise import _jax
from lanewise.blocks.flatten import flatten
from lanewise.blocks.form import Block, BlockProgram
from lanewise.blocks.reference import block_code, interpret
from lanewise.core.errors import Outcome
from lanewise.core.outcomes import explain_with
from lanewise.core.program import Program
from lanewise.job.job import Mapped

MOST_LANES = 4
MOST_BLOCKS = 60_000  # of all of them together


class _TooLong(Exception):
    """The lane has not failed yet."""


def explainable(code: Any, program: Program, operands: Sequence[Any], mapped: Mapped) -> None:
    """Have failures of a run be described with the values that assertions format."""
    if program.formats and not any(isinstance(x, _jax.Tracer) for x in (code, *operands)):
        explain_with(code, functools.partial(explain, program, operands, mapped))


def explain(
    program: Program,
    operands: Sequence[Any],
    mapped: Mapped,
    code: np.ndarray,
    site: np.ndarray,
) -> Mapping[tuple[int, ...], str]:
    """The messages of the first lanes that failed an assertion with something to format."""
    wanted = [place for place, each in enumerate(program.sites) if each.formatted]
    failed = (code == int(Outcome.ASSERTION_FAILED)) & np.isin(site, wanted)
    lanes = [tuple(lane) for lane in np.argwhere(failed)[:MOST_LANES].tolist()]
    found, visited = {}, itertools.count()
    with _jax.our_transfers():
        for lane in lanes:
            one = _of_lane(operands, mapped, lane)
            message = _message(program, one, int(site[lane]), visited)
            if message is not None:
                found[lane] = message
    return found


def _message(
    program: Program, operands: Sequence[Any], site: int, visited: Iterator[int]
) -> str | None:
    """What the assertion says that a lane fails, if it is this one."""
    blocks, run = _compiled(program)

    def visit(block: Block) -> None:
        if next(visited) >= MOST_BLOCKS:
            raise _TooLong

    try:
        answer = interpret(blocks, operands, visit=visit, run=run)
    except Exception:  # too long, or an expression that does not like the values
        return None
    return answer.message if answer.site == site else None


@functools.lru_cache(maxsize=16)
def _compiled(program: Program) -> tuple[BlockProgram, Any]:
    """The program's blocks with what their assertions say, and how one runs: compiled when it is first met."""
    blocks = flatten(program, [True] * program.num_operands, explains=True)
    known: dict[int, Any] = {}

    def run(block: Block, values: Mapping[Any, Any]) -> Any:
        if block.label not in known:
            names, inputs, code = block_code(block)
            known[block.label] = (names, inputs, jax.jit(functools.partial(_jax.eval_jaxpr, code)))
        names, inputs, call = known[block.label]
        outs = call(*(values[var] for var in inputs))
        return dict(zip(names, outs, strict=False)), outs[len(names) :]

    return blocks, run


def _of_lane(operands: Sequence[Any], mapped: Mapped, lane: tuple[int, ...]) -> list[Any]:
    places = [tuple(place for place, has in zip(lane, axes, strict=True) if has) for axes in mapped]
    return [value[place] if place else value for value, place in zip(operands, places, strict=True)]
