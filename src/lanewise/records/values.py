"""Numbers and arrays of many records as one array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from lanewise.records.schema import Field


class Wrong(Exception):
    """A value does not fit its annotation; `blame.py` finds which and where."""


def listed(value: Any) -> Any:
    """A list of items; raises `Wrong` for text, and for collections with keys or without order.

    >>> listed((1, 2)), listed(range(3))
    ((1, 2), range(0, 3))
    """
    if isinstance(value, np.ndarray | jax.Array):
        fits = value.ndim == 1
    else:
        fits = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    if not fits:
        raise Wrong
    return value


# The Python numbers that fit a dtype, by its kind.
_FIT: dict[str, set[type]] = {
    "b": {bool},
    "i": {int, bool},
    "u": {int, bool},
    "f": {float, int, bool},
    "c": {complex, float, int, bool},
}
_KINDS = "biufc"

Taken = tuple[np.ndarray, np.ndarray | None]


def taker(field: Field, codes: Any = None) -> Callable[[list[Any]], Taken]:
    """What makes an array of a list of values, and of a field that may be None also where there is one."""
    if field.what == "text":
        look = codes if callable(codes) else getattr(codes, "__getitem__", None)

        def coded(found: list[Any]) -> np.ndarray:
            try:
                return np.fromiter(map(look, found), np.int32, len(found))  # type: ignore[arg-type]
            except (KeyError, TypeError, ValueError, OverflowError):
                raise Wrong from None

        take = coded
    elif field.dtype is not None:

        def take(found: list[Any]) -> np.ndarray:
            return _numbers(found, field.dtype)

    else:
        take = _arrays
    if not field.optional:
        return lambda found: (take(found), None)

    def some(found: list[Any]) -> Taken:
        present = np.fromiter((x is not None for x in found), np.bool_, len(found))
        values = take([x for x in found if x is not None])
        spread = np.zeros((len(found), *values.shape[1:]), values.dtype)
        spread[present] = values
        return spread, present

    return some


def _numbers(found: list[Any], dtype: np.dtype) -> np.ndarray:
    kinds = set(map(type, found))
    try:
        if kinds <= _FIT[dtype.kind]:
            return np.fromiter(found, dtype, len(found))
        if not all(
            issubclass(kind, np.generic | np.ndarray | jax.Array) or kind in _FIT[dtype.kind]
            for kind in kinds
        ):
            raise Wrong
        every = np.array([np.asarray(x) for x in found])
    except (OverflowError, ValueError, TypeError):
        raise Wrong from None
    if every.ndim != 1 or _KINDS.find(every.dtype.kind) > _KINDS.find(dtype.kind):
        raise Wrong
    return every.astype(dtype)


def _arrays(found: list[Any]) -> np.ndarray:
    if not found:
        return np.zeros((0,), np.float32)
    try:
        every = [np.asarray(x) for x in found]
    except (ValueError, TypeError):
        raise Wrong from None
    if len({(x.shape, x.dtype) for x in every}) > 1 or every[0].dtype.kind not in "biufcV":
        raise Wrong
    stacked = np.stack(every)
    return stacked.astype(jax.dtypes.canonicalize_dtype(stacked.dtype))
