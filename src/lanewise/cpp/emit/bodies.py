"""What a lane holds, and the code of each block.

Every variable that is read by another block than the one that writes it has a *place*: a C++ variable, an array, or,
if nothing writes it, the operand itself. A block runs its equations, then stores what other blocks read.

A recursion's kernel is one loop around a `switch`, and CUDA's compiler cannot know which of its cases run most. With
more arrays than registers it spills those of the hot cases as well as the others. We know more: what calls a recursion
runs rarely compared to it. So the arrays that only code outside of recursions touches are kept in memory, where they
are rarely touched. (NUTS on a funnel of ten dimensions, 16,384 chains on an H200: 250 million gradients a second
instead of 164; of two dimensions, where all fits: 1.80 billion instead of 1.93.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from lanewise._jax import Atom, Literal, Var
from lanewise.blocks.analysis import constant_variables, shared_by_frames, writes_in_order
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    Branch,
    Call,
    Fail,
    Return,
    TailCall,
    reads,
    terminator_atoms,
)
from lanewise.blocks.link import Linked, ReturnPoint
from lanewise.core.errors import Outcome
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.values import Part, Place, Scalar, Scope, Stored, Value, uses_of
from lanewise.cpp.emit.writer import NEAR, UNROLLED, Writer

# The registers of a GPU's thread, of four bytes.
REGISTERS = 255


class Bodies:
    """Writes declarations, and the code of one block after the other."""

    def __init__(
        self,
        linked: Linked,
        varying: Sequence[bool],
        max_steps: int | None,
        counting: bool,
    ) -> None:
        self.linked = linked
        self.varying = varying
        self.writer = Writer()
        self.writer.sums = [
            Stored(tuple(aval.shape), aval.dtype, f"sum{i}")
            for i, aval in enumerate(linked.program.sums)
        ]
        self.max_steps = max_steps
        blocks = [item for item in linked.order if isinstance(item, Block)]
        self.counts = counting or max_steps is not None
        self.deepens = counting and linked.has_calls
        self.fails = (
            max_steps is not None
            or linked.has_calls
            or any(isinstance(block.terminator, Fail) for block in blocks)
        )
        self.places: dict[Var, Place] = {}
        # What is filled for each example: places, or the names of pointers.
        self.loads: list[tuple[Any, Any]] = []
        # Larger arrays that are answers, and the name of the output that they are in on a host.
        self.in_outputs: dict[Var, str] = {}
        self.stacks: dict[Var, str] = {}
        self.read_by_frames = shared_by_frames(linked.program, linked.storage)
        self.frame_bytes = 0
        # Variables that have scratch memory of their own, by its name: two of one size may exchange theirs.
        self.movable: dict[str, Var] = {}

    # -- declarations ----------------------------------------------------------------------------------

    def declare_stacks(self) -> None:
        """Stacks come after the fixed part of the scratch memory, whose size is known when all is written."""
        if not self.linked.has_calls:
            return
        w = self.writer
        w.line("char* stacks = scratch + LW_FIXED_BYTES * lanes;")
        wanted = [("int32", "returns", 1)]
        for i, var in enumerate(self.linked.storage.stacks):
            self.stacks[var] = f"stack{i}"
            kind, size = dtypes.ctype(var.aval.dtype), math.prod(var.aval.shape)
            wanted.append((kind, self.stacks[var], size))
        # The widest elements first: then all are aligned, whatever the capacity.
        for kind, name, size in sorted(wanted, key=lambda stack: -dtypes.SIZES[stack[0]]):
            start = f"stacks + {self.frame_bytes}ll * capacity * lanes"
            w.line(f"const lw_strided<{kind}> {name}({start}, lane, lanes);")
            self.frame_bytes += size * dtypes.SIZES[kind]

    def declare(self) -> None:
        """Declare what a lane holds; what is the same for all examples is filled here."""
        w, program = self.writer, self.linked.program
        w.line(f"int32 {', '.join(self._counters(('outcome', 'place', 'depth', 'most')))};")
        if self.counts:
            w.line("int64 count;")
        untouched, seldom = constant_variables(program), seldom_touched(self.linked)
        given: dict[Var, Value] = {}
        for i, (var, varies) in enumerate(zip(program.inputs, self.varying, strict=True)):
            given[var] = self._operand(f"in{i}", var, varies)
        for var, value in program.constants:
            given[var] = w.constant(value, var.aval.dtype, var.aval.shape)
        for var in self.linked.storage.registers:
            source = given.get(var)
            if source is not None and var in untouched:
                self.in_outputs.pop(var, None)
                self.places[var] = self._read_in_place(source, near=var not in seldom)
                continue
            room = self.places[var] = self._own_room(var)
            if isinstance(room, Stored) and not room.strided and var in seldom:
                w.line(f"LW_IN_MEMORY({room.name})")
            if source is not None:
                self.loads.append((room, source))

    def room(self, shape: Sequence[int], dtype: Any) -> Scalar | Stored:
        """Declare what a lane holds of a variable."""
        return self.writer.room(shape, dtype, "v")

    def answer_in_place(self, results: Sequence[Var]) -> None:
        """Keep larger arrays that are answers in their outputs on a host."""
        for i, var in enumerate(results):
            kind, size = dtypes.ctype(var.aval.dtype), math.prod(var.aval.shape)
            if var in self.linked.storage.registers and self.writer.layout.strides(kind, size):
                self.in_outputs.setdefault(var, f"out{i}")

    def lose(self) -> None:
        """End the lane at a place that it never reaches, if everything is right."""
        self.writer.line(f"outcome = {int(Outcome.LOST)};")

    def _own_room(self, var: Var) -> Scalar | Stored:
        """What a lane holds of a variable: where that is an answer, on a host the answer's own memory."""
        shape, dtype = tuple(var.aval.shape), var.aval.dtype
        w, size, kind = self.writer, math.prod(shape), dtypes.ctype(dtype)
        if not w.threads.own_arrays or not w.layout.strides(kind, size):
            return self.room(shape, dtype)
        name = w.fresh("v")
        w.line(w.layout.declare(kind, name, size).removeprefix("const "))
        if var not in self.in_outputs:
            self.movable[name] = var
            return Stored(shape, dtype, name, strided=True)
        answer = f"{self.in_outputs[var]} + example * {size}ll"
        self.loads.append((f"{name}.first", f"LW_PLATFORM({name}.first, {answer})"))
        return Stored(shape, dtype, name, strided=True)

    def load(self) -> None:
        """Fill what a lane holds when it takes an example."""
        w = self.writer
        for name in self._counters(("outcome", "depth", "most", "count")):
            w.line(f"{name} = 0;")
        w.line("place = -1;")
        for room, source in self.loads:
            if isinstance(room, str):
                w.line(f"{room} = {source};")
            else:
                w.copy(room, source)

    def _counters(self, names: Sequence[str]) -> list[str]:
        used = {"depth": self.linked.has_calls, "most": self.deepens, "count": self.counts}
        return [name for name in names if used.get(name, True)]

    def _operand(self, name: str, var: Var, varies: bool) -> Value:
        shape, dtype = tuple(var.aval.shape), var.aval.dtype
        if not shape:
            return Scalar((), dtype, f"{name}[{'example' if varies else '0'}]")
        size = math.prod(shape)
        where = f"({name} + example * {size})" if varies else name
        return Stored(shape, dtype, where, constant=True)

    def _read_in_place(self, source: Value, *, near: bool) -> Any:
        """A value that nothing writes: a name for it, or a small array nearer to the lane."""
        w = self.writer
        text = source.text if isinstance(source, Scalar) else getattr(source, "name", "")
        if "example" not in text:
            return w.let(text, source.dtype, "v") if "[0]" in text else source
        if near and source.size <= NEAR:
            room = self.room(source.shape, source.dtype)
            self.loads.append((room, source))
            # It is written once, when the example is taken: to the program's code it is a constant.
            if isinstance(room, Scalar):
                return Scalar((), room.dtype, room.text)
            return Stored(room.shape, room.dtype, room.name, constant=True)
        name = w.fresh("v")
        w.line(f"const {dtypes.ctype(source.dtype)}* {name};")
        self.loads.append((name, text))
        return Stored(source.shape, source.dtype, name, constant=True)

    def answers(self, results: Sequence[Var]) -> None:
        """Write an example's answers and outcome where they are wanted."""
        w = self.writer
        w.line("code[example] = outcome;")
        w.line("site[example] = place;")
        w.line(f"steps[example] = {'count' if self.counts else '0'};")
        w.line(f"deepest[example] = {'most' if self.deepens else '0'};")
        rooms = [
            _answer_slot(f"out{i}", var.aval.shape, var.aval.dtype) for i, var in enumerate(results)
        ]
        with w.block("if (outcome == 0)"):
            for i, (var, room) in enumerate(zip(results, rooms, strict=True)):
                # On a host it may be there already.
                there = self.in_outputs.get(var) == f"out{i}"
                with w.block("if (LW_PLATFORM(true, false))") if there else nullcontext():
                    w.copy(room, self.places[var])
        if self.fails:
            with w.block("else"):
                for room in rooms:
                    w.copy(room, _blank(room.dtype))

    # -- blocks ----------------------------------------------------------------------------------------

    def write(self, pc: int) -> str:
        """Write a node's code up to its branch; gives the branch's index."""
        w, item = self.writer, self.linked.order[pc]
        w.line(f"// {pc}: {item.note}")
        if isinstance(item, ReturnPoint):
            self._pop(item)
            return ""
        self._guards(item)
        return self._block(item)

    def _guards(self, block: Block) -> None:
        w = self.writer
        if self.max_steps is not None and block.steps:
            with w.block(f"if (count + {block.steps} > {self.max_steps}ll)"):
                self._end(Outcome.STEPS_EXHAUSTED)
        if isinstance(block.terminator, Call) or block.frame:
            with w.block("if (depth >= capacity)"):
                self._end(Outcome.STACK_OVERFLOW)
        if self.deepens and block.frame:
            w.line("if (depth >= most) most = depth + 1;")
        if self.counts and block.steps:
            w.line(f"count += {block.steps};")

    def _end(self, outcome: Outcome, site: int = -1) -> None:
        self.writer.line(f"outcome = {int(outcome)};")
        if site != -1:
            self.writer.line(f"place = {site};")
        self.writer.line("goto finished;")

    def _block(self, block: Block) -> str:
        w = self.writer
        alive = self.linked.storage.live_out[block.label]
        assigned: dict[Var, Atom] = dict(block.assigns)
        kept = [
            var for var in dict.fromkeys(writes_in_order(block)) if var in alive and self.keeps(var)
        ]
        atoms = [assigned.get(var, var) for var in kept]
        given = terminator_atoms(block.terminator)
        scope = Scope(uses_of(block.eqns, [*atoms, *given]), dict(self.places))
        # A place may be written over if its old value is wanted neither after the block nor by another frame.
        over = {var for var in self.places if var not in alive or var in set(kept)}
        scope.owned |= over - self.read_by_frames
        for var, atom in zip(kept, atoms, strict=True):
            place = self.places[var]
            if isinstance(atom, Var) and isinstance(place, Stored) and not place.constant:
                scope.destinations[atom] = place
        w.scopes.append(scope)
        w.eqns(block.eqns)
        scope.current = None
        pairs = [(self.places[v], w.value(a)) for v, a in zip(kept, atoms, strict=True)]
        values = [w.value(atom) for atom in given]
        w.scopes.pop()
        stored = {name for place, _ in pairs for name in place.roots}
        values = [w.copied(value) if value.roots & stored else value for value in values]
        pushed = self._pushed_at_once(block, kept)
        slots = [self._slot(v) if v in pushed else self.places[v] for v in kept]
        free = {v for v in self.places if v not in alive and v not in kept} - self.read_by_frames
        self._assign([(to, x) for to, (_, x) in zip(slots, pairs, strict=True)], values, free)
        return self._leave(block, values, pushed, free)

    def _pushed_at_once(self, block: Block, kept: Sequence[Var]) -> frozenset[Var]:
        """Arrays that the block writes for after its call alone: they are written where the call would push them."""
        if not isinstance(block.terminator, Call):
            return frozenset()
        moves = self.linked.storage.calls[block.label]
        both = {*moves.push} & {*moves.pop} & {*kept}
        return frozenset(var for var in both if var.aval.shape)

    def _assign(
        self, pairs: Sequence[tuple[Place, Value]], values: Sequence[Value], free: set[Var]
    ) -> None:
        """Store values, of which some are those of `free` variables, whose memory nothing else needs.

        A large array is not copied then: on a host it and the one that was there exchange their memory. `values` are
        read afterwards.
        """
        w = self.writer
        read = [name for value in (*values, *(v for _, v in pairs)) for name in value.roots]
        moved = [
            isinstance(place, Stored)
            and isinstance(value, Stored)
            and place.name in self.movable
            and self.movable.get(value.name) in free
            and read.count(value.name) == 1
            and dtypes.ctype(place.dtype) == dtypes.ctype(value.dtype)
            for place, value in pairs
        ]
        w.assign([pair for pair, flag in zip(pairs, moved, strict=True) if not flag])
        for (place, value), flag in zip(pairs, moved, strict=True):
            if flag:
                assert isinstance(place, Stored) and isinstance(value, Stored)
                w.line("#ifdef __CUDACC__")
                w.copy(place, value)
                w.line("#else")
                w.line(f"{place.name}.exchange({value.name});")
                w.line("#endif")

    def _leave(
        self, block: Block, values: Sequence[Value], pushed: frozenset[Var], free: set[Var]
    ) -> str:
        w = self.writer
        match block.terminator:
            case Branch():
                index = block.terminator.index
                return str(int(index.val)) if isinstance(index, Literal) else values[0].at(())
            case Call(arguments=arguments):
                self._push(block, pushed)
                self._pass(arguments, values, free)
            case TailCall(arguments=arguments):
                self._pass(arguments, values, free)
            case Return() if self.linked.has_calls:
                w.line("if (depth == 0) goto finished;")
                w.line("depth -= 1;")
                w.line("pc = returns[depth];")
            case Fail(site, outcome):
                w.line(f"outcome = {int(outcome)};")
                w.line(f"place = {site};")
            case _:
                pass
        return ""

    def _pass(
        self,
        arguments: Sequence[tuple[Var, Atom]],
        values: Sequence[Value],
        free: set[Var],
    ) -> None:
        pairs = [
            (self.places[var], value)
            for (var, _), value in zip(arguments, values, strict=True)
            if self.keeps(var)
        ]
        self._assign(pairs, (), free.difference(var for var, _ in arguments))

    def keeps(self, var: Var) -> bool:
        """Whether a variable is written where blocks write it."""
        return var in self.places

    # -- frames ----------------------------------------------------------------------------------------

    def _slot(self, var: Var) -> Place:
        """A variable's slot of the frame at `depth`."""
        name, shape, dtype = self.stacks[var], tuple(var.aval.shape), var.aval.dtype
        if not shape:
            return Scalar((), dtype, f"{name}[depth]", place=True)
        return Part(shape, dtype, name, f"depth * {math.prod(shape)}ll")

    def _push(self, block: Block, pushed: frozenset[Var]) -> None:
        w = self.writer
        saved = [v for v in self.linked.storage.calls[block.label].push if v not in pushed]
        w.copy_all([(self._slot(var), self.places[var]) for var in saved])
        w.line(f"returns[depth] = {self.linked.return_pc[block.label]};")
        w.line("depth += 1;")
        if self.deepens:
            w.line("if (depth > most) most = depth;")

    def _pop(self, point: ReturnPoint) -> None:
        self.writer.copy_all([(self.places[var], self._slot(var)) for var in point.moves.pop])


