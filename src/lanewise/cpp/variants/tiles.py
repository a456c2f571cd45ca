"""Tiles: a thread of the host runs several lanes in step, so that a CPU's vector instructions do the work.

A program that is one loop of scalar arithmetic gives a core little to do at once: each operation waits for the one
before. Here every variable is an array with a *slot* for each lane of the tile, and the loop's block is a `for` over
the slots, which compilers turn into vector code. A slot whose lane leaves the loop gets the next example at once, so
slots stay full; the code before and after the loop runs for that slot alone. Slots without an example run along on
what they hold: the block has no effects, so nothing comes of it.

Each slot's operations are those of the scalar kernel, in the same order, so its answers are the same bits.

What does not fit: loops of several blocks, arrays of a lane's own, and operations that have no vector instruction
(calls of the C library, integer division by what is not a constant).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from lanewise._jax import Atom, JaxprEqn, Var
from lanewise.blocks.analysis import Known, evaluate, value_of
from lanewise.blocks.equations import inside
from lanewise.blocks.form import Block, Branch, successors
from lanewise.blocks.link import Linked
from lanewise.core.primitives.facts import Vector, facts_of
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.bodies import Bodies
from lanewise.cpp.emit.emit import Emitter
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.emit.structure import HALT, Node
from lanewise.cpp.emit.values import Scalar

# The lanes of a tile: one to four vectors of 32-bit numbers.
TILE = 16
_VECTOR_TYPES = ("bool", "int32", "uint32", "float32", "int64", "uint64", "float64", "key2")


@dataclass(frozen=True)
class _Loop:
    """The one loop of a program: its block, at which pc, and the way of its branch that leaves it for pc `after`."""

    block: Block
    pc: Node
    after: Node
    way: int


def might_be_tiled(linked: Linked) -> bool:
    """Whether a program is one loop of scalars once its branches are selects, by a look at it with branches."""
    loops = {
        linked.pc_of[target]
        for pc, item in enumerate(linked.order)
        if isinstance(item, Block)
        for target in successors(item)
        if linked.pc_of[target] <= pc
    }
    return not linked.has_calls and len(loops) == 1 and all(map(_fits, linked.storage.registers))


def tiled(linked: Linked, varying: Sequence[bool]) -> Emitted | None:
    """The kernel of a program in tiles, for the host; None if it does not fit."""
    loop = _the_loop(linked)
    if loop is None or not all(map(_fits, linked.storage.registers)):
        return None
    if not _vectorizes(loop.block.eqns, {}):
        return None
    bodies = _TileBodies(linked, tuple(varying), max_steps=None, counting=False)
    return _Tiles(bodies, loop).kernel()


def _the_loop(linked: Linked) -> _Loop | None:
    if not linked.one_loop:
        return None
    for pc, item in enumerate(linked.order):
        if isinstance(item, Block) and isinstance(item.terminator, Branch):
            targets = [linked.pc_of[target] for target in item.terminator.targets]
            if pc in targets and len(targets) == 2:
                way = 1 - targets.index(pc)
                return _Loop(item, pc, targets[way], way)
    return None


def _fits(atom: Atom) -> bool:
    dtype = atom.aval.dtype
    return atom.aval.shape == () and dtypes.held(dtype) and dtypes.ctype(dtype) in _VECTOR_TYPES


def _vectorizes(eqns: Iterable[JaxprEqn], known: Known) -> bool:
    """Whether a compiler has vector instructions for all that the equations do."""
    known = evaluate(eqns, known)
    return all(_has_instruction(eqn, known) for eqn in eqns)


def _has_instruction(eqn: JaxprEqn, known: Known) -> bool:
    if not all(map(_fits, (*eqn.invars, *eqn.outvars))):
        return False
    called = inside(eqn)
    if called is None:
        return _has_vector_form(eqn, known)
    given = zip(called.jaxpr.invars, called.operands, strict=True)
    values = {var: value_of(known, atom) for var, atom in given}
    found = {var: value for var, value in values.items() if value is not None}
    return not called.consts and _vectorizes(called.jaxpr.eqns, found)


def _has_vector_form(eqn: JaxprEqn, known: Known) -> bool:
    match facts_of(eqn).vector:
        case Vector.FLOAT32:
            return all(atom.aval.dtype == "float32" for atom in eqn.invars)
        case Vector.QUOTIENT if dtypes.is_float(eqn.outvars[0].aval.dtype):
            return True
        case Vector.REMAINDER if dtypes.is_float(eqn.outvars[0].aval.dtype):
            return False
        case Vector.QUOTIENT | Vector.REMAINDER:
            # By a constant it is a product and a shift.
            return value_of(known, eqn.invars[1]) not in (None, 0, -1)
        case found:
            return found is Vector.ALL


class _TileBodies(Bodies):
    """What a tile holds: an array with a slot for each lane in place of a variable."""

    def room(self, shape: Sequence[int], dtype: Any) -> Scalar:
        name = self.writer.fresh("v")
        # Slots that never get an example run along too.
        self.writer.line(f"{dtypes.ctype(dtype)} {name}[{TILE}] = {{}};")
        return Scalar((), dtype, f"{name}[slot]", place=True)


class _Tiles(Emitter):
    """Writes turns of the tile, between which the slots that left the program's loop are served."""

    # There is no vector instruction for a call.
    calls = False

    def __init__(self, bodies: Bodies, loop: _Loop) -> None:
        self.loop = loop
        super().__init__(bodies)

    def edges(self) -> dict[Node, list[Node]]:
        """The program but for its loop, which is written apart: a lane that comes there waits for the next turn."""
        return {**super().edges(), self.loop.pc: [HALT]}

    def heads(self) -> list[Node]:
        return list(dict.fromkeys((*super().heads(), self.loop.after, self.loop.pc)))

    def lanes(self, results: Sequence[Var]) -> None:
        w = self.writer
        self.bodies.declare()
        w.line(f"long long of[{TILE}];")
        w.line(f"int32 busy[{TILE}], ended[{TILE}], any = 1, slots = {TILE};")
        with self._slots():
            w.line("of[slot] = -1;")
            w.line("busy[slot] = ended[slot] = 1;")
        with w.block("for (;;)"):
            with self._slots():
                w.line("if (!ended[slot]) continue;")
                self._serve(results)
            w.line("if (!slots) return;")
            with w.block("for (any = 0; !any;)"):
                w.line('_Pragma("omp simd reduction(|: any)")')
                self._turn()

    def _turn(self) -> None:
        """The loop's block for all slots."""
        w = self.writer
        with self._slots():
            index = self.bodies.write(self.loop.pc)
            test = index if self.loop.way else f"!{index}"
            w.line(f"ended[slot] = {test} ? busy[slot] : 0;")
            w.line("any |= ended[slot];")

    def _slots(self) -> AbstractContextManager[None]:
        return self.writer.block(f"for (int slot = 0; slot < {TILE}; ++slot)")

    def _serve(self, results: Sequence[Var]) -> None:
        """A slot's lane goes on after the loop, and the next examples' up to it."""
        w = self.writer
        w.line("long long example = of[slot];")
        w.line(f"int32 pc = example < 0 ? -1 : {self.loop.after};")
        with w.block(f"while (pc != {self.loop.pc})"):
            with w.block("if (pc < 0)"):
                w.line("example = of[slot] = LW_NEXT(next);")
                with w.block("if (example >= examples)"):
                    w.line("busy[slot] = ended[slot] = 0;")
                    w.line("slots -= 1;")
                    w.line("break;")
                self.bodies.load()
                w.line(f"pc = {self.entry()};")
                w.line("continue;")
            self.cases([head for head in self.structure.heads if head != self.loop.pc])
            w.line("finished: ;")
            self.bodies.answers(results)
            w.line("pc = -1;")
            w.line("dispatch: ;")
