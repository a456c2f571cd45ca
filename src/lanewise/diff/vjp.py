"""Reverse mode, program to program.

The gradient of a program is two programs. The *forward* one takes the same operands and gives, after the answers, what
is saved. The *reverse* one takes the operands and what is saved that it reads, and the adjoints of the
answers, and gives the adjoints of the operands that move. Both are programs like any other: the machine batches them,
every carrier carries them, and they can be differentiated again.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lanewise import _jax
from lanewise.diff import branch, loop, scan  # register their rules
from lanewise.diff.activity import Moving, moving_outputs
from lanewise.diff.checkpoint import Checkpoints
from lanewise.diff.piece import piece
from lanewise.diff.sweep import Scope
from lanewise.program import Function, Program

del branch, loop, scan


class WithConstants(NamedTuple):
    """A program and the constants that its code holds: its first operands."""

    program: Program
    constants: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Reverse:
    """A program's gradient.

    `forward` gives the answers, then what is saved. `reverse` takes the operands numbered `reads`, what is saved, and
    the adjoints of the answers that move; it gives an adjoint for each operand that moves.
    """

    forward: WithConstants
    reverse: WithConstants
    reads: tuple[int, ...]
    out_moving: Moving


@functools.lru_cache(maxsize=512)
def vjp_program(program: Program, moving: Moving, checkpoints: Checkpoints) -> Reverse:
    """The gradient of a program by the operands that move."""
    entry = program.functions[program.entry]
    code = entry.jaxpr
    assert entry.captures == tuple(range(program.num_captures)), "captures of an entry are in order"
    out_moving = moving_outputs(code, moving, False)
    everything = [True] * len(code.invars)
    nothing = [False] * len(code.invars)
    own = piece(code, moving, out_moving, Scope(checkpoints), free=everything, added_up=nothing)
    avals = [v.aval for v in code.invars]
    reads = tuple(i for i in range(len(avals)) if own.reads(i))
    ct_avals = [_jax.tangent_aval(a.aval) for a in itertools.compress(code.outvars, out_moving)]

    def forward(*operands: Any) -> list[Any]:
        outs, _, saved = own.forward(operands, ())
        return [*outs, *saved]

    def reverse(*values: Any) -> list[Any]:
        given = dict(zip(reads, values[: len(reads)], strict=True))
        operands = [given[i] if i in given else _jax.zeros(a) for i, a in enumerate(avals)]
        saved = values[len(reads) : len(reads) + len(own.saved)]
        cts = values[len(reads) + len(own.saved) :]
        adjoints, _ = own.reverse(operands, saved, (), (), cts)
        return adjoints

    avals_back = [*(avals[i] for i in reads), *own.saved, *ct_avals]
    return Reverse(
        _program(f"forward({program.entry})", forward, avals),
        _program(f"reverse({program.entry})", reverse, avals_back),
        reads,
        out_moving,
    )


def _program(name: str, fun: Callable[..., list[Any]], avals: Sequence[Any]) -> WithConstants:
    traced = _jax.trace(fun, avals)
    held = tuple(range(len(traced.captures)))
    program = Program({name: Function(name, traced.jaxpr, held)}, name, len(held))
    return WithConstants(program, traced.captures)
