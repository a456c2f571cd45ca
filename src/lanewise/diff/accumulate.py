"""Results that are wanted as sums over lanes, as accumulators.

The reverse sweep of a program threads the adjoint of an array through its code: it starts as zeros, goes round loops
and in and out of calls, and each place that reads the array adds its part. Where only the sum over lanes is wanted,
none of these intermediate sums has to exist for each lane: the parts are added to one accumulator for all lanes where
they are made. This is the storage class of `core/accumulate.py`, and what Futhark's accumulators are to Schenck et
al. (2022): written by addition alone, read at the end.

Such a result is found by following it back. What it is made of is a *chain*: a sum of two values, a write that adds
by index, a loop's state, a branch's result, a call's result, as long as nothing but the next link reads it. A chain
ends in zeros, in its *base* (inside a loop's body: the state as it came in), or in a value of another kind, a term.
The chain goes, its terms are added to the accumulator, and the loop or the call has one state or parameter less.

There is always a chain: in the worst case the whole result is one term, added when the lane ends. A program called
inside, whose own result is a link, is made to accumulate in the same way.

What was considered: to have the rules of the sweep write into accumulators from the start. Then there would be two
reverse programs, with and without; and one that accumulates cannot be differentiated again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jax import lax

from lanewise import _jax
from lanewise._jax import Atom, Jaxpr, JaxprEqn, Literal, Var
from lanewise.core import accumulate as adding
from lanewise.core.errors import InternalError
from lanewise.core.primitives.facts import adds_at, is_sum
from lanewise.core.program import (
    Function,
    Program,
    call_p,
    is_part,
    program_p,
    throw_p,
    with_equations,
)
from lanewise.diff.delay import Uses, Write
from lanewise.diff.fold import is_zeros
from lanewise.diff.turned import as_turned, product_turned


@functools.lru_cache(maxsize=512)
def accumulating(program: Program, summed: tuple[int, ...]) -> Program:
    """The same program with the results of these numbers as accumulators, in this order, instead of answers."""
    avals = tuple(program.out_avals[i] for i in summed)
    entry = program.functions[program.entry]
    wanted = {index: Link(number, None) for number, index in enumerate(summed)}
    analysis = _analyzed(program, wanted)
    functions = {
        name: _rewritten(
            function, wanted if function is entry else analysis.links.get(name, {}), analysis
        )
        for name, function in program.functions.items()
    }
    return replace(program, functions=functions, sums=avals)


@dataclass(frozen=True)
class Link:
    """A result of some code that goes to an accumulator; `base`: the input that it is the sum so far of, if any."""

    number: int
    base: int | None


# For each function, which of its results go to accumulators.
Links = dict[str, dict[int, Link]]


def _analyzed(program: Program, wanted: dict[int, Link]) -> _Analysis:
    """The chains of a program: a function's result is a link of one wherever it is called, or nowhere."""
    never: set[tuple[str, int]] = set()
    while True:
        analysis = _Analysis(program, never)
        code = program.functions[program.entry].jaxpr
        for index, link in wanted.items():
            analysis.chain(code, code.outvars[index], None, link.number)
        broken = set(analysis.broken(wanted))
        if not broken:
            return analysis
        never |= broken


