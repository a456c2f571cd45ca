"""What `lanewise.inspect` shows."""

from __future__ import annotations

from dataclasses import dataclass

from lanewise.blocks.analysis import Storage
from lanewise.blocks.form import Block, BlockProgram
from lanewise.blocks.text import print_program
from lanewise.carriers.table import ALONE
from lanewise.core.options import Options
from lanewise.core.program import Program
from lanewise.job.plan import Plan
from lanewise.machine.worth import expensive_blocks
from lanewise.plan.choose import plan


@dataclass(frozen=True, eq=False)
class Inspection:
    """What `inspect` found; print it."""

    program: Program
    blocks: BlockProgram
    storage: Storage
    plan: Plan
    lanes: int | None
    options: Options
    # The slice and the pieces, or why there are none; nothing for a program without recursion that has others.
    levels: str = ""

    def __str__(self) -> str:
        parts = [
            f"program\n{self.program.text}",
            f"blocks\n{print_program(self.blocks, self.storage)}",
            f"carrier {self.plan.carrier} (by {self.plan.path}), schedule {self.plan.schedule}: {self.plan.why}",
            self.work,
        ]
        return "\n\n".join([*parts, f"levels\n{self.levels}"] if self.levels else parts)

    @property
    def work(self) -> str:
        """How many lanes there are and what of their work is expensive, in words."""
        lanes = "one lane" if self.lanes is None else f"{self.lanes} lanes"
        if self.plan.plain:
            return f"{lanes}, plainly vectorized"
        if self.plan.carrier in ALONE:
            return f"{lanes}, each by itself"
        if self.plan.schedule == "levels":
            return f"{lanes}, control first, then level by level"
        width = min(self.lanes or 1, self.options.lanes or self.lanes or 1)
        if self.lanes is not None and width < self.lanes:
            lanes = f"{width} lanes for {self.lanes} examples"
        assert self.plan.linked is not None
        expensive = expensive_blocks(self.plan.linked, width)
        named = (
            ", ".join(str(getattr(self.plan.linked.order[pc], "label", pc)) for pc in expensive)
            or "none"
        )
        return f"{lanes}; expensive blocks: {named}"

    def svg(self) -> str:
        """The block graph, drawn: a picture to put into a page or to write to a file."""
        from lanewise.watch.draw import graph_svg

        expensive: set[int] = set()
        linked = self.plan.linked
        if linked is not None and self.plan.carrier not in ALONE:
            width = min(self.lanes or 1, self.options.lanes or self.lanes or 1)
            order = (linked.order[pc] for pc in expensive_blocks(linked, width))
            expensive = {item.label for item in order if isinstance(item, Block)}
        return graph_svg(self.blocks, self.storage, expensive=expensive)

    __repr__ = __str__


def levels_of(found: Plan) -> str:
    """How a program is run by levels, or why it is not."""
    if not (found.schedule == "levels" or found.job.program.recursive):
        return ""
    # Imported where it is used: it brings the tables along.
    from lanewise.carriers.levels import described, in_parts

    parts = in_parts(found.job) if found.schedule == "levels" else None
    rest = "" if parts is None else f"\nthe rest: {plan(parts.rest).words}"
    return f"{described(found)}{rest}"
