"""Running a placed program: a thread for each place of this process, a session that connects them, errors with names.

In one process every place has a device and a thread, and each call has a session of its own: nothing is left over
from a call that failed. Between processes a session stays open from call to call, as connecting takes longer than
many a call; each process runs the place of its rank, in a thread too, so that Ctrl-C reaches Python while compiled
code waits for a message.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import dataclasses
import functools
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from lanewise import _jax
from lanewise.core.errors import InternalError, OptionError, Outcome, PlaceError
from lanewise.core.outcomes import Advice, raise_if_failed
from lanewise.place.moves import Require
from lanewise.place.prepared import ADVICE_OF_RUNS, PlaceProgram, Prepared
from lanewise.place.transports import interface
from lanewise.place.transports.interface import Opening, Session, Transport
from lanewise.place.transports.launched import Launched
from lanewise.place.transports.local import Local
from lanewise.place.transports.tcp import Tcp
from lanewise.place.transports.threads import Held

_LOOK_SECONDS = 0.1
# How long a run waits for others in this process to end.
_PATIENCE_SECONDS = 600.0


@dataclass
class Ready:
    """The code of one place, compiled when it first runs, and the device that it runs on."""

    program: PlaceProgram
    device: Any
    _compiled: Any = None

    def __call__(self, token: Any, leaves: Sequence[Any]) -> dict[int, Any]:
        """Run it: results by their numbers."""
        given = jax.device_put([token, *self._read(leaves)], self.device)
        if self._compiled is None:
            # Not by `lower` and `compile`: that takes no arrays of types below a byte (JAX 0.11).
            self._compiled = jax.jit(self.program.code())
        _, *outs = jax.block_until_ready(self._compiled(*given))
        return dict(zip(self.program.results, outs, strict=True))

    def _read(self, leaves: Sequence[Any]) -> list[Any]:
        return [leaves[i] for i in self.program.reads]


@dataclass
class Running:
    """What runs a prepared program, call after call. `launched` is what this process is; None if it has all places."""

    prepared: Prepared
    in_flight: int
    timeout: float
    launched: Launched | None
    transport: Transport
    ready: list[Ready]
    session: Session | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, leaves: Sequence[Any]) -> dict[int, Any]:
        """Run all places of this process, on inputs of which it has those that it needs: results by their numbers."""
        with self.lock, self._sessions() as sessions:
            runs = [
                self._threads.submit(self._run, ready, session, leaves)
                for ready, session in zip(self.ready, sessions, strict=True)
            ]
            self._wait(runs, sessions)
            return self._results(runs, sessions)

    @functools.cached_property
    def _threads(self) -> concurrent.futures.ThreadPoolExecutor:
        """A thread for each place, kept from call to call: starting one takes longer than many a call."""
        return concurrent.futures.ThreadPoolExecutor(len(self.ready))

    def _run(self, ready: Ready, session: Session, leaves: Sequence[Any]) -> dict[int, Any]:
        try:
            return ready(session.token, leaves)
        except BaseException as error:
            if interface.explain(session) is None:
                # The others wait for messages that will never come.
                self.transport.close(session, f"{type(error).__name__}: {_first_line(error)}")
            raise

    def _wait(self, runs: Sequence[Any], sessions: Sequence[Session]) -> None:
        try:
            while concurrent.futures.wait(runs, _LOOK_SECONDS).not_done:
                pass
        except BaseException:
            for session in sessions:
                session.interrupt()
            concurrent.futures.wait(runs)
            self._forget(sessions)
            raise

    def _results(self, runs: Sequence[Any], sessions: Sequence[Session]) -> dict[int, Any]:
        errors = [(run.exception(), s) for run, s in zip(runs, sessions, strict=True)]
        failed = [(error, session) for error, session in errors if error is not None]
        if not failed:
            return {i: value for run in runs for i, value in run.result().items()}
        self._forget(sessions)
        faults = [(interface.explain(s), s, e) for e, s in failed]
        for fault, _, error in faults:
            if fault is not None and fault.number is not None:
                self._raise_assertion(fault.number, error)
        # An error of the program itself is the reason for the others' errors.
        for fault, session, error in faults:
            if fault is None or (fault.kind == "failed" and fault.place == session.opening.me):
                name = session.opening.names[session.opening.me]
                raise PlaceError(
                    f"{name} failed: {_first_line(error)}", session.opening.me, "failed"
                ) from error
        fault, session, error = faults[0]
        assert fault is not None
        raise interface.error(session, fault) from error

    def _raise_assertion(self, number: int, error: BaseException) -> None:
        for require in self.prepared.actions.checks():
            if require.number == number:
                _raise_check(require, self.prepared.name, error)
        raise InternalError(f"requirement {number} failed, which the program does not have")

    @contextlib.contextmanager
    def _sessions(self) -> Iterator[list[Session]]:
        """An open session for each place of this process."""
        if self.launched is not None:
            # First the others, which wait for this one: then a thread of XLA's, for which runs wait for one another.
            if self.session is None:
                self.session = self.transport.open(self._opening(self.launched.rank))
                _opened.append(weakref.ref(self))
            held = Held(1, _PATIENCE_SECONDS)
            held.join(self.launched.rank)
            try:
                yield [self.session]
            finally:
                held.leave(self.launched.rank)
            return
        sessions: list[Session] = []
        try:
            for ready in self.ready:
                sessions.append(self.transport.open(self._opening(ready.program.place)))
            yield sessions
        finally:
            for session in sessions:
                self.transport.close(session)

    def _opening(self, place: int) -> Opening:
        return dataclasses.replace(self._first_opening, me=place)

    @functools.cached_property
    def _first_opening(self) -> Opening:
        prepared = self.prepared
        size = prepared.placement.size
        return Opening(
            me=0,
            size=size,
            credits=prepared.actions.credits(self.in_flight),
            digest=prepared.digest,
            names=tuple(map(prepared.placement.called, range(size))),
            timeout=self.timeout,
        )

    def _forget(self, sessions: Sequence[Session]) -> None:
        """Close sessions after an error; the next call connects anew."""
        for session in sessions:
            self.transport.close(session)
        self.session = None

    def close(self) -> None:
        """End the session that is kept from call to call."""
        if self.session is not None:
            self.transport.close(self.session)
            self.session = None

    # Sessions that are open when the interpreter ends are closed then.
    __hash__ = object.__hash__  # type: ignore[assignment]


def running(
    prepared: Prepared, in_flight: int, timeout: float, launched: Launched | None, device: Any
) -> Running:
    """What runs a program in this process: all of its places, or the one of its rank, which has this device."""
    if launched is None:
        transport: Transport = Local()
        places = enumerate(prepared.placement.devices)
    else:
        # The meeting's name keeps apart the sessions of several programs. It is the same for programs that should be
        # one and are not: they meet, and find out.
        number = _counts[launched] = _counts.get(launched, 0) + 1
        transport = Tcp(launched.meeting(f"program {number}"))
        places = iter([(launched.rank, device)])
    ready = [Ready(prepared.at(place, transport), device) for place, device in places]
    return Running(prepared, in_flight, timeout, launched, transport, ready)


# How many programs a process has run with others: each runs the same ones, in the same order.
_counts: dict[Launched, int] = {}
# In the order in which sessions were opened, which is the same in all processes: closing one waits for its peers.
_opened: list[weakref.ref[Running]] = []


@atexit.register
def _close_all() -> None:
    for each in _opened:
        found = each()
        if found is not None:
            found.close()


# Places cannot go on without one of them, so nothing gives the other answers.
_ENDS_ALL = "It ends the run at all places."
_ADVICE = Advice(
    {
        Outcome.STEPS_EXHAUSTED: f"{_ENDS_ALL} Raise max_steps of the program inside the part.",
        Outcome.STACK_OVERFLOW: f"{_ENDS_ALL} Raise max_depth of the program inside the part.",
        Outcome.ASSERTION_FAILED: _ENDS_ALL,
        Outcome.TAPE_FULL: f"{_ENDS_ALL} Raise tape.",
    },
    ADVICE_OF_RUNS.of_values,
)


def _raise_check(require: Require, name: str, error: BaseException) -> None:
    """The error of an assertion, as a program that is not placed raises it."""
    outcome, found = require.check.outcome, require.check.site
    sites = () if found is None else (found,)
    code, site = np.asarray(int(outcome)), np.asarray(0 if sites else -1)
    try:
        raise_if_failed(code, site, sites, require.check.name or name, _ADVICE)
    except Exception as raised:
        raise raised from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def check_leaves(leaves: Sequence[Any], name: str) -> None:
    """Refuse what cannot be handed to several places."""
    for leaf in leaves:
        if isinstance(leaf, _jax.Tracer):
            raise OptionError(
                f"lanewise.run of `{name}` is called inside jax.jit, jax.grad or jax.vmap. It starts programs at"
                " several places, which no transformation sees: transform the function inside it, as in"
                " lanewise.run(jax.grad(f), placement)."
            )
        if not (hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)):
            raise OptionError(
                f"lanewise.run of `{name}` takes arrays and numbers; an argument holds {type(leaf).__name__}: {leaf!r}."
            )
