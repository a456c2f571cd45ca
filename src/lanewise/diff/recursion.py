"""Recursion in reverse: each function gets two, one for either sweep.

The forward function of `f` takes what `f` takes and gives what `f` gives. When a frame ends it pushes a record, what
the reverse of this frame reads, on a stack of its function's own; so, when the outermost call is done, every call has
left a record, in the order in which calls ended. The reverse function takes adjoints of the results, pops its record
and goes through the frame backwards; where the frame made a call it calls that function's reverse, whose record is then
the topmost. No call is made twice. A loop that makes calls pushes a record an iteration the same way; a loop that makes
none is run again, as everywhere.

The stacks are values that both kinds of functions take and give on, and so are the sums of the adjoints of what the
functions close over. A record's type is known only when its function has been gone through, and that function calls
others, so all are gone through once with stacks of nothing, to see what they push, and again with those.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise.diff.activity import Moving, moving_results
from lanewise.diff.checkpoint import Checkpoints, read, write
from lanewise.diff.piece import piece
from lanewise.diff.split import run_again_in_frame
from lanewise.diff.sweep import Scope, Swept, plus, rule, spread, zeros_for
from lanewise.diff.tape import check_room
from lanewise.errors import InternalError
from lanewise.program import Program, call_p

Key = tuple[str, Moving]
"""A function, and which of its parameters move."""

MAX_ROUNDS = 8


@dataclass
class Adjoints:
    """The forward and reverse functions of a program's functions, as they come to be wanted.

    `layout`: the stacks, by the site that pushes there, with the types of a record; `pushed`: what was seen to be
    pushed with this layout.
    """

    program: Program
    captured: Moving
    checkpoints: Checkpoints
    layout: dict[str, tuple[_jax.ShapedArray, ...]]
    pushed: dict[str, tuple[_jax.ShapedArray, ...]] = field(default_factory=dict)
    wanted: list[Key] = field(default_factory=list)

    @property
    def stack_avals(self) -> list[_jax.ShapedArray]:
        """The types of all stacks: for each site its records, then how many there are."""
        records = self.checkpoints.records
        found = []
        for avals in self.layout.values():
            found += [_jax.shaped((records, *a.shape), a.dtype) for a in avals]
            found.append(_jax.shaped((), jnp.int32.dtype))
        return found

    @property
    def sum_avals(self) -> list[_jax.ShapedArray]:
        """The types of the sums of adjoints of what is closed over."""
        moved = itertools.compress(self.program.capture_avals, self.captured)
        return [_jax.tangent_aval(a) for a in moved]

    def want(self, name: str, moving: Moving) -> Key:
        key = (name, moving)
        if key not in self.wanted:
            self.wanted.append(key)
        return key

    def out_moving(self, key: Key) -> Moving:
        name, moving = key
        moves = any(moving) or any(self.captured)
        outs = self.program.functions[name].jaxpr.outvars
        return tuple(moves and _jax.has_tangent(a.aval) for a in outs)

    def push(self, site: str, values: Sequence[Any], tapes: Sequence[Any]) -> list[Any]:
        """The stacks with one more record at a site."""
        avals = tuple(_jax.strong(_jax.aval_of(x)) for x in values)
        self.pushed[site] = avals
        tapes = list(tapes)
        at = self._place(site)
        if at is None or not values:
            return tapes
        top = tapes[at + len(values)]
        check_room(top, self.checkpoints.records)
        for i, value in enumerate(values):
            tapes[at + i] = write(tapes[at + i], value, top)
        tapes[at + len(values)] = top + 1
        return tapes

    def pop(
        self, site: str, avals: Sequence[_jax.ShapedArray], tapes: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The topmost record of a site, and the stacks without it."""
        tapes = list(tapes)
        at = self._place(site)
        if at is None or not avals:
            return [_jax.zeros(a) for a in avals], tapes
        top = tapes[at + len(avals)] - 1
        tapes[at + len(avals)] = top
        return [read(tapes[at + i], top) for i in range(len(avals))], tapes

    def _place(self, site: str) -> int | None:
        """Where a site's stack begins; None in the round that first sees it."""
        at = 0
        for name, avals in self.layout.items():
            if name == site:
                return at if avals == self.pushed.get(site, avals) else None
            at += len(avals) + 1
        return None


def forward_name(key: Key) -> str:
    return f"forward{_bits(key[1])}({key[0]})"


def reverse_name(key: Key) -> str:
    return f"reverse{_bits(key[1])}({key[0]})"


def _bits(moving: Moving) -> str:
    return f"[{''.join('1' if flag else '0' for flag in moving)}]"


