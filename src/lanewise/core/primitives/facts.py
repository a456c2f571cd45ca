"""What is known about a primitive: a row of facts, and the questions that ask for them.

A row is declared once, in `rows.py`. Cost, fusion, tiles, splits and the choice of a carrier ask by the functions here,
so that they agree: what is arithmetic to one of them is arithmetic to all. How a primitive is written in C++ and how it
is differentiated are rules, in tables of their own. A primitive without a row is a library's own: its
shapes and the code inside it say what it is.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var


class Kind(enum.Enum):
    """What a primitive does."""

    ELEMENTWISE = enum.auto()  # an element of the result depends on the elements at its own place
    LAYOUT = enum.auto()  # elements are moved, or made of their place
    REDUCTION = enum.auto()
    CUMULATIVE = enum.auto()
    LOOKUP = enum.auto()  # a read by index
    UPDATE = enum.auto()  # a write by index into the first operand
    PRODUCT = enum.auto()
    FACTORIZATION = enum.auto()  # and the solves with a factor
    FFT = enum.auto()
    SORT = enum.auto()
    RANDOM = enum.auto()
    CALL = enum.auto()  # runs code on all its operands
    CONTROL = enum.auto()
    BATCH = (
        enum.auto()
    )  # its batching rule mixes lanes or refuses them; on one lane it is plain code
    CALLBACK = enum.auto()
    OTHER = enum.auto()


class Effort(enum.IntEnum):
    """How much it takes to compute a result again rather than to save or to send it."""

    MOVE = 0  # nothing is computed
    ARITHMETIC = 1  # an instruction or two for an element
    EXACT = 2  # several instructions, and the same bits on every machine
    FUNCTION = 3  # a function of a library: its last bit may differ from machine to machine
    SUM = 4  # reads more than it gives
    WORK = 5


class Vector(enum.Enum):
    """For which numbers a CPU has vector instructions, or our own C++ is made of some."""

    NONE = enum.auto()
    ALL = enum.auto()
    FLOAT32 = enum.auto()
    QUOTIENT = enum.auto()  # floats; integers over a constant, by a product and a shift
    REMAINDER = enum.auto()  # integers over a constant


class Wraps(enum.Enum):
    """What a call adds to its code."""

    NOTHING = enum.auto()
    RECOMPUTATION = enum.auto()
    JVP = enum.auto()
    VJP = enum.auto()


@dataclass(frozen=True)
class Cost:
    """Scalar operations and bytes written, for one lane.

    `products` are those of the operations that belong to matrix products, and to what else is matrix work: a library
    does those better for all lanes together. `shared` are operations beside them whose
    operands are the same for all lanes, so that all lanes together may do them once; `sums` are additions to what lanes
    share, which a product makes for all lanes together.
    """

    operations: float = 0.0
    bytes: float = 0.0
    products: float = 0.0
    shared: float = 0.0
    sums: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.operations + other.operations,
            self.bytes + other.bytes,
            self.products + other.products,
            self.shared + other.shared,
            self.sums + other.sums,
        )

    def __mul__(self, times: float) -> Cost:
        own = (self.operations, self.bytes, self.products, self.shared, self.sums)
        return Cost(*(times * each for each in own))

    def __str__(self) -> str:
        return f"{self.operations:,.0f} ops, {self.bytes:,.0f} bytes"


@dataclass(frozen=True)
class Facts:
    """What is known about a primitive. A fact that depends on the equation is a function of it.

    Fields:
      kind: what it does.
      operations: scalar operations for an element: of the result, or of the operand of a reduction.
      cost: the cost of an equation, where it is not a fixed number of operations for each element.
      effort: what it takes to compute its results again.
      fuses: a kernel reads each element of its operands at most once, where a result is evaluated or stored, so that
        operands are computed there.
      renames: only indices change, each element of an operand appearing at most once in the result.
      vector: for which numbers there are vector instructions.
      repeatable: threads of a GPU that run a lane together may each do all of it: it reads nothing of what it writes
        over, and is known to be worth it.
      passes: looks across an element, which ends XLA's fusion: what it makes of all lanes goes to memory and back.
      one_function: XLA:CPU's code for a whole computation as one function has it.
      linear: in its first operand, which is the only one that can vary.
      adds: a sum of its operands, or of its operand and what it writes.
      compares: orders its operands, or tests whether they are equal.
      draws: from a key, its first operand.
      text: what its C++ weighs beside a loop over elements; None for such a loop.
      code: the parameters that hold the code it runs, which a kernel writes in its place.
      wraps: what a call adds to that code.
      largest: why a kernel's form of it, the plain algorithm, is not for an equation as large as this; None if it is.
    """

    kind: Kind
    operations: float = 1.0
    cost: Callable[[JaxprEqn], Cost] | None = None
    effort: Effort = Effort.WORK
    fuses: bool = False
    renames: bool = False
    vector: Vector = Vector.NONE
    repeatable: bool = False
    passes: bool = True
    one_function: bool | Callable[[JaxprEqn], bool] = True
    linear: bool = False
    adds: bool = False
    compares: bool = False
    draws: bool = False
    text: float | None = None
    code: tuple[str, ...] = ()
    wraps: Wraps | None = None
    largest: Callable[[JaxprEqn], str | None] | None = None


# Operations of an element: a division, and a function of a library.
DIVISION, FUNCTION = 4.0, 10.0
# A lane's own index makes a gather or scatter of what would be a slice.
INDEXED_OPERATIONS = 40.0
# The iterations that a loop of unknown length counts as.
ASSUMED_TRIPS = 16

TABLE: dict[str, Facts] = {}
# Nothing is promised for it.
UNKNOWN = Facts(Kind.OTHER, one_function=False)


# What most primitives of a kind have in common.
_USUAL: dict[Kind, dict[str, Any]] = {
    Kind.ELEMENTWISE: {"fuses": True, "repeatable": True, "passes": False},
    Kind.LAYOUT: {"effort": Effort.MOVE, "repeatable": True},
}


def declare(names: str, kind: Kind, operations: float = 1.0, **facts: Any) -> None:
    """Add the rows of primitives about which the same is known."""
    usual = dict(_USUAL.get(kind, {}))
    if kind is Kind.ELEMENTWISE:
        limits = ((0, Effort.MOVE), (1, Effort.ARITHMETIC), (DIVISION, Effort.EXACT))
        usual["effort"] = next((e for most, e in limits if operations <= most), Effort.FUNCTION)
    for name in names.split():
        if name in TABLE:
            raise ValueError(f"{name} has a row already")
        TABLE[name] = Facts(kind, operations, **{**usual, **facts})


def facts_of(eqn: JaxprEqn) -> Facts:
    """The row of an equation's primitive."""
    return TABLE.get(eqn.primitive.name, UNKNOWN)


