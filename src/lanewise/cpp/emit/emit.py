"""The kernel's text.

One thread runs one lane at a time: it takes the next example, runs the program for it with real loops and branches, and
writes its answers; then the next, until none is left, so that no thread waits for another (refill inside the kernel).
The first examples are dealt by position, the others by a counter that all threads share.

Threads of a warp run in step: one whose example has ended would wait at the end of a loop until all others leave it. So
the outermost loops pause every few turns and go through the `switch` on the pc, where such a thread has taken its next
example and joins in (on the host, where threads do not run in step, they never pause).

Variables of blocks are C++ variables declared at the top of a lane's body; what the equations of a block define lives
inside the block. A block's stores happen all at once: `Bodies` orders them, and copies where two are in each other's
way. Recursion keeps a stack for each variable that needs one (see `blocks/analysis.py`) in the scratch memory.

A program can be carried if every equation has a rule that takes it, every value a dtype a kernel holds, and a lane's
state room in memory. Writing a kernel is quick compared to compiling it, so it is tried: what the rules refuse is
found by writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Var
from lanewise.blocks.equations import implementation, inside
from lanewise.blocks.form import Block, Branch, Call, Jump, Return, TailCall
from lanewise.blocks.link import Linked, ReturnPoint
from lanewise.core.options import Options
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.bodies import Bodies
from lanewise.cpp.emit.emitted import (
    Emitted,
    Obstacle,
    Operand,
    host_entry,
    operand_of,
    shared_ranges,
    size_obstacle,
)
from lanewise.cpp.emit.outline import outlined
from lanewise.cpp.emit.rules import beginning, needed
from lanewise.cpp.emit.rules.table import RULES, Unsupported
from lanewise.cpp.emit.structure import (
    DISPATCH,
    HALT,
    Code,
    Leave,
    Loop,
    Mark,
    Node,
    Run,
    leaves,
    structure,
    times_written,
)


def emit(
    linked: Linked,
    varying: Sequence[bool],
    *,
    max_steps: int | None = None,
    counting: bool = False,
) -> Emitted:
    """Write the kernel of a linked program. `counting`: keep the lanes' steps even without `max_steps`."""
    return Emitter(Bodies(linked, tuple(varying), max_steps, counting)).kernel()


