"""What is known of a loop's state without saving it: what never changes, and counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from lanewise import _jax


@dataclass(frozen=True)
class Known:
    """`steps`: by how much counters go up, 0 for what never changes; `depends`: what each part is computed from."""

    depends: tuple[frozenset[int], ...]
    steps: dict[int, int]

    @staticmethod
    def of(body: _jax.Jaxpr, num_fixed: int, init: Sequence[Any]) -> Known:
        own = body.invars[num_fixed:]
        made = {v: eqn for eqn in body.eqns for v in eqn.outvars}
        steps: dict[int, int] = {}
        for i, (var, out) in enumerate(zip(own, body.outvars, strict=True)):
            if out is var:
                steps[i] = 0
            eqn = None if isinstance(out, _jax.Literal) else made.get(out)
            whole = jnp.issubdtype(var.aval.dtype, jnp.integer) and not var.aval.shape
            if eqn is not None and whole and eqn.primitive.name == "add":
                for a, b in (eqn.invars, eqn.invars[::-1]):
                    if a is var and isinstance(b, _jax.Literal):
                        steps[i] = int(np.asarray(b.val))
        depends = tuple(
            frozenset(
                i for i, used in enumerate(_jax.used_inputs(_only(body, at))[num_fixed:]) if used
            )
            for at in range(len(init))
        )
        return Known(depends, steps)

    def needed(self, read: Sequence[bool], number: int) -> list[int]:
        """The state to keep, given what is read: that, and what it depends on from one iteration to the next."""
        found = {i for i in range(number) if read[i]}
        while True:
            more = found.union(*(self.depends[i] for i in found if i not in self.steps))
            if more == found:
                return sorted(found - self.steps.keys())
            found = more

    def state(self, init: Sequence[Any], at: Any) -> list[Any]:
        """The state before iteration `at`, as far as it is known."""
        found = list(init)
        for i, step in self.steps.items():
            if step:
                aval = _jax.aval_of(init[i])
                found[i] = _jax.convert_to_aval(init[i] + at.astype(aval.dtype) * step, aval)
        return found


def _only(jaxpr: _jax.Jaxpr, at: int) -> _jax.Jaxpr:
    return _jax.new_jaxpr(jaxpr.invars, [jaxpr.outvars[at]], jaxpr.eqns)
