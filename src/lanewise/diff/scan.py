"""`scan` in reverse: a `scan` the other way round.

A loop of known length has a tape of known length: what the reverse of each iteration reads, stacked as further results
of the forward `scan`. What the loop maps over is there anyway. Cut into strips (see `checkpoint.py`), a loop is a loop
over strips whose body is the loop over one of them: the outer one saves its state only, and runs each strip again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise.diff.activity import active_in_scan
from lanewise.diff.calls import calls
from lanewise.diff.piece import Piece, piece
from lanewise.diff.records import tops, with_tops
from lanewise.diff.split import run_again_from_host, run_again_in_frame
from lanewise.diff.sweep import Context, Swept, plus_each, rule, spread, zeros_for


@rule("scan")
def _scan(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], active: Sequence[bool], context: Context
) -> Swept:
    inputs, outputs = active_in_scan(eqn, active)
    parts = _jax.Scan.of(eqn, operands)
    body = parts.body
    threads = context.adjoints is not None and bool(calls(body))
    if not any(outputs) and not threads:
        return Swept(_jax.run_eqn(eqn, operands), outputs, lambda cts, start: list(start))
    num_fixed = len(_jax.attached_consts(body))
    loop = _Loop(
        _jax.flat_jaxpr(body),
        num_fixed + len(parts.consts),
        len(parts.init),
        parts.length,
        parts.reverse,
        (*[False] * num_fixed, *inputs),
        outputs,
        threads,
    )
    operands = [*_jax.attached_consts(body), *operands]
    strip = 0 if threads else context.checkpoints.strip(parts.length, loop.tape_bytes())
    swept = _in_strips(loop, operands, strip, context) if strip else _whole(loop, operands, context)
    outer = (*[False] * num_fixed, *active)

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        found = swept.pull(cts, [*[None] * num_fixed, *start])
        # What is active only later in the loop has no adjoint at its start.
        return [ct if flag else None for ct, flag in zip(found, outer, strict=True)][num_fixed:]

    return Swept(swept.outs, outputs, pull, threads)


@dataclass(frozen=True)
class _Loop:
    """A `scan` and what is active in it."""

    body: _jax.Jaxpr
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    active: tuple[bool, ...]
    out_active: tuple[bool, ...]
    threads: bool = False

    def divided(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Constants, state and what is mapped over."""
        consts, state, xs = _jax.divided(values, self.num_consts, self.num_carry)
        return list(consts), list(state), list(xs)

    def results(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """State and what is stacked."""
        return _jax.divided(values, self.num_carry)

    def tape_bytes(self) -> int:
        """About how much is saved if all states are."""
        _, carry, _ = self.divided(self.body.invars)
        sizes = [math.prod(v.aval.shape) * getattr(v.aval.dtype, "itemsize", 8) for v in carry]
        return self.length * sum(sizes)


def _whole(loop: _Loop, operands: Sequence[Any], context: Context) -> Swept:
    """All at once."""
    consts, init, xs = loop.divided(operands)
    # What a loop inside another saves does not outlive an iteration of that.
    away = context.checkpoints.offload and not context.inside
    own = _piece(loop, context, away)
    ahead = own.forward_step([(loop.num_consts + j, j) for j in range(loop.num_carry)])
    saving = _Saving.of(own, loop)

    def step(carry: Any, slices: Sequence[Any]) -> Any:
        state, tapes, left, late = carry
        outs, left = ahead([*consts, *state, *slices, *tapes], left)
        results, tapes, rest = _jax.divided(outs, len(loop.out_active), own.num_tapes)
        saved = [rest[i] for i in saving.own]
        saved, late = _to_host(late, saved) if away else (saved, late)
        state, ys = loop.results(results)
        return (state, tapes, left, late), (ys, saved)

    tapes = list(context.tapes) if loop.threads else []
    left = ahead.start([*consts, *init])
    late = [_jax.zeros(own.saved[i]) for i in saving.own] if away else []
    (final, tapes, left, late), (ys, saved) = lax.scan(
        step, (init, tapes, left, late), xs, length=loop.length, reverse=loop.reverse
    )
    final = ahead.finish(final, left)
    if loop.threads:
        context.tapes = list(tapes)
    ran = _Ran(loop, own, saving, context, operands, final, ys, saved, late, away)
    return Swept([*final, *ys], loop.out_active, ran.pull)


def _piece(loop: _Loop, context: Context, away: bool) -> Piece:
    """The sweeps of an iteration; `away`: what is saved is in the host's memory."""
    again = run_again_in_frame if loop.threads else run_again_from_host if away else None
    num_xs = len(loop.active) - loop.num_consts - loop.num_carry
    return piece(
        loop.body,
        loop.active,
        loop.out_active,
        context if loop.threads else context.again(),
        free=[*[True] * loop.num_consts, *[False] * loop.num_carry, *[True] * num_xs],
        added_up=[*[True] * loop.num_consts, *[False] * (loop.num_carry + num_xs)],
        threads=loop.threads,
        again=again,
    )


@dataclass(frozen=True)
class _Ran:
    """A loop after its forward sweep, with what the reverse needs."""

    loop: _Loop
    own: Piece
    saving: _Saving
    context: Context
    operands: Sequence[Any]
    final: Sequence[Any]
    ys: Sequence[Any]
    saved: Sequence[Any]
    # The last row, which is never sent to the host's memory; `away`: whether the others are there.
    late: Sequence[Any]
    away: bool

    def pull(self, cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        loop = self.loop
        consts_active, carry_active, xs_active = loop.divided(loop.active)
        start_consts, start_init, start_xs = loop.divided(start)
        consts, _, _ = loop.divided(self.operands)
        ct_final, ct_ys = loop.results(cts)
        sums, ct_init, ct_xs = self.backwards(
            zeros_for(start_consts, _avals(consts), consts_active),
            zeros_for(ct_final, _avals(self.final), carry_active),
            zeros_for(ct_ys, _avals(self.ys), loop.results(loop.out_active)[1]),
        )
        return [
            *spread(sums, consts_active),
            *plus_each(start_init, spread(ct_init, carry_active)),
            *plus_each(start_xs, spread(ct_xs, xs_active)),
        ]

    def backwards(
        self, sums: Sequence[Any], ct_final: Sequence[Any], ct_ys: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """The loop the other way round; gives adjoints of the constants, of the first state, of what is mapped over."""
        loop, own, saving, context = self.loop, self.own, self.saving, self.context
        consts, _, xs = loop.divided(self.operands)
        num_sums, num_ct = len(sums), len(ct_final)
        num_xs = sum(loop.divided(loop.active)[2])
        # After constants, what is mapped over, what is saved and the tapes, sums and then adjoints of the state.
        at = len(consts) + len(xs) + len(own.saved) + own.num_tapes
        behind = own.reverse_step([(at + j, j) for j in range(num_sums + num_ct)])
        tapes = list(context.tapes) if loop.threads else []

        def back(carry: Any, slices: Any) -> Any:
            sums, ct_carry, entries, left, after, early = carry
            given, stored, results, ct_slices = slices
            stored, early = _from_host(early, stored) if self.away else (stored, early)
            saved = saving.joined(stored, results, after)
            before = with_tops(tapes, entries)
            args = [*consts, *given, *saved, *before, *sums, *ct_carry, *ct_slices]
            found, left = behind(args, left)
            sums, ct_carry, ct_given, entries = _jax.divided(found, num_sums, num_ct, num_xs)
            return (sums, ct_carry, entries, left, saving.before(saved), early), ct_given

        blank: list[Any] = [None] * (at - len(consts))
        left = behind.start([*consts, *blank, *sums, *ct_final])
        after = [self.final[j] for j in saving.carried.values()]
        results = [self.ys[i] for i in saving.results.values()]
        (sums, ct_init, entries, left, *_), ct_xs = lax.scan(
            back,
            (sums, ct_final, tops(tapes), left, after, self.late),
            (xs, self.saved, results, ct_ys),
            length=loop.length,
            reverse=not loop.reverse,
        )
        sums, ct_init = _jax.divided(behind.finish([*sums, *ct_init], left), num_sums)
        if loop.threads:
            context.tapes = with_tops(tapes, entries)
        return sums, ct_init, ct_xs


def _avals(values: Sequence[Any]) -> list[Any]:
    return list(map(_jax.aval_of, values))


# What is in the host's memory is copied an iteration late, and fetched an iteration early: then no copy waits for
# what the iteration computes, nor that for the copy, and a compiler that runs copies on a stream of their own can run
# both at the same time. Row i holds what the iteration before saved; the last is never sent. (XLA of JAX 0.11 runs both
# on its one stream for computing. It has more by `xla_gpu_executable_num_compute_streams`, which was not tried; and on
# the way ahead it ends a copy before the next value is written to the same buffer, so two iterations a turn are needed,
# each with rows of its own: `unroll=2` joins rows, which XLA refuses in the host's memory.)


def _to_host(late: Sequence[Any], saved: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The row of an iteration, and what the next one sends."""
    return [jax.device_put(x, _jax.HOST) for x in late], list(saved)


def _from_host(early: Sequence[Any], row: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What an iteration saved, and, of its row, what the one before did."""
    return list(early), [jax.device_put(x, _jax.DEVICE) for x in row]


@dataclass(frozen=True)
class _Saving:
    """Where the reverse finds what an iteration saves.

    `own`: what is stacked for it alone. `results`: what is stacked anyway, being a result, with the result's number.
    `carried`: what is state for the next iteration, with the number of that state, whose value before that iteration is
    saved too: it is what the reverse read one step ago, or the final state.
    """

    number: int
    own: tuple[int, ...]
    results: dict[int, int]
    carried: dict[int, int]
    # For each of `carried`, the place of the state as it was before the iteration.
    earlier: tuple[int, ...]

    @staticmethod
    def of(own: Piece, loop: _Loop) -> _Saving:
        code, first = own.cut.forward, len(own.constants) + loop.num_consts
        num_results = len(loop.out_active)
        saved = code.outvars[num_results + own.num_tapes :]
        state = list(code.invars[first : first + loop.num_carry])
        results, carried, earlier = {}, {}, []
        for at, var in enumerate(saved):
            for j, out in enumerate(code.outvars[:num_results]):
                if out is not var or var in state:
                    continue
                if j >= loop.num_carry:
                    results[at] = j - loop.num_carry
                elif state[j] in saved:
                    carried[at] = j
                    earlier.append(saved.index(state[j]))
                else:
                    continue
                break
        alone = tuple(i for i in range(len(saved)) if i not in results and i not in carried)
        return _Saving(len(saved), alone, results, carried, tuple(earlier))

    def joined(
        self, stored: Sequence[Any], results: Sequence[Any], after: Sequence[Any]
    ) -> list[Any]:
        """All that an iteration saved, from where it is."""
        found: dict[int, Any] = dict(zip(self.own, stored, strict=True))
        found.update(zip(self.results, results, strict=True))
        found.update(zip(self.carried, after, strict=True))
        return [found[i] for i in range(self.number)]

    def before(self, saved: Sequence[Any]) -> list[Any]:
        """What is the next state of the iteration that the reverse comes to now."""
        return [saved[i] for i in self.earlier]


@dataclass(frozen=True)
class _Cut:
    """Where the rows of a loop are cut: strips one after the other, and the rows over at its end."""

    number: int
    strip: int
    strips: slice
    over: slice
    reverse: bool

    @staticmethod
    def of(loop: _Loop, strip: int) -> _Cut:
        number, over = divmod(loop.length, strip)
        at = over if loop.reverse else number * strip
        sides = slice(0, at), slice(at, None)
        strips, rest = sides[::-1] if loop.reverse else sides
        return _Cut(number, strip, strips, rest, loop.reverse)

    def in_strips(self, x: Any) -> Any:
        return x[self.strips].reshape(self.number, self.strip, *x.shape[1:])

    def in_rows(self, x: Any) -> Any:
        return x.reshape(self.number * self.strip, *x.shape[2:])

    def joined(self, rows: Any, end: Any) -> Any:
        """All rows, if there are some at the end."""
        if end is None:
            return rows
        return jnp.concatenate([end, rows] if self.reverse else [rows, end])


def _in_strips(loop: _Loop, operands: Sequence[Any], strip: int, context: Context) -> Swept:
    """Strip after strip, then what is left over."""
    consts, init, xs = loop.divided(operands)
    cut, over = _Cut.of(loop, strip), loop.length % strip
    # A strip of the first setting saves all; a number of states counts for the strips too.
    setting = context.checkpoints.setting
    within = (
        context.checkpoints
        if isinstance(setting, int)
        else replace(context.checkpoints, setting="all")
    )
    context = replace(context, checkpoints=within)
    given = [*consts, *init, *map(cut.in_strips, xs)]
    outer, held = _over_strips(loop, cut, given)
    main = _whole(outer, [*held, *given], context)
    state, stacked = loop.results(main.outs)
    stacked = list(map(cut.in_rows, stacked))
    ends = [x[cut.over] for x in xs]
    rest = _whole(replace(loop, length=over), [*consts, *state, *ends], context) if over else None
    final, tails = (state, [None] * len(stacked)) if rest is None else loop.results(rest.outs)
    nothing: list[Any] = [None] * (len(init) + len(xs))

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        sums, start_init, start_xs = loop.divided(start)
        ct_state, ct_ys = loop.results(cts)
        ct_ends: list[Any] = [None] * len(xs)
        if rest is not None:
            ct_tails = [None if ct is None else ct[cut.over] for ct in ct_ys]
            sums, ct_state, ct_ends = loop.divided(
                rest.pull([*ct_state, *ct_tails], [*sums, *nothing])
            )
        ct_cut = [None if ct is None else cut.in_strips(ct) for ct in ct_ys]
        found = main.pull([*ct_state, *ct_cut], [*[None] * len(held), *sums, *nothing])
        sums, ct_init, ct_cut = loop.divided(found[len(held) :])
        pairs = zip(ct_cut, ct_ends, strict=True)
        ct_xs = [None if ct is None else cut.joined(cut.in_rows(ct), end) for ct, end in pairs]
        return [*sums, *plus_each(start_init, ct_init), *plus_each(start_xs, ct_xs)]

    ys = [cut.joined(y, tail) for y, tail in zip(stacked, tails, strict=True)]
    return Swept([*final, *ys], loop.out_active, pull)


def _over_strips(loop: _Loop, cut: _Cut, operands: Sequence[Any]) -> tuple[_Loop, tuple[Any, ...]]:
    """The loop over strips of these operands, and the constants that its body takes first."""

    def one_strip(*values: Any) -> list[Any]:
        consts, state, slices = loop.divided(values)

        def step(state: Any, slices: Any) -> Any:
            return tuple(loop.results(_jax.eval_jaxpr(loop.body, *consts, *state, *slices)))

        final, ys = lax.scan(step, state, slices, length=cut.strip, reverse=loop.reverse)
        return [*final, *ys]

    consts, init, xs = loop.divided(operands)
    traced = _jax.trace(one_strip, _avals([*consts, *init, *(x[0] for x in xs)]))
    held = len(traced.captures)
    outer = replace(
        loop,
        body=traced.jaxpr,
        num_consts=held + loop.num_consts,
        length=cut.number,
        active=(*[False] * held, *loop.active),
    )
    return outer, traced.captures
