"""The quick way to record a call: a function made for calls like one that was recorded.

Recording has to cost a microsecond, and a loop over arguments that asks what each of them is costs twice that. So
once a call was recorded, a function is written for its kind: it checks that each argument is the same shared array, a
lazy value of the same type, or a number or NumPy array of the same type, and appends what is to be appended. It gives
None where one is not, and the call is recorded the slow way. An op keeps such functions in each recorder, for the
last kinds it met.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from lanewise.dynamic.record import Kind, Recorder, type_number

_SHARED, _LAZY, _NUMBER, _ARRAY = "shared", "lazy", "number", "array"
_NUMBERS = (bool, int, float, complex, np.generic)


def quick_way(
    recorder: Recorder,
    kind: Kind,
    args: Sequence[Any],
    lazy: type,
) -> Callable[..., Any] | None:
    """The function for calls like this one, or None for arguments that are looked into."""
    roles, known = [], []
    columns = []
    types = iter(kind.piece.rows)
    for a in args:
        if a.__class__ is lazy:
            next(types)
            roles.append(_LAZY)
            known.append(a._of)
        elif isinstance(a, jax.Array):
            roles.append(_SHARED)
            known.append(a)
        elif isinstance(a, _NUMBERS):
            roles.append(_NUMBER)
            known.append(a.__class__)
            columns.append(recorder.columns[type_number(*next(types))])
        elif a.__class__ is np.ndarray:
            roles.append(_ARRAY)
            known.append((a.shape, a.dtype))
            columns.append(recorder.columns[type_number(*next(types))])
        else:
            return None
    tree = kind.tree
    many = 0 if tree is None else len(kind.results)
    make = _factory(tuple(roles), many)
    return make(
        recorder,
        lazy,
        kind.number,
        known,
        columns,
        [recorder.tag(k) for k in kind.results],
        tuple if tree == "tuple" else getattr(tree, "unflatten", None),
    )


@functools.lru_cache(maxsize=512)
def _factory(roles: tuple[str, ...], many: int) -> Callable[..., Callable[..., Any]]:
    """Written for arguments of these roles, and this many results (0: one, by itself)."""
    checks, rows, puts, names = [], [], [], []
    column = 0
    for i, role in enumerate(roles):
        if role == _LAZY:
            checks.append(f"a{i}.__class__ is not Lazy or a{i}._of is not k{i}")
            rows.append(f"a{i}._number")
        elif role == _SHARED:
            checks.append(f"a{i} is not k{i}")
        else:
            if role == _NUMBER:
                checks.append(f"a{i}.__class__ is not k{i}")
                puts.append(f"c{column}.append(a{i})")
            else:
                checks.append(f"a{i}.__class__ is not ndarray or (a{i}.shape, a{i}.dtype) != k{i}")
                # The caller may write into its array before what is recorded runs.
                puts.append(f"c{column}.append(a{i}.copy())")
            rows.append(f"~len(c{column})")
            names.append(f"c{column}")
            column += 1
    taken = _one_column_each(rows, puts)
    results = [f"Lazy(r{j}, n + {j})" for j in range(many)] or ["Lazy(r0, n)"]
    made = "(" + ", ".join(results) + ",)" if many else results[0]
    lines = [
        "def make(recorder, Lazy, number, known, columns, tags, build):",
        "    call, extend = recorder.calls.append, recorder.operands.extend",
        *(f"    k{i} = known[{i}]" for i in range(len(roles))),
        *(f"    c{j} = columns[{j}]" for j in range(column)),
        *(f"    r{j} = tags[{j}]" for j in range(max(many, 1))),
        f"    def quick({', '.join(f'a{i}' for i in range(len(roles)))}):",
        f"        if {' or '.join(checks) or 'False'}:",
        "            return None",
        *(f"        {line}" for line in taken),
        "        call(number)",
        "        n = recorder.count",
        f"        recorder.count = n + {max(many, 1)}",
        f"        return {made}" if many == 0 else f"        made = {made}",
        *(["        return made if build is tuple else build(made)"] if many else []),
        "    return quick",
    ]
    scope: dict[str, Any] = {"ndarray": np.ndarray}
    exec("\n".join(lines), scope)
    return scope["make"]


def _one_column_each(rows: Sequence[str], puts: Sequence[str]) -> list[str]:
    """Statements that append operands. Two numbers of one class go to one column, one after the other."""
    if not puts:
        return [f"extend(({', '.join(rows)},))"] if rows else []
    lines, put = [], iter(puts)
    for row in rows:
        lines.append(f"extend(({row},))")
        if row.startswith("~"):
            lines.append(next(put))
    return lines
