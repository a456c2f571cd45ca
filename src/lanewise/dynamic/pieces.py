"""Pieces: the value equations between two points of control, as straight code.

The slice walks a program's code with its value equations *pending*: nothing is done with one until a result is
needed as a row, by a call, at the end of a branch or a loop's body, or as an answer. Then what it needs is taken
together as one piece. So pieces are as coarse as control allows, cheap work sinks into the branches that use it, and
what is computed before a call and used after it is part of what comes after.

Results of which one may come earlier than the other are made by two pieces, if the earlier one is matrix work
(`parts`); and what is added to a total that comes later is a piece of its own (`terms`).

Two more things are done for matrix work. What a piece computes of payload alone, while the rest
waits for rows of calls, is a separate piece: it runs at the first level, as one product for all calls (`hoisted`).
And a result of matrix work that other pieces read too is a result of the piece (`escaping`), while cheap equations are
computed again by each.

Products of one operand with several shared ones (the gates of a cell, written one by one) become one product
(`joined`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.core.primitives.facts import bytes_of, eqn_cost, size_of
from lanewise.dynamic.code import Op, Plain, Table, codes_in, ops_in, reads, variables
from lanewise.dynamic.control import VARIES, Control, is_expensive
from lanewise.dynamic.ending import with_programs
from lanewise.dynamic.rows import Known
from lanewise.dynamic.sums import is_addition, only_added
from lanewise.dynamic.table import Piece, Type, piece
from lanewise.dynamic.waits import Facts, later, parts


@dataclass(frozen=True, eq=False)
class Kind:
    """A piece as the slice records it: `shared` are operands of the program; of its row operands the first are
    `rows`, the others `payload`."""

    number: int
    piece: Piece
    shared: tuple[int, ...]
    rows: tuple[Var, ...]
    payload: tuple[Var, ...]
    line: str
    adds: bool = False  # two rows, and nothing else

    @functools.cached_property
    def zeros(self) -> tuple[bool, ...]:
        """Which of its results are zeros in all calls."""
        if self.shared or self.rows or self.payload:
            return (False,) * len(self.piece.results)
        found = _jax.eval_jaxpr(self.piece.code, *(np.zeros((), np.int32) for _ in self.piece.rows))
        return tuple(not np.asarray(x).any() for x in found)


@dataclass
class Closure:
    """What some atoms need: equations in order, and the variables that these read from outside."""

    ops: list[Plain] = field(default_factory=list)
    rows: dict[Var, None] = field(default_factory=dict)
    payload: dict[Var, None] = field(default_factory=dict)
    shared: dict[int, None] = field(default_factory=dict)


# What writing a byte of a result, and reading it in the next level, costs in operations of products: 0.1 to 0.2 ns. (A
# loop of up to 48 turns, each of which puts 2 KB into an array of 100 KB: 64 lanes of width 256 take 21 ms by levels, 6
# as separate lanes.)
MOVED_BYTE = 20.0


def _gaining(code: _jax.Jaxpr, num_shared: int) -> float:
    """The operations of products with shared matrices, over the rows that one row has on its own.

    What a level saves is reading a shared matrix again for each row. A product of a row's own matrix with it (64 by 64
    at each phrase of an MV-RNN) has read it once for 64 rows already, and one without a shared operand is as many
    products in a level as there are rows. (An MV-RNN of width 64, 64 lanes: 28 ms forward and 130 training by levels,
    12 and 55 where lanes run separately.)
    """
    shared = set(code.invars[:num_shared])
    total = 0.0
    for eqn in code.eqns:
        flags = [isinstance(atom, Literal) or atom in shared for atom in eqn.invars]
        if all(flags) and not eqn.effects:
            shared.update(eqn.outvars)
        elif eqn.primitive.name != "dot_general":
            total += eqn_cost(eqn).products
        elif any(flags):
            side = flags.index(False)
            own = eqn.invars[side]
            contracted, batched = (axes[side] for axes in eqn.params["dimension_numbers"])
            taken = math.prod(own.aval.shape[axis] for axis in (*contracted, *batched))
            total += eqn_cost(eqn).products * taken / max(size_of(own), 1)
    return total


class Pieces:
    """The pieces met so far."""

    def __init__(self, control: Control, facts: Facts) -> None:
        self.control, self.facts = control, facts
        self.kinds: dict[tuple[Any, ...], Kind] = {}
        self.users = _users(control.table)
        self.only_added = only_added(control.table, control.rows, in_loops=False)
        self.folded = only_added(control.table, control.rows, in_loops=True)
        entry = control.table.functions[control.table.entry]
        self.operands = [_jax.new_var(v.aval) for v in entry.ins]
        self._codes = 0

    @property
    def products(self) -> float:
        """The most operations in products that gain by many rows that a piece has, less what active its results takes.

        A row of a level has results of its own, where a lane that runs separately updates an array in place.
        """

        def net(own: Piece) -> float:
            moved = sum(bytes_of(atom) for atom in own.code.outvars)
            return _gaining(own.code, len(own.shared)) - MOVED_BYTE * moved

        return max((net(kind.piece) for kind in self.kinds.values()), default=0.0)

    def closure(
        self, atoms: Iterable[Atom], rows: Mapping[Var, Any], pending: Mapping[Var, Plain]
    ) -> Closure:
        """What these atoms need, of what is pending."""
        found = Closure()
        seen: set[Plain] = set()

        def visit(atom: Atom) -> None:
            if isinstance(atom, Literal):
                return
            if atom in rows:
                found.rows[atom] = None
                return
            same = self.control.same.get(atom, VARIES)
            if same is not VARIES:
                if same.op is None:
                    found.shared[same.number] = None
                    return
                op = same.op
            elif self.control.read_from_slice(atom):
                found.payload[atom] = None
                return
            else:
                op = pending[atom]
            if op not in seen:
                seen.add(op)
                for each in op.eqn.invars:
                    visit(each)
                found.ops.append(op)

        for atom in atoms:
            visit(atom)
        return found

    def parts(self, atoms: Sequence[Atom], known: Known) -> list[list[Atom]]:
        """Atoms that are to be made, by the piece that gives them (`waits.py`).

        A part without matrix work on rows is part of one that waits longer, if there is one.
        """
        named = {name_of(a): a for a in atoms if not (isinstance(a, Var) and a in known.rows)}
        if len(named) < 2:
            return [[a] for a in named.values()]
        found = {n: self.closure([a], known.rows, known.pending) for n, a in named.items()}
        reads = {n: {known.rows[v].level for v in each.rows} for n, each in found.items()}
        first, *others = reads.values()
        if all(read == first for read in others):
            return [list(named.values())]
        self.facts.asked = True

        def worth(part: Sequence[Any]) -> bool:
            return any(self._on_rows(found[n]) for n in part)

        return [[named[n] for n in part] for part in parts(list(named), reads, worth)]

    def terms(self, atoms: Sequence[Atom], known: Known) -> list[Var] | None:
        """What is added to totals that come later, where all of these are such sums; else None (`sums.py`).

        Totals that are read after a loop have none: what is added to them is there.
        """
        leaves: dict[Var, None] = {}
        todo = list(atoms)
        while todo:
            atom = todo.pop()
            if not self.control.is_row(atom):
                return None
            if atom not in known.rows and self.totals(atom, known):
                todo += known.pending[atom].eqn.invars[::-1]  # type: ignore[index]
            else:
                leaves[atom] = None  # type: ignore[index]
        terms = [v for v in leaves if v not in known.rows]
        if not all(self.totals(a, known) for a in atoms):
            return None
        totals = [known.rows[v].level for v in leaves if v in known.rows]
        found = self.closure(terms, known.rows, known.pending)
        self.facts.asked = True
        reads = [known.rows[v].level for v in found.rows]
        apart = self.only_added.issuperset(atoms) and later(totals, reads)  # type: ignore[arg-type]
        return terms if apart or not terms else None

    def totals(self, atom: Atom, known: Known) -> bool:
        """Whether an atom is a total that waits for an addition."""
        return atom in self.folded and is_addition(known.pending.get(atom))  # type: ignore[arg-type]

    def addition(self, type_: Type) -> Kind:
        """The piece that adds two rows of a type."""
        key = "sum", type_
        if key not in self.kinds:
            row = jax.ShapeDtypeStruct(type_.shape, type_.dtype)
            added = piece(jnp.add, rows=[row, row], name="sum")
            rows = tuple(added.code.invars)
            self.kinds[key] = Kind(len(self.kinds), added, (), rows, (), "", adds=True)
        return self.kinds[key]

    def _on_rows(self, found: Closure) -> bool:
        """Whether there is matrix work that reads rows."""
        waits: set[Any] = set(found.rows)
        for op in found.ops:
            if any(v in waits for v in variables(op.eqn.invars)):
                if is_expensive(op.eqn):
                    return True
                waits.update(op.outs)
        return False

    def hoisted(
        self,
        atoms: Sequence[Atom],
        found: Closure,
    ) -> list[Var]:
        """Results of matrix work on payload, which the rest of a closure reads beside rows."""
        if not found.rows:
            return []
        waits: set[Any] = set(found.rows)
        heavy: set[Any] = set()
        for op in found.ops:
            inputs = variables(op.eqn.invars)
            if any(v in waits for v in inputs):
                waits.update(op.outs)
            elif self._varies(op) and (is_expensive(op.eqn) or any(v in heavy for v in inputs)):
                heavy.update(op.outs)
        read = [v for op in found.ops if op.outs[0] in waits for v in variables(op.eqn.invars)]
        return list(dict.fromkeys(v for v in [*read, *variables(atoms)] if v in heavy))

    def escaping(self, atoms: Sequence[Atom], found: Closure) -> list[Var]:
        """Results of matrix work in a closure that other code reads."""
        inside = set(found.ops)
        heavy: set[Any] = set()
        more = []
        for op in found.ops:
            if not self._varies(op):
                continue
            if is_expensive(op.eqn) or any(v in heavy for v in variables(op.eqn.invars)):
                heavy.update(op.outs)
                for v in op.outs:
                    users = [u for u in self.users.get(v, ()) if u not in inside and self._needs(u)]
                    if users and v in self.control.rows and v not in atoms:
                        more.append(v)
        return more

    def _needs(self, user: Op | None) -> bool:
        """Whether values come of what reads a variable."""
        return not isinstance(user, Plain) or any(v in self.control.rows for v in user.outs)

    def _varies(self, op: Plain) -> bool:
        return not self.control.is_same(op.outs[0])

    def kind(self, atoms: Sequence[Atom], found: Closure) -> Kind:
        """The piece that gives these atoms."""
        rows, payload = tuple(found.rows), tuple(found.payload)
        key = (tuple(found.ops), tuple(map(name_of, atoms)), rows, payload)
        if key not in self.kinds:
            self.kinds[key] = self._made(len(self.kinds), atoms, found)
        return self.kinds[key]

    def _made(self, number: int, atoms: Sequence[Atom], found: Closure) -> Kind:
        shared = tuple(found.shared)
        rows, payload = tuple(found.rows), tuple(found.payload)

        def named(atom: Atom) -> Atom:
            same = VARIES if isinstance(atom, Literal) else self.control.same.get(atom, VARIES)
            if same is VARIES:
                return atom
            return self.operands[same.number] if same.op is None else same.op.outs[same.number]

        eqns = [op.eqn.replace(invars=[named(a) for a in op.eqn.invars]) for op in found.ops]
        given = [self.operands[i] for i in shared]
        # A call without any operand has a number that nothing reads.
        extra = [] if rows or payload else [_jax.new_var(_jax.shaped((), np.dtype(np.int32)))]
        invars = [*given, *rows, *payload, *extra]
        code = _jax.new_jaxpr(invars, [named(a) for a in atoms], eqns)
        code = with_programs(joined(code, len(given)))
        line = next((_jax.user_line(op.eqn) for op in reversed(found.ops)), "")
        piece = Piece(
            f"piece {number}",
            code,
            tuple(type_of(v) for v in given),
            tuple(type_of(v) for v in invars[len(given) :]),
            tuple(type_of(a) for a in atoms),
        )
        return Kind(number, piece, shared, rows, payload, line)


def name_of(atom: Atom) -> Any:
    return (id(atom),) if isinstance(atom, Literal) else atom


def type_of(atom: Atom) -> Type:
    return Type(tuple(atom.aval.shape), np.dtype(atom.aval.dtype))


def _users(table: Table) -> dict[Var, list[Op | None]]:
    """What reads each variable; None for code that gives it."""
    found: dict[Var, list[Op | None]] = {}
    for code in table.functions.values():
        for var in variables(code.outs):
            found.setdefault(var, []).append(None)
        for op in ops_in(code):
            for var in reads(op):
                found.setdefault(var, []).append(op)
            for inner in codes_in(op):
                for var in variables(inner.outs):
                    found.setdefault(var, []).append(None)
    return found


# -- products of one operand -----------------------------------------------------------------------------


def joined(code: _jax.Jaxpr, shared: int) -> _jax.Jaxpr:
    """The same code, with products of one row with several matrices that are shared as one product.

    >>> import jax
    >>> like = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((3, 4), (3, 2), (3,))]
    >>> code = _jax.trace(lambda a, b, x: [x @ a, x @ b], like).jaxpr
    >>> [eqn.primitive.name for eqn in joined(code, 2).eqns]
    ['concatenate', 'dot_general', 'slice', 'slice']
    """
    same = set(code.invars[:shared])
    for eqn in code.eqns:
        if all(isinstance(a, Literal) or a in same for a in eqn.invars):
            same.update(eqn.outvars)
    groups: dict[Any, list[JaxprEqn]] = {}
    for eqn in code.eqns:
        key = _product_key(eqn, same)
        if key is not None:
            groups.setdefault(key, []).append(eqn)
    groups = {key: eqns for key, eqns in groups.items() if len(eqns) > 1}
    if not groups:
        return code
    leaders = {eqns[0]: eqns for eqns in groups.values()}
    others = {eqn for eqns in groups.values() for eqn in eqns[1:]}
    # The first product waits for all matrices, which may be made later: what is the same for all rows comes first.
    in_order = sorted(code.eqns, key=lambda e: not same.issuperset(variables(e.invars)))

    def run(*values: Any) -> list[Any]:
        env = _jax.Environment(code.invars, values)
        for eqn in in_order:
            if eqn in others:
                continue
            if eqn in leaders:
                found = _one_product(leaders[eqn], env, same)
                env.bind(found, found.values())
            else:
                env.bind(eqn.outvars, _jax.run_eqn(eqn, env.read(eqn.invars)))
        return env.read(code.outvars)

    traced = _jax.trace(run, [v.aval for v in code.invars])
    return code if traced.captures else traced.jaxpr


def _matrix_side(eqn: JaxprEqn, same: set[Any]) -> int | None:
    """Which operand of a product of a shared matrix and a vector of the row is the matrix."""
    if eqn.primitive.name != "dot_general" or any(isinstance(a, Literal) for a in eqn.invars):
        return None
    (_, batch) = eqn.params["dimension_numbers"]
    sides = [a in same for a in eqn.invars]
    ranks = [len(a.aval.shape) for a in eqn.invars]
    if any(batch[0]) or sum(sides) != 1 or sorted(ranks) != [1, 2]:
        return None
    matrix = sides.index(True)
    return matrix if ranks[matrix] == 2 else None


def _product_key(eqn: JaxprEqn, same: set[Any]) -> Any:
    """What products that can be one have in common."""
    matrix = _matrix_side(eqn, same)
    if matrix is None:
        return None
    contracted = eqn.params["dimension_numbers"][0][matrix][0]
    rest = {k: v for k, v in eqn.params.items() if k != "dimension_numbers"}
    vector = eqn.invars[1 - matrix]
    dtypes = tuple(str(a.aval.dtype) for a in eqn.invars)
    return vector, int(contracted), matrix, dtypes, str(sorted(rest.items(), key=str))


def _one_product(
    eqns: Sequence[JaxprEqn], env: _jax.Environment[Any], same: set[Any]
) -> dict[Any, Any]:
    matrix = _matrix_side(eqns[0], same)
    assert matrix is not None
    contracted = eqns[0].params["dimension_numbers"][0][matrix][0]
    free = 1 - contracted
    whole = jnp.concatenate([env[eqn.invars[matrix]] for eqn in eqns], axis=free)
    operands = [whole, whole]
    operands[1 - matrix] = env[eqns[0].invars[1 - matrix]]
    (out,) = _jax.run_eqn(eqns[0], operands)
    found, start = {}, 0
    for eqn in eqns:
        size = eqn.outvars[0].aval.shape[0]
        found[eqn.outvars[0]] = lax.slice_in_dim(out, start, start + size)
        start += size
    return found
