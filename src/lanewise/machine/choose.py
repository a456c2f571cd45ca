"""Which carrier and which schedule run a program, and why.

* A program in which nothing diverges is plainly vectorized: `jax.vmap` is the right code for it. Unless it makes so
  many passes over memory, for a lane's few numbers each, that lanes by themselves on a CPU are clearly faster
  (`blocks/passes.py`), and so much faster that compiling them pays. That holds for a lone call of loops too, of
  known length or nested, as those of the gradient of a `while` are: XLA starts each piece of each iteration by itself.
* A program that can be carried one lane at a time (`native` on a CPU, `kernel` on a GPU) is, unless its work is matrix
  products: those want all lanes at once.
* A lone call of a recursion over small arrays is C++ on a CPU: a machine of one lane pays for a tick at each block.
* Any other is swept by `ticks`.

That is known from the code alone, and so inside `jit`. Outside it, where matrix products make up much of the work, how
far lanes diverge decides, and is measured on a sample of them (`sample.py`): `measured_plan` weighs what each way to
run the program would cost.

`Plan.why` says it in words for `lanewise.inspect`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lanewise import _jax
from lanewise._jax import JaxprEqn, Var
from lanewise.blocks.cost import FREE, Cost, size_of
from lanewise.blocks.flatten import flatten
from lanewise.blocks.form import Block, BlockProgram
from lanewise.blocks.passes import PRODUCT_ALONE, PRODUCT_TOGETHER, Work, work_of
from lanewise.blocks.simplify import simplify
from lanewise.errors import OptionError
from lanewise.machine import given_up
from lanewise.machine.compact import move_operations, tile_width
from lanewise.machine.holds import any_eqn, guards_a_loop, refuse_collectives, sees_batch
from lanewise.machine.link import Linked, link
from lanewise.machine.sample import Sample
from lanewise.machine.schedule import dear_blocks, kernel_between, meeting_blocks
from lanewise.options import Options
from lanewise.program import Program, call_p

# The carriers that run each lane by itself, and where.
ONE_LANE_CARRIERS = {"native": "cpu", "kernel": "gpu"}
# Matrix products run this much faster for all lanes at once than for one lane at a time.
PRODUCTS_TOGETHER = 12.0
# What any other work of a lane costs more in a tick: all lanes wait for the slowest, and pay for branches not taken.
TICKED_OPERATION = 6.0
# What a tick of a sweep costs beside its blocks, in lane operations.
SWEEP_OPERATIONS = 300_000
# How full the tiles are that a sweep packs the lanes at a dear block into.
TILE_OCCUPANCY = 0.8
# Another way than the one the code suggests must promise to be this much better.
CLEARLY = 0.8
# Where nothing diverges, lanes by themselves must save so many operations of a lane in all (a quarter of a
# millisecond): a C++ compiler takes seconds.
WORTH_COMPILING = 2e6
# Arrays of a lane's own that are larger are worth vector instructions and all cores, which XLA has for a lone call.
MOST_ELEMENTS_ALONE = 1024
# A GPU's thread that walks through a longer array by itself is slower than all threads together.
MOST_ELEMENTS_A_THREAD = 1024


@dataclass(frozen=True, eq=False)
class Plan:
    """How a program will run. `schedule` is "plain" where JAX's own batching is the right code.

    `path` says what a carrier that runs each lane by itself is compiled by.
    """

    linked: Linked | None
    schedule: str
    carrier: str
    why: str
    path: str = "XLA"

    @property
    def plain(self) -> bool:
        return self.schedule == "plain"

    @property
    def words(self) -> str:
        """What was chosen and why."""
        return f"carrier {self.carrier}, schedule {self.schedule}: {self.why}"


def can_be_plain(program: Program, options: Options) -> bool:
    """Whether JAX's own control flow can say all of the program."""
    return not (program.recursive or program.sites or options.max_steps)


