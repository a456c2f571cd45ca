"""A job that is run by levels, with its control decided: what is left is a function of its operands."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.core import compiling
from lanewise.core.errors import Outcome
from lanewise.core.outcomes import blank
from lanewise.core.program import Program
from lanewise.dynamic.answers import Values
from lanewise.dynamic.code import NotSliced
from lanewise.dynamic.levels import ByLevels, by_levels
from lanewise.dynamic.run import STORE
from lanewise.job.job import Job, Mapped, lanes_first
from lanewise.job.plan import shaped


def own(job: Job) -> ByLevels:
    """What runs all of a job by levels: with loops on values inside levels only where there is no other way.

    Raises `NotSliced`.
    """
    params = (job.program, job.varying, job.options.max_depth)
    try:
        return by_levels(*params)
    except NotSliced:
        if job.options.schedule != "levels":
            raise
        return by_levels(*params, loops=True)


@dataclass(frozen=True, eq=False)
class Decision:
    """A job whose control is decided: what is left is a function of its operands, which may be traced.

    A pytree. `code`, `site` and `failed` (which lanes did) are None where none failed.
    """

    job: Job
    values: Values
    code: Any
    site: Any
    failed: Any

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        """The job's results. Tables go to the device with each run."""
        flat = flattened(operands, self.job)
        with _jax.our_transfers():
            return self._given(self.values(flat))

    def traced(self, operands: Sequence[Any]) -> list[Any]:
        """The same inside `jax.jit`, with the derivatives of a table."""
        return self._given(self.values.traced(flattened(operands, self.job)))

    def saving(self, operands: Sequence[Any], active: Sequence[bool]) -> tuple[list[Any], Any]:
        """The same, and what the reverse reads."""
        flat = flattened(operands, self.job)
        with _jax.our_transfers():
            answers, kept = self.values.saving(flat, active)
            return self._given(answers), kept

    def of_lanes_done(self, rows: Any, otherwise: Any = 0) -> Any:
        """Rows of all lanes, with this for those that failed."""
        if self.failed is None:
            return rows
        failed = self.failed.reshape(-1, *[1] * (rows.ndim - 1))
        return jnp.where(failed, otherwise, rows).astype(rows.dtype)

    def _given(self, answers: list[Any]) -> list[Any]:
        job, code, site = self.job, self.code, self.site
        answers = [self.of_lanes_done(x, blank(x.dtype)) for x in answers]
        for i in _keys(job.program)[1]:
            answers[i] = _jax.wrap_key(answers[i], job.program.out_avals[i])
        if code is None:
            code, site = np.zeros(job.examples, np.int32), np.full(job.examples, -1, np.int32)
        if not job.options.throw:
            code, site = jnp.asarray(code), jnp.asarray(site)
        return shaped((answers, code, site, []), job)


jax.tree_util.register_dataclass(
    Decision, data_fields=["values", "code", "site", "failed"], meta_fields=["job"]
)


def flattened(operands: Sequence[Any], job: Job, mapped: Mapped | None = None) -> list[Any]:
    """Operands with one lane axis, typed PRNG keys as the integers that they are made of."""
    keys, _ = _keys(job.program)
    if keys:
        operands = [
            x if x is None or i not in keys else jax.random.key_data(x)
            for i, x in enumerate(operands)
        ]
    return lanes_first(operands, job.lanes, mapped or job.mapped)[0]


@functools.lru_cache(maxsize=512)
def _keys(program: Program) -> tuple[frozenset[int], frozenset[int]]:
    """The operands and the answers that are typed PRNG keys."""
    both = (program.operand_avals, program.out_avals)
    operands, answers = (
        frozenset(i for i, aval in enumerate(avals) if _jax.is_key(aval)) for avals in both
    )
    return operands, answers


def decided(job: Job, operands: Sequence[Any], *, gradient: bool) -> Decision:
    """Run the slice; it reads only the operands that decide, and control has no derivative."""
    by = own(job)
    flags = [i in by.reads for i in range(len(operands))]
    read = [_jax.without_derivative(x) if f else None for x, f in zip(operands, flags, strict=True)]
    mapped = tuple(
        axes if flag else (False,) * len(job.lanes)
        for axes, flag in zip(job.mapped, flags, strict=True)
    )
    found = by.decide(flattened(read, job, mapped), job.examples)
    made = STORE.made
    values = by.values(found, job.examples, gradient=gradient)
    if STORE.made > made:
        # From here on the envelope takes long, not the slice.
        words = "schedule levels: an envelope for minibatches like this one"
        compiling.watch(job.program.name, words, job.options.progress, new=True)
    failed = found.code != int(Outcome.DONE)
    ended = (found.code, found.site, failed) if failed.any() else (None, None, None)
    return Decision(job, values, *ended)