@dataclass
class _Analysis:
    """Finds chains. `links`: what is assumed of functions, and holds; `never`: results that are no links of a chain."""

    program: Program
    never: set[tuple[str, int]] = field(default_factory=set)
    links: Links = field(default_factory=dict)

    def chain(self, code: Jaxpr, out: Atom, base: Var | None, number: int) -> set[Var] | None:
        """The variables of the chain that a result is made of; None if it is not the sum so far and more."""
        uses = Uses(code)
        found: set[Var] = set()
        if isinstance(out, Literal):
            return None if base is not None else found
        work: list[tuple[Var, list[JaxprEqn | None]]] = [(out, [None])]
        reached = False
        while work:
            atom, readers = work.pop()
            if not _same(uses.readers.get(atom, []), readers):
                continue
            if atom is base:
                reached = True
                continue
            before = self._before(uses, atom, number)
            if before is not None:
                found.add(atom)
                work += before
        if base is not None and not reached:
            return None
        return found if base is None else found | {base}

    def _before(
        self, uses: Uses, var: Var, number: int
    ) -> list[tuple[Var, list[JaxprEqn | None]]] | None:
        """What a link of a chain is made of, with what may read it; None if the variable is no link."""
        eqn = uses.made.get(var)
        if eqn is None:
            return None
        name, place = eqn.primitive.name, eqn.outvars.index(var)
        if is_sum(eqn):
            atoms: Sequence[Atom] = eqn.invars
        elif adds_at(eqn):
            atoms = eqn.invars[:1]
        elif name == "pad":
            return [] if _pads_zeros(eqn) else None
        elif name == "dynamic_update_slice" and is_zeros(eqn.invars[0], uses.made):
            return []
        elif name == "dynamic_update_slice":
            write = _adds_to_slice(uses, eqn)
            taken = eqn.invars[0]
            if write is None:
                return None
            return [] if isinstance(taken, Literal) else [(taken, _readers_of(write.eqns, taken))]
        else:
            links = self.links_of(eqn, place, number)
            if links is None:
                return None
            base = links[place].base
            atoms = [] if base is None else [eqn.invars[base]]
        return [(a, [eqn]) for a in atoms if not isinstance(a, Literal)]

    def links_of(self, eqn: JaxprEqn, place: int, number: int) -> dict[int, Link] | None:
        """For a loop, a branch or a call, the operand that a result is the sum so far of; None if it is no link."""
        name = eqn.primitive.name
        if name == "while":
            loop = _jax.While.of(eqn, range(len(eqn.invars)))
            test, body = loop.test, loop.body
            tested = Uses(test).readers.get(test.invars[len(loop.test_consts) + place], [])
            base = body.invars[len(loop.consts) + place]
            own = self.chain(body, body.outvars[place], base, number)
            return None if tested or own is None else {place: Link(number, loop.init[place])}
        if name == "scan":
            loop = _jax.Scan.of(eqn, range(len(eqn.invars)))
            if place >= len(loop.init):
                return None
            at, body = loop.init[place], loop.body
            own = self.chain(body, body.outvars[place], body.invars[at], number)
            return None if own is None else {place: Link(number, at)}
        if name == "cond":
            return {place: Link(number, self._base_of_branches(eqn, place, number))}
        if eqn.primitive is call_p:
            return self._link_of_call(eqn, place, number)
        if eqn.primitive is throw_p:
            return {place: Link(number, place)}
        return {place: Link(number, None)} if is_part(eqn) else None

    def _base_of_branches(self, eqn: JaxprEqn, place: int, number: int) -> int | None:
        """The operand that a result of all branches is the sum so far of."""
        branch = _jax.Cond.of(eqn, eqn.invars)
        for at, operand in enumerate(branch.operands):
            if _is_like(operand, eqn.outvars[place]) and all(
                self.chain(code, code.outvars[place], code.invars[at], number) is not None
                for code in branch.branches
            ):
                return 1 + at
        return None

    def _link_of_call(self, eqn: JaxprEqn, place: int, number: int) -> dict[int, Link] | None:
        name = eqn.params["name"]
        if (name, place) in self.never:
            return None
        own = self.links.setdefault(name, {})
        if place in own:
            return {place: self._at_call(own[place], name)} if own[place].number == number else None
        function = self.program.functions[name]
        code = function.jaxpr
        before = {key: dict(links) for key, links in self.links.items()}
        for at in range(len(function.captures), len(code.invars)):
            if _is_like(code.invars[at], code.outvars[place]):
                # Assumed while the function's own code is looked at, which may call it.
                self.links[name] = {**self.links[name], place: Link(number, at)}
                if self.chain(code, code.outvars[place], code.invars[at], number) is not None:
                    return {place: self._at_call(Link(number, at), name)}
                self.links = {key: dict(links) for key, links in before.items()}
        self.links[name] = {**self.links[name], place: Link(number, None)}
        self.chain(code, code.outvars[place], None, number)
        return {place: Link(number, None)}

    def _at_call(self, link: Link, name: str) -> Link:
        """A function's link, with its base as an operand of a call: captures are none."""
        captures = len(self.program.functions[name].captures)
        return link if link.base is None else Link(link.number, link.base - captures)

    def broken(self, wanted: dict[int, Link]) -> Iterator[tuple[str, int]]:
        """Results of functions that some call uses otherwise."""
        for name, function in self.program.functions.items():
            own = wanted if name == self.program.entry else self.links.get(name, {})
            yield from self._broken_in(function.jaxpr, own)

    def _broken_in(self, code: Jaxpr, own: dict[int, Link]) -> Iterator[tuple[str, int]]:
        virtual = self.virtual(code, own)
        for eqn in code.eqns:
            if eqn.primitive is call_p:
                for place, link in self.links.get(eqn.params["name"], {}).items():
                    if virtual.get(eqn.outvars[place]) != link.number:
                        yield eqn.params["name"], place
                continue
            links = self.links_inside(eqn, virtual)
            for inner, taken in _codes(eqn, links):
                yield from self._broken_in(inner, taken)

    def virtual(self, code: Jaxpr, own: dict[int, Link]) -> dict[Var, int]:
        """The variables of all chains of some code, and the accumulators they go to."""
        found: dict[Var, int] = {}
        for index, link in own.items():
            base = None if link.base is None else code.invars[link.base]
            chain = self.chain(code, code.outvars[index], base, link.number)
            if chain is None:
                raise InternalError("a chain that was found is not found again.")
            found.update(dict.fromkeys(chain, link.number))
        return found

    def links_inside(self, eqn: JaxprEqn, virtual: dict[Var, int]) -> dict[int, Link]:
        """The results of an equation that are links of chains."""
        found: dict[int, Link] = {}
        for place, var in enumerate(eqn.outvars):
            if var in virtual:
                found.update(self.links_of(eqn, place, virtual[var]) or {})
        return found


