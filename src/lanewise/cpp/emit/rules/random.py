"""Rules of random bits: the same bits as JAX's, from the same keys.

A key is one element of type `key2`. All of it is one hash function, threefry with 20 rounds, of a key and a counter;
what differs between JAX's two layouts (`jax_threefry_partitionable`, as it was when the equation was traced) is which
counter makes which word.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from lanewise import _jax
from lanewise._jax import JaxprEqn
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules import Unsupported, rule
from lanewise.cpp.emit.rules.shape import rename
from lanewise.cpp.emit.values import Index, Value, plus, ravel, times, view
from lanewise.cpp.emit.writer import Writer

_UINT32 = np.dtype("uint32")


@rule("threefry2x32")
def threefry2x32(w: Writer, eqn: JaxprEqn) -> None:
    first, second, x, y = map(w.value, eqn.invars)
    rooms = [w.store(var) for var in eqn.outvars]
    with w.loops(rooms[0].shape) as indices:
        # Operands broadcast: those of fewer axes belong to the last ones.
        a, b, c, d = (
            v.at(
                [
                    0 if n == 1 else i
                    for n, i in zip(v.shape, indices[len(indices) - len(v.shape) :])
                ]
            )
            for v in (first, second, x, y)
        )
        words = w.fresh("words")
        w.line(f"const key2 {words} = lw_threefry(key2{{{{{a}, {b}}}}}, {c}, {d});")
        for place, room in enumerate(rooms):
            w.put(room, indices, f"{words}.word[{place}]")


@rule("iota_2x32_shape")
def iota_2x32_shape(w: Writer, eqn: JaxprEqn) -> None:
    """The high and low words of each element's position."""
    shape = eqn.params["shape"]
    for var, shift in zip(eqn.outvars, (" >> 32", "")):
        w.define(
            var,
            view(shape, _UINT32, lambda i, s=shift: f"(uint32)((uint64)({ravel(shape, i)}){s})"),
        )


@rule("random_bits")
def random_bits(w: Writer, eqn: JaxprEqn) -> None:
    keys, (out,) = w.value(eqn.invars[0]), eqn.outvars
    width, shape = eqn.params["bit_width"], eqn.params["shape"]
    size, kind = math.prod(shape), dtypes.ctype(out.aval.dtype)
    rank = len(keys.shape)

    def element(indices: tuple[Index, ...]) -> str:
        key, position = keys.at(indices[:rank]), ravel(shape, indices[rank:])
        if _jax.threefry_partitionable(eqn):
            words = f"lw_threefry_at({key}, {position})"
            if width == 64:
                return f"lw_joined({words})"
            return f"lw_mixed({words})" if width == 32 else f"{kind}(lw_mixed({words}))"
        count = -(-width * size // 32)
        if width == 64:
            high = f"lw_threefry_word({key}, {position}, {count})"
            low = f"lw_threefry_word({key}, {plus(position, size)}, {count})"
            return f"((uint64){high} << 32 | {low})"
        if width == 32:
            return f"lw_threefry_word({key}, {position}, {count})"
        each = 32 // width
        word = f"lw_threefry_word({key}, ({position}) / {each}, {count})"
        return f"{kind}({word} >> {width} * (({position}) % {each}))"

    w.compute(out, view(out.aval.shape, out.aval.dtype, element, keys))


@rule("random_split")
def random_split(w: Writer, eqn: JaxprEqn) -> None:
    keys, (out,) = w.value(eqn.invars[0]), eqn.outvars
    shape, rank = eqn.params["shape"], len(keys.shape)
    count = 2 * math.prod(shape)

    def element(indices: tuple[Index, ...]) -> str:
        key, position = keys.at(indices[:rank]), ravel(shape, indices[rank:])
        if _jax.threefry_partitionable(eqn):
            return f"lw_threefry_at({key}, {position})"
        at = times(position, 2)
        words = (f"lw_threefry_word({key}, {where}, {count})" for where in (at, plus(at, 1)))
        return f"key2{{{{{', '.join(words)}}}}}"

    w.compute(out, view(out.aval.shape, out.aval.dtype, element, keys))


@rule("random_fold_in")
def random_fold_in(w: Writer, eqn: JaxprEqn) -> None:
    keys, data = map(w.value, eqn.invars)
    w.map(eqn.outvars[0], lambda k, d: f"lw_threefry({k}, 0u, uint32({d}))", keys, data)


@rule("random_seed")
def random_seed(w: Writer, eqn: JaxprEqn) -> None:
    if not dtypes.held(eqn.outvars[0].aval.dtype):
        raise Unsupported(f"keys of the kind {eqn.outvars[0].aval.dtype}")
    w.map(eqn.outvars[0], lambda seed: f"lw_seed({seed})", w.value(eqn.invars[0]))


@rule("random_wrap")
def random_wrap(w: Writer, eqn: JaxprEqn) -> None:
    _seen_as(w, eqn, lambda words, i: f"key2{{{{{words.at((*i, 0))}, {words.at((*i, 1))}}}}}")


@rule("random_unwrap")
def random_unwrap(w: Writer, eqn: JaxprEqn) -> None:
    _seen_as(w, eqn, lambda keys, i: f"{keys.at(i[:-1])}.word[{i[-1]}]")


def _seen_as(w: Writer, eqn: JaxprEqn, element: Callable[[Value, tuple[Index, ...]], str]) -> None:
    """Keys seen as words, or words as keys."""
    value, (out,) = w.value(eqn.invars[0]), eqn.outvars
    rename(w, out, view(out.aval.shape, out.aval.dtype, lambda i: element(value, i), value))


@rule("random_clone")
def random_clone(w: Writer, eqn: JaxprEqn) -> None:
    w.define(eqn.outvars[0], w.value(eqn.invars[0]))
