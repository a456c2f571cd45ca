"""The message of an `assert`, formatted when a lane has failed.

While a program is traced there are no values to format. So a message is stored as what would write it: the lambda
around the user's expression, with the variables it reads. Once a lane has failed and its values are known, it is called
with these in the variables' places; any expression works, format specifications and calls included.

Until then the message is shown with holes, `x is {x}`. To find what it formats, it is written once with a `_Hole` for
each traced value. A message that does more than format is shown as it stands in the source.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lanewise import _jax
from lanewise.frontend.values import is_traced


class _Hole:
    """Stands for a value that is not known yet."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._read = False

    def __format__(self, spec: str) -> str:
        self._read = True
        return f"{{{self._name}:{spec}}}" if spec else f"{{{self._name}}}"

    def __str__(self) -> str:
        return format(self)

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class Message:
    """How to write a message: the lambda and its globals, its variables taken apart, which leaves are given later."""

    code: types.CodeType
    names: dict[str, Any]
    variables: tuple[tuple[str, tuple[Any, ...], Any], ...]
    late: tuple[tuple[int, int], ...]

    def __call__(self, values: Sequence[Any]) -> str:
        """The message, now that the values are there."""
        return self.with_leaves(dict(zip(self.late, map(_plain, values), strict=True)))

    def with_leaves(self, given: dict[tuple[int, int], Any]) -> str:
        cells = []
        for i, (_, leaves, tree) in enumerate(self.variables):
            filled = [given.get((i, j), leaf) for j, leaf in enumerate(leaves)]
            cells.append(types.CellType(jax.tree.unflatten(tree, filled)))
        code, names = self.code, self.names
        fun = types.FunctionType(code, names, "message", None, tuple(cells))
        return str(fun())


def text_of(write: Callable[[], Any], source: str) -> tuple[str, Message | None, list[Any]]:
    """A message as it can be shown while tracing; what writes it later, if it is to be, and the values for that."""
    assert isinstance(write, types.FunctionType)
    contents = [cell.cell_contents for cell in write.__closure__ or ()]
    parts = [jax.tree.flatten_with_path(content) for content in contents]
    names = write.__code__.co_freevars
    variables = tuple(
        (name, tuple(leaf for _, leaf in found), tree)
        for name, (found, tree) in zip(names, parts, strict=True)
    )
    holes = {
        (i, j): (_Hole(names[i] + jax.tree_util.keystr(path)), leaf)
        for i, (found, _) in enumerate(parts)
        for j, (path, leaf) in enumerate(found)
        if is_traced(leaf)
    }
    if not holes:
        return str(write()), None, []
    shown = Message(write.__code__, write.__globals__, variables, ())
    read = list(holes)
    try:
        text = shown.with_leaves({place: hole for place, (hole, _) in holes.items()})
        read = [place for place, (hole, _) in holes.items() if hole._read]
    except Exception:  # it computes something from the values: shown as it is written
        text = source
    if not read:
        return text, None, []
    # What is traced and not read does not outlive the trace.
    nothing = dict.fromkeys(holes)
    kept = tuple(
        (name, tuple(nothing.get((i, j), leaf) for j, leaf in enumerate(leaves)), tree)
        for i, (name, leaves, tree) in enumerate(variables)
    )
    return (
        text,
        Message(write.__code__, write.__globals__, kept, tuple(read)),
        [holes[place][1] for place in read],
    )


def _plain(value: Any) -> Any:
    """A value as NumPy's, a scalar of which is formatted as a number is."""
    if isinstance(value, jax.Array) and _jax.is_key(_jax.aval_of(value)):
        return value
    return np.asarray(value)[()]
