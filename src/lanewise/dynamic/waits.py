"""Which rows may come at a later level than which, and so which of a piece's results should not wait for each other.

A call of a piece waits for all rows that it reads. Where its results need different ones, it may be cut in two: the
first part does not wait for what the second one reads. That is a gain only if what the second one reads may come
later. In a tree the children's answers were made together, and the parts would run at the same level: one more launch
for nothing. In a recursion that reads a list both ways, what comes up from the end does not need the state that is
handed down, and both directions can run at once.

So the walk over the code knows for each row a `Level`: a name, and all levels that are not higher. A result's is above
those of all rows that its piece reads. For parameters, results of calls and what loops carry there are *facts*, by
name: which others are not higher. All are believed at first, and those taken away that some call, or end of a
function, refutes; the walk is made again until none is. What is left is the greatest fixed point: results that are
always made together are known to be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

Name = Hashable  # of a level, for the facts: a variable, or the place of a result
Fact = frozenset[Name]


class Level:
    """A level, and all that are not higher: `over`."""

    def __init__(self, over: Iterable[Level] = ()) -> None:
        self.over = frozenset({self, *over})


# That of operands of a lane, and that of calls which read nothing else.
INPUT = Level()
LOWEST = Level([INPUT])
_FIXED: dict[Any, Level] = {"input": INPUT, "lowest": LOWEST}


def above(read: Collection[Level]) -> Level:
    """The level of a call that reads rows of these."""
    over = frozenset().union(*(level.over for level in read))
    return Level((LOWEST, *over)) if over - INPUT.over else LOWEST


def later(one: Iterable[Level], other: Collection[Level]) -> bool:
    """Whether a call that reads rows of the first levels may have to wait longer than one that reads the others.

    >>> end, state = Level([LOWEST]), Level([LOWEST])
    >>> later([state], [end]), later([state], [end, above([state])]), later([LOWEST], [end])
    (True, False, False)
    """
    return any(not any(level in each.over for each in other) for level in one if level is not INPUT)


class Facts:
    """What is believed of the levels of names. `asked`: whether any decision depended on them."""

    def __init__(self) -> None:
        self.known: dict[Name, Fact] = {}
        self.asked = self.refuted = False

    def again(self) -> bool:
        """Whether a walk has to be made again."""
        found = self.asked and self.refuted
        self.refuted = False
        return found

    def refute(self, levels: Mapping[Any, Level], around: Mapping[Any, Level]) -> None:
        """See levels that names have at some place, beside others; what does not hold here is a fact no more."""
        names = {**_FIXED, **around, **levels}
        for name, level in levels.items():
            old = self.known.setdefault(name, frozenset(names))
            self.known[name] = old & _not_higher(level, names)
            self.refuted |= old != self.known[name]

    def levels(self, own: Sequence[Name], around: Mapping[Any, Level]) -> list[Level]:
        """Levels of names, as far as they are known; the first time, none of those named here is higher."""
        everything = frozenset((*_FIXED, *around, *own))
        return related([self.known.setdefault(n, everything) for n in own], own, around)

    def carried(self, init: Mapping[Any, Level], around: Mapping[Any, Level]) -> list[Level]:
        """Levels of what a loop carries: what holds before it is believed to hold in it."""
        names = {**_FIXED, **around, **init}
        for name, level in init.items():
            self.known.setdefault(name, _not_higher(level, names))
        self.refute(init, around)
        return self.levels(list(init), around)


def _not_higher(level: Level, names: Mapping[Any, Level]) -> Fact:
    return frozenset(name for name, each in names.items() if each in level.over)


def related(facts: Sequence[Fact], own: Sequence[Name], around: Mapping[Any, Level]) -> list[Level]:
    """Levels that are to each other, and to others, as these facts say."""
    names = {**_FIXED, **around}
    found = [Level() for _ in own]
    mine = dict(zip(own, found, strict=True))
    for level, fact in zip(found, facts, strict=True):
        over = [mine[n] for n in own if n in fact]
        level.over = frozenset((level, *over)).union(
            *(names[n].over for n in fact if n in names and n not in mine)
        )
    return found


def joined(sides: Sequence[Sequence[Level]], around: Mapping[Any, Level]) -> list[Level]:
    """Levels of the results of a branch: what holds whichever side was taken."""
    own = range(len(sides[0]))
    facts = [
        [_not_higher(level, {**_FIXED, **around, **dict(enumerate(side))}) for level in side]
        for side in sides
    ]
    return related([frozenset.intersection(*each) for each in zip(*facts)], own, around)


def parts(
    atoms: Sequence[Name],
    reads: Mapping[Name, Collection[Level]],
    worth: Callable[[Sequence[Name]], bool],
) -> list[list[Name]]:
    """Results that one piece would give, by what they wait for; none needs what a later part gives.

    A part that is not `worth` a launch of its own is computed with one that waits for as much.
    """
    kinds: list[list[Name]] = []
    for atom in atoms:
        for kind in kinds:
            one, other = reads[kind[0]], reads[atom]
            if not later(one, other) and not later(other, one):
                kind.append(atom)
                break
        else:
            kinds.append([atom])

    def before(one: list[Name], other: list[Name]) -> bool:
        return not later(reads[one[0]], reads[other[0]])

    kinds.sort(key=lambda kind: sum(before(each, kind) for each in kinds))
    found = []
    for i, kind in enumerate(kinds):
        other = next((k for k in kinds[i + 1 :] if before(kind, k)), None)
        if other is None or worth(kind):
            found.append([atom for atom in atoms if atom in kind])
        else:
            other += kind
    return found
