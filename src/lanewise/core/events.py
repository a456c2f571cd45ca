"""What watches the machine: a register in a low layer, so that the machine reports without knowing to what.

A compiled machine that is watched calls back three times: when a run begins, now and then while it goes on, and when
it has ended (`machine/observe.py`). What it says is handed on to the bar of the run and to the recorders that are open
(`lanewise.watch`). Each execution is a run of its own, under a number that the machine carries; so one compiled machine
may run on several devices at once, whose runs share a bar.

Nothing here may fail a run: where a callback goes wrong the first failure is a warning, and that recorder misses
something.

Where lanes run by themselves in compiled loops there is nothing to call back from. There a thread asks the library how
many examples have ended (`RunInfo.ask`).
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise._jax import mlir, primitive, stored
from lanewise.core.compiling import begun
from lanewise.core.errors import Outcome, RecorderWarning

# How often a machine calls, in seconds between calls: for a bar, and for a recorder that wants a clock.
BAR_SECONDS = 0.05
CLOCK_SECONDS = 0.002
# And how much longer than the last the time to the next call may be: the first ticks are no measure of the others.
LONGER = 4
# A run that can be asked about is there at once, if it is there at all, in seconds.
LATE = 5.0
NEVER = np.int32(2**31 - 1)


@dataclass(frozen=True, eq=False)
class RunInfo:
    """What a compiled machine is: reported when a run begins, the same for all its runs.

    `examples`: how many a run has. `devices`: how many of them each have such a run, of a part of one batch.
    `ask(run)`: how many examples of a run have ended, where a thread must ask, or -1 when it is not running. `plan`:
    how the job runs, for reports; nothing here looks at it.
    """

    name: str
    examples: int
    progress: bool
    recorded: bool
    plan: Any
    ask: Callable[[int], int] | None = None
    devices: int = 1


class Recorder(Protocol):
    """Receives every run while it is open. `now` is by `time.perf_counter`."""

    def began(self, run: int, info: RunInfo, now: float) -> None: ...

    def reached(self, run: int, now: float, tick: int, left: int) -> None:
        """At this tick this many examples are left; where there are no ticks, `tick` is -1."""
        ...

    def ended(self, run: int, now: float, arrays: Mapping[str, np.ndarray]) -> None: ...

    def compiled(self, what: str, began: float, ended: float) -> None: ...

    def called(self, site_name: str, began: float, ended: float) -> None:
        """A call from the host, until its answers were there."""
        ...


class ShownBar(Protocol):
    """What `lanewise.watch.progress.Bar` does."""

    def update(self, done: int | None = None, *, total: int | None = None) -> None: ...

    def close(self, finished: bool = True) -> None: ...


@dataclass(eq=False)
class _Run:
    info: RunInfo
    recorders: tuple[Recorder, ...]
    time: float
    tick: int = 0
    done: int = 0
    # Whether a thread asks how far it is.
    asked: bool = False


@dataclass(eq=False)
class _Group:
    """The runs of one machine that go on at the same time, on several devices, and their one bar."""

    bar: ShownBar
    runs: dict[int, _Run] = field(default_factory=dict)
    total: int = 0
    ended: int = 0

    @property
    def done(self) -> int:
        return self.ended + sum(run.done for run in self.runs.values())

    def show(self) -> None:
        self.bar.update(self.done, total=self.total)


_lock = threading.RLock()
_numbers = itertools.count(1)
_runs: dict[int, _Run] = {}
_groups: dict[RunInfo, _Group] = {}
_recorders: list[Recorder] = []
_asking: list[threading.Thread] = []
_new_bar: list[Callable[[int, str], ShownBar]] = []
# The failure of a callback that was warned of, if there was one.
_failures: list[Exception] = []
# Whether what is traced on this thread shall be recorded. JAX's caches must know too: see `recording`. Its context is
# made before anything is compiled, for what was compiled without it is compiled again.
_recorded = contextvars.ContextVar("lanewise_recorded", default=False)
_cache_context: Any = jax.make_user_context(default_value=False)


def show_bars_with(new_bar: Callable[[int, str], ShownBar]) -> None:
    """Say what makes a bar, given a total and a label."""
    _new_bar[:] = [new_bar]


def recorded() -> bool:
    """Whether what is compiled now, on this thread, is to be recorded."""
    return _recorded.get()


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Report everything that runs inside to the recorder.

    A machine that is recorded differs from one that is not. `jax.jit` would not see the difference and would run the
    one it has, so a context that is part of its cache keys marks it: inside, functions are compiled again, once;
    outside, nothing changes.
    """
    _listen()
    with _lock:
        _recorders.append(recorder)
    mark = _recorded.set(True)
    try:
        with _cache_context(True):
            yield
    finally:
        _recorded.reset(mark)
        with _lock:
            _recorders.remove(recorder)


