"""Results made on threads, a little ahead of their use: what a data loader does.

A step's work on the host (the table of a minibatch and its index tables, a transfer to the device) does not depend on
the step before. So the host prepares the next minibatches while the device works on this one. Compiled passes and
JAX's transfers do not hold Python's lock, so threads of one process are enough.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from lanewise.core.errors import OptionError

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(
    make: Callable[[Item], Made], items: Iterable[Item], *, depth: int = 1, threads: int = 1
) -> Iterator[Made]:
    """`map(make, items)`, with the next `depth` results made on threads meanwhile.

    Results come in the order of the items, and an error of `make` is raised where its result would come. Items are
    taken by the caller's thread; leaving the loop early waits for what is being made and drops the rest. `make` runs
    without the contexts of JAX that the caller is in, such as `jax.default_device`.

    >>> import lanewise as lw
    >>> list(lw.ahead(lambda n: n * n, range(4), depth=2, threads=2))
    [0, 1, 4, 9]
    """
    for name, value in (("depth", depth), ("threads", threads)):
        if value < 1:
            raise OptionError(f"{name}={value} has to be at least 1.")
    return _ahead(make, items, depth, threads)


def _ahead(
    make: Callable[[Item], Made], items: Iterable[Item], depth: int, threads: int
) -> Iterator[Made]:
    waiting: deque[Future[Made]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="lanewise-ahead")
    try:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # A loop that was left open when Python ends has no threads to wait for.
        if not sys.is_finalizing():
            pool.shutdown(cancel_futures=True)
