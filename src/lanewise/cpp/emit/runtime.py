"""The C++ that kernels are made of beside their own code: the headers of `cpp/runtime`, one for each concept.

Every kernel begins with `kernel.h`. Of the others it gets what it needs, for a C++ compiler takes long over the whole:
they consist of *helpers*, each known by the name in the line above it (`// -- lw_add --`; overloads of a name are one
helper), and of numbers that are defined at the top. The emitter adds the helpers that a kernel names, and those they
name, so that a rule just writes the name. What else is at the top is for who reads a header by itself: editors, and
the test that compiles each.
"""

from __future__ import annotations

import functools
import re

from lanewise import _jax
from lanewise.core.sources import composed, source

HEADERS = (
    *("bits", "numbers", "half", "memory", "functions", "special", "complex", "random", "order"),
    *("vectors", "meeting", "products", "sums"),
)
_TITLE = re.compile(r"^// -- (\w+) --$", re.MULTILINE)
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
