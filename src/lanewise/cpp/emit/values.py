"""How the values of a jaxpr's variables are held inside a kernel, where arrays are, and what still reads them.

A value gives the C++ expression of any of its elements, by indices (`at`) or by row-major position (`flat`). A
`Scalar` is one expression without side effects, a `Stored` is in memory, a `View` is computed where it is read: what
only renames indices is never copied, and elementwise code that is read once is fused into its reader (`Uses` says
whether each element is then computed at most once, and whether a variable's memory can be written over).

Index expressions are Python ints where they are known, so that constant indices fold, and C++ text otherwise; text that
binds weaker than a sum comes in parentheses.

`roots` names the memory a value reads when it is evaluated. Memory is only written over (by indexed updates in place
and by stores at the end of a block) when no value that is still wanted has it among its roots.

A lane's small arrays are C++ arrays (which a compiler keeps in registers where all indices are known, and which CUDA
spreads over memory so that neighbouring lanes coalesce); its larger arrays and its stacks are in the scratch memory the
launcher gives, element by element: element `i` of lane `l` at `i * lanes + l`, so that lanes at the same place of the
program touch neighbouring addresses. Operands are read where they are, those that all lanes share too: a copy of them
in a GPU's shared memory was tried, and beam search took 6.9 and 7.1 ms with it, 6.6 and 6.7 without. A host's thread
runs one lane, so nothing is gained by such an order there: a larger array that is an answer of the program is stored
where answers are wanted from the start. (A tape with few records on it is then not copied.)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lanewise._jax import Atom, JaxprEqn, Var
from lanewise.blocks.analysis import Known
from lanewise.core.primitives.facts import facts_of

Index = int | str
Roots = frozenset[str]
NO_ROOTS: Roots = frozenset()


@dataclass(frozen=True)
class Value(ABC):
    """An array known by its elements."""

    shape: tuple[int, ...]
    dtype: Any

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def roots(self) -> Roots:
        """The memory that evaluating an element reads."""
        return NO_ROOTS

    @property
    def linear(self) -> bool:
        """Whether `flat` is as cheap as `at`: no division to find the indices."""
        return len(self.shape) <= 1

    @property
    def weight(self) -> int:
        """How many operations one element takes."""
        return 0

    @property
    def in_rows(self) -> bool:
        """Whether elements along the last axis are contiguous in memory."""
        return False

    @property
    def unwritten(self) -> bool:
        """Whether no element is read before it is written: to store such a value is to do nothing."""
        return False

    @abstractmethod
    def at(self, indices: Sequence[Index]) -> str:
        """The element at these indices."""

    def flat(self, index: Index) -> str:
        """The element at this row-major position."""
        return self.at(unravel(self.shape, index))


@dataclass(frozen=True)
class Scalar(Value):
    """One element: a literal, or a name. `place` says that the name is a variable that may be stored into."""

    text: str = ""
    place: bool = False

    @property
    def roots(self) -> Roots:
        return frozenset((self.text,)) if self.place else NO_ROOTS

    def at(self, indices: Sequence[Index]) -> str:
        return self.text

    def flat(self, index: Index) -> str:
        return self.text


@dataclass(frozen=True)
class _InMemory(Value):
    """Elements that are contiguous in memory, in row-major order."""

    @property
    def linear(self) -> bool:
        return True

    @property
    def in_rows(self) -> bool:
        return True

    def at(self, indices: Sequence[Index]) -> str:
        return self.flat(ravel(self.shape, indices))

    @abstractmethod
    def flat(self, index: Index) -> str: ...


@dataclass(frozen=True)
class Stored(_InMemory):
    """Elements in memory, row-major: a local array, a lane's part of the scratch memory, an operand read in place.

    `constant`: nothing ever writes there. `strided`: the name is that of an `lw_strided`, not of a pointer or array.
    """

    name: str = ""
    constant: bool = False
    strided: bool = False

    @property
    def roots(self) -> Roots:
        return NO_ROOTS if self.constant else frozenset((self.name,))

    def flat(self, index: Index) -> str:
        return f"{self.name}[{index}]"


@dataclass(frozen=True)
class Part(_InMemory):
    """Consecutive elements of memory that holds more than this value: a frame's slot, a row that a loop writes."""

    name: str = ""
    offset: Index = 0

    @property
    def roots(self) -> Roots:
        return frozenset((self.name,))

    def flat(self, index: Index) -> str:
        return f"{self.name}[{plus(self.offset, index)}]"


