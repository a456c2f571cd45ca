"""A placed program as regions: straight code and control flow, with the place of each part that has one.

A *region* is a sequence of nodes. A node is an operation that runs at one place as a whole (an equation; a part; a
loop or a program with no parts of several places inside), or a `while`, `scan` or `cond` whose inside is placed in
turn. Regions inside a node read the values around them by name, so a loop's constants need no list. Variables are new
and stand for one value each.

`read` makes regions of a jaxpr. Calls with parts inside are written out; so are programs, batched ones as JAX batches
them: in one loop for all lanes. A recursion has one stack, so it is inside one place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise._jax import Atom, Jaxpr, JaxprEqn, Literal, Var
from lanewise.blocks.divergence import one_lane
from lanewise.blocks.equations import inside, tests_many, with_one_test
from lanewise.core.errors import OptionError, TransformError
from lanewise.core.parts import parts_in, scope_of
from lanewise.core.program import check_p, part_p, program_p, throw_p
from lanewise.job.job import answer_axes, with_axes
from lanewise.place.cheap import is_cheap
from lanewise.place.placement import Placement


@dataclass(frozen=True, eq=False)
class Op:
    """An equation that runs at one place; where is decided later if `place` does not say."""

    eqn: JaxprEqn
    ins: tuple[Atom, ...]
    outs: tuple[Var, ...]
    place: int | None


@dataclass(frozen=True, eq=False)
class Check:
    """An assertion: the run ends if `ok` does not hold."""

    eqn: JaxprEqn
    ok: Atom
    place: int | None


@dataclass(frozen=True, eq=False)
class Region:
    """Code. `ins` are values that it is entered with; others that it reads are outside it."""

    ins: tuple[Var, ...]
    nodes: tuple[Node, ...]
    outs: tuple[Atom, ...]


@dataclass(frozen=True, eq=False)
class While:
    """A loop while `test` holds. Both regions are entered with the state."""

    test: Region
    body: Region
    init: tuple[Atom, ...]
    outs: tuple[Var, ...]
    line: str


@dataclass(frozen=True, eq=False)
class Scan:
    """A loop of known length. The body takes the state and a row of each of `xs`, and gives the state and a row of
    the rest."""

    body: Region
    init: tuple[Atom, ...]
    xs: tuple[Atom, ...]
    outs: tuple[Var, ...]
    length: int
    reverse: bool
    line: str


@dataclass(frozen=True, eq=False)
class Branch:
    """One of several sides, by an index."""

    index: Atom
    sides: tuple[Region, ...]
    outs: tuple[Var, ...]
    line: str


Node = Op | Check | While | Scan | Branch


@dataclass(frozen=True, eq=False)
class Code:
    """A whole program in regions, and the arrays that it holds."""

    region: Region
    constants: dict[Var, Any]


def read(jaxpr: Jaxpr, placement: Placement) -> Code:
    """A jaxpr as regions."""
    reader = _Reader(placement)
    region = reader.region(jaxpr, None)
    return Code(region, reader.constants)


def read_function(fun: Callable[..., Sequence[Any]], ins: Sequence[Atom]) -> Code:
    """A function that has no parts as a region that reads these values around it."""
    reader = _Reader(Placement({}, 1))
    outs = reader.traced(fun, ins)
    return Code(Region((), tuple(reader.nodes), tuple(outs)), reader.constants)


class _Reader:
    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.constants: dict[Var, Any] = {}
        self.nodes: list[Node] = []

    # -- regions ---------------------------------------------------------------------------------

    def region(self, jaxpr: Jaxpr, place: int | None) -> Region:
        """A jaxpr's code as a region entered with all its inputs."""
        ins = [_jax.new_var(v.aval) for v in jaxpr.invars]
        return self.closed(jaxpr, ins, ins, place)

    def closed(
        self, jaxpr: Jaxpr, given: Sequence[Atom], ins: Sequence[Var], place: int | None
    ) -> Region:
        """The code on these values, of which the region is entered with some and the rest are around it."""
        around, self.nodes = self.nodes, []
        outs = self.code(jaxpr, given, place)
        made, self.nodes = tuple(self.nodes), around
        return Region(tuple(ins), made, tuple(outs))

    def code(self, jaxpr: Jaxpr, given: Sequence[Atom], place: int | None) -> list[Atom]:
        """Add a jaxpr's nodes, on these values; its results."""
        held = [_jax.new_var(var.aval) for var in jaxpr.constvars]
        self.constants.update(zip(held, _jax.attached_consts(jaxpr), strict=True))

        def rule(eqn: JaxprEqn, ins: list[Atom]) -> Sequence[Atom]:
            scope = scope_of(eqn)
            own = place if scope is None else self.placement.place_of(scope)
            return self.equation(eqn, ins, own)

        return _jax.evaluate(jaxpr, given, rule, consts=held, literal=_jax.itself)

    # -- equations -------------------------------------------------------------------------------

    def equation(self, eqn: JaxprEqn, ins: list[Atom], place: int | None) -> Sequence[Atom]:
        if eqn.primitive is check_p:
            self.nodes.append(Check(eqn, ins[0], place))
            return []
        if eqn.primitive is throw_p:
            return ins[:-2]
        if eqn.primitive is part_p:
            return self.part(eqn, ins)
        places = self.places_in(eqn)
        if place is None and eqn.primitive.name == "cond" and (places or _picks(eqn)):
            # Not one operation, though all parts inside are at one place: what a side reads travels if it is taken.
            return self.cond(eqn, ins, place)
        if not places or (len(places) == 1 and place in (None, *places)):
            return self.op(eqn, ins, next(iter(places), place))
        if eqn.primitive is program_p:
            return self.program(eqn, ins, place)
        rule = _CONTROL.get(eqn.primitive.name)
        if rule is not None:
            return rule(self, eqn, ins, place)
        code = inside(eqn)
        if code is None:
            raise TransformError(
                f"{eqn.primitive.name} ({_jax.user_line(eqn)}) holds parts of several places, and cannot be divided"
                " between them. Put it inside one part."
            )
        return self.code(code.jaxpr, code.divided(eqn, ins), place)

    def op(self, eqn: JaxprEqn, ins: Sequence[Atom], place: int | None) -> list[Atom]:
        outs = [_jax.new_var(v.aval) for v in eqn.outvars]
        self.nodes.append(Op(eqn, tuple(ins), tuple(outs), place))
        return list(outs)

    def part(self, eqn: JaxprEqn, ins: list[Atom]) -> Sequence[Atom]:
        name, code = eqn.params["name"], eqn.params["jaxpr"]
        if eqn.params["indexed"]:
            return self.one_of(eqn, ins, self.placement.family(name))
        return self.placed(eqn, code, ins, self.placement.place_of(name))

    def placed(
        self, eqn: JaxprEqn, code: Jaxpr, operands: Sequence[Atom], place: int
    ) -> Sequence[Atom]:
        """A part at a place: one operation, or written out if it holds parts of other places."""
        if self.places_of(code) <= {place}:
            params = {"jaxpr": code, "name": eqn.params["name"], "indexed": False}
            return self.op(eqn.replace(params=params), operands, place)
        return self.code(code, operands, place)

    def one_of(self, eqn: JaxprEqn, ins: Sequence[Atom], family: tuple[int, ...]) -> Sequence[Atom]:
        """A part with an index: a branch with a side for each place of the family."""
        index, operands = ins[0], ins[1:]
        code = eqn.params["jaxpr"]
        if isinstance(index, Literal):
            at = min(max(int(index.val), 0), len(family) - 1)
            return self.placed(eqn, code, operands, family[at])
        if len(family) == 1:
            return self.placed(eqn, code, operands, family[0])
        if index.aval.shape:
            return self.traced(functools.partial(_one_of_each, eqn, len(family)), ins)
        if index.aval.dtype != np.int32:
            (index,) = self.traced(lambda i: [jax.lax.convert_element_type(i, np.int32)], [index])
        sides = []
        for place in family:
            around, self.nodes = self.nodes, []
            outs = self.placed(eqn, code, operands, place)
            made, self.nodes = tuple(self.nodes), around
            sides.append(Region((), made, tuple(outs)))
        return self.branch(index, sides, eqn)

    def traced(self, fun: Callable[..., Sequence[Any]], ins: Sequence[Atom]) -> list[Atom]:
        """The nodes of a function of these values."""
        traced = _jax.trace(fun, [a.aval for a in ins])
        given: list[Atom] = []
        for capture in traced.captures:
            var = _jax.new_var(_jax.aval_of(capture))
            self.constants[var] = capture
            given.append(var)
        return self.code(traced.jaxpr, [*given, *ins], None)

    def program(self, eqn: JaxprEqn, ins: list[Atom], place: int | None) -> Sequence[Atom]:
        params = eqn.params
        program, options, lanes = params["program"], params["options"], params["lanes"]
        if program.recursive:
            names = sorted({n for f in program.functions.values() for n in parts_in(f.jaxpr)})
            line = _jax.user_line(eqn)
            raise TransformError(
                f"`{program.name}` is a recursion{line and f' ({line})'} with the parts {', '.join(names)} at"
                " several places inside: its stack is at one place. Put the whole call inside one part, or write it"
                " as a loop."
            )
        if options.stats or options.max_steps:
            name = "stats" if options.stats else "max_steps"
            raise OptionError(
                f"`{program.name}` has {name}= and parts at several places, which have no common machine to count"
                f" on. Leave {name} out."
            )
        if lanes or program.sums or params.get("summed"):
            answers = self.traced(functools.partial(_all_lanes, params), ins)
        else:
            code = inside(eqn)
            assert code is not None
            answers = self.code(code.jaxpr, code.divided(eqn, ins), place)
        if not program.gives_outcomes(options):
            return answers
        # A lane that fails ends the whole run (`Check`): the others are done.
        shape = lanes
        return [
            *answers,
            *self.traced(lambda: [jnp.zeros(shape, jnp.int32), jnp.full(shape, -1, jnp.int32)], []),
        ]

    # -- control flow ----------------------------------------------------------------------------

    def loop(self, eqn: JaxprEqn, ins: list[Atom], place: int | None) -> Sequence[Atom]:
        if tests_many(eqn):
            return self.code(with_one_test(eqn).jaxpr, ins, place)
        loop = _jax.While.of(eqn, ins)

        def entered(jaxpr: Jaxpr, consts: Sequence[Atom]) -> Region:
            state = [_jax.new_var(v.aval) for v in jaxpr.invars[len(consts) :]]
            return self.closed(jaxpr, [*consts, *state], state, place)

        test, body = entered(loop.test, loop.test_consts), entered(loop.body, loop.consts)
        outs = [_jax.new_var(v.aval) for v in eqn.outvars]
        self.nodes.append(While(test, body, tuple(loop.init), tuple(outs), _jax.user_line(eqn)))
        return list(outs)

    def scan(self, eqn: JaxprEqn, ins: list[Atom], place: int | None) -> Sequence[Atom]:
        loop = _jax.Scan.of(eqn, ins)
        entered = [_jax.new_var(v.aval) for v in loop.body.invars[len(loop.consts) :]]
        body = self.closed(loop.body, [*loop.consts, *entered], entered, place)
        outs, line = tuple(_jax.new_var(v.aval) for v in eqn.outvars), _jax.user_line(eqn)
        init, xs = tuple(loop.init), tuple(loop.xs)
        self.nodes.append(Scan(body, init, xs, outs, loop.length, loop.reverse, line))
        return list(outs)

    def cond(self, eqn: JaxprEqn, ins: list[Atom], place: int | None) -> Sequence[Atom]:
        parts = _jax.Cond.of(eqn, ins)
        sides = [self.closed(code, parts.operands, (), place) for code in parts.branches]
        return self.branch(parts.index, sides, eqn)

    def branch(self, index: Atom, sides: Sequence[Region], eqn: JaxprEqn) -> list[Atom]:
        outs = [_jax.new_var(v.aval) for v in eqn.outvars]
        self.nodes.append(Branch(index, tuple(sides), tuple(outs), _jax.user_line(eqn)))
        return list(outs)

    # -- places ----------------------------------------------------------------------------------

    def places_in(self, eqn: JaxprEqn) -> frozenset[int]:
        """The places of the parts inside an equation."""
        codes = list(_jax.subjaxprs(eqn))
        if eqn.primitive is program_p:
            codes += [f.jaxpr for f in eqn.params["program"].functions.values()]
        return frozenset(place for code in codes for place in self.places_of(code))

    def places_of(self, jaxpr: Jaxpr) -> frozenset[int]:
        return frozenset(
            place for name in set(parts_in(jaxpr)) for place in self.placement.family(name)
        )


