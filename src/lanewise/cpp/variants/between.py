"""The cheap blocks of a machine, as a kernel that works on its state.

Under the schedule `meet` (see `schedule.py`) lanes run together only where that pays, at expensive blocks, which XLA
runs for all lanes that are there. Between them each lane runs on its own, through calls, returns and branches, until it
comes to the next expensive block or ends: one kernel, which reads and writes the registers and stacks of the machine
where they are.

On a GPU the threads of a warp run a lane together where its code allows it: all of them go the same way, scalars are
computed by each, and long arrays, which are in memory that they share, are cut into parts. With a thread a lane, a
recursion over vectors of 100 elements took 1.26 ms from meeting to meeting of 16,384 lanes; together it takes 0.24.

A lane comes in with a pc, and goes out with one: that of the expensive block it waits at, that of a lane that has
ended, or `-1 - pc` of a call for which its stack has no room, as everywhere in the machine.

What it does not do: write values that all lanes share, which are there from the start (`machine/once.py`), and count
for `Stats` how often its blocks ran; no other lane waits for what a lane does on its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lanewise._jax import Var
from lanewise.blocks.equations import holds_while
from lanewise.blocks.form import Block, Branch, Call, Jump, TailCall, successors
from lanewise.blocks.link import Linked
from lanewise.core.errors import Outcome
from lanewise.cpp.emit.bodies import Bodies
from lanewise.cpp.emit.emit import Emitter
from lanewise.cpp.emit.emitted import Emitted, Operand, operand_of
from lanewise.cpp.emit.rules import Unsupported
from lanewise.cpp.emit.structure import HALT, Node
from lanewise.cpp.emit.values import Part, Place, Scalar, Stored
from lanewise.cpp.variants.together import threads_for

# The most memory that the threads of a lane may share for temporaries.
MOST_SHARED_BYTES = 40_000


def emit_between(
    linked: Linked, expensive: Sequence[int], *, max_steps: int | None, counting: bool
) -> Emitted:
    """Write the kernel of all blocks but the expensive ones; raises `Unsupported` where it cannot."""
    _refuse(linked, expensive)
    bodies = _OnState(linked, expensive, max_steps, counting)
    bodies.writer.threads = threads_for(linked, expensive)
    found = _Between(bodies).kernel()
    if bodies.writer.shared_bytes > MOST_SHARED_BYTES:
        found = _Between(_OnState(linked, expensive, max_steps, counting)).kernel()
    return found


def _refuse(linked: Linked, expensive: Sequence[int]) -> None:
    """Raise if the blocks beside the expensive ones cannot be a kernel on a machine's state."""
    if linked.waiting:
        raise Unsupported("a tape that may grow")
    if not writes_shared_between(linked, expensive):
        return
    for item in linked.order:
        for eqn in item.eqns if isinstance(item, Block) else ():
            once = any(var in linked.storage.uniform for var in eqn.outvars)
            if once and (eqn.effects or holds_while([eqn])):
                raise Unsupported("a loop between expensive blocks on values that all lanes share")


def writes_shared_between(linked: Linked, expensive: Sequence[int]) -> bool:
    """Whether blocks beside the expensive ones write values that all lanes share."""
    return any(
        isinstance(item, Block) and pc not in expensive and linked.writes_shared(item)
        for pc, item in enumerate(linked.order)
    )


