"""`lanewise.stream`: a program for each of any number of examples, answers as they finish.

Continuous batching for anything. Under `ticks` a machine of a fixed number of lanes runs in segments (see
`feed/segments.py`); between them the host hands out answers and fills the lanes that have ended. Lanes of `native` are
fed one by one while they run (`feed/served.py`). What runs each lane by itself otherwise gets batches
(`feed/batches.py`). While the device runs, the host converts the next examples, and the caller works on the last
answers.

Memory is bounded: at most three times as many examples as lanes are held, eight times as many where there are batches;
and with `ordered=True` answers that wait for an earlier one, until with them `MOST_HELD` times as many are held, when
no example is taken before the earlier one is done. Over a cluster (`on_cluster.py`) it is chunks that are held: see
`place/cluster/chunked.py`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from lanewise import _jax
from lanewise.api.fed_by import fed_by
from lanewise.api.on_cluster import Cluster, OnCluster
from lanewise.core.errors import InternalError, LaneError, OptionError, Outcome, TransformError
from lanewise.core.objects import is_taken
from lanewise.core.options import flag
from lanewise.core.outcomes import Failure, Outcomes
from lanewise.feed.fed import Ended, Example, Fed, kept_row
from lanewise.tracing.decorator import ProgramFunction, lift
from lanewise.tracing.signature import CallStatics
from lanewise.tracing.staging import Staged
from lanewise.watch.progress import Bar

# A source that takes longer than this, in seconds, is left alone once the device is idle.
SLOW_SECONDS = 0.1
MOST_HELD = 8


class NotYet:
    """What a source of examples yields when it has none at the moment: see `stream`."""

    def __repr__(self) -> str:
        return "lanewise.NOT_YET"


NOT_YET = NotYet()


def stream(
    fun: Callable[..., Any],
    examples: Iterable[Any],
    *,
    lanes: int = 1024,
    ordered: bool = False,
    throw: bool = False,
    progress: bool = False,
    cluster: str | Cluster | None = None,
    resume: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Generator[tuple[int, Any], None, None]:
    """Run a program for every example of an iterable; yields `(index, value)` as they finish.

    `examples` may be of any length, or endless; it is read as lanes come free, on the caller's own thread. Each item is
    the argument of `fun`, or a tuple of them if it takes several (a lone argument that is itself a tuple is given as a
    tuple of one). All examples have the same structure, shapes and types as the first. What all of them share is
    closed over, and is then held once: `lw.stream(lambda x: f(x, weights), examples)`. Answers are NumPy arrays.

    A source that waits for its next example holds up the examples that run. One that serves requests as they come
    yields `lw.NOT_YET` instead: the stream goes on with what it has, and asks again. Where nothing runs it asks at
    once, so such a source should sleep for a moment if it is asked twice in vain.

    * `lanes`: how many examples are in flight at once. An example starts when a lane is free, and its answer comes when
      it has ended. The carrier `kernel`, and `native` for recursions and for one loop of scalars, get batches of up to
      four times as many instead, and answer when a batch has ended.
    * `ordered`: yield in the order of the examples.
    * `throw`: False (the default) yields `(index, Failure)` for an example that fails, and goes on; True raises.
    * `progress`: show on stderr how many are done.
    * `cluster`: "auto", the address of a Ray cluster, or a `lanewise.Cluster`. Chunks of examples go to its workers;
      `lanes` is how many examples a worker has in flight. A worker that dies is replaced, and its chunk is run again.
      If a chunk fails three times, each of its examples yields a `Failure` with the outcome `NOT_RUN`, and the rest
      goes on. Answers have the same bits on any number of workers, whatever happened to them.
    * `resume`: with `cluster`, a directory in which finished chunks are kept. The same call after a driver was killed
      takes their answers from there, and runs the rest.
    * other options are those of `lanewise.vmap`, but for `stats`.

    On `KeyboardInterrupt` no more examples are taken; what has finished so far is yielded (with `ordered=True` in
    order, with gaps where one has not finished), then the interrupt is raised again. If the iterable itself raises, or
    an example does not fit, all examples taken before it are finished and yielded first.

    >>> import lanewise as lw
    >>> @lw.program
    ... def collatz(n):
    ...     steps = 0
    ...     while n != 1:
    ...         n = n // 2 if n % 2 == 0 else 3 * n + 1
    ...         steps += 1
    ...     return steps
    >>> for index, steps in lw.stream(collatz, range(1, 8), lanes=4, ordered=True):
    ...     print(index, steps, end="; ")
    0 0; 1 1; 2 7; 3 2; 4 5; 5 8; 6 16;
    >>> dict(lw.stream(collatz, [27, 1], lanes=2, max_steps=50))[0].outcome.phrase
    'steps exhausted'
    """
    if not callable(fun):
        raise OptionError(
            f"lanewise.stream takes a function or a program; got {type(fun).__name__}: {fun!r}"
        )
    program = fun if isinstance(fun, ProgramFunction) else lift(fun)
    ordered, progress = flag("ordered", ordered), flag("progress", progress)
    progress = progress or program.options.progress
    program = program.with_options(**options, lanes=lanes, throw=throw, progress=False)
    if program.options.lanes is None:
        raise OptionError("lanes=None is no number of lanes; a stream runs with a fixed number.")
    if program.options.stats:
        raise OptionError("stats=True is for lanewise.vmap; a stream gives no statistics.")
    if cluster is None and resume is not None:
        raise OptionError(
            'resume= keeps what a cluster has finished: give cluster= as well, such as "auto".'
        )
    on_cluster = None if cluster is None else OnCluster(cluster, resume)
    try:
        source = iter(examples)
    except TypeError:
        raise OptionError(
            f"examples is of type {type(examples).__name__} and cannot be iterated over;"
            " give a list, a generator or another iterable of arguments."
        ) from None
    source = map(_example, source)
    if _jax.jit_disabled():
        if on_cluster is not None:
            raise OptionError(
                "cluster= runs compiled programs; leave it out under jax.disable_jit()."
            )
        return _plainly(program.with_options(throw=True), source)
    total = len(examples) if hasattr(examples, "__len__") else None  # type: ignore[arg-type]
    shown = Bar(total, program.__name__) if progress else None
    return Streaming(program, source, ordered, shown, total=total, on_cluster=on_cluster).answers()


def _example(example: Any) -> Any:
    if any(map(is_taken, example if type(example) is tuple else (example,))):
        raise OptionError(
            "examples are records, of which each has arrays of its own size. Pack them, and give their numbers:"
            " `lanewise.stream(lambda i: f(forest[i]), range(len(forest)))`."
        )
    return example


def _plainly(
    program: ProgramFunction, source: Iterator[Any]
) -> Generator[tuple[int, Any], None, None]:
    """Under `jax.disable_jit()`: plain Python, an example after the other."""
    for index, example in enumerate(e for e in source if e is not NOT_YET):
        args = example if type(example) is tuple else (example,)
        yield index, program(*args)


class _Kept(NamedTuple):
    """The type of an array of an example, and the type it is kept in."""

    aval: Any
    is_key: bool
    row: Any


@dataclass(frozen=True, eq=False)
class _First:
    """What the first example decides for all: the traced program, what runs it, and how arrays are kept."""

    staged: Staged
    statics: CallStatics
    fed: Fed
    arguments: list[_Kept]
    # Which arrays of an answer are typed keys.
    keys: list[bool]


class Streaming:
    """One stream under way.

    `total`: how many examples there will be, if that is known. `on_cluster`: where it runs, if not here. `shared`: the
    first arguments, the same for all examples; only a cluster takes them.
    """

    def __init__(
        self,
        program: ProgramFunction,
        source: Iterator[Any],
        ordered: bool,
        progress: Bar | None,
        *,
        total: int | None = None,
        on_cluster: OnCluster | None = None,
        shared: tuple[Any, ...] = (),
    ) -> None:
        self.total = total
        self.on_cluster = on_cluster
        self.shared = shared
        self.num_shared = len(jax.tree.leaves(shared))
        self.program = program
        self.lanes: int = program.options.lanes or 1
        self.source = source
        self.ordered = ordered
        self.progress = progress
        self.first: _First | None = None
        self.error: Exception | None = None
        self.exhausted = False
        self.waiting: deque[Example] = deque()
        self.taken = self.done = self.failed = 0
        # What has finished and is not handed over yet, by index, and the next index to hand over in order.
        self.finished: dict[int, Any] = {}
        self.next_in_order = 0

    def answers(self) -> Generator[tuple[int, Any], None, None]:
        with self.progress or contextlib.nullcontext():
            try:
                while self.first is None and not self.exhausted:
                    self._pull(device_works=lambda: False)
                if self.first is not None:
                    yield from self._turns(self.first)
            except KeyboardInterrupt:
                # An interrupt may have come while the state was being handed to the device, and have lost it.
                with contextlib.suppress(Exception):
                    if self.first is not None:
                        self._keep(self.first, self.first.fed.so_far())
                yield from self._hand_over(everything=True)
                raise
            finally:
                # A state that an interrupt has lost cannot be reported.
                with contextlib.suppress(Exception):
                    if self.first is not None:
                        self.first.fed.close()
                if self.on_cluster is not None:
                    self.on_cluster.stream_ended()
            if self.error is not None:
                raise self.error

    def _turns(self, first: _First) -> Iterator[tuple[int, Any]]:
        """Run what waits, hand answers over and take examples meanwhile, and again."""
        fed = first.fed
        while True:
            if fed.start(self.waiting):
                yield from self._hand_over()
                self._pull(device_works=lambda: not fed.ready())
                self._keep(first, fed.ended())
                continue
            yield from self._hand_over()
            self._pull(device_works=lambda: False)
            if self.exhausted and not self.waiting:
                return

    # -- examples ----------------------------------------------------------------------------------

    def _pull(self, device_works: Callable[[], bool]) -> None:
        """Take as many examples as are wanted; a slow source is left alone once the device is idle."""
        began = time.perf_counter()
        while not self.exhausted and self._wants_more():
            slow = time.perf_counter() - began > SLOW_SECONDS
            if slow and self.waiting and not device_works():
                return
            try:
                example = next(self.source)
                if example is NOT_YET:
                    self._expect(True)
                    return
                rows = self._rows(example)
                self.waiting.append(Example(self.taken, rows))
                self.taken += 1
            except StopIteration:
                self.exhausted = True
                self._expect(False)
            except Exception as error:
                self.error, self.exhausted = error, True
                self._expect(False)

    def _expect(self, more: bool) -> None:
        if self.first is not None:
            self.first.fed.expects_more = more

    def _wants_more(self) -> bool:
        if self.first is None:
            return True
        fed = self.first.fed
        if self.ordered and self.taken - self.next_in_order >= MOST_HELD * fed.in_flight:
            return False
        return len(self.waiting) < fed.wanted

    def _rows(self, example: Any) -> list[np.ndarray]:
        """An example's arrays, as they are kept; the first decides what the others must be."""
        args = example if type(example) is tuple else (example,)
        leaves, statics = self.program.split(*self.shared, *args)
        leaves = leaves[self.num_shared :]
        _refuse_traced(leaves, f"example {self.taken} holds")
        if self.first is None:
            self.first = self._begun(args, statics)
        if statics != self.first.statics:
            raise OptionError(
                f"example {self.taken} has another structure than example 0: {_shown(statics)}, not"
                f" {_shown(self.first.statics)}. All examples of a stream must be alike."
            )
        return [
            _row(leaf, kept, self.taken, place)
            for place, (leaf, kept) in enumerate(zip(leaves, self.first.arguments, strict=True))
        ]

    @_jax.our_transfers()
    def _begun(self, args: tuple[Any, ...], statics: CallStatics) -> _First:
        staged, _ = self.program.stage(*self.shared, *args)
        _refuse_traced(staged.captures, f"`{self.program.__name__}` closes over")
        fed: Fed
        if self.on_cluster is None:
            fed = fed_by(staged.program, staged.captures, self.lanes, self.program.options)
        else:
            fed = self.on_cluster.fed(self.program, staged, self.shared, args, self.total)
        arguments = [_Kept(aval, _jax.is_key(aval), kept_row(aval)) for aval in fed.avals]
        return _First(
            staged, statics, fed, arguments, [_jax.is_key(aval) for aval in staged.result.avals]
        )

    # -- answers -----------------------------------------------------------------------------------

    def _keep(self, first: _First, ended: Ended) -> None:
        """Keep the answers of what has ended until they are handed over."""
        if len(ended.index) == 0:
            return
        staged = first.staged
        result, finished = staged.result, {}
        for place, (index, code) in enumerate(zip(ended.index, ended.code, strict=True)):
            if code == Outcome.DONE:
                leaves = [
                    _jax.wrap_key(jnp.asarray(column[place]), aval) if is_key else column[place]
                    for column, aval, is_key in zip(
                        ended.columns, result.avals, first.keys, strict=True
                    )
                ]
                value = jax.tree.unflatten(result.tree, result.static.join(leaves))
            else:
                outcome = Outcome(int(code))
                if outcome is Outcome.LOST:
                    raise InternalError(f"{self.program.__name__}: lost in example {index}")
                known = outcome is Outcome.ASSERTION_FAILED
                site = staged.program.sites[ended.site[place]] if known else None
                value = Failure(outcome, site, ended.why.get(int(index), ""))
                self.failed += 1
            finished[int(index)] = value
        self.finished |= finished
        self.done += len(finished)
        if self.progress is not None:
            self.progress.update(self.done, failed=self.failed)

    def _hand_over(self, everything: bool = False) -> Iterator[tuple[int, Any]]:
        """Yield what has finished; in order only what follows on what was yielded before, but for `everything`."""
        for index in sorted(self.finished):
            if self.ordered and not everything and index != self.next_in_order:
                return
            self.next_in_order = index + 1
            value = self.finished.pop(index)
            if isinstance(value, Failure) and self.program.options.throw:
                raise LaneError(
                    f"{self.program.__name__}: {value} in example {index}."
                    " Pass throw=False for the answers of the others.",
                    Outcomes(np.int32(value.outcome), np.int32(-1), ()),
                )
            yield index, value


