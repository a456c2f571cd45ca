"""Loops whose state is an array that is read and then written at a place: the write is put off to the next iteration.

`u = a[i]; a = a.at[i].set(v)` needs the old array for `u` and the new one for the next iteration. XLA writes in place
only if nothing reads the old array after the write, and it will not see that where it copies the read into each place
that uses `u`: then it copies the whole array in each iteration, and a loop over the array costs its square. (The
reverse of a write is of this kind: it reads the adjoint at the place, and clears it.) So each iteration begins with the
write of the one before it, and the last write is made after the loop. Every read then sees the array that the iteration
goes on with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise import _jax

_WRITES = ("scatter", "scatter-add", "scatter_add", "dynamic_update_slice")
# Arrays of so few elements are copied as fast as they are written.
FEWEST_ELEMENTS = 32


@dataclass(frozen=True)
class _Write:
    """A write that is put off: of the input `taken` to the result `given`."""

    taken: int
    given: int
    eqn: _jax.JaxprEqn

    @property
    def avals(self) -> list[_jax.ShapedArray]:
        return [a.aval for a in self.eqn.invars[1:]]

    def nothing(self, array: Any) -> list[Any]:
        """Operands with which the write changes nothing."""
        if self.eqn.primitive.name == "dynamic_update_slice":
            part, *starts = self.avals
            first = [jnp.zeros(a.shape, a.dtype) for a in starts]
            return [lax.dynamic_slice(array, first, part.shape), *first]
        indices, updates = self.avals
        # Out of range, so it is dropped.
        return [jnp.full(indices.shape, -1, indices.dtype), _jax.zeros(updates)]

    def made(self, array: Any, operands: Sequence[Any]) -> Any:
        if self.eqn.primitive.name == "dynamic_update_slice":
            return _jax.run_eqn(self.eqn, [array, *operands])[0]
        params = {**self.eqn.params, "mode": lax.GatherScatterMode.FILL_OR_DROP}
        return _jax.run_eqn(self.eqn.replace(params=params), [array, *operands])[0]


@dataclass(frozen=True)
class Delayed:
    """Code of a loop's iteration with some of its writes put off; `run` takes and gives what is still to be written."""

    jaxpr: _jax.Jaxpr
    writes: tuple[_Write, ...]

    def start(self, inputs: Sequence[Any]) -> list[list[Any]]:
        """Nothing to be written, at the first inputs of the loop."""
        return [w.nothing(inputs[w.taken]) for w in self.writes]

    def run(
        self, inputs: Sequence[Any], left: Sequence[Sequence[Any]]
    ) -> tuple[list[Any], list[Any]]:
        inputs = list(inputs)
        for write, operands in zip(self.writes, left, strict=True):
            inputs[write.taken] = write.made(inputs[write.taken], operands)
        outs = _jax.eval_jaxpr(self.jaxpr, *inputs)
        counts = [len(w.avals) for w in self.writes]
        tail = outs[len(outs) - sum(counts) :]
        pending = []
        for count in counts:
            pending.append(tail[:count])
            tail = tail[count:]
        return outs[: len(outs) - sum(counts)], pending

    def finish(self, outs: Sequence[Any], left: Sequence[Sequence[Any]]) -> list[Any]:
        """The results of the last iteration, with what was left to be written."""
        outs = list(outs)
        for write, operands in zip(self.writes, left, strict=True):
            outs[write.given] = write.made(outs[write.given], operands)
        return outs


def delayed(jaxpr: _jax.Jaxpr, carried: Sequence[tuple[int, int]]) -> Delayed:
    """Put off writes to what is carried: pairs of an input and the result it is in the next iteration, by number."""
    made = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    readers: dict[_jax.Var, list[_jax.JaxprEqn | None]] = {}
    for eqn in jaxpr.eqns:
        for atom in eqn.invars:
            if not isinstance(atom, _jax.Literal):
                readers.setdefault(atom, []).append(eqn)
    for atom in jaxpr.outvars:
        if not isinstance(atom, _jax.Literal):
            readers.setdefault(atom, []).append(None)
    writes = []
    for taken, given in carried:
        var, out = jaxpr.invars[taken], jaxpr.outvars[given]
        eqn = None if isinstance(out, _jax.Literal) else made.get(out)
        if eqn is None or eqn.primitive.name not in _WRITES or eqn.invars[0] is not var:
            continue
        out = eqn.outvars[0]
        others = [reader for reader in readers[var] if reader is not eqn]
        once = readers[out] == [None] and readers[var].count(eqn) == 1
        large = math.prod(var.aval.shape) >= FEWEST_ELEMENTS
        if (
            once
            and large
            and not all(_leads_to(r, eqn, readers) for r in others)
            and _droppable(eqn)
        ):
            writes.append(_Write(taken, given, eqn))
    outs = list(jaxpr.outvars)
    for write in writes:
        outs[write.given] = jaxpr.invars[write.taken]
        outs += write.eqn.invars[1:]
    skipped = {id(write.eqn) for write in writes}
    eqns = [eqn for eqn in jaxpr.eqns if id(eqn) not in skipped]
    return Delayed(_jax.new_jaxpr(jaxpr.invars, outs, eqns), tuple(writes))


def _droppable(eqn: _jax.JaxprEqn) -> bool:
    """Whether a write may be one that is dropped: not if its indices are clipped into range."""
    return eqn.primitive.name == "dynamic_update_slice" or (
        eqn.params["mode"] != lax.GatherScatterMode.CLIP and len(eqn.invars) == 3
    )


def _leads_to(
    reader: _jax.JaxprEqn | None, write: _jax.JaxprEqn, readers: dict[_jax.Var, list[Any]]
) -> bool:
    """Whether what a reader reads is for the write alone, so that it comes before it."""
    while reader is not None and reader is not write:
        after = [r for v in reader.outvars for r in readers.get(v, [])]
        if len(after) != 1:
            return False
        reader = after[0]
    return reader is write
