"""Which of a lane's arrays a GPU keeps in memory, so that the others have registers.

A recursion's kernel is one loop around a `switch`, and CUDA's compiler cannot know which of its cases run most. With
more arrays than registers it spills those of the hot cases as well as the others. We know more: what calls a recursion
runs seldom beside it. So the arrays that only code outside of recursions touches lie in memory, where they are touched
seldom. (NUTS on a funnel of ten dimensions, 16,384 chains on an H200: 250 million gradients a second for 164; of two
dimensions, where all fits: 1.80 thousand million for 1.93.)
"""

from __future__ import annotations

from collections.abc import Mapping

from lanewise._jax import Var
from lanewise.blocks.analysis import writes_in_order
from lanewise.blocks.form import Block, BlockFunction, Call, TailCall, reads
from lanewise.blocks.link import Linked, ReturnPoint
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.writer import UNROLLED

# The registers of a thread, of four bytes.
REGISTERS = 255


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