class Emitter:
    """Writes a kernel around the bodies of its blocks. If it `calls`, what stands at several places is a function.

    If it `meets`, lanes of a host's thread meet at products with matrices that they share (`cpp/runtime/meeting.h`).
    """

    calls = True
    meets = True

    def __init__(self, bodies: Bodies) -> None:
        self.bodies = bodies
        self.linked, self.varying, self.writer = bodies.linked, bodies.varying, bodies.writer
        self.structure = structure(self.edges(), self.heads(), self._weight(), pausing=True)
        if self.calls:
            bodies.linked = self.linked = outlined(self.linked, self.times())

    # -- the graph -------------------------------------------------------------------------------------

    def edges(self) -> dict[Node, list[Node]]:
        pc_of, functions = self.linked.pc_of, self.linked.program.functions
        edges: dict[Node, list[Node]] = {}
        for pc, item in enumerate(self.linked.order):
            if isinstance(item, ReturnPoint):
                edges[pc] = [pc_of[item.target]]
                continue
            match item.terminator:
                case Jump(target):
                    edges[pc] = [pc_of[target]]
                case Branch(targets=targets):
                    edges[pc] = [pc_of[target] for target in targets]
                case Call(callee=callee) | TailCall(callee=callee):
                    edges[pc] = [pc_of[functions[callee].entry]]
                case Return():
                    edges[pc] = [DISPATCH if self.linked.has_calls else HALT]
                case _:
                    edges[pc] = [HALT]
        return edges

    def heads(self) -> list[Node]:
        """The entry, and where calls lead and come back."""
        linked = self.linked
        heads = [linked.pc_of[linked.program.entry_function.entry]]
        for item in linked.order:
            if isinstance(item, Block) and isinstance(item.terminator, Call):
                callee = linked.program.functions[item.terminator.callee]
                heads += [linked.pc_of[callee.entry], linked.return_pc[item.label]]
        return list(dict.fromkeys(heads))

    def times(self) -> dict[Node, int]:
        """How often each block's code is written."""
        return times_written(self.structure)

    def _weight(self) -> dict[Node, int]:
        """How long the code of each node is."""
        return {
            pc: 1 if isinstance(item, ReturnPoint) else len(item.eqns) + len(item.assigns)
            for pc, item in enumerate(self.linked.order)
        }

    # -- the text --------------------------------------------------------------------------------------

    def kernel(self) -> Emitted:
        w, linked = self.writer, self.linked
        operands = [
            operand_of(var.aval.shape, var.aval.dtype, flag)
            for var, flag in zip(linked.program.inputs, self.varying, strict=True)
        ]
        results = linked.program.entry_function.results
        outputs = [operand_of(var.aval.shape, var.aval.dtype, True) for var in results]
        w.depth = 1
        w.line("const long long lane = LW_LANE, lanes = LW_LANES;")
        w.line("LW_LISTEN")
        self.bodies.declare_stacks()
        self.lanes(results)
        operands += [operand_of(c.shape, c.dtype, False) for c in w.constants]
        sums = [operand_of(a.shape, a.dtype, False) for a in linked.program.sums]
        text = self.text(operands, outputs, len(w.constants), sums)
        return Emitted(
            text,
            tuple(operands),
            tuple(outputs),
            tuple(w.constants),
            w.layout.most,
            self.bodies.frame_bytes,
            sums=tuple(sums),
        )

    def lanes(self, results: Sequence[Var]) -> None:
        """The loop over examples, around the program or one with its dispatch.

        Threads that run in step wait for each other where a loop ends. With the dispatch in the loop over examples, a
        thread that has ended takes a new example at the next pause of the others. A recursion dispatches at every call
        and return: a new example among old ones would have its threads at ever more places, each of which runs on
        its own, so there the dispatch keeps to one example.
        """
        self.bodies.answer_in_place(results)
        if self.linked.has_calls or len(self.structure.heads) == 1:
            self._program_in_examples(results)
        else:
            self._examples_in_dispatch(results)

    def _program_in_examples(self, results: Sequence[Var]) -> None:
        w, found = self.writer, self.structure
        header = (
            "for (long long example = LW_FIRST(next); example < examples; example = LW_NEXT(next))"
        )
        with w.block(header):
            self.bodies.declare()
            self.bodies.load()
            if len(found.heads) == 1:
                with w.block():
                    self._code(found.code[found.heads[0]])
            else:
                w.line(f"int32 pc = {self.entry()};")
                with w.block("for (;;)"):
                    w.line("LW_PAUSE")
                    self.cases(found.heads)
                    w.line("dispatch: ;")
            w.line("finished: ;")
            self.bodies.answers(results)

    def _examples_in_dispatch(self, results: Sequence[Var]) -> None:
        w = self.writer
        self.bodies.declare()
        w.line("long long example = LW_FIRST(next);")
        w.line("int32 pc = -1;")
        with w.block("for (;;)"):
            w.line("LW_PAUSE")
            with w.block("if (pc < 0)"):
                w.line("if (example >= examples) return;")
                self.bodies.load()
                w.line(f"pc = {self.entry()};")
            self.cases(self.structure.heads)
            w.line("finished: ;")
            self.bodies.answers(results)
            w.line("example = LW_NEXT(next);")
            w.line("pc = -1;")
            w.line("dispatch: ;")

    def entry(self) -> int:
        return self.linked.pc_of[self.linked.program.entry_function.entry]

    def cases(self, heads: Sequence[Node]) -> None:
        """The `switch` on the pc."""
        w, found = self.writer, self.structure
        with w.block("switch (pc)"):
            for head in heads:
                with w.block(f"case {head}:{self._named(head)}"):
                    self._code(found.code[head])
                    if not leaves(found.code[head]):
                        w.line("continue;")
            if self.linked.has_calls:
                with w.block("default:"):
                    self.elsewhere()

    def elsewhere(self) -> None:
        """Where a return leads to no case: without this the dispatch would loop forever."""
        self.bodies.lose()
        self.writer.line("goto finished;")

    def _named(self, head: Node) -> str:
        """The label of a case that calls go to: all of a recursion's, for which it is known where they lead."""
        return f" LW_HEAD({head})" if self.linked.has_calls and head in self.structure.heads else ""

    def _code(self, code: Code) -> None:
        w = self.writer
        for i, part in enumerate(code):
            match part:
                case Mark(node):
                    if node in self.structure.labels:
                        w.line(f"block{node}: ;")
                case Leave():
                    self._leave(part)
                case Loop():
                    self._loop(part)
                case Run():
                    # A jump forward must not skip a declaration: what comes before a label has a scope of its own.
                    if any(isinstance(later, Mark) for later in code[i + 1 :]):
                        with w.block():
                            self._run(part)
                    else:
                        self._run(part)

    def _loop(self, loop: Loop) -> None:
        w = self.writer
        header = "for (;;)"
        if loop.pauses:
            turn = w.fresh("turn")
            header = f"for (int {turn} = 0; LW_GOES_ON({turn}); ++{turn})"
            if loop.short:
                w.line("LW_UNROLL_SHORT")
        with w.block(header):
            if loop.node in self.structure.again:
                with w.block():
                    self._code(loop.body)
                w.line(f"again{loop.node}: ;")
            else:
                self._code(loop.body)
        if loop.pauses:
            self._leave(Leave("dispatch", loop.node))

    def _leave(self, leave: Leave) -> None:
        match leave.how:
            case "goto":
                target = "finished" if leave.node == HALT else f"block{leave.node}"
                target = "dispatch" if leave.node == DISPATCH else target
                self.writer.line(f"goto {target};")
            case "again":
                self.writer.line(f"goto again{leave.node};")
            case "dispatch" if self._named(leave.node):
                self.writer.line(f"LW_GO_TO({leave.node})")
            case "dispatch":
                self.writer.line(f"pc = {leave.node};")
                self.writer.line("goto dispatch;")
            case how:
                self.writer.line(f"{how};")

    def _run(self, run: Run) -> None:
        w = self.writer
        index = self.bodies.write(self.structure.origin[run.node])
        if len(run.ways) == 1:
            self._code(run.ways[0])
        elif len(run.ways) == 2:
            self._two_ways(index, run.ways)
        else:
            for case, way in enumerate(run.ways):
                last = case == len(run.ways) - 1
                test = "else" if last else f"{'else ' if case else ''}if ({index} == {case})"
                with w.block(test):
                    self._code(way)

    def _two_ways(self, index: str, ways: tuple[Code, ...]) -> None:
        w = self.writer
        otherwise, then = ways
        if leaves(otherwise) or not then:
            test, inner, rest = f"!{index}", otherwise, then
        elif leaves(then) or not otherwise:
            test, inner, rest = index, then, otherwise
        else:
            with w.block(f"if ({index})"):
                self._code(then)
            start = len(w.lines)
            with w.block("else"):
                self._code(otherwise)
            if all(line.lstrip().startswith("//") for line in w.lines[start + 1 : -1]):
                del w.lines[start:]
            return
        if not inner:
            return
        with w.block(f"if ({test})"):
            self._code(inner)
        self._code(rest)

    def text(
        self,
        operands: Sequence[Operand],
        outputs: Sequence[Operand],
        num_constants: int,
        sums: Sequence[Operand] = (),
    ) -> str:
        num_inputs = len(operands) - num_constants
        names = [f"in{i}" for i in range(num_inputs)]
        names += [f"constant{i}" for i in range(num_constants)]
        arguments = [
            *(f"const {o.kind}* __restrict__ {n}" for o, n in zip(operands, names, strict=True)),
            *(f"const {o.kind}* zeros{i}" for i, o in enumerate(sums)),
            *(f"{o.kind}* __restrict__ out{i}" for i, o in enumerate(outputs)),
            *(f"lw_sum<{o.kind}>::type* __restrict__ sum{i}" for i, o in enumerate(sums)),
            "int* code",
            "int* site",
            "long long* steps",
            "int* deepest",
            "LW_COUNTER* next",
            "char* scratch",
        ]
        body = "\n".join(self.writer.lines)
        kernel = (
            f"LW_KERNEL lanewise_kernel({', '.join(arguments)}, long long examples, int capacity) {{\n"
            f"{body}\n}}"
        )
        tables = "\n".join(self.writer.tables)
        functions = "\n\n".join(self.writer.texts)
        body = f"{tables}\n{functions}\n{kernel}"
        common = shared_ranges(operands) if self.meets and "lw_by_matrix" in body else ""
        fixed = f"#define LW_FIXED_BYTES {self.writer.layout.most}ll"
        fixed += f"\n#define LW_COMMON {common}" if common else ""
        first = len(operands) + len(sums) + len(outputs)
        outer = {first + number for number in self.writer.outer_sums}
        entry = host_entry(arguments, dict(enumerate(sums, first)), outer, bool(common))
        helpers = needed(body + entry)
        parts = [beginning(), fixed, helpers, tables, functions, kernel, entry]
        return "\n\n".join(part for part in parts if part) + "\n"


