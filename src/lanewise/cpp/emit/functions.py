"""Functions of a kernel: code that stands at several places (`outline.py`), written once.

Scalars are passed by value and given back through references; arrays lie where the caller has them, and results are
written where the caller wants them. The parameters' memory never overlaps, and what is given is only read, so all
pointers are `__restrict__`. Arrays in the scratch memory are passed as they are; a function's own lie behind those that
the caller has there. Constants that are operands of the kernel are handed down.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lanewise._jax import DropVar, Jaxpr, JaxprEqn
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.layout import Layout
from lanewise.cpp.emit.likeness import Likeness
from lanewise.cpp.emit.rules import rule
from lanewise.cpp.emit.scope import Scope
from lanewise.cpp.emit.stores import assign
from lanewise.cpp.emit.uses import uses_of
from lanewise.cpp.emit.values import Scalar, Stored, Value
from lanewise.cpp.emit.writer import Writer

# A function is given arrays that lie in memory. What would have to be stored for it, and is longer, is not.
MOST_STORED = 512
# Below this weight CUDA's compiler may inline a function.
CALLED_ON_GPU = 48.0


@dataclass(frozen=True)
class Function:
    """A function of the kernel: its name, the scratch memory it takes, and the kernel's operands it reads."""

    name: str
    bytes: int
    constants: tuple[str, ...]


@rule("shared")
def _shared(w: Writer, eqn: JaxprEqn) -> None:
    jaxpr: Jaxpr = eqn.params["jaxpr"]
    values = [w.value(atom) for atom in eqn.invars]
    if any(not _passes(value) and value.size > MOST_STORED for value in values):
        w.inline(jaxpr, eqn.invars, eqn.outvars)
        return
    given = [w.named(value) for value in values]
    rooms = [
        w.room(var.aval.shape, var.aval.dtype) if isinstance(var, DropVar) else w.store(var)
        for var in eqn.outvars
    ]
    key = (id(jaxpr), tuple(_strided(value) for value in (*given, *rooms)))
    if key not in w.functions:
        w.functions[key] = _written(w, jaxpr, given, rooms)
    function = w.functions[key]
    used = w.layout.lend(function.bytes)
    names = [value.text if isinstance(value, Scalar) else value.name for value in (*given, *rooms)]  # type: ignore[attr-defined]
    memory = [f"scratch + {used} * lanes", "lane", "lanes"] if function.bytes else []
    w.line(f"{function.name}({', '.join([*names, *memory, *function.constants])});")


def _passes(value: Value) -> bool:
    return isinstance(value, Scalar | Stored)


def _strided(value: Value) -> bool:
    return isinstance(value, Stored) and value.strided


def _written(
    w: Writer, jaxpr: Jaxpr, given: Sequence[Value], rooms: Sequence[Scalar | Stored]
) -> Function:
    """Write the function for values of these kinds."""
    name = w.fresh("shared")
    scope = Scope(uses_of(jaxpr.eqns, jaxpr.outvars))
    parameters = []
    for var, value in zip(jaxpr.invars, given, strict=True):
        text, scope.values[var] = _parameter(w.fresh("p"), value, given=True)
        parameters.append(text)
    results: list[Scalar | Stored] = []
    for atom, room in zip(jaxpr.outvars, rooms, strict=True):
        text, result = _parameter(w.fresh("r"), room, given=False)
        parameters.append(text)
        results.append(result)
        if isinstance(result, Stored):
            scope.destinations[atom] = result  # type: ignore[index]
    with _apart(w, scope) as (lines, layout):
        w.eqns(jaxpr.eqns)
        scope.current = None
        assign(w, [(room, w.value(a)) for room, a in zip(results, jaxpr.outvars, strict=True)])
    body = "\n".join(lines)
    constants = tuple(sorted(set(re.findall(r"\bconstant\d+\b", body)), key=lambda c: int(c[8:])))
    if layout.most:
        parameters += ["char* scratch", "const long long lane", "const long long lanes"]
    for constant in constants:
        kind = dtypes.ctype(w.constants[int(constant[8:])].dtype)
        parameters.append(f"const {kind}* __restrict__ {constant}")
    # A call makes a lane's arrays lie in memory, which a GPU has for each lane, but slower than registers.
    heavy = Likeness().weights(jaxpr.eqns) >= CALLED_ON_GPU
    head = "LW_CALLED" if heavy else "LW_CALLED_ON_HOST"
    w.texts.append(f"{head} {name}({', '.join(parameters)}) {{\n{body}\n}}")
    return Function(name, layout.most, constants)


def _parameter(name: str, value: Value, *, given: bool) -> tuple[str, Scalar | Stored]:
    """A parameter's declaration, and its value inside the function."""
    kind = dtypes.ctype(value.dtype)
    if not value.shape:
        text = f"const {kind} {name}" if given else f"{kind}& {name}"
        return text, Scalar((), value.dtype, name, place=not given)
    inside = Stored(value.shape, value.dtype, name, constant=given, strided=_strided(value))
    if inside.strided:
        return f"const lw_strided<{kind}> {name}", inside
    return f"{'const ' if given else ''}{kind}* __restrict__ {name}", inside


@contextmanager
def _apart(w: Writer, scope: Scope) -> Iterator[tuple[list[str], Layout]]:
    """Write into a text of its own, which knows of no other code."""
    before = w.lines, w.depth, w.scopes, w.layout, w.unrolling
    w.lines, w.depth, w.scopes, w.layout, w.unrolling = [], 1, [scope], Layout(), 1
    yield w.lines, w.layout
    w.lines, w.depth, w.scopes, w.layout, w.unrolling = before
