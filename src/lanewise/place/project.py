"""One program a place: what a placed program is at one of its places, as traceable code.

Projection runs a program's steps with the values that a place has. An operation of another place leaves nothing; a
move is a send, a receive or nothing; a loop or a branch exists where the place is a member of it, and its state is
the part of it that lives there. All messages of a place hang on one token, so XLA keeps them in the order of the
program.

The code of several places can be projected together: a move between two of them is then no message. All of them
together are the program in one process, which is what a dry run counts messages in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise._jax import Atom, Literal, Var
from lanewise.core.errors import InternalError
from lanewise.place.moves import Actions, Compute, Fork, Loop, Move, Require, Step, Steps
from lanewise.place.owners import Places
from lanewise.place.regions import Scan, While


class Channel(Protocol):
    """How messages leave and come. A token is an array that each takes and gives on."""

    def send(self, token: Any, value: Any, *, target: int, number: int) -> Any: ...

    def receive(self, token: Any, aval: Any, *, source: int, number: int) -> tuple[Any, Any]: ...

    def require(self, token: Any, ok: Any, *, number: int) -> Any: ...


def projected(
    actions: Actions,
    places: Places,
    channel: Channel,
    between: Callable[[Any, Move], Any] = lambda token, move: token,
) -> Callable[..., Any]:
    """The code at these places: of a token and the inputs that they have, the token and the results that they have.

    Inputs and results come in the order of the program's; see `inputs_at` and `results_at`. `between` is what a move
    from one of these places to another does to the token.
    """

    def run(token: Any, *given: Any) -> tuple[Any, list[Any]]:
        projection = _Projection(places, channel, between, token)
        values = iter(given)
        for var, homes in zip(actions.code.region.ins, actions.inputs, strict=True):
            if homes & places:
                projection.enter(var, homes, next(values))
        for var, const in actions.code.constants.items():
            projection.enter(var, places, const)
        projection.run(actions.steps)
        outs = [
            projection.array(min(homes & places), atom)
            for atom, homes in zip(actions.code.region.outs, actions.outs, strict=True)
            if homes & places
        ]
        return projection.token, outs

    return run


def inputs_at(actions: Actions, places: Places) -> list[int]:
    """Which of the program's inputs its code at these places takes."""
    return [i for i, homes in enumerate(actions.inputs) if homes & places]


def results_at(actions: Actions, places: Places) -> list[int]:
    """Which of the program's results its code at these places gives."""
    return [i for i, homes in enumerate(actions.outs) if homes & places]