def make_plan(
    program: Program,
    varying: tuple[bool, ...],
    lanes: int | None,
    options: Options,
    platform: str | None,
) -> Plan:
    """Decide; `lanes` is None for a call that is not batched, `platform` where only ticks can run."""
    failed = given_up.reason(program)
    if failed is not None and options.carrier == "auto":
        by_ticks = options.updated(carrier="ticks")
        found = make_plan(program, varying, lanes, by_ticks, platform)
        return replace(found, why=f"{found.why}; not each lane by itself: {failed}")
    structured_ok = can_be_plain(program, options)
    if options.carrier in ONE_LANE_CARRIERS:
        return _one_lane(program, varying, options, platform, "asked for")
    if options.schedule == "plain":
        if not structured_ok:
            raise OptionError(
                'schedule="plain" is JAX\'s own batching, which has no recursion, assertions or max_steps;'
                ' use schedule="auto".'
            )
        return Plan(None, "plain", "ticks", "asked for")
    free = options.schedule == "auto" and not options.stats
    if lanes is None and structured_ok and free:
        found = _lone_if_better(program, varying, options, platform)
        why = "one lane, no recursion: XLA's own loops and branches"
        return found or Plan(None, "plain", "ticks", why)
    linked = _linked(program, varying, options.max_steps)
    # JAX's own batching would let a lane see its neighbours where code looks at the batch.
    structured_ok = structured_ok and not sees_batch(program)
    if structured_ok and free and linked.straight:
        found = _straight_if_better(program, varying, lanes, options, platform, linked)
        why = "nothing diverges: no trip count varies and no branch is dear"
        return found or Plan(linked, "plain", "ticks", why)
    if options.schedule != "auto":
        return Plan(linked, options.schedule, "ticks", "asked for")
    meets = lanes is not None and failed is None and _would_meet(linked, options, platform)
    together = (
        "lanes meet at blocks with matrix work, and between them run each by itself, in one kernel"
    )
    if options.carrier == "auto" and not (meets and platform == "gpu"):
        better = _one_lane_if_better if lanes is not None else _recursion_alone_if_better
        found = better(program, varying, options, platform, linked)
        if found is not None:
            return found
    if meets:
        return Plan(linked, "meet", "ticks", f"a recursion around matrix products: {together}")
    dear = dear_blocks(linked, lanes or 1)
    if structured_ok and free and linked.one_loop and not guards_a_loop(program) and len(dear) <= 1:
        why = "one loop without branches: each lane waits for the last whatever runs it"
        return Plan(linked, "plain", "ticks", why)
    why = (
        f"{linked.halt} blocks, {len(dear)} of them dear: cheap blocks of an iteration run in one tick,"
        " dear ones when enough lanes wait for them"
    )
    return Plan(linked, "sweep", "ticks", why)


def _would_meet(linked: Linked, options: Options, platform: str | None) -> bool:
    """Whether lanes should run together only at dear blocks: a recursion takes many ticks from one to the next."""
    if not (linked.has_calls and platform in ("cpu", "gpu") and meeting_blocks(linked)):
        return False
    return not isinstance(kernel_between(linked, options.max_steps, options.stats), str)


def measured_plan(
    program: Program,
    varying: tuple[bool, ...],
    lanes: int | None,
    options: Options,
    platform: str | None,
    measure: Callable[[Linked], Sample | None],
) -> Plan:
    """The plan where lanes can be looked at: that of `plan_for`, unless a sample promises another to be better."""
    suggested = plan_for(program, varying, lanes, options, platform)
    asked_for = (options.carrier, options.schedule) != ("auto", "auto") or options.stats
    settled = asked_for or suggested.schedule == "meet" or given_up.reason(program)
    if platform != "cpu" or lanes is None or settled:
        return suggested
    linked = suggested.linked or _linked(program, varying, options.max_steps)
    if linked.straight or not _may_depend_on_divergence(linked):
        return suggested
    found = measure(linked)
    if found is None:
        return suggested
    costs = _expected(program, linked, lanes, options, found)
    mine = "native" if suggested.carrier == "native" else suggested.schedule
    weighed = ", ".join(f"{name} {cost:,.0f}" for name, cost in costs.items())
    why = f"{found}; so a lane costs so many operations: {weighed}"
    costs[mine] = costs.get(mine, math.inf) * CLEARLY
    for name in sorted(costs, key=lambda name: costs[name]):
        if name == mine:
            return replace(suggested, why=f"{suggested.why}; {why}")
        if name != "native":
            return Plan(linked, name, "ticks", why)
        try:
            chosen = options.updated(carrier="native")
            return _one_lane(program, varying, chosen, platform, why)
        except OptionError:
            continue
    return suggested


def _may_depend_on_divergence(linked: Linked) -> bool:
    """Whether lanes together would be clearly better than lanes by themselves if none had to wait."""
    total = sum(linked.costs, Cost())
    alone, together = (
        total.operations - total.products * (1 - product)
        for product in (PRODUCT_ALONE, PRODUCT_TOGETHER)
    )
    return together < CLEARLY * alone


