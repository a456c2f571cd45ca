"""What each JAX primitive becomes in a kernel, and the C++ that kernels are made of beside that.

A rule writes the code of one equation: it reads operands with `writer.value(atom)`, and binds every outvar, with
`define` (to a value that needs no code), `compute` (an expression for each element, fused into its reader where that is
read once) or `store` and `put` (element by element). A rule that meets what it cannot write raises `Unsupported`.

The rest is in the headers of `cpp/runtime`, one for each concept. Every kernel begins with `kernel.h`. From the others
it gets what it needs, as a C++ compiler takes long to compile all: they consist of *helpers*, each known by the name in
the line above it (`// -- lw_sign --`; overloads of a name are one helper), and of numbers that are defined at the top.
The emitter adds the helpers that a kernel names, and those they name, so that a rule just writes the name. What else is
at the top is for readers of a single header: editors, and the test that compiles each. Every function's name starts
with `lw_`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from lanewise import _jax
from lanewise._jax import JaxprEqn
from lanewise.core.primitives.facts import too_large_alone
from lanewise.core.sources import composed, source

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


# -- C++ beside the rules --------------------------------------------------------------------------------

# Those from which each kernel gets what it needs.
HEADERS = (
    *("bits", "numbers", "half", "memory", "functions", "special", "complex", "random", "order"),
    *("vectors", "meeting", "products", "sums"),
)
_TITLE = re.compile(r"^// -- (\w+) --.*$", re.MULTILINE)
_NUMBER = re.compile(r"^#define (\w+) .+$", re.MULTILINE)


@functools.cache
def beginning() -> str:
    """What every kernel begins with."""
    return composed("cpp/runtime/kernel.h")


@functools.cache
def parts(header: str) -> dict[str, str]:
    """What a header consists of, by the names."""
    top, *rest = _TITLE.split(source(f"cpp/runtime/{header}.h"))
    numbers = {match[1]: match[0] for match in _NUMBER.finditer(top)}
    return numbers | dict(zip(rest[::2], map(str.strip, rest[1::2]), strict=True))


@functools.cache
def helpers() -> dict[str, str]:
    """All helpers, by their names."""
    found: dict[str, str] = {}
    for header in HEADERS:
        found |= parts(header)
    # What JAX answers depends on its version.
    pole = "-lw_infinity<T>()" if _jax.DIGAMMA_AT_ZERO_IS_INFINITE else "lw_nan<T>()"
    return found | {"LW_DIGAMMA_AT_ZERO": f"#define LW_DIGAMMA_AT_ZERO {pole}"}


def rule_for(eqn: JaxprEqn) -> Rule | None:
    """The rule of an equation's primitive, if it has one; raises where the plain algorithm is not for its size."""
    too_large = too_large_alone(eqn)
    if too_large is not None:
        raise Unsupported(too_large)
    return RULES.get(eqn.primitive.name)


def needed(text: str) -> str:
    """The helpers that a text names, and those they name, each after what it names itself."""
    known = helpers()
    found: dict[str, str] = {}
    seen: set[str] = set()

    def visit(body: str) -> None:
        for name in re.findall(r"\w+", body):
            if name in known and name not in seen:
                seen.add(name)
                visit(known[name])
                found[name] = known[name]

    visit(text)
    return "\n".join(found.values())


def number(name: str) -> int:
    """A number that a header defines, and Python has to know."""
    return int(helpers()[name].split()[2])
