"""What the patterns of a `match` ask at run time: what the subject is made of, as Python's own `match` has it."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise.core.errors import Location, UnsupportedSyntaxError
from lanewise.core.objects import is_held
from lanewise.frontend.values import is_traced, type_text

# Classes whose one positional pattern is the subject itself.
_THEMSELVES = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)
_NUMBERS = (bool, int, float, complex)


class Matching:
    """The part of a `Runtime` that `match` calls."""

    def is_singleton(self, subject: Any, value: Any, gone: tuple[Any, ...]) -> Any:
        """`case None`, `case True`, `case False`; a traced bool is compared."""
        if is_held(subject):
            return subject._lw_is_none(gone) if value is None else False
        if is_traced(subject) and value is not None and _jax.aval_of(subject).dtype == jnp.bool_:
            return subject if value else jnp.logical_not(subject)
        return subject is value

    def is_sequence(self, subject: Any, count: int, more: bool) -> bool:
        if not isinstance(subject, Sequence) or isinstance(subject, str | bytes | bytearray):
            return False
        return len(subject) >= count if more else len(subject) == count

    def items_between(self, subject: Any, before: int, after: int) -> list[Any]:
        return list(subject[before : len(subject) - after])

    def has_keys(self, subject: Any, keys: tuple[Any, ...]) -> bool:
        return isinstance(subject, Mapping) and all(key in subject for key in keys)

    def other_items(self, subject: Any, keys: tuple[Any, ...]) -> dict[Any, Any]:
        return {key: value for key, value in subject.items() if key not in keys}

    def is_instance(
        self, subject: Any, cls: Any, count: int, names: tuple[str, ...], gone: tuple[Any, ...]
    ) -> Any:
        """`case cls(...)`; earlier cases have taken what is of the classes `gone`, which may hold None."""
        if is_held(subject):
            return subject._lw_is_instance(cls, gone)
        if is_traced(subject) and cls in _NUMBERS:
            here = sys._getframe(1)
            raise UnsupportedSyntaxError(
                f"`case {cls.__name__}(...)` asks for a Python number, and the subject is {type_text(subject)}, whose"
                " value is only known at run time. Compare its values, or ask for its `dtype` in an `if`",
                Location(here.f_code.co_filename, here.f_lineno, here.f_code.co_name),
            )
        if not isinstance(subject, cls):
            return False
        if count > 1 and _is_itself(cls):
            raise TypeError(f"{cls.__name__}() accepts 1 positional sub-pattern ({count} given)")
        if not _is_itself(cls):
            known = getattr(cls, "__match_args__", ())
            if count > len(known):
                raise TypeError(
                    f"{cls.__name__}() accepts {len(known)} positional sub-patterns ({count} given)"
                )
            names = (*known[:count], *names)
        return all(hasattr(subject, name) for name in names)

    def part(self, subject: Any, cls: Any, place: int) -> Any:
        """What a positional pattern inside a class pattern is about."""
        return subject if _is_itself(cls) else getattr(subject, cls.__match_args__[place])


def _is_itself(cls: Any) -> bool:
    return not hasattr(cls, "__match_args__") and any(
        builtins.issubclass(cls, kind) for kind in _THEMSELVES
    )
