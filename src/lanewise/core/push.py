"""A record put on a tape, wherever there is room next: the `push` primitive.

`tape, top, at, fits = push(tape, top, entries)` writes entries from `top` on, says where that was, and whether they
fit. In order, that is a write by index and a sum. Calls that run at the same time share their example's tapes: there
each is given a place of its own (`machine/calls.py`), in whichever order they come, and a caller that reads a record
again must have kept its place. So nothing but `push` may look at `top`, or at the tape, before all calls are back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise._jax import ad, batching, mlir

push_p = _jax.primitive("push")


def push(tape: Any, top: Any, entries: Any) -> list[Any]:
    """The tape with these entries, how many it has then, where they begin, and whether there was room.

    >>> [x.tolist() for x in push(jnp.zeros(4), jnp.int32(1), jnp.ones(2))]
    [[0.0, 1.0, 1.0, 0.0], 3, 1, True]
    """
    return push_p.bind(tape, top, entries)


def _pushed(tape: Any, top: Any, entries: Any) -> list[Any]:
    starts = [top, *[jnp.int32(0)] * (tape.ndim - 1)]
    written = lax.dynamic_update_slice(tape, entries, starts, allow_negative_indices=False)
    after = top + jnp.int32(entries.shape[0])
    return [written, after, top, after <= jnp.int32(tape.shape[0])]


@push_p.def_abstract_eval
def _push_abstract(tape: Any, top: Any, entries: Any) -> list[Any]:
    del entries
    whole = _jax.shaped((), jnp.int32.dtype)
    return [_jax.strong(tape), _jax.strong(top), whole, _jax.shaped((), jnp.bool_.dtype)]


def _batch(args: Sequence[Any], dims: Sequence[int | None]) -> tuple[list[Any], list[int]]:
    return jax.vmap(_pushed, in_axes=tuple(dims))(*args), [0] * 4


def _jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    given = [ad.instantiate_zeros(t) for t in tangents]
    return jax.jvp(_pushed, list(primals), given)


push_p.def_impl(_pushed)
mlir.register_lowering(push_p, mlir.lower_fun(_pushed, multiple_results=True))
batching.primitive_batchers[push_p] = _batch
ad.primitive_jvps[push_p] = _jvp