def settled(
    program: Program, moving: Moving, checkpoints: Checkpoints
) -> tuple[Adjoints, list[Any]]:
    """The functions of both sweeps of a program, traced with stacks that hold what they push."""
    captured = moving[: program.num_captures]
    layout: dict[str, tuple[_jax.ShapedArray, ...]] = {}
    for _ in range(MAX_ROUNDS):
        adjoints = Adjoints(program, captured, checkpoints, layout)
        adjoints.want(program.entry, moving[program.num_captures :])
        made: list[Any] = []
        # The list grows while functions are gone through.
        for key in adjoints.wanted:
            made += _both_functions(adjoints, key)
        pushed = {site: avals for site, avals in adjoints.pushed.items() if avals}
        if pushed == layout:
            return adjoints, made
        layout = pushed
    raise InternalError("what a recursion pushes never settles.")


@dataclass(frozen=True)
class Derived:
    """A function as traced. Its inputs are constants that the trace holds, captures and parameters."""

    name: str
    traced: _jax.Traced
    captures: tuple[int, ...]


def _both_functions(adjoints: Adjoints, key: Key) -> list[Derived]:
    name, moving = key
    function = adjoints.program.functions[name]
    num_own = len(function.captures)
    held = tuple(adjoints.captured[i] for i in function.captures)
    avals = [v.aval for v in function.jaxpr.invars]
    out_moving = adjoints.out_moving(key)
    stacks, sums = adjoints.stack_avals, adjoints.sum_avals
    scope = Scope(
        adjoints.checkpoints,
        captures_move=any(adjoints.captured),
        adjoints=adjoints,
        tapes=stacks,
        back=(*stacks, *sums),
        site=forward_name(key),
    )
    own = piece(
        function.jaxpr,
        (*held, *moving),
        out_moving,
        scope,
        free=[True] * num_own + [False] * len(moving),
        added_up=[False] * len(avals),
        threads=True,
        again=run_again_in_frame,
    )
    # Where the sum of each moving capture of this function stands among all sums.
    places = [sum(adjoints.captured[:i]) for i in function.captures if adjoints.captured[i]]

    def forward(*values: Any) -> list[Any]:
        args, tapes = values[: len(avals)], values[len(avals) :]
        outs, tapes, saved = own.forward(args, tapes)
        return [*outs, *adjoints.push(scope.site, saved, tapes)]

    def reverse(*values: Any) -> list[Any]:
        captures, rest = values[:num_own], values[num_own:]
        tapes, cts = list(rest[: len(scope.back)]), rest[len(scope.back) :]
        saved, tapes = adjoints.pop(scope.site, own.saved, tapes)
        found, tapes = own.reverse(captures, saved, tapes, (), cts)
        for at, ct in zip(places, found, strict=False):
            tapes[len(stacks) + at] = tapes[len(stacks) + at] + ct
        return [*found[len(places) :], *tapes]

    ct_avals = [
        _jax.tangent_aval(a.aval) for a in itertools.compress(function.jaxpr.outvars, out_moving)
    ]
    return [
        Derived(forward_name(key), _jax.trace(forward, [*avals, *stacks]), function.captures),
        Derived(
            reverse_name(key),
            _jax.trace(reverse, [*avals[:num_own], *scope.back, *ct_avals]),
            function.captures,
        ),
    ]


@rule("call")
def _call(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], moving: Sequence[bool], scope: Scope
) -> Swept:
    adjoints: Adjoints = scope.adjoints
    out_moving = moving_results(eqn, moving, scope.captures_move)
    if not any(out_moving):
        return Swept(_jax.run_eqn(eqn, operands), out_moving, lambda cts, start: list(start))
    key = adjoints.want(eqn.params["name"], tuple(moving))
    avals = [v.aval for v in eqn.outvars]
    outs = call_p.bind(
        *operands,
        *scope.tapes,
        name=forward_name(key),
        out_avals=(*eqn.params["out_avals"], *adjoints.stack_avals),
        jvp_of=None,
    )
    scope.tapes = list(outs[len(avals) :])
    moved = [_jax.tangent_aval(_jax.aval_of(x)) for x in itertools.compress(operands, moving)]

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        given = zeros_for(cts, avals, out_moving)
        found = call_p.bind(
            *scope.tapes,
            *given,
            name=reverse_name(key),
            out_avals=(*moved, *scope.back),
            jvp_of=None,
        )
        scope.tapes = list(found[len(moved) :])
        own = spread(found[: len(moved)], moving)
        return [plus(*each) for each in zip(start, own, strict=True)]

    return Swept(outs[: len(avals)], out_moving, pull, threads=True)
