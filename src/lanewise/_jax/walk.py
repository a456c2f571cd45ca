"""One way to walk a jaxpr: its equations at any depth, the parts of control flow by name, its evaluation.

`While`, `Scan` and `Cond` divide what there is for each operand of an equation, be it atoms, values or flags; the
differences between JAX's versions in which operand is which are handled here. `evaluate` is the one loop over
equations: a rule gives the results of each. Code that runs only some equations, or in another order, has an
`Environment` of its own.

`Forward` is the one forward analysis. Each value has a flag. A result has one if an operand has; a branch has those of
all its sides, and a loop is followed until no more of its state gets one. The flags come with whether control flow
depends on them: a branch by its index, a loop by its test. Divergence, dependence and activity are such analyses, which
override only the rules that they refine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lanewise._jax.jaxprs import (
    Atom,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    attached_consts,
    eval_closed,
    subjaxprs,
)

T = TypeVar("T")


# -- equations ------------------------------------------------------------------------------------


def equations(
    eqns: Iterable[JaxprEqn], inside: Callable[[JaxprEqn], Iterable[Jaxpr]] = subjaxprs
) -> Iterator[JaxprEqn]:
    """Equations, each followed by those it holds, at any depth; `inside` gives the code that an equation holds.

    >>> import jax
    >>> from lanewise._jax.jaxprs import trace
    >>> def either(x):
    ...     return [jax.lax.cond(x > 0, jax.lax.sin, jax.lax.cos, x)]
    >>> code = trace(either, [jax.ShapeDtypeStruct((), "float32")]).jaxpr
    >>> [eqn.primitive.name for eqn in equations(code.eqns)]
    ['gt', 'convert_element_type', 'cond', 'cos', 'sin']
    """
    for eqn in eqns:
        yield eqn
        for code in inside(eqn):
            yield from equations(code.eqns, inside)


def partition(values: Iterable[T], flags: Iterable[bool]) -> tuple[list[T], list[T]]:
    """The values with a flag, and those without.

    >>> partition("abc", [True, False, True])
    (['a', 'c'], ['b'])
    """
    first: list[T] = []
    second: list[T] = []
    for value, flag in zip(values, flags, strict=True):
        (first if flag else second).append(value)
    return first, second


def merge(flags: Iterable[bool], first: Iterable[T], second: Iterable[T]) -> list[T]:
    """The reverse of `partition`.

    >>> merge([True, False, True], "ac", "b")
    ['a', 'b', 'c']
    """
    given, rest = iter(first), iter(second)
    return [next(given) if flag else next(rest) for flag in flags]


def divided(values: Sequence[T], *sizes: int) -> list[Sequence[T]]:
    """Values as groups of these sizes, one after the other, and the rest.

    >>> divided("abcde", 2, 1)
    ['ab', 'c', 'de']
    """
    ends = [*itertools.accumulate(sizes, initial=0), len(values)]
    return [values[start:end] for start, end in itertools.pairwise(ends)]


def restricted(
    fun: Callable[..., Any], values: Iterable[Any], flags: Sequence[bool]
) -> tuple[Callable[..., Any], list[Any]]:
    """A function of these values as one of those with a flag, and these.

    >>> fun, given = restricted("{}{}{}".format, "abc", [True, False, True])
    >>> given, fun("x", "z")
    (['a', 'c'], 'xbz')
    """
    moved, fixed = partition(values, flags)
    return lambda *given: fun(*merge(flags, given, fixed)), moved


def changed(code: Jaxpr, carried: Sequence[Var]) -> list[bool]:
    """Which values of a loop's state its body may change: all but those that it hands on as they are."""
    return [out is not var for out, var in zip(code.outvars, carried, strict=False)]


# -- control flow by its parts --------------------------------------------------------------------


