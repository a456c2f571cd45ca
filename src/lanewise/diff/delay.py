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
from lanewise.core.primitives.facts import adds_at
from lanewise.diff.common import shared

# Arrays of this few elements are copied as fast as they are written.
FEWEST_ELEMENTS = 32


@dataclass(frozen=True)
class Write:
    """One write to an array: an equation that overwrites or adds; or, with `read`, one that adds to what it reads."""

    eqn: _jax.JaxprEqn
    read: tuple[_jax.JaxprEqn, _jax.JaxprEqn] | None = None

    @property
    def operands(self) -> list[_jax.Atom]:
        """What it takes besides the array."""
        if self.read is None:
            return list(self.eqn.invars[1:])
        taken, added = self.read
        part = next(a for a in added.invars if a is not taken.outvars[0])
        return [part, *taken.invars[1:], *self.eqn.invars[2:]]

    @property
    def eqns(self) -> list[_jax.JaxprEqn]:
        return [*(self.read or ()), self.eqn]

    def nothing(self, array: Any) -> list[Any]:
        """Operands with which the write changes nothing."""
        avals = [a.aval for a in self.operands]
        if self.eqn.primitive.name == "dynamic_update_slice":
            # What is at the first place, or nothing added to it.
            at_first = [_jax.zeros(a) for a in avals[1:]]
            if self.read is not None:
                return [_neutral(avals[0]), *at_first]
            return [lax.slice(array, [0] * array.ndim, avals[0].shape), *at_first]
        indices, updates = avals
        return [
            jnp.full(indices.shape, _outside(indices.dtype), indices.dtype),
            _jax.zeros(updates),
        ]

    def made(self, array: Any, operands: Sequence[Any]) -> Any:
        if self.read is not None:
            taken, added = self.read
            num_starts = len(taken.invars) - 1
            part, starts, places = (
                operands[0],
                operands[1 : 1 + num_starts],
                operands[1 + num_starts :],
            )
            (old,) = _jax.run_eqn(taken, [array, *starts])
            (new,) = _jax.run_eqn(added, [old, part])
            return _jax.run_eqn(self.eqn, [array, new, *places])[0]
        if self.eqn.primitive.name == "dynamic_update_slice":
            return _jax.run_eqn(self.eqn, [array, *operands])[0]
        params = {**self.eqn.params, "mode": lax.GatherScatterMode.FILL_OR_DROP}
        return _jax.run_eqn(self.eqn.replace(params=params), [array, *operands])[0]


@dataclass(frozen=True)
class _Writes:
    """Writes that are put off, one after the other: of the input `taken`, giving the result `given`."""

    taken: int
    given: int
    each: tuple[Write, ...]

    def made(self, array: Any, operands: Sequence[Sequence[Any]]) -> Any:
        for write, own in zip(self.each, operands, strict=True):
            array = write.made(array, own)
        return array