def _codes(eqn: JaxprEqn, links: dict[int, Link]) -> Iterator[tuple[Jaxpr, dict[int, Link]]]:
    """The code that an equation holds, and which results of each go to accumulators, with bases by its inputs."""
    name = eqn.primitive.name
    if name == "while":
        loop = _jax.While.of(eqn, eqn.invars)
        yield loop.test, {}
        yield loop.body, _shifted(links, len(loop.test_consts))
    else:
        # A scan's operands are its body's inputs; a branch has its index before them.
        own = {"scan": links, "cond": _shifted(links, 1)}.get(name, {})
        for code in _jax.subjaxprs(eqn):
            yield code, own


def _shifted(links: dict[int, Link], by: int) -> dict[int, Link]:
    return {
        place: replace(link, base=None if link.base is None else link.base - by)
        for place, link in links.items()
    }


def _same(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    return len(found) == len(wanted) and all(any(a is b for b in wanted) for a in found)


def _adds_to_slice(uses: Uses, eqn: JaxprEqn) -> Write | None:
    """A write that adds to what is there: a slice is read, something added, and the sum put back."""
    write = uses.write(eqn)
    if write is None or write.read is None:
        return None
    read, _ = write.read
    same = all(map(_is_same, read.invars[1:], eqn.invars[2:]))
    return write if same else None


def _pads_zeros(eqn: JaxprEqn) -> bool:
    """Whether an equation puts zeros around a part: the adjoint of a read of that part."""
    value = eqn.invars[1]
    plain = all(
        low >= 0 <= high and not between for low, high, between in eqn.params["padding_config"]
    )
    return plain and isinstance(value, Literal) and bool(value.val == 0)


def _is_same(one: Atom, other: Atom) -> bool:
    if isinstance(one, Literal) and isinstance(other, Literal):
        return bool(one.val == other.val)
    return one is other


def _readers_of(eqns: Sequence[JaxprEqn], var: Var) -> list[JaxprEqn | None]:
    return [eqn for eqn in eqns for atom in eqn.invars if atom is var]


def _is_like(one: Atom, other: Atom) -> bool:
    return (one.aval.shape, one.aval.dtype) == (other.aval.shape, other.aval.dtype)


# -- writing the code again ---------------------------------------------------------------------------


def _rewritten(function: Function, own: dict[int, Link], analysis: _Analysis) -> Function:
    """A function whose results of these numbers, and their bases, are no longer there."""
    code = function.jaxpr
    if not own:
        return function
    bases = {link.base for link in own.values()}
    taken = [v.aval for i, v in enumerate(code.invars) if i not in bases]
    rewriter = _Rewriter(analysis)
    traced = _jax.trace(lambda *values: rewriter.run(code, values, own), taken)
    if traced.captures:
        raise InternalError("code that accumulates holds constants of its own.")
    return replace(function, jaxpr=traced.jaxpr)


@dataclass(frozen=True)
class _Rewriter:
    """Runs code with its chains taken out: what they would add goes to accumulators."""

    analysis: _Analysis

    def run(self, code: Jaxpr, args: Sequence[Any], own: dict[int, Link]) -> list[Any]:
        """The results that are left, of the arguments that are."""
        virtual = self.analysis.virtual(code, own)
        bases = {link.base for link in own.values()}
        inputs = [v for i, v in enumerate(code.invars) if i not in bases]
        held = _jax.attached_consts(code)
        values = _jax.Environment((*code.constvars, *inputs), (*held, *args))
        uses = Uses(code)
        # What only reads an accumulator in order to add to it.
        skipped: set[int] = set()
        for eqn in code.eqns:
            if eqn.primitive.name == "dynamic_update_slice" and eqn.outvars[0] in virtual:
                write = _adds_to_slice(uses, eqn)
                skipped.update(id(part) for part in (write.eqns[:-1] if write else ()))

        def add(atom: Atom, number: int) -> None:
            if (isinstance(atom, Literal) or atom not in virtual) and not is_zeros(atom, uses.made):
                product = product_turned(atom, uses)
                term = values[atom] if product is None else as_turned(product, values.__getitem__)
                adding.accumulate(number, term)

        for eqn in code.eqns:
            if id(eqn) in skipped:
                continue
            if any(v in virtual for v in eqn.outvars):
                kept = [v for v in eqn.outvars if v not in virtual]
                values.bind(kept, self._link(eqn, virtual, uses, values, add))
            else:
                values.bind(eqn.outvars, _jax.run_eqn(eqn, values.read(eqn.invars)))
        for index, link in own.items():
            add(code.outvars[index], link.number)
        return values.read(a for i, a in enumerate(code.outvars) if i not in own)

    def _link(
        self,
        eqn: JaxprEqn,
        virtual: dict[Var, int],
        uses: Uses,
        values: _jax.Environment[Any],
        add: Callable[[Atom, int], None],
    ) -> Sequence[Any]:
        """An equation that is a link of chains: its terms are added, its other results given."""
        name = eqn.primitive.name
        if is_sum(eqn):
            for atom in eqn.invars:
                add(atom, virtual[eqn.outvars[0]])
            return []
        if adds_at(eqn):
            number = virtual[eqn.outvars[0]]
            add(eqn.invars[0], number)
            places = adding.Places(eqn.params["dimension_numbers"], eqn.params["mode"])
            at, updates = values.read(eqn.invars[1:3])
            adding.accumulate_places(number, at, updates, places)
            return []
        if name == "dynamic_update_slice":
            number = virtual[eqn.outvars[0]]
            add(eqn.invars[0], number)
            write = _adds_to_slice(uses, eqn)
            part = eqn.invars[1] if write is None else write.operands[0]
            adding.accumulate_at(number, values[part], values.read(eqn.invars[2:]))
            return []
        if name == "pad":
            starts = [np.int32(low) for low, _, _ in eqn.params["padding_config"]]
            adding.accumulate_at(virtual[eqn.outvars[0]], values[eqn.invars[0]], starts)
            return []
        links = self.analysis.links_inside(eqn, virtual)
        for link in links.values():
            if link.base is not None:
                add(eqn.invars[link.base], link.number)
        bases = {link.base for link in links.values()}
        operands = [None if i in bases else values[a] for i, a in enumerate(eqn.invars)]
        return _CONSTRUCTS.get(name, _Rewriter._call)(self, eqn, operands, links)

    def _while(self, eqn: JaxprEqn, operands: Sequence[Any], links: dict[int, Link]) -> Any:
        loop = _jax.While.of(eqn, operands)
        cond, own = loop.test, _shifted(links, len(loop.test_consts))
        init = [x for i, x in enumerate(loop.init) if i not in links]

        def test(carry: list[Any]) -> Any:
            left = iter(carry)
            whole = [None if i in links else next(left) for i in range(len(eqn.outvars))]
            given = [*loop.test_consts, *whole]
            tested = [v for v, x in zip(cond.invars, given, strict=True) if x is not None]
            code = _jax.new_jaxpr([*cond.constvars, *tested], cond.outvars, cond.eqns)
            given = [x for x in given if x is not None]
            return _jax.eval_jaxpr(code, *_jax.attached_consts(cond), *given)[0]

        def turn(carry: list[Any]) -> list[Any]:
            return self.run(loop.body, [*loop.consts, *carry], own)

        return lax.while_loop(test, turn, init)

    def _scan(self, eqn: JaxprEqn, operands: Sequence[Any], links: dict[int, Link]) -> Any:
        loop = _jax.Scan.of(eqn, operands)
        init = [x for x in loop.init if x is not None]

        def turn(carry: list[Any], xs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            outs = self.run(loop.body, [*loop.consts, *carry, *xs], links)
            return outs[: len(carry)], outs[len(carry) :]

        carry, ys = lax.scan(
            turn,
            init,
            list(loop.xs),
            length=loop.length,
            reverse=loop.reverse,
            unroll=eqn.params["unroll"],
        )
        return [*carry, *ys]

    def _cond(self, eqn: JaxprEqn, operands: Sequence[Any], links: dict[int, Link]) -> Any:
        parts, own = _jax.Cond.of(eqn, operands), _shifted(links, 1)
        given = [x for x in parts.operands if x is not None]
        branches = [
            lambda *values, code=code: self.run(code, values, own) for code in parts.branches
        ]
        return lax.switch(parts.index, branches, *given)

    def _call(self, eqn: JaxprEqn, operands: Sequence[Any], links: dict[int, Link]) -> Any:
        left = [a for i, a in enumerate(eqn.params["out_avals"]) if i not in links]
        given = [x for x in operands if x is not None]
        return call_p.bind(*given, **{**eqn.params, "out_avals": tuple(left)})

    def _throw(self, eqn: JaxprEqn, operands: Sequence[Any], links: dict[int, Link]) -> Any:
        del links
        return throw_p.bind(*(x for x in operands if x is not None), **eqn.params)

    def _program(self, eqn: JaxprEqn, operands: Sequence[Any], links: dict[int, Link]) -> Any:
        numbers = tuple(link.number for link in links.values())
        inner = _as_part(eqn.params["program"], tuple(links), numbers)
        return program_p.bind(*operands, **{**eqn.params, "program": inner})


@functools.lru_cache(maxsize=512)
def _as_part(program: Program, summed: tuple[int, ...], numbers: tuple[int, ...]) -> Program:
    """A program called inside, whose results of these numbers go to the accumulators of the whole."""

    def renumbered(eqn: JaxprEqn) -> JaxprEqn:
        if eqn.primitive is not adding.accumulate_p:
            return eqn
        return eqn.replace(params={**eqn.params, "number": numbers[eqn.params["number"]]})

    return replace(with_equations(accumulating(program, summed), renumbered), sums=())


_CONSTRUCTS: dict[str, Callable[[_Rewriter, JaxprEqn, Sequence[Any], dict[int, Link]], Any]] = {
    "while": _Rewriter._while,
    "scan": _Rewriter._scan,
    "cond": _Rewriter._cond,
    "program": _Rewriter._program,
    "throw": _Rewriter._throw,
}
