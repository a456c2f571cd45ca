"""Which carrier and which schedule run a program, and why.

* A program in which nothing diverges is plainly vectorized: `jax.vmap` is the right code for it. The exception is a
  program with many passes over memory, for a lane's few numbers each: lanes on their own on a CPU can be clearly faster
  (`expected.py`), by enough that compiling them pays. That holds for a lone call of loops too, of known length
  or nested, as those of the gradient of a `while` are: XLA starts each piece of each iteration separately.
* A program that can be carried one lane at a time (`native` on a CPU, `kernel` on a GPU) is, unless its work is matrix
  products: those are faster for all lanes at once.
* A lone call of a recursion over small arrays is C++ on a CPU: a machine of one lane pays for a tick at each block.
* A recursion around large matrix products whose control does not depend on them is run by levels, outside `jit`. So are
  calls of such a recursion inside a program that is otherwise different. One whose values decide about calls that do
  not wait for each other forks, unless it has lanes enough.
* Any other is swept by `ticks`.

That is known from the code alone, and so inside `jit`. Outside it, where matrix products make up much of the work, the
divergence of lanes decides, measured on a sample of them (`measure.py`): `_measured` compares what each way to run the
program would cost.

A full disk, too little memory or a compiler that hangs is no reason for `auto` to fail: the program runs by ticks. Only
compiling shows that something is wrong, when the plan is made and perhaps half of the tracing is done. So that work is
dropped, and the program is marked, planned and traced again (`or_given_up`).

`Plan.why` gives the reason in words, for `lanewise.inspect`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from lanewise import _jax
from lanewise.blocks.equations import any_eqn, guards_a_loop, refuse_collectives, sees_batch
from lanewise.blocks.link import Linked
from lanewise.carriers.table import ALONE, carrier_of
from lanewise.core.errors import CompilerError, OptionError
from lanewise.core.program import Program
from lanewise.job.job import Job, linked_for
from lanewise.job.plan import Plan
from lanewise.machine.worth import FEWEST_LANES_THAT_MEET, expensive_blocks, meeting_blocks
from lanewise.plan.expected import (
    AS_GOOD,
    CLEARLY,
    Work,
    better_alone,
    computes_much,
    expected,
    may_depend_on_divergence,
    multiplies,
    work_of_blocks,
    work_of_entry,
    worth_compiling,
)
from lanewise.plan.measure import take_sample

Answer = TypeVar("Answer")

# Fewer lanes than this are not run by levels unless the caller asks for it: an envelope takes seconds to compile.
FEWEST_LANES_BY_LEVELS = 16

# Shared arrays of this many bytes in all, tables for lookups included, stay near a core, in its caches.
# (Up to here lanes that meet on native were faster than a machine's, by programs that no benchmark has: a walk that
# splits and a reader that ponders, of widths 256, 512 and 1024, 64 lanes: 2.4, 8.3, 38 ms and 4.0, 14, 62 for 3.0, 12,
# 50 and 4.8, 15, 212. Larger ones were not tried.)
NEAR_BYTES = 1 << 24

# Products this many times too small may make up a piece that is worth it; smaller ones are not considered.
MOST_PRODUCTS_OF_A_PIECE = 16

# Programs that run without kernels, because the machine's compilers could make none, and why.
_given_up: dict[Program, str] = {}


def plan(job: Job, operands: Sequence[Any] | None = None) -> Plan:
    """How a job will run. Where operands are given, a sample of their lanes may be run to decide."""
    if job.options.watched:
        return as_watched(plan(job.unwatched(), operands), job)
    found = _measured(job, operands) if operands is not None else _by_code(job)
    # A carrier that runs each lane on its own starts the next example when one ends, for any number of lanes.
    if not job.refilled or found.carrier in ALONE:
        return found
    return _refilled(job)


@functools.lru_cache(maxsize=512)
def _refilled(job: Job) -> Plan:
    """Refilled lanes do not wait for each other, so no program is better off without a machine."""
    schedule = "sweep" if job.options.schedule == "auto" else job.options.schedule
    number = "examples" if job.streamed else f"{job.examples} examples"
    why = f"{number} through {job.width} lanes, refilled as they end"
    return _offered(job, "ticks", schedule, why)


@functools.lru_cache(maxsize=512)
def as_watched(found: Plan, job: Job) -> Plan:
    """A plan for the same job, observed: the decisions hold, and the code that runs counts what is observed."""
    schedule = "auto" if found.carrier in ALONE else found.schedule
    return _offered(job, found.carrier, schedule, "").because(found.why)


def levels_plan(job: Job, operands: Sequence[Any]) -> Plan | None:
    """The plan by levels, if that is how the job runs with these operands; they may be traced."""
    if job.examples == 0:
        return None
    if job.options.schedule == "levels":
        found = _by_code(job)
        carrier: Any = carrier_of("ticks", "levels")
        later = carrier.can_decide_with_batch(job, operands)
        return found if later else carrier.run(found, operands)
    if _jax.stages() or not _may_be_by_levels(job):
        return None
    found = _by_levels_if_better(job, given_up(job.program))
    if found.schedule != "levels":
        return None
    carrier = carrier_of("ticks", "levels")
    return found if carrier.can_decide(job, operands) else None


def inside_jit(found: Plan) -> Plan:
    """The plan of a job inside `jit`; its reason says so if the job would be run by levels outside."""
    job = found.job
    if not meets_at_products(found) or not _may_be_by_levels(job):
        return found
    if _by_levels_if_better(job, given_up(job.program)).schedule != "levels":
        return found
    return found.because(f"{found.why}; called outside jit, it is run by levels")


def _may_be_by_levels(job: Job) -> bool:
    """Whether only the code can rule out a run by levels that the caller did not ask for."""
    options = job.options
    asked_for = (options.carrier, options.schedule) != ("auto", "auto")
    plainly = not (asked_for or options.stats or options.max_steps or job.refilled or job.room)
    return plainly and job.program.recursive and job.examples >= FEWEST_LANES_BY_LEVELS


@functools.lru_cache(maxsize=512)
def _by_levels_if_better(job: Job, failed: str | None) -> Plan:
    """By levels, where lanes would meet at matrix products; else the plan by the code, with the reason."""
    suggested = _by_code(job)
    if failed is not None:
        return suggested
    if not meets_at_products(suggested):
        return _in_parts_if_better(job) or suggested
    carrier: Any = carrier_of("ticks", "levels")
    why = "a recursion around matrix products whose control does not wait for them"
    found = carrier.offer(job, "levels", f"{why}: control first, then products of whole levels")
    if isinstance(found, str):
        return suggested.because(f"{suggested.why}; not by levels: {carrier.obstacle(job)}")
    if carrier.products(job) < job.profile.level_products:
        return suggested.because(f"{suggested.why}; not by levels: the products are small")
    if not _jax.has_platform("cpu"):
        missing = "JAX has no CPU here to decide control on (jax_platforms)"
        return suggested.because(f"{suggested.why}; not by levels: {missing}")
    return found


def _in_parts_if_better(job: Job) -> Plan | None:
    """Some calls by levels, where they alone would be run so, though the whole is not."""
    least = job.profile.level_products / MOST_PRODUCTS_OF_A_PIECE
    if not multiplies(job.program, least):
        return None
    carrier: Any = carrier_of("ticks", "levels")
    why = "calls around matrix products whose control does not wait for them come first"
    found = carrier.offer(job, "levels", why)
    if isinstance(found, str):
        return None
    parts = carrier.in_parts(job)
    if parts is None:
        return None
    first = parts.first.with_options(schedule="auto")
    return found if _by_levels_if_better(first, None).schedule == "levels" else None


def _by_code(job: Job) -> Plan:
    """The plan by the code alone, cached."""
    return _planned(job, given_up(job.program))


@functools.lru_cache(maxsize=512)
def _planned(job: Job, failed: str | None) -> Plan:
    refuse_collectives(job.program)
    if failed is not None and job.options.carrier == "auto":
        return _by_ticks(job, failed, may_meet=False)
    return _decided(job, may_meet=failed is None)


def _by_ticks(job: Job, refused: str, *, may_meet: bool) -> Plan:
    """The plan where each lane on its own would be better, but is not possible."""
    found = _decided(job.with_options(carrier="ticks"), may_meet=may_meet)
    return replace(found, job=job, why=f"{found.why}; not each lane on its own: {refused}")


def _offered(job: Job, carrier: str, schedule: str, why: str) -> Plan:
    """What a carrier offers, or an error with the reason why it cannot."""
    found = carrier_of(carrier, schedule).offer(job, schedule, why)
    if isinstance(found, str):
        raise OptionError(found)
    return found


def _decided(job: Job, *, may_meet: bool) -> Plan:
    options, platform = job.options, job.platform
    if options.carrier in ALONE:
        return _offered(job, options.carrier, options.schedule, "asked for")
    if options.schedule in ("plain", "levels"):
        return _offered(job, "ticks", options.schedule, "asked for")
    free = job.can_be_plain and options.schedule == "auto" and not options.stats
    if not job.lanes and free:
        why = "one lane, no recursion: XLA's own loops and branches"
        return _lone_if_better(job) or _offered(job, "ticks", "plain", why)
    linked = linked_for(job)
    # Under JAX's own batching a lane sees its neighbours where code looks at the batch.
    free = free and not sees_batch(job.program)
    if free and linked.straight:
        why = "nothing diverges: no trip count varies and no branch is expensive"
        return _straight_if_better(job, linked) or _offered(job, "ticks", "plain", why)
    if options.schedule != "auto":
        return _offered(job, "ticks", options.schedule, "asked for")
    around_products = bool(job.lanes) and may_meet and _around_products(linked)
    meets = around_products and _would_meet(job, linked)
    forked = _forked_if_better(job) if meets and options.carrier == "auto" else None
    if forked is not None:
        return forked
    if options.carrier == "auto" and not (meets and platform == "gpu"):
        better = _alone_if_better if job.lanes else _recursion_alone_if_better
        found = better(job, linked, meets)
        if isinstance(found, str):
            return _by_ticks(job, found, may_meet=may_meet)
        if found is not None:
            return found
    if around_products and options.carrier == "auto":
        found = _met_on_native(job)
        if found is not None:
            return found
    if meets:
        why = "lanes meet at blocks with matrix work, and between them run each on its own, in one kernel"
        return _offered(job, "ticks", "meet", f"a recursion around matrix products: {why}")
    expensive = expensive_blocks(linked, job.examples)
    if free and linked.one_loop and not guards_a_loop(job.program) and len(expensive) <= 1:
        why = "one loop without branches: each lane waits for the last whatever runs it"
        return _offered(job, "ticks", "plain", why)
    why = (
        f"{linked.halt} blocks, {len(expensive)} of them expensive: cheap blocks of an iteration run in one tick,"
        " expensive ones when enough lanes wait for them"
    )
    return _offered(job, "ticks", "sweep", why)


def _around_products(linked: Linked) -> bool:
    """Whether a program is a recursion around matrix products."""
    return bool(linked.has_calls and linked.profile.alone and meeting_blocks(linked))


def _would_meet(job: Job, linked: Linked) -> bool:
    """Whether lanes can run together only at expensive blocks: a recursion takes many ticks from one to the next."""
    # Imports the C++ emitter: only where it is needed.
    from lanewise.machine.meet import kernel_between

    return not isinstance(kernel_between(linked, job.options.max_steps, job.options.stats), str)


def _met_on_native(job: Job) -> Plan | None:
    """Each lane on its own, where those of a core meet at products: faster than a machine's, and sooner compiled.

    Sweeps of a gradient always, also where a machine's lanes could not meet: a StackRNN, a DRNN and a transition
    parser of width 256, 64 lanes, train in 25, 18 and 163 to 200 ms this way, in 28, 26 to 36 and 258 to 368 where
    their forward sweeps are ticks. Other programs where the matrices stay near a core: those three take 5.4, 4.1 and 28
    ms this way, and 7.6, 4.3 and 53 by `meet`.
    """
    if job.profile.alone != "native" or job.examples < FEWEST_LANES_THAT_MEET:
        return None
    why = "a recursion around matrix products with matrices that lanes share, at which those of a core meet"
    found = _alone(job, why)
    if not isinstance(found, Plan) or found.emitted is None or not found.emitted.meets:
        return None
    shared = sum(
        math.prod(o.shape) * o.dtype.itemsize for o in found.emitted.operands if not o.varies
    )
    sweep = bool(job.program.has_tapes or job.program.sums)
    return found if sweep or shared <= NEAR_BYTES else None


def meets_at_products(found: Plan) -> bool:
    """Whether lanes wait for each other at matrix products, and nowhere else."""
    on_native = found.emitted is not None and found.emitted.meets
    return on_native or found.schedule in ("meet", "fork")


def _forked_if_better(job: Job) -> Plan | None:
    """Calls at the same time, where values decide which calls are made and lanes are few: products are larger then."""
    options, profile = job.options, job.profile
    if job.examples > profile.most_forking_lanes or options.stats or options.max_steps:
        return None
    carrier: Any = carrier_of("ticks", "fork")
    # Sweeps of a gradient fork if the program that they differentiate does (`forks`).
    sweep = job.program.has_tapes or job.program.sums
    if job.refilled or sweep or carrier.obstacle(job) is not None:
        return None
    # Spawned calls gain too little to be worth their compilation (`benchmarks/fork.py --any-number`).
    if carrier.products(job) < profile.fork_products or not carrier.forks_in_pairs(job):
        return None
    levels: Any = carrier_of("ticks", "levels")
    if levels.obstacle(job) is None:
        return None
    why = (
        "a recursion around matrix products, with calls that do not wait for one another: they run at the same time,"
        f" as lanes are few ({job.examples})"
    )
    return _offered(job, "ticks", "fork", why)


def forks(job: Job) -> bool:
    """Whether a job's calls are made at the same time though the caller did not ask: then those of its gradient are."""
    asked_for = (job.options.carrier, job.options.schedule) != ("auto", "auto")
    few = bool(job.lanes) and job.examples <= job.profile.most_forking_lanes
    if asked_for or not few or not job.program.recursive:
        return False
    # A plan needs the job's blocks, which most gradients do not.
    least = job.profile.fork_products / MOST_PRODUCTS_OF_A_PIECE
    return multiplies(job.program, least) and _by_code(job).schedule == "fork"


