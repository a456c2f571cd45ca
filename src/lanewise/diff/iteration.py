"""An iteration of a `while` backwards: its body again, from the state before it, and adjoints pulled through it.

What is expensive in the body is not run again: its results are kept beside the state (`split.py` says which), if that
takes no more than `BESIDE` times the memory of the state. So what a loop keeps stays within a constant of its states,
memory adds over a nest, and of an inner loop, which the reverse of the outer one runs again, no product is made a third
time. The same choice is `jax.checkpoint_policies.dots_saveable` for code without loops.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lanewise import _jax
from lanewise.core.primitives.facts import is_wrapper
from lanewise.diff.after import reading_after
from lanewise.diff.delay import delayed
from lanewise.diff.fold import folded
from lanewise.diff.known import Known
from lanewise.diff.piece import Step
from lanewise.diff.split import Split, bytes_of, is_costly, split_costly
from lanewise.diff.sweep import Context, spread, sweep, zeros_for

# What is kept beside a state takes at most this many times its memory: the gates of a recurrent cell do.
BESIDE = 4


@dataclass(frozen=True)
class Ahead:
    """An iteration of the forward sweep: the next state, and what is kept beside the state before it."""

    constants: tuple[Any, ...]
    code: _jax.Jaxpr
    beside: tuple[_jax.ShapedArray, ...]

    def __call__(self, state: Sequence[Any]) -> list[Sequence[Any]]:
        outs = _jax.eval_jaxpr(self.code, *self.constants, *state)
        return _jax.divided(outs, len(outs) - len(self.beside))

    def again(self, state: Sequence[Any]) -> list[Any]:
        """What is kept beside a state, where no effect is to happen."""
        number = len(self.code.outvars) - len(self.beside)
        code = _jax.new_jaxpr(self.code.invars, self.code.outvars[number:], self.code.eqns)
        code = _jax.without_unused(_jax.without_effects(code))
        return _jax.eval_jaxpr(code, *self.constants, *state)


@dataclass(frozen=True)
class Iteration:
    """An iteration's reverse, from the state before it, what is kept beside that, parts of the next one and adjoints.

    `reads`: which parts of a state it reads, or what is kept beside it comes from; `after`: those that it reads of the
    state after the iteration (`after.py`). `ahead` is there if anything is kept beside a state.
    """

    behind: Step
    reads: Sequence[bool]
    after: tuple[int, ...]
    ahead: Ahead | None = None

    @property
    def beside(self) -> tuple[_jax.ShapedArray, ...]:
        return self.ahead.beside if self.ahead else ()


def reverse_step(
    body: _jax.Jaxpr,
    operands: tuple[Sequence[Any], Sequence[Any], Sequence[Any]],
    flags: tuple[Sequence[bool], Sequence[bool]],
    known: Known,
    context: Context,
) -> Iteration:
    """The reverse of an iteration of this code.

    `operands`: constants of the code, those of the loop and its first state; `flags`: which of the last two are active.
    """
    keeps = context.checkpoints.setting == "auto" and _is_costly(body)
    inner = replace(context.again(), both=keeps)
    body = body if keeps else _jax.without_effects(body)
    state = [_jax.strong(_jax.aval_of(x)) for x in operands[2]]
    traced, num_adjoints = _both_sweeps(body, operands, flags, state, inner)
    own = slice(len(traced.captures), len(traced.captures) + len(state))
    code, _ = decided(_jax.without_effects(traced.jaxpr), ahead=False)
    needed: list[int] = []
    if not state:
        code, after = _jax.without_unused(code), ()
    else:
        needed = known.needed(_reads(code, len(state))[own], len(state))
        kept = [i in needed for i in range(len(state))]
        code, after = reading_after(code, code.invars[own], kept)
    most = BESIDE * sum(bytes_of(state[i]) for i in needed)
    cut = split_costly(code, own.stop, most) if keeps else None
    if cut is None:
        step_back, ahead = folded(code), None
        reads = list(_jax.used_inputs(step_back)[own])
    else:
        step_back = folded(cut.reverse)
        ahead = Ahead(traced.captures, _forward(traced.jaxpr, cut, own.stop, len(state)), cut.saved)
        sides = zip(_jax.used_inputs(step_back)[own], _jax.used_inputs(cut.forward)[own])
        reads = [a or b for a, b in sides]
    for i in after:
        reads[i] = True
    at = own.stop + len(cut.saved if cut else ()) + len(after)
    carried = [(at + j, j) for j in range(num_adjoints)]
    return Iteration(Step(traced.captures, delayed(step_back, carried)), reads, after, ahead)


def _both_sweeps(
    body: _jax.Jaxpr,
    operands: tuple[Sequence[Any], Sequence[Any], Sequence[Any]],
    flags: tuple[Sequence[bool], Sequence[bool]],
    state: Sequence[Any],
    context: Context,
) -> tuple[_jax.Traced, int]:
    """A state of these types, sums and adjoints to the sums and adjoints before the iteration, then the state after it.

    Also gives how many sums and adjoints there are.
    """
    constants, consts, _ = operands
    consts_active, carry_active = flags
    num_fixed = len(constants)
    active = [*[False] * num_fixed, *consts_active, *carry_active]
    const_avals = [_jax.aval_of(x) for x in consts]
    sum_avals = [_jax.tangent_aval(a) for a in itertools.compress(const_avals, consts_active)]
    ct_avals = [_jax.tangent_aval(a) for a in itertools.compress(state, carry_active)]

    def pulled(*values: Any) -> list[Any]:
        given, sums, cts = _jax.divided(values, len(state), len(sum_avals))
        swept = sweep(body, [*constants, *consts, *given], active, context)
        start = [*[None] * num_fixed, *spread(sums, consts_active), *[None] * len(given)]
        found = swept.pull(spread(cts, carry_active), start)[num_fixed:]
        return [*zeros_for(found, [*const_avals, *state], active[num_fixed:]), *swept.outs]

    return _jax.trace(pulled, [*state, *sum_avals, *ct_avals]), len(sum_avals) + len(ct_avals)


def _is_costly(body: _jax.Jaxpr) -> bool:
    """Whether something in a body, outside the loops in it, may be worth keeping."""
    held = _jax.equations(body.eqns, lambda eqn: _jax.subjaxprs(eqn) if is_wrapper(eqn) else ())
    return any(map(is_costly, held))


def _forward(code: _jax.Jaxpr, cut: Split, known: int, number: int) -> _jax.Jaxpr:
    """Code of the forward sweep's iteration: the next state, the last results of `code`, and what is kept beside it."""
    ahead, counterparts = decided(code, ahead=True)
    beside = [counterparts.get(v, v) for v in cut.forward.outvars]
    outs = [*ahead.outvars[-number:], *beside]
    found = _jax.without_unused(_jax.new_jaxpr(ahead.invars, outs, ahead.eqns))
    return _jax.new_jaxpr(found.invars[:known], found.outvars, found.eqns)