def _expected(
    program: Program, linked: Linked, lanes: int, options: Options, found: Sample
) -> dict[str, float]:
    """What a lane would cost each way, by the visits of the sampled ones."""
    costs, mean, most = linked.costs, found.mean, found.most(lanes)
    together = [
        cost.operations - cost.products * (1 - PRODUCT_TOGETHER) + cost.shared / lanes
        for cost in costs
    ]
    alone = [cost.operations - cost.products * (1 - PRODUCT_ALONE) + cost.shared for cost in costs]
    dear = dear_blocks(linked, lanes)
    ticks = most.max()
    swept = ticks * SWEEP_OPERATIONS / lanes
    for pc, (block, cost) in enumerate(zip(linked.order, together, strict=True)):
        if pc not in dear:
            swept += ticks * cost
        elif isinstance(block, Block) and tile_width(linked, pc, lanes) is not None:
            swept += mean[pc] * (cost / TILE_OCCUPANCY + move_operations(linked, block))
        else:
            swept += most[pc] * cost
    expected = {"native": float(mean @ alone), "sweep": float(swept)}
    # Loops in loops wait in each; branches would run for everyone, with what they close over copied for each lane.
    if can_be_plain(program, options) and linked.one_loop and not _sees_or_guards(program):
        expected["plain"] = float(most @ together)
    return expected


def _sees_or_guards(program: Program) -> bool:
    """Whether JAX's own batching is out of the question: lanes would see each other, or loops run that must not."""
    return sees_batch(program) or guards_a_loop(program)


def _one_lane(
    program: Program,
    varying: tuple[bool, ...],
    options: Options,
    platform: str | None,
    why: str,
) -> Plan:
    """The plan for a carrier that runs each lane by itself, or an error that says why it cannot."""
    carrier = options.carrier
    if options.schedule != "auto":
        raise OptionError(
            f"carrier={carrier!r} runs each lane by itself and has no schedule; leave out"
            f' schedule={options.schedule!r}, or use carrier="ticks".'
        )
    if platform is not None and platform != ONE_LANE_CARRIERS[carrier]:
        raise OptionError(
            f"carrier={carrier!r} runs on a {ONE_LANE_CARRIERS[carrier].upper()}, and this is"
            f' {platform!r}; use carrier="auto".'
        )
    path, because = _PATHS[carrier](program, varying, options)
    return Plan(None, "one lane", carrier, f"{why}; {because}" if because else why, path)


# Carriers are imported when a program is first carried by them: together they are a third of all of Lanewise.


def _cuda_path(program: Program, varying: tuple[bool, ...], options: Options) -> tuple[str, str]:
    from lanewise.machine.kernel import device
    from lanewise.machine.kernel.carry import kernel_for
    from lanewise.machine.kernel.support import size_obstacle

    if not device.available():
        raise OptionError(
            'carrier="kernel" needs an NVIDIA GPU and NVIDIA\'s cuda-bindings (lanewise[cuda]).'
        )
    obstacle = size_obstacle(kernel_for(program, varying, options), "gpu")
    if obstacle is not None:
        raise OptionError(f'carrier="kernel" cannot carry {obstacle}. Use carrier="ticks".')
    return "NVRTC", ""


def _host_path(program: Program, varying: tuple[bool, ...], options: Options) -> tuple[str, str]:
    from lanewise.machine.native import native_path

    return native_path(program, varying, options)


_PATHS = {"native": _host_path, "kernel": _cuda_path}


def _one_lane_if_better(
    program: Program,
    varying: tuple[bool, ...],
    options: Options,
    platform: str | None,
    linked: Linked,
) -> Plan | None:
    carriers = [name for name, where in ONE_LANE_CARRIERS.items() if where == platform]
    total = sum(linked.costs, Cost())
    alone = total.operations + total.shared
    together = (total.operations - total.products) * TICKED_OPERATION + (
        total.products / PRODUCTS_TOGETHER
    )
    if not carriers or together < alone:
        return None
    if platform == "gpu" and _largest_of_a_lane(linked) > MOST_ELEMENTS_A_THREAD:
        return None
    why = (
        f"a lane's own code is {total.operations:,.0f} operations a turn, {total.products:,.0f} of them"
        " matrix products: each lane runs by itself"
    )
    try:
        return _one_lane(program, varying, options.updated(carrier=carriers[0]), platform, why)
    except OptionError:
        return None