def _answer_slot(name: str, shape: Sequence[int], dtype: Any) -> Scalar | Stored:
    """An example's place in an array of outputs."""
    if not shape:
        return Scalar((), dtype, f"{name}[example]", place=True)
    size = int(np.prod(shape, dtype=np.int64))
    return Stored(tuple(shape), dtype, f"({name} + example * {size})")


def _blank(dtype: Any) -> Scalar:
    """What a failed lane answers."""
    kind = dtypes.ctype(dtype)
    if kind == "key2":
        return Scalar((), dtype, "key2{{0u, 0u}}")
    inexact = dtypes.is_float(dtype) or dtypes.is_complex(dtype)
    value = complex(np.nan, 0.0) if dtypes.is_complex(dtype) else np.nan if inexact else 0
    return Scalar((), dtype, dtypes.literal(value, dtype))


# -- what a GPU keeps in memory ------------------------------------------------------------------------


def seldom_touched(linked: Linked) -> frozenset[Var]:
    """The arrays that only code outside of recursions touches; none where all has room in registers."""
    if not linked.has_calls or _words(linked) <= REGISTERS:
        return frozenset()
    recursive = _recursive(linked.program.functions)
    often = {block.label for name in recursive for block in linked.program.functions[name].blocks}
    touched: set[Var] = set()
    for item in linked.order:
        label = item.target if isinstance(item, ReturnPoint) else item.label
        if label in often:
            touched |= _touched(linked, item)
    return frozenset(
        var for var in linked.storage.registers if _can_be_registers(var) and var not in touched
    )


