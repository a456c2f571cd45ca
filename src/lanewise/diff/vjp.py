"""Reverse mode, program to program.

The gradient of a program is two programs. The *forward* one takes the same operands and gives, after the answers, what
is saved. The *reverse* one takes the operands and what is saved that it reads, and the adjoints of the
answers, and gives the adjoints of the active operands. Both are programs like any other: the machine batches them,
every carrier carries them, and they can be differentiated again.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lanewise import _jax
from lanewise.core.program import Function, Program, call_p
from lanewise.diff import rules as rules  # fills the table
from lanewise.diff.activity import Active, active_outputs
from lanewise.diff.calls import calls
from lanewise.diff.checkpoint import Checkpoints
from lanewise.diff.piece import piece
from lanewise.diff.records import tops
from lanewise.diff.recursion import Derived, forward_name, reverse_name, settled
from lanewise.diff.sweep import Context
from lanewise.diff.tail import as_loop


class WithConstants(NamedTuple):
    """A program and the constants that its code holds: its first operands."""

    program: Program
    constants: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Reverse:
    """A program's gradient.

    `forward` gives the answers, then what is saved. `reverse` takes the operands numbered `reads`, what is saved, and
    the adjoints of the active answers; it gives an adjoint for each active operand.
    """

    forward: WithConstants
    reverse: WithConstants
    reads: tuple[int, ...]
    out_active: Active


@dataclass(frozen=True)
class Room:
    """A gradient whose tapes have room for a number of records, and may be made longer while it runs."""

    program: Program
    active: Active
    checkpoints: Checkpoints

    @property
    def gradient(self) -> Reverse:
        return vjp_program(self.program, self.active, self.checkpoints)

    @property
    def forward(self) -> WithConstants:
        return self.gradient.forward

    @property
    def records(self) -> int:
        return self.checkpoints.records

    def larger(self) -> Room | None:
        """The same with longer tapes; None if they are as long as they may be."""
        if not self.checkpoints.can_grow:
            return None
        more = self.with_records(self.checkpoints.larger().records)
        same = len(more.forward.constants) == len(self.forward.constants)
        assert same, "the same code holds the same constants"
        return more

    def with_records(self, records: int) -> Room:
        """The same with tapes of this length."""
        return replace(self, checkpoints=replace(self.checkpoints, records=records))


@functools.lru_cache(maxsize=512)
@_jax.without_mesh()
def vjp_program(program: Program, active: Active, checkpoints: Checkpoints) -> Reverse:
    """The gradient of a program by the active operands."""
    if any(calls(function.jaxpr) for function in program.functions.values()):
        loop = as_loop(program)
        if loop is not None:
            return vjp_program(loop, active, checkpoints)
        return _recursive(program, active, checkpoints)
    entry = program.functions[program.entry]
    code = entry.jaxpr
    assert entry.captures == tuple(range(program.num_captures)), "captures of an entry are in order"
    out_active = active_outputs(code, active)
    everything = [True] * len(code.invars)
    nothing = [False] * len(code.invars)
    own = piece(code, active, out_active, Context(checkpoints), free=everything, added_up=nothing)
    avals = [v.aval for v in code.invars]
    reads = tuple(i for i in range(len(avals)) if own.reads(i))
    constants = tuple(own.constants)
    ahead, behind = own.cut.forward, own.cut.reverse
    held, free = len(constants), len(constants) + len(avals)
    # A number that nothing reads, in the host's memory: see `rules/linearize.py`.
    marker = [_jax.new_var(_jax.shaped((), np.float32))] if checkpoints.offload else []
    taken = [
        *marker,
        *behind.invars[:held],
        *(behind.invars[held + i] for i in reads),
        *behind.invars[free:],
    ]
    return Reverse(
        _program(f"forward({program.entry})", ahead, constants, program.whole),
        _program(
            f"reverse({program.entry})",
            _jax.new_jaxpr(taken, behind.outvars, behind.eqns),
            (*(np.float32(0) for _ in marker), *constants),
            program.whole,
        ),
        reads,
        out_active,
    )


def _program(
    name: str, code: _jax.Jaxpr, constants: tuple[Any, ...], whole: tuple[int, ...]
) -> WithConstants:
    held = tuple(range(len(constants)))
    functions = {name: Function(name, code, held)}
    return WithConstants(Program(functions, name, len(held), whole=whole), constants)


def _recursive(program: Program, active: Active, checkpoints: Checkpoints) -> Reverse:
    """The same of a program whose functions call each other: what is saved are the stacks of `recursion.py`."""
    adjoints, derived = settled(program, active, checkpoints)
    key = adjoints.wanted[0]
    entry = program.functions[program.entry]
    captures, params = program.capture_avals, [v.aval for v in entry.params]
    stacks, places = adjoints.stack_avals, adjoints.place_avals
    fixed = [i for i, flag in enumerate(adjoints.functions[program.entry].fixed) if flag]
    sums, others = adjoints.adjoint_avals(key)
    out_avals = [a.aval for a in entry.jaxpr.outvars]
    out_active = adjoints.out_active(key)
    ct_avals = [_jax.tangent_aval(a) for a in itertools.compress(out_avals, out_active)]

    def forward(*values: Any) -> Sequence[Any]:
        empty = adjoints.tapes.empty(zeros=checkpoints.filled)
        return call_p.bind(
            *values,
            *empty,
            name=forward_name(key),
            out_avals=(*out_avals, *stacks, *places),
            jvp_of=None,
        )

    def reverse(*values: Any) -> Sequence[Any]:
        arrays, tapes, cts = _jax.divided(values, len(fixed), len(stacks) + len(places))
        zeros = [_jax.zeros(a) for a in sums]
        left = [] if places else tops(stacks)
        found = call_p.bind(
            *arrays,
            *tapes,
            *zeros,
            *cts,
            name=reverse_name(key),
            out_avals=(*others, *left, *sums),
            jvp_of=None,
        )
        own, _, whole = map(iter, _jax.divided(found, len(others), len(left)))
        held = {i: next(whole) for i in adjoints.held(program.entry)}
        ct_captures = [
            held[i] if i in held else _jax.zeros(_jax.tangent_aval(aval))
            for i, aval in enumerate(captures)
            if active[i]
        ]
        flags = zip(adjoints.summed(key)[len(held) :], key[1], strict=True)
        ct_params = [next(whole if summed else own) if moved else None for summed, moved in flags]
        return [*ct_captures, *itertools.compress(ct_params, active[len(captures) :])]

    return Reverse(
        _table(program, derived, f"forward({program.entry})", forward, params),
        _table(
            program,
            derived,
            f"reverse({program.entry})",
            reverse,
            [*(params[i] for i in fixed), *stacks, *places, *ct_avals],
        ),
        (*range(len(captures)), *(len(captures) + i for i in fixed)),
        out_active,
    )


def _table(
    program: Program,
    derived: Sequence[Derived],
    name: str,
    fun: Callable[..., Sequence[Any]],
    avals: Sequence[Any],
) -> WithConstants:
    """A program of a function and all that it calls; it takes every capture, read or not."""
    captures = program.capture_avals
    traced = _jax.trace(lambda *values: fun(*values[len(captures) :]), [*captures, *avals])
    unmoved = [
        Derived(f.name, _jax.Traced(f.jaxpr, ()), f.captures) for f in program.functions.values()
    ]
    first = Derived(name, traced, tuple(range(len(captures))))
    found = _reachable({d.name: d for d in (*unmoved, *derived, first)}, name)
    constants = tuple(x for d in found for x in d.traced.captures)
    functions, at = {}, 0
    for d in found:
        held = range(at, at + len(d.traced.captures))
        at = held.stop
        own = (*held, *(len(constants) + i for i in d.captures))
        functions[d.name] = Function(d.name, d.traced.jaxpr, own, d.threads)
    return WithConstants(Program(functions, name, len(constants) + len(captures)), constants)


def _reachable(functions: dict[str, Derived], entry: str) -> list[Derived]:
    """Those of the functions that an entry calls, itself or through others; the entry first."""
    found: dict[str, Derived] = {}
    work = [entry]
    while work:
        name = work.pop()
        if name not in found:
            found[name] = functions[name]
            work += [eqn.params["name"] for eqn in calls(functions[name].traced.jaxpr)]
    return list(found.values())
