"""What a `for` can be staged over, and whether it is: ranges with traced bounds, arrays, and `zip`, `enumerate` and
`reversed` of these. Everything else is iterated by Python itself.

A short `for` is unrolled, as Python under `jax.jit` would have it: the index is a plain number, and small code
becomes fast code. Where a turn holds a large matrix product there is little to gain, and compilers spend time
on each copy: XLA measures every product on a GPU, and takes the 16 layers of a network for 16 different ones. So
those turns become one loop, if they are alike, the same code with other numbers in it: an index that decides anything
but which elements are read, such as a branch, a shape, a static power or a plain float, makes code that differs.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanewise import _jax
from lanewise._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from lanewise.core.errors import LoopTypeError
from lanewise.core.objects import Items
from lanewise.core.primitives.facts import eqn_cost, is_product
from lanewise.frontend import values
from lanewise.frontend.branch import progress, trace_side
from lanewise.frontend.loop import Stageable, try_once
from lanewise.frontend.values import Construct, Variables

UNROLL_MOST = 32  # a range this short is unrolled
UNROLL_EXITS = 4  # so is one this short whose `break` or `return` is only known at run time
# The products that are large: of this many multiplications.
LARGE = 10_000
# Parameters that say which elements are read. The shapes of results say how many.
_POSITIONS = {"slice": ("start_indices", "limit_indices")}
Item = Callable[[Any, Sequence[Any]], Any]


def _index(value: Any, construct: Construct) -> Any:
    if not values.is_traced(value):
        return value.__index__()
    aval = _jax.aval_of(value)
    if aval.shape != () or not jnp.issubdtype(aval.dtype, jnp.integer):
        raise LoopTypeError(
            f"`range` is given {values.type_text(aval)}; it takes integer scalars. "
            "Convert it with `.astype(int)`",
            construct.location,
        )
    return values.convert(value, _jax.aval_of(0))  # Python's int as JAX has it: weakly typed


def range_(construct: Construct, *args: Any) -> Any:
    """`range`, with any of its arguments traced."""
    if len(args) == 1:
        start, stop, step = 0, args[0], 1
    elif len(args) in (2, 3):
        start, stop, step = args[0], args[1], args[2] if len(args) == 3 else 1
    else:
        return range(*args)
    if not any(map(values.is_traced, args)):
        return range(*args)
    start, stop, step = (_index(value, construct) for value in (start, stop, step))
    return Stageable(_range_length(start, stop, step), _range_item(start, step), counts=True)


def _range_item(start: Any, step: Any) -> Item:
    def item(k: Any, slices: Sequence[Any]) -> Any:
        del slices
        scaled = k if _is(step, 1) else k * step
        return scaled if _is(start, 0) else scaled + start

    return item


def _is(value: Any, number: int) -> bool:
    return not values.is_traced(value) and value == number


def _range_length(start: Any, stop: Any, step: Any) -> Any:
    """How many items; may come out negative where there are none."""
    if values.is_traced(step):
        up = lax.div(stop - start + step - 1, jnp.maximum(step, 1))
        down = lax.div(start - stop - step - 1, jnp.maximum(-step, 1))
        return jnp.where(step > 0, up, down)
    if step == 0:
        raise ValueError("range() arg 3 must not be zero")
    distance = stop if _is(start, 0) and step > 0 else (stop - start if step > 0 else start - stop)
    return distance if abs(step) == 1 else (distance + (abs(step) - 1)) // abs(step)


def array_(array: Any) -> Stageable:
    return Stageable(array.shape[0], lambda k, slices: slices[0], (array,), python=lambda: array)


def static_range(numbers: range) -> Stageable:
    item = _range_item(numbers.start, numbers.step)
    return Stageable(len(numbers), item, counts=True, python=lambda: numbers)


def as_stageable(iterable: Any) -> Stageable | None:
    """See an iterable as something to step through by index, if it is one."""
    if isinstance(iterable, Stageable):
        return iterable
    if isinstance(iterable, Items):
        return Stageable(iterable._lw_length(), lambda k, _: iterable._lw_item(k), counts=True)
    if isinstance(iterable, range):
        return static_range(iterable)
    if isinstance(iterable, jax.Array) and iterable.ndim > 0:
        return array_(iterable)
    if isinstance(iterable, np.ndarray) and iterable.ndim > 0 and values.is_array(iterable):
        return array_(iterable)
    return None


def _any_array(parts: Sequence[Any]) -> bool:
    return any(isinstance(part, jax.Array | Stageable | Items) for part in parts)


def zip_(*parts: Any, strict: bool = False) -> Any:
    seen = [as_stageable(part) for part in parts]
    known = [part for part in seen if part is not None]
    if not _any_array(parts) or len(known) < len(parts):
        return zip(*map(_plain, parts), strict=strict)
    traced = [part.length for part in known if values.is_traced(part.length)]
    plain = [part.length for part in known if not values.is_traced(part.length)]
    if strict and len(set(plain)) > 1:
        raise ValueError(f"zip(strict=True): the lengths differ: {plain}")
    length = min(plain) if plain else None
    for other in traced:
        length = other if length is None else jnp.minimum(length, other)
    offsets = [0]
    for part in known:
        offsets.append(offsets[-1] + len(part.xs))

    def item(k: Any, slices: Sequence[Any]) -> Any:
        return tuple(
            part.item(k, slices[offsets[i] : offsets[i + 1]]) for i, part in enumerate(known)
        )

    xs = tuple(x[: min(plain)] if not traced else x for part in known for x in part.xs)
    python = None if traced else lambda: zip(*map(_plain, known), strict=False)
    return Stageable(length, item, xs, any(part.counts for part in known), python)


def enumerate_(part: Any, start: Any = 0) -> Any:
    seen = as_stageable(part)
    if seen is None or not _any_array([part]):
        return enumerate(_plain(part), start)

    def item(k: Any, slices: Sequence[Any]) -> Any:
        return (k if _is(start, 0) else k + start, seen.item(k, slices))

    python = None if seen.python is None else lambda: enumerate(_plain(seen), start)
    return Stageable(seen.length, item, seen.xs, True, python)


def reversed_(part: Any) -> Any:
    seen = as_stageable(part)
    if seen is None or not _any_array([part]):
        return reversed(part)
    flipped = tuple(jnp.flip(x, 0) if not values.is_traced(seen.length) else x for x in seen.xs)
    if seen.counts:
        return Stageable(
            seen.length, lambda k, slices: seen.item(seen.length - 1 - k, slices), flipped, True
        )
    return Stageable(seen.length, seen.item, flipped, False, python=lambda: reversed(part))


def _plain(part: Any) -> Any:
    if isinstance(part, Stageable):
        if part.python is None:
            raise LoopTypeError(
                "a range with traced bounds cannot be paired with a Python sequence; stack the "
                "sequence into an array"
            )
        return part.python()
    return part


def call(construct: Construct, fun: Any, *args: Any, **kwargs: Any) -> Any:
    """Call what stands in the place of `range`, `zip`, `enumerate` or `reversed` in a `for`."""
    if fun is builtins.range and not kwargs:
        return range_(construct, *args)
    if fun is builtins.zip:
        return zip_(*args, **kwargs)
    if fun is builtins.enumerate:
        return enumerate_(*args, **kwargs)
    if fun is builtins.reversed and not kwargs:
        return reversed_(*args)
    return fun(*args, **kwargs)


# -- whether a `for` is staged, or unrolled -------------------------------------------------------


def is_long(
    items: Any, body: Callable[[Any], None], variables: Variables, done: Callable[[], Any] | None
) -> bool:
    """Whether a `for` over a range or an array of NumPy's is better staged than unrolled."""
    if not UNROLL_EXITS < len(items) <= UNROLL_MOST:
        return len(items) > UNROLL_MOST
    try:
        if done is None:
            return _is_worth_a_loop(items, body, variables)
        # Whether it may end early, on a condition that only running it shows.
        return try_once(variables, done, lambda: body(items[0]))[1]
    except Exception:  # the iteration itself will raise it
        return False