@dataclass(frozen=True)
class While(Generic[T]):
    """A `while` equation, with what there is for each of its operands.

    >>> import jax
    >>> from lanewise._jax.jaxprs import trace
    >>> def below(limit, step, x):
    ...     return [jax.lax.while_loop(lambda x: x < limit, lambda x: x + step, x)]
    >>> (eqn,) = trace(below, [jax.ShapeDtypeStruct((), "int32")] * 3).jaxpr.eqns
    >>> loop = While.of(eqn, ["limit", "step", "x"])
    >>> loop.test_consts, loop.consts, loop.init, loop.changed
    (['limit'], ['step'], ['x'], [True])
    """

    test: ClosedJaxpr
    body: ClosedJaxpr
    test_consts: Sequence[T]
    consts: Sequence[T]
    init: Sequence[T]

    @staticmethod
    def of(eqn: JaxprEqn, operands: Sequence[T]) -> While[T]:
        params = eqn.params
        first = params["cond_nconsts"]
        second = first + params["body_nconsts"]
        return While(
            params["cond_jaxpr"],
            params["body_jaxpr"],
            operands[:first],
            operands[first:second],
            operands[second:],
        )

    @property
    def changed(self) -> list[bool]:
        """Which carried values the body may change."""
        return changed(self.body, self.body.invars[len(self.consts) :])

    def holds(self, state: Sequence[Any]) -> Any:
        """The test, where the operands are values."""
        return eval_closed(self.test, *self.test_consts, *state)[0]

    def after(self, state: Sequence[Any]) -> list[Any]:
        """The next state, where the operands are values."""
        return eval_closed(self.body, *self.consts, *state)


