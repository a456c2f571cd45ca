"""Each lane on its own in XLA:CPU's own code for a whole computation as one function (`one_function.py`).

`native` uses it where there is no C++ compiler, or where an operation has no rule in the kernel's table. XLA
keeps loop variables in memory and runs one call on one core, so it is two to four times slower; and its one-function
code has no matrix products, large sums, sorts, factorizations or scatters of many updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise._jax import JaxprEqn, stored
from lanewise.blocks.link import Linked
from lanewise.core.events import RunInfo, Whole
from lanewise.core.one_function import as_one_function
from lanewise.core.primitives.facts import runs_in_one_function
from lanewise.job.plan import Plan, Ran
from lanewise.machine.held import totals_of
from lanewise.machine.state import initial_state
from lanewise.machine.ticking import answers, run_ticks, statistics


def run_by_xla(plan: Plan, operands: Sequence[Any], capacity: int, watched: RunInfo | None) -> Ran:
    """A machine of one lane, run for one example after the other; stacks and sums are passed on as they are."""
    linked, options, varying = plan.linked, plan.job.options, plan.job.varying
    assert linked is not None
    kept = [stored(x, _jax.aval_of(x)) for x in operands]
    avals = [_jax.aval_of(x) for x in operands]
    count = len(linked.program.entry_function.results)

    def all_lanes(*kept: Any) -> list[Any]:
        shared = [x for x, flag in zip(kept, varying, strict=True) if not flag]
        own = [x for x, flag in zip(kept, varying, strict=True) if flag]

        def one(handed_on: Any, row: list[Any]) -> Any:
            rows, rest = iter(row), iter(shared)
            values = [
                _as_lane(next(rows), aval) if flag else _as_shared(next(rest), aval)
                for aval, flag in zip(avals, varying, strict=True)
            ]
            state = initial_state(linked, values, varying, 1, capacity)
            if handed_on is not None:
                stacks, returns, sums = handed_on
                state = state.with_(stacks=stacks, returns=returns, sums=sums)
            state = run_ticks(linked, state, 1, options, "lowest")
            found, code, site = answers(linked, state)
            own = (stored(x, _jax.aval_of(x)) for x in found[:count])
            return (state.stacks, state.returns, state.sums), [*own, code, site, *statistics(state)]

        first = jax.eval_shape(lambda row: one(None, row)[0], [x[0] for x in own])
        empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), first)
        (_, _, sums), out = lax.scan(one, empty, own, length=plan.job.examples)
        return [*totals_of(linked, sums), *out]

    whole = None if watched is None else Whole(watched, kept)
    num_sums = len(linked.program.sums)
    out = as_one_function(all_lanes, *kept)
    totals, out = out[:num_sums], out[num_sums:]
    totals = [x.astype(a.dtype) for x, a in zip(totals, linked.program.sums, strict=True)]
    values = [
        _jax.wrap_key(x[:, 0], var.aval) if _jax.is_key(var.aval) else x[:, 0]
        for x, var in zip(out[:count], linked.program.entry_function.results, strict=True)
    ]
    code, site = (x[:, 0] for x in out[count : count + 2])
    ticks, *counted, deepest = out[count + 2 :]
    if whole is not None:
        whole.ended(code, code, counted[-1].astype(jnp.int32), deepest)
    counted = [x.sum(dtype=jnp.float32) for x in counted]
    stats = [ticks.sum(dtype=jnp.int32), *counted, deepest.max(initial=0)]
    return [*values, *totals], code, site, stats


def _as_lane(row: Any, aval: Any) -> Any:
    """A row of stored words as a batch of one value."""
    return _as_shared(row[None], aval)


def _as_shared(value: Any, aval: Any) -> Any:
    return _jax.wrap_key(value, aval) if _jax.is_key(aval) else value


def missing(linked: Linked) -> str | None:
    """The first operation, with its line, that XLA:CPU's one-function code cannot have."""
    return next(_unavailable(_all_eqns(linked)), None)


def _all_eqns(linked: Linked) -> Iterable[JaxprEqn]:
    for _, block in linked.program.all_blocks():
        yield from block.eqns


def _unavailable(eqns: Iterable[JaxprEqn], around: str = "") -> Iterator[str]:
    """The operations, and their lines, that XLA:CPU's one-function code cannot have."""
    for eqn in eqns:
        line = _jax.user_line(eqn) or around
        if not runs_in_one_function(eqn):
            yield f"{eqn.primitive.name} ({line})"
        for inner in _jax.subjaxprs(eqn):
            yield from _unavailable(inner.eqns, line)
