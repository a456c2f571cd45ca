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
from lanewise.diff.activity import moving_in_scan
from lanewise.diff.calls import calls
from lanewise.diff.piece import Piece, piece
from lanewise.diff.records import tops, with_tops
from lanewise.diff.split import run_again_from_host, run_again_in_frame
from lanewise.diff.sweep import Scope, Swept, plus, rule, spread, zeros_for


@rule("scan")
def _scan(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], moving: Sequence[bool], scope: Scope
) -> Swept:
    inputs, outputs = moving_in_scan(eqn, moving)
    parts = _jax.Scan.of(eqn, operands)
    body = parts.body
    threads = scope.adjoints is not None and bool(calls(body))
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
    strip = 0 if threads else scope.checkpoints.strip(parts.length, loop.tape_bytes())
    swept = _in_strips(loop, operands, strip, scope) if strip else _whole(loop, operands, scope)
    outer = (*[False] * num_fixed, *moving)

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        found = swept.pull(cts, [*[None] * num_fixed, *start])
        # What moves only later in the loop has no adjoint at its start.
        return [ct if flag else None for ct, flag in zip(found, outer, strict=True)][num_fixed:]

    return Swept(swept.outs, outputs, pull, threads)


@dataclass(frozen=True)
class _Loop:
    """A `scan` and what moves in it."""

    body: _jax.Jaxpr
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    moving: tuple[bool, ...]
    out_moving: tuple[bool, ...]
    threads: bool = False

    def divided(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Constants, state and what is mapped over."""
        first, second = self.num_consts, self.num_consts + self.num_carry
        return list(values[:first]), list(values[first:second]), list(values[second:])

    def tape_bytes(self) -> int:
        """About how much is saved if all states are."""
        _, carry, _ = self.divided(self.body.invars)
        sizes = [math.prod(v.aval.shape) * getattr(v.aval.dtype, "itemsize", 8) for v in carry]
        return self.length * sum(sizes)


def _whole(loop: _Loop, operands: Sequence[Any], scope: Scope) -> Swept:
    """All at once."""
    consts, init, xs = loop.divided(operands)
    sides = [True] * loop.num_consts, [False] * loop.num_carry, [True] * len(xs)
    consts_moving, carry_moving, xs_moving = loop.divided(loop.moving)
    ys_moving = loop.out_moving[loop.num_carry :]
    # What a loop inside another saves does not outlive an iteration of that.
    away = scope.checkpoints.offload and not scope.inside
    again = run_again_in_frame if loop.threads else run_again_from_host if away else None
    own = piece(
        loop.body,
        loop.moving,
        loop.out_moving,
        scope if loop.threads else scope.again(),
        free=[*sides[0], *sides[1], *sides[2]],
        added_up=[*sides[0], *sides[1], *[False] * len(xs)],
        threads=loop.threads,
        again=again,
    )

    num_results, num_tapes = len(loop.out_moving), own.num_tapes
    ahead = own.forward_step([(loop.num_consts + j, j) for j in range(loop.num_carry)])
    saving = _Saving.of(own, loop)

    def step(carry: Any, slices: Sequence[Any]) -> Any:
        state, tapes, left, late = carry
        outs, left = ahead([*consts, *state, *slices, *tapes], left)
        results, rest = outs[:num_results], outs[num_results:]
        saved = [rest[num_tapes + i] for i in saving.own]
        saved, late = _to_host(late, saved) if away else (saved, late)
        carry = (results[: loop.num_carry], rest[:num_tapes], left, late)
        return carry, (results[loop.num_carry :], saved)

    tapes = list(scope.tapes) if loop.threads else []
    left = ahead.start([*consts, *init])
    late = [_jax.zeros(own.saved[i]) for i in saving.own] if away else []
    (final, tapes, left, late), (ys, saved) = lax.scan(
        step, (init, tapes, left, late), xs, length=loop.length, reverse=loop.reverse
    )
    final = ahead.finish(final, left)
    if loop.threads:
        scope.tapes = list(tapes)
    out_avals = [_jax.aval_of(x) for x in (*final, *ys)]
    in_avals = [_jax.aval_of(x) for x in operands]

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        start_consts, start_init, start_xs = loop.divided(start)
        const_avals, _, _ = loop.divided(in_avals)
        sums = zeros_for(start_consts, const_avals, consts_moving)
        ct_carry = zeros_for(cts[: loop.num_carry], out_avals[: loop.num_carry], carry_moving)
        ct_ys = zeros_for(cts[loop.num_carry :], out_avals[loop.num_carry :], ys_moving)

        num_sums, num_ct = len(sums), len(ct_carry)
        num_moving = num_sums + num_ct + sum(xs_moving)
        # After constants, what is mapped over, what is saved and the tapes, sums and then adjoints of the state.
        at = len(consts) + len(xs) + len(own.saved) + own.num_tapes
        behind = own.reverse_step([(at + j, j) for j in range(num_sums + num_ct)])

        def back(carry: Any, slices: Any) -> Any:
            sums, ct_carry, entries, left, after, early = carry
            given, stored, results, ct_slices = slices
            stored, early = _from_host(early, stored) if away else (stored, early)
            saved = saving.joined(stored, results, after)
            before = with_tops(tapes, entries)
            args = [*consts, *given, *saved, *before, *sums, *ct_carry, *ct_slices]
            found, left = behind(args, left)
            first, second = found[:num_sums], found[num_sums : num_sums + num_ct]
            carry = (first, second, found[num_moving:], left, saving.before(saved), early)
            return carry, found[num_sums + num_ct : num_moving]

        tapes = list(scope.tapes) if loop.threads else []
        blank: list[Any] = [None] * (at - len(consts))
        left = behind.start([*consts, *blank, *sums, *ct_carry])
        after = [final[j] for j in saving.carried.values()]
        results = [ys[i] for i in saving.results.values()]
        (sums, ct_init, entries, left, *_), ct_xs = lax.scan(
            back,
            (sums, ct_carry, tops(tapes), left, after, late),
            (xs, saved, results, ct_ys),
            length=loop.length,
            reverse=not loop.reverse,
        )
        written = behind.finish([*sums, *ct_init], left)
        sums, ct_init = written[:num_sums], written[num_sums:]
        if loop.threads:
            scope.tapes = with_tops(tapes, entries)
        return [
            *spread(sums, consts_moving),
            *(plus(*each) for each in zip(start_init, spread(ct_init, carry_moving), strict=True)),
            *(plus(*each) for each in zip(start_xs, spread(ct_xs, xs_moving), strict=True)),
        ]

    return Swept([*final, *ys], loop.out_moving, pull)


# What lies in the host's memory is copied an iteration late, and fetched an iteration early: then no copy waits for
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
        num_results = len(loop.out_moving)
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


def _in_strips(loop: _Loop, operands: Sequence[Any], strip: int, scope: Scope) -> Swept:
    """Strip after strip, then what is left over."""
    consts, init, xs = loop.divided(operands)
    number, over = divmod(loop.length, strip)
    # A strip of the first setting saves all; a number of states counts for the strips as well.
    setting = scope.checkpoints.setting
    within = (
        scope.checkpoints if isinstance(setting, int) else replace(scope.checkpoints, setting="all")
    )
    scope = replace(scope, checkpoints=within)
    first = slice(over, None) if loop.reverse else slice(0, number * strip)
    last = slice(0, over) if loop.reverse else slice(number * strip, None)

    def one_strip(*values: Any) -> list[Any]:
        consts, state, slices = loop.divided(values)

        def step(state: Any, slices: Any) -> Any:
            outs = _jax.eval_jaxpr(loop.body, *consts, *state, *slices)
            return outs[: loop.num_carry], outs[loop.num_carry :]

        final, ys = lax.scan(step, state, slices, length=strip, reverse=loop.reverse)
        return [*final, *ys]

    cut = [x[first].reshape(number, strip, *x.shape[1:]) for x in xs]
    avals = [_jax.aval_of(x) for x in (*consts, *init, *(x[0] for x in cut))]
    traced = _jax.trace(one_strip, avals)
    held = len(traced.captures)
    outer = replace(
        loop,
        body=traced.jaxpr,
        num_consts=held + loop.num_consts,
        length=number,
        moving=(*[False] * held, *loop.moving),
    )
    main = _whole(outer, [*traced.captures, *consts, *init, *cut], scope)
    state, stacked = main.outs[: loop.num_carry], main.outs[loop.num_carry :]
    stacked = [y.reshape(number * strip, *y.shape[2:]) for y in stacked]
    ends = [x[last] for x in xs]
    rest = _whole(replace(loop, length=over), [*consts, *state, *ends], scope) if over else None
    final, ys = state, stacked
    if rest is not None:
        final, tails = rest.outs[: loop.num_carry], rest.outs[loop.num_carry :]
        ys = [
            jnp.concatenate([tail, y] if loop.reverse else [y, tail])
            for y, tail in zip(stacked, tails, strict=True)
        ]

    def pull(cts: Sequence[Any], start: Sequence[Any]) -> list[Any]:
        sums, start_init, start_xs = loop.divided(start)
        ct_state, ct_ys = cts[: loop.num_carry], cts[loop.num_carry :]
        ct_ends: list[Any] = [None] * len(xs)
        if rest is not None:
            ct_tails = [None if ct is None else ct[last] for ct in ct_ys]
            found = rest.pull([*ct_state, *ct_tails], [*sums, *[None] * (len(init) + len(xs))])
            sums, ct_state, ct_ends = loop.divided(found)
        ct_cut = [
            None if ct is None else ct[first].reshape(number, strip, *ct.shape[1:]) for ct in ct_ys
        ]
        so_far = [*[None] * held, *sums, *[None] * (len(init) + len(xs))]
        found = main.pull([*ct_state, *ct_cut], so_far)[held:]
        sums, ct_init, ct_cut = loop.divided(found)
        ct_xs = []
        for ct, end in zip(ct_cut, ct_ends, strict=True):
            if ct is not None:
                ct = ct.reshape(number * strip, *ct.shape[2:])
                if end is not None:
                    ct = jnp.concatenate([end, ct] if loop.reverse else [ct, end])
            ct_xs.append(ct)
        return [
            *sums,
            *(plus(*each) for each in zip(start_init, ct_init, strict=True)),
            *(plus(*each) for each in zip(start_xs, ct_xs, strict=True)),
        ]

    return Swept([*final, *ys], loop.out_moving, pull)
