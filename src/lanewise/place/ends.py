"""Programs whose lanes end each by itself, as code without assertions.

A batched program with parts of several places is one loop for all lanes, as JAX batches it, and nothing in that ends
for one lane alone. So how a lane has ended is a number that its code hands on: 0 while all is well, and from the first
assertion that fails on which one it was. After that the lane goes on with values that nobody reads. A loop whose length
depends on them has the number in its test, and a machine inside a part skips the lane: neither need end otherwise.

The number is made where the assertion is. It travels to the places of such loops and machines, and of nothing else: a
counted loop ends by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lanewise import _jax
from lanewise._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from lanewise.blocks.equations import inside, tests_many, with_one_test
from lanewise.core.errors import Outcome
from lanewise.core.outcomes import Site, blank
from lanewise.core.parts import parts_in
from lanewise.core.program import (
    Program,
    call_p,
    check_p,
    codes_inside,
    is_part,
    part_p,
    program_p,
    site_of,
    throw_p,
)
from lanewise.job.draws import drawing_by_lane

# A number holds an outcome, and above it which assertion failed.
_BITS = 4


def with_ends(program: Program, blanked: bool) -> Callable[..., list[Any]]:
    """A program without recursion as an ordinary function that gives its answers, an outcome and a site.

    `blanked`: a lane that fails gives blank answers.
    """

    program = drawing_by_lane(program, parts=True)

    def run(*values: Any) -> list[Any]:
        lane = _Lane({site: i for i, site in enumerate(program.sites)})
        answers = lane.code(*entered(program, values))
        end = lane.now
        if blanked:
            answers = [_blanked(end, jnp.asarray(x)) for x in answers]
        return [*answers, end & ((1 << _BITS) - 1), (end >> _BITS) - 1]

    return run


def entered(program: Program, operands: Sequence[Any]) -> tuple[Jaxpr, list[Any]]:
    """The code of a program's entry, and what it takes of the program's operands."""
    entry = program.functions[program.entry]
    captured = [operands[i] for i in entry.captures]
    return entry.jaxpr, [*captured, *operands[program.num_captures :]]


def _blanked(end: Any, answer: Any) -> Any:
    if _jax.is_extended(answer.dtype):
        return answer
    return jnp.where(end == 0, answer, jnp.asarray(blank(answer.dtype), answer.dtype))


@dataclass
class _Lane:
    """The code of a lane as it is traced. `end` is how the lane has ended; None while it cannot have."""

    sites: dict[Site, int]
    end: Any = None

    @property
    def now(self) -> Any:
        return jnp.int32(0) if self.end is None else self.end

    def code(self, code: Jaxpr | ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        return _jax.evaluate(code, args, self.eqn)

    def eqn(self, eqn: JaxprEqn, ins: list[Any]) -> Sequence[Any]:
        if eqn.primitive is check_p:
            number = self.sites[site_of(eqn)] if _asserts(eqn) else -1
            self.fail(jnp.where(ins[0], 0, _number(int(eqn.params["outcome"]), number)))
            return []
        if eqn.primitive is throw_p:
            self.throw(ins[-2], ins[-1], eqn.params["sites"])
            return ins[:-2]
        if not _can_fail(eqn) and (self.end is None or not _may_go_on(eqn)):
            return _jax.run_eqn(eqn, ins)
        with _jax.in_place_of(eqn):
            rule = _RULES.get(eqn.primitive.name)
            return self.other(eqn, ins) if rule is None else rule(self, eqn, ins)

    # -- how it ends -----------------------------------------------------------------------------

    def fail(self, end: Any) -> None:
        """The lane ends like this, unless it is 0 or the lane has ended."""
        self.end = end if self.end is None else jnp.where(self.end == 0, end, self.end)

    def throw(self, code: Any, site: Any, sites: Sequence[Site]) -> None:
        """The lane ends as a program that it called did, or the first lane of that."""
        code, site = jnp.ravel(jnp.asarray(code)), jnp.ravel(jnp.asarray(site))
        if not code.size:
            return
        first = jnp.argmax(code != 0)
        table = np.asarray([self.sites[each] for each in sites] or [0], np.int32)
        number = jnp.where(site[first] < 0, -1, jnp.asarray(table)[jnp.maximum(site[first], 0)])
        self.fail(jnp.where(code[first] == 0, 0, _number(code[first], number)).astype(jnp.int32))

    def within(self, end: Any) -> _Lane:
        return _Lane(self.sites, end)

    # -- control flow ----------------------------------------------------------------------------

    def loop(self, eqn: JaxprEqn, ins: list[Any]) -> Sequence[Any]:
        if tests_many(eqn):
            return self.code(with_one_test(eqn).jaxpr, ins)
        loop = _jax.While.of(eqn, ins)
        counted = _is_counted(eqn)

        def tested(end: Any, state: Sequence[Any]) -> tuple[Any, Any]:
            lane = self.within(end)
            (holds,) = lane.code(loop.test, [*loop.test_consts, *state])
            return holds if counted else holds & (lane.now == 0), lane.now

        def turn(end: Any, state: Sequence[Any]) -> tuple[Any, list[Any]]:
            lane = self.within(end)
            outs = lane.code(loop.body, [*loop.consts, *state])
            return lane.now, _typed(outs, loop.body)

        start = self.now, _typed(loop.init, loop.body)
        if not any(map(_can_fail, loop.test.eqns)):
            end, state = lax.while_loop(lambda c: tested(*c)[0], lambda c: turn(*c), start)
        else:

            def turn_and_test(carry: Any) -> Any:
                end, state = turn(*carry[1:])
                holds, end = tested(end, state)
                return holds, end, state

            holds, end = tested(*start)
            first = holds, end, start[1]
            _, end, state = lax.while_loop(lambda c: c[0], turn_and_test, first)
        self.end = end
        return state

    def scan(self, eqn: JaxprEqn, ins: list[Any]) -> Sequence[Any]:
        loop = _jax.Scan.of(eqn, ins)

        def turn(carry: Any, slices: Any) -> Any:
            lane = self.within(carry[0])
            outs = lane.code(loop.body, [*loop.consts, *carry[1], *slices])
            state, rows = loop.divided(_typed(outs, loop.body))
            return (lane.now, list(state)), list(rows)

        start = self.now, _typed(loop.init, loop.body)
        (self.end, state), rows = lax.scan(
            turn, start, list(loop.xs), length=loop.length, reverse=loop.reverse
        )
        return [*state, *rows]

    def cond(self, eqn: JaxprEqn, ins: list[Any]) -> Sequence[Any]:
        parts = _jax.Cond.of(eqn, ins)

        def side(code: ClosedJaxpr) -> Callable[..., Any]:
            def run(end: Any, *operands: Any) -> Any:
                lane = self.within(end)
                outs = _typed(lane.code(code, operands), code)
                return lane.now, outs

            return run

        sides = [side(code) for code in parts.branches]
        self.end, outs = lax.switch(parts.index, sides, self.now, *parts.operands)
        return outs

    # -- calls -----------------------------------------------------------------------------------

    def part(self, eqn: JaxprEqn, ins: list[Any]) -> Sequence[Any]:
        params, first = eqn.params, int(eqn.params["indexed"])
        code = params["jaxpr"]
        # Elsewhere it is not known how the lane has ended, and need not be.
        given = [self.end] if self.end is not None and _may_go_on(eqn) else []

        def run(*args: Any) -> list[Any]:
            lane = self.within(args[0] if given else None)
            outs = lane.code(code, args[len(given) :])
            return [*_typed(outs, code), lane.now]

        operands = [*given, *ins[first:]]
        traced = _jax.trace_at(run, operands)
        params = {**params, "jaxpr": _jax.close_jaxpr(traced.jaxpr)}
        *outs, end = part_p.bind(*ins[:first], *traced.captures, *operands, **params)
        self.fail(end)
        return outs

    def program(self, eqn: JaxprEqn, ins: list[Any]) -> Sequence[Any]:
        program, options = eqn.params["program"], eqn.params["options"]
        if not is_part(eqn):
            return _jax.run_eqn(eqn, ins)  # a batch of its own: its lanes end by themselves
        if not any(
            True for function in program.functions.values() for _ in parts_in(function.jaxpr)
        ):
            if self.end is None:
                return _jax.run_eqn(eqn, ins)
            params: dict[str, Any] = {**eqn.params, "program": _skippable(program)}
            guarded = eqn.replace(params={**params, "mapped": (*params["mapped"], ())})
            return _jax.run_eqn(guarded, [*ins, self.end != 0])
        answers = self.code(*entered(program, ins))
        if not program.gives_outcomes(options):
            return answers
        return [*answers, jnp.int32(0), jnp.int32(-1)]  # it has been written down

    def other(self, eqn: JaxprEqn, ins: list[Any]) -> Sequence[Any]:
        code = inside(eqn)
        if code is None:
            return _jax.run_eqn(eqn, ins)
        return self.code(code.jaxpr, code.divided(eqn, ins))


_RULES: dict[str, Callable[[_Lane, JaxprEqn, list[Any]], Sequence[Any]]] = {
    "while": _Lane.loop,
    "scan": _Lane.scan,
    "cond": _Lane.cond,
    part_p.name: _Lane.part,
    program_p.name: _Lane.program,
}


def _number(outcome: Any, site: Any) -> Any:
    return jnp.int32(outcome | ((site + 1) << _BITS))


def _typed(values: Sequence[Any], code: Jaxpr | ClosedJaxpr) -> list[Any]:
    """Values with the types of the results of code, of which there may be more."""
    return [
        x
        if _jax.is_extended(a.aval.dtype)
        else lax.convert_element_type(jnp.asarray(x), a.aval.dtype)
        for x, a in zip(values, code.outvars, strict=False)
    ]


# -- what code can do -------------------------------------------------------------------------------


def _asserts(eqn: JaxprEqn) -> bool:
    return eqn.params["outcome"] is Outcome.ASSERTION_FAILED


def _held(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """An equation and what it holds; programs without parts run as they are."""
    return _jax.equations((eqn,), codes_inside)


def _can_fail(eqn: JaxprEqn) -> bool:
    """Whether a lane can end in an equation."""
    return any(each.primitive in (check_p, throw_p) for each in _held(eqn))


def _may_go_on(eqn: JaxprEqn) -> bool:
    """Whether an equation need not end for values that nobody reads."""
    return any(
        (each.primitive.name == "while" and not _is_counted(each))
        or (each.primitive is program_p and each.params["program"].recursive)
        for each in _held(eqn)
    )


def _is_counted(eqn: JaxprEqn) -> bool:
    """Whether a `while` counts an integer up to a limit that stays, which ends whatever else happens."""
    nothing: list[None] = [None] * len(eqn.invars)
    loop = _jax.While.of(eqn, nothing)
    if len(loop.test.eqns) != 1 or loop.test.eqns[0].primitive.name != "lt":
        return False
    below, limit = loop.test.eqns[0].invars
    state = list(loop.test.invars[len(loop.test_consts) :])
    if loop.test.outvars[0] is not loop.test.eqns[0].outvars[0] or below not in state:
        return False
    if limit in state and loop.changed[state.index(limit)]:
        return False
    at = state.index(below)
    counter, after = loop.body.invars[len(loop.consts) + at], loop.body.outvars[at]
    made = next((e for e in loop.body.eqns if after in e.outvars), None)
    if made is None or made.primitive.name != "add" or counter not in made.invars:
        return False
    steps = [a for a in made.invars if isinstance(a, Literal)]
    return jnp.issubdtype(counter.aval.dtype, jnp.integer) and any(a.val > 0 for a in steps)


@functools.lru_cache(maxsize=256)
def _skippable(program: Program) -> Program:
    """A program with one more operand: whether to do nothing and give zeros."""
    entry = program.functions[program.entry]
    types = [v.aval for v in entry.jaxpr.outvars]

    def run(*args: Any) -> list[Any]:
        *given, skip = args

        def does(*given: Any) -> list[Any]:
            if not program.recursive:
                return _typed(_jax.eval_jaxpr(entry.jaxpr, *given), entry.jaxpr)
            own = given[len(entry.captures) :]
            return call_p.bind(*own, name=program.entry, out_avals=tuple(types), jvp_of=None)

        return lax.cond(skip, lambda *_: [_jax.zeros(a) for a in types], does, *given)

    bits = _jax.shaped((), jnp.dtype(bool))
    traced = _jax.trace(run, [*(v.aval for v in entry.jaxpr.invars), bits])
    name = f"{program.entry} or nothing" if program.recursive else program.entry
    whole = replace(entry, name=name, jaxpr=traced.jaxpr, threads=())
    return replace(program, functions={**program.functions, name: whole}, entry=name)