def _refuse_traced(values: Sequence[Any], holder: str) -> None:
    """A stream runs now: what is traced has no value yet, and a derivative would end at the host."""
    if any(isinstance(value, Tracer) for value in values):
        raise TransformError(
            f"lanewise.stream runs on the host, and {holder} a traced value: inside jit there is no value yet, and no"
            " gradient goes through a stream. Use lanewise.vmap(fun, lanes=...) on the stacked examples, which works"
            " inside jit and under jax.grad."
        )


def _row(leaf: Any, kept: _Kept, number: int, place: int) -> np.ndarray:
    """One leaf of an example as an array on the host, if it is what the first example has there."""
    aval = kept.aval
    if isinstance(leaf, jax.Array) and _jax.is_key(_jax.aval_of(leaf)):
        found, value = leaf.dtype, np.asarray(jax.random.key_data(leaf))
    else:
        value = np.asarray(leaf)
        found = jax.dtypes.canonicalize_dtype(value.dtype)
        # A Python number takes the type of the first example's, where that can hold it.
        if isinstance(leaf, bool | int | float) and np.can_cast(found, aval.dtype, "same_kind"):
            found = aval.dtype
    if np.shape(leaf) != aval.shape or found != aval.dtype:
        raise OptionError(
            f"example {number}, array {place}: it has shape {np.shape(leaf)} and type {found}, and that of example 0"
            f" has shape {tuple(aval.shape)} and type {aval.dtype}. All examples of a stream must be alike: pad or"
            " convert them."
        )
    return value.astype(kept.row.dtype, copy=False)


def _shown(statics: CallStatics) -> str:
    args, _ = statics.join(["*"] * len(statics.leaves.leaves))
    return str(args[0] if len(args) == 1 else args)