# -- what it is ------------------------------------------------------------------------------------


def is_call(eqn: JaxprEqn) -> bool:
    """Whether an equation runs code on all its operands, whatever it adds to that."""
    return facts_of(eqn).kind is Kind.CALL


def code_of(call: JaxprEqn) -> Any:
    """The code that a call runs."""
    (param,) = facts_of(call).code
    return call.params[param]


def is_wrapper(eqn: JaxprEqn) -> bool:
    """Whether the code that an equation runs is all it does, its derivative included."""
    return facts_of(eqn).wraps in (Wraps.NOTHING, Wraps.RECOMPUTATION)


def is_forward_call(eqn: JaxprEqn) -> bool:
    """Whether an equation is a call of its code but, at most, for a JVP of its own."""
    return facts_of(eqn).wraps in (Wraps.NOTHING, Wraps.JVP)


def is_control(eqn: JaxprEqn) -> bool:
    return facts_of(eqn).kind is Kind.CONTROL


def holds_code(eqn: JaxprEqn) -> bool:
    """Whether an equation runs code, other than to join two elements."""
    own = (Kind.REDUCTION, Kind.CUMULATIVE, Kind.UPDATE, Kind.SORT, Kind.CALLBACK)
    return facts_of(eqn).kind not in own and any(True for _ in _jax.subjaxprs(eqn))


def is_lookup(eqn: JaxprEqn) -> bool:
    return facts_of(eqn).kind is Kind.LOOKUP


def is_update(eqn: JaxprEqn) -> bool:
    return facts_of(eqn).kind is Kind.UPDATE


def is_product(eqn: JaxprEqn) -> bool:
    return facts_of(eqn).kind is Kind.PRODUCT


def is_random(eqn: JaxprEqn) -> bool:
    return facts_of(eqn).kind is Kind.RANDOM


def is_reduction(eqn: JaxprEqn) -> bool:
    """Whether elements of an operand are joined, to one or to one for each place."""
    return facts_of(eqn).kind in (Kind.REDUCTION, Kind.CUMULATIVE)


def is_matrix_work(eqn: JaxprEqn) -> bool:
    """Whether an equation takes many more operations than it has operands and results."""
    return facts_of(eqn).kind in (Kind.PRODUCT, Kind.FACTORIZATION, Kind.FFT, Kind.SORT)


def is_sum(eqn: JaxprEqn) -> bool:
    facts = facts_of(eqn)
    return facts.adds and facts.kind is Kind.ELEMENTWISE


def adds_at(eqn: JaxprEqn) -> bool:
    """Whether an equation adds to its first operand at some places."""
    facts = facts_of(eqn)
    return facts.adds and facts.kind is Kind.UPDATE


def looks_at_batch(eqn: JaxprEqn) -> bool:
    """Whether the equation's batching rule mixes lanes, or refuses them."""
    return facts_of(eqn).kind is Kind.BATCH


