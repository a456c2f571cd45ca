"""The writer: where rules put their code.

It holds the text written so far, the values of the variables of the code being written (one `Scope` for each jaxpr
that is being inlined), and where arrays are. Rules see `value`, `define`, `compute`, `store`, `put`, `editable`,
`assign`, and what writes lines.

Fusion: `compute` leaves an array unwritten if the one equation that reads it reads each element once; the expression
then becomes part of the reader's. Scalars always get a name of their own, which costs nothing and reads well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from lanewise import _jax
from lanewise._jax import Atom, ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Var
from lanewise.blocks.analysis import evaluate, value_of
from lanewise.blocks.equations import implementation
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.dtypes import Layout, OneThread
from lanewise.cpp.emit.rules import Unsupported, rule_for
from lanewise.cpp.emit.values import (
    Index,
    Mapped,
    Place,
    Reshaped,
    Scalar,
    Scope,
    Stored,
    Value,
    View,
    in_step,
    ravel,
    uses_of,
)

# Loops of at most this many iterations are unrolled, so that the arrays they index can live in registers; of those
# between, a host unrolls a few turns, CUDA's compiler what it thinks fit (with none of more than 4 turns asked for,
# HMC's kernel took 0.84 ms instead of 1.22). Longer ones it would unroll so far that it ran out of registers.
UNROLLED_WHOLE = 8
UNROLLED = 16
# Those of more iterations than this are many.
MANY = 48
# Operands of at most this many elements are brought to the lane when it takes its example.
NEAR = 64
# Loops inside unrolled loops are unrolled only if that makes at most this many copies in all.
MOST_UNROLLED = 256
# An expression of more operations than this is not fused any further.
FUSED = 24
# Constants of at most this many elements are written into the text; larger ones become operands.
INLINE_CONSTANT = 64


class Writer:
    """Writes the body of a kernel."""

    def __init__(self) -> None:
        self.layout = Layout()
        self.lines: list[str] = []
        self.depth = 0
        self.scopes: list[Scope] = []
        self.constants: list[np.ndarray] = []
        self.tables: list[str] = []
        self.sums, self.outer_sums = list[Stored](), set[int]()
        self.threads = OneThread()
        self.shared_bytes = 0
        # Functions (see `rules/control.py`) by what they are made of, and their texts.
        self.functions: dict[Any, Any] = {}
        self.texts: list[str] = []
        self.unrolling = 1
        self._next_name = 0
        self._known_constants: dict[int, tuple[Any, Value]] = {}

    # -- text ------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    @contextmanager
    def block(self, header: str = "", end: str = "}") -> Iterator[None]:
        """`header {`, what is written inside, `}`; temporaries of the inside are gone after it."""
        self.line(f"{header} {{" if header else "{")
        self.depth += 1
        with self.layout.scope():
            yield
        self.depth -= 1
        self.line(end)

    def fresh(self, prefix: str = "t") -> str:
        """A name that nothing else uses."""
        self._next_name += 1
        return f"{prefix}{self._next_name}"

    def unroll(self, turns: int) -> None:
        """Say how the loop that comes next is unrolled."""
        if turns <= UNROLLED:
            self.line("LW_UNROLL" if turns <= UNROLLED_WHOLE else "LW_UNROLL_SOME")
        elif turns > MANY:
            self.line("LW_UNROLL_FOUR")

    @contextmanager
    def loops(self, shape: Sequence[int]) -> Iterator[tuple[Index, ...]]:
        """One loop for each axis; gives the indices. Axes of one element need no loop."""
        turns = math.prod(shape)
        unrolled = turns <= UNROLLED and turns * self.unrolling <= MOST_UNROLLED
        indices: list[Index] = []
        opened = 0
        last = max((axis for axis, size in enumerate(shape) if size != 1), default=0)
        for axis, size in enumerate(shape):
            if size == 1:
                indices.append(0)
                continue
            index = self.fresh("i")
            indices.append(index)
            if unrolled:
                self.unroll(turns)
            elif axis == last:
                self.unroll(max(size, UNROLLED + 1))
            self.line(f"for (int {index} = 0; {index} < {size}; ++{index}) {{")
            self.depth += 1
            opened += 1
        before = self.unrolling
        self.unrolling *= turns if unrolled else 1
        yield tuple(indices)
        self.unrolling = before
        for _ in range(opened):
            self.depth -= 1
            self.line("}")

    @contextmanager
    def turns(self, header: str, number: int, *, short: bool) -> Iterator[None]:
        """A loop of a rule's own, of `number` turns; a `short` one is unrolled as far as loops around it leave room."""
        unrolled = short and number <= UNROLLED and number * self.unrolling <= MOST_UNROLLED
        if unrolled:
            self.unroll(number)
        before = self.unrolling
        self.unrolling *= number if unrolled else 1
        with self.block(header):
            yield
        self.unrolling = before

    # -- values ----------------------------------------------------------------------------------------

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    def value(self, atom: Atom) -> Value:
        """The value of a variable or literal."""
        if isinstance(atom, Literal):
            return self.constant(atom.val, atom.aval.dtype, atom.aval.shape)
        return self.scope.values[atom]

    def define(self, var: Var, value: Value) -> None:
        """Bind a variable to a value that needs no code of its own."""
        self.scope.values[var] = value

    def hand_on(self, var: Var, atom: Atom) -> None:
        """Bind an outvar to the very value of an operand, its memory included if nothing else wants it."""
        value = self.value(atom)
        if value.weight:
            self.compute(var, value)
            return
        self.define(var, value)
        if self.dies(atom):
            self.scope.owned.add(var)

    def let(self, expression: str, dtype: Any, prefix: str = "t") -> Scalar:
        """Name an expression: `const T t1 = expression;`."""
        name = self.fresh(prefix)
        self.line(f"const {dtypes.ctype(dtype)} {name} = {expression};")
        return Scalar((), dtype, name)

    def compute(self, var: Var, value: Value) -> None:
        """Bind a variable to a value that costs work to evaluate: named, fused into its one reader, or stored."""
        if isinstance(var, DropVar):
            return
        if isinstance(value, Scalar | Stored):
            self.define(var, value)
        elif not value.shape:
            self.define(var, self.let(value.at(()), value.dtype))
        elif value.weight <= FUSED and self.scope.uses.fuses(var):
            self.define(var, value)
        else:
            self.copy(self.store(var), value)

    def map(self, var: Var, function: Callable[..., str], *sources: Value) -> None:
        """`compute` of a function of the elements at the same place of `sources`."""
        self.compute(var, Mapped(tuple(var.aval.shape), var.aval.dtype, function, sources))

    def named(self, value: Value) -> Value:
        """The value with its elements computed once: stored, unless reading it costs nothing already."""
        return value if isinstance(value, Scalar | Stored) else self.copied(value)

    def copied(self, value: Value) -> Value:
        return self._filled(value) if value.shape else self.let(value.at(()), value.dtype)

    def _filled(self, value: Value) -> Scalar | Stored:
        """Memory that holds a value."""
        room = self.room(value.shape, value.dtype)
        self.copy(room, value)
        return room

    def run(
        self,
        jaxpr: Jaxpr | ClosedJaxpr,
        args: Sequence[Value],
        owned: Sequence[bool] = (),
        destinations: Sequence[Value | None] = (),
    ) -> list[Value]:
        """Write a jaxpr's code here; gives its results.

        `owned` says which arguments' memory it may write over, `destinations` where its results will be stored.
        """
        scope = Scope(uses_of(jaxpr.eqns, jaxpr.outvars))
        scope.values.update(zip(jaxpr.invars, args, strict=True))
        scope.owned |= {var for var, own in zip(jaxpr.invars, owned, strict=False) if own}
        for atom, room in zip(jaxpr.outvars, destinations, strict=False):
            if isinstance(atom, Var) and isinstance(room, Stored):
                scope.destinations[atom] = room
        self._code(scope, jaxpr, _jax.attached_consts(jaxpr))
        return [self._result(scope, atom) for atom in jaxpr.outvars]

    def inline(
        self,
        jaxpr: Jaxpr,
        operands: Sequence[Atom],
        outvars: Sequence[Var],
        consts: Sequence[Any] = (),
    ) -> None:
        """Write a jaxpr's code here, on operands of the equation being written; binds `outvars` to its results."""
        scope = Scope(uses_of(jaxpr.eqns, jaxpr.outvars))
        scope.values.update((v, self.value(a)) for v, a in zip(jaxpr.invars, operands, strict=True))
        scope.owned |= {v for v, a in zip(jaxpr.invars, operands, strict=True) if self.dies(a)}
        given = {v: self.known(a) for v, a in zip(jaxpr.invars, operands, strict=True)}
        scope.known.update((v, number) for v, number in given.items() if number is not None)
        # Under the names it has here, code inside knows what made its operands.
        scope.made_by.update(
            (v, self.scope.made_by[a])
            for v, a in zip(jaxpr.invars, operands, strict=True)
            if isinstance(a, Var) and a in self.scope.made_by
        )
        self._code(scope, jaxpr, consts)
        for var, atom in zip(outvars, jaxpr.outvars, strict=False):
            number = value_of(scope.known, atom)
            if number is not None:
                self.scope.known[var] = number
            value = self._result(scope, atom)
            (self.compute if value.weight else self.define)(var, value)
            if isinstance(atom, Var) and atom in scope.owned:
                self.scope.owned.add(var)

    def inline_traced(self, traced: _jax.Traced, eqn: JaxprEqn) -> None:
        """Write traced code in an equation's place; arrays it closes over become tables."""
        tables = traced.jaxpr.invars[: len(traced.captures)]
        for var, value in zip(tables, traced.captures, strict=True):
            self.define(var, self.constant(value, var.aval.dtype, var.aval.shape))
        self.inline(traced.jaxpr, [*tables, *eqn.invars], eqn.outvars)

    def _code(self, scope: Scope, jaxpr: Jaxpr, consts: Sequence[Any]) -> None:
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            scope.values[var] = self.constant(const, var.aval.dtype, var.aval.shape)
        self.scopes.append(scope)
        self.eqns(jaxpr.eqns)
        self.scopes.pop()

    def _result(self, scope: Scope, atom: Atom) -> Value:
        return self.value(atom) if isinstance(atom, Literal) else scope.values[atom]

    def eqns(self, eqns: Sequence[JaxprEqn]) -> None:
        """Write equations into the current scope."""
        self.scope.ahead = list(reversed(eqns))
        while self.scope.ahead:
            eqn = self.scope.ahead.pop()
            self.scope.uses.start(eqn)
            self.scope.current = eqn
            if not self._folds(eqn):
                self._write_in_turn(eqn)
            self.scope.made_by.update((var, eqn) for var in eqn.outvars)

    def known(self, atom: Atom) -> Any | None:
        """The number a scalar is known to be, or None."""
        return value_of(self.scope.known, atom)

    def _folds(self, eqn: JaxprEqn) -> bool:
        """Whether an equation's answer is known already."""
        if next(_jax.subjaxprs(eqn), None) is not None:
            return False
        known = self.scope.known = evaluate((eqn,), self.scope.known)
        if not eqn.outvars or not all(var in known for var in eqn.outvars):
            return False
        for var in eqn.outvars:
            self.define(var, self.constant(known[var], var.aval.dtype))
        return True

    def _write_in_turn(self, eqn: JaxprEqn) -> None:
        """Write an equation, so that no thread is ahead of what another of its lane has yet to read or write."""
        sizes = (math.prod(atom.aval.shape) for atom in (*eqn.invars, *eqn.outvars))
        shared = any(map(self.threads.shares, sizes))
        if shared:
            self.line("LW_MEET")
        self._write(eqn)
        if shared:
            self.line("LW_MEET")

    def _write(self, eqn: JaxprEqn) -> None:
        try:
            if (rule := rule_for(eqn)) is not None:
                rule(self, eqn)
            elif (traced := implementation(eqn)) is not None:
                self.inline_traced(traced, eqn)
            else:
                raise Unsupported("a kernel has no rule for it")
        except Unsupported as refusal:
            if refusal.operation:
                raise
            raise Unsupported(refusal.why, eqn.primitive.name, _jax.user_line(eqn)) from None

    def dies(self, atom: Atom) -> bool:
        """Whether the equation being written is the last reader of a variable, and its memory may be written over."""
        return (
            isinstance(atom, Var)
            and not self.scope.uses.remaining(atom)
            and atom in self.scope.owned
        )

    # -- memory ----------------------------------------------------------------------------------------

    def room(self, shape: Sequence[int], dtype: Any, prefix: str = "t") -> Scalar | Stored:
        """Declare memory for a value."""
        name = self.fresh(prefix)
        kind = dtypes.ctype(dtype)
        if not shape:
            self.line(f"{kind} {name};")
            return Scalar((), dtype, name, place=True)
        size = math.prod(shape)
        if self.threads.shares(size):
            self.shared_bytes += size * dtypes.SIZES[kind]
            self.line(f"LW_SHARED {kind} {name}[{size}];")
            return Stored(tuple(shape), dtype, name)
        self.line(self.layout.declare(kind, name, size))
        return Stored(tuple(shape), dtype, name, strided=self.layout.strides(kind, size))

    def local(self, dtype: Any, size: int) -> str:
        """Scratch memory of `size` elements; gives its name, to be indexed with `name[i]`."""
        room = self.room((size,), dtype, "s")
        assert isinstance(room, Stored)
        return room.name

    def store(self, var: Var) -> Scalar | Stored:
        """Declare memory for an outvar and bind it; its elements are then written with `put`."""
        room = self.scope.destinations.get(var)
        if room is None or not self._unwatched(room):
            room = self.room(var.aval.shape, var.aval.dtype)
        self.give(var, room)
        return room

    def put(self, room: Place, indices: Sequence[Index], expression: str) -> None:
        """Write one element."""
        self.line(f"{room.at(indices)} = {expression};")

    def put_flat(self, room: Place, index: Index, expression: str) -> None:
        """Write the element at a row-major position."""
        self.line(f"{room.flat(index)} = {expression};")

    def copy(self, room: Place, value: Value) -> None:
        """Write all elements of a value of the same shape."""
        if room == value or value.unwritten:
            return
        if self.threads.shares(room.size):
            self.copy_all([(room, value)])
        elif value.linear:
            with self.loops((room.size,) if room.shape else ()) as index:
                self.put_flat(room, index[0] if index else 0, value.flat(index[0] if index else 0))
        else:
            # By the axes of what is read: those of the room would need divisions.
            read = value.source if isinstance(value, Reshaped) else value
            with self.loops(read.shape) as indices:
                self.put_flat(room, ravel(read.shape, indices), read.at(indices))

    def copy_all(self, pairs: Sequence[tuple[Place, Value]]) -> None:
        """Write several values, none of which reads what another goes to."""
        long: dict[int, list[tuple[Place, Value]]] = {}
        for room, value in pairs:
            written = room != value and not value.unwritten
            if written and self.threads.shares(room.size):
                long.setdefault(room.size, []).append((room, value))
            else:
                self.copy(room, value)
        for size, alike in long.items():
            # In one loop: a thread waits for memory once, not once for each.
            self.line("LW_MEET")
            index = self.fresh("i")
            first, step = self.threads.part
            with self.block(f"for (int {index} = {first}; {index} < {size}; {index} += {step})"):
                read = [self.let(value.flat(index), value.dtype).text for _, value in alike]
                for (room, _), text in zip(alike, read, strict=True):
                    self.put_flat(room, index, text)
            self.line("LW_MEET")

    def assign(self, pairs: Sequence[tuple[Place, Value]]) -> None:
        """Store all values at once: each reads what was there before, and no store spoils what another still reads.

        Where no order does that (a swap), or a value reads the place it goes to out of step, a copy is made first.
        """
        pending = [
            (place, value if in_step(value, place) else self.copied(value))
            for place, value in pairs
            if place != value
        ]
        while pending:
            free = [
                not any(place.roots & other.roots for j, (_, other) in enumerate(pending) if j != i)
                for i, (place, _) in enumerate(pending)
            ]
            if any(free):
                self.copy_all([pair for pair, now in zip(pending, free, strict=True) if now])
                pending = [pair for pair, now in zip(pending, free, strict=True) if not now]
            else:
                place, value = pending[0]
                pending[0] = (place, self.copied(value))

    def editable(self, atom: Atom) -> Scalar | Stored:
        """Memory that holds the value of `atom` and may be written over: its own if nothing else needs that, or a copy.

        For indexed updates: `room = w.editable(operand)`, `put` the elements that change, `w.give(outvar, room)`.
        """
        value = self.value(atom)
        if isinstance(value, Stored) and self.dies(atom) and self._unwatched(value, atom):
            return value
        return self._filled(value)

    def settle(self, atom: Atom) -> None:
        """Store what only this equation reads, of other memory: a loop that carries that too need not copy it then."""
        if not isinstance(atom, Var) or self.scope.uses.remaining(atom):
            return
        value = self.value(atom)
        if value.shape and value.roots and not isinstance(value, Stored):
            self.give(atom, self._filled(value))

    def give(self, var: Var, room: Scalar | Stored) -> None:
        """Bind an outvar to memory that is its own from here on."""
        self.define(var, room)
        self.scope.owned.add(var)

    def _unwatched(self, room: Stored, owner: Atom | None = None) -> bool:
        """Whether no value that is still wanted reads this memory, `owner` of the equation being written apart."""
        current = self.scope.current
        operands = list(current.invars) if current is not None else []
        if owner is not None:
            operands.remove(owner)
        wanted = [self.value(atom) for atom in operands if isinstance(atom, Var)]
        wanted += [
            value
            for scope in self.scopes
            for var, value in scope.values.items()
            if scope.uses.remaining(var)
        ]
        return not room.constant and not any(room.name in value.roots for value in wanted)

    # -- constants -------------------------------------------------------------------------------------

    def constant(self, value: Any, dtype: Any, shape: Sequence[int] | None = None) -> Value:
        """A number or array known while the kernel is written."""
        if _jax.is_extended(dtype):
            raise Unsupported("a random key that is a constant of the code")
        array = np.asarray(value, dtype)
        if shape is not None and array.shape != tuple(shape):
            array = np.broadcast_to(array, shape)
        if not array.shape:
            return Scalar((), dtype, dtypes.literal(array[()], dtype))
        if array.size and (array == array.flat[0]).all() and array.dtype.kind in "biu":
            text = dtypes.literal(array.flat[0], dtype)
            return View(array.shape, dtype, lambda indices: text)
        known = self._known_constants.get(id(value))
        if known is None:
            # The value is kept beside its name: while it is here, nothing else gets its id.
            known = self._known_constants[id(value)] = (value, self._table(array))
        return known[1]

    def _table(self, array: np.ndarray) -> Value:
        kind = dtypes.ctype(array.dtype)
        # CUDA initializes its tables while compiling, which only plain finite numbers allow.
        plain = kind not in ("float16", "bfloat16", "complex64") and np.isfinite(array).all()
        if array.size > INLINE_CONSTANT or not plain:
            self.constants.append(array)
            name = f"constant{len(self.constants) - 1}"
        else:
            name = self.fresh("table")
            elements = ", ".join(dtypes.literal(x, array.dtype) for x in array.ravel())
            self.tables.append(f"LW_TABLE {kind} {name}[{max(array.size, 1)}] = {{{elements}}};")
        return Stored(array.shape, array.dtype, name, constant=True)