def _measured(job: Job, operands: Sequence[Any]) -> Plan:
    """The plan where lanes' operands are known: by the code, unless a sample shows that another should be better."""
    suggested = _by_code(job)
    if _may_be_by_levels(job):
        suggested = _by_levels_if_better(job, given_up(job.program))
    options = job.options
    asked_for = (options.carrier, options.schedule) != ("auto", "auto") or options.stats
    recursive = job.program.recursive and meets_at_products(suggested)
    settled = (
        asked_for or recursive or suggested.schedule == "levels" or bool(given_up(job.program))
    )
    if job.platform != "cpu" or not job.lanes or settled:
        return suggested
    linked = linked_for(job)
    if linked.straight or not may_depend_on_divergence(linked):
        return suggested
    found = take_sample(linked, operands, job)
    if found is None:
        return suggested
    costs = expected(job, linked, found)
    mine = "native" if suggested.carrier == "native" else suggested.schedule
    weighed = ", ".join(f"{name} {cost:,.0f}" for name, cost in costs.items())
    why = f"{found}; so a lane costs this many operations: {weighed}"
    if mine == "native" and costs.get("plain", math.inf) <= AS_GOOD * costs["native"]:
        return _offered(job, "ticks", "plain", why)
    costs[mine] = costs.get(mine, math.inf) * CLEARLY
    for name in sorted(costs, key=lambda name: costs[name]):
        if name == mine:
            return suggested.because(f"{suggested.why}; {why}")
        if name != "native":
            return _offered(job, "ticks", name, why)
        offer = _alone(job, why)
        if isinstance(offer, Plan):
            return offer
    return suggested


