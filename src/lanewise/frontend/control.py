"""The run-time of converted code: `if`, `while`, `for` and the rest, called while JAX traces.

A condition that is not traced runs as plain Python: nothing here is seen in the jaxpr. A traced one is
staged (`branch.py`, `loop.py`). Converted code reaches its run-time as the variable `_lw`, a `Runtime`
that also holds the `Site` of each of its statements, by number.

A `while` whose first test is plain but whose later ones may be traced (`done = False; while not done`)
is looked at before it runs: its first iteration is traced aside; if the next test then is traced, the
loop is staged from its start and the trial forgotten; if not, the trial becomes the first iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lanewise import _jax
from lanewise.core.check import check
from lanewise.core.errors import (
    ProgramError,
    ResultUnknown,
    UndefinedVariableError,
    UnsupportedSyntaxError,
)
from lanewise.frontend import iterate, values
from lanewise.frontend.alike import holds_large_product, same_code
from lanewise.frontend.branch import Side, asked, progress, stage_branch, trace_side, truth
from lanewise.frontend.loop import LoopSpec, stage_loop
from lanewise.frontend.matching import Matching
from lanewise.frontend.messages import text_of
from lanewise.frontend.mutation import Mutation
from lanewise.frontend.site import Variables
from lanewise.frontend.values import Undefined, is_traced

UNROLL_MOST = 32  # a range this short is unrolled
UNROLL_EXITS = 4  # so is one this short whose `break` or `return` is only known at run time
UNROLL_AT_ALL = 4096  # one longer than this never is
_ENDLESS = 10_000

_Get = Callable[[], tuple[Any, ...]]
_Set = Callable[[tuple[Any, ...]], None]
_Block = Callable[[], None]
_Test = Callable[[], Any]


class Runtime(Matching, Mutation):
    """What a converted function and the functions nested in it call."""

    # -- variables ---------------------------------------------------------------------------

    def undefined(self, name: str) -> Undefined:
        return Undefined(name)

    def deleted(self, k: int, name: str) -> Undefined:
        return Undefined(name, f"line {self.sites[k].line} deletes it", f"Assign `{name}` again")

    def read(self, k: int, value: Any) -> Any:
        """A variable that may be undefined is read."""
        if isinstance(value, Undefined):
            why = value.why or "no assignment comes before"
            fix = value.fix or f"Assign `{value.name}` first"
            raise UndefinedVariableError(
                f"`{value.name}` may be undefined here: {why}. {fix}", self.sites[k].location
            )
        return value

    def returning(self, k: int, value: Any) -> Any:
        """A value is about to be returned; errors tell from where."""
        progress.returned = self.sites[k].line
        return value

    def result(self, k: int, value: Any) -> Any:
        """A function's result, where it has one `return` or several."""
        if isinstance(value, Undefined):
            raise UndefinedVariableError(
                "no path through this function comes to a `return`", self.sites[k].location
            )
        return value

    # -- branches ----------------------------------------------------------------------------

    def if_(self, k: int, test: Any, then: _Block, orelse: _Block, get: _Get, set: _Set) -> None:
        test = asked(test)
        if not is_traced(test):
            return then() if test else orelse()
        site = self.sites[k]
        self._branch(k, truth(test, site), then, orelse, Variables(site, get, set))

    def unless(self, k: int, flag: Any, skip: _Block, rest: _Block, get: _Get, set: _Set) -> None:
        """The statements after a possible exit, skipped where its flag is set."""
        if not is_traced(flag):
            return skip() if flag else rest()
        self._branch(k, flag, skip, rest, Variables(self.sites[k], get, set))

    def unless_left(
        self, k: int, flag: Any, skip: _Block, rest: _Block, get: _Get, set: _Set
    ) -> None:
        """The statements after what exits for certain, unless a `with` swallowed an exception."""
        # A traced flag was set by every side: `ended` would have refused to go on otherwise.
        self.unless(k, is_traced(flag) or flag, skip, rest, get, set)

    def ended(self, k: int, left: Any, around: tuple[int, ...]) -> None:
        """A `with` whose body always exits is at its end: by an exit, or by swallowing an exception."""
        staged = [site for site in around if site in self.staged]
        if staged and not is_traced(left) and not left:
            site = self.sites[staged[-1]]
            raise UnsupportedSyntaxError(
                "an exception was raised while tracing the body of this `with`, and swallowed, so that a body "
                f"that always exits did not; that is inside the {site.what} of line {site.line}, whose "
                "condition is only known at run time. Do what may raise before that line, or let it raise",
                self.sites[k].location,
            )

    def _branch(
        self, k: int, pred: Any, then: _Block, orelse: _Block, variables: Variables
    ) -> None:
        site = variables.site
        site.forbid_staging()
        saved = variables.get()
        entry = [values.take_apart(value) for value in saved]

        def side(block: _Block) -> Callable[[], list[Any]]:
            def run() -> list[Any]:
                variables.set(tuple(value.rebuild() for value in entry))
                block()
                return variables.read()

            return run

        self.begin(site, saved)
        try:
            with self.staging(k):
                results = stage_branch(pred, side(then), side(orelse), site)
        except BaseException:
            variables.set(saved)
            raise
        finally:
            self.end()
        variables.write(results)

    def assert_(
        self, k: int, test: Any, message: Callable[[], Any] | None, source: str | None
    ) -> None:
        site = self.sites[k]
        test = asked(test)
        if not is_traced(test):
            if not test:
                raise AssertionError(*(() if message is None else (message(),)))
            return
        site.forbid_staging()
        text, writes, given = "assertion failed", None, []
        if message is not None:
            text, writes, given = text_of(message, source or "")
        check(truth(test, site), text, site.location, writes, given)

    def raising(self, k: int, around: int) -> None:
        """A `raise` is about to happen; under a traced condition it must not."""
        if self.staged and self.staged[-1] == around:
            site = self.sites[around]
            raise UnsupportedSyntaxError(
                f"`raise` inside the {site.what} of line {site.line}, whose condition is only known at "
                "run time. Write `assert condition, message`: a lane that fails it ends with an outcome",
                self.sites[k].location,
            )

    # -- loops -------------------------------------------------------------------------------

    def go_on(self, k: int, done: Any, test: _Test) -> Any:
        """A loop's test, once the flag of its early exits has been looked at."""
        if not is_traced(done):
            return False if done else test()
        return self._choose(k, done, lambda: False, lambda: truth(test(), self.sites[k]))

    def while_(self, k: int, test: _Test, body: _Block, get: _Get, set: _Set) -> None:
        variables = Variables(self.sites[k], get, set)
        once = variables.site.once
        trial = not (variables.site.acts or once)

        def stage(at_least_once: bool) -> None:
            spec = LoopSpec(variables, lambda items: body(), test, at_least_once=at_least_once)
            self._stage(k, spec)

        while True:
            met = progress.provisional
            going = _aside(test)
            if is_traced(going):
                return stage(at_least_once=False)
            if not going:
                return
            if trial:
                trial = False
                side, traced_next = _try_once(variables, test, body)
                if traced_next:
                    return stage(at_least_once=True)
                if side is None:
                    body()
                else:
                    variables.write(side.results())
            else:
                body()
            if once or progress.provisional != met:  # half a body traced: its types are there
                return

    def _stage(self, k: int, spec: LoopSpec) -> None:
        spec.site.forbid_staging()
        self.begin(spec.site, spec.variables.get())
        try:
            with self.staging(k):
                stage_loop(spec)
        except ResultUnknown:
            # A loop that may run zero times has a path that does not recurse: what it began with.
            if spec.at_least_once:
                raise
            progress.provisional += 1
        finally:
            self.end()

    def iterable(self, k: int, fun: Any, *args: Any, **kwargs: Any) -> Any:
        return iterate.call(self.sites[k], fun, *args, **kwargs)

    def for_(
        self,
        k: int,
        iterable: Any,
        body: Callable[[Any], None],
        get: _Get,
        set: _Set,
        done: _Test | None = None,
    ) -> None:
        variables = Variables(self.sites[k], get, set)
        steps = iterate.as_stageable(iterable)
        if steps is None:
            return self._unroll(k, iterable, body, variables, done)
        if is_traced(steps.length):
            return self._stage_for(k, steps, body, variables, done)
        if steps.length == 0:
            return
        if isinstance(iterable, range | np.ndarray):
            long = steps.length > UNROLL_MOST or (
                steps.length > UNROLL_EXITS
                and (
                    _exits_when_run(iterable, body, variables, done)
                    or _is_worth_a_loop(iterable, body, variables, done)
                )
            )
            if long and not variables.site.acts:
                saved = get()
                try:
                    return self._stage_for(k, steps, body, variables, done)
                except ResultUnknown:
                    raise
                except Exception:
                    if steps.length > UNROLL_AT_ALL:
                        raise
                    set(saved)
            return self._unroll(k, iterable, body, variables, done)
        if variables.site.acts and steps.python is not None and steps.length <= UNROLL_MOST:
            return self._unroll(k, steps.python(), body, variables, done)
        self._stage_for(k, steps, body, variables, done)

    def _unroll(
        self,
        k: int,
        iterable: Any,
        body: Callable[[Any], None],
        variables: Variables,
        done: _Test | None,
    ) -> None:
        count = 0
        for item in iterable:
            flag = done() if done is not None else False
            if not is_traced(flag):
                if flag:
                    return
                body(item)
                if self.sites[k].once:
                    return
                continue
            count += 1
            if count > _ENDLESS:
                raise ProgramError(
                    "this `for` over a Python iterable is unrolled, and its `break` is only known at "
                    f"run time: {_ENDLESS} iterations were written out without an end. Use `while`, "
                    "or `range`",
                    self.sites[k].location,
                )
            self._branch(k, flag, lambda: None, lambda item=item: body(item), variables)

    def _stage_for(
        self,
        k: int,
        steps: iterate.Stageable,
        body: Callable[[Any], None],
        variables: Variables,
        done: _Test | None,
    ) -> None:
        """A scan, or a while loop with an index where it may end early or who knows when."""
        counting = _Counting(variables)
        scanned = done is None and not is_traced(steps.length)
        at_least_once = not is_traced(steps.length)
        if scanned and not steps.counts:

            def step(slices: Sequence[Any]) -> None:
                body(steps.item(None, slices))

            spec = LoopSpec(variables, step, None, steps.xs, steps.length, at_least_once)
            return self._stage(k, spec)

        def run(slices: Sequence[Any]) -> None:
            index = counting.index
            if not scanned:
                slices = [_at(x, index) for x in steps.xs]
            body(steps.item(index, slices))
            counting.index = index + 1

        if scanned:
            counted = counting.variables
            spec = LoopSpec(counted, run, None, steps.xs, steps.length, at_least_once)
            return self._stage(k, spec)

        def within() -> Any:
            return jnp.less(counting.index, steps.length)

        def test() -> Any:
            return within() if done is None else self.go_on(k, done(), within)

        self._stage(k, LoopSpec(counting.variables, run, test, at_least_once=at_least_once))