def _recursion_alone_if_better(
    program: Program,
    varying: tuple[bool, ...],
    options: Options,
    platform: str | None,
    linked: Linked,
) -> Plan | None:
    """A lone call that XLA's own loops cannot run, as machine code with a stack, where its arrays are small.

    A machine of one lane pays for a tick at every block, and XLA takes many times as long as a C++ compiler for it.
    """
    if platform != "cpu" or options.stats or any_eqn(program, _computes_much):
        return None
    found = _one_lane_if_better(program, varying, options, platform, linked)
    # Without a C++ compiler the code is XLA's either way.
    return None if found is None or found.path == "XLA" else found


def _straight_if_better(
    program: Program,
    varying: tuple[bool, ...],
    lanes: int | None,
    options: Options,
    platform: str | None,
    linked: Linked,
) -> Plan | None:
    """Each lane by itself, where nothing diverges but XLA would go over memory again and again."""
    if lanes is None:
        return None
    uniform = linked.storage.uniform
    work = sum(
        (work_of(block.eqns, uniform.__contains__) for _, block in linked.program.all_blocks()),
        Work(),
    )
    return _native_if_worth(program, varying, lanes, options, platform, work)


def _lone_if_better(
    program: Program,
    varying: tuple[bool, ...],
    options: Options,
    platform: str | None,
) -> Plan | None:
    """A lone call as one function of machine code, where it loops over what is small."""
    loops = any_eqn(program, lambda eqn: eqn.primitive.name in ("scan", "while"))
    if not loops or any_eqn(program, _computes_much):
        return None
    work = work_of(program.functions[program.entry].jaxpr.eqns, lambda var: False)
    return _native_if_worth(program, varying, 1, options, platform, work)


def _computes_much(eqn: JaxprEqn) -> bool:
    """Whether an equation makes a large array, other than by looping or by reading and writing parts of one."""
    name = eqn.primitive.name
    if eqn.primitive is call_p or name in FREE or list(_jax.subjaxprs(eqn)):
        return False
    if name.startswith(("scatter", "dynamic_update")):
        return False
    return any(size_of(var) > MOST_ELEMENTS_ALONE for var in eqn.outvars)


def _native_if_worth(
    program: Program,
    varying: tuple[bool, ...],
    lanes: int,
    options: Options,
    platform: str | None,
    work: Work,
) -> Plan | None:
    alone, together = work.for_lanes(lanes)
    saved = (together - alone) * lanes
    if (options.carrier, platform) != ("auto", "cpu") or alone > CLEARLY * together:
        return None
    if saved < WORTH_COMPILING:
        return None
    why = (
        f"nothing diverges, but XLA would make {work.passes:,.0f} passes over memory, for a lane the cost of"
        f" {together:,.0f} operations, against {alone:,.0f} by itself"
    )
    try:
        native = options.updated(carrier="native")
        found = _one_lane(program, varying, native, platform, why)
    except OptionError:
        return None
    # By XLA, a lane by itself is no better than XLA's own batching.
    return None if found.path == "XLA" else found


def _largest_of_a_lane(linked: Linked) -> int:
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


def blocks_of(program: Program, varying: Sequence[bool], options: Options) -> BlockProgram:
    """The program's blocks, simplified; remembered."""
    return _blocks(program, tuple(varying), options.max_steps is not None)


@functools.lru_cache(maxsize=512)
def _blocks(program: Program, varying: tuple[bool, ...], every_loop: bool) -> BlockProgram:
    return simplify(flatten(program, varying, every_loop=every_loop))


@functools.lru_cache(maxsize=512)
def _linked(program: Program, varying: tuple[bool, ...], max_steps: int | None) -> Linked:
    """The same, linked and remembered: who plans and who measures ask for it."""
    return link(blocks_of(program, varying, Options(max_steps=max_steps)), varying)


def plan_for(
    program: Program,
    varying: tuple[bool, ...],
    lanes: int | None,
    options: Options,
    platform: str | None,
) -> Plan:
    """`make_plan`, remembered."""
    given = (program, varying, lanes, options, platform)
    return _planned(*given, failed=given_up.reason(program))


@functools.lru_cache(maxsize=512)
def _planned(program: Program, *given: Any, failed: str | None) -> Plan:
    del failed
    refuse_collectives(program)
    return make_plan(program, *given)