class _OnState(Bodies):
    """What a lane holds is in the machine's arrays; its scalars are brought near, and written back at the end."""

    def __init__(
        self, linked: Linked, expensive: Sequence[int], max_steps: int | None, counting: bool
    ) -> None:
        super().__init__(linked, (), max_steps, counting)
        self.expensive = frozenset(expensive)
        self.arrays: list[Operand] = []
        # Scalars to be written back, with the name of their array.
        self.near: list[tuple[Scalar, str]] = []

    def array(self, var: Var) -> str:
        """The name of the array that the machine keeps a variable in."""
        self.arrays.append(operand_of(var.aval.shape, var.aval.dtype, True))
        return f"out{len(self.arrays) - 1}"

    def declare_stacks(self) -> None:
        """Nothing to declare before there is an example."""

    def declare(self) -> None:
        w, linked = self.writer, self.linked
        numbers = Operand((), np.dtype(np.int32), True, "int32")
        self.arrays = [numbers] * 4  # pc, depth, steps, returns
        w.line("int32 outcome = 0, place = -1, depth = out1[example], most = 0;")
        w.line(f"int32 stop = {linked.halt};")
        if self.counts:
            w.line("int64 count = out2[example];")
        for i, var in enumerate(linked.uniforms):
            shape, dtype = tuple(var.aval.shape), var.aval.dtype
            self.places[var] = (
                Stored(shape, dtype, f"in{i}", constant=True)
                if shape
                else w.let(f"in{i}[0]", dtype, "v")
            )
        for var in linked.registers:
            name, kind = self.array(var), self.arrays[-1].kind
            own = w.fresh("v")
            if var.aval.shape:
                w.line(
                    f"{kind}* __restrict__ const {own} = {name} + example * {math.prod(var.aval.shape)}ll;"
                )
                self.places[var] = Stored(tuple(var.aval.shape), var.aval.dtype, own)
                continue
            w.line(f"{kind} {own} = {name}[example];")
            place = self.places[var] = Scalar((), var.aval.dtype, own, place=True)
            self.near.append((place, name))
        if linked.has_calls:
            w.line("const lw_apart<int32> returns((char*)out3, example, examples);")
        for var in linked.storage.stacks:
            self.stacks[var] = self.array(var)

    def load(self) -> None:
        """All is where it was."""

    def keeps(self, var: Var) -> bool:
        return super().keeps(var) and var not in self.linked.storage.uniform

    def write_back(self) -> None:
        w = self.writer
        w.line("out0[example] = stop;")
        w.line("out1[example] = depth;")
        if self.counts:
            w.line("out2[example] = (int32)count;")
        for place, name in self.near:
            w.line(f"{name}[example] = {place.text};")
        w.line("code[example] = outcome;")
        w.line("site[example] = place;")
        w.line("deepest[example] = most;")

    def write(self, pc: int) -> str:
        if pc in self.expensive:
            self.writer.line(f"stop = {pc};")
            return ""
        return super().write(pc)

    def _guards(self, block: Block) -> None:
        w = self.writer
        if self.max_steps is not None and block.steps:
            with w.block(f"if (count + {block.steps} > {self.max_steps}ll)"):
                self._end(Outcome.STEPS_EXHAUSTED)
        if isinstance(block.terminator, Call):
            with w.block("if (depth >= capacity)"):
                w.line(f"stop = {-1 - self.linked.pc_of[block.label]};")
                w.line("goto finished;")
        if self.counts and block.steps:
            w.line(f"count += {block.steps};")

    def _slot(self, var: Var) -> Place:
        name, shape, dtype = self.stacks[var], tuple(var.aval.shape), var.aval.dtype
        frame = "(depth * examples + example)"
        if not shape:
            return Scalar((), dtype, f"{name}[{frame}]", place=True)
        return Part(shape, dtype, name, f"{frame} * {math.prod(shape)}ll")


class _Between(Emitter):
    """The kernel around those bodies. It runs for moments, in each tick: what it would take to meet costs more."""

    meets = False
    bodies: _OnState

    def edges(self) -> dict[Node, list[Node]]:
        return super().edges() | {pc: [HALT] for pc in self.bodies.expensive}

    def heads(self) -> list[Node]:
        """Where a lane may come in: after an expensive block or the entry, where calls lead or come back, at calls."""
        linked = self.linked
        heads = super().heads()
        for pc, item in enumerate(linked.order):
            if not isinstance(item, Block):
                continue
            after_xla = pc in self.bodies.expensive or pc == linked.entered_once
            if after_xla and isinstance(item.terminator, Jump | Branch):
                heads += [linked.pc_of[target] for target in successors(item)]
            if after_xla and isinstance(item.terminator, TailCall):
                heads.append(linked.pc_of[linked.program.functions[item.terminator.callee].entry])
            if isinstance(item.terminator, Call):
                heads.append(pc)
        return [head for head in dict.fromkeys(heads) if head not in self.bodies.expensive]

    def times(self) -> dict[Node, int]:
        return {pc: n for pc, n in super().times().items() if pc not in self.bodies.expensive}

    def elsewhere(self) -> None:
        """A call that XLA ran may come back to an expensive block, or, from a bare end, to none: XLA goes on there."""
        w = self.writer
        waits = "".join(f" || pc == {expensive}" for expensive in sorted(self.bodies.expensive))
        with w.block(f"if (pc == {self.linked.halt}{waits})"):
            w.line("stop = pc;")
            w.line("goto finished;")
        super().elsewhere()

    def kernel(self) -> Emitted:
        w, linked = self.writer, self.linked
        w.depth = 1
        w.line("const long long lane = LW_LANE, lanes = LW_LANES;")
        w.line("LW_LISTEN")
        first, after = w.threads.examples
        header = f"for (long long example = {first}; example < examples; example = {after})"
        waits = "".join(f" || pc == {expensive}" for expensive in sorted(self.bodies.expensive))
        with w.block(header):
            w.line("int32 pc = out0[example];")
            w.line("steps[example] = 0;")
            with w.block(f"if (pc < 0 || pc >= {linked.halt}{waits})"):
                w.line("deepest[example] = 0;")
                w.line("continue;")
            self.bodies.declare()
            with w.block("for (;;)"):
                w.line("LW_PAUSE")
                self.cases(self.structure.heads)
                w.line("dispatch: ;")
            w.line("finished: ;")
            self.bodies.write_back()
        shared = [operand_of(var.aval.shape, var.aval.dtype, False) for var in linked.uniforms]
        numbers = Operand((), np.dtype(np.int32), True, "int32")
        # Every array is given and taken: the same memory twice.
        given = [*shared, *self.bodies.arrays, numbers, numbers]
        constants = [operand_of(c.shape, c.dtype, False) for c in w.constants]
        text = self.text([*given, *constants], self.bodies.arrays, len(constants))
        outputs = tuple(self.bodies.arrays)
        return Emitted(
            text,
            (*given, *constants),
            outputs,
            tuple(w.constants),
            w.layout.most,
            0,
            w.threads.number,
        )
