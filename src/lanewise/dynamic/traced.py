"""An op traced for the types of its arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.dynamic.ending import with_programs
from lanewise.dynamic.misfit import misfit, names_of
from lanewise.dynamic.record import STATE, TYPES, LazyError, type_number
from lanewise.dynamic.table import Piece, Type

_SERIAL = itertools.count()


@dataclass(frozen=True)
class Signature:
    """An op traced for the types of its arguments."""

    piece: Piece
    serial: int
    captures: tuple[Any, ...]
    results: tuple[int, ...]
    tree: Any


def traced(name: str, fun: Callable[..., Any], tree: Any, roles: Sequence[Any]) -> Signature:
    """Shared operands, then rows, to the op's results."""
    shared = [r for r in roles if r[0] == "shared"]
    rows = [r for r in roles if r[0] == "row"]
    structs = [jax.ShapeDtypeStruct(s, d) for _, s, d in shared]
    structs += [jax.ShapeDtypeStruct(*TYPES[k]) for _, k in rows]
    out: list[Any] = []

    def code(*values: Any) -> list[Any]:
        first, second = iter(values[: len(shared)]), iter(values[len(shared) :])
        turn = {"shared": first, "row": second}
        leaves = [r[1] if r[0] == "static" else next(turn[r[0]]) for r in roles]
        args, kwargs = jax.tree.unflatten(tree, leaves)
        before, STATE.recorder = STATE.recorder, None
        try:
            result = fun(*args, **kwargs)
        finally:
            STATE.recorder = before
        flat, made = jax.tree.flatten(result)
        out.append((made, result))
        return [jnp.asarray(x) for x in flat]

    try:
        found = _jax.trace(code, structs)
    except Exception as error:
        given = [f"{n}: {_described(r)}" for n, r in zip(names_of(fun, tree), roles, strict=True)]
        better = misfit(name, fun, error, given)
        if better is not None:
            raise better from error
        error.add_note(
            f"lanewise: in op {name!r}, which was traced for one row with ({', '.join(given)})."
        )
        raise
    if any(isinstance(c, _jax.Tracer) for c in found.captures):
        raise LazyError(
            f"op {name!r} reads a traced value from outside (a weight that is differentiated, most likely). Give it as"
            " an argument: the code of an op is cached, and the value is another one next time."
        )
    if not found.out_avals:
        raise LazyError(f"op {name!r} has no result.")
    numbers = tuple(type_number(tuple(a.shape), np.dtype(a.dtype)) for a in found.out_avals)
    made, result = out[0]
    simple: Any = made
    if jax.tree_util.treedef_is_leaf(made):
        simple = None
    elif type(result) is tuple and made.num_leaves == len(result):
        simple = "tuple"
    piece = Piece(
        name,
        with_programs(found.jaxpr),
        tuple(
            TYPES[type_number(tuple(v.aval.shape), np.dtype(v.aval.dtype))]
            for v in found.jaxpr.invars[: len(found.captures) + len(shared)]
        ),
        tuple(TYPES[k] for _, k in rows),
        tuple(TYPES[k] for k in numbers),
    )
    return Signature(piece, next(_SERIAL), found.captures, numbers, simple)


def _described(role: Any) -> str:
    """An argument's leaf in a message."""
    if role[0] == "static":
        return repr(role[1])
    return f"shared {Type(*role[1:])}" if role[0] == "shared" else str(TYPES[role[1]])
