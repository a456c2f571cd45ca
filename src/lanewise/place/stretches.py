"""Placed loops in stretches, so that their state can be saved on the way.

A program is cut at the loops at its top level that are at several places: what comes before a loop, some iterations of
it, and what comes after the last. Each is a placed program of its own. Between stretches the host of each place has the
part of the loop's state that lives there, and nothing moves: a stretch takes values where the one before it left them.
All places make the same cuts, as these depend on the program alone.

A `while` runs until its test fails or the stretch is full; a `scan` takes the next rows, and the rows that it gives are
kept until the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import Atom, Var
from lanewise.core.errors import OptionError
from lanewise.place.owners import Places
from lanewise.place.prepared import Asked, Prepared, divided
from lanewise.place.regions import Check, Code, Node, Op, Region, Scan, While, read_function


@dataclass(frozen=True, eq=False)
class Stretches:
    """A loop of a program, and what comes before it: from the program's inputs on, or from the end of the last loop.

    `before` gives the state, the rows that the loop takes, and `kept`: values that the loop, or what comes after it,
    reads. A stretch takes how many iterations it may do (a `while`) or some rows (a `scan`), the state and `kept`; it
    gives how many iterations it did (a `while`), the state, and rows. What comes after the loop takes the state, all
    rows given, and `kept`. The state is at `homes` throughout.
    """

    asked: Asked
    loop: While | Scan
    kept: tuple[Var, ...]
    homes: tuple[Places, ...]
    before: Prepared

    @property
    def num_state(self) -> int:
        return len(self.loop.init)

    @property
    def num_rows(self) -> int:
        return len(self.loop.xs) if isinstance(self.loop, Scan) else 0

    @functools.cached_property
    def stretch(self) -> Prepared:
        """Some iterations of a `while`."""
        return _stretch(self.asked, self.loop, self.kept, self.before, self.homes)

    def rows(self, length: int) -> Prepared:
        """Some iterations of a `scan`."""
        assert isinstance(self.loop, Scan)
        loop = replace(self.loop, length=length)
        return _stretch(self.asked, loop, self.kept, self.before, self.homes)


@dataclass(frozen=True, eq=False)
class Cuts:
    """A program cut at its loops, one after the other, and what comes after the last."""

    asked: Asked
    loops: tuple[Stretches, ...]
    after: Prepared

    @property
    def digest(self) -> str:
        return " ".join([*(cut.before.digest for cut in self.loops), self.after.digest])


def cuts(asked: Asked, everywhere: bool) -> Cuts:
    """Cut a program at its loops. `everywhere`: each place wants all results."""
    region, homes, loops = asked.code.region, asked.homes, list[Stretches]()
    while True:
        loop = next((n for n in region.nodes if isinstance(n, While | Scan)), None)
        if loop is None:
            break
        made, region, homes = _cut(asked, region, homes, loop, asked.captured if not loops else ())
        loops.append(made)
    if not loops:
        raise OptionError(
            f"checkpoint= was given, and `{asked.name}` has no loop over several places at its top level to save the"
            " state of. Leave it out, or save what the program gives."
        )
    after = divided(
        f"{asked.name}: after its loops",
        asked.placement,
        Code(region, asked.code.constants),
        homes,
        asked.wanted(everywhere),
        (),
        asked.out_tree,
    )
    return Cuts(asked, tuple(loops), after)


def _cut(
    asked: Asked,
    region: Region,
    inputs: Sequence[Places],
    loop: While | Scan,
    captured: tuple[Any, ...],
) -> tuple[Stretches, Region, list[Places]]:
    """A loop, what comes after it, and where the inputs of that are."""
    at = region.nodes.index(loop)
    rest = region.nodes[at + 1 :]
    earlier = [*region.ins, *(v for n in region.nodes[:at] for v in getattr(n, "outs", ()))]
    read = _read([loop]) | _read(rest) | {a for a in region.outs if isinstance(a, Var)}
    kept = tuple(v for v in earlier if v in read)
    rows = loop.xs if isinstance(loop, Scan) else ()
    count = len(loop.init)

    def before(homes: Sequence[Places | None]) -> Prepared:
        return divided(
            f"{asked.name}: before a loop",
            asked.placement,
            Code(
                Region(region.ins, region.nodes[:at], (*loop.init, *rows, *kept)),
                asked.code.constants,
            ),
            inputs,
            [*homes, *[None] * (len(rows) + len(kept))],
            captured,
        )

    # Where a stretch leaves the state, given where it is made at first, is where it is from then on.
    first = before([None] * count)
    trial = _stretch(asked, loop, kept, first, first.actions.outs[:count], [None] * count)
    skipped = 1 if isinstance(loop, While) else 0
    homes = trial.actions.outs[skipped : skipped + count]
    made = before(homes)
    given = trial.actions.outs[skipped + count :]
    after = [*homes, *given, *made.actions.outs[count + len(rows) :]]
    cut = Stretches(asked, loop, kept, homes, made)
    return cut, Region((*loop.outs, *kept), rest, region.outs), after


def _stretch(
    asked: Asked,
    loop: While | Scan,
    kept: tuple[Var, ...],
    before: Prepared,
    homes: Sequence[Places],
    wanted: Sequence[Places | None] | None = None,
) -> Prepared:
    """Some iterations, the state at these places before and, unless said otherwise, after."""
    count, outs = len(loop.init), before.actions.outs
    rows = len(loop.xs) if isinstance(loop, Scan) else 0
    if isinstance(loop, While):
        code, first = _some_turns(loop, kept), [asked.placement.everywhere]
        given: list[Places | None] = [None]
    else:
        code, first = _some_rows(loop, kept), list(outs[count : count + rows])
        given = []
    held = {**asked.code.constants, **code.constants}
    return divided(
        f"{asked.name}: some iterations",
        asked.placement,
        Code(code.region, held),
        [*first, *homes, *outs[count + rows :]],
        [*given, *(homes if wanted is None else wanted), *[None] * (len(loop.outs) - count)],
    )


def _read(nodes: Sequence[Any]) -> set[Var]:
    """The values that nodes read, at any depth."""
    found: set[Var] = set()

    def region(inner: Region) -> None:
        found.update(a for a in inner.outs if isinstance(a, Var))
        found.update(_read(inner.nodes))

    for node in nodes:
        atoms: Iterator[Atom]
        if isinstance(node, Op):
            atoms = iter(node.ins)
        elif isinstance(node, Check):
            atoms = iter((node.ok,))
        elif isinstance(node, While | Scan):
            atoms = iter((*node.init, *(node.xs if isinstance(node, Scan) else ())))
            region(node.body)
            if isinstance(node, While):
                region(node.test)
        else:
            atoms = iter((node.index,))
            for side in node.sides:
                region(side)
        found.update(a for a in atoms if isinstance(a, Var))
    return found


def _some_turns(loop: While, kept: Sequence[Var]) -> Code:
    """A `while` that ends after a number of iterations at most, and gives how many it did."""
    number = _jax.shaped((), jnp.int32.dtype)
    most, at_test, at_body, done = (_jax.new_var(number) for _ in range(4))
    held: dict[Var, Any] = {}

    def nodes(fun: Callable[..., list[Any]], *ins: Atom) -> tuple[tuple[Node, ...], Atom]:
        made = read_function(fun, ins)
        held.update(made.constants)
        return made.region.nodes, made.region.outs[0]

    (goes_on,) = loop.test.outs
    test, more = nodes(lambda go, n, most: [go & (n < most)], goes_on, at_test, most)
    body, counted = nodes(lambda n: [n + 1], at_body)
    begin, zero = nodes(lambda: [jnp.zeros((), jnp.int32)])
    state = tuple(_jax.new_var(v.aval) for v in loop.outs)
    outs = tuple(_jax.new_var(v.aval) for v in loop.outs)
    node = While(
        Region((*loop.test.ins, at_test), (*loop.test.nodes, *test), (more,)),
        Region((*loop.body.ins, at_body), (*loop.body.nodes, *body), (*loop.body.outs, counted)),
        (*state, zero),
        (*outs, done),
        loop.line,
    )
    return Code(Region((most, *state, *kept), (*begin, node), (done, *outs)), held)


def _some_rows(loop: Scan, kept: Sequence[Var]) -> Code:
    """A `scan` over as many rows as its length says."""

    def with_length(aval: _jax.ShapedArray) -> Var:
        return _jax.new_var(_jax.shaped((loop.length, *aval.shape[1:]), aval.dtype, aval.weak_type))

    count = len(loop.init)
    rows = tuple(with_length(a.aval) for a in loop.xs)
    state = tuple(_jax.new_var(v.aval) for v in loop.outs[:count])
    outs = (
        *(_jax.new_var(v.aval) for v in loop.outs[:count]),
        *(with_length(v.aval) for v in loop.outs[count:]),
    )
    node = replace(loop, init=state, xs=rows, outs=outs)
    return Code(Region((*rows, *state, *kept), (node,), outs), {})
