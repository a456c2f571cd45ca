"""What a job would cost each way, in operations of a lane.

Where no lane waits for another, memory decides. XLA runs elementwise operations of all lanes fused and with vector
instructions; but an operation across elements (a sum over three numbers, a concatenation, a small product) ends a
fusion, and its results for all lanes go to memory and come back: a *pass*. A lane on its own keeps such
things in registers, has no vector instructions for what XLA fuses, and calls the C library for each exponential.

The unit is an operation of a lane on its own, about an eighth of a nanosecond on two cores. `Work` was measured on
straight-line programs from one operation to the Hessian of a rotation, at 256 to 16,384 lanes; good to a factor of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lanewise import _jax
from lanewise._jax import JaxprEqn, Literal, Var
from lanewise.blocks.equations import any_eqn, guards_a_loop, sees_batch
from lanewise.blocks.form import Block
from lanewise.blocks.link import Linked
from lanewise.core.primitives.facts import (
    ASSUMED_TRIPS,
    FUNCTION,
    Cost,
    eqn_cost,
    holds_code,
    is_free,
    is_function,
    is_reduction,
    is_root,
    is_update,
    passes,
    size_of,
    with_uniform,
)
from lanewise.core.profile import CPU
from lanewise.core.program import Program, call_p, program_p
from lanewise.job.job import Job
from lanewise.machine.compact import move_operations, tile_width
from lanewise.machine.worth import expensive_blocks, meeting_blocks
from lanewise.plan.measure import Sample
from lanewise.plan.met import met

# How many times more any other work costs in a tick: all lanes wait for the slowest, and pay for branches not taken.
TICKED_OPERATION = 6.0
# The same where lanes meet: going to the machine's state and back.
MET_OPERATION = 2.0
# What a meeting costs beside its block, in lane operations: about 25 µs, which all lanes share. (Of 64 lanes of width
# 32, a BiLSTM with a meeting for each letter takes 1.5 ms alone and 5.8 where lanes meet, a transition parser 1.5 and
# 5.7, a Tree-LSTM 1.3 and 1.6.)
MEETING_OPERATIONS = 200_000
# What it costs a lane on its own to add a number to a sum of all lanes. (Tree-LSTMs of width 128 train in 110 ms alone,
# in 123 where lanes meet; of width 32 in 5 and 9, of 256 in 420 and 340.)
SUMMED_OPERATION = 0.5
# The same for a number of an outer product, which is added with those of many others.
ROW_OPERATION = 0.05
# What a tick of a sweep costs beside its blocks, in lane operations.
SWEEP_OPERATIONS = 300_000
# How full the tiles are that a sweep packs the lanes at an expensive block into.
TILE_OCCUPANCY = 0.8
# Another way than the one the code suggests must promise to be this much better.
CLEARLY = 0.8
# JAX's own batching need not be better than lanes on their own: it takes no C++ compiler.
AS_GOOD = 1.02
# Larger arrays of a lane's own are worth vector instructions and all cores, which XLA uses for a lone call.
MOST_ELEMENTS_ALONE = 1024
# Where nothing diverges, lanes on their own must save this many operations of a lane in all (a quarter of a
# millisecond): a C++ compiler takes seconds.
WORTH_COMPILING = 2e6


def may_depend_on_divergence(linked: Linked) -> bool:
    """Whether lanes together would be clearly better than lanes on their own if none had to wait."""
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
    spared = profile.product_alone - profile.product_together
    alone = [
        cost.operations
        - cost.products * (1 - profile.product_alone)
        - own.products * spared
        + cost.shared
        for cost, own in zip(costs, met(linked, lanes), strict=True)
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
    # Nested loops wait in each; branches would run for all lanes, with what they close over copied for each.
    # Nor may lanes see each other, or loops run that must not.
    barred = sees_batch(job.program) or guards_a_loop(job.program)
    if job.can_be_plain and linked.one_loop and not barred:
        expected["plain"] = float(most @ together)
    return expected


def computes_much(eqn: JaxprEqn) -> bool:
    """Whether an equation makes a large array, other than by looping or by reading and writing parts of one."""
    if eqn.primitive is call_p or is_free(eqn) or is_update(eqn) or list(_jax.subjaxprs(eqn)):
        return False
    return any(size_of(var) > MOST_ELEMENTS_ALONE for var in eqn.outvars)


def multiplies(program: Program, least: float) -> bool:
    """Whether an equation of the program has products of at least this many operations."""
    return any_eqn(program, lambda eqn: eqn_cost(eqn).products >= least)


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


def better_alone(linked: Linked, lanes: int, meets: bool = False) -> str | None:
    """Why lanes on their own are better than a machine, by the code alone; None if they are not.

    `meets`: in that machine lanes run on their own between products. A machine sweeps nested loops and branches;
    there, lanes on their own that meet at products do not make larger ones.
    """
    total = sum(linked.costs, Cost())
    profile, others = linked.profile, total.operations - total.products
    alone = others + total.products * profile.product_alone + total.shared
    alone += SUMMED_OPERATION * total.sums
    if not (linked.has_calls or linked.one_loop):
        own = sum(met(linked, lanes), Cost())
        alone -= own.products * (profile.product_alone - profile.product_together)
        alone -= own.sums * (SUMMED_OPERATION - ROW_OPERATION)
    beside = MET_OPERATION if meets else TICKED_OPERATION
    together = others * beside + total.products * profile.product_together
    if meets:
        together += len(meeting_blocks(linked)) * MEETING_OPERATIONS / max(lanes, 1)
    if together < alone or largest_of_a_lane(linked) > profile.most_elements_a_thread:
        return None
    return (
        f"a lane's own code is {total.operations:,.0f} operations a turn, {total.products:,.0f} of them"
        " matrix products: each lane runs on its own"
    )


def work_of_blocks(linked: Linked) -> Work:
    """The work of blocks without divergence."""
    uniform = linked.storage.uniform.__contains__
    return sum((work_of(b.eqns, uniform) for _, b in linked.program.all_blocks()), Work())


def work_of_entry(program: Program) -> Work:
    """The work of a lone call of a program without recursion."""
    return work_of(program.functions[program.entry].jaxpr.eqns, lambda var: False)


def worth_compiling(work: Work, lanes: int) -> str | None:
    """Why lanes on their own are so much better than XLA's passes that compiling them pays; None if not."""
    alone, together = work.for_lanes(lanes)
    if alone > CLEARLY * together or (together - alone) * lanes < WORTH_COMPILING:
        return None
    return (
        f"nothing diverges, but XLA would make {work.passes:,.0f} passes over memory, for a lane the cost of"
        f" {together:,.0f} operations, against {alone:,.0f} on its own"
    )


