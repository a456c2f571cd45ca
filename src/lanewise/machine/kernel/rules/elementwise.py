"""Elementwise primitives."""

from __future__ import annotations

from lanewise._jax import JaxprEqn
from lanewise.machine.kernel.rules import rule
from lanewise.machine.kernel.writer import Writer


@rule("add", "add_any")
def _add(w: Writer, eqn: JaxprEqn) -> None:
    w.map(eqn.outvars[0], lambda a, b: f"({a} + {b})", *map(w.value, eqn.invars))