def _picks(eqn: JaxprEqn) -> bool:
    """Whether a branch does little but pick: what is not taken need not travel."""
    return all(is_cheap(e) for code in _jax.subjaxprs(eqn) for e in code.eqns)


_CONTROL = {"while": _Reader.loop, "scan": _Reader.scan, "cond": _Reader.cond}


def _one_of_each(eqn: JaxprEqn, size: int, index: Any, *operands: Any) -> list[Any]:
    """A part whose index differs from lane to lane: each place that a lane asks for runs it for all, and lanes pick."""
    index = jnp.clip(index, 0, size - 1)
    found = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
    for number in range(size):

        def run(number: int = number) -> list[Any]:
            return part_p.bind(np.int32(number), *operands, **eqn.params)

        def nothing(found: list[Any] = found) -> list[Any]:
            return found

        here = index == number
        outs = jax.lax.cond(jnp.any(here), run, nothing)
        found = [
            jnp.where(here.reshape(here.shape + (1,) * (x.ndim - here.ndim)), x, old)
            for x, old in zip(outs, found, strict=True)
        ]
    return found


def _all_lanes(params: dict[str, Any], *operands: Any) -> list[Any]:
    """The answers of a batched program as JAX batches it."""
    program, lanes, mapped = params["program"], params["lanes"], params["mapped"]
    if program.sums:
        raise TransformError(
            f"`{program.name}` adds to sums that lanes share, and holds parts at several places. Take the gradient"
            " outside vmap, or put the program inside one part."
        )
    run = one_lane(program)
    for level in reversed(range(len(lanes))):
        axes = tuple(0 if has[level] else None for has in mapped)
        run = jax.vmap(run, axes, axis_size=lanes[level])
    outs = run(*operands)
    every = (True,) * len(lanes)
    wanted = answer_axes(program, mapped, params["options"], lanes)
    summed = params.get("summed") or ()
    return [
        x.sum(tuple(range(len(lanes)))) if i in summed else with_axes(x, every, has, lanes)
        for i, (x, has) in enumerate(zip(outs, wanted, strict=True))
    ]
