"""Recursion in reverse: each function gets two, one for either sweep.

The forward function of `f` takes what `f` takes and gives what `f` gives. When a frame ends it pushes a record, what
the reverse of this frame reads, on tapes that all functions share (`records.py`); so, when the outermost call is done,
every call has left a record, in the order in which calls ended. The reverse function takes adjoints of the results and
the arrays that are the same in all frames (`lift.py`), pops its record and goes through the frame backwards; where the
frame made a call it calls that function's reverse, whose record is then the topmost. No call is made twice. A loop that
makes calls pushes a record an iteration the same way; a loop that makes none is run again, as everywhere.

The tapes are values that both kinds of functions take and give on. A record's type is known only when its function has
been traversed, and that function calls others, so all are traversed once with tapes of nothing, to see what they
push, and again with those. Sums of adjoints that all calls add to go into a call's reverse and come back with its part
(`lift.py`).

Where calls may run at the same time (`Checkpoints.numbered`) records have numbers: a forward function also gives the
places of its record, which its caller keeps like any value that its reverse reads, and a reverse function takes them.
Then no reverse waits for another to have popped its record, and tapes are only read.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise.core.errors import InternalError
from lanewise.core.program import Program, call_p
from lanewise.diff.activity import Active, active_outputs, active_results
from lanewise.diff.checkpoint import Checkpoints
from lanewise.diff.lift import Lifted, lifted
from lanewise.diff.piece import piece
from lanewise.diff.records import Record, Tapes, tops, with_tops
from lanewise.diff.split import run_again_in_frame
from lanewise.diff.sweep import Context, Swept, plus, rule, spread, zeros_for

Key = tuple[str, Active]
"""A function, and which of its parameters are active."""

MAX_ROUNDS = 8


@dataclass
class Adjoints:
    """The forward and reverse functions of a program's functions, as they are needed.

    `functions`: those of the program, lifted; `captured`: which captured values are active. `layout`: the types of a
    record, by the site that pushes it; `pushed`: what was seen to be pushed with this layout. `joined`: for each
    function, which parameters are active at any of its calls, as a loop's state is taken to be active if it is in any
    iteration: with functions for each combination that occurs, every order would multiply their number.
    """

    program: Program
    functions: dict[str, Lifted]
    captured: Active
    checkpoints: Checkpoints
    layout: dict[str, Record]
    joined: dict[str, Active]
    pushed: dict[str, Record] = field(default_factory=dict)
    wanted: list[Key] = field(default_factory=list)

    @functools.cached_property
    def tapes(self) -> Tapes:
        return Tapes.of(self.layout.values(), self.checkpoints.records, self.checkpoints.can_grow)

    @property
    def stack_avals(self) -> list[_jax.ShapedArray]:
        """The types of all tapes."""
        return self.tapes.avals

    def held(self, name: str) -> list[int]:
        """The active captured values that a function closes over, itself or by what it calls."""
        return [i for i in self.functions[name].captures if self.captured[i]]

    def summed(self, key: Key) -> Active:
        """Of these, then of the parameters: whose adjoint is a sum that goes from call to call."""
        name, active = key
        handed_on = self.functions[name].handed_on
        return (*[True] * len(self.held(name)), *(a and b for a, b in zip(handed_on, active)))

    def adjoint_avals(self, key: Key) -> tuple[list[Any], list[Any]]:
        """The types of those sums, and of the adjoints of the other active parameters."""
        name, active = key
        captures = [self.program.capture_avals[i] for i in self.held(name)]
        avals = [*captures, *(v.aval for v in self.functions[name].params)]
        sums, own = [], []
        moves = (*[True] * len(captures), *active)
        for aval, summed, moved in zip(avals, self.summed(key), moves, strict=True):
            if moved:
                (sums if summed else own).append(_jax.tangent_aval(aval))
        return sums, own

    def want(self, name: str, active: Active) -> Key:
        """The function to call where these parameters are active, or fewer than it has adjoints for."""
        so_far = self.joined.get(name, active)
        self.joined[name] = tuple(a or b for a, b in zip(so_far, active, strict=True))
        key = (name, self.joined[name])
        if key not in self.wanted:
            self.wanted.append(key)
        return key

    def out_active(self, key: Key) -> Active:
        name, active = key
        moves = any(active) or bool(self.held(name))
        outs = self.program.functions[name].jaxpr.outvars
        return tuple(moves and _jax.has_tangent(a.aval) for a in outs)

    @property
    def numbered(self) -> bool:
        """Whether records are read by their places."""
        return self.checkpoints.numbered

    @property
    def place_avals(self) -> list[_jax.ShapedArray]:
        """The types of what says where a record is: nothing, if it is the topmost."""
        return [_jax.shaped((), jnp.int32.dtype) for _ in self.tapes.each if self.numbered]

    def threads(self, num_params: int, num_outs: int) -> tuple[tuple[int, int], ...]:
        """Where the tapes stand among parameters and results of a forward function, if they may be shared."""
        tapes = range(len(self.stack_avals) if self.numbered else 0)
        return tuple((num_params + i, num_outs + i) for i in tapes)

    def push(self, site: str, values: Sequence[Any], tapes: Sequence[Any]) -> list[Any]:
        """The tapes with one more record, of a site, and where it is if records have numbers."""
        record = tuple(_jax.strong(_jax.aval_of(x)) for x in values)
        self.pushed[site] = record
        if not self._is_known(site):
            return [*tapes, *map(_jax.zeros, self.place_avals)]
        if not self.numbered:
            return self.tapes.pushed(values, tapes)
        tapes, places = self.tapes.kept(values, tapes)
        return [*tapes, *places]

    def record_at(self, site: str, record: Record, tapes: Sequence[Any], places: Any) -> list[Any]:
        """The record of a site at these places."""
        if not self._is_known(site):
            return [_jax.zeros(a) for a in record]
        return self.tapes.read_at(record, tapes, places)

    def pop(self, site: str, record: Record, tapes: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The topmost record, of a site, and the tapes without it."""
        if not self._is_known(site):
            return [_jax.zeros(a) for a in record], list(tapes)
        return self.tapes.popped(record, tapes)

    def _is_known(self, site: str) -> bool:
        """Whether tapes have room for what a site pushes: not in the round that first sees it."""
        return self.layout.get(site, ()) == self.pushed.get(site)