@dataclass(frozen=True)
class Scan(Generic[T]):
    """A `scan` equation, with what there is for each of its operands.

    >>> import jax
    >>> from lanewise._jax.jaxprs import trace
    >>> def sums(scale, start, xs):
    ...     return jax.lax.scan(lambda total, x: (total + scale * x, total), start, xs)
    >>> types = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((), (), (3,))]
    >>> (eqn,) = trace(sums, types).jaxpr.eqns
    >>> loop = Scan.of(eqn, ["scale", "start", "xs"])
    >>> loop.consts, loop.init, loop.xs, loop.length, loop.divided(["total", "sums"])
    (['scale'], ['start'], ['xs'], 3, (['total'], ['sums']))
    """

    body: ClosedJaxpr
    consts: Sequence[T]
    init: Sequence[T]
    xs: Sequence[T]
    length: int
    reverse: bool

    @staticmethod
    def of(eqn: JaxprEqn, operands: Sequence[T]) -> Scan[T]:
        """Divided by `num_consts` and `num_carry` on 0.10, by the flattened trees `ft_in` since."""
        params = eqn.params
        if "num_consts" in params:
            first, carry = params["num_consts"], params["num_carry"]
        else:
            first, carry, _ = (len(list(part.vals)) for part in params["ft_in"].unpack())
        return Scan(
            params["jaxpr"],
            operands[:first],
            operands[first : first + carry],
            operands[first + carry :],
            params["length"],
            params["reverse"],
        )

    @property
    def changed(self) -> list[bool]:
        """Which carried values the body may change."""
        first = len(self.consts)
        return changed(self.body, self.body.invars[first : first + len(self.init)])

    def divided(self, outs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """What there is for each result, of the equation or of its body: for the state, and for what is stacked."""
        return outs[: len(self.init)], outs[len(self.init) :]


@dataclass(frozen=True)
class Cond(Generic[T]):
    """A `cond` equation, with what there is for each of its operands."""

    branches: tuple[ClosedJaxpr, ...]
    index: T
    operands: Sequence[T]

    @staticmethod
    def of(eqn: JaxprEqn, operands: Sequence[T]) -> Cond[T]:
        return Cond(eqn.params["branches"], operands[0], operands[1:])


# -- evaluation -----------------------------------------------------------------------------------


def number(literal: Literal) -> Any:
    return literal.val


def itself(literal: Literal) -> Any:
    return literal


class Environment(Generic[T]):
    """What there is for each variable; `literal` gives that of literals: their numbers by default."""

    def __init__(
        self,
        variables: Iterable[Var],
        values: Iterable[T],
        literal: Callable[[Literal], T] = number,
    ) -> None:
        self.known = dict(zip(variables, values, strict=True))
        self.literal = literal

    def __getitem__(self, atom: Atom) -> T:
        return self.literal(atom) if isinstance(atom, Literal) else self.known[atom]

    def read(self, atoms: Iterable[Atom]) -> list[T]:
        literal, known = self.literal, self.known
        return [literal(a) if isinstance(a, Literal) else known[a] for a in atoms]

    def copy(self) -> Environment[T]:
        """The same variables; what is bound in either is not in the other."""
        return Environment(self.known, self.known.values(), self.literal)

    def bind(self, variables: Iterable[Var], values: Iterable[T]) -> None:
        self.known.update(zip(variables, values, strict=True))


def evaluate(
    code: Jaxpr,
    args: Sequence[T],
    rule: Callable[[JaxprEqn, list[T]], Iterable[T]],
    *,
    consts: Sequence[T] | None = None,
    literal: Callable[[Literal], T] = number,
) -> list[T]:
    """What there is for the results of code: `rule` gives it for those of each equation, in order.

    Constants are those that the code holds, unless `consts` are given.

    >>> import jax
    >>> from lanewise._jax.jaxprs import trace
    >>> code = trace(lambda x, y: [x * 2.0 + y], [jax.ShapeDtypeStruct((), "float32")] * 2).jaxpr
    >>> words = lambda eqn, operands: [f"{eqn.primitive.name}({', '.join(map(str, operands))})"]
    >>> evaluate(code, ["x", "y"], words)
    ['add(mul(x, 2.0), y)']
    """
    held: Sequence[Any] = attached_consts(code) if consts is None else consts
    env = Environment((*code.constvars, *code.invars), (*held, *args), literal)
    for eqn in code.eqns:
        env.bind(eqn.outvars, rule(eqn, env.read(eqn.invars)))
    return env.read(code.outvars)


# -- what follows from the inputs -----------------------------------------------------------------

Flags = tuple[bool, ...]
Found = tuple[Flags, bool]
"""The flags of results, and whether control flow depends on those of operands."""


class Forward:
    """Dependence through data and control flow. Other analyses replace what they know better.

    >>> import jax
    >>> from lanewise._jax.jaxprs import trace
    >>> def doubled(n, x):
    ...     return jax.lax.while_loop(lambda s: s[0] > 0, lambda s: (s[0] - 1, s[1] * 2), (n, x))
    >>> code = trace(doubled, [jax.ShapeDtypeStruct((), "int32")] * 2).jaxpr
    >>> Forward().of(code, [False, True]), Forward().of(code, [True, False])
    (((False, True), False), ((True, True), True))
    """

    def of(self, code: Jaxpr, flags: Sequence[bool]) -> Found:
        """For the results of code whose inputs (constvars apart) have these flags."""
        control = False

        def rule(eqn: JaxprEqn, given: list[bool]) -> Flags:
            nonlocal control
            found, inner = self.eqn(eqn, given)
            control = control or inner
            return found

        nothing = (False,) * len(code.constvars)
        return tuple(evaluate(code, flags, rule, consts=nothing, literal=_no_flag)), control

    def eqn(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        match eqn.primitive.name:
            case "cond":
                return self.cond(eqn, flags)
            case "while":
                return self.while_(eqn, flags)
            case "scan":
                return self.scan(eqn, flags)
            case _:
                return self.other(eqn, flags)

    def other(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        """For an equation that is not control flow."""
        return (any(flags),) * len(eqn.outvars), False

    def cond(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        branch = Cond.of(eqn, flags)
        sides, controls = zip(*(self.of(code, branch.operands) for code in branch.branches))
        found = tuple(branch.index or any(each) for each in zip(*sides, strict=True))
        return found, branch.index or any(controls)

    def while_(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        loop = While.of(eqn, flags)

        def turn(carry: Sequence[bool]) -> Found:
            (goes_on,), first = self.of(loop.test, [*loop.test_consts, *carry])
            after, second = self.of(loop.body, [*loop.consts, *carry])
            if goes_on:
                after = tuple(a or b for a, b in zip(after, loop.changed, strict=True))
            return after, goes_on or first or second

        return settled(loop.init, turn)

    def scan(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        loop = Scan.of(eqn, flags)
        return settled(
            loop.init, lambda carry: self.of(loop.body, [*loop.consts, *carry, *loop.xs])
        )


def settled(init: Sequence[bool], turn: Callable[[Sequence[bool]], Found]) -> Found:
    """Turns of a loop until its state gets no more flags; what else a turn gives is that of the last."""
    carry = list(init)
    while True:
        found, control = turn(carry)
        after = [old or new for old, new in zip(carry, found, strict=False)]
        if after == carry:
            return (*carry, *found[len(carry) :]), control
        carry = after


def reached(eqns: Iterable[JaxprEqn], start: Iterable[Var]) -> set[Var]:
    """These variables, and those that equations, each taken whole, make from some of them."""
    found = set(start)
    for eqn in eqns:
        if any(a in found for a in eqn.invars if not isinstance(a, Literal)):
            found.update(eqn.outvars)
    return found


def _no_flag(literal: Literal) -> bool:
    del literal
    return False
