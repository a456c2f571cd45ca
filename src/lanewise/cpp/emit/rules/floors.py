"""Division by a power of two that rounds down, recognized.

`x // 4` and `x % 4` come as a division that rounds towards zero and a correction for negative numbers: a dozen
operations. Rounded down they are a shift and a mask, and say the same for every number.
"""

from __future__ import annotations

from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.values import Scalar
from lanewise.cpp.emit.writer import Writer


def rounded_down(w: Writer, eqn: JaxprEqn) -> str | None:
    """What a `select_n` of scalars is, if it corrects a quotient or a remainder by a power of two; else None."""
    out = eqn.outvars[0].aval
    if len(eqn.invars) != 3 or out.shape or not dtypes.is_signed(out.dtype):
        return None
    wrong, plain, corrected = eqn.invars
    for match, text in ((_remainder, "({} & {})"), (_quotient, "({} >> {})")):
        found = match(w, wrong, plain, corrected)
        if found is not None:
            x, number = found
            return text.format(_value(w, x), number)
    return None


def _value(w: Writer, atom: Atom) -> str:
    return next(s.values[atom].at(()) for s in w.scopes if atom in s.values)


def _made(w: Writer, atom: Atom, name: str) -> JaxprEqn | None:
    """The equation of this primitive that made a variable."""
    if not isinstance(atom, Var):
        return None
    eqn = next((s.made_by[atom] for s in reversed(w.scopes) if atom in s.made_by), None)
    return eqn if eqn is not None and eqn.primitive.name == name else None


def _number(w: Writer, atom: Atom) -> int | None:
    if isinstance(atom, Literal):
        return int(atom.val)
    known = next((s.known[atom] for s in reversed(w.scopes) if atom in s.known), None)
    return None if known is None else int(known)


def _same(w: Writer, first: Atom, second: Atom) -> bool:
    """Whether two scalars are one: code inlined has a name of its own for what it is given."""
    texts = {
        value.text if isinstance(value, Scalar) else ""
        for atom in (first, second)
        for value in [next((s.values[atom] for s in w.scopes if atom in s.values), None)]
    }
    return first is second or (len(texts) == 1 and "" not in texts)


def _divided(w: Writer, atom: Atom, name: str) -> tuple[Atom, int] | None:
    """What is divided by which power of two."""
    eqn = _made(w, atom, name)
    by = None if eqn is None else _number(w, eqn.invars[1])
    if eqn is None or by is None or by < 2 or by & (by - 1):
        return None
    return eqn.invars[0], by


def _both(w: Writer, atom: Atom) -> list[JaxprEqn]:
    """The two tests `a != b` that a variable is the conjunction of."""
    eqn = _made(w, atom, "and")
    return [] if eqn is None else [t for t in (_made(w, a, "ne") for a in eqn.invars) if t]


def _remainder(w: Writer, wrong: Atom, rest: Atom, corrected: Atom) -> tuple[Atom, int] | None:
    """`rest + by` where `rest` is neither zero nor has the sign of the divisor."""
    found, added = _divided(w, rest, "rem"), _made(w, corrected, "add")
    if found is None or added is None or not _same(w, added.invars[0], rest):
        return None
    tests = _both(w, wrong)
    negative = [_made(w, test.invars[0], "lt") for test in tests]
    signs = any(
        lt is not None
        and _same(w, lt.invars[0], rest)
        and _number(w, lt.invars[1]) == 0
        and _number(w, test.invars[1]) == 0
        for test, lt in zip(tests, negative, strict=True)
    )
    if _number(w, added.invars[1]) != found[1] or not signs or not _not_zero(w, tests, rest):
        return None
    return found[0], found[1] - 1


def _quotient(w: Writer, wrong: Atom, whole: Atom, corrected: Atom) -> tuple[Atom, int] | None:
    """`whole - 1` where the signs differ and something is left over."""
    found, less = _divided(w, whole, "div"), _made(w, corrected, "sub")
    if found is None or less is None or not _same(w, less.invars[0], whole):
        return None
    tests = _both(w, wrong)
    signs = any(
        (one := _made(w, test.invars[0], "sign")) is not None
        and _same(w, one.invars[0], found[0])
        and _sign(w, test.invars[1]) == 1
        for test in tests
    )
    left_over = any(
        (rest := _divided(w, test.invars[0], "rem")) is not None
        and rest[1] == found[1]
        and _same(w, rest[0], found[0])
        and _number(w, test.invars[1]) == 0
        for test in tests
    )
    if _number(w, less.invars[1]) != 1 or not signs or not left_over:
        return None
    return found[0], found[1].bit_length() - 1


def _sign(w: Writer, atom: Atom) -> int | None:
    eqn = _made(w, atom, "sign")
    number = _number(w, atom) if eqn is None else _number(w, eqn.invars[0])
    return None if number is None else (number > 0) - (number < 0)


def _not_zero(w: Writer, tests: list[JaxprEqn], atom: Atom) -> bool:
    return any(_same(w, t.invars[0], atom) and _number(w, t.invars[1]) == 0 for t in tests)