def forward_name(key: Key) -> str:
    return f"forward{_bits(key[1])}({key[0]})"


def reverse_name(key: Key) -> str:
    return f"reverse{_bits(key[1])}({key[0]})"


def _bits(active: Active) -> str:
    return f"[{''.join('1' if flag else '0' for flag in active)}]"


def settled(
    program: Program, active: Active, checkpoints: Checkpoints
) -> tuple[Adjoints, list[Any]]:
    """The functions of both sweeps of a program, traced with stacks that hold what they push."""
    captured = active[: program.num_captures]
    functions = lifted(program, captured)
    layout: dict[str, Record] = {}
    joined = _active_anywhere(program, functions, active)
    for _ in range(MAX_ROUNDS):
        adjoints = Adjoints(program, functions, captured, checkpoints, layout, joined)
        adjoints.want(program.entry, active[program.num_captures :])
        made: list[Any] = []
        # The list grows while functions are traversed.
        for key in adjoints.wanted:
            made += _both_functions(adjoints, key)
        pushed = {site: avals for site, avals in adjoints.pushed.items() if avals}
        if pushed == layout and len(adjoints.wanted) == len(dict(adjoints.wanted)):
            return adjoints, made
        layout = pushed
    raise InternalError("what a recursion pushes never settles.")


def _active_anywhere(
    program: Program, functions: dict[str, Lifted], active: Active
) -> dict[str, Active]:
    """For each function that is called where something is active, which of its parameters do at any of its calls."""
    captured = active[: program.num_captures]
    found: dict[str, Active] = {}

    def reach(name: str, params: Active) -> None:
        before = found.get(name)
        joined = params if before is None else tuple(map(max, before, params))
        if joined == before:
            return
        found[name] = joined
        function = functions[name]
        held = [captured[i] for i in function.captures]

        def on_call(eqn: _jax.JaxprEqn, flags: Sequence[bool]) -> None:
            callee = functions[eqn.params["name"]]
            num_held = sum(captured[i] for i in callee.captures)
            if any(flags):
                reach(eqn.params["name"], tuple(flags[num_held:]))

        active_outputs(function.code, (*[False] * len(function.constants), *held, *joined), on_call)

    reach(program.entry, active[program.num_captures :])
    return found


@dataclass(frozen=True)
class Derived:
    """A function as traced. Its inputs are constants that the trace holds, captures and parameters."""

    name: str
    traced: _jax.Traced
    captures: tuple[int, ...]
    # Parameters, without captures, that it hands through: which result each is (`core/program.py`).
    threads: tuple[tuple[int, int], ...] = ()