@contextlib.contextmanager
def not_recording() -> Iterator[None]:
    """Recorders do not see what is compiled and run inside."""
    mark = _recorded.set(False)
    try:
        yield
    finally:
        _recorded.reset(mark)


@functools.cache
def _listen() -> None:
    """Have JAX report what it compiles: from the first recorder on, for it offers no way to stop listening."""
    jax.monitoring.register_event_duration_secs_listener(_jax_event)


# -- what a machine calls ----------------------------------------------------------------------------


def begin(info: RunInfo) -> np.int32:
    """A run begins; gives its number, or 0 if nothing watches."""
    number = next(_numbers) % int(NEVER)
    try:
        with _lock:
            return np.int32(number if _begin(number, info) else 0)
    except Exception as error:
        # What has begun in part would never end. Its bar may fail again when it is closed.
        with _lock, contextlib.suppress(Exception):
            _give_up(number)
        _missed(error)
        return np.int32(0)


def _missed(error: Exception) -> None:
    """A callback has failed: say so once, for the next will most likely fail likewise."""
    if not _failures:
        _failures.append(error)
        message = (
            f"a progress bar or recorder failed ({type(error).__name__}: {error}). The run goes on without it; what it"
            " shows is not complete. Later failures are not reported."
        )
        # Under `-W error` it would be raised into compiled code.
        with contextlib.suppress(RecorderWarning):
            warnings.warn(message, RecorderWarning, stacklevel=1)


def _begin(number: int, info: RunInfo) -> bool:
    """Whether something watches the run of this number."""
    now = time.perf_counter()
    begun()
    recorders = tuple(_recorders) if info.recorded else ()
    if not (recorders or (info.progress and _new_bar)):
        return False
    run = _runs[number] = _Run(info, recorders, now, asked=info.ask is not None)
    for recorder in recorders:
        recorder.began(number, info, now)
    if info.progress and _new_bar:
        group = _groups.get(info)
        # More runs than devices: one that failed has left its number behind.
        while group is not None and len(group.runs) >= jax.device_count():
            _give_up(next(iter(group.runs)))
            group = _groups.get(info)
        if group is None:
            total = info.examples * info.devices
            group = _groups[info] = _Group(_new_bar[0](total, info.name))
            group.total = total if info.devices > 1 else 0
        group.runs[number] = run
        group.total += info.examples if info.devices == 1 else 0
        group.show()
    if info.ask is not None:
        _ask_now_and_then()
    return True


def reach(number: Any, tick: Any, left: Any) -> np.int32:
    """A run has come to this tick, with this many examples left; gives the tick at which to call again."""
    try:
        with _lock:
            run = _runs.get(int(number))
            return NEVER if run is None else _reach(run, int(number), int(tick), int(left))
    except Exception as error:
        _missed(error)
        return NEVER


def _reach(run: _Run, number: int, tick: int, left: int) -> np.int32:
    now = time.perf_counter()
    for recorder in run.recorders:
        recorder.reached(number, now, tick, left)
    _show(run, run.info.examples - left)
    if tick < 0:
        return NEVER
    ticks, elapsed = tick - run.tick, now - run.time
    run.tick, run.time = tick, now
    wanted = CLOCK_SECONDS if run.recorders else BAR_SECONDS
    pause = min(ticks * wanted / max(elapsed, 1e-9), LONGER * ticks)
    return np.int32(min(tick + max(pause, 1), NEVER))


def _show(run: _Run, done: int) -> None:
    run.done = done
    group = _groups.get(run.info)
    if group is not None:
        group.show()
        if group.done == group.total:
            del _groups[run.info]
            group.bar.close()


def end(number: Any, arrays: Mapping[str, Any]) -> None:
    """A run has ended; `arrays` is what it recorded."""
    try:
        with _lock:
            run = _runs.pop(int(number), None)
            if run is None:
                return
            now = time.perf_counter()
            group = _groups.get(run.info)
            if group is not None and group.runs.pop(int(number), None):
                group.ended += run.info.examples
                group.show()
                # Devices that have not begun yet will share the bar.
                last = run.info.devices == 1 or group.ended >= group.total
                if last and not group.runs:
                    del _groups[run.info]
                    group.bar.close()
            taken = {name: np.asarray(value) for name, value in arrays.items()}
            for recorder in run.recorders:
                recorder.ended(int(number), now, taken)
    except Exception as error:
        _missed(error)


@contextlib.contextmanager
def on_host(info: RunInfo | None) -> Iterator[None]:
    """A run that the host makes, known only by when it begins and when it has ended; None: nothing watches."""
    number = None if info is None else begin(info)
    yield
    if number is not None:
        end(number, {})


def _give_up(number: int) -> None:
    """A run that will not report again."""
    run = _runs.pop(number, None)
    if run is None:
        return
    group = _groups.get(run.info)
    if group is not None:
        group.runs.pop(number, None)
        if not group.runs:
            del _groups[run.info]
            group.bar.close(finished=False)


