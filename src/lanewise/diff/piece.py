"""Both sweeps of a piece of code as one trace, and that trace cut in two.

Loops, branches and functions all need the same of the code they hold: code for the forward sweep, which also gives what
is saved, and code for the reverse sweep. `piece` traces a piece's two sweeps together and splits them.

Tapes of recursion are threaded: the forward code takes them and gives them on, and so does the reverse code. To the
trace these are two different sets of values, as between the two sweeps of one piece others run. The reverse code only
reads the tapes, and gives on how many entries are left on each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lanewise import _jax
from lanewise.core.primitives.facts import facts_of, is_sum
from lanewise.diff.delay import Delayed, delayed
from lanewise.diff.fold import folded
from lanewise.diff.records import tops
from lanewise.diff.split import Split, run_again, run_again_inside, split
from lanewise.diff.sweep import Context, spread, sweep, zeros_for


@dataclass(frozen=True)
class Step:
    """Code as an iteration of a loop, writes put off (`delay.py`)."""

    constants: tuple[Any, ...]
    code: Delayed

    def start(self, args: Sequence[Any]) -> list[Any]:
        return self.code.start([*self.constants, *args])

    def __call__(self, args: Sequence[Any], left: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        return self.code.run([*self.constants, *args], left)

    def finish(self, outs: Sequence[Any], left: Sequence[Any]) -> list[Any]:
        return self.code.finish(outs, left)


@dataclass(frozen=True)
class Piece:
    """The two sweeps of a piece of code.

    `forward(args, tapes)` gives results, tapes and what is saved; `reverse(free, saved, tapes, start, cts)` takes the
    free arguments, sums so far for the arguments that are added up, and the adjoints of the active results, `None`
    for those that are zero; it gives adjoints of the active arguments, and how many entries are left on each tape.
    """

    constants: tuple[Any, ...]
    cut: Split
    num_results: int
    num_adjoints: int
    num_tapes: int

    @property
    def saved(self) -> tuple[_jax.ShapedArray, ...]:
        return self.cut.saved

    def forward(self, args: Sequence[Any], tapes: Sequence[Any]) -> list[Sequence[Any]]:
        outs = _jax.eval_jaxpr(self.cut.forward, *self.constants, *args, *tapes)
        return _jax.divided(outs, self.num_results, self.num_tapes)

    def reverse(
        self,
        free: Sequence[Any],
        saved: Sequence[Any],
        tapes: Sequence[Any],
        start: Sequence[Any],
        cts: Sequence[Any],
    ) -> list[Sequence[Any]]:
        given = (*self.constants, *free, *saved, *tapes, *start, *cts)
        outs = _run_linear(self.cut.reverse, given)
        return _jax.divided(outs, self.num_adjoints)

    def forward_step(self, carried: Sequence[tuple[int, int]]) -> Step:
        """The forward code as an iteration of a loop: pairs of an argument and the result that it is next time."""
        first = len(self.constants)
        own = delayed(self.cut.forward, [(first + a, b) for a, b in carried])
        return Step(self.constants, own)

    def reverse_step(self, carried: Sequence[tuple[int, int]]) -> Step:
        """The same of the reverse code, with arguments as numbered in `reverse`, one after the other."""
        first = len(self.constants)
        own = delayed(self.cut.reverse, [(first + a, b) for a, b in carried])
        return Step(self.constants, own)

    def reads(self, at: int) -> bool:
        """Whether the reverse code reads its free argument of this number."""
        return _jax.used_inputs(self.cut.reverse)[len(self.constants) + at]


def piece(
    code: _jax.Jaxpr,
    active: Sequence[bool],
    out_active: Sequence[bool],
    context: Context,
    *,
    free: Sequence[bool],
    added_up: Sequence[bool],
    threads: bool = False,
    again: Callable[[_jax.JaxprEqn], bool] | None = None,
) -> Piece:
    """Trace and cut the sweeps of code.

    `free`: the arguments that the reverse has anyway; `added_up`: those whose adjoint is added to a sum so far;
    `threads`: whether the code takes the context's tapes; `again`: what the reverse code may run again.
    """
    avals = [v.aval for v in code.invars]
    out_avals = [a.aval for a in code.outvars]
    tapes = [getattr(x, "aval", x) for x in context.tapes] if threads else []
    summed = [a and b for a, b in zip(added_up, active, strict=True)]
    adjoint_avals = [_jax.tangent_aval(a) for a in itertools.compress(out_avals, out_active)]
    start_avals = [_jax.tangent_aval(a) for a in itertools.compress(avals, summed)]
    num_args, num_tapes, num_start = len(avals), len(tapes), len(start_avals)

    def both(*values: Any) -> list[Any]:
        args, before, behind, sums, adjoints = _jax.divided(
            values, num_args, num_tapes, num_tapes, num_start
        )
        inner = replace(context, both=False, tapes=list(before))
        swept = sweep(code, args, active, inner)
        results = [*swept.outs, *inner.tapes]
        inner.tapes = list(behind)
        cts = swept.pull(spread(adjoints, out_active), spread(sums, summed))
        return [*results, *zeros_for(cts, avals, active), *tops(inner.tapes)]

    traced = _jax.trace(both, [*avals, *tapes, *tapes, *start_avals, *adjoint_avals])
    num_constants = len(traced.captures)
    known = [True] * (num_constants + num_args + num_tapes)
    unknown = [False] * (num_tapes + num_start + len(adjoint_avals))
    is_free = [True] * num_constants + [*free] + [False] * num_tapes
    cut = split(
        folded(traced.jaxpr),
        [*known, *unknown],
        [*is_free, *unknown],
        len(out_avals) + num_tapes,
        again or (run_again_inside if context.inside else run_again),
    )
    return Piece(traced.captures, cut, len(out_avals), sum(active), num_tapes)


def _run_linear(code: _jax.Jaxpr, args: Sequence[Any]) -> list[Any]:
    """Run the code of a reverse sweep, to which `None` is an adjoint of zero: it is neither added nor multiplied."""
    if all(x is not None for x in args):
        return _jax.eval_jaxpr(code, *args)

    def whole(values: Sequence[Any], atoms: Sequence[_jax.Atom]) -> list[Any]:
        pairs = zip(values, atoms, strict=True)
        return [_jax.zeros(a.aval) if x is None else x for x, a in pairs]

    def rule(eqn: _jax.JaxprEqn, operands: list[Any]) -> list[Any]:
        name = eqn.primitive.name
        if any(x is None for x in operands) and is_sum(eqn):
            return [next((x for x in operands if x is not None), None)]
        if any(x is None for x in operands) and (
            facts_of(eqn).linear or name in ("mul", "convert_element_type")
        ):
            return [None]
        return _jax.run_eqn(eqn, whole(operands, eqn.invars))

    return whole(_jax.evaluate(code, args, rule), code.outvars)
