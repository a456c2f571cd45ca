"""What a few lanes do, counted before the batch runs.

The divergence of lanes decides between plain vectorization, where all lanes wait for the longest, and a machine or
lanes on their own, where they do not; and the code does not show it. Outside `jit` the operands are there, so a few
lanes, spread over the batch, are run on their own first. Their code is the machine's own blocks, each of which counts
its visits in a variable of its own that every function passes on: blocks in, blocks out, so the ordinary kernel runs it
unchanged. The answers are dropped.

A sample is bounded: a lane that takes more steps than the budget allows is cut off, and counts as having taken just
those, its visits distributed as the others' are. Where most are cut off, the sample shows nothing.

The longest of many lanes is longer than the longest of a few. By how much is extrapolated from the upper quarter of the
sample, as if its tail were exponential: not at all for lanes that take the same.

Not sampled are programs with effects, which would happen twice; programs that the host's kernel cannot carry; and small
batches, whose run costs no more than the sample.

Considered: counting in the first whole run, which shows more but too late for it; the reference interpreter, which
needs no compiler but takes longer than one for all but the smallest programs; and timing every carrier, which compiles
all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from lanewise import _jax
from lanewise._jax import Var, stored
from lanewise.blocks.form import Block, BlockProgram, Call, TailCall
from lanewise.blocks.link import Linked, link
from lanewise.core.errors import Outcome
from lanewise.core.options import DEPTH_INSIDE_JIT, Options
from lanewise.job.job import Job

SAMPLED_LANES = 32
# A smaller batch is run rather than sampled.
FEWEST_LANES = 4 * SAMPLED_LANES
# What a sample may cost, in operations: a tenth of a second for a core.
MOST_OPERATIONS = 1e9
# Below this many steps a lane is cut off too early to show anything.
FEWEST_STEPS = 16


@dataclass(frozen=True, eq=False)
class Sample:
    """Visits of each sampled lane to each block (in the order of pcs), its steps, and how many lanes were cut off."""

    visits: np.ndarray
    steps: np.ndarray
    cut: int

    @property
    def mean(self) -> np.ndarray:
        """The visits of a lane to each block."""
        return self.visits.mean(0)

    def most(self, lanes: int) -> np.ndarray:
        """The visits to each block of the one among `lanes` lanes that visits it most."""
        quarter = np.quantile(self.visits, 0.75, axis=0)
        upper = np.where(self.visits > quarter, self.visits - quarter, 0.0)
        excess = upper.sum(0) / np.maximum((upper > 0).sum(0), 1)
        longest = quarter + excess * np.log(max(lanes / 4, 1.0))
        return np.maximum(self.visits.max(0), longest)

    @property
    def divergence(self) -> float:
        """The steps of the longest lane over those of a lane on average."""
        return float(self.steps.max() / max(self.steps.mean(), 1.0))

    def __str__(self) -> str:
        cut = f", {self.cut} of them cut off there" if self.cut else ""
        return (
            f"measured on {len(self.steps)} lanes: {self.steps.min():,.0f} to {self.steps.max():,.0f} steps{cut};"
            f" the longest lane takes {self.divergence:.1f} times as many as one on average"
        )


def take_sample(linked: Linked, operands: Sequence[Any], job: Job) -> Sample | None:
    """Run some of the lanes for their counts; None where that cannot be done or shows nothing."""
    # Imported here as in choose.py: only where a kernel may run.
    from lanewise.cpp.emit.emit import written
    from lanewise.cpp.emit.emitted import Emitted
    from lanewise.cpp.toolchain import foreign, host

    lanes, mapped, options, varying = job.lanes, job.mapped, job.options, job.varying
    total = job.examples
    if total < FEWEST_LANES or not foreign.available() or not _readable(operands):
        return None
    blocks = [item for item in linked.order if isinstance(item, Block)]
    if any(eqn.effects for block in blocks for eqn in block.eqns):
        return None
    bound = _most_steps(linked, options)
    counters = {block.label: _jax.new_var(_jax.shaped((), np.dtype(np.int32))) for block in blocks}
    counting = link(counted(linked.program, counters), varying)
    kernel = written(counting, varying, options.updated(max_steps=bound, stats=True))
    if bound < FEWEST_STEPS or not isinstance(kernel, Emitted):
        return None
    ran = host.run(
        kernel,
        _rows(operands, lanes, mapped, np.linspace(0, total - 1, SAMPLED_LANES).astype(np.int64)),
        SAMPLED_LANES,
        capacity=options.max_depth or DEPTH_INSIDE_JIT,
        threads=foreign.cores(),
        flags=host.tuned(host.FLAGS, host.QUICK),
    )
    ended = ran.code == int(Outcome.DONE)
    if 2 * ended.sum() < len(ended):
        return None
    places = {label: i for i, label in enumerate(counters)}
    counts = np.stack(ran.answers[-len(counters) :], 1).astype(np.float64)
    visits = np.zeros((SAMPLED_LANES, linked.halt))
    for pc, item in enumerate(linked.order):
        if isinstance(item, Block):
            visits[:, pc] = counts[:, places[item.label]]
    a_step = visits[ended].sum(0) / max(ran.steps[ended].sum(), 1)
    visits = np.where(ended[:, None], visits, ran.steps[:, None] * a_step)
    return Sample(visits, ran.steps.astype(np.float64), int((~ended).sum()))


def counted(program: BlockProgram, counters: dict[int, Var]) -> BlockProgram:
    """The program with every block's visits counted in its variable, behind the results of every function.

    Every call passes all counters to its callee and gets them back as results, which are never saved around a call: so
    they go on counting through recursion.
    """
    variables = tuple(counters.values())
    functions = {
        name: replace(
            function,
            params=(*function.params, *variables),
            results=(*function.results, *variables),
            blocks=tuple(
                _counting(block, counters[block.label], variables) for block in function.blocks
            ),
        )
        for name, function in program.functions.items()
    }
    zeros = tuple((var, np.int32(0)) for var in variables)
    return replace(program, functions=functions, constants=(*program.constants, *zeros))


def _counting(block: Block, counter: Var, variables: Sequence[Var]) -> Block:
    more = _jax.new_var(counter.aval)
    template = _one_more()
    eqn = template.replace(invars=[counter, *template.invars[1:]], outvars=[more])
    block = block.with_(eqns=(*block.eqns, eqn))
    if not isinstance(block.terminator, Call | TailCall):
        return block.with_(assigns=(*block.assigns, (counter, more)))
    given = tuple((var, more if var is counter else var) for var in variables)
    arguments = (*block.terminator.arguments, *given)
    return block.with_(terminator=replace(block.terminator, arguments=arguments))


@functools.cache
def _one_more() -> Any:
    """The equation `x + 1`."""
    struct = jax.ShapeDtypeStruct((), np.int32)
    (eqn,) = _jax.trace(lambda x: [x + np.int32(1)], [struct]).jaxpr.eqns
    return eqn


def _most_steps(linked: Linked, options: Options) -> int:
    """How many steps a lane may take, by what the costliest block costs."""
    costliest = max((cost.operations + cost.shared for cost in linked.costs), default=0.0)
    bound = int(MOST_OPERATIONS / (SAMPLED_LANES * max(costliest, 10.0)))
    return max(1, min(bound, options.max_steps or bound))


def _readable(operands: Sequence[Any]) -> bool:
    """Whether all operands' values are available here."""
    return all(not isinstance(x, jax.Array) or x.is_fully_addressable for x in operands)


def _rows(
    operands: Sequence[Any],
    lanes: tuple[int, ...],
    mapped: Sequence[Sequence[bool]],
    which: np.ndarray,
) -> list[np.ndarray]:
    """These lanes' operands, as a kernel takes them."""
    places = np.unravel_index(which, lanes)
    rows = []
    for value, axes in zip(operands, mapped, strict=True):
        index = tuple(place for place, has in zip(places, axes, strict=True) if has)
        if isinstance(value, bool | int | float | complex):
            value = np.asarray(value, _jax.aval_of(value).dtype)
        kept = stored(value, _jax.aval_of(value))
        if _jax.is_split(kept):
            kept = _jax.to_host(kept)
        rows.append(_jax.to_host(kept[index] if index else kept))
    return rows
