"""Functions that are defined again: one with the code and the constants of an earlier one counts as that one.

Compiled code is cached by function. In a notebook a cell that defines a density runs many times, and a `lambda` is
another function each time. So each is traced, and identified by a digest of what it computes (a density by that of its
gradient, which includes its custom rules). One without a digest is taken as it is.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Hashable
from typing import Any

from lanewise import _jax
from lanewise.mcmc.space import KEPT

Function = Callable[..., Any]


class Known:
    """A function identified by what it computes: equal to any other with the same digest.

    It calls the last one that was seen to compute this. An earlier one may refer to values that have changed since.
    """

    def __init__(self, digest: str, function: Function) -> None:
        self.digest, self.function = digest, function

    def __call__(self, argument: Any) -> Any:
        return self.function(argument)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


_known: collections.OrderedDict[Hashable, Known] = collections.OrderedDict()


def known(function: Function, traced: Function, like: Any) -> Function:
    """The function identified by what it computes, where that is known; `traced` of such an argument stands for it."""
    digest = _jax.fingerprint(traced, like)
    if digest is None:
        return function
    found = _known.setdefault(digest, Known(digest, function))
    found.function = function
    _known.move_to_end(digest)
    while len(_known) > KEPT:
        _known.popitem(last=False)
    return found


def hashable(function: Function) -> Function:
    """The function itself if compiled code can be cached for it; an object that holds arrays has no hash."""
    try:
        hash(function)
    except TypeError:
        return lambda argument: function(argument)
    return function


def known_once(function: Function, traced: Function, like: Any) -> Function:
    """As `known`, for functions that are the same object again: those are not traced again."""
    found = _once(function, traced, like)
    if isinstance(found, Known):
        found.function = function
    return found


_once = functools.lru_cache(KEPT)(known)