@dataclass(frozen=True)
class Delayed:
    """Code of a loop's iteration with some of its writes put off; `run` takes and gives what is still to be written.

    An index that several writes take is kept once (`places` says where each operand is), so that XLA sees that they
    write to the same place.
    """

    jaxpr: _jax.Jaxpr
    writes: tuple[_Writes, ...]
    places: tuple[int, ...]

    def start(self, inputs: Sequence[Any]) -> list[Any]:
        """Nothing to be written, at the first inputs of the loop."""
        each = [x for ws in self.writes for w in ws.each for x in w.nothing(inputs[ws.taken])]
        return list(dict(zip(self.places, each, strict=True)).values())

    def _operands(self, left: Sequence[Any]) -> list[list[list[Any]]]:
        """What is left to be written, for each write."""
        given = iter(self.places)
        return [[[left[next(given)] for _ in w.operands] for w in ws.each] for ws in self.writes]

    def run(self, inputs: Sequence[Any], left: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        inputs = list(inputs)
        for writes, operands in zip(self.writes, self._operands(left), strict=True):
            inputs[writes.taken] = writes.made(inputs[writes.taken], operands)
        outs = _jax.eval_jaxpr(self.jaxpr, *inputs)
        number = len(outs) - len(left)
        return outs[:number], outs[number:]

    def finish(self, outs: Sequence[Any], left: Sequence[Any]) -> list[Any]:
        """The results of the last iteration, with what was left to be written."""
        outs = list(outs)
        for writes, operands in zip(self.writes, self._operands(left), strict=True):
            outs[writes.given] = writes.made(outs[writes.given], operands)
        return outs


def delayed(jaxpr: _jax.Jaxpr, carried: Sequence[tuple[int, int]]) -> Delayed:
    """Put off writes to what is carried: pairs of an input and the result it is in the next iteration, by number."""
    jaxpr = shared(jaxpr)
    uses = Uses(jaxpr)
    found: list[_Writes] = []
    for taken, given in carried:
        var = jaxpr.invars[taken]
        each = uses.writes_between(var, jaxpr.outvars[given])
        if not each or math.prod(var.aval.shape) < FEWEST_ELEMENTS:
            continue
        own = {id(eqn) for write in each for eqn in write.eqns}
        others = [reader for reader in uses.readers[var] if id(reader) not in own]
        if not all(uses.leads_to(reader, own) for reader in others):
            found.append(_Writes(taken, given, tuple(each)))
    outs = list(jaxpr.outvars)
    skipped: set[int] = set()
    kept: list[_jax.Atom] = []
    places: list[int] = []
    for writes in found:
        outs[writes.given] = jaxpr.invars[writes.taken]
        skipped.update(id(eqn) for write in writes.each for eqn in write.eqns)
        for atom in (a for write in writes.each for a in write.operands):
            index = jnp.issubdtype(atom.aval.dtype, jnp.integer)
            at = next((i for i, other in enumerate(kept) if index and other is atom), len(kept))
            kept += [atom] if at == len(kept) else []
            places.append(at)
    eqns = [eqn for eqn in jaxpr.eqns if id(eqn) not in skipped]
    code = _jax.new_jaxpr(jaxpr.invars, [*outs, *kept], eqns)
    return Delayed(code, tuple(found), tuple(places))


def _outside(dtype: Any) -> int:
    """An index that is out of range of any array; see `_has_outside`."""
    return -1 if jnp.issubdtype(dtype, jnp.signedinteger) else int(jnp.iinfo(dtype).max)


def _has_outside(scatter: _jax.JaxprEqn) -> bool:
    """Whether the indices' type holds one that is out of range: `uint8` does not, for an array of 300 elements."""
    array, indices = scatter.invars[0].aval, scatter.invars[1].aval
    return _outside(indices.dtype) not in range(max(array.shape, default=0))


def _neutral(aval: _jax.ShapedArray) -> Any:
    """What changes nothing if added to it: not 0, which makes 0 of -0."""
    zeros = _jax.zeros(aval)
    return lax.neg(zeros) if jnp.issubdtype(aval.dtype, jnp.inexact) else zeros


class Uses:
    """What makes and what reads the values of some code."""

    def __init__(self, jaxpr: _jax.Jaxpr) -> None:
        self.made = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
        self.readers: dict[_jax.Var, list[_jax.JaxprEqn | None]] = {v: [] for v in jaxpr.invars}
        reads = [(a, eqn) for eqn in jaxpr.eqns for a in eqn.invars]
        for atom, reader in (*reads, *((a, None) for a in jaxpr.outvars)):
            if not isinstance(atom, _jax.Literal):
                self.readers.setdefault(atom, []).append(reader)

    def writes_between(self, first: _jax.Var, last: _jax.Atom) -> list[Write]:
        """The writes that make one array of another, in order, if nothing else reads the arrays between."""
        found: list[Write] = []
        reader: _jax.JaxprEqn | None = None
        while last is not first:
            eqn = None if isinstance(last, _jax.Literal) else self.made.get(last)
            write = None if eqn is None else self.write(eqn)
            if eqn is None or write is None:
                return []
            # Between writes only the next one reads the array.
            after = found[0].eqns if found else [reader]
            if any(not any(r is e for e in after) for r in self.readers[eqn.outvars[0]]):
                return []
            found.insert(0, write)
            last = eqn.invars[0]
        return found

    def write(self, eqn: _jax.JaxprEqn) -> Write | None:
        name = eqn.primitive.name
        if name == "scatter" or adds_at(eqn):
            clips = eqn.params["mode"] == lax.GatherScatterMode.CLIP
            return None if clips or len(eqn.invars) != 3 or not _has_outside(eqn) else Write(eqn)
        if name != "dynamic_update_slice":
            return None
        part = eqn.invars[1]
        if isinstance(part, _jax.Literal):
            return Write(eqn)
        added = self.made.get(part)
        if added is not None and added.primitive.name == "add" and self.readers[part] == [eqn]:
            for atom in added.invars:
                taken = None if isinstance(atom, _jax.Literal) else self.made.get(atom)
                reads = taken is not None and taken.primitive.name == "dynamic_slice"
                if taken is not None and reads and taken.invars[0] is eqn.invars[0]:
                    if self.readers[taken.outvars[0]] == [added]:
                        return Write(eqn, (taken, added))
        return Write(eqn)

    def leads_to(self, reader: _jax.JaxprEqn | None, writes: set[int]) -> bool:
        """Whether what a reader reads is for the writes alone, so that it comes before them."""
        while reader is not None and id(reader) not in writes:
            after = [r for v in reader.outvars for r in self.readers.get(v, [])]
            if len(after) != 1:
                return False
            reader = after[0]
        return reader is not None