def _reads(code: _jax.Jaxpr, number: int) -> Sequence[bool]:
    """Which inputs code reads for its results but the last ones."""
    return _jax.used_inputs(_jax.new_jaxpr(code.invars, code.outvars[:-number], code.eqns))


# -- a loop of an iteration, in both ways --------------------------------------------------------------

either_p = _jax.Primitive("either")
either_p.multiple_results = True
either_p.def_abstract_eval(lambda *given: list(given[len(given) // 2 :]))


def either(ahead: Sequence[Any], behind: Sequence[Any]) -> list[Any]:
    """The same values, from the code of the forward sweep or from that of the reverse."""
    return either_p.bind(*ahead, *behind)


def decided(jaxpr: _jax.Jaxpr, *, ahead: bool) -> tuple[_jax.Jaxpr, dict[_jax.Atom, _jax.Atom]]:
    """The code as one of the sweeps has it, and what its variables of the reverse are in the forward sweep."""
    same: dict[_jax.Var, _jax.Atom] = {}
    counterparts: dict[_jax.Atom, _jax.Atom] = {}

    def now(atom: _jax.Atom) -> _jax.Atom:
        return atom if isinstance(atom, _jax.Literal) else same.get(atom, atom)

    eqns = []
    for eqn in jaxpr.eqns:
        operands = [now(a) for a in eqn.invars]
        if eqn.primitive is either_p:
            forward, reverse = _jax.divided(operands, len(eqn.outvars))
            same.update(zip(eqn.outvars, forward if ahead else reverse, strict=True))
            pairs = zip(reverse, forward, strict=True)
            counterparts.update((v, a) for v, a in pairs if not isinstance(v, _jax.Literal))
            continue
        eqns.append(eqn.replace(invars=operands))
    return _jax.new_jaxpr(jaxpr.invars, [now(a) for a in jaxpr.outvars], eqns), counterparts
