"""A placed program made ready: traced, divided into steps, projected on its places.

What is made here depends on the types of the arguments and on the placement alone, so it is made once for each of
these. Processes that run the same program make the same of it, each on its own; its text has a hash, by which they
find out if they do not.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise.core.errors import Outcome
from lanewise.core.outcomes import ADVICE, Advice, raise_if_failed
from lanewise.core.parts import families, parts_in
from lanewise.core.program import Function, Program
from lanewise.place.held import given_leaves
from lanewise.place.moves import Actions, actions_of
from lanewise.place.owners import Places, owners_of
from lanewise.place.placement import Placement
from lanewise.place.project import Channel, inputs_at, projected, results_at
from lanewise.place.regions import Code, read
from lanewise.place.text import text_of

# What helps where lanes of a placed program failed: as elsewhere, but for the values that messages format.
ADVICE_OF_RUNS = Advice(
    {
        **ADVICE.by_outcome,
        Outcome.ASSERTION_FAILED: "Pass throw=False to the program, or to lanewise.vmap, for the other answers.",
    },
    "Values are shown by a call of the function itself, without lanewise.run.",
)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A placed program. `captured` are arrays that it closes over: the first of its inputs."""

    name: str
    placement: Placement
    actions: Actions
    captured: tuple[Any, ...]
    out_tree: Any

    @functools.cached_property
    def text(self) -> str:
        return text_of(self.actions, self.placement)

    @functools.cached_property
    def digest(self) -> str:
        ops = [str(step.op.eqn.params) for step in self.actions.computes()]
        # Addresses of functions differ between processes that run the same program.
        plain = re.sub(r"0x[0-9a-f]+", "0x", "\n".join([self.text, *ops]))
        return hashlib.sha256(plain.encode()).hexdigest()[:32]

    def at(self, place: int, channel: Channel) -> PlaceProgram:
        """The program of one place."""
        here: Places = frozenset((place,))
        run = projected(self.actions, here, channel)
        inputs = inputs_at(self.actions, here)
        ins = self.actions.code.region.ins
        token = _jax.shaped((), jnp.int32.dtype)

        def flat(*args: Any) -> list[Any]:
            after, outs = run(*args)
            return [after, *outs]

        traced = _jax.trace(flat, [token, *(ins[i].aval for i in inputs)])
        # What is computed at several places, or kept there, is not needed at all of them.
        code = _jax.without_unused(traced.jaxpr)
        used = _jax.used_inputs(code)
        first = len(traced.captures)
        kept = [i for i, flag in zip(inputs, used[first + 1 :], strict=True) if flag]
        name = f"{self.name}@{place}"
        program = Program({name: Function(name, code, tuple(range(first)))}, name, first)
        return PlaceProgram(
            place,
            program,
            traced.captures,
            tuple(inputs),
            tuple(kept),
            tuple(results_at(self.actions, here)),
        )


@dataclass(frozen=True, eq=False)
class PlaceProgram:
    """What runs at one place: an ordinary program, of a token and some of the inputs, that gives the token and some
    results.

    `reads`: the inputs that it needs of those that it takes; the others are given as zeros of no cost.
    """

    place: int
    program: Program
    captures: tuple[Any, ...]
    inputs: tuple[int, ...]
    reads: tuple[int, ...]
    results: tuple[int, ...]

    def code(self) -> Callable[..., list[Any]]:
        """The code, of the token and of the inputs that it reads."""
        function = self.program.functions[self.program.entry]

        def run(token: Any, *given: Any) -> list[Any]:
            read = dict(zip(self.reads, given, strict=True))
            avals = [v.aval for v in function.jaxpr.invars[len(self.captures) + 1 :]]
            whole = [
                read[i] if i in read else _jax.zeros(aval)
                for i, aval in zip(self.inputs, avals, strict=True)
            ]
            return _jax.eval_jaxpr(function.jaxpr, *self.captures, token, *whole)

        return run


@dataclass(frozen=True, eq=False)
class Asked:
    """A function traced at the types of its arguments and read as regions, before it is divided."""

    name: str
    placement: Placement
    code: Code
    captured: tuple[Any, ...]
    arguments: tuple[Places, ...]
    out_tree: Any

    @property
    def homes(self) -> list[Places]:
        """Where its inputs are: what it captures is everywhere."""
        return [*[self.placement.everywhere] * len(self.captured), *self.arguments]

    def wanted(self, everywhere: bool) -> list[Places | None]:
        """Where each result is wanted; `everywhere`: the function's own at each place.

        How lanes ended is known to all processes.
        """
        all_places, throws = self.placement.everywhere, 2 * len(self.code.throws)
        own = all_places if everywhere else None
        ends = None if self.placement.devices else all_places
        return [*[own] * (len(self.code.region.outs) - throws), *[ends] * throws]

    def divided(self, everywhere: bool) -> Prepared:
        """The program divided; `everywhere`: each place wants all results."""
        return divided(
            self.name,
            self.placement,
            self.code,
            self.homes,
            self.wanted(everywhere),
            self.captured,
            self.out_tree,
        )

    def raise_if_failed(self, results: dict[int, Any], groups: int | None) -> None:
        """Raise what the program throws, by its results.

        `groups`: the batch was run in this many, one after the other.
        """
        first = len(self.code.region.outs) - 2 * len(self.code.throws)
        for number, throw in enumerate(self.code.throws):
            at = first + 2 * number
            code, site = (_jax.to_host(results[i]) for i in (at, at + 1))
            if groups is not None and code.ndim > 1:
                # Lanes have their numbers in the whole batch.
                code, site = (x.reshape(-1, *x.shape[2:]) for x in (code, site))
            raise_if_failed(code, site, throw.sites, throw.name, ADVICE_OF_RUNS)


def ask(
    fun: Callable[..., Any], name: str, placement: Placement, leaves: Sequence[Any], tree: Any
) -> Asked:
    """Trace a function at the types of its arguments, some of which may be held by other processes."""
    avals, _, homes = given_leaves(leaves, placement.everywhere)
    trees: list[Any] = []

    def flat(*given: Any) -> list[Any]:
        args, kwargs = jax.tree.unflatten(tree, given)
        outs, out_tree = jax.tree.flatten(fun(*args, **kwargs))
        trees.append(out_tree)
        return [jnp.asarray(x) for x in outs]

    with families(placement.families):
        traced = _jax.trace(flat, avals)
    placement.refuse_unused(parts_in(traced.jaxpr))
    code = read(_jax.without_unused(traced.jaxpr), placement)
    return Asked(name, placement, code, traced.captures, tuple(homes), trees[-1])


def divided(
    name: str,
    placement: Placement,
    code: Code,
    inputs: Sequence[Places],
    wanted: Sequence[Places | None],
    captured: tuple[Any, ...] = (),
    out_tree: Any = None,
) -> Prepared:
    """Code divided between places, its inputs at these.

    `wanted`: where each result is wanted; None for where it is made.
    """
    owners = owners_of(code, inputs, placement.everywhere)
    return Prepared(name, placement, actions_of(code, owners, inputs, wanted), captured, out_tree)
