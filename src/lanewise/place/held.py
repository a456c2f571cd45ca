"""Results that stay at the processes that made them, and go back there as arguments.

Weights of a part belong where the part is. With `gather=False` a step of training takes them as `Held` and gives the
new ones as `Held`: no process sees another's, and none of them travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lanewise import _jax
from lanewise.core.errors import OptionError
from lanewise.place.owners import Places
from lanewise.place.placement import Placement


@dataclass(frozen=True, eq=False)
class Held:
    """A result at the places that have it. `value` is the array, in a process that is one of them."""

    aval: Any
    places: Places
    here: Any
    where: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    @property
    def is_here(self) -> bool:
        return self.here is not None

    @property
    def value(self) -> Any:
        """The array; an error in a process that has not got it."""
        if self.here is None:
            raise OptionError(
                f"this result is at {self.where}, and not in this process. Ask `is_here` first, or use gather=True."
            )
        return self.here

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.asarray(self.value, dtype)

    def __repr__(self) -> str:
        shape = self.aval.str_short(short_dtypes=True)
        return f"Held({shape} at {self.where}{'' if self.is_here else ', not here'})"


def held(value: Any, aval: Any, places: Places, placement: Placement) -> Held:
    """A result of a run, which this process may not have."""
    where = ", ".join(placement.called(place) for place in sorted(places))
    return Held(aval, places, value, where)


def given_leaves(
    leaves: Sequence[Any], everywhere: Places
) -> tuple[list[Any], list[Any], list[Places]]:
    """Arguments: their types, the values that this process has of them, and where they are."""
    avals = [x.aval if isinstance(x, Held) else _jax.aval_of(x) for x in leaves]
    values = [x.here if isinstance(x, Held) else x for x in leaves]
    homes = [x.places if isinstance(x, Held) else everywhere for x in leaves]
    return avals, values, homes