class _Projection:
    """The values that some places have while their code is traced."""

    def __init__(
        self,
        places: Places,
        channel: Channel,
        between: Callable[[Any, Move], Any],
        token: Any,
    ) -> None:
        self.places, self.channel, self.between, self.token = places, channel, between, token
        self.values: dict[tuple[int, Var], Any] = {}

    def enter(self, var: Var, homes: Places, value: Any) -> None:
        for place in homes & self.places:
            self.values[place, var] = value

    def value(self, place: int, atom: Atom) -> Any:
        if isinstance(atom, Literal):
            return atom.val
        if (place, atom) not in self.values:
            raise InternalError(f"a value of type {atom.aval} is not at place {place}")
        return self.values[place, atom]

    def array(self, place: int, atom: Atom) -> Any:
        """The same with the type that the program says, for what loops carry and branches give."""
        value = self.value(place, atom)
        if _jax.is_extended(atom.aval.dtype):
            return value
        return lax.convert_element_type(jnp.asarray(value), atom.aval.dtype)

    def run(self, steps: Steps) -> None:
        for step in steps.steps:
            _RULES[type(step)](self, step)

    # -- steps -----------------------------------------------------------------------------------

    def compute(self, step: Compute) -> None:
        for place in sorted(step.places & self.places):
            outs = _jax.run_eqn(step.op.eqn, [self.value(place, a) for a in step.op.ins])
            self.values.update(((place, v), x) for v, x in zip(step.op.outs, outs, strict=True))

    def move(self, step: Move) -> None:
        here, there = step.source in self.places, step.target in self.places
        if here and there:
            self.token = self.between(self.token, step)
            self.values[step.target, step.var] = self.value(step.source, step.var)
        elif here:
            sent = _jax.stored(self.value(step.source, step.var), step.var.aval)
            self.token = self.channel.send(self.token, sent, target=step.target, number=step.number)
        elif there:
            aval = _jax.storage_struct(step.var)
            self.token, got = self.channel.receive(
                self.token, aval, source=step.source, number=step.number
            )
            self.values[step.target, step.var] = _jax.loaded(got, step.var.aval)

    def require(self, step: Require) -> None:
        if step.place in self.places:
            ok = self.value(step.place, step.check.ok)
            self.token = self.channel.require(self.token, ok, number=step.number)

    def fork(self, step: Fork) -> None:
        if not step.members & self.places:
            return
        around = self.values
        given = self._each(step.homes)

        def side(steps: Steps) -> Callable[[Any], Any]:
            def run(token: Any) -> Any:
                self.values, self.token = dict(around), token
                self.run(steps)
                outs = [self.array(place, steps.region.outs[i]) for place, i in given]
                return self.token, outs

            return run

        index = self.value(min(step.members & self.places), step.node.index)
        token, outs = lax.switch(index, [side(steps) for steps in step.sides], self.token)
        self.values, self.token = around, token
        for (place, i), value in zip(given, outs, strict=True):
            self.values[place, step.node.outs[i]] = value

    def loop(self, step: Loop) -> None:
        if not step.members & self.places:
            return
        if isinstance(step.node, Scan):
            self._scan(step, step.node)
        else:
            self._while(step, step.node)

    def _while(self, step: Loop, node: While) -> None:
        around, test = self.values, step.test
        assert test is not None
        state = self._each(step.homes)
        here = min(step.members & self.places)

        def entered(steps: Steps, token: Any, values: Sequence[Any]) -> None:
            self.values, self.token = dict(around), token
            for (place, i), value in zip(state, values, strict=True):
                self.values[place, steps.region.ins[i]] = value
            self.run(steps)

        def goes_on(token: Any, values: Sequence[Any]) -> tuple[Any, Any]:
            entered(test, token, values)
            return self.token, self.array(here, test.region.outs[0])

        def turn(token: Any, values: Sequence[Any]) -> tuple[Any, list[Any]]:
            entered(step.body, token, values)
            return self.token, [self.array(p, step.body.region.outs[i]) for p, i in state]

        start = [self.array(place, node.init[i]) for place, i in state]
        if _is_quiet(test.steps):
            # No message: JAX's own test can make it.
            token, found = lax.while_loop(
                lambda c: goes_on(c[0], c[1])[1], lambda c: turn(*c), (self.token, start)
            )
        else:

            def turn_and_test(carry: Any) -> Any:
                token, values = turn(carry[0], carry[2])
                token, more = goes_on(token, values)
                return token, more, values

            token, more = goes_on(self.token, start)
            token, _, found = lax.while_loop(lambda c: c[1], turn_and_test, (token, more, start))
        self.values, self.token = around, token
        for (place, i), value in zip(state, found, strict=True):
            self.values[place, node.outs[i]] = value

    def _scan(self, step: Loop, node: Scan) -> None:
        around, count = self.values, len(node.init)
        state, given = self._each(step.homes[:count]), self._each(step.homes[count:])
        rows = self._each(step.rows)
        region = step.body.region

        def turn(carry: Any, slices: Sequence[Any]) -> Any:
            self.values, self.token = dict(around), carry[0]
            for (place, i), value in zip(state, carry[1], strict=True):
                self.values[place, region.ins[i]] = value
            for (place, i), value in zip(rows, slices, strict=True):
                self.values[place, region.ins[count + i]] = value
            self.run(step.body)
            after = [self.array(place, region.outs[i]) for place, i in state]
            return (self.token, after), [
                self.array(place, region.outs[count + i]) for place, i in given
            ]

        start = [self.array(place, node.init[i]) for place, i in state]
        xs = [self.array(place, node.xs[i]) for place, i in rows]
        (token, found), stacked = lax.scan(
            turn, (self.token, start), xs, length=node.length, reverse=node.reverse
        )
        self.values, self.token = around, token
        for (place, i), value in zip(state, found, strict=True):
            self.values[place, node.outs[i]] = value
        for (place, i), value in zip(given, stacked, strict=True):
            self.values[place, node.outs[count + i]] = value

    def _each(self, homes: Sequence[Places]) -> list[tuple[int, int]]:
        """Which values are at which of our places: (place, number) of each."""
        return [(p, i) for i, home in enumerate(homes) for p in sorted(home & self.places)]


_RULES: dict[type, Callable[[_Projection, Any], None]] = {
    Compute: _Projection.compute,
    Move: _Projection.move,
    Require: _Projection.require,
    Fork: _Projection.fork,
    Loop: _Projection.loop,
}


def _is_quiet(steps: Sequence[Step]) -> bool:
    """Whether steps have no message and no assertion."""
    return all(isinstance(step, Compute) for step in steps)


class _AllHere:
    """The channel of all places together, which need none."""

    def send(self, token: Any, value: Any, *, target: int, number: int) -> Any:
        raise InternalError(f"move {number} leaves to place {target}, and all places are here")

    def receive(self, token: Any, aval: Any, *, source: int, number: int) -> tuple[Any, Any]:
        raise InternalError(f"move {number} comes from place {source}, and all places are here")

    def require(self, token: Any, ok: Any, *, number: int) -> Any:
        del ok, number
        return token


def dry_run(
    actions: Actions, everywhere: Places, args: Sequence[Any]
) -> tuple[list[int], list[Any]]:
    """How often each move is made, and the results, with all places in this process and no messages."""

    def count(token: Any, move: Move) -> Any:
        return token.at[move.number].add(1)

    run = projected(actions, everywhere, _AllHere(), count)
    counts, outs = jax.jit(run)(jnp.zeros(actions.num_numbers, jnp.int32), *args)
    return [int(n) for n in counts], outs