def _is_worth_a_loop(items: Any, body: Callable[[Any], None], variables: Variables) -> bool:
    """Whether a short loop's turns hold large products, and are alike."""

    def turn(place: int) -> Any:
        saved = variables.get()
        try:
            return trace_side(variables.from_here(lambda: body(items[place]))).traced.jaxpr
        finally:
            variables.set(saved)

    met, returned = progress.provisional, progress.returned
    try:
        first = turn(0)
        alike = _holds_large_product(first) and all(_same_code(first, turn(i)) for i in (1, -1))
    finally:
        progress.returned = returned
    return alike and progress.provisional == met


def _holds_large_product(jaxpr: Jaxpr) -> bool:
    """Whether a matrix product or a convolution of some size is in the code, also inside loops and branches."""
    return any(
        is_product(eqn) and eqn_cost(eqn).products >= 2 * LARGE
        for eqn in _jax.equations(jaxpr.eqns)
    )


def _same_code(one: Jaxpr, other: Jaxpr) -> bool:
    """Whether two pieces of code differ in nothing but numbers."""
    known: dict[Var, Var] = {}

    def same_atoms(mine: Sequence[Atom], theirs: Sequence[Atom]) -> bool:
        return len(mine) == len(theirs) and all(map(same_atom, mine, theirs))

    def same_atom(mine: Atom, theirs: Atom) -> bool:
        if mine.aval != theirs.aval:
            return False
        if isinstance(mine, Literal) or isinstance(theirs, Literal):
            return (
                isinstance(mine, Literal) and isinstance(theirs, Literal) and _alike(mine, theirs)
            )
        # What comes from outside is met here first.
        return known.setdefault(mine, theirs) is theirs

    return (
        len(one.eqns) == len(other.eqns)
        and same_atoms(one.invars, other.invars)
        and all(
            mine.primitive is theirs.primitive
            and same_atoms(mine.invars, theirs.invars)
            and same_atoms(mine.outvars, theirs.outvars)
            and _same_parameters(mine, theirs)
            for mine, theirs in zip(one.eqns, other.eqns, strict=True)
        )
        and same_atoms(one.outvars, other.outvars)
    )


def _alike(mine: Literal, theirs: Literal) -> bool:
    """Whether two numbers may stand at one place: indices may; a float made of one would be rounded anew."""
    return np.issubdtype(mine.aval.dtype, np.integer) or bool(np.all(mine.val == theirs.val))


def _same_parameters(mine: JaxprEqn, theirs: JaxprEqn) -> bool:
    positions = _POSITIONS.get(mine.primitive.name, ())
    return mine.params.keys() == theirs.params.keys() and all(
        name in positions or _same(value, theirs.params[name])
        for name, value in mine.params.items()
    )


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, tuple | list):
        return (
            type(mine) is type(theirs)
            and len(mine) == len(theirs)
            and all(map(_same, mine, theirs))
        )
    if isinstance(mine, Jaxpr | ClosedJaxpr):
        return isinstance(theirs, Jaxpr | ClosedJaxpr) and _same_code(
            _jax.flat_jaxpr(mine), _jax.flat_jaxpr(theirs)
        )
    # The rules of a custom derivative are made at each use; the code they are for is compared.
    return bool(mine == theirs) or (callable(mine) and callable(theirs))
