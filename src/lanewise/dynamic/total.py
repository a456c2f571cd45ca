"""Sums of many lazy values.

`sum(values)` in Python is a chain of additions: as many levels as there are values, each a launch, and in reverse
again. Here an op adds four or two of them: a sum of n values has about log4(n) levels, and two ops serve sums
of any length. An op for each length would be compiled for each. Considered and not done: zeros that fill up to four.
What an operand reads, results or data, is part of what is compiled, and would change from minibatch to minibatch.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from lanewise.core.errors import OptionError
from lanewise.dynamic.lazy import Lazy, Op

AT_ONCE = (4, 2)

_add = Op(lambda *values: functools.reduce(operator.add, values), "sum")


def lazy_sum(values: Iterable[Any]) -> Any:
    """The sum of lazy values of one type: of losses at the words of a sentence, of messages to a node.

    >>> import jax.numpy as jnp
    >>> import lanewise as lw
    >>> @lw.op
    ... def loss(w, x):
    ...     return (w * x - 1.0) ** 2
    >>> w = jnp.float32(0.5)
    >>> sentences = [[1.0, 2.0, 4.0], [3.0]]
    >>> print(lw.lazy_map(lambda words: lw.lazy_sum([loss(w, x) for x in words]), sentences))
    [1.25 0.25]

    Arrays and numbers are added too; without lazy values it is their sum.
    """
    left = list(values)
    if not left:
        raise OptionError("lazy_sum was given no values, so what it gives has no type.")
    like = next((v for v in left if v.__class__ is Lazy), None)
    if like is None:
        return functools.reduce(operator.add, left)
    left = [v if v.__class__ is Lazy else np.asarray(v, like.dtype) for v in left]
    for i, value in enumerate(left):
        if value.shape != like.shape or value.dtype != like.dtype:
            raise OptionError(
                f"lazy_sum adds values of one type: value {i} is {value.dtype}{list(value.shape)},"
                f" and another one is {like.dtype}{list(like.shape)}."
            )
    while len(left) > 1:
        added = []
        for width in AT_ONCE:
            while len(left) >= width:
                added.append(_add(*left[:width]))
                del left[:width]
        left = added + left
    return left[0]