class _Counting:
    """A loop's hidden index, as one more variable in front of the loop's own."""

    def __init__(self, variables: Variables) -> None:
        self.index: Any = 0
        site = variables.site

        def assign(new: tuple[Any, ...]) -> None:
            self.index = new[0]
            variables.set(new[1:])

        self.variables = Variables(
            replace(site, names=("_lw_index", *site.names), live=site.live + 1),
            lambda: (self.index, *variables.get()),
            assign,
        )


def _at(array: Any, index: Any) -> Any:
    return lax.dynamic_index_in_dim(array, index, 0, keepdims=False, allow_negative_indices=False)


def _aside(test: _Test) -> Any:
    """What a test gives, without leaving its operations in the current trace."""
    seen: list[Any] = []

    def run() -> list[Any]:
        seen.append(test())
        return []

    _jax.trace(run, [])
    return asked(seen[0])


def _exits_when_run(
    items: Any, body: Callable[[Any], None], variables: Variables, done: _Test | None
) -> bool:
    """Whether a loop may end early, on a condition that only running it tells."""
    if done is None or variables.site.acts:
        return False
    try:
        return _try_once(variables, done, lambda: body(items[0]))[1]
    except Exception:  # what it is will be told by the iteration itself
        return False


def _is_worth_a_loop(
    items: Any, body: Callable[[Any], None], variables: Variables, done: _Test | None
) -> bool:
    """Whether a short loop's turns hold large products, and are alike (see `alike.py`)."""
    if done is not None or variables.site.acts:
        return False

    def turn(place: int) -> Any:
        def run() -> list[Any]:
            variables.set(tuple(value.rebuild() for value in entry))
            body(items[place])
            return variables.read()

        saved = variables.get()
        entry = [values.take_apart(value) for value in saved]
        try:
            return trace_side(run).traced.jaxpr
        finally:
            variables.set(saved)

    met, returned = progress.provisional, progress.returned
    try:
        first = turn(0)
        alike = holds_large_product(first) and all(same_code(first, turn(i)) for i in (1, -1))
    except Exception:  # what it is will be told by the iteration itself
        return False
    finally:
        progress.returned = returned
    return alike and progress.provisional == met


def _try_once(variables: Variables, test: _Test, body: _Block) -> tuple[Side | None, bool]:
    """Trace one iteration aside: what it did (None: do it again), and whether the next test is traced."""
    saved = variables.get()
    entry = [values.take_apart(value) for value in saved]
    traced_next: list[bool] = []
    met = progress.provisional

    def run() -> list[Any]:
        variables.set(tuple(value.rebuild() for value in entry))
        body()
        after = variables.read()
        if progress.provisional == met:
            traced_next.append(is_traced(_aside(test)))
        return after

    try:
        side = trace_side(run)
    finally:
        variables.set(saved)
    if any(traced_next):
        return None, True
    fixed = [leaf for value in side.values for leaf in value.leaves if not values.is_array(leaf)]
    # A function or an object of the user's may hold what was traced aside: then it is made anew.
    simple = all(isinstance(leaf, str | bytes) for leaf in fixed)
    return (side if simple else None), False