# A transcendental function of a number, and any other operation that XLA fuses.
_FUNCTION_ALONE = 38.0
_FUNCTION_TOGETHER = 6.0
_FUSED = 0.3
# A pass: for each lane, for each of its numbers that is moved, and once for all lanes.
_PASS = 45.0
_MOVED = 2.0
_DISPATCH = 3000.0
# Part of a lane's array, or a number of its own beside each of them: no pass, but no vector instruction either.
_STRIDED = 5.0
_STRIDED_NUMBER = 1.5
# A root, for which there is an instruction.
_ROOT = 4.0
# A lane adds its numbers one after the other; XLA adds several at once.
_ADDED_ALONE = 2.0
_ADDED_TOGETHER = 1.0
# What comes with a lane: its operands and answers.
_LANE_ALONE = 45.0
_LANE_TOGETHER = 30.0


@dataclass(frozen=True)
class Work:
    """Operations of a lane on its own, those of a lane among others, and passes over all lanes."""

    alone: float = 0.0
    together: float = 0.0
    passes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.alone + other.alone, self.together + other.together, self.passes + other.passes
        )

    def __mul__(self, times: float) -> Work:
        return Work(self.alone * times, self.together * times, self.passes * times)

    def for_lanes(self, lanes: int) -> tuple[float, float]:
        """A lane's share on its own and together with the others."""
        shared = self.passes * (_PASS + _DISPATCH / lanes)
        return self.alone + _LANE_ALONE, self.together + shared + _LANE_TOGETHER


