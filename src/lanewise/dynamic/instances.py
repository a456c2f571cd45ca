"""`lazy_map`: code for one instance, recorded for all of them, with values that decide what comes next.

Each instance runs in a greenlet: a stack of its own that can be left and taken up again. One that needs a value
(`.item()`, `if value:`) is left there, and the next one runs. When none can go on, what all of them recorded runs at
once, and each goes on with its value. Without the package greenlet, the recorded calls run whenever a value is
needed: the answers are the same, and fewer calls run together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise.core.errors import OptionError
from lanewise.dynamic.lazy import Lazy, recording
from lanewise.dynamic.record import TYPES, LazyError, Recorder, greenlets


def lazy_map(fun: Callable[[Any], Any], instances: Iterable[Any], *, order: str = "depth") -> Any:
    """`fun` of each instance, with the ops that it calls run for many at once; results stacked along a first axis.

    An instance is any Python object. `fun` is plain Python around `op`s. It gives lazy values, arrays or numbers, or
    a tree of these, of one structure for all instances.

    >>> import lanewise as lw
    >>> @lw.op
    ... def step(w, total, x):
    ...     return total + w * x
    >>> def weighted(w, numbers):
    ...     total = 0.0
    ...     for x in numbers:
    ...         total = step(w, total, x)
    ...     return total
    >>> lists = [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]
    >>> print(lw.lazy_map(lambda numbers: weighted(jnp.float32(2.0), numbers), lists))
    [ 6.  6. 30.]
    >>> print(jax.grad(lambda w: lw.lazy_map(lambda numbers: weighted(w, numbers), lists).sum())(jnp.float32(2.0)))
    21.0
    """
    if not callable(fun):
        raise OptionError(
            f"lazy_map takes a function of one instance, then the instances; got {type(fun).__name__}: {fun!r}"
        )
    try:
        given = list(instances)
    except TypeError:
        raise OptionError(
            f"lazy_map takes the instances as a list; got {type(instances).__name__}: {instances!r:.60}"
        ) from None
    if not given:
        raise OptionError(
            "lazy_map was given no instances, so what it gives has no type. Leave empty minibatches out."
        )
    recorder = Recorder(order)
    greenlet = greenlets()
    with recording(recorder):
        results = (
            _in_turn(fun, given) if greenlet is None else _together(fun, given, recorder, greenlet)
        )
    return _stacked(results, recorder)


def _in_turn(fun: Callable[[Any], Any], instances: Sequence[Any]) -> list[Any]:
    results = []
    for i, instance in enumerate(instances):
        try:
            results.append(fun(instance))
        except Exception as error:
            _note(error, i)
            raise
    return results


def _note(error: BaseException, number: int) -> None:
    error.add_note(f"lanewise: in instance {number} of lazy_map.")


def _together(
    fun: Callable[[Any], Any], instances: Sequence[Any], recorder: Recorder, greenlet: Any
) -> list[Any]:
    """Each instance until it ends or waits; then a flush, and all that wait go on."""
    hub = greenlet.getcurrent()
    results: list[Any] = [None] * len(instances)
    alive: dict[int, Any] = {}

    def wait() -> None:
        # In the hub itself (a nested block's value, say) no other instance can go on meanwhile.
        if greenlet.getcurrent() is hub:
            recorder.flush()
        else:
            hub.switch()

    recorder.wait = wait
    try:
        for number, instance in enumerate(instances):
            runner = greenlet.greenlet(fun)
            _switch(runner, number, alive, results, instance)
        while alive:
            recorder.flush()
            for number, runner in list(alive.items()):
                _switch(runner, number, alive, results)
    finally:
        recorder.wait = None
        for runner in alive.values():
            runner.throw()
    return results


def _switch(
    runner: Any, number: int, alive: dict[int, Any], results: list[Any], *args: Any
) -> None:
    """Let an instance run until it waits or ends."""
    alive.pop(number, None)
    try:
        found = runner.switch(*args)
    except Exception as error:
        _note(error, number)
        raise
    if runner.dead:
        results[number] = found
    else:
        alive[number] = runner


def _stacked(results: Sequence[Any], recorder: Recorder) -> Any:
    """Results of all instances as one tree of arrays."""
    flat = [jax.tree.flatten(r) for r in results]
    tree = flat[0][1]
    for i, (_, other) in enumerate(flat):
        if other != tree:
            raise LazyError(
                f"instance {i} of lazy_map gave another structure than instance 0: {other}, and {tree}."
            )
    columns = list(zip(*(leaves for leaves, _ in flat)))
    pending = [
        x._number
        for column in columns
        if all(x.__class__ is Lazy for x in column)
        for x in column
        if x._number >= recorder.base
    ]
    alone = all(
        all(x.__class__ is not Lazy or x._number >= recorder.base for x in column)
        and (
            any(x.__class__ is not Lazy for x in column)
            is not any(x.__class__ is Lazy for x in column)
        )
        for column in columns
    )
    if pending and alone:
        return tree.unflatten(_only_wanted(columns, pending, recorder))
    recorder.flush()
    return tree.unflatten([_column(column, i, recorder) for i, column in enumerate(columns)])


def _only_wanted(
    columns: Sequence[Sequence[Any]], pending: list[int], recorder: Recorder
) -> list[Any]:
    """What is left to compute runs with these as its only answers."""
    by_type = recorder.flush(pending)
    taken = dict.fromkeys(by_type, 0)
    plan = []
    for i, column in enumerate(columns):
        if column[0].__class__ is Lazy:
            kind = _one_type(column, i)
            plan.append((kind, taken[kind], len(column)))
            taken[kind] += len(column)
    kinds = tuple(dict.fromkeys(kind for kind, _, _ in plan))
    parts = tuple((kinds.index(kind), begin, size) for kind, begin, size in plan)
    rows = iter(_parted(tuple(by_type[kind] for kind in kinds), parts))
    return [
        next(rows) if column[0].__class__ is Lazy else _column(column, i, recorder)
        for i, column in enumerate(columns)
    ]


@functools.partial(jax.jit, static_argnums=1)
def _parted(rows: tuple[Any, ...], parts: tuple[tuple[int, int, int], ...]) -> list[Any]:
    """Parts of arrays: which, from where, how many. One compiled call, as each slice costs what a launch does."""
    return [rows[which][begin : begin + size] for which, begin, size in parts]


def _one_type(column: Sequence[Any], leaf: int) -> int:
    kind = column[0]._kind
    for i, x in enumerate(column):
        if x._kind != kind:
            raise LazyError(
                f"result {leaf} of instance {i} of lazy_map is {TYPES[x._kind]}, and that of instance 0 is"
                f" {TYPES[kind]}: they cannot be stacked."
            )
    return kind


def _column(column: Sequence[Any], leaf: int, recorder: Recorder) -> Any:
    """One leaf of the results of all instances, stacked."""
    if all(x.__class__ is Lazy and x._recorder is recorder for x in column):
        kind = _one_type(column, leaf)
        return recorder.rows(kind, np.array([x._number for x in column]))[: len(column)]
    arrays = [x.value if x.__class__ is Lazy else jnp.asarray(x) for x in column]
    shapes = {(a.shape, a.dtype) for a in arrays}
    if len({shape for shape, _ in shapes}) > 1:
        raise LazyError(
            f"result {leaf} of lazy_map differs in shape between instances: {sorted(s for s, _ in shapes)}."
        )
    return jnp.stack(arrays)