def window(value: Value, corner: Sequence[Index], shape: Sequence[int]) -> Part | None:
    """The elements of a window of a value, if they are contiguous in memory."""
    if not isinstance(value, Stored):
        return None
    # At the axes before the first that is longer than one the window is a place, at those after it it is all there is.
    first = next((axis for axis, size in enumerate(shape) if size != 1), len(shape))
    if tuple(shape[first + 1 :]) != value.shape[first + 1 :]:
        return None
    return Part(tuple(shape), value.dtype, value.name, ravel(value.shape, corner))


@dataclass(frozen=True)
class View(Value):
    """Elements computed where they are read: `element` maps indices to an expression."""

    element: Callable[[tuple[Index, ...]], str] = lambda indices: ""
    sources: tuple[Value, ...] = ()
    in_rows: bool = False

    @property
    def roots(self) -> Roots:
        return joined_roots(self.sources)

    @property
    def weight(self) -> int:
        return sum(source.weight for source in self.sources)

    def at(self, indices: Sequence[Index]) -> str:
        return self.element(tuple(indices))


def view(
    shape: Sequence[int],
    dtype: Any,
    element: Callable[[tuple[Index, ...]], str],
    *sources: Value,
    in_rows: bool = False,
) -> View:
    """A value whose element at given indices is `element(indices)`, read from `sources`."""
    return View(tuple(shape), dtype, element, sources, in_rows)


@dataclass(frozen=True)
class Reshaped(Value):
    """The elements of another value in the same row-major order."""

    source: Value = Scalar((), None)

    @property
    def roots(self) -> Roots:
        return self.source.roots

    @property
    def weight(self) -> int:
        return self.source.weight

    @property
    def linear(self) -> bool:
        return self.source.linear

    def at(self, indices: Sequence[Index]) -> str:
        return self.source.flat(ravel(self.shape, indices))

    def flat(self, index: Index) -> str:
        return self.source.flat(index)


@dataclass(frozen=True)
class Mapped(Value):
    """A function of the elements at the same place of other values; scalars count for every place, and so does the one
    element of an axis that is longer here.

    The function names each element once in its text: text that is fused must not grow like a tree of copies.
    """

    function: Callable[..., str] = lambda *elements: ""
    sources: tuple[Value, ...] = ()

    @property
    def roots(self) -> Roots:
        return joined_roots(self.sources)

    @property
    def weight(self) -> int:
        return 1 + sum(source.weight for source in self.sources)

    @property
    def linear(self) -> bool:
        return all(s.linear if s.shape == self.shape else s.size == 1 for s in self.sources)

    def at(self, indices: Sequence[Index]) -> str:
        return self.function(
            *(s.at([0 if n == 1 else i for n, i in zip(s.shape, indices)]) for s in self.sources)
        )

    def flat(self, index: Index) -> str:
        if not self.linear:
            return super().flat(index)
        return self.function(*(s.flat(index if s.shape == self.shape else 0) for s in self.sources))


@dataclass(frozen=True)
class Unwritten(Value):
    """Elements that are written before they are read; `text` is what a reader gets all the same."""

    text: str = ""

    @property
    def unwritten(self) -> bool:
        return True

    @property
    def linear(self) -> bool:
        return True

    def at(self, indices: Sequence[Index]) -> str:
        return self.text

    def flat(self, index: Index) -> str:
        return self.text


# What can be stored into.
Place = Scalar | Stored | Part


def in_step(value: Value, place: Place) -> bool:
    """Whether the value can be stored element by element over a place it reads."""
    if not value.roots & place.roots or isinstance(value, Scalar | Stored):
        return True
    return isinstance(value, Mapped) and all(in_step(source, place) for source in value.sources)


def joined_roots(values: Sequence[Value]) -> Roots:
    return NO_ROOTS.union(*(value.roots for value in values))


# -- readers -------------------------------------------------------------------------------------------


class Uses:
    """How often each variable is still read; `start` is called before each equation is written."""

    def __init__(self, counts: dict[Var, int], reader: dict[Var, JaxprEqn | None]) -> None:
        self._counts = counts
        self._reader = reader

    def start(self, eqn: JaxprEqn) -> None:
        for atom in eqn.invars:
            if isinstance(atom, Var):
                self._counts[atom] -= 1

    def remaining(self, var: Var) -> int:
        """How many readers come after the equation being written."""
        return self._counts.get(var, 0)

    def only_reader(self, var: Var) -> JaxprEqn | None:
        """The equation that reads a variable, if nothing else does."""
        return self._reader[var] if self._counts.get(var) == 1 else None

    def fuses(self, var: Var) -> bool:
        """Whether each element is evaluated at most once if it is computed where it is read."""
        if self._counts.get(var) != 1:
            return False
        reader = self._reader[var]
        if reader is None or not reader.outvars:
            return True
        name, size = reader.primitive.name, reader.outvars[0].aval.size
        if facts_of(reader).renames or (name == "broadcast_in_dim" and var.aval.size == size):
            return self.fuses(reader.outvars[0])
        # An axis of one element that is spread over a longer one would be evaluated again and again.
        return facts_of(reader).fuses and var.aval.size >= size


