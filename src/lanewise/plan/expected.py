"""What a job would cost each way, in operations of a lane."""

from __future__ import annotations

import math

from lanewise import _jax
from lanewise._jax import JaxprEqn, Var
from lanewise.blocks.equations import FREE, Cost, guards_a_loop, sees_batch, size_of
from lanewise.blocks.form import Block
from lanewise.blocks.link import Linked
from lanewise.blocks.passes import Work, work_of
from lanewise.core.program import Program, call_p
from lanewise.job.job import Job
from lanewise.machine.compact import move_operations, tile_width
from lanewise.machine.worth import expensive_blocks
from lanewise.plan.measure import Sample

# What any other work of a lane costs more in a tick: all lanes wait for the slowest, and pay for branches not taken.
TICKED_OPERATION = 6.0
# The same where lanes meet: going to the machine's state and back.
MET_OPERATION = 2.0
# What a tick of a sweep costs beside its blocks, in lane operations.
SWEEP_OPERATIONS = 300_000
# How full the tiles are that a sweep packs the lanes at an expensive block into.
TILE_OCCUPANCY = 0.8
# Another way than the one the code suggests must promise to be this much better.
CLEARLY = 0.8
# Arrays of a lane's own that are larger are worth vector instructions and all cores, which XLA has for a lone call.
MOST_ELEMENTS_ALONE = 1024
# Where nothing diverges, lanes by themselves must save this many operations of a lane in all (a quarter of a
# millisecond): a C++ compiler takes seconds.
WORTH_COMPILING = 2e6


def may_depend_on_divergence(linked: Linked) -> bool:
    """Whether lanes together would be clearly better than lanes by themselves if none had to wait."""
    total = sum(linked.costs, Cost())
    profile = linked.profile
    alone, together = (
        total.operations - total.products * (1 - product)
        for product in (profile.product_alone, profile.product_together)
    )
    return together < CLEARLY * alone


def expected(job: Job, linked: Linked, found: Sample) -> dict[str, float]:
    """What a lane would cost each way, by the visits of the sampled ones."""
    lanes, profile = job.examples, linked.profile
    costs, mean, most = linked.costs, found.mean, found.most(lanes)
    together = [
        cost.operations - cost.products * (1 - profile.product_together) + cost.shared / lanes
        for cost in costs
    ]
    alone = [
        cost.operations - cost.products * (1 - profile.product_alone) + cost.shared
        for cost in costs
    ]
    expensive = expensive_blocks(linked, lanes)
    ticks = most.max()
    swept = ticks * SWEEP_OPERATIONS / lanes
    for pc, (block, cost) in enumerate(zip(linked.order, together, strict=True)):
        if pc not in expensive:
            swept += ticks * cost
        elif isinstance(block, Block) and tile_width(linked, pc, lanes) is not None:
            swept += mean[pc] * (cost / TILE_OCCUPANCY + move_operations(linked, block))
        else:
            swept += most[pc] * cost
    expected = {"native": float(mean @ alone), "sweep": float(swept)}
    # Loops in loops wait in each; branches would run for everyone, with what they close over copied for each lane.
    if job.can_be_plain and linked.one_loop and not _sees_or_guards(job.program):
        expected["plain"] = float(most @ together)
    return expected


def _sees_or_guards(program: Program) -> bool:
    """Whether JAX's own batching is out of the question: lanes would see each other, or loops run that must not."""
    return sees_batch(program) or guards_a_loop(program)


def computes_much(eqn: JaxprEqn) -> bool:
    """Whether an equation makes a large array, other than by looping or by reading and writing parts of one."""
    name = eqn.primitive.name
    if eqn.primitive is call_p or name in FREE or list(_jax.subjaxprs(eqn)):
        return False
    if name.startswith(("scatter", "dynamic_update")):
        return False
    return any(size_of(var) > MOST_ELEMENTS_ALONE for var in eqn.outvars)


def largest_of_a_lane(linked: Linked) -> int:
    """The most elements that an array of a lane's own has."""
    uniform = linked.storage.uniform
    made = (
        var
        for _, block in linked.program.all_blocks()
        for eqn in block.eqns
        for var in (*eqn.outvars, *eqn.invars)
        if isinstance(var, Var) and var not in uniform
    )
    return max((math.prod(var.aval.shape) for var in made), default=0)


def better_alone(linked: Linked, meets: bool = False) -> str | None:
    """Why lanes by themselves are better than a machine, by the code alone; None if they are not.

    `meets`: in that machine lanes run by themselves between products.
    """
    total = sum(linked.costs, Cost())
    profile, others = linked.profile, total.operations - total.products
    alone = others + total.products * profile.product_alone + total.shared
    beside = MET_OPERATION if meets else TICKED_OPERATION
    together = others * beside + total.products * profile.product_together
    if together < alone or largest_of_a_lane(linked) > profile.most_elements_a_thread:
        return None
    return (
        f"a lane's own code is {total.operations:,.0f} operations a turn, {total.products:,.0f} of them"
        " matrix products: each lane runs by itself"
    )


def work_of_blocks(linked: Linked) -> Work:
    """What blocks without divergence have to do."""
    uniform = linked.storage.uniform.__contains__
    return sum((work_of(b.eqns, uniform) for _, b in linked.program.all_blocks()), Work())


def work_of_entry(program: Program) -> Work:
    """What a lone call of a program without recursion has to do."""
    return work_of(program.functions[program.entry].jaxpr.eqns, lambda var: False)


def worth_compiling(work: Work, lanes: int) -> str | None:
    """Why lanes by themselves are so much better than XLA's passes that compiling them pays; None if not."""
    alone, together = work.for_lanes(lanes)
    if alone > CLEARLY * together or (together - alone) * lanes < WORTH_COMPILING:
        return None
    return (
        f"nothing diverges, but XLA would make {work.passes:,.0f} passes over memory, for a lane the cost of"
        f" {together:,.0f} operations, against {alone:,.0f} by itself"
    )
