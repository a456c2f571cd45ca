"""Branches in reverse: the branch that was taken is pulled back, and no other.

Each branch is a piece of its own. What the reverse of a branch needs and does not compute again is saved by the forward
sweep; branches share places for it, as only one of them is taken. Cheap branches save nothing.

Where branches make calls of a recursion, each pushes a record of its own instead, as a call does (`recursion.py`): a
leaf of a tree then writes and reads nothing of what a node needs, and no block after the branches hands it on. Where
records have numbers (`Checkpoints.numbered`) branches share places there too: the number of one more record in each
frame would cost more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax

from lanewise import _jax
from lanewise.diff.activity import Active, active_results
from lanewise.diff.calls import calls
from lanewise.diff.piece import Piece, piece
from lanewise.diff.records import with_tops
from lanewise.diff.split import run_again_in_frame
from lanewise.diff.sweep import Context, Swept, rule, spread


@rule("cond")
def _cond(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], active: Sequence[bool], context: Context
) -> Swept:
    branch = _jax.Cond.of(eqn, operands)
    threads = context.adjoints is not None and any(map(calls, branch.branches))
    out_active = active_results(eqn, active)
    if not any(out_active) and not threads:
        return Swept(_jax.run_eqn(eqn, operands), out_active, lambda cts, start: list(start))
    everything = [True] * len(branch.operands)
    again = run_again_in_frame if context.adjoints is not None else None
    pieces = [
        piece(
            code,
            active[1:],
            out_active,
            context,
            free=everything,
            added_up=everything,
            threads=threads,
            again=again,
        )
        for code in branch.branches
    ]
    if context.adjoints is not None and threads and not context.adjoints.numbered:
        return _with_records(branch, pieces, active[1:], out_active, context)
    sides = _Sides(branch, pieces, *_shared([p.saved for p in pieces]), active[1:], out_active)
    outs, tapes, saved = sides.ahead(context.tapes if threads else [])
    if threads:
        context.tapes = list(tapes)

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        tapes = context.tapes if threads else []
        adjoints, left = sides.back(saved, tapes, cts, start[1:])
        if threads:
            context.tapes = with_tops(tapes, left)
        return [start[0], *adjoints]

    return Swept(list(outs), out_active, pull, threads)


@dataclass(frozen=True)
class _Sides:
    """The branches as pieces: `places` has, for each, where its values are among those that any of them saves."""

    branch: _jax.Cond[Any]
    pieces: list[Piece]
    places: list[list[int]]
    shared: list[_jax.ShapedArray]
    active: Sequence[bool]
    out_active: Sequence[bool]

    def ahead(self, tapes: Sequence[Any]) -> list[Sequence[Any]]:
        """Results, tapes and what is saved, of the branch that is taken."""

        def taken(own: Piece, mine: Sequence[int]) -> Callable[..., list[Any]]:
            def run(values: Sequence[Any], tapes: Sequence[Any]) -> list[Any]:
                outs, tapes, saved = own.forward(values, tapes)
                held = dict(zip(mine, saved, strict=True))
                places = enumerate(self.shared)
                return [
                    *outs,
                    *tapes,
                    *(held[i] if i in held else _jax.zeros(a) for i, a in places),
                ]

            return run

        sides = list(map(taken, self.pieces, self.places))
        outs = _switch(self.branch.index, sides, self.branch.operands, tapes)
        return _jax.divided(outs, len(self.out_active), len(tapes))

    def back(
        self, saved: Sequence[Any], tapes: Sequence[Any], cts: Sequence[Any], start: Sequence[Any]
    ) -> tuple[list[Any], Sequence[Any]]:
        """Adjoints of the operands, with the sums so far, and how many entries are left on each tape."""
        sums = list(itertools.compress(start, self.active))
        adjoints = [*sums, *itertools.compress(cts, self.out_active)]
        known = [ct is not None for ct in adjoints]
        given = list(itertools.compress(adjoints, known))

        def back(own: Piece, mine: Sequence[int]) -> Callable[..., list[Any]]:
            def run(values: Any, saved: Any, tapes: Any, given: Any) -> list[Any]:
                start, cts = _jax.divided(spread(given, known), len(sums))
                adjoints, left = own.reverse(values, [saved[i] for i in mine], tapes, start, cts)
                return [*adjoints, *left]

            return run

        sides = list(map(back, self.pieces, self.places))
        outs = _switch(self.branch.index, sides, self.branch.operands, saved, tapes, given)
        found, left = _jax.divided(outs, sum(self.active))
        return spread(found, self.active), left


def _with_records(
    branch: _jax.Cond[Any],
    pieces: Sequence[Piece],
    active: Sequence[bool],
    out_active: Active,
    context: Context,
) -> Swept:
    """Branches that make calls: each pushes and pops its own record."""
    adjoints = context.adjoints
    number = next(context.loops)
    sites = [f"{context.site} branch {number}.{i}" for i in range(len(pieces))]

    def taken(own: Piece, site: str) -> Callable[..., list[Any]]:
        def run(values: Sequence[Any], tapes: Sequence[Any]) -> list[Any]:
            outs, tapes, saved = own.forward(values, tapes)
            return [*outs, *adjoints.push(site, saved, tapes)]

        return run

    sides = list(map(taken, pieces, sites))
    outs, tapes = _jax.divided(
        _switch(branch.index, sides, branch.operands, context.tapes), len(out_active)
    )
    context.tapes = list(tapes)

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        sums = list(itertools.compress(start[1:], active))
        adjoint = [*sums, *itertools.compress(cts, out_active)]
        known = [ct is not None for ct in adjoint]
        given = list(itertools.compress(adjoint, known))

        def back(own: Piece, site: str) -> Callable[..., list[Any]]:
            def run(values: Any, tapes: Any, given: Any) -> list[Any]:
                start, cts = _jax.divided(spread(given, known), len(sums))
                saved, tapes = adjoints.pop(site, own.saved, tapes)
                pulled, left = own.reverse(values, saved, tapes, start, cts)
                return [*pulled, *left]

            return run

        backs = list(map(back, pieces, sites))
        tapes = context.tapes
        found, left = _jax.divided(
            _switch(branch.index, backs, branch.operands, tapes, given), sum(active)
        )
        context.tapes = with_tops(tapes, left)
        return [start[0], *spread(found, active)]

    return Swept(list(outs), out_active, pull, threads=True)


def _switch(index: Any, sides: Sequence[Callable[..., list[Any]]], *args: Any) -> list[Any]:
    if len(sides) == 1:
        return sides[0](*args)
    if len(sides) == 2:
        # As JAX stages a branch on a bool, so that what reads programs knows it again.
        return lax.cond(index != 0, sides[1], sides[0], *args)
    return lax.switch(index, sides, *args)


def _shared(
    saved: Sequence[Sequence[_jax.ShapedArray]],
) -> tuple[list[list[int]], list[_jax.ShapedArray]]:
    """Places that branches share for what they save: for each branch the places of its values, and all places."""
    shared: list[_jax.ShapedArray] = []
    places = []
    for avals in saved:
        mine: list[int] = []
        for aval in avals:
            like = (aval.shape, aval.dtype)
            free = (
                i
                for i, other in enumerate(shared)
                if i not in mine and (other.shape, other.dtype) == like
            )
            at = next(free, len(shared))
            if at == len(shared):
                shared.append(_jax.strong(aval))
            mine.append(at)
        places.append(mine)
    return places, shared