def _words(linked: Linked) -> int:
    """How many registers a lane's variables would take."""
    return sum(
        -(-dtypes.SIZES[dtypes.ctype(var.aval.dtype)] // 4) * var.aval.size
        for var in linked.storage.registers
        if not var.aval.shape or _can_be_registers(var)
    )


def _can_be_registers(var: Var) -> bool:
    """Whether it is an array all of whose indices may be known when it is compiled: loops over it are unrolled."""
    return bool(var.aval.shape) and 1 <= var.aval.size <= UNROLLED


def _recursive(functions: Mapping[str, BlockFunction]) -> set[str]:
    """The functions that may run inside of themselves."""
    calls = {name: _callees(function) for name, function in functions.items()}
    for middle in functions:
        for name in functions:
            if middle in calls[name]:
                calls[name] |= calls[middle]
    return {name for name in functions if name in calls[name]}


def _callees(function: BlockFunction) -> set[str]:
    ends = (block.terminator for block in function.blocks)
    return {end.callee for end in ends if isinstance(end, Call | TailCall)}


def _touched(linked: Linked, item: Block | ReturnPoint) -> set[Var]:
    if isinstance(item, ReturnPoint):
        return {*item.moves.pop}
    found = {*reads(item), *writes_in_order(item)}
    if isinstance(item.terminator, Call | TailCall):
        found |= {var for var, _ in item.terminator.arguments}
    if isinstance(item.terminator, Call):
        found |= {*linked.storage.calls[item.label].push}
    return found
