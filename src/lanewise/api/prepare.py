"""`lanewise.prepare`: the control of a program over trees, ahead of its values.

`schedule="levels"` runs a program in two halves: its control on the host, then its values level by level. The first
half depends on the data and not on the weights. So it can be done ahead, on a thread of a data loader. What it gives
can be an argument of `jax.jit`: then the second half is inside a training step, with its gradient and the optimizer, in
one compiled function, and a step pays JAX's way to a compiled function once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lanewise import _jax
from lanewise.api.batched import Arguments, Batched, batched, program_of
from lanewise.carriers.decided import Decision, decided
from lanewise.carriers.levels import can_decide, in_parts, obstacle
from lanewise.core.errors import OptionError
from lanewise.core.program import throw_p
from lanewise.job.job import Job
from lanewise.tracing.signature import as_hashable, is_array_like


@dataclass(frozen=True, eq=False)
class _Call:
    """What prepared calls with arguments of some types have in common: one object, which is cheap to compare."""

    batch: Batched
    job: Job
    in_axes: Any
    tree: Any
    types: tuple[Any, ...]


@dataclass(frozen=True)
class Prepared:
    """A program over a batch whose control is decided: a function of the same arguments, and a pytree.

    It can be an argument of `jax.jit`, which compiles once for all that have the same envelope. It reads the arguments
    for values alone: what decided control is not looked at again.
    """

    call: _Call
    decision: Decision

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = Arguments.of(args, kwargs, self.call.in_axes)
        call, batch = self.call, self.call.batch
        types = tuple(map(_shape_of, given.leaves))
        if given.tree != call.tree or types != call.types:
            raise OptionError(
                f"`{batch.program.__name__}` was prepared for other arguments:{_difference(call, given, types)}"
                " Give those that `prepare` was called with, or ones of their shapes and types."
            )
        results = self.decision.traced(batch.operands(given.leaves))
        return batch.program.returned(batch.staged, results)


jax.tree_util.register_dataclass(Prepared, data_fields=["decision"], meta_fields=["call"])


def prepare(
    fun: Callable[..., Any], in_axes: Any = 0, *, gradient: bool = True, **options: Any
) -> Callable[..., Prepared]:
    """Decide the control of a batched program ahead of its values (`schedule="levels"`).

    Gives a function of the program's arguments. What it returns is called with the same arguments, most often inside
    `jax.jit`, and gives what `lanewise.vmap(fun, in_axes)` does. Lanes that fail raise here, unless `throw=False`.

    * `gradient`: whether derivatives will be taken; without them less is prepared.

    >>> import jax, jax.numpy as jnp
    >>> import lanewise as lw
    >>> @lw.record
    ... class Tree:
    ...     value: float
    ...     left: "Tree | None" = None
    ...     right: "Tree | None" = None
    >>> @lw.program
    ... def total(tree, w):
    ...     if tree is None:
    ...         return 0.0
    ...     return tree.value + w * (total(tree.left, w) + total(tree.right, w))
    >>> ready_for = lw.prepare(total, in_axes=(0, None))
    >>> @jax.jit
    ... def slope(w, forest, ready):
    ...     return jax.grad(lambda w: ready(forest, w).sum())(w)
    >>> w = jnp.float32(0.5)
    >>> for trees in ([Tree(1.0, Tree(2.0), Tree(3.0))], [Tree(4.0, Tree(1.0, Tree(2.0)))]):
    ...     forest = lw.pack(trees)
    ...     print(slope(w, forest, ready_for(forest, w)))
    5.0
    3.0
    """
    if options.get("schedule", "levels") != "levels":
        raise OptionError(
            f"schedule={options['schedule']!r}: what prepare decides ahead is run by levels. Leave schedule out, or use"
            " `lanewise.vmap`."
        )
    program = program_of(fun, {}, "prepare").with_options(**{**options, "schedule": "levels"})
    cached: dict[Hashable, _Call] = {}

    def call(*args: Any, **kwargs: Any) -> Prepared:
        given = Arguments.of(args, kwargs, in_axes)
        types = tuple(map(_type_of, given.leaves))
        key = (given.tree, types, _jax.trace_context())
        found = cached.get(key)
        if found is None:
            batch = batched(program_of(program, kwargs, "prepare"), given)
            operands = batch.operands(given.leaves)
            job = _job_of(batch, operands)
            shapes = tuple(map(_shape_of, given.leaves))
            found = cached[key] = _Call(batch, job, in_axes, given.tree, shapes)
        else:
            found.batch.staged.captured.check()
            operands = found.batch.operands(given.leaves)
        return _prepared(found, operands, gradient)

    call.__name__ = f"prepare_{program.__name__}"
    call.__doc__ = f"`{program.__name__}` with its control decided for these arguments."
    return call


def _job_of(batch: Batched, operands: Sequence[Any]) -> Job:
    job = batch.job(operands)
    name = batch.program.__name__
    refused = obstacle(job)
    if refused is not None:
        raise OptionError(
            f"prepare cannot decide the control of `{name}` ahead of its values: {refused}."
            " Use `lanewise.vmap`."
        )
    parts = in_parts(job)
    if parts is not None:
        raise OptionError(
            f"prepare decides all of a program's control, and that of `{name}` can only be decided in part (calls of"
            f" {', '.join(parts.split.calls)}). Use `lanewise.vmap`, outside of jit."
        )
    return job


def _prepared(call: _Call, operands: Sequence[Any], gradient: bool) -> Prepared:
    job, name = call.job, call.batch.program.__name__
    if not can_decide(job, operands):
        raise OptionError(
            f"prepare needs the values that decide the control of `{name}`: call it outside of jit, and give what it"
            " returns to the function that is compiled."
        )
    decision = decided(job, operands, gradient=gradient)
    if job.options.throw and decision.failed is not None:
        throw_p.bind(decision.code, decision.site, sites=job.program.sites, name=name)
    return Prepared(call, decision)


def _type_of(leaf: Any) -> Any:
    """What a trace depends on of a leaf: all of it where it is no array."""
    if type(leaf) is _jax.ArrayImpl:
        return leaf.aval
    if type(leaf) is np.ndarray:
        return leaf.shape, leaf.dtype
    return _jax.aval_of(leaf) if is_array_like(leaf) else as_hashable(leaf)


def _shape_of(leaf: Any) -> Any:
    """What must be the same in a call of what was prepared; weak types need not be."""
    return _jax.aval_of(leaf).str_short() if is_array_like(leaf) else as_hashable(leaf)


def _difference(call: _Call, given: Arguments, types: tuple[Any, ...]) -> str:
    if given.tree != call.tree:
        return f" {given.tree} for {call.tree}."
    pairs = zip(call.types, types, strict=True)
    return "".join(f" {now} for {before}." for before, now in pairs if now != before)
