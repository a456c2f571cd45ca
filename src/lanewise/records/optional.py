"""A number or an array that may be None: the field of a record that is annotated `int | None`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise.core.objects import Held


class Optional(Held):
    """A value, and whether there is one. It computes like its value, which is zero where it is None.

    >>> import jax.numpy as jnp
    >>> both = Optional(jnp.array(3), jnp.array(True))
    >>> int(both + 1), int(jnp.square(both))
    (4, 9)
    """

    __slots__ = ("present", "value")

    def __init__(self, value: Any, present: Any) -> None:
        self.value = value
        self.present = present

    def __eq__(self, other: object) -> Any:
        if other is None:
            return self._lw_is_none()
        return jnp.logical_and(self.present, jnp.asarray(self.value) == _plain(other))

    def __ne__(self, other: object) -> Any:
        return jnp.logical_not(self == other)

    def __jax_array__(self) -> Any:
        return jnp.asarray(self.value)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.value, dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("value", "present"):
            raise AttributeError(name)
        return getattr(jnp.asarray(self.value), name)

    def __getitem__(self, place: Any) -> Any:
        return self.value[place]

    def __repr__(self) -> str:
        return f"Optional({self.value}, present={self.present})"

    def _lw_parts(self) -> tuple[Any, ...]:
        return self.value, self.present

    def _lw_with(self, parts: Sequence[Any]) -> Optional:
        return Optional(*parts)

    def _lw_type(self) -> Any:
        return Optional

    def _lw_is_none(self, gone: Sequence[Any] = ()) -> Any:
        return jnp.logical_not(self.present)

    def _lw_truth(self) -> Any:
        return jnp.logical_and(self.present, jnp.asarray(self.value) != 0)

    def _lw_none(self) -> Optional:
        return Optional(np.zeros(jnp.shape(self.value), jnp.result_type(self.value)), False)

    def _lw_given(self, value: Any) -> Optional:
        """A plain value as one that may be None."""
        return Optional(value, True)

    def _lw_loose(self) -> Optional:
        return self


jax.tree_util.register_pytree_node(
    Optional, lambda x: ((x.value, x.present), None), lambda _, parts: Optional(*parts)
)


def _plain(x: Any) -> Any:
    return x.value if isinstance(x, Optional) else x


def _forward(name: str) -> None:
    """Define an operator of two operands as that of the value."""
    function = getattr(operator, name)

    def left(self: Optional, other: Any) -> Any:
        return function(jnp.asarray(self.value), _plain(other))

    def right(self: Optional, other: Any) -> Any:
        return function(other, jnp.asarray(self.value))

    setattr(Optional, f"__{name.strip('_')}__", left)
    if name not in _COMPARISONS:
        setattr(Optional, f"__r{name.strip('_')}__", right)


def _forward_unary(name: str) -> None:
    function = getattr(operator, name)
    setattr(Optional, f"__{name}__", lambda self: function(jnp.asarray(self.value)))


_COMPARISONS = ("lt", "le", "gt", "ge")
_BINARY = "add sub mul truediv floordiv mod pow matmul lshift rshift xor and_ or_".split()
for _name in (*_BINARY, *_COMPARISONS):
    _forward(_name)
for _name in ("neg", "pos", "abs", "invert"):
    _forward_unary(_name)
Optional.__hash__ = None  # type: ignore[assignment]
