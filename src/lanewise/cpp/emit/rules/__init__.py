"""The table that rules fill: what each JAX primitive becomes in a kernel.

A rule writes the code of one equation: it reads operands with `writer.value(atom)`, and binds every outvar, with
`define` (to a value that needs no code), `compute` (an expression for each element, fused into its reader where that is
read once) or `store` and `put` (element by element). A rule that meets what it cannot write raises `Unsupported`. The
C++ functions that it names are in `cpp/runtime` (`runtime.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lanewise._jax import JaxprEqn

# A function of the writer (`writer.py`, which reads this table) and the equation.
Rule = Callable[[Any, JaxprEqn], None]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of these primitives."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


class Unsupported(Exception):
    """Signal: a kernel cannot hold this equation; `why` says it, and the writer adds which equation it is."""

    def __init__(self, why: str, operation: str = "", line: str = "") -> None:
        super().__init__(f"{operation}: {why} ({line})" if operation else why)
        self.why, self.operation, self.line = why, operation, line