def uses_of(eqns: Sequence[JaxprEqn], outputs: Iterable[Atom]) -> Uses:
    """Count the readers of every variable; `outputs` are read after all equations."""
    counts: dict[Var, int] = {}
    reader: dict[Var, JaxprEqn | None] = {}
    for eqn in eqns:
        for atom in eqn.invars:
            if isinstance(atom, Var):
                counts[atom] = counts.get(atom, 0) + 1
                reader[atom] = eqn
    for atom in outputs:
        if isinstance(atom, Var):
            counts[atom] = counts.get(atom, 0) + 1
            reader[atom] = None
    return Uses(counts, reader)


@dataclass
class Scope:
    """The values of one piece of code while it is written.

    `owned`: variables whose memory this code may write over once nothing wants it any more. `destinations`: where a
    variable's value goes in the end, so that it may be computed there. `added`: those that a host has added to a sum of
    all lanes where they were made. `current`: the equation being written, with
    those `ahead` of it, the last one first; `made_by` says which of those before it made a variable. `known`: the
    numbers among the scalars, which need no code.
    """

    uses: Uses
    values: dict[Var, Value] = field(default_factory=dict)
    owned: set[Var] = field(default_factory=set)
    destinations: dict[Var, Stored] = field(default_factory=dict)
    added: set[Var] = field(default_factory=set)
    current: JaxprEqn | None = None
    known: Known = field(default_factory=dict)
    ahead: list[JaxprEqn] = field(default_factory=list)
    made_by: dict[Var, JaxprEqn] = field(default_factory=dict)


# -- index arithmetic ------------------------------------------------------------------------------------


def plus(first: Index, second: Index) -> Index:
    """The sum of two index expressions.

    >>> plus(2, 3), plus("i", 0), plus("i", 2), plus("i", -2)
    (5, 'i', 'i + 2', 'i - 2')
    """
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    if first == 0:
        return second
    if second == 0:
        return first
    if isinstance(first, int):
        first, second = second, first
    if isinstance(second, int) and second < 0:
        return f"{first} - {-second}"
    return f"{first} + {second}"


def minus(first: Index, second: Index) -> Index:
    """The difference of two index expressions."""
    if isinstance(second, int):
        return plus(first, -second)
    return f"{first} - {_grouped(second)}"


def times(first: Index, second: Index) -> Index:
    """The product of two index expressions.

    >>> times("i + 1", 3), times("i", 1), times("i", 0)
    ('(i + 1) * 3', 'i', 0)
    """
    if isinstance(first, int) and isinstance(second, int):
        return first * second
    if isinstance(first, int):
        first, second = second, first
    if second == 0:
        return 0
    if second == 1:
        return first
    return f"{_grouped(first)} * {_grouped(second)}"


def quotient(index: Index, divisor: int) -> Index:
    """`index / divisor` of a non-negative index."""
    if isinstance(index, int):
        return index // divisor
    return index if divisor == 1 else f"{_grouped(index)} / {divisor}"


def remainder(index: Index, divisor: int) -> Index:
    """`index % divisor` of a non-negative index."""
    if divisor == 1:
        return 0
    return index % divisor if isinstance(index, int) else f"{_grouped(index)} % {divisor}"


def ravel(shape: Sequence[int], indices: Sequence[Index]) -> Index:
    """The row-major position of an element.

    >>> ravel((4, 3), ("i", "j")), ravel((4, 3), (2, 1)), ravel((), ())
    ('i * 3 + j', 7, 0)
    """
    position: Index = 0
    for size, index in zip(shape, indices, strict=True):
        position = plus(times(position, size), 0 if size == 1 else index)
    return position


def unravel(shape: Sequence[int], position: Index) -> tuple[Index, ...]:
    """The indices of the element at a row-major position.

    >>> unravel((4, 3), 7), unravel((5,), "i"), unravel((2, 3), "i")
    ((2, 1), ('i',), ('i / 3', 'i % 3'))
    """
    indices: list[Index] = []
    for axis in range(len(shape)):
        below = math.prod(shape[axis + 1 :])
        index = quotient(position, below) if below else 0
        indices.append(index if math.prod(shape[:axis]) == 1 else remainder(index, shape[axis]))
    return tuple(indices)


def _grouped(index: Index) -> str:
    """The expression in parentheses, unless it is one already or a plain name."""
    text = str(index)
    return text if text.replace("_", "").isalnum() else f"({text})"
