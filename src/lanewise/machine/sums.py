"""What a block adds to the sums that all lanes share.

Each `accumulate` of the block is summed over the lanes that run it (`core/summed.py`): an outer product of two values
of each lane is one product of matrices. Where all of these lanes add at the same index (a layer's weights, looked up by
lanes that agree: `together.py`), their sum is added there once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.blocks.form import Block, reads
from lanewise.blocks.link import Linked
from lanewise.core.accumulate import accumulate_p, accumulated
from lanewise.core.summed import (
    Look,
    RowSum,
    add_rows_at,
    add_rows_in_slices,
    row_sum,
)
from lanewise.machine.together import same_value


@dataclass(frozen=True)
class BlockSums:
    """The sums of a block. `needs`: the variables whose values they take, those of `varying` for each lane."""

    eqns: tuple[JaxprEqn, ...]
    totals: tuple[RowSum, ...]
    needs: tuple[Var, ...]
    varying: frozenset[Var]
    common: Mapping[Var, Any]

    @staticmethod
    def of(
        block: Block,
        linked: Linked,
        shared: Mapping[int, Mapping[Any, Any]],
    ) -> BlockSums:
        """What a block adds; `shared`: the indices that its lanes have in common, by the equation that reads there."""
        is_uniform = frozenset(linked.uniforms).__contains__
        eqns = tuple(eqn for eqn in block.eqns if eqn.primitive is accumulate_p)
        if not eqns:
            return BlockSums((), (), (), frozenset(), {})
        varying = _jax.reached(block.eqns, (v for v in reads(block) if not is_uniform(v)))
        agreed = {var: x for indices in shared.values() for var, x in indices.items()}
        common: dict[Var, Any] = {}
        for atom in (a for eqn in eqns for a in eqn.invars):
            twin = next((v for v in agreed if same_value(block.eqns, v, atom)), None)
            if twin is not None and not isinstance(atom, Literal):
                common[atom] = agreed[twin]
        transposes = not linked.profile.host_reads_guards
        totals = tuple(
            row_sum(block.eqns, _added(eqn), varying, transposes=transposes) for eqn in eqns
        )
        wanted = [
            *itertools.chain.from_iterable(total.needs for total in totals),
            *(a for eqn in eqns for a in eqn.invars if len(eqn.invars) > 1),
        ]
        needs = dict.fromkeys(a for a in wanted if not isinstance(a, Literal) and a not in common)
        return BlockSums(eqns, totals, tuple(needs), frozenset(varying), common)

    def only(self, chosen: Callable[[JaxprEqn, RowSum], bool]) -> BlockSums:
        """The sums that are chosen."""
        pairs = [(e, t) for e, t in zip(self.eqns, self.totals, strict=True) if chosen(e, t)]
        wanted = {
            *itertools.chain.from_iterable(total.needs for _, total in pairs),
            *(a for e, _ in pairs for a in e.invars if len(e.invars) > 1 and isinstance(a, Var)),
        }
        return replace(
            self,
            eqns=tuple(eqn for eqn, _ in pairs),
            totals=tuple(total for _, total in pairs),
            needs=tuple(var for var in self.needs if var in wanted),
        )

    def added(self, sums: Sequence[Any], values: Sequence[Any], mask: Any) -> tuple[Any, ...]:
        """The sums with what the lanes of the mask add, where these are the values of what is needed."""
        known: dict[Var, Any] = {**dict(zip(self.needs, values, strict=True)), **self.common}

        def look(atom: Atom) -> Any:
            if isinstance(atom, Literal):
                return jnp.asarray(atom.val, atom.aval.dtype)
            return known[atom]

        found = list(sums)
        for eqn, total in zip(self.eqns, self.totals, strict=True):
            number = eqn.params["number"]
            found[number] = self._with(eqn, total, found[number], look, mask)
        return tuple(found)

    def _with(self, eqn: JaxprEqn, total: RowSum, whole: Any, look: Look, mask: Any) -> Any:
        if eqn.params["places"] is not None:
            indices, updates = eqn.invars
            params = eqn.params["places"]._asdict()
            if not self._varies(indices):
                return accumulated(eqn.params, whole, [look(indices), total.total(look, mask)])
            rows = mask.shape[0]
            return add_rows_at(params, whole, look(indices), self._rows(updates, look, rows), mask)
        part, *starts = eqn.invars
        if not any(map(self._varies, starts)):
            own = [total.total(look, mask), *map(look, starts)]
            return accumulated(eqn.params, whole, own)
        parts = self._rows(part, look, mask.shape[0])
        return add_rows_in_slices(whole, parts, [look(a) for a in starts], mask)

    def _varies(self, atom: Atom) -> bool:
        return not isinstance(atom, Literal) and atom in self.varying and atom not in self.common

    def _rows(self, atom: Atom, look: Look, rows: int) -> Any:
        value = look(atom)
        return value if self._varies(atom) else jnp.broadcast_to(value, (rows, *atom.aval.shape))


def _added(eqn: JaxprEqn) -> Atom:
    """What an `accumulate` adds."""
    return eqn.invars[1 if eqn.params["places"] is not None else 0]
