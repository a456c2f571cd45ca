"""Reverse mode over straight code: a forward sweep, then a reverse sweep that pulls adjoints back.

Names, here and in every rule: a value `x` has the adjoint `ct_x` (JAX's word is cotangent), of the type of `x`; `None`
is an adjoint known to be zero. The *forward sweep* runs code and keeps what its rules need; `pull` is the *reverse
sweep*: adjoints of the results in, adjoints of the inputs out, each rule in the opposite order. Adjoints of a value
that is read more than once are added: `pull` takes, for each input, the sum so far as `start`, and gives the sum with
its own part, so that deep inside a nest of loops a read by index adds to one element of the sum. What is not active
(see `activity.py`) has no adjoint.

Both sweeps happen inside one trace, so "kept" is a value of that trace, and whether it is saved or computed again is
decided afterwards, when the trace is cut in two (`split.py`). Runs of equations without control flow go through JAX's
own `jax.vjp`, whose rules for primitives and for `custom_jvp` and `custom_vjp` are therefore the ones used. Control
flow has a rule a construct: `branch.py`, `loop.py`, `scan.py`, `recursion.py`.

The method is that of Schenck, Rønning, Henriksen and Oancea, *AD for an Array Language with Nested Parallelism* (SC
2022): no tape of everything; an inner scope is run again inside the reverse sweep of the scope around it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from lanewise import _jax
from lanewise.core.primitives.facts import code_of, is_wrapper
from lanewise.core.program import call_p, program_p
from lanewise.diff.activity import active_results
from lanewise.diff.checkpoint import RECORDS_INSIDE_JIT, Checkpoints

Pull = Callable[[Sequence[Any], Sequence[Any]], list[Any]]
"""Adjoints of the results, and for each input the sum so far, to the sums with this code's part."""


@dataclass(frozen=True)
class Swept:
    """Code after its forward sweep. What `threads` the tapes of recursion is pulled back whatever the adjoints."""

    outs: list[Any]
    active: tuple[bool, ...]
    pull: Pull
    threads: bool = False


@dataclass
class Context:
    """What is around the code of a sweep.

    `checkpoints`: what loops save. `inside`: whether the code is run again in the reverse sweep of a loop around it;
    `both`: whether its loops are then written as each of the sweeps runs them (`iteration.py`).
    Inside recursion (`recursion.py`), `adjoints`: the forward and reverse functions of those called here; `tapes`: the
    stacks as they stand at this point of either sweep; `site`: the name of the stack of this code.
    """

    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    inside: bool = False
    both: bool = False
    adjoints: Any = None
    tapes: list[Any] = field(default_factory=list)
    site: str = ""
    loops: Iterator[int] = field(default_factory=itertools.count)

    def again(self) -> Context:
        """The context of code that is run again."""
        return replace(self, inside=True, both=False, tapes=[])


Rule = Callable[[_jax.JaxprEqn, Sequence[Any], Sequence[bool], Context], Swept]
RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    """Register the rule of a construct."""

    def register(made: Rule) -> Rule:
        RULES[name] = made
        return made

    return register


def sweep(
    jaxpr: _jax.Jaxpr, args: Sequence[Any], active: Sequence[bool], context: Context
) -> Swept:
    """Run the forward sweep of code."""
    inputs = (*jaxpr.constvars, *jaxpr.invars)
    values = _jax.Environment(inputs, (*_jax.attached_consts(jaxpr), *args))
    active_vars = {v for v, flag in zip(jaxpr.invars, active, strict=True) if flag}
    pulls: list[tuple[Sequence[_jax.Atom], Sequence[_jax.Var], Swept]] = []

    for piece in _pieces(jaxpr):
        if isinstance(piece, _jax.JaxprEqn):
            ins, outs = piece.invars, piece.outvars
            swept = _rule_of(piece)(piece, values.read(ins), _flags(ins, active_vars), context)
        else:
            ins, outs = piece.ins, piece.outs
            swept = _straight(piece, values.read(ins), _flags(ins, active_vars), context)
        values.bind(outs, swept.outs)
        active_vars.update(v for v, flag in zip(outs, swept.active, strict=True) if flag)
        if any(swept.active) or swept.threads:
            pulls.append((ins, outs, swept))

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        adjoints: dict[_jax.Var, Any] = {}

        def add(atom: _jax.Atom, ct: Any) -> None:
            if ct is not None and not isinstance(atom, _jax.Literal) and atom in active_vars:
                adjoints[atom] = plus(adjoints.get(atom), ct)

        for atom, ct in (
            *zip(jaxpr.invars, start, strict=True),
            *zip(jaxpr.outvars, cts, strict=True),
        ):
            add(atom, ct)
        for ins, outs, swept in reversed(pulls):
            ct_outs = [adjoints.pop(v, None) for v in outs]
            if swept.threads or any(ct is not None for ct in ct_outs):
                # The sum so far goes to the first place where a value is read.
                so_far = [
                    None if isinstance(a, _jax.Literal) else adjoints.pop(a, None) for a in ins
                ]
                for atom, ct in zip(ins, swept.pull(ct_outs, so_far), strict=True):
                    add(atom, ct)
        return [adjoints.get(v) for v in jaxpr.invars]

    return Swept(values.read(jaxpr.outvars), _flags(jaxpr.outvars, active_vars), pull)


def plus(ct: Any, more: Any) -> Any:
    """The sum of two adjoints."""
    if ct is None or more is None:
        return more if ct is None else ct
    return jax.lax.add(ct, more)