def _alone(job: Job, why: str) -> Plan | str | None:
    """Each lane on its own, if there is a carrier for that here; or why that refuses the job."""
    name = job.profile.alone
    return None if name is None else carrier_of(name, "auto").offer(job, "auto", why)


def _alone_if_better(job: Job, linked: Linked, meets: bool) -> Plan | str | None:
    why = better_alone(linked, job.examples, meets)
    return None if why is None else _alone(job, why)


def _recursion_alone_if_better(job: Job, linked: Linked, meets: bool) -> Plan | str | None:
    """A lone call that XLA's own loops cannot run, as machine code with a stack, where its arrays are small.

    A machine of one lane pays for a tick at every block, and XLA takes many times as long as a C++ compiler for it.
    """
    if job.platform != "cpu" or job.options.stats or any_eqn(job.program, computes_much):
        return None
    found = _alone_if_better(job, linked, meets)
    # Without a C++ compiler the code is XLA's either way.
    return None if isinstance(found, Plan) and found.path == "XLA" else found


def _straight_if_better(job: Job, linked: Linked) -> Plan | None:
    """Each lane on its own, where nothing diverges but XLA would make many passes over memory."""
    if not job.lanes:
        return None
    return _native_if_worth(job, work_of_blocks(linked))


def _lone_if_better(job: Job) -> Plan | None:
    """A lone call as one function of machine code, where it loops over what is small."""
    program = job.program
    loops = any_eqn(program, lambda eqn: eqn.primitive.name in ("scan", "while"))
    if not loops or any_eqn(program, computes_much):
        return None
    return _native_if_worth(job, work_of_entry(program))


def _native_if_worth(job: Job, work: Work) -> Plan | None:
    if (job.options.carrier, job.platform) != ("auto", "cpu"):
        return None
    why = worth_compiling(work, job.examples)
    found = None if why is None else _alone(job, why)
    # By XLA, a lane on its own is no better than XLA's own batching.
    return found if isinstance(found, Plan) and found.path != "XLA" else None


def given_up(program: Program) -> str | None:
    """Why the program runs without kernels; None if it does not."""
    return _given_up.get(program)


def or_given_up(job: Job, run: Callable[[], Answer]) -> Answer:
    """Call what plans and runs a program; again without kernels, if none can be compiled and none was asked for."""
    try:
        return run()
    except CompilerError as error:
        if job.options.carrier in ("native", "kernel") or job.options.schedule != "auto":
            raise
        _given_up[job.program] = str(error)
    return run()
