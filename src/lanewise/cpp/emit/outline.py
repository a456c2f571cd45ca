"""Code that stands at several places of a program, made one piece that all of them call.

A function that a program uses at several places has been inlined at each by JAX's tracing, by flattening or by a pass
that copies blocks; a derivative runs parts of the forward pass again. Compilers take as long for every copy. So
equations that are written alike are found in the blocks and in the code they hold, where they stand in the same order
(`repeats.py`) and hand on their results alike. Such a run becomes an equation `shared`, which holds the run as code of
its own; `rules/control.py` writes that once, as a C++ function.

Two equations are alike if a kernel's text for one is that for the other under other names: the same primitive on
operands of the same types, the same literals, the same parameters, with code among these compared by what it does. What
a kernel does not look at (a `custom_jvp`'s derivative, shardings, names, lines) does not count.

What is not worth a call stays where it is: runs that are short, and those that stand once. An update of a long array in
place ends a run if the array comes from outside of it: a function would have to copy the array.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lanewise import _jax
from lanewise._jax import Atom, ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Var, primitive
from lanewise.blocks.equations import tests_many
from lanewise.blocks.form import Block, terminator_atoms
from lanewise.blocks.link import Linked
from lanewise.core.primitives.facts import (
    code_of,
    facts_of,
    is_call,
    is_free,
    is_function,
    is_random,
    is_update,
    size_of,
)
from lanewise.cpp.emit.late import products_late
from lanewise.cpp.emit.repeats import repeats

# What a run must weigh to become a function.
LEAST = 16.0
# Arrays of more elements are not copied for a function that updates them.
COPIED = 64
# Runs inside of runs become functions too, to this depth.
ROUNDS = 8
# More than any equation has results.
SLOTS = 1 << 20

shared_p = primitive("shared")


def outlined(linked: Linked, times: Mapping[int, int]) -> Linked:
    """The program with its repeated code in `shared` equations; each block is written its number of `times`."""
    linked = products_late(linked)
    live_out = linked.storage.live_out
    roots = {
        pc: _Code(list(item.eqns), _wanted(item) | set(live_out[item.label]), times.get(pc, 0))
        for pc, item in enumerate(linked.order)
        if isinstance(item, Block)
    }
    outliner = _Outliner()
    if sum(outliner.like.weights(code.eqns) * code.times for code in roots.values()) < 2 * LEAST:
        return linked
    for _ in range(ROUNDS):
        if not outliner.round(list(roots.values())):
            break
    return replace(
        linked,
        order=tuple(
            item.with_(eqns=tuple(roots[pc].eqns)) if isinstance(item, Block) else item
            for pc, item in enumerate(linked.order)
        ),
    )


def _wanted(block: Block) -> set[Var]:
    """What a block reads after its equations."""
    atoms = [*(atom for _, atom in block.assigns), *terminator_atoms(block.terminator)]
    return {atom for atom in atoms if isinstance(atom, Var)}


@dataclass(eq=False)
class _Code:
    """Equations, what is read of them afterwards, and how often they are written."""

    eqns: list[JaxprEqn]
    wanted: set[Var]
    times: int
    last_read: dict[Var, int] = field(default_factory=dict)
    # What makes a variable, and what makes the variables each equation reads: result `j` of equation `i` is
    # `i * SLOTS + j`, and what none of these makes is -1.
    made_at: dict[Var, int] = field(default_factory=dict)
    made: list[list[int]] = field(default_factory=list)
    # Where runs begin that have become functions, with their lengths and what stands there instead.
    taken: dict[int, tuple[int, JaxprEqn]] = field(default_factory=dict)

    def look(self) -> None:
        """Find what makes and what last reads each variable."""
        self.taken, self.last_read, self.made_at, self.made = {}, {}, {}, []
        for i, eqn in enumerate(self.eqns):
            variables = [atom for atom in eqn.invars if isinstance(atom, Var)]
            self.made.append([self.made_at.get(var, -1) for var in variables])
            self.last_read.update((var, i) for var in variables)
            self.made_at.update((var, i * SLOTS + j) for j, var in enumerate(eqn.outvars))

    def reads_after(self, var: Var, end: int) -> bool:
        return var in self.wanted or self.last_read.get(var, -1) >= end

    def is_free(self, start: int, end: int) -> bool:
        return all(end <= at or at + length <= start for at, (length, _) in self.taken.items())


@dataclass(frozen=True, eq=False)
class _Place:
    """A run of code."""

    code: _Code
    start: int

    def eqn(self, offset: int) -> JaxprEqn:
        return self.code.eqns[self.start + offset]


class _Outliner:
    def __init__(self) -> None:
        self.like = Likeness()
        self.edited: dict[int, tuple[JaxprEqn, list[Var]]] = {}

    def round(self, roots: Sequence[_Code]) -> bool:
        """Make functions of runs that do not overlap, the longest first; whether there were any."""
        held: dict[int, tuple[Jaxpr, _Code]] = {}
        for root in roots:
            self._collect(root, root.times, held)
        pool = [*roots, *(code for _, code in held.values())]
        rows: list[_Code] = []
        for code in pool:
            code.look()
            # What is written twice repeats itself; how often then makes no difference.
            rows += [code] * min(code.times, 2)
        if not self._choose(rows):
            return False
        changed: dict[int, Jaxpr] = {}
        for code in pool:
            code.eqns = self._rewritten(code, held, changed)
        return True

    def _collect(self, code: _Code, times: int, held: dict[int, tuple[Jaxpr, _Code]]) -> None:
        """Find the code that equations hold; what a `shared` equation holds is written once."""
        for eqn in code.eqns:
            if eqn.primitive is shared_p:
                inner: Sequence[Jaxpr] = (eqn.params["jaxpr"],)
            else:
                inner = held_code(eqn)
            for jaxpr in inner:
                known = id(jaxpr) in held
                if not known:
                    wanted = {atom for atom in jaxpr.outvars if isinstance(atom, Var)}
                    held[id(jaxpr)] = (jaxpr, _Code(list(jaxpr.eqns), wanted, 0))
                if eqn.primitive is shared_p:
                    if known:
                        continue
                    added = 1
                else:
                    added = times
                held[id(jaxpr)][1].times += added
                self._collect(held[id(jaxpr)][1], added, held)

    # -- choosing --------------------------------------------------------------------------------------

    def _choose(self, rows: Sequence[_Code]) -> bool:
        numbers = [[self.like.eqn(eqn) for eqn in code.eqns] for code in rows]
        found = []
        for length, run in repeats(numbers):
            number, start = run[0]
            weight = self.like.weights(rows[number].eqns[start : start + length])
            if weight >= LEAST:
                places = [_Place(rows[number], at) for number, at in run]
                found.append((weight * (len(places) - 1), length, places))
        found.sort(key=lambda run: -run[0])
        taken = [self._take(length, places) for _, length, places in found]
        return any(taken)

    def _take(self, length: int, places: Sequence[_Place]) -> bool:
        """Make a function of a run, if it is one at enough of these places; whether it is."""
        places = _apart(places, length)
        if len(places) < 2:
            return False
        first = places[0]
        alike = [(self._alike(first, place, length), place) for place in places]
        best: tuple[float, int, list[_Place]] = (0.0, 0, [])
        for size in {self._trimmed(first, size) for size, _ in alike}:
            weight = self.like.weights(first.eqn(i) for i in range(size))
            same = [place for length, place in alike if length >= size]
            gain = weight * (len(same) - 1) if weight >= LEAST else 0.0
            best = max(best, (gain, size, same), key=lambda found: found[0])
        gain, size, same = best
        if gain:
            self._share(size, same)
        return bool(gain)

    def _trimmed(self, place: _Place, length: int) -> int:
        """The length without equations at the end that only rename elements: these cost nothing where they are read."""
        while length and not self.like.weight(place.eqn(length - 1)):
            length -= 1
        return length

    def _alike(self, first: _Place, other: _Place, length: int) -> int:
        """How many equations of two runs read the same of what the runs themselves define."""
        here, there = first.code, other.code
        for offset in range(length):
            at, other_at = first.start + offset, other.start + offset
            for made, other_made in zip(here.made[at], there.made[other_at], strict=True):
                if max(made - first.start * SLOTS, -1) != max(other_made - other.start * SLOTS, -1):
                    return offset
            edited = self._edited(here.eqns[at])
            if any(here.made_at.get(var, -1) < first.start * SLOTS for var in edited):
                return offset
        return length

    def _edited(self, eqn: JaxprEqn) -> list[Var]:
        found = self.edited.get(id(eqn))
        if found is None:
            found = self.edited[id(eqn)] = (eqn, _edited(eqn))
        return found[1]

    # -- rewriting -------------------------------------------------------------------------------------

    def _share(self, length: int, places: Sequence[_Place]) -> None:
        """Put a call in place of a run, at all places."""
        distinct = list({(id(place.code), place.start): place for place in places}.values())
        parameters: dict[tuple[Atom, ...], Var] = {}
        inner: dict[Var, Var] = {}
        outs: list[tuple[int, int, Var]] = []
        eqns: list[JaxprEqn] = []

        def operand(offset: int, i: int) -> Atom:
            atom = distinct[0].eqn(offset).invars[i]
            if isinstance(atom, Literal) or atom in inner:
                return atom if isinstance(atom, Literal) else inner[atom]
            atoms = tuple(place.eqn(offset).invars[i] for place in distinct)
            return parameters.setdefault(atoms, _jax.new_var(atom.aval))

        for offset in range(length):
            eqn = distinct[0].eqn(offset)
            invars = [operand(offset, i) for i in range(len(eqn.invars))]
            outvars = [_jax.new_var(var.aval) for var in eqn.outvars]
            inner.update(zip(eqn.outvars, outvars, strict=True))
            eqns.append(eqn.replace(invars=invars, outvars=outvars))
            for i, var in enumerate(outvars):
                if any(
                    p.code.reads_after(p.eqn(offset).outvars[i], p.start + length) for p in distinct
                ):
                    outs.append((offset, i, var))
        jaxpr = _jax.new_jaxpr(list(parameters.values()), [var for _, _, var in outs], eqns)
        for number, place in enumerate(distinct):
            given = [atoms[number] for atoms in parameters]
            results = [place.eqn(offset).outvars[i] for offset, i, _ in outs]
            results = [_jax.new_var(v.aval) if isinstance(v, DropVar) else v for v in results]
            call = _jax.new_eqn(given, results, shared_p, {"jaxpr": jaxpr})
            place.code.taken[place.start] = (length, call)

    def _rewritten(
        self, code: _Code, held: Mapping[int, tuple[Jaxpr, _Code]], changed: dict[int, Jaxpr]
    ) -> list[JaxprEqn]:
        """A piece of code with its calls, and those inside what it holds."""
        if not code.taken and not any(map(_holds_code, code.eqns)):
            return code.eqns
        out: list[JaxprEqn] = []
        at = 0
        while at < len(code.eqns):
            length, eqn = code.taken.get(at, (1, code.eqns[at]))
            out.append(self._inside(eqn, held, changed))
            at += length
        code.taken = {}
        return out

    def _inside(
        self, eqn: JaxprEqn, held: Mapping[int, tuple[Jaxpr, _Code]], changed: dict[int, Jaxpr]
    ) -> JaxprEqn:
        if eqn.primitive is shared_p:
            jaxpr = eqn.params["jaxpr"]
            new = self._changed(jaxpr, held, changed)
            return eqn if new is jaxpr else eqn.replace(params={"jaxpr": new})
        code = held_code(eqn)
        new_code = [self._changed(jaxpr, held, changed) for jaxpr in code]
        if all(new is old for new, old in zip(new_code, code, strict=True)):
            return eqn
        return with_code(eqn, new_code)

    def _changed(
        self, jaxpr: Jaxpr, held: Mapping[int, tuple[Jaxpr, _Code]], changed: dict[int, Jaxpr]
    ) -> Jaxpr:
        if id(jaxpr) not in held:
            # A function of this very round: it is looked into in the next.
            return jaxpr
        if id(jaxpr) not in changed:
            code = held[id(jaxpr)][1]
            before = code.eqns
            code.eqns = self._rewritten(code, held, changed)
            same = len(before) == len(code.eqns) and all(
                old is new for old, new in zip(before, code.eqns, strict=True)
            )
            changed[id(jaxpr)] = jaxpr if same else _jax.replace_eqns(jaxpr, code.eqns)
        return changed[id(jaxpr)]


def _apart(places: Sequence[_Place], length: int) -> list[_Place]:
    """Places that overlap neither each other nor what is a function already."""
    kept: list[_Place] = []
    ends: dict[int, int] = {}
    for place in sorted(places, key=lambda place: (id(place.code), place.start)):
        begun = place.start >= ends.get(id(place.code), 0)
        again = bool(kept) and (kept[-1].code, kept[-1].start) == (place.code, place.start)
        if (begun or again) and place.code.is_free(place.start, place.start + length):
            kept.append(place)
            ends[id(place.code)] = place.start + length
    return kept


def _holds_code(eqn: JaxprEqn) -> bool:
    return eqn.primitive is shared_p or bool(held_code(eqn))


def _edited(eqn: JaxprEqn) -> list[Var]:
    """The long arrays that an equation writes into in place, if nothing else needs them."""
    name = eqn.primitive.name
    if is_update(eqn):
        found: Sequence[Atom] = eqn.invars[:1]
    elif name == "while":
        found = _jax.While.of(eqn, eqn.invars).init
    elif name == "scan":
        found = _jax.Scan.of(eqn, eqn.invars).init
    else:
        inner = [
            dict(zip(code.invars, eqn.invars, strict=False)).get(var)
            for code in held_code(eqn)
            if name != "cond"
            for edit in code.eqns
            for var in _edited(edit)
        ]
        found = [atom for atom in inner if atom is not None]
    return [atom for atom in found if isinstance(atom, Var) and size_of(atom) > COPIED]


# -- likeness ------------------------------------------------------------------------------------------

# What the text of an equation weighs, in loops of elementwise code, where its row does not say.
_SCALAR, _FUNCTION_OF_SCALAR, _CONTROL = 0.1, 0.5, 2.0


def held_code(eqn: JaxprEqn) -> tuple[Jaxpr, ...]:
    """The code that an equation holds and a kernel writes in its place, as the equation's parameters have it."""
    if tests_many(eqn):
        return ()
    found: list[Jaxpr] = []
    for name in facts_of(eqn).code:
        value = eqn.params[name]
        found += value if isinstance(value, tuple | list) else [value]
    return tuple(found)


