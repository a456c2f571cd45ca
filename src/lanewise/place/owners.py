"""Which place owns what: the places of operations that no part names, of loop states, and of what branches give.

A part runs where it is placed. An operation between parts runs where most bytes of its operands are, and a state of a
loop lives where its next value is made: so what the encoder saves for its gradient, and the sums of its adjoints,
end up where the encoder is, without an annotation.

Cheap operations on integers (counters, tests of counted loops, indices, keys) that can be computed at several places
are computed at each of them. No message is worth a sum of two integers, and a loop whose test each place can make on
its own needs no messages for its control: places may then be iterations apart. Floating-point values are replicated
only where no decision hangs on them, as devices of different kinds may round them differently, and places that
disagree about a branch would wait for one another for ever.

What is decided here changes where messages go and never what is computed: `moves.py` brings each value to the places
that need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import jax.numpy as jnp

from lanewise._jax import Atom, Literal, Var
from lanewise.core.primitives.facts import bytes_of
from lanewise.place.cheap import is_cheap
from lanewise.place.regions import Branch, Check, Code, Node, Op, Region, Scan, While

Places = frozenset[int]

_MOST_BYTES = 4096
# What is smaller is sent as well as the outcome of a branch, which says whether it has changed.
_LEAST_KEPT = 32
_ROUNDS = 8


@dataclass
class Owners:
    """Where each operation runs and where each value is made: found once for a program."""

    everywhere: Places
    ops: dict[Node, Places] = field(default_factory=dict)
    homes: dict[Var, Places] = field(default_factory=dict)
    # Loops and branches: the places that have them.
    members: dict[Node, Places] = field(default_factory=dict)
    # What loops give: where it is made, if it comes to other places on the way.
    makers: dict[Var, Places] = field(default_factory=dict)

    def maker(self, atom: Atom) -> Places:
        found = None if isinstance(atom, Literal) else self.makers.get(atom)
        return self.home(atom) if found is None else found

    def home(self, atom: Atom) -> Places:
        return self.everywhere if isinstance(atom, Literal) else self.homes[atom]


def owners_of(code: Code, inputs: Sequence[Places], everywhere: Places) -> Owners:
    """Decide for a whole program, whose inputs are at these places."""
    found = Owners(everywhere)
    for var in code.constants:
        found.homes[var] = everywhere
    found.homes.update(zip(code.region.ins, inputs, strict=True))
    hints: dict[Var, int] = {}
    for _ in range(2):  # the second time with what comes round a loop
        _hint(code.region, hints)
    given = frozenset(code.region.ins) | frozenset(code.constants)
    _Decision(found, hints, given).region(code.region, everywhere)
    return found


# -- hints: where a value is needed first -----------------------------------------------------------


def _hint(region: Region, hints: dict[Var, int]) -> None:
    def wanted(atoms: Iterable[Atom]) -> int | None:
        return next((hints[a] for a in atoms if isinstance(a, Var) and a in hints), None)

    def say(atoms: Iterable[Atom], place: int | None) -> None:
        for atom in atoms:
            if isinstance(atom, Var) and place is not None:
                hints[atom] = place

    for node in reversed(region.nodes):
        if isinstance(node, Op | Check):
            outs = node.outs if isinstance(node, Op) else ()
            ins = node.ins if isinstance(node, Op) else (node.ok,)
            say(ins, node.place if node.place is not None else wanted(outs))
            continue
        if isinstance(node, Branch):
            for side in node.sides:
                for out, inner in zip(node.outs, side.outs, strict=True):
                    say([inner], hints.get(out))
                _hint(side, hints)
            continue
        for out, inner in zip(node.outs, node.body.outs, strict=True):
            say([inner], hints.get(out))
        _hint(node.body, hints)
        if isinstance(node, While):
            _hint(node.test, hints)
        entered = node.init if isinstance(node, While) else (*node.init, *node.xs)
        for outer, inner in zip(entered, node.body.ins, strict=True):
            say([outer], hints.get(inner))
        for inner, out in zip(node.body.ins, node.body.outs, strict=False):
            say([out], hints.get(inner))


# -- decisions --------------------------------------------------------------------------------------


@dataclass
class _Decision:
    found: Owners
    hints: dict[Var, int]
    # The program's own inputs: the same bits wherever they are.
    given: frozenset[Var]
    # What branches give that is also kept at other places than the one that makes it.
    kept: dict[Var, Places] = field(default_factory=dict)

    def region(self, region: Region, among: Places) -> None:
        """Decide the nodes of a region that these places have."""
        made = set(region.ins)
        for node in region.nodes:
            if isinstance(node, Op):
                owner = self._owner(node, among, made)
                self.found.ops[node] = owner
                self.found.homes.update((v, owner) for v in node.outs)
                made.update(node.outs)
            elif isinstance(node, Check):
                home = self.found.home(node.ok) & among
                place = node.place if node.place is not None else min(home or among)
                self.found.ops[node] = frozenset((place,))
            else:
                self._control(node, among)
                made.update(node.outs)

    def _control(self, node: While | Scan | Branch, among: Places) -> None:
        if isinstance(node, Branch):
            self._branch(node, among)
            return
        # First for all places, to see which have work in the loop; then for those.
        self._loop(node, among)
        members = self._at_work(node) or frozenset((min(among),))
        self._loop(node, members)
        self.found.members[node] = self._at_work(node) | members

    def _loop(self, node: While | Scan, among: Places) -> None:
        found, body = self.found, node.body
        count = len(node.init)
        state = [self._entered(found.home(a), among, v) for a, v in zip(node.init, body.ins)]
        if isinstance(node, Scan):
            for atom, row in zip(node.xs, body.ins[count:], strict=True):
                found.homes[row] = self._entered(found.home(atom), among, row)
        after = state
        for _ in range(_ROUNDS):
            state = after
            found.homes.update(zip(body.ins, state, strict=False))
            if isinstance(node, While):
                found.homes.update(zip(node.test.ins, state, strict=True))
                self.region(node.test, among)
            self.region(body, among)
            made = [found.maker(a) & among or among for a in body.outs[:count]]
            after = [
                (home & there) or frozenset((min(there),))
                for home, there in zip(state, made, strict=True)
            ]
            if after == state:
                break
        found.makers.update(zip(node.outs, state, strict=False))
        state = self._kept(node, state, among)
        found.homes.update(zip(node.outs, state, strict=False))
        for var, atom in zip(node.outs[count:], body.outs[count:], strict=True):
            # A row that is sent to another place on the way is there too: a gradient reads it at both.
            sent = [found.ops[n] for n in body.nodes if isinstance(n, Op) and atom in n.ins]
            home = found.home(atom).union(*sent) & among
            found.homes[var] = home or frozenset((min(among),))

    def _kept(self, node: While | Scan, state: Sequence[Places], among: Places) -> list[Places]:
        """Where states are, with the places that read them and have had the next value sent to them before.

        Without this they would be sent it again in the next iteration.
        """
        found, body = self.found, node.body
        regions = (body, node.test) if isinstance(node, While) else (body,)
        kept = []
        for i, home in enumerate(state):
            after = body.outs[i]
            reads = {p for r in regions for p in self._readers(r, r.ins[i], True)}
            gets = self._readers(body, after, False) if isinstance(after, Var) else set()
            again = (reads & gets) | self._stays(body, i, home, among)
            kept.append(home | (again & among))
        if kept == list(state):
            return kept
        for region in regions:
            found.homes.update(zip(region.ins, kept, strict=False))
        if isinstance(node, While):
            self.region(node.test, among)
        self.region(body, among)
        return kept

    def _stays(self, body: Region, i: int, home: Places, among: Places) -> Places:
        """The places that keep a state which a branch may leave as it is: those that read it in each iteration.

        Its next value is then sent in the branch, when it has changed.
        """
        before, after = body.ins[i], body.outs[i]
        if not isinstance(after, Var) or not _may_stay(body, before, after):
            return frozenset()
        reads = self._readers(body, before, False) | self._readers(body, after, False)
        self.kept[after] = (home | reads) & among
        return self.kept[after]

    def _readers(self, region: Region, var: Var, maybe: bool) -> set[int]:
        """The places that read a value in a region; `maybe`: also those that do so inside a branch only."""
        places: set[int] = set()
        for node in region.nodes:
            if isinstance(node, Op | Check):
                if var in (node.ins if isinstance(node, Op) else (node.ok,)):
                    places |= self.found.ops[node]
            elif isinstance(node, Branch):
                for side in node.sides if maybe else ():
                    places |= self._readers(side, var, maybe)
            else:
                # What a loop reads is sent before it, also what a branch in it reads.
                for inner in (node.body, node.test) if isinstance(node, While) else (node.body,):
                    places |= self._readers(inner, var, True)
        return places

    def _entered(self, home: Places, among: Places, inner: Var) -> Places:
        """Where a value is that comes into a loop which these places have."""
        here = home & among
        if here:
            return here
        hint = self.hints.get(inner)
        return frozenset((hint if hint in among else min(among),))

    def _branch(self, node: Branch, among: Places) -> None:
        found = self.found
        for side in node.sides:
            self.region(side, among)
        members = self._at_work(node)
        for i, var in enumerate(node.outs):
            homes = [found.home(side.outs[i]) for side in node.sides]
            both = frozenset.intersection(*homes) & (members or among)
            hint = self.hints.get(var)
            if not both and hint in among and frozenset((hint,)) in homes:
                # Where it is read next: the side that has it there sends nothing.
                both = frozenset((hint,))
            elif not both:
                # Where one of the sides makes it.
                made = [
                    home
                    for home, side in zip(homes, node.sides, strict=True)
                    if any(side.outs[i] in getattr(n, "outs", ()) for n in side.nodes)
                ]
                both = frozenset((min((made or homes)[0] & among or among),))
            found.homes[var] = both
            members |= both if len(both) == 1 else frozenset()
            if var in self.kept:
                found.homes[var] |= self.kept[var] & among
                members |= self.kept[var] & among
        members = members or frozenset((min(among),))
        for var in node.outs:
            found.homes[var] = found.homes[var] & members or frozenset((min(members),))
        found.members[node] = members

    def _at_work(self, node: While | Scan | Branch) -> Places:
        """The places that have something to do inside: an operation or a state that is theirs alone."""
        if isinstance(node, Branch):
            regions = node.sides
            states: Sequence[Var] = ()
        else:
            regions = (node.body, node.test) if isinstance(node, While) else (node.body,)
            states = node.body.ins[: len(node.init)]
        members = {p for v in states if len(self.found.homes[v]) == 1 for p in self.found.homes[v]}
        for region in regions:
            for inner in region.nodes:
                if isinstance(inner, Op | Check):
                    owner = self.found.ops[inner]
                    members |= owner if len(owner) == 1 else frozenset()
                else:
                    members |= self.found.members[inner]
        return frozenset(members)

    def _owner(self, node: Op, among: Places, made: set[Var]) -> Places:
        if node.place is not None:
            return frozenset((node.place,))
        homes = [self.found.home(a) for a in node.ins]
        shared = frozenset.intersection(among, *homes)
        if len(shared) > 1 and self._replicable(node):
            return shared
        if len(shared) == 1:
            return shared
        if shared:
            return frozenset((self._hinted(node.outs, shared),))
        # What a loop is entered with once counts less than what differs from one iteration to the next.
        inner = [a for a in node.ins if isinstance(a, Var) and a in made]
        votes: dict[int, int] = {}
        for atom in inner or [a for a in node.ins if isinstance(a, Var)]:
            home = self.found.home(atom) & among
            for place in home if home != among else ():
                votes[place] = votes.get(place, 0) + bytes_of(atom)
        if not votes:
            return frozenset((self._hinted(node.outs, among),))
        most = max(votes.values())
        return frozenset((min(p for p, n in votes.items() if n == most),))

    def _hinted(self, outs: Sequence[Var], among: Places) -> int:
        hinted = [self.hints[v] for v in outs if v in self.hints]
        return next((p for p in hinted if p in among), min(among))

    def _replicable(self, node: Op) -> bool:
        if node.eqn.effects or not is_cheap(node.eqn):
            return False
        computed = [a for a in node.ins if isinstance(a, Var) and a not in self.given]
        decides = any(_is_float(a) for a in computed) and not all(map(_is_float, node.outs))
        small = all(bytes_of(v) <= _MOST_BYTES for v in node.outs)
        return not decides and (small or all(not a.aval.shape for a in node.ins))


def _may_stay(body: Region, before: Var, after: Var) -> bool:
    """Whether a branch gives a state its next value and may leave it as it is, and it is larger than an outcome."""
    for node in body.nodes:
        if isinstance(node, Branch) and after in node.outs:
            at = node.outs.index(after)
            stays = any(side.outs[at] is before for side in node.sides)
            return stays and bytes_of(after) >= _LEAST_KEPT
    return False


def _is_float(atom: Atom) -> bool:
    return jnp.issubdtype(atom.aval.dtype, jnp.inexact)