# -- what it takes ---------------------------------------------------------------------------------


def is_free(eqn: JaxprEqn) -> bool:
    """Whether nothing is left of an equation in compiled code."""
    return facts_of(eqn).operations == 0.0


def is_function(eqn: JaxprEqn) -> bool:
    """Whether an equation is a function of a library for each element."""
    facts = facts_of(eqn)
    return facts.kind is Kind.ELEMENTWISE and facts.operations >= FUNCTION


def is_root(eqn: JaxprEqn) -> bool:
    """Whether an equation is a function for which there is an instruction."""
    return is_function(eqn) and facts_of(eqn).vector is Vector.ALL


def effort_of(eqn: JaxprEqn) -> Effort:
    """What it takes to compute an equation again, beside the code inside it."""
    return facts_of(eqn).effort


def is_safe(eqn: JaxprEqn) -> bool:
    """Whether an equation is cheap, and finite wherever its operands are: no division is part of it."""
    facts = facts_of(eqn)
    return facts.effort <= Effort.ARITHMETIC and facts.operations < DIVISION


def passes(eqn: JaxprEqn) -> bool:
    """Whether an equation ends XLA's fusion: it looks across an element, or its operands have other shapes."""
    shapes = {atom.aval.shape for atom in (*eqn.invars, *eqn.outvars)}
    facts = facts_of(eqn)
    return len(shapes - {()}) > 1 or (facts.passes and facts is not UNKNOWN)


# -- what it costs: operations and bytes, of the right order of magnitude --------------------------


def size_of(atom: object) -> int:
    return math.prod(atom.aval.shape)  # type: ignore[attr-defined]


def bytes_of(atom: object) -> int:
    dtype = atom.aval.dtype  # type: ignore[attr-defined]
    return size_of(atom) * getattr(dtype, "itemsize", 8)


def cost_of(eqns: Iterable[JaxprEqn]) -> Cost:
    """The cost of running equations once."""
    total = Cost()
    for eqn in eqns:
        total = total + eqn_cost(eqn)
    return total


def cost_with_shared(eqns: Iterable[JaxprEqn], is_uniform: Callable[[Var], bool]) -> Cost:
    """The cost of a block's equations when these variables are the same for all lanes at its start.

    A read of a shared array at the lane's own place costs the lane its index: lanes that agree read together.
    """
    total = Cost()
    for eqn, flags in with_uniform(eqns, is_uniform):
        cost = eqn_cost(eqn)
        if all(flags) and not eqn.effects:
            total = total + Cost(shared=cost.operations)
        elif is_lookup(eqn) and flags[0]:
            total = total + Cost(INDEXED_OPERATIONS / 2, cost.bytes)
        else:
            total = total + cost
    return total


def with_uniform(
    eqns: Iterable[JaxprEqn], is_uniform: Callable[[Var], bool]
) -> Iterator[tuple[JaxprEqn, list[bool]]]:
    """Equations, and which of their operands are the same for all lanes when these variables are at the start."""
    defined: dict[Var, bool] = {}

    def same(atom: Atom) -> bool:
        if isinstance(atom, Literal):
            return True
        return defined[atom] if atom in defined else is_uniform(atom)

    for eqn in eqns:
        flags = list(map(same, eqn.invars))
        yield eqn, flags
        defined.update((var, all(flags) and not eqn.effects) for var in eqn.outvars)


def eqn_cost(eqn: JaxprEqn) -> Cost:
    """The cost of one equation, what it holds included."""
    facts = facts_of(eqn)
    if facts.cost is not None:
        return facts.cost(eqn)
    if holds_code(eqn):
        return max((cost_of(j.eqns) for j in _jax.subjaxprs(eqn)), key=lambda c: c.operations)
    if not facts.operations:
        return Cost()
    joined = facts.kind in (Kind.REDUCTION, Kind.CUMULATIVE)
    elements = sum(map(size_of, eqn.invars if joined else eqn.outvars))
    return Cost(facts.operations * elements, bytes_written(eqn))


def bytes_written(eqn: JaxprEqn) -> float:
    return float(sum(map(bytes_of, eqn.outvars)))


def results_size(eqn: JaxprEqn) -> float:
    return float(sum(map(size_of, eqn.outvars)))


# -- how it runs -----------------------------------------------------------------------------------


def runs_in_one_function(eqn: JaxprEqn) -> bool:
    """Whether XLA:CPU's code for a whole computation as one function has the equation."""
    found = facts_of(eqn).one_function
    return found if isinstance(found, bool) else found(eqn)


def too_large_alone(eqn: JaxprEqn) -> str | None:
    """Why a kernel does not carry an equation as large as this; None if it does."""
    largest = facts_of(eqn).largest
    return None if largest is None else largest(eqn)
