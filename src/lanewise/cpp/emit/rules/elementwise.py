"""Rules of what acts on each element separately: arithmetic, comparison, logic, bits, selection and conversion.

A rule here gives the expression of one element from those of its operands. 16-bit floats compute in `float32` and round
after every operation; integers wrap; the helpers have XLA's answers where C++ has none.

Division by a power of two that rounds down is recognized: `x // 4` and `x % 4` come as a division that rounds towards
zero and a correction for negative numbers, a dozen operations. Rounded down they are a shift and a mask, and give the
same for every number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules import Unsupported, rule
from lanewise.cpp.emit.values import Scalar, view
from lanewise.cpp.emit.writer import Writer

Form = Callable[..., str]


def dtype_of(eqn: JaxprEqn) -> Any:
    return eqn.invars[0].aval.dtype


def each(w: Writer, eqn: JaxprEqn, form: Form) -> None:
    w.map(eqn.outvars[0], form, *map(w.value, eqn.invars))


def rounded(dtype: Any, form: Form) -> Form:
    """The form with its result brought to the dtype: 16-bit floats and narrow integers compute in wider types."""
    kind = dtypes.ctype(dtype)
    if dtypes.is_narrow(dtype) or kind in ("int8", "int16", "uint8", "uint16"):
        return lambda *elements: f"{kind}({form(*elements)})"
    return form


def wide_type(dtype: Any) -> str:
    """The type that a dtype computes in."""
    return "float32" if dtypes.is_narrow(dtype) else dtypes.ctype(dtype)


def widened(dtype: Any, form: Form) -> Form:
    """The form on elements in the type they compute in, its result rounded again."""
    if not dtypes.is_narrow(dtype):
        return form
    return rounded(dtype, lambda *elements: form(*(f"float32({e})" for e in elements)))


def c_function(dtype: Any, name: str) -> Form:
    """A call of a function of the C library."""
    if dtypes.is_complex(dtype):
        return lambda *elements: f"lw_complex_{name}({', '.join(elements)})"
    name = name if dtypes.ctype(dtype) == "float64" else f"{name}f"
    return widened(dtype, lambda *elements: f"{name}({', '.join(elements)})")


# -- arithmetic ------------------------------------------------------------------------------------------

_OPERATORS = {"add": "+", "add_any": "+", "sub": "-", "mul": "*"}


@rule("add", "add_any", "sub", "mul")
def _arithmetic(w: Writer, eqn: JaxprEqn) -> None:
    name, dtype = eqn.primitive.name, dtype_of(eqn)
    sign = _OPERATORS[name]
    if dtypes.is_bool(dtype):
        each(w, eqn, lambda a, b: f"bool({a} {'&' if name == 'mul' else '|'} {b})")
    elif dtypes.ctype(dtype) in ("uint32", "uint64") or not _is_int(dtype):
        each(w, eqn, rounded(dtype, lambda a, b: f"({a} {sign} {b})"))
    else:
        helper = {"+": "lw_add", "-": "lw_sub", "*": "lw_mul"}[sign]
        each(w, eqn, lambda a, b: f"{helper}({a}, {b})")


def _is_int(dtype: Any) -> bool:
    return dtypes.is_signed(dtype) or dtypes.is_unsigned(dtype)


@rule("div")
def _div(w: Writer, eqn: JaxprEqn) -> None:
    dtype = dtype_of(eqn)
    if _is_int(dtype):
        each(w, eqn, _known_divisor(w, eqn, "/") or (lambda a, b: f"lw_div({a}, {b})"))
    else:
        each(w, eqn, rounded(dtype, lambda a, b: f"({a} / {b})"))


@rule("rem")
def _rem(w: Writer, eqn: JaxprEqn) -> None:
    dtype = dtype_of(eqn)
    if _is_int(dtype):
        each(w, eqn, _known_divisor(w, eqn, "%") or (lambda a, b: f"lw_rem({a}, {b})"))
    else:
        name = "fmod" if dtypes.ctype(dtype) == "float64" else "fmodf"
        each(w, eqn, widened(dtype, lambda a, b: f"{name}({a}, {b})"))


def _known_divisor(w: Writer, eqn: JaxprEqn, sign: str) -> Form | None:
    """Division by a number that is known, and neither 0 nor -1; by a power of two it is a shift."""
    divisor = eqn.invars[1]
    number = w.known(divisor)
    if number is None and isinstance(divisor, Literal):
        number = np.asarray(divisor.val).flat[0]
    if number is None or int(number) in (0, -1):
        return None
    dtype, by = divisor.aval.dtype, int(number)
    if dtypes.is_signed(dtype) and by > 1 and by & (by - 1) == 0:
        helper = {"/": "lw_div_power", "%": "lw_rem_power"}[sign]
        return lambda a, b: f"{helper}<{by.bit_length() - 1}>({a})"
    return rounded(dtype, lambda a, b: f"({a} {sign} {b})")


@rule("mulhi")
def _mulhi(w: Writer, eqn: JaxprEqn) -> None:
    dtype = dtype_of(eqn)
    if dtypes.element_bytes(dtype) == 8:
        raise Unsupported("mulhi of 64-bit integers")
    kind, bits = dtypes.ctype(dtype), 8 * dtypes.element_bytes(dtype)
    wide = "int64" if dtypes.is_signed(dtype) else "uint64"
    each(w, eqn, lambda a, b: f"{kind}({wide}({a}) * {wide}({b}) >> {bits})")


@rule("neg")
def _neg(w: Writer, eqn: JaxprEqn) -> None:
    dtype = dtype_of(eqn)
    plain = rounded(dtype, lambda a: f"(-{a})")
    each(w, eqn, (lambda a: f"lw_neg({a})") if _is_int(dtype) else plain)


@rule("abs")
def _abs(w: Writer, eqn: JaxprEqn) -> None:
    dtype = dtype_of(eqn)
    if dtypes.is_complex(dtype):
        each(w, eqn, lambda a: f"lw_complex_abs({a})")
    elif _is_int(dtype):
        each(w, eqn, (lambda a: f"lw_abs_int({a})") if dtypes.is_signed(dtype) else (lambda a: a))
    else:
        each(w, eqn, c_function(dtype, "fabs"))


@rule("sign")
def _sign(w: Writer, eqn: JaxprEqn) -> None:
    dtype = dtype_of(eqn)
    name = "lw_complex_sign" if dtypes.is_complex(dtype) else "lw_sign"
    each(w, eqn, widened(dtype, lambda a: f"{name}({a})"))


@rule("max", "min")
def _extremum(w: Writer, eqn: JaxprEqn) -> None:
    name, dtype = eqn.primitive.name, dtype_of(eqn)
    if dtypes.is_complex(dtype):
        raise Unsupported(f"{name} of complex numbers")
    each(w, eqn, widened(dtype, lambda a, b: f"lw_{name}({a}, {b})"))


@rule("clamp")
def _clamp(w: Writer, eqn: JaxprEqn) -> None:
    each(w, eqn, widened(dtype_of(eqn), lambda low, a, high: f"lw_clamp({low}, {a}, {high})"))


@rule("integer_pow")
def _integer_pow(w: Writer, eqn: JaxprEqn) -> None:
    power, dtype = eqn.params["y"], dtype_of(eqn)
    kind = wide_type(dtype)

    def form(a: str) -> str:
        text = f"lw_power<{abs(power)}>({a})"
        return text if power >= 0 else f"({kind}(1) / {text})"

    each(w, eqn, form if power >= 0 else rounded(dtype, form))


@rule("square")
def _square(w: Writer, eqn: JaxprEqn) -> None:
    name = "lw_complex_square" if dtypes.is_complex(dtype_of(eqn)) else "lw_power<2>"
    each(w, eqn, lambda a: f"{name}({a})")


@rule("pow")
def _pow(w: Writer, eqn: JaxprEqn) -> None:
    dtype = dtype_of(eqn)
    if dtypes.is_complex(dtype):
        each(w, eqn, lambda a, b: f"lw_complex_pow({a}, complex64({b}))")
    elif _is_int(dtype):
        each(w, eqn, lambda a, b: f"lw_int_pow({a}, {b})")
    else:
        kind = wide_type(dtype)
        each(w, eqn, rounded(dtype, lambda a, b: f"lw_pow({kind}({a}), {kind}({b}))"))


# -- comparison, logic, bits -----------------------------------------------------------------------------

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@rule(*_COMPARISONS)
def _compare(w: Writer, eqn: JaxprEqn) -> None:
    sign = _COMPARISONS[eqn.primitive.name]
    if dtypes.is_narrow(dtype_of(eqn)):
        each(w, eqn, lambda a, b: f"(float32({a}) {sign} float32({b}))")
    else:
        each(w, eqn, lambda a, b: f"({a} {sign} {b})")


@rule("and", "or", "xor")
def _logic(w: Writer, eqn: JaxprEqn) -> None:
    name, dtype = eqn.primitive.name, dtype_of(eqn)
    if dtypes.is_bool(dtype):
        # Both sides are without side effects, so that they need not be skipped.
        sign = {"and": "&", "or": "|", "xor": "!="}[name]
        each(w, eqn, lambda a, b: f"bool({a} {sign} {b})")
    else:
        sign = {"and": "&", "or": "|", "xor": "^"}[name]
        each(w, eqn, rounded(dtype, lambda a, b: f"({a} {sign} {b})"))


@rule("not")
def _not(w: Writer, eqn: JaxprEqn) -> None:
    dtype = dtype_of(eqn)
    bits = rounded(dtype, lambda a: f"(~{a})")
    each(w, eqn, (lambda a: f"!{a}") if dtypes.is_bool(dtype) else bits)


@rule("shift_left", "shift_right_logical", "shift_right_arithmetic")
def _shift(w: Writer, eqn: JaxprEqn) -> None:
    name, dtype = eqn.primitive.name, dtype_of(eqn)
    kind = dtypes.ctype(dtype)
    known = eqn.invars[1]
    plain = isinstance(known, Literal) and 0 <= int(known.val) < 8 * dtypes.element_bytes(dtype)
    if plain and kind in ("uint32", "uint64"):
        sign = "<<" if name == "shift_left" else ">>"
        each(w, eqn, lambda a, b: f"({a} {sign} {b})")
    elif name == "shift_left":
        each(w, eqn, lambda a, b: f"lw_shift_left({a}, {b})")
    else:
        sign = "u" if name == "shift_right_logical" else ""
        inside = f"{sign}{kind.removeprefix('u')}"
        each(w, eqn, lambda a, b: f"{kind}(lw_shift_right({inside}({a}), {b}))")


@rule("population_count", "clz")
def _count_bits(w: Writer, eqn: JaxprEqn) -> None:
    helper = {"population_count": "lw_popcount", "clz": "lw_clz"}[eqn.primitive.name]
    each(w, eqn, lambda a: f"{helper}({a})")


@rule("select_n")
def _select(w: Writer, eqn: JaxprEqn) -> None:
    floor = rounded_down(w, eqn)
    if floor is not None:
        w.define(eqn.outvars[0], w.let(floor, eqn.outvars[0].aval.dtype))
    elif len(eqn.invars) == 2:
        each(w, eqn, lambda which, only: only)
    elif len(eqn.invars) == 3:
        each(w, eqn, lambda which, first, second: f"({which} ? {second} : {first})")
    else:
        each(w, eqn, lambda which, *cases: f"lw_choose(int32({which}), {', '.join(cases)})")


# -- division that rounds down -------------------------------------------------------------------------


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


def _one(w: Writer, first: Atom, second: Atom) -> bool:
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
    if found is None or added is None or not _one(w, added.invars[0], rest):
        return None
    tests = _both(w, wrong)
    negative = [_made(w, test.invars[0], "lt") for test in tests]
    signs = any(
        lt is not None
        and _one(w, lt.invars[0], rest)
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
    if found is None or less is None or not _one(w, less.invars[0], whole):
        return None
    tests = _both(w, wrong)
    signs = any(
        (one := _made(w, test.invars[0], "sign")) is not None
        and _one(w, one.invars[0], found[0])
        and _sign_of(w, test.invars[1]) == 1
        for test in tests
    )
    left_over = any(
        (rest := _divided(w, test.invars[0], "rem")) is not None
        and rest[1] == found[1]
        and _one(w, rest[0], found[0])
        and _number(w, test.invars[1]) == 0
        for test in tests
    )
    if _number(w, less.invars[1]) != 1 or not signs or not left_over:
        return None
    return found[0], found[1].bit_length() - 1


def _sign_of(w: Writer, atom: Atom) -> int | None:
    eqn = _made(w, atom, "sign")
    number = _number(w, atom) if eqn is None else _number(w, eqn.invars[0])
    return None if number is None else (number > 0) - (number < 0)


def _not_zero(w: Writer, tests: list[JaxprEqn], atom: Atom) -> bool:
    return any(_one(w, t.invars[0], atom) and _number(w, t.invars[1]) == 0 for t in tests)


# -- conversion ------------------------------------------------------------------------------------------


def converted(text: str, source: Any, target: Any) -> str:
    """An element of one dtype as another."""
    kind, wide = dtypes.ctype(target), wide_type(source)
    if dtypes.ctype(source) == kind:
        return text
    if dtypes.is_complex(source):
        text, wide, source = f"{text}.re", "float32", np.dtype(np.float32)
    if dtypes.is_bool(target):
        if dtypes.is_narrow(source):
            # By its bits: wider, what is below the normal range may count as zero.
            return f"(uint16(({text}).bits << 1) != 0)"
        return f"({text} != {wide}(0))"
    if dtypes.is_complex(target):
        return f"complex64(float32({text}))"
    if _is_int(target) and dtypes.is_float(source):
        return f"lw_to_int<{kind}>({wide}({text}))"
    if dtypes.is_narrow(target):
        return f"{kind}({wide if dtypes.is_float(source) else 'float32'}({text}))"
    return f"{kind}({text})"


@rule("convert_element_type")
def _convert(w: Writer, eqn: JaxprEqn) -> None:
    source, target = dtype_of(eqn), eqn.outvars[0].aval.dtype
    if dtypes.ctype(source) == dtypes.ctype(target):
        _same(w, eqn)
    elif dtypes.is_complex(source) and not dtypes.is_complex(target):
        each(w, eqn, lambda a: converted(f"({a})", source, target))
    else:
        each(w, eqn, lambda a: converted(a, source, target))


@rule("bitcast_convert_type")
def _bitcast(w: Writer, eqn: JaxprEqn) -> None:
    source, target = dtype_of(eqn), eqn.outvars[0].aval.dtype
    kind, before, after = dtypes.ctype(target), *map(dtypes.element_bytes, (source, target))
    if before == after:
        each(w, eqn, lambda a: f"lw_bits<{kind}>({a})")
        return
    value = w.named(w.value(eqn.invars[0]))
    ratio = max(before, after) // min(before, after)

    if before > after:

        def part(indices: tuple[Any, ...]) -> str:
            return f"lw_part<{kind}>({value.at(indices[:-1])}, {indices[-1]})"

        w.compute(eqn.outvars[0], view(eqn.outvars[0].aval.shape, target, part, value))
        return

    def whole(indices: tuple[Any, ...]) -> str:
        parts = ", ".join(value.at((*indices, i)) for i in range(ratio))
        return f"lw_whole<{kind}>({parts})"

    w.compute(eqn.outvars[0], view(eqn.outvars[0].aval.shape, target, whole, value))


# -- nothing ---------------------------------------------------------------------------------------------


@rule(
    *"copy copy_p device_put stop_gradient optimization_barrier pvary pcast reshard sharding_constraint name".split()
)
def _same(w: Writer, eqn: JaxprEqn) -> None:
    for var, atom in zip(eqn.outvars, eqn.invars, strict=True):
        w.hand_on(var, atom)


@rule("platform_index")
def _platform_index(w: Writer, eqn: JaxprEqn) -> None:
    """Which of the ways of `platform_dependent` is meant: the text serves two platforms."""
    platforms = eqn.params["platforms"]

    def index(*names: str) -> int:
        for i, listed in enumerate(platforms):
            if listed is None or any(name in listed for name in names):
                return i
        return len(platforms) - 1

    cuda, host = index("cuda", "gpu"), index("cpu")
    w.define(eqn.outvars[0], w.let(f"LW_PLATFORM({cuda}, {host})", eqn.outvars[0].aval.dtype))