# -- what cannot be a kernel ----------------------------------------------------------------------------


def written(
    linked: Linked, varying: Sequence[bool], options: Options
) -> Emitted | tuple[Obstacle, ...]:
    """A program's kernel, or all that keeps it from being one."""
    blocks = [item for item in linked.order if isinstance(item, Block)]
    found = list(_in_equations(eqn for block in blocks for eqn in block.eqns))
    variables: list[Atom] = [*linked.program.inputs, *linked.program.entry_function.results]
    found += [
        Obstacle("an operand or answer", "", f"a kernel holds no {var.aval.dtype}")
        for var in variables
        if not dtypes.held(var.aval.dtype)
    ]
    if found:
        return tuple(dict.fromkeys(found))
    try:
        emitted = emit(linked, varying, max_steps=options.max_steps, counting=options.stats)
    except Unsupported as refusal:
        return (Obstacle(refusal.operation, refusal.line, refusal.why),)
    too_large = size_obstacle(emitted)
    return emitted if too_large is None else (too_large,)


def _in_equations(eqns: Iterable[JaxprEqn], around: str = "") -> Iterator[Obstacle]:
    """What has no rule. Code that JAX traced once for all its users has their line `around` it."""
    for eqn in eqns:
        name, line = eqn.primitive.name, _jax.user_line(eqn) or around
        if name not in RULES:
            traced = implementation(eqn)
            if traced is None:
                yield Obstacle(name, line, "a kernel has no rule for it")
            else:
                yield from _in_equations(traced.jaxpr.eqns, line)
            continue
        for atom in (*eqn.invars, *eqn.outvars):
            if not dtypes.held(atom.aval.dtype):
                yield Obstacle(name, line, f"a kernel holds no {atom.aval.dtype}")
        called = inside(eqn)
        if called is not None:
            yield from _in_equations(called.jaxpr.eqns, line)
        else:
            for inner in _jax.subjaxprs(eqn):
                yield from _in_equations(inner.eqns, line)