def with_code(eqn: JaxprEqn, code: Iterable[Jaxpr]) -> JaxprEqn:
    """The equation with other code in these places."""
    left = iter(code)
    params = dict(eqn.params)
    for name in facts_of(eqn).code:
        value = params[name]
        several = isinstance(value, tuple | list)
        params[name] = type(value)(next(left) for _ in value) if several else next(left)
    return eqn.replace(params=params)


class Likeness:
    """Numbers for equations and code: equal for those that are written alike."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        # References are held to what is compared: while it is here, nothing else gets its id.
        self._of_eqn: dict[int, tuple[JaxprEqn, int]] = {}
        self._of_code: dict[int, tuple[Jaxpr, int]] = {}
        self._weights: dict[int, tuple[JaxprEqn, float]] = {}

    def eqn(self, eqn: JaxprEqn) -> int:
        if eqn.effects:
            # Like nothing else, itself at another place included.
            return self._number(("alone", len(self._numbers)))
        found = self._of_eqn.get(id(eqn))
        if found is None:
            found = self._of_eqn[id(eqn)] = (eqn, self._number(self._key(eqn)))
        return found[1]

    def code(self, jaxpr: Jaxpr | ClosedJaxpr) -> int:
        found = self._of_code.get(id(jaxpr))
        if found is None:
            found = self._of_code[id(jaxpr)] = (jaxpr, self._number(self._code_key(jaxpr)))
        return found[1]

    def weight(self, eqn: JaxprEqn) -> float:
        """How much text an equation makes, beside what the equations around it make."""
        found = self._weights.get(id(eqn))
        if found is None:
            found = self._weights[id(eqn)] = (eqn, self._weigh(eqn))
        return found[1]

    def weights(self, eqns: Iterable[JaxprEqn]) -> float:
        return sum(map(self.weight, eqns))

    def _weigh(self, eqn: JaxprEqn) -> float:
        facts = facts_of(eqn)
        if facts.code:
            around = 0.0 if is_call(eqn) else _CONTROL
            return around + sum(self.weights(code.eqns) for code in held_code(eqn))
        if is_free(eqn):
            return 0.0
        largest = max((size_of(atom) for atom in (*eqn.invars, *eqn.outvars)), default=1)
        if largest <= 1 and facts.text is None:
            return _FUNCTION_OF_SCALAR if is_function(eqn) else _SCALAR
        # Short arrays are scalars in a row.
        share = min(1.0, _SCALAR * largest)
        return share * (1.0 if facts.text is None else facts.text)

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _key(self, eqn: JaxprEqn) -> Hashable:
        name = eqn.primitive.name
        if is_call(eqn):
            params: Hashable = self.code(code_of(eqn))
        else:
            params = tuple((key, self._param(eqn.params[key])) for key in sorted(eqn.params))
        layout = _jax.threefry_partitionable(eqn) if is_random(eqn) else None
        return (
            name,
            params,
            layout,
            tuple(map(_operand, eqn.invars)),
            tuple((var.aval.shape, var.aval.dtype) for var in eqn.outvars),
        )

    def _param(self, value: Any) -> Hashable:
        if isinstance(value, Jaxpr | ClosedJaxpr):
            return ("code", self.code(value))
        if isinstance(value, tuple | list):
            return (type(value), *map(self._param, value))
        if isinstance(value, np.ndarray):
            return (value.shape, value.dtype.str, value.tobytes())
        try:
            hash(value)
        except TypeError:
            return ("alone", id(value))
        return (type(value), value)

    def _code_key(self, jaxpr: Jaxpr | ClosedJaxpr) -> Hashable:
        numbers: dict[Var, int] = {}

        def name(atom: Atom) -> Hashable:
            return _operand(atom) if isinstance(atom, Literal) else numbers[atom]

        def define(variables: Iterable[Var]) -> None:
            numbers.update((var, len(numbers) + i) for i, var in enumerate(list(variables)))

        given = [*jaxpr.constvars, *jaxpr.invars]
        define(given)
        eqns = []
        for eqn in jaxpr.eqns:
            eqns.append((self.eqn(eqn), tuple(map(name, eqn.invars))))
            define(eqn.outvars)
        return (
            tuple((var.aval.shape, var.aval.dtype) for var in given),
            tuple(map(id, _jax.attached_consts(jaxpr))),
            tuple(eqns),
            tuple(map(name, jaxpr.outvars)),
        )


def _operand(atom: Atom) -> Hashable:
    kind = (atom.aval.shape, atom.aval.dtype)
    if isinstance(atom, Literal):
        return (*kind, np.asarray(atom.val).astype(atom.aval.dtype).tobytes())
    return kind
