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
from typing import Any

from jax import lax

from lanewise import _jax
from lanewise.diff.activity import Moving, moving_results
from lanewise.diff.calls import calls
from lanewise.diff.piece import Piece, piece
from lanewise.diff.records import with_tops
from lanewise.diff.split import run_again_in_frame
from lanewise.diff.sweep import Scope, Swept, rule, spread


@rule("cond")
def _cond(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], moving: Sequence[bool], scope: Scope
) -> Swept:
    index, *args = operands
    branches = eqn.params["branches"]
    threads = scope.adjoints is not None and any(calls(code) for code in branches)
    out_moving = moving_results(eqn, moving)
    if not any(out_moving) and not threads:
        return Swept(_jax.run_eqn(eqn, operands), out_moving, lambda cts, start: list(start))
    inputs = moving[1:]
    again = run_again_in_frame if scope.adjoints is not None else None
    pieces = [
        piece(
            code,
            inputs,
            out_moving,
            scope,
            free=[True] * len(args),
            added_up=[True] * len(args),
            threads=threads,
            again=again,
        )
        for code in branches
    ]
    if scope.adjoints is not None and threads and not scope.adjoints.numbered:
        return _with_records(index, pieces, args, moving, out_moving, scope)
    places, shared = _shared([p.saved for p in pieces])

    def taken(own: Piece, mine: Sequence[int]) -> Callable[..., list[Any]]:
        def run(values: Sequence[Any], tapes: Sequence[Any]) -> list[Any]:
            outs, tapes, saved = own.forward(values, tapes)
            held = dict(zip(mine, saved, strict=True))
            return [
                *outs,
                *tapes,
                *(held[i] if i in held else _jax.zeros(a) for i, a in enumerate(shared)),
            ]

        return run

    sides = [taken(*each) for each in zip(pieces, places, strict=True)]
    tapes = scope.tapes if threads else []
    outs = _switch(index, sides, args, tapes)
    num_outs, num_tapes = len(eqn.outvars), len(tapes)
    outs, after, saved = (
        outs[:num_outs],
        outs[num_outs : num_outs + num_tapes],
        outs[num_outs + num_tapes :],
    )
    if threads:
        scope.tapes = list(after)

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        sums = list(itertools.compress(start[1:], inputs))
        adjoints = [*sums, *itertools.compress(cts, out_moving)]
        known = [ct is not None for ct in adjoints]
        given = list(itertools.compress(adjoints, known))

        def back(own: Piece, mine: Sequence[int]) -> Callable[..., list[Any]]:
            def run(values: Any, saved: Any, tapes: Any, given: Any) -> list[Any]:
                found = spread(given, known)
                start, cts = found[: len(sums)], found[len(sums) :]
                adjoints, left = own.reverse(values, [saved[i] for i in mine], tapes, start, cts)
                return [*adjoints, *left]

            return run

        backs = [back(*each) for each in zip(pieces, places, strict=True)]
        tapes = scope.tapes if threads else []
        outs = _switch(index, backs, args, saved, tapes, given)
        num = sum(inputs)
        if threads:
            scope.tapes = with_tops(tapes, outs[num:])
        return [start[0], *spread(outs[:num], inputs)]

    return Swept(outs, out_moving, pull, threads)


def _with_records(
    index: Any,
    pieces: Sequence[Piece],
    args: Sequence[Any],
    moving: Sequence[bool],
    out_moving: Moving,
    scope: Scope,
) -> Swept:
    """Branches that make calls: each pushes and pops its own record."""
    adjoints = scope.adjoints
    number, inputs = next(scope.loops), moving[1:]
    sites = [f"{scope.site} branch {number}.{i}" for i in range(len(pieces))]

    def taken(own: Piece, site: str) -> Callable[..., list[Any]]:
        def run(values: Sequence[Any], tapes: Sequence[Any]) -> list[Any]:
            outs, tapes, saved = own.forward(values, tapes)
            return [*outs, *adjoints.push(site, saved, tapes)]

        return run

    sides = [taken(*each) for each in zip(pieces, sites, strict=True)]
    found = _switch(index, sides, args, scope.tapes)
    outs, scope.tapes = found[: len(out_moving)], list(found[len(out_moving) :])

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        sums = list(itertools.compress(start[1:], inputs))
        given = [*sums, *itertools.compress(cts, out_moving)]
        known = [ct is not None for ct in given]

        def back(own: Piece, site: str) -> Callable[..., list[Any]]:
            def run(values: Any, tapes: Any, given: Any) -> list[Any]:
                found = spread(given, known)
                saved, tapes = adjoints.pop(site, own.saved, tapes)
                pulled, left = own.reverse(
                    values, saved, tapes, found[: len(sums)], found[len(sums) :]
                )
                return [*pulled, *left]

            return run

        backs = [back(*each) for each in zip(pieces, sites, strict=True)]
        tapes = scope.tapes
        found = _switch(index, backs, args, tapes, list(itertools.compress(given, known)))
        scope.tapes = with_tops(tapes, found[sum(inputs) :])
        return [start[0], *spread(found[: sum(inputs)], inputs)]

    return Swept(outs, out_moving, pull, threads=True)


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