def _both_functions(adjoints: Adjoints, key: Key) -> list[Derived]:
    name, active = key
    function = adjoints.functions[name]
    constants = function.constants
    num_held = function.num_held
    held = tuple(adjoints.captured[i] for i in function.captures)
    avals = [v.aval for v in function.code.invars[len(constants) :]]
    out_active = adjoints.out_active(key)
    stacks = adjoints.stack_avals
    sums, _ = adjoints.adjoint_avals(key)
    context = Context(adjoints.checkpoints, adjoints=adjoints, tapes=stacks, site=forward_name(key))
    own = piece(
        function.code,
        (*[False] * len(constants), *held, *active),
        out_active,
        context,
        free=[*[True] * num_held, *function.fixed],
        added_up=[*[True] * num_held, *function.handed_on],
        threads=True,
        again=run_again_in_frame,
    )
    # For each active input, as the piece gives their adjoints.
    handed_on = itertools.compress(function.handed_on, active)
    summed = [*[True] * sum(held), *handed_on]
    others = [not flag for flag in summed]
    num_free = len(held) + sum(function.fixed)
    places = adjoints.place_avals

    def forward(*values: Any) -> list[Any]:
        args, tapes = _jax.divided(values, len(avals))
        outs, tapes, saved = own.forward([*constants, *args], tapes)
        return [*outs, *adjoints.push(context.site, saved, tapes)]

    def reverse(*values: Any) -> list[Any]:
        free, tapes, at, start, cts = _jax.divided(
            values, num_free, len(stacks), len(places), len(sums)
        )
        if adjoints.numbered:
            saved = adjoints.record_at(context.site, own.saved, tapes, at)
        else:
            saved, tapes = adjoints.pop(context.site, own.saved, tapes)
        found, left = own.reverse([*constants, *free], saved, tapes, start, cts)
        left = [] if adjoints.numbered else left
        return [*itertools.compress(found, others), *left, *itertools.compress(found, summed)]

    ct_avals = [
        _jax.tangent_aval(a.aval) for a in itertools.compress(function.code.outvars, out_active)
    ]
    fixed_avals = itertools.compress(avals[len(held) :], function.fixed)
    return [
        Derived(
            forward_name(key),
            _jax.trace(forward, [*avals, *stacks]),
            function.captures,
            adjoints.threads(len(function.params), len(function.code.outvars)),
        ),
        Derived(
            reverse_name(key),
            _jax.trace(
                reverse, [*avals[: len(held)], *fixed_avals, *stacks, *places, *sums, *ct_avals]
            ),
            function.captures,
        ),
    ]


@rule("call")
def _call(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], active: Sequence[bool], context: Context
) -> Swept:
    adjoints: Adjoints = context.adjoints
    name = eqn.params["name"]
    out_active = active_results(eqn, active)
    num_held = len(adjoints.held(name))
    args = operands[num_held:]
    if not any(out_active):
        outs = call_p.bind(*args, **eqn.params)
        return Swept(outs, out_active, lambda cts, start: list(start))
    key = adjoints.want(name, tuple(active[num_held:]))
    avals = [v.aval for v in eqn.outvars]
    stacks = adjoints.stack_avals
    outs = call_p.bind(
        *args,
        *context.tapes,
        name=forward_name(key),
        out_avals=(*eqn.params["out_avals"], *stacks, *adjoints.place_avals),
        jvp_of=None,
    )
    results, tapes, places = _jax.divided(outs, len(avals), len(stacks))
    context.tapes = list(tapes)
    operand_avals = [_jax.aval_of(x) for x in operands]
    summed = adjoints.summed(key)
    sums, rest = adjoints.adjoint_avals(key)
    apart = [a and not b for a, b in zip((*[True] * num_held, *key[1]), summed, strict=True)]
    left = [] if adjoints.numbered else tops(stacks)
    fixed = list(itertools.compress(args, adjoints.functions[name].fixed))

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        found = call_p.bind(
            *fixed,
            *context.tapes,
            *places,
            *zeros_for(start, operand_avals, summed),
            *zeros_for(cts, avals, out_active),
            name=reverse_name(key),
            out_avals=(*rest, *left, *sums),
            jvp_of=None,
        )
        ct_apart, entries, totals = _jax.divided(found, len(rest), len(left))
        if left:
            context.tapes = with_tops(context.tapes, entries)
        whole, own = spread(totals, summed), spread(ct_apart, apart)
        return [
            total if flag else plus(so_far, ct)
            for total, so_far, ct, flag in zip(whole, start, own, summed, strict=True)
        ]

    return Swept(list(results), out_active, pull, threads=True)