def plus_each(cts: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    return [plus(*each) for each in zip(cts, more, strict=True)]


def zeros_for(cts: Sequence[Any], avals: Sequence[Any], active: Sequence[bool]) -> list[Any]:
    """The adjoints of what is active, as arrays."""
    return [
        _jax.zeros(_jax.tangent_aval(aval)) if ct is None else ct
        for ct, aval, flag in zip(cts, avals, active, strict=True)
        if flag
    ]


def spread(given: Sequence[Any], active: Sequence[bool]) -> list[Any]:
    """The reverse: adjoints of what is active, with `None` at the places of the rest."""
    adjoints = iter(given)
    return [next(adjoints) if flag else None for flag in active]


def _flags(atoms: Sequence[_jax.Atom], active_vars: set[_jax.Var]) -> tuple[bool, ...]:
    return tuple(_is_in(a, active_vars) for a in atoms)


def _is_in(atom: _jax.Atom, active_vars: set[_jax.Var]) -> bool:
    return not isinstance(atom, _jax.Literal) and atom in active_vars


# -- straight code ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Straight:
    """Equations without control flow, one after the other."""

    eqns: tuple[_jax.JaxprEqn, ...]
    ins: tuple[_jax.Var, ...]
    outs: tuple[_jax.Var, ...]


def _rule_of(eqn: _jax.JaxprEqn) -> Rule:
    if is_wrapper(eqn):
        return _wrapped
    return RULES["call" if eqn.primitive is call_p else eqn.primitive.name]


def _has_control(eqn: _jax.JaxprEqn) -> bool:
    """Whether an equation is a construct that has a rule, or code that holds one."""
    held = _jax.equations((eqn,), lambda e: _jax.subjaxprs(e) if is_wrapper(e) else ())
    return any(each.primitive is call_p or each.primitive.name in RULES for each in held)


def _pieces(jaxpr: _jax.Jaxpr) -> list[_Straight | _jax.JaxprEqn]:
    """The code as runs of straight equations and constructs, in order."""
    groups: list[list[_jax.JaxprEqn] | _jax.JaxprEqn] = []
    for eqn in jaxpr.eqns:
        if _has_control(eqn):
            groups.append(eqn)
        elif groups and isinstance(groups[-1], list):
            groups[-1].append(eqn)
        else:
            groups.append([eqn])
    pieces: list[_Straight | _jax.JaxprEqn] = []
    read = {a for a in jaxpr.outvars if not isinstance(a, _jax.Literal)}
    for group in reversed(groups):
        eqns = group if isinstance(group, list) else [group]
        if isinstance(group, list):
            made = dict.fromkeys(v for eqn in eqns for v in eqn.outvars)
            taken = [a for e in eqns for a in e.invars if not isinstance(a, _jax.Literal)]
            ins = tuple(dict.fromkeys(a for a in taken if a not in made))
            pieces.append(_Straight(tuple(eqns), ins, tuple(v for v in made if v in read)))
        else:
            pieces.append(group)
        read.update(a for e in eqns for a in e.invars if not isinstance(a, _jax.Literal))
    return pieces[::-1]


def _straight(
    piece: _Straight, operands: Sequence[Any], active: Sequence[bool], context: Context
) -> Swept:
    active_vars = {v for v, flag in zip(piece.ins, active, strict=True) if flag}
    for eqn in piece.eqns:
        flags = active_results(eqn, _flags(eqn.invars, active_vars))
        active_vars.update(v for v, flag in zip(eqn.outvars, flags, strict=True) if flag)
    out_active = _flags(piece.outs, active_vars)

    def run(*given: Any) -> tuple[list[Any], list[Any]]:
        code = _jax.new_jaxpr(piece.ins, piece.outs, piece.eqns)
        return _jax.partition(_run(code, _jax.merge(active, given, fixed), context), out_active)

    given, fixed = _jax.partition(operands, active)
    if not any(out_active):
        _, rest = run(*given)
        return Swept(rest, out_active, lambda cts, start: list(start))
    moved, back, rest = jax.vjp(run, *given, has_aux=True)
    avals = [v.aval for v in piece.outs]

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        own = spread(back(zeros_for(cts, avals, out_active)), active)
        return plus_each(start, own)

    return Swept(_jax.merge(out_active, moved, rest), out_active, pull)


def _run(code: _jax.Jaxpr, args: Sequence[Any], context: Context) -> list[Any]:
    """Run code, and what its equations hold in their place, so that each is seen when the trace is cut."""

    def rule(eqn: _jax.JaxprEqn, args: list[Any]) -> list[Any]:
        if is_wrapper(eqn):
            return _run(code_of(eqn), args, context)
        return _jax.run_eqn(_as_set(eqn, context), args)

    return _jax.evaluate(code, args, rule)


def _as_set(eqn: _jax.JaxprEqn, context: Context) -> _jax.JaxprEqn:
    """A program called inside another saves what the outer one says, unless it says something itself."""
    if eqn.primitive is not program_p or eqn.params["options"].checkpoints != "auto":
        return eqn
    outer = context.checkpoints
    if context.inside and outer.can_grow:
        # It runs in the reverse sweep, where no host makes tapes longer: they are as long as inside `jit`.
        outer = replace(outer, records=max(outer.records, RECORDS_INSIDE_JIT), grows=False)
    options = eqn.params["options"].with_tape_of(outer.setting, outer.records, outer.can_grow)
    return eqn.replace(params={**eqn.params, "options": options})


def _wrapped(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], active: Sequence[bool], context: Context
) -> Swept:
    """Code that is only held together: swept as if it stood here."""
    return sweep(code_of(eqn), operands, active, context)
