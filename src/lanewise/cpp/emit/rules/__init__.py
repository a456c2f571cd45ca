"""The tables that rules fill: what each JAX primitive becomes in a kernel, and the C++ functions that kernels call.

A rule writes the code of one equation: it reads operands with `writer.value(atom)`, and binds every outvar, with
`define` (to a value that needs no code), `compute` (an expression for each element, fused into its reader where that is
read once) or `store` and `put` (element by element). A rule that meets what it cannot write raises `Unsupported`.

`HELPERS` maps the name of a function or type to its text, in CUDA C++ that is host C++17 as well; the emitter adds
those that a kernel names, and those they name, so that a rule just writes the name. Every function's name starts with
`lw_`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lanewise._jax import JaxprEqn
from lanewise.core.primitives.facts import too_large_alone

# A function of the writer (`writer.py`, which reads this table) and the equation.
Rule = Callable[[Any, JaxprEqn], None]

RULES: dict[str, Rule] = {}
HELPERS: dict[str, str] = {}


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


def rule_for(eqn: JaxprEqn) -> Rule | None:
    """The rule of an equation's primitive, if it has one; raises where the plain algorithm is not for its size."""
    too_large = too_large_alone(eqn)
    if too_large is not None:
        raise Unsupported(too_large)
    return RULES.get(eqn.primitive.name)


def helpers(texts: dict[str, str]) -> None:
    """Add functions to the table. A text may hold several overloads of its name."""
    HELPERS.update({name: text.strip() for name, text in texts.items()})


def overloads(name: str, host: str, *, arguments: int = 1, double_host: str = "") -> str:
    """A function for both precisions, whose `float32` version on the host has this body.

    `double_host`: what the `float64` version on the host does first.
    """
    letters = "ab"[:arguments]
    given = ", ".join(letters)
    single, double = (
        ", ".join(f"{kind} {letter}" for letter in letters) for kind in ("float32", "float64")
    )
    first = f"#ifndef __CUDACC__\n{double_host.strip()}\n#endif\n" if double_host else ""
    return f"""
#ifdef __CUDACC__
LW_FUNCTION float32 lw_{name}({single}) {{ return {name}f({given}); }}
#else
LW_FUNCTION float32 lw_{name}({single}) {{
{host.strip()}
}}
#endif
LW_FUNCTION float64 lw_{name}({double}) {{
{first}  return {name}({given});
}}"""


def needed(text: str) -> str:
    """The helpers that a text names, and those they name, each after what it names itself."""
    found: dict[str, str] = {}
    seen: set[str] = set()

    def visit(body: str) -> None:
        for name in re.findall(r"\w+", body):
            if name in HELPERS and name not in seen:
                seen.add(name)
                visit(HELPERS[name])
                found[name] = HELPERS[name]

    visit(text)
    return "\n".join(found.values())
