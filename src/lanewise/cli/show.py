"""`lanewise show`: an `Inspection` in tables, for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lanewise._jax import Var
from lanewise.api.inspect import inspect
from lanewise.api.inspection import Inspection
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    Branch,
    Call,
    Collect,
    Fail,
    Fork,
    Jump,
    Return,
    Spawn,
    TailCall,
    successors,
)
from lanewise.blocks.text import print_program
from lanewise.cli.arrows import gutters
from lanewise.cli.complaints import Complaint, Misuse
from lanewise.cli.load import arguments_of, axes_of, function_named, line_of
from lanewise.core.errors import LanewiseError, OptionError
from lanewise.core.primitives.facts import bytes_of, cost_of
from lanewise.tracing.decorator import ProgramFunction, lift

MOST_TYPES = 5


def inspected(place: str, text: str, in_axes: str, options: dict[str, Any]) -> Inspection:
    """What `lanewise.inspect` finds for `FILE:FUNCTION` called with `--args TEXT`."""
    fun, names = function_named(place)
    args, kwargs = arguments_of(fun, text, names)
    axes = axes_of(in_axes)
    program = fun if isinstance(fun, ProgramFunction) else lift(fun)
    try:
        return inspect(program.with_options(**options), *args, in_axes=axes, **kwargs)
    except OptionError as error:
        raise Misuse(str(error)) from None
    except jax.errors.ConcretizationTypeError:
        raise Complaint(
            f"{place} decides in Python on a value that differs between lanes, and is no program.",
            f"put @lw.program above `def {getattr(fun, '__name__', 'it')}`, or write the branch with jax.lax.cond.",
        ) from None
    except LanewiseError:
        raise
    except Exception as error:
        where = line_of(error, Path(place.rpartition(":")[0]))
        raise Complaint(
            f"{place} cannot be traced: {type(error).__name__}: {error}\n{where}".rstrip(),
            "fix that line, or give --args of the shapes and types that it takes.",
        ) from None


def rendered(found: Inspection, *, code: bool = False, jaxpr: bool = False) -> RenderableType:
    """All there is to show about a program, for rich to print."""
    parts: list[RenderableType] = [_plan(found)]
    parts += [_blocks(function) for function in found.blocks.functions.values()]
    parts.append(_storage(found))
    if code:
        parts.append(Text(f"blocks\n{print_program(found.blocks, found.storage)}\n"))
    if jaxpr:
        parts.append(Text(f"program\n{found.program.text}\n"))
    return Group(*parts)


def _plan(found: Inspection) -> RenderableType:
    plan = found.plan
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("program", found.blocks.entry)
    table.add_row("carrier", f"{plan.carrier}, compiled by {plan.path}")
    table.add_row("schedule", plan.schedule)
    table.add_row("why", plan.why)
    table.add_row("lanes", found.work)
    return Group(table, "")


def _blocks(function: BlockFunction) -> RenderableType:
    """A row a block, with arrows for where lanes go next."""
    place = {block.label: row for row, block in enumerate(function.blocks)}
    edges = [
        (place[block.label], place[target])
        for block in function.blocks
        for target in successors(block)
    ]
    params = ", ".join(var.aval.str_short() for var in function.params)
    results = ", ".join(var.aval.str_short() for var in function.results)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True, style="cyan")
    table.add_column("block", justify="right", style="bold")
    table.add_column("what")
    for name in ("equations", "ops", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("then", overflow="fold")
    for gutter, block in zip(gutters(len(function.blocks), edges), function.blocks, strict=True):
        cost = cost_of(block.eqns)
        numbers = (len(block.eqns), cost.operations, cost.bytes)
        table.add_row(
            gutter,
            str(block.label),
            block.note,
            *(f"{number:,.0f}" for number in numbers),
            _then(block),
        )
    return Group(Text(f"{function.name}({params}) -> ({results})", style="bold"), table, "")


def _then(block: Block) -> str:
    match block.terminator:
        case Jump(target):
            return f"go to {target}"
        case Branch(targets=targets):
            return f"go to {' or '.join(map(str, dict.fromkeys(targets)))}"
        case Call(callee=callee, target=target):
            return f"call {callee}, then {target}"
        case TailCall(callee=callee):
            return f"become {callee}"
        case Fork(calls, target):
            return f"fork {', '.join(call.callee for call in calls)}, then {target}"
        case Spawn(calls, targets=targets):
            made = ", ".join(call.callee for call in calls)
            return f"spawn {made}, then {' or '.join(map(str, dict.fromkeys(targets)))}"
        case Collect(target=target, done=done):
            return f"collect, then {target} or {done}"
        case Return():
            return "return"
        case Fail(outcome=outcome):
            return f"fail: {outcome.phrase}"


def _storage(found: Inspection) -> RenderableType:
    """How many variables live where, and the bytes that a lane (or all of them together) has for them."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("what", no_wrap=True)
    table.add_column("variables", justify="right")
    table.add_column("bytes", justify="right")
    table.add_column("types", overflow="fold")
    temporaries = {
        var: None
        for _, block in found.blocks.all_blocks()
        for eqn in block.eqns
        for var in eqn.outvars
        if var not in found.storage.registers
    }
    for name, variables in (*_kept(found), ("temporaries, inside a block", [*temporaries])):
        if variables:
            size = f"{sum(map(bytes_of, variables)):,}"
            table.add_row(name, str(len(variables)), size, _types(variables))
    return Group(Text("storage", style="bold"), table, "")


def _types(variables: Sequence[Var]) -> str:
    """The types of variables, the most frequent first."""
    counts = Counter(var.aval.str_short() for var in variables).most_common()
    shown = [f"{number}×{name}" if number > 1 else name for name, number in counts]
    if len(shown) > MOST_TYPES:
        shown[MOST_TYPES:] = [f"and {len(shown) - MOST_TYPES} other types"]
    return ", ".join(shown)


def _kept(found: Inspection) -> Iterator[tuple[str, list[Var]]]:
    storage = found.storage
    kinds: tuple[tuple[str, Callable[[Var], bool]], ...] = (
        ("stacks, a frame of a lane", lambda var: var in storage.stacks),
        ("registers of a lane", lambda var: var not in storage.uniform),
        ("registers that all lanes share", lambda var: True),
    )
    left = list(storage.registers)
    for name, belongs in kinds:
        yield name, [var for var in left if belongs(var)]
        left = [var for var in left if not belongs(var)]


def write_svg(found: Inspection, file: Path) -> None:
    """Write the drawing of the blocks."""
    try:
        file.write_text(found.svg(), encoding="utf-8")
    except OSError as error:
        raise Complaint(
            f"{file} cannot be written: {error.strerror}.", "name another file."
        ) from None
