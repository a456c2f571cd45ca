"""Sums of a loop that are made once, after it: what XLA splits over devices has then one reduction for each.

The gradient of a `scan` by weights that lanes share adds a product over the lanes in each iteration. Lanes are on
several devices, so a program that XLA splits on its own would send a message between them in each iteration. A sum over
lanes and iterations can be made at once: the loop gives the operands of its products instead, a row each
iteration, and one product over rows and lanes is made after it. So

    sum = scan(lambda sum, (a, b): sum + aᵀ b)        becomes        rows of a and b, then  sum + Σ_t aᵀ_t b_t

which is one product with one more axis that it sums over. Operands that the loop takes in rows, or gives as rows, are
there already; the others need memory, as what is saved for the gradient does. The same is done for plain sums over
axes, for additions at indices, for what is transposed, reshaped or converted after them, and for sums of several of
them; and for those that a loop gives as rows, as adjoints of the weights of layers that a loop visits. Where a
loop is in a loop, the inner one's product is made after the outer one too, if what is kept for it is small enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise._jax import Atom, Jaxpr, JaxprEqn, Literal, Var
from lanewise.core.primitives.facts import adds_at, bytes_of, facts_of, is_sum

# More than this is not kept to spare a loop its messages: as much as gradients save before they save less.
MOST_BYTES = 2**30

# Linear in one operand while the others stay the same, beside what is so in its first.
_LINEAR_IN_ONE = ("convert_element_type", "dot_general", "mul", "pad", "split", "unstack")

# The values of a body: the rows of one that varies, the value itself of one that is the same in each iteration.
Values = dict[Atom, Any]
# From a sum of other things, the sum.
Add = Callable[[Any, Values], Any]


@dataclass(frozen=True)
class _Later:
    """How something is made after the loop, and the values of the body that it needs."""

    needs: frozenset[Var]
    make: Callable[[Values], Any]


def sums_after_loops(jaxpr: Jaxpr, lanes: tuple[int, ...]) -> Jaxpr:
    """The same code with sums over lanes made after its loops of known length; itself where it has none.

    The sizes of axes show which of them are lanes. A guess that is wrong costs memory.
    """
    if not _has_scan(jaxpr):
        return jaxpr
    traced = _jax.trace(
        lambda *args: _evaluated(jaxpr, args, lanes), [v.aval for v in jaxpr.invars]
    )
    assert not traced.captures
    return _jax.without_unused(traced.jaxpr)


def _has_scan(jaxpr: Jaxpr) -> bool:
    return any(eqn.primitive.name == "scan" for eqn in jaxpr.eqns)


def _evaluated(jaxpr: Jaxpr, args: Sequence[Any], lanes: tuple[int, ...]) -> list[Any]:
    def run(eqn: JaxprEqn, operands: list[Any]) -> list[Any]:
        is_scan = eqn.primitive.name == "scan"
        return _scan(eqn, operands, lanes) if is_scan else _jax.run_eqn(eqn, operands)

    return _jax.evaluate(jaxpr, args, run)


def _scan(eqn: JaxprEqn, operands: Sequence[Any], lanes: tuple[int, ...]) -> list[Any]:
    """A loop whose sums are made after it."""
    loop = _jax.Scan.of(eqn, operands)
    held = _jax.attached_consts(loop.body)
    flat = _jax.flat_jaxpr(loop.body)
    body = sums_after_loops(flat, lanes)
    sums = _Sums(body, len(held) + len(loop.consts), len(loop.init), lanes)
    chosen = _chosen(sums, loop.length)
    if body is flat and not (chosen.states or chosen.rows):
        return _jax.run_eqn(eqn, operands)
    consts, init, xs = [*held, *loop.consts], loop.init, loop.xs
    code = sums.without(chosen)
    kept = [j for j, _ in enumerate(init) if not (j in chosen.states and chosen.states[j].whole)]
    left = [k for k, _ in enumerate(sums.given_rows) if k not in chosen.rows]

    def step(state: Sequence[Any], rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        carried = dict(zip(kept, state, strict=True))
        # Nothing reads what is summed later.
        entered = [carried.get(j, x) for j, x in enumerate(init)]
        outs = _jax.eval_jaxpr(code, *consts, *entered, *rows)
        return [outs[j] for j in kept], outs[len(init) :]

    state, found = lax.scan(
        step,
        [init[j] for j in kept],
        xs,
        length=loop.length,
        reverse=loop.reverse,
        unroll=eqn.params["unroll"],
    )
    values: Values = {}
    values.update(zip(body.invars, consts, strict=False))
    values.update(zip((sums.given_rows[k] for k in left), found, strict=False))
    values.update(zip(chosen.wanted, found[len(left) :], strict=True))
    values.update(zip(body.invars[sums.first_row :], xs, strict=True))
    carry = dict(zip(kept, state, strict=True))
    outs = [carry.get(j, x) for j, x in enumerate(init)]
    for j, added in chosen.states.items():
        for add in added.later:
            outs[j] = add(outs[j], values)
    given_rows = dict(zip(left, found, strict=False))
    given_rows |= {k: row.make(values) for k, row in chosen.rows.items()}
    return [*outs, *(given_rows[k] for k, _ in enumerate(sums.given_rows))]


@dataclass(frozen=True)
class _Added:
    """What is added to a state later, the equations that add it now, and what these add it to.

    `needs`: the values of the body that are read for it. `whole`: nothing else happens to the state.
    """

    later: tuple[Add, ...]
    instead: dict[JaxprEqn, Atom]
    needs: frozenset[Var]
    whole: bool


@dataclass(frozen=True)
class _Chosen:
    """What is made after a loop: states, rows, by their numbers; `wanted` are values that the loop gives for it."""

    states: dict[int, _Added]
    rows: dict[int, _Later]
    wanted: tuple[Var, ...]


def _chosen(sums: _Sums, length: int) -> _Chosen:
    states: dict[int, _Added] = {}
    rows: dict[int, _Later] = {}
    wanted: dict[Var, None] = {}
    # In the order of the body, which is the same in all processes.
    values = [*sums.body.invars, *sums.made]

    def fits(needs: frozenset[Var], instead_of: int) -> bool:
        more = [v for v in values if v in needs - sums.here and v not in wanted]
        if length * (sum(map(bytes_of, [*wanted, *more])) - instead_of) > MOST_BYTES:
            return False
        wanted.update(dict.fromkeys(more))
        return True

    for j in range(sums.num_carry):
        added = sums.of(j)
        if added is not None and fits(added.needs, 0):
            states[j] = added
    for k, atom in enumerate(sums.given_rows):
        row = sums.row(atom)
        if row is not None and fits(row.needs, bytes_of(atom)):
            rows[k] = row
    return _Chosen(states, rows, tuple(wanted))


@dataclass
class _Sums:
    """The sums that a loop's body makes in its state, and those that it gives as rows."""

    body: Jaxpr
    num_consts: int
    num_carry: int
    lanes: tuple[int, ...]

    def __post_init__(self) -> None:
        body = self.body
        self.made = {v: eqn for eqn in body.eqns for v in eqn.outvars}
        self.readers: dict[Var, list[JaxprEqn]] = {}
        for eqn in body.eqns:
            for atom in eqn.invars:
                if isinstance(atom, Var):
                    self.readers.setdefault(atom, []).append(eqn)
        self.given = Counter(a for a in body.outvars if isinstance(a, Var))
        self.first_row = self.num_consts + self.num_carry
        self.given_rows = list(body.outvars[self.num_carry :])
        self.fixed = set(body.invars[: self.num_consts])
        # Values whose rows are there: taken by the loop, or given by it and not to be made after it.
        rows = {a for a in self.given_rows if isinstance(a, Var) and self.row(a) is None}
        self.here = rows.union(body.invars[self.first_row :])

    def of(self, j: int) -> _Added | None:
        """What is added to state `j` and can be added later; None if nothing is."""
        at: Atom = self.body.invars[self.num_consts + j]
        end = self.body.outvars[j]
        later: list[Add] = []
        instead: dict[JaxprEqn, Atom] = {}
        needs: frozenset[Var] = frozenset()
        whole = True
        while at is not end:
            eqn = self._only_reader(at)
            if eqn is None:
                return None
            term = self._added(eqn, at)
            if term is not None:
                needs |= term[0]
                later.append(term[1])
                instead[eqn] = at
            elif is_sum(eqn):
                whole = False
            else:
                return None
            at = eqn.outvars[0]
        if not later or self.given[at] != 1 or self.readers.get(at):
            return None
        return _Added(tuple(later), instead, needs, whole)

    def row(self, atom: Atom) -> _Later | None:
        """How the rows that the loop gives of a value are made after it, if it is a sum over lanes."""
        if isinstance(atom, Literal) or self.given[atom] != 1 or self.readers.get(atom):
            return None
        return self._made_later(atom, True)

    def without(self, chosen: _Chosen) -> Jaxpr:
        """The body without what is made later; it also gives what is read for that."""
        dropped = {e: at for added in chosen.states.values() for e, at in added.instead.items()}
        instead: dict[Var, Atom] = {}

        def now(atom: Atom) -> Atom:
            return instead.get(atom, atom) if isinstance(atom, Var) else atom

        eqns = []
        for eqn in self.body.eqns:
            if eqn in dropped:
                instead[eqn.outvars[0]] = now(dropped[eqn])
            else:
                eqns.append(eqn.replace(invars=[now(a) for a in eqn.invars]))
        rows = [a for k, a in enumerate(self.given_rows) if k not in chosen.rows]
        outs = [now(a) for a in (*self.body.outvars[: self.num_carry], *rows)]
        return _jax.without_unused(_jax.new_jaxpr(self.body.invars, [*outs, *chosen.wanted], eqns))

    # -- terms ----------------------------------------------------------------------------------

    def _only_reader(self, atom: Atom) -> JaxprEqn | None:
        """The one equation that reads a value that is no result, and that reads it once."""
        if isinstance(atom, Literal) or self.given[atom]:
            return None
        found = self.readers.get(atom, [])
        return found[0] if len(found) == 1 else None

    def _added(self, eqn: JaxprEqn, to: Atom) -> tuple[frozenset[Var], Add] | None:
        """What an equation adds to a value, as what is added to the value's sum later."""
        if adds_at(eqn) and eqn.invars[0] is to:
            return self._scattered(eqn)
        if not is_sum(eqn):
            return None
        (other,) = [a for a in eqn.invars if a is not to]
        term = self._later(other, False)
        if term is None:
            return None
        return term.needs, lambda total, values: lax.add(total, term.make(values))

    def _scattered(self, eqn: JaxprEqn) -> tuple[frozenset[Var], Add] | None:
        """An addition at indices: all iterations' at once."""
        _, indices, updates = eqn.invars
        lanes = self._has_lanes(indices, range(len(indices.aval.shape)))
        if not (lanes and self._varies(indices) and self._varies(updates)):
            return None
        numbers = eqn.params["dimension_numbers"]
        params = {
            **eqn.params,
            "dimension_numbers": numbers._replace(
                update_window_dims=_after(numbers.update_window_dims),
                scatter_indices_batching_dims=_after(numbers.scatter_indices_batching_dims),
            ),
            "unique_indices": False,
            "indices_are_sorted": False,
        }

        def add(total: Any, values: Values) -> Any:
            operands = [total, values[indices], values[updates]]
            return _jax.run_eqn(eqn.replace(params=params), operands)[0]

        return self._needed(indices, updates), add

    def _later(self, atom: Atom, each: bool) -> _Later | None:
        """How a value is made after the loop, summed over all iterations or `each`, if it is a sum over lanes."""
        if isinstance(atom, Literal) or self._only_reader(atom) is None:
            return None
        return self._made_later(atom, each)

    def _made_later(self, atom: Var, each: bool) -> _Later | None:
        eqn = self.made.get(atom)
        if eqn is None:
            return None
        name = eqn.primitive.name
        if is_sum(eqn):
            one, other = (self._later(a, each) for a in eqn.invars)
            if one is None or other is None:
                return None
            return _Later(
                one.needs | other.needs,
                lambda values: lax.add(one.make(values), other.make(values)),
            )
        linear = facts_of(eqn).linear or name in _LINEAR_IN_ONE
        found = self._linear(eqn, eqn.outvars.index(atom), each) if linear else None
        if found is None and name == "dot_general":
            return self._product(eqn, each)
        if found is None and name == "reduce_sum":
            return self._sum(eqn, each)
        return found

    def _linear(self, eqn: JaxprEqn, number: int, each: bool) -> _Later | None:
        """What is done to a sum, with values that are the same in each iteration: result `number` of it."""
        varying = [i for i, a in enumerate(eqn.invars) if self._varies(a)]
        if len(varying) != 1 or (eqn.primitive.name == "pad" and not _is_zero(eqn.invars[1])):
            return None
        (at,) = varying
        inner = self._later(eqn.invars[at], each)
        if inner is None:
            return None

        def done(values: Values) -> Any:
            def one(x: Any) -> Any:
                operands = [
                    x if i == at else a.val if isinstance(a, Literal) else values[a]
                    for i, a in enumerate(eqn.invars)
                ]
                return _jax.run_eqn(eqn, operands)[number]

            return jax.vmap(one)(inner.make(values)) if each else one(inner.make(values))

        return _Later(inner.needs, done)

    def _product(self, eqn: JaxprEqn, each: bool) -> _Later | None:
        varies = [self._varies(a) for a in eqn.invars]
        ((left, right), (left_batch, right_batch)) = eqn.params["dimension_numbers"]
        literal = any(isinstance(a, Literal) for a in eqn.invars)
        if literal or not any(varies) or not self._has_lanes(eqn.invars[0], left):
            return None
        if each and not all(varies):
            return None
        sums = (_after(left), _after(right))
        batches = (_after(left_batch), _after(right_batch))
        row = ((0,), (0,))
        numbers = (sums, _joined(row, batches)) if each else (_joined(row, sums), batches)
        params = {**eqn.params, "dimension_numbers": numbers}

        def product(values: Values) -> Any:
            operands = [values[a] for a in eqn.invars if isinstance(a, Var)]
            if all(varies):
                return lax.dot_general_p.bind(*operands, **params)
            # What is the same in each iteration meets the sum of what is not.
            operands = [
                jnp.sum(x, 0, x.dtype) if flag else x
                for x, flag in zip(operands, varies, strict=True)
            ]
            return _jax.run_eqn(eqn, operands)[0]

        return _Later(self._needed(*eqn.invars), product)

    def _sum(self, eqn: JaxprEqn, each: bool) -> _Later | None:
        (operand,) = eqn.invars
        if not self._varies(operand) or not self._has_lanes(operand, eqn.params["axes"]):
            return None
        row = () if each else (0,)
        params = {**eqn.params, "axes": (*row, *_after(eqn.params["axes"]))}
        return _Later(
            self._needed(operand), lambda values: lax.reduce_sum_p.bind(values[operand], **params)
        )

    def _has_lanes(self, atom: Atom, axes: Iterable[int]) -> bool:
        """Whether one of these axes is as long as one of lanes."""
        return any(atom.aval.shape[axis] in self.lanes for axis in axes)

    def _varies(self, atom: Atom) -> bool:
        return isinstance(atom, Var) and atom not in self.fixed

    def _needed(self, *atoms: Atom) -> frozenset[Var]:
        return frozenset(a for a in atoms if isinstance(a, Var) and self._varies(a))


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Literal) and bool(atom.val == 0)


def _joined(one: Any, other: Any) -> tuple[Any, ...]:
    return tuple((*a, *b) for a, b in zip(one, other, strict=True))


def _after(axes: Sequence[int]) -> tuple[int, ...]:
    """Axes of a value as those of its rows."""
    return tuple(int(axis) + 1 for axis in axes)
