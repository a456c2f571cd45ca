"""What a stream feeds: examples in, answers out, while the device works.

Three things are fed: lanes that are refilled between segments of a run (`segments.py`), for `ticks`; lanes that take
examples while they run (`served.py`), for `native`; and batches (`batches.py`), where lanes run on their own and no
answer is known before all have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from lanewise._jax import stored


class Example(NamedTuple):
    """An example that waits: its number, and its arrays as they are stored."""

    index: int
    rows: list[np.ndarray]


class Ended(NamedTuple):
    """Examples that have ended: their numbers, a column for each result (as it is stored), outcomes and sites.

    `why`: why some examples were not run, by their numbers.
    """

    index: np.ndarray
    columns: list[np.ndarray]
    code: np.ndarray
    site: np.ndarray
    why: Mapping[int, str] = MappingProxyType({})


NONE_ENDED = Ended(np.zeros(0, int), [], np.zeros(0, int), np.zeros(0, int))


class Fed(Protocol):
    """What takes the examples."""

    # Whether more examples may come, though none waits now.
    expects_more: bool

    @property
    def avals(self) -> Sequence[Any]:
        """The types of an example's arrays."""
        ...

    @property
    def wanted(self) -> int:
        """How many examples should wait."""
        ...

    @property
    def in_flight(self) -> int:
        """How many examples may be under way at once."""
        ...

    def start(self, waiting: deque[Example]) -> bool:
        """Take examples, and run; False if there is nothing to run."""
        ...

    def ready(self) -> bool:
        """Whether the run has ended."""
        ...

    def ended(self) -> Ended:
        """What has ended in this run, when it is over."""
        ...

    def so_far(self) -> Ended:
        """What has ended, after an interrupt."""
        ...

    def close(self) -> None:
        """No more examples will come."""
        ...


def kept_row(aval: Any) -> Any:
    """The shape and type of one example's part of an operand, as it is stored."""
    struct = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    return jax.eval_shape(lambda x: stored(x, aval), struct)
