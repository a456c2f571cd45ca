"""An op that does not fit its arguments: which op, which line of it, which arguments.

JAX says what is wrong with two shapes, deep inside of `lax`, and not whose they are. The user's line is found in the
traceback: the last frame in the file that the op is written in. What the op raises itself (`raise ValueError(...)`)
is its own message, and stays as it is.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import jax

from lanewise.core.errors import Location
from lanewise.dynamic.record import LazyError


def place_of(fun: Callable[..., Any]) -> Location | None:
    """Where a function is written, if it is written in Python."""
    code = getattr(fun, "__code__", None)
    return code and Location(code.co_filename, code.co_firstlineno)


def misfit(
    name: str, fun: Callable[..., Any], error: Exception, given: list[str]
) -> LazyError | None:
    """The error to raise instead of one that a library raised while an op was traced; None to leave it."""
    if isinstance(error, LazyError) or not isinstance(error, TypeError | ValueError):
        return None
    place = place_of(fun)
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if place is not None and f.filename == place.filename]
    if place is not None and (not mine or frames[-1] is mine[-1]):
        return None
    at = Location(mine[-1].filename, mine[-1].lineno or 0, name) if mine else None
    line = f"\n    {mine[-1].line}" if mine and mine[-1].line else ""
    message = str(error).strip().removesuffix(".")
    return LazyError(
        f"{f'{at}: ' if at else ''}op {name!r} does not fit its arguments: {message}.{line}\n"
        f"It was traced for one row with ({', '.join(given)})."
    )


def names_of(fun: Callable[..., Any], tree: Any) -> list[str]:
    """What the op itself calls each leaf of its arguments."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree.unflatten(range(tree.num_leaves)))
    code = getattr(fun, "__code__", None)
    own = code.co_varnames[: code.co_argcount] if code else ()
    found = []
    for (_, which, *rest), _ in paths:
        name = getattr(which, "key", None)
        if name is None:
            name = own[which.idx] if which.idx < len(own) else f"argument {which.idx}"
        found.append(f"{name}{jax.tree_util.keystr(tuple(rest))}")
    return found