@contextlib.contextmanager
def call(name: str) -> Iterator[None]:
    """A call from the host. If it raises, runs that it began will not end on their own."""
    first = next(_numbers)
    began = time.perf_counter()
    try:
        yield
    except BaseException:
        with _lock:
            for number in [number for number in _runs if number > first]:
                _give_up(number)
        raise
    ended = time.perf_counter()
    with _lock:
        for recorder in _recorders if recorded() else ():
            recorder.called(name, began, ended)


def running() -> int:
    """How many watched runs have begun and not ended."""
    return len(_runs)


# -- compilation -------------------------------------------------------------------------------------


@contextlib.contextmanager
def compiling(what: str) -> Iterator[None]:
    """What goes on inside is the compilation of something. It is reported to recorders when it has succeeded."""
    began = time.perf_counter()
    yield
    compiled(what, began)


def compiled(what: str, began: float) -> None:
    """Something has been compiled, since `began` (by `time.perf_counter`)."""
    with _lock:
        for recorder in _recorders:
            recorder.compiled(what, began, time.perf_counter())


_JAX_COMPILATION = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}


def _jax_event(event: str, duration_secs: float, **kwargs: Any) -> None:
    phase = _JAX_COMPILATION.get(event)
    if phase is not None and _recorders:
        what = f"{phase} {kwargs.get('fun_name', '')}".strip()
        compiled(what, time.perf_counter() - duration_secs)


# -- asking ------------------------------------------------------------------------------------------


def _ask_now_and_then() -> None:
    """Have a thread ask, as long as a run is to be asked about."""
    if not _asking:
        thread = threading.Thread(target=_ask, name="lanewise-progress", daemon=True)
        _asking.append(thread)
        thread.start()


def _ask() -> None:
    while True:
        time.sleep(BAR_SECONDS)
        with _lock:
            asked = [(number, run) for number, run in _runs.items() if run.asked]
            if not asked:
                _asking.clear()
                return
            for number, run in asked:
                try:
                    assert run.info.ask is not None
                    done = run.info.ask(number)
                    if done >= 0:
                        _reach(run, number, -1, run.info.examples - done)
                    # It has ended, or was given up by XLA; the call that says which may never come.
                    run.asked = done >= 0 or time.perf_counter() - run.time < LATE
                except Exception as error:
                    _missed(error)


# -- what traced code calls: the host, when a run begins and when it has ended ------------------------

# What is recorded of each example is recorded of this many.
MOST_EXAMPLES = 1 << 16

report_p = primitive("report")


@report_p.def_effectful_abstract_eval
def _report_abstract(*args: Any, fun: Any, results: tuple[Any, ...]) -> Any:
    del args, fun
    return list(results), {_jax.calls_host}


mlir.register_lowering(
    report_p,
    lambda ctx, *args, fun, results: _jax.lower_host_call(ctx, fun, args),
    cacheable=False,
)


def call_host(fun: Callable[..., Sequence[Any]], answers: int, *args: Any) -> list[Any]:
    """Call the host from traced code; it answers with this many int32."""
    results = (_jax.shaped((), jnp.int32.dtype),) * answers
    return report_p.bind(*args, fun=fun, results=results)


def begin_run(info: RunInfo, operands: Sequence[Any]) -> Any:
    """Report that a run begins, when its operands are there; gives its number."""
    (number,) = call_host(lambda *_: [begin(info)], 1, *map(_first_word, operands))
    return number


def end_run(number: Any, **arrays: Any) -> None:
    """Report that a run has ended, when these arrays are there, and what they hold."""
    names = tuple(arrays)

    def report(number: Any, *values: Any) -> list[Any]:
        # XLA's own memory, which it takes back.
        end(number, {name: np.array(x) for name, x in zip(names, values, strict=True)})
        return []

    call_host(report, 0, number, *arrays.values())


def outcome_counts(code: Any) -> Any:
    """How many examples ended in each way."""
    return jnp.zeros((len(Outcome),), jnp.int32).at[code.reshape(-1)].add(1, mode="drop")


class Whole:
    """A run that is reported as a whole: when it begins and when it ends."""

    def __init__(self, info: RunInfo, operands: Sequence[Any]) -> None:
        self.info = info
        self.number = begin_run(info, operands)

    def ended(self, answer: Any, code: Any = None, steps: Any = None, deepest: Any = None) -> None:
        """Report the end, when `answer` is there; for each example its steps and the most frames it had."""
        if not self.info.recorded or code is None:
            end_run(self.number, end=_first_word(answer))
            return
        known = {"outcomes": outcome_counts(code)}
        if steps is not None:
            known |= {"steps": steps[:MOST_EXAMPLES], "deepest": deepest[:MOST_EXAMPLES]}
        end_run(self.number, **known)


def _first_word(value: Any) -> Any:
    """Something small that is there when a value is."""
    if not isinstance(value, jax.Array):
        return jnp.int32(0)
    return jnp.ravel(stored(value, _jax.aval_of(value)))[:1]
