"""Expressions at run time: `and`, `or`, `not`, chained comparisons, `in`, and the built-in functions
that would ask a traced value for a plain one (`max`, `min`, `any`, `all`, `int`, `float`, `bool`)."""

from __future__ import annotations

import builtins
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise.core import promotion
from lanewise.core.objects import Items, is_held
from lanewise.frontend import values
from lanewise.frontend.branch import asked, stage_branch, truth
from lanewise.frontend.site import Site
from lanewise.frontend.values import is_traced

_Thunk = Callable[[], Any]


def same(left: Any, right: Any) -> Any:
    """`is`; a held value says itself whether it is None, or another."""
    if not (is_held(left) or is_held(right)):
        return left is right
    if not is_held(left):
        left, right = right, left
    return left._lw_is_none() if right is None else left._lw_is_same(right)


def not_same(left: Any, right: Any) -> Any:
    answer = same(left, right)
    return jnp.logical_not(answer) if is_traced(answer) else not answer


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Is": same,
    "IsNot": not_same,
    "In": lambda a, b: a in b,
    "NotIn": lambda a, b: a not in b,
}


class Operators:
    """The part of a `Runtime` that expressions call."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = tuple(sites)
        self._local = threading.local()

    @property
    def staged(self) -> list[int]:
        """The statements being staged now in this thread, innermost last."""
        if not hasattr(self._local, "staged"):
            self._local.staged = []
        return self._local.staged

    @contextmanager
    def staging(self, k: int) -> Iterator[None]:
        self.staged.append(k)
        try:
            yield
        finally:
            self.staged.pop()

    def choose(self, k: int, test: Any, then: _Thunk, orelse: _Thunk) -> Any:
        """A conditional expression."""
        test = asked(test)
        if not is_traced(test):
            return then() if test else orelse()
        return self._choose(k, truth(test, self.sites[k]), then, orelse)

    def _choose(self, k: int, pred: Any, then: _Thunk, orelse: _Thunk) -> Any:
        site = self.sites[k]
        site.forbid_staging()
        with self.staging(k):
            (value,) = stage_branch(pred, lambda: (then(),), lambda: (orelse(),), site)
        return value

    def truth(self, k: int, value: Any) -> Any:
        return truth(value, self.sites[k])

    def is_(self, left: Any, right: Any) -> Any:
        return same(left, right)

    def is_not(self, left: Any, right: Any) -> Any:
        return not_same(left, right)

    def not_(self, k: int, value: Any) -> Any:
        value = asked(value)
        if not is_traced(value):
            return not value
        return jnp.logical_not(truth(value, self.sites[k]))

    def and_(self, k: int, value: Any, *others: _Thunk) -> Any:
        """`and`, with the values of all operands but the first still to be computed."""
        if not others:
            return value
        if not is_traced(asked(value)):
            return self.and_(k, others[0](), *others[1:]) if value else value
        pred = truth(value, self.sites[k])
        otherwise = False if is_bool(value) else value
        rest = others[1:]
        return self._choose(k, pred, lambda: self.and_(k, others[0](), *rest), lambda: otherwise)

    def or_(self, k: int, value: Any, *others: _Thunk) -> Any:
        if not others:
            return value
        if not is_traced(asked(value)):
            return value if value else self.or_(k, others[0](), *others[1:])
        pred = truth(value, self.sites[k])
        chosen = True if is_bool(value) else value
        rest = others[1:]
        return self._choose(k, pred, lambda: chosen, lambda: self.or_(k, others[0](), *rest))

    def compare(self, k: int, left: Any, *rest: Any) -> Any:
        """A chain of comparisons: operator, operand still to be computed, operator, operand..."""
        right = rest[1]()
        result = _COMPARE[rest[0]](left, right)
        if len(rest) == 2:
            return result
        return self.and_(k, result, lambda: self.compare(k, right, *rest[2:]))

    def in_(self, k: int, value: Any, container: Any) -> Any:
        """`in`, where the value or what it is looked for among is traced."""
        if isinstance(container, jax.Array) and (is_traced(container) or is_traced(value)):
            return jnp.any(container == value)
        if isinstance(container, list | tuple | set | frozenset | range) and (
            is_traced(value) or any(map(is_traced, container))
        ):
            tests = [lambda item=item: value == item for item in container]
            return self.or_(k, False, *tests) if tests else False
        return value in container

    def not_in(self, k: int, value: Any, container: Any) -> Any:
        return self.not_(k, self.in_(k, value, container))

    def builtin(self, k: int, fun: Any, *args: Any, **kwargs: Any) -> Any:
        """Call what stands under the name of a built-in function."""
        if fun is builtins.isinstance and len(args) == 2 and is_held(args[0]):
            return args[0]._lw_is_instance(args[1])
        if fun is builtins.len and len(args) == 1 and isinstance(args[0], Items):
            return args[0]._lw_length()
        if kwargs or len(args) == 0:
            return fun(*args, **kwargs)
        only: Any = args[0] if len(args) == 1 else None
        if fun is builtins.max or fun is builtins.min:
            items = list(args) if len(args) > 1 else None
            if items is None and isinstance(only, list | tuple):
                items = list(only)
            if items is not None and any(map(is_traced, items)):
                return self._extreme(k, items, operator.gt if fun is builtins.max else operator.lt)
        elif len(args) > 1:
            pass
        elif (fun is builtins.any or fun is builtins.all) and not isinstance(only, jax.Array):
            items = list(only)
            if any(map(is_traced, items)):
                test = self.or_ if fun is builtins.any else self.and_
                return test(k, *self._each_truth(k, items))
            return fun(items)
        elif is_traced(only) and _jax.aval_of(only).shape == ():
            if fun is builtins.bool:
                return truth(only, self.sites[k])
            if fun is builtins.int or fun is builtins.float:
                number = jnp.trunc(only) if fun is builtins.int and _floats(only) else only
                return promotion.convert(number, _jax.aval_of(fun(0)))
        return fun(*args)

    def _each_truth(self, k: int, items: Sequence[Any]) -> list[Any]:
        """The first truth, and the others still to be computed."""
        first, *others = items
        late = [lambda item=item: truth(item, self.sites[k]) for item in others]
        return [truth(first, self.sites[k]), *late]

    def _extreme(self, k: int, items: Sequence[Any], beats: Callable[[Any, Any], Any]) -> Any:
        """As Python's `max` and `min` go about it: the first of the extreme ones stays."""
        best = items[0]
        for item in items[1:]:
            better = truth(beats(item, best), self.sites[k])
            best = (
                jnp.where(better, item, best) if is_traced(better) else (item if better else best)
            )
        return best


def is_bool(value: Any) -> bool:
    return not is_held(value) and _jax.aval_of(value).dtype == jnp.bool_


def _floats(value: Any) -> bool:
    return bool(jnp.issubdtype(_jax.aval_of(value).dtype, jnp.floating)) and values.is_array(value)