def work_of(eqns: Iterable[JaxprEqn], is_uniform: Callable[[Var], bool]) -> Work:
    """The work of equations; those that are the same for all lanes run once when lanes are together."""
    total = Work()
    for eqn, flags in with_uniform(eqns, is_uniform):
        work = _work_of_scan(eqn, flags) if eqn.primitive.name == "scan" else _work(eqn)
        everywhere = all(flags) and not eqn.effects
        total = total + (Work(alone=work.alone) if everywhere else work)
    return total


def _work_of_scan(eqn: JaxprEqn, flags: Sequence[bool]) -> Work:
    """The work of a scan some of whose operands are the same for all lanes: a layer's weights are read once."""
    given = [not flag for flag in flags]
    loop = _jax.Scan.of(eqn, given)
    carry = _Varying().scan(eqn, given)[0][: len(loop.init)]
    inputs = zip(loop.body.invars, (*loop.consts, *carry, *loop.xs), strict=True)
    varying = {var for var, flag in inputs if flag}
    once = work_of(loop.body.eqns, lambda var: var not in varying)
    return (once + Work(passes=1)) * loop.length


class _Varying(_jax.Forward):
    """What differs between lanes; each equation by its operands alone."""

    def eqn(self, eqn: JaxprEqn, flags: Sequence[bool]) -> _jax.Found:
        return (any(flags) or bool(eqn.effects),) * len(eqn.outvars), False


def _all(eqns: Iterable[JaxprEqn]) -> Work:
    return sum(map(_work, eqns), Work())


def _work(eqn: JaxprEqn) -> Work:
    name = eqn.primitive.name
    size = sum(map(size_of, eqn.outvars))
    if name == "slice" or (name == "broadcast_in_dim" and size > size_of(eqn.invars[0])):
        return Work(
            together=0.0
            if isinstance(eqn.invars[0], Literal)
            else _STRIDED + _STRIDED_NUMBER * size
        )
    if is_free(eqn):
        return Work()
    if name == "cond":
        sides = [_all(branch.eqns) for branch in eqn.params["branches"]]
        every = sum(sides, Work())
        return Work(max(side.alone for side in sides), every.together + size, every.passes)
    if name == "while":
        once = _all(eqn.params["body_jaxpr"].eqns) + _all(eqn.params["cond_jaxpr"].eqns)
        return (once + Work(passes=1)) * ASSUMED_TRIPS
    if name == "scan":
        return (_all(eqn.params["jaxpr"].eqns) + Work(passes=1)) * eqn.params["length"]
    if eqn.primitive is program_p:
        called = eqn.params["program"]
        once = _all(called.functions[called.entry].jaxpr.eqns)
        lanes = math.prod(eqn.params["lanes"])
        return Work(once.alone * lanes, once.together * lanes, once.passes)
    cost = eqn_cost(eqn)
    if cost.products:
        rest = cost.operations - cost.products
        alone, together = (
            rest + share * cost.products for share in (CPU.product_alone, CPU.product_together)
        )
        return Work(alone, together + _MOVED * size, 1)
    if holds_code(eqn):
        return max((_all(jaxpr.eqns) for jaxpr in _jax.subjaxprs(eqn)), key=lambda work: work.alone)
    if is_reduction(eqn):
        return Work(_ADDED_ALONE * cost.operations, _ADDED_TOGETHER * cost.operations, 1)
    if is_root(eqn):
        return Work(_ROOT * size, _ROOT * _FUSED * size)
    if is_function(eqn):
        functions = cost.operations / FUNCTION
        return Work(_FUNCTION_ALONE * functions, _FUNCTION_TOGETHER * functions)
    if passes(eqn):
        return Work(cost.operations, cost.operations + _MOVED * size, 1)
    return Work(cost.operations, _FUSED * cost.operations)
