"""`while` in reverse.

The forward sweep runs the loop and keeps states at some iterations; the reverse sweep goes through the iterations
backwards, running the body again from the state before each and pulling adjoints through it. `checkpoint.py` says which
states are kept. Under "all", what the reverse of each iteration reads is saved for each instead, and no state is run
again; a tape of unknown length has room for `tape` iterations, and a lane that needs more ends with an outcome.

Only what the reverse needs is kept: state that no reverse step reads and that what it reads does not depend on is left
out; what never changes is read where it is; a counter is known from the number of the iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise.blocks.equations import tests_many, with_one_test
from lanewise.diff.activity import active_carry
from lanewise.diff.calls import calls
from lanewise.diff.checkpoint import FARTHEST, next_kept, read, write, write_if
from lanewise.diff.iteration import Iteration, either, reverse_step
from lanewise.diff.known import Known
from lanewise.diff.piece import piece
from lanewise.diff.records import tops, with_tops
from lanewise.diff.split import bytes_of, run_again_in_frame
from lanewise.diff.sweep import Context, Swept, plus, rule, spread, sweep, zeros_for
from lanewise.diff.tape import check_room, unfilled

_While = _jax.While[Any]


@rule("while")
def _while(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], active: Sequence[bool], context: Context
) -> Swept:
    if tests_many(eqn):
        return _as_one_test(eqn, operands, active, context)
    loop, flags = _jax.While.of(eqn, operands), _jax.While.of(eqn, active)
    carry_active = active_carry(eqn, active)
    threads = context.adjoints is not None and bool(calls(loop.body))
    if not any(carry_active) and not threads:
        return Swept(_jax.run_eqn(eqn, operands), carry_active, lambda cts, start: list(start))
    sweep_loop = _save_all if context.checkpoints.setting == "all" else _keep_states
    if threads:
        sweep_loop = _push_iterations
    if context.both:
        silent = replace(loop, test=_silent(loop.test), body=_silent(loop.body))
        outs, back = sweep_loop(silent, flags.consts, carry_active, context)
        outs = either(_jax.run_eqn(eqn, operands), outs)
    else:
        outs, back = sweep_loop(loop, flags.consts, carry_active, context)
    avals = [v.aval for v in eqn.outvars]
    const_avals = [_jax.aval_of(x) for x in loop.consts]

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        before = _jax.While.of(eqn, start)
        sums = zeros_for(before.consts, const_avals, flags.consts)
        ct_consts, ct_carry = back(sums, zeros_for(cts, avals, carry_active))
        carried = spread(ct_carry, carry_active)
        # What is active only later in the loop has no adjoint at its start.
        ct_init = [
            plus(so_far, ct) if flag else so_far
            for ct, so_far, flag in zip(carried, before.init, flags.init, strict=True)
        ]
        return [*before.test_consts, *spread(ct_consts, flags.consts), *ct_init]

    return Swept(outs, carry_active, pull, threads)


def _silent(code: _jax.ClosedJaxpr) -> _jax.ClosedJaxpr:
    return _jax.close_jaxpr(
        _jax.without_effects(getattr(code, "jaxpr", code)), _jax.attached_consts(code)
    )


def _as_one_test(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], active: Sequence[bool], context: Context
) -> Swept:
    """A loop under an inner `jax.vmap`, with a test for each element."""
    traced = with_one_test(eqn)
    held = len(traced.captures)
    swept = sweep(traced.jaxpr, [*traced.captures, *operands], [*[False] * held, *active], context)

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        return swept.pull(cts, [*[None] * held, *start])[held:]

    return Swept(swept.outs, swept.active, pull, swept.threads)


# -- a few states -----------------------------------------------------------------------------------


def _keep_states(
    loop: _While, consts_active: Sequence[bool], carry_active: Sequence[bool], context: Context
) -> Any:
    whole = _jax.flat_jaxpr(loop.body)
    body = _jax.without_effects(whole)
    constants = _jax.attached_consts(loop.body)
    known = Known.of(body, len(constants) + len(loop.consts), loop.init)
    operands, active = (constants, loop.consts, loop.init), (consts_active, carry_active)
    own = reverse_step(whole, operands, active, known, context)
    behind = own.behind
    kept = _Kept(loop, known, tuple(known.needed(own.reads, len(loop.init))), own)
    number = context.checkpoints.slots(sum(map(bytes_of, kept.avals)))
    length, shift, order, slots, final = _kept_ahead(kept, number, context.checkpoints.filled)

    def one_further(carry: Any) -> Any:
        at, selected = carry
        state = kept.whole(selected, at)
        return at + 1, kept.select(_jax.eval_jaxpr(body, *constants, *loop.consts, *state))

    def back(sums: Sequence[Any], cts: Sequence[Any]) -> Any:
        used = (length + (jnp.int32(1) << shift) - 1) >> shift
        places = jnp.arange(number, dtype=jnp.int32) << shift

        def reverse_one(carry: Any) -> Any:
            to_go, used, places, slots, after, adjoints, left = carry
            wanted = to_go - 1
            used = used - (read(places, used - 1) > wanted).astype(jnp.int32)
            at, slot = read(places, used - 1), read(order, used - 1)
            found = [read(s, slot) for s in slots]

            def short_of(carry: Any) -> Any:
                return carry[0] < wanted

            def further(carry: Any) -> Any:
                at, used, places, slots, found = carry
                target = at + next_kept(wanted - at, number - used)
                start = (at, kept.state(found))
                at, selected = lax.while_loop(lambda c: c[0] < target, one_further, start)
                found = [*selected, *kept.beside_again(selected, at)]
                # Where no slot is free the last one is written as it was.
                free, place = used < number, jnp.minimum(used, number - 1)
                slot = read(order, place)
                slots = [write_if(free, s, x, slot) for s, x in zip(slots, found, strict=True)]
                places = write_if(free, places, at, place)
                return at, jnp.minimum(used + 1, number), places, slots, found

            at, used, places, slots, found = lax.while_loop(
                short_of, further, (at, used, places, slots, found)
            )
            selected, beside = _jax.divided(found, len(kept.which))
            given = [*kept.whole(selected, wanted), *beside, *after, *adjoints]
            adjoints, left = behind(given, left)
            return wanted, used, places, slots, kept.read_after(selected), adjoints, left

        adjoints = [*sums, *cts]
        after = kept.read_after(kept.select(final))
        blank: list[Any] = [None] * len(own.beside)
        left = behind.start([*loop.init, *blank, *after, *adjoints])
        carry = (length, used, places, slots, after, adjoints, left)
        *_, adjoints, left = lax.while_loop(lambda c: c[0] > 0, reverse_one, carry)
        adjoints = behind.finish(adjoints, left)
        return _jax.divided(adjoints, len(sums))

    return final, back


@dataclass(frozen=True)
class _Kept:
    """Which parts of a loop's state are kept; the others are known. What is found in a slot has more beside them."""

    loop: _While
    known: Known
    which: tuple[int, ...]
    own: Iteration

    @property
    def avals(self) -> list[_jax.ShapedArray]:
        return [_jax.aval_of(self.loop.init[i]) for i in self.which]

    def first_step(self, state: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The next state, and what is kept beside this one."""
        if self.own.ahead is None:
            return self.loop.after(state), ()
        state, beside = self.own.ahead(state)
        return state, beside

    def state(self, found: Sequence[Any]) -> list[Any]:
        """The parts that are kept, of what is found in a slot."""
        return list(found[: len(self.which)])

    def beside_again(self, selected: Sequence[Any], at: Any) -> list[Any]:
        ahead = self.own.ahead
        return [] if ahead is None else ahead.again(self.whole(selected, at))

    def select(self, state: Sequence[Any]) -> list[Any]:
        return [state[i] for i in self.which]

    def read_after(self, selected: Sequence[Any]) -> list[Any]:
        """Of these parts, those that the iteration before reads."""
        return [selected[self.which.index(i)] for i in self.own.after]

    def whole(self, selected: Sequence[Any], at: Any) -> list[Any]:
        """A state again; what no reverse step reads is as at the start."""
        state = self.known.state(self.loop.init, at)
        for i, x in zip(self.which, selected, strict=True):
            state[i] = x
        return state


def _kept_ahead(kept: _Kept, number: int, filled: bool) -> tuple[Any, ...]:
    """Run the loop, keeping states in slots at even distances.

    Gives its length, the distance as a power of two, the slots in the order of the states they hold, what is in the
    slots, and the last state.
    """
    loop = kept.loop
    # A slot is read when a state was kept there; `write_if` may read one before, and throws that away.
    rooms = [_jax.shaped((number, *a.shape), a.dtype) for a in (*kept.avals, *kept.own.beside)]
    slots = [unfilled(a, zeros=filled) for a in rooms]
    # States are spread over an even number of slots; with one slot it keeps the first state alone.
    spread_over = number - number % 2 or 1

    def going(carry: Any) -> Any:
        return loop.holds(carry[-1])

    def has_room(carry: Any) -> Any:
        at, shift, _, _, state = carry
        return (at < (jnp.int32(spread_over) << shift)) & loop.holds(state)

    def keep_one(carry: Any) -> Any:
        at, shift, order, slots, state = carry
        slot = read(order, at >> shift)
        after, beside = kept.first_step(state)
        found = [*kept.select(state), *beside]
        slots = [write(s, x, slot) for s, x in zip(slots, found, strict=True)]
        until = at + (jnp.int32(1) << shift)

        def on(carry: Any) -> Any:
            at, state = carry
            return (at < until) & loop.holds(state)

        def run(carry: Any) -> Any:
            at, state = carry
            return at + 1, loop.after(state)

        at, state = lax.while_loop(on, run, (at + 1, list(after)))
        return at, shift, order, slots, state

    def until_full(carry: Any) -> Any:
        at, shift, order, slots, state = lax.while_loop(has_room, keep_one, carry)
        order, shift = lax.cond(
            loop.holds(state),
            lambda order, shift: (_thinned(order), shift + 1),
            lambda order, shift: (order, shift),
            order,
            shift,
        )
        return at, shift, order, slots, state

    first_shift = jnp.int32(0 if spread_over > 1 else FARTHEST)
    order = jnp.arange(number, dtype=jnp.int32)
    start = (jnp.int32(0), first_shift, order, slots, list(loop.init))
    return lax.while_loop(going, until_full, start)


def _thinned(order: Any) -> Any:
    """Every second state is kept where it is; the slots of the others are next."""
    number = order.shape[0]
    if number < 2:
        return order
    every_second = [lax.slice(order, (first,), (number,), (2,)) for first in range(2)]
    return lax.concatenate(every_second, 0)


# -- everything -------------------------------------------------------------------------------------


def _save_all(
    loop: _While, consts_active: Sequence[bool], carry_active: Sequence[bool], context: Context
) -> Any:
    body = _jax.flat_jaxpr(loop.body)
    constants = list(_jax.attached_consts(loop.body))
    num_fixed = len(constants) + len(loop.consts)
    flags = [*[False] * len(constants), *consts_active, *carry_active]
    fixed = [*constants, *loop.consts]
    known = Known.of(body, num_fixed, loop.init)
    counters = sorted(known.steps)
    own = piece(
        body,
        flags,
        carry_active,
        context.again(),
        free=[True] * num_fixed + [i in known.steps for i in range(len(loop.init))],
        added_up=[True] * num_fixed + [False] * len(loop.init),
    )
    records = context.checkpoints.records
    shapes = [_jax.shaped((records, *a.shape), a.dtype) for a in own.saved]
    tape = [unfilled(a, zeros=context.checkpoints.filled) for a in shapes]

    ahead = own.forward_step([(num_fixed + j, j) for j in range(len(loop.init))])

    def forward(carry: Any) -> Any:
        at, tape, state, left = carry
        if own.saved:
            check_room(jnp.less(at, records), context.checkpoints.can_grow)
        outs, left = ahead([*fixed, *state], left)
        state, saved = _jax.divided(outs, len(state))
        return at + 1, [write(t, x, at) for t, x in zip(tape, saved, strict=True)], state, left

    def going(carry: Any) -> Any:
        # The test reads the state, and so must see what is still to be written.
        _, _, state, left = carry
        return loop.holds(ahead.finish(state, left))

    start = (jnp.int32(0), tape, list(loop.init), ahead.start([*fixed, *loop.init]))
    length, tape, final, left = lax.while_loop(going, forward, start)
    final = ahead.finish(final, left)

    def back(sums: Sequence[Any], cts: Sequence[Any]) -> Any:
        num_sums = len(sums)
        at = num_fixed + len(counters) + len(own.saved)
        behind = own.reverse_step([(at + j, j) for j in range(num_sums + len(cts))])

        def reverse_one(carry: Any) -> Any:
            to_go, adjoints, left = carry
            state = known.state(loop.init, to_go - 1)
            saved = [read(t, to_go - 1) for t in tape]
            given = [*fixed, *(state[i] for i in counters), *saved, *adjoints]
            adjoints, left = behind(given, left)
            return to_go - 1, adjoints, left

        adjoints = [*sums, *cts]
        blank: list[Any] = [None] * (len(counters) + len(own.saved))
        carry = (length, adjoints, behind.start([*fixed, *blank, *adjoints]))
        _, adjoints, left = lax.while_loop(lambda c: c[0] > 0, reverse_one, carry)
        adjoints = behind.finish(adjoints, left)
        return _jax.divided(adjoints, num_sums)

    return final, back


# -- inside recursion -------------------------------------------------------------------------------


def _push_iterations(
    loop: _While, consts_active: Sequence[bool], carry_active: Sequence[bool], context: Context
) -> Any:
    """A loop that makes calls of a recursion: it pushes a record an iteration, as a call does (`recursion.py`).

    Where records have numbers, each has the places of the one before it, and the loop gives those of the last.
    """
    constants = list(_jax.attached_consts(loop.body))
    num_fixed = len(constants) + len(loop.consts)
    fixed = [*constants, *loop.consts]
    stays = [True] * num_fixed + [False] * len(loop.init)
    own = piece(
        _jax.flat_jaxpr(loop.body),
        [*[False] * len(constants), *consts_active, *carry_active],
        carry_active,
        context,
        free=stays,
        added_up=stays,
        threads=True,
        again=run_again_in_frame,
    )
    site = f"{context.site} loop {next(context.loops)}"
    adjoints = context.adjoints
    num_tapes, place_avals = len(context.tapes), adjoints.place_avals
    record = (*own.saved, *place_avals)

    def forward(carry: Any) -> Any:
        count, tapes, places, state = carry
        state, tapes, saved = own.forward([*fixed, *state], tapes)
        found = adjoints.push(site, [*saved, *places], tapes)
        return count + 1, *_jax.divided(found, num_tapes), state

    start = (jnp.int32(0), list(context.tapes), list(map(_jax.zeros, place_avals)), list(loop.init))
    length, tapes, last, final = lax.while_loop(lambda c: loop.holds(c[-1]), forward, start)
    context.tapes = list(tapes)

    def back_by_places(sums: Sequence[Any], cts: Sequence[Any]) -> Any:
        tapes = context.tapes

        def reverse_one(carry: Any) -> Any:
            to_go, places, sums, cts = carry
            found = adjoints.record_at(site, record, tapes, places)
            saved, before = _jax.divided(found, len(own.saved))
            found, _ = own.reverse(fixed, saved, tapes, sums, cts)
            return to_go - 1, before, *_jax.divided(found, len(sums))

        carry = (length, list(last), list(sums), list(cts))
        *_, ct_consts, ct_carry = lax.while_loop(lambda c: c[0] > 0, reverse_one, carry)
        return ct_consts, ct_carry

    def back(sums: Sequence[Any], cts: Sequence[Any]) -> Any:
        tapes = context.tapes

        def reverse_one(carry: Any) -> Any:
            to_go, left, sums, cts = carry
            saved, before = adjoints.pop(site, own.saved, with_tops(tapes, left))
            found, left = own.reverse(fixed, saved, before, sums, cts)
            return to_go - 1, left, *_jax.divided(found, len(sums))

        carry = (length, tops(tapes), list(sums), list(cts))
        _, left, ct_consts, ct_carry = lax.while_loop(lambda c: c[0] > 0, reverse_one, carry)
        context.tapes = with_tops(tapes, left)
        return ct_consts, ct_carry

    return final, back_by_places if adjoints.numbered else back
