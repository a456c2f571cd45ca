"""The run-time of converted code: `if`, `while`, `for` and the rest, called while JAX traces.

A condition that is not traced runs as plain Python: nothing here is seen in the jaxpr. A traced one is
staged (`branch.py`, `loop.py`). Converted code reaches its run-time as the variable `_lw`, a `Runtime`
that also holds the `Site` of each of its statements, by number.

A `while` whose first test is plain but whose later ones may be traced (`done = False; while not done`)
is looked at before it runs: its first iteration is traced aside; if the next test then is traced, the
loop is staged from its start and the trial forgotten; if not, the trial becomes the first iteration.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.check import check
from lanewise.errors import (
    ProgramError,
    ResultUnknown,
    UndefinedVariableError,
    UnsupportedSyntaxError,
)
from lanewise.frontend import iterate, values
from lanewise.frontend.branch import Side, provisional, stage_branch, trace_side, truth
from lanewise.frontend.loop import LoopSpec, stage_loop
from lanewise.frontend.site import Site, Variables
from lanewise.frontend.values import Undefined, is_traced

UNROLL_MOST = 32  # a range this short is unrolled
UNROLL_EXITS = 4  # so is one this short whose `break` or `return` is only known at run time
UNROLL_AT_ALL = 4096  # one longer than this never is
_ENDLESS = 10_000

_Get = Callable[[], tuple[Any, ...]]
_Set = Callable[[tuple[Any, ...]], None]
_Block = Callable[[], None]

_COMPARE = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Is": operator.is_,
    "IsNot": operator.is_not,
    "In": lambda a, b: a in b,
    "NotIn": lambda a, b: a not in b,
}


class Runtime:
    """What a converted function and the functions nested in it call."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = tuple(sites)
        self._local = threading.local()

    @property
    def staged(self) -> list[int]:
        """The statements being staged now in this thread, innermost last."""
        if not hasattr(self._local, "staged"):
            self._local.staged = []
        return self._local.staged

    # -- variables ---------------------------------------------------------------------------

    def undefined(self, name: str) -> Undefined:
        return Undefined(name)

    def deleted(self, k: int, name: str) -> Undefined:
        return Undefined(name, f"line {self.sites[k].line} deletes it", f"Assign `{name}` again")

    def read(self, k: int, value: Any) -> Any:
        """A variable that may be undefined is read."""
        if isinstance(value, Undefined):
            site = self.sites[k]
            why = value.why or "no assignment comes before"
            fix = value.fix or f"Assign `{value.name}` first"
            raise UndefinedVariableError(
                f"`{value.name}` may be undefined here: {why}. {fix}", site.location
            )
        return value

    # -- branches ----------------------------------------------------------------------------

    def if_(self, k: int, test: Any, then: _Block, orelse: _Block, get: _Get, set: _Set) -> None:
        if not is_traced(test):
            return then() if test else orelse()
        site = self.sites[k]
        self._branch(k, truth(test, site), then, orelse, Variables(site, get, set))

    def unless(
        self, k: int, flag: Any, skip: _Block, rest: _Block, get: _Get, set: _Set
    ) -> None:
        """The statements after a possible exit, skipped where its flag is set."""
        if not is_traced(flag):
            return skip() if flag else rest()
        self._branch(k, flag, skip, rest, Variables(self.sites[k], get, set))

    def _branch(
        self, k: int, pred: Any, then: _Block, orelse: _Block, variables: Variables
    ) -> None:
        site = variables.site
        site.forbid_staging()
        saved = variables.get()
        _forbid_stores(site, saved)
        entry = [values.take_apart(value) for value in saved]

        def side(block: _Block) -> Callable[[], list[Any]]:
            def run() -> list[Any]:
                variables.set(tuple(value.rebuild() for value in entry))
                block()
                return variables.read()

            return run

        self.staged.append(k)
        try:
            results = stage_branch(pred, side(then), side(orelse), site)
        except BaseException:
            variables.set(saved)
            raise
        finally:
            self.staged.pop()
        variables.write(results)

    def choose(self, k: int, test: Any, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
        """A conditional expression."""
        if not is_traced(test):
            return then() if test else orelse()
        return self._choose(k, truth(test, self.sites[k]), then, orelse)

    def _choose(
        self, k: int, pred: Any, then: Callable[[], Any], orelse: Callable[[], Any]
    ) -> Any:
        site = self.sites[k]
        site.forbid_staging()
        self.staged.append(k)
        try:
            (value,) = stage_branch(pred, lambda: (then(),), lambda: (orelse(),), site)
        finally:
            self.staged.pop()
        return value

    # -- conditions --------------------------------------------------------------------------

    def truth(self, k: int, value: Any) -> Any:
        return truth(value, self.sites[k])

    def not_(self, k: int, value: Any) -> Any:
        if not is_traced(value):
            return not value
        return jnp.logical_not(truth(value, self.sites[k]))

    def and_(self, k: int, value: Any, *others: Callable[[], Any]) -> Any:
        """`and`, with the values of all operands but the first still to be computed."""
        if not others:
            return value
        if not is_traced(value):
            return self.and_(k, others[0](), *others[1:]) if value else value
        pred = truth(value, self.sites[k])
        otherwise = False if _jax.aval_of(value).dtype == jnp.bool_ else value
        return self._choose(
            k, pred, lambda: self.and_(k, others[0](), *others[1:]), lambda: otherwise
        )

    def or_(self, k: int, value: Any, *others: Callable[[], Any]) -> Any:
        if not others:
            return value
        if not is_traced(value):
            return value if value else self.or_(k, others[0](), *others[1:])
        pred = truth(value, self.sites[k])
        chosen = True if _jax.aval_of(value).dtype == jnp.bool_ else value
        return self._choose(
            k, pred, lambda: chosen, lambda: self.or_(k, others[0](), *others[1:])
        )

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

    def assert_(self, k: int, test: Any, message: Callable[[], Any] | None) -> None:
        site = self.sites[k]
        if not is_traced(test):
            if not test:
                raise AssertionError(*(() if message is None else (message(),)))
            return
        site.forbid_staging()
        text = "assertion failed" if message is None else str(message())
        check(truth(test, site), text, site.location)

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

    def go_on(self, k: int, done: Any, test: Callable[[], Any]) -> Any:
        """A loop's test, once the flag of its early exits has been looked at."""
        if not is_traced(done):
            return False if done else test()
        return self._choose(k, done, lambda: False, lambda: truth(test(), self.sites[k]))

    def while_(self, k: int, test: Callable[[], Any], body: _Block, get: _Get, set: _Set) -> None:
        variables = Variables(self.sites[k], get, set)
        trial = not variables.site.captured and not variables.site.acts
        while True:
            met = provisional.count
            going = _aside(test)
            if is_traced(going):
                return self._stage_while(k, variables, test, body, at_least_once=False)
            if not going:
                return
            if trial:
                trial = False
                side, traced_next = self._try_once(k, variables, test, body)
                if traced_next:
                    return self._stage_while(k, variables, test, body, at_least_once=True)
                if side is None:
                    body()
                else:
                    variables.write(side.results())
            else:
                body()
            if provisional.count != met:  # half a body was traced: its types are all that is wanted
                return

    def _try_once(
        self, k: int, variables: Variables, test: Callable[[], Any], body: _Block
    ) -> tuple[Side | None, bool]:
        """Trace one iteration aside; tells whether the test after it is traced."""
        saved = variables.get()
        entry = [values.take_apart(value) for value in saved]
        traced_next: list[bool] = []
        met = provisional.count

        def run() -> list[Any]:
            variables.set(tuple(value.rebuild() for value in entry))
            body()
            after = variables.read()
            if provisional.count == met:
                traced_next.append(is_traced(_aside(test)))
            return after

        try:
            side = trace_side(run)
        finally:
            variables.set(saved)
        if any(traced_next):
            return None, True
        new = [leaf for value in side.values for leaf in value.leaves if not values.is_array(leaf)]
        simple = all(isinstance(leaf, str | bytes) or leaf is None for leaf in new)
        return (side if simple else None), False

    def _stage_while(
        self,
        k: int,
        variables: Variables,
        test: Callable[[], Any],
        body: _Block,
        at_least_once: bool,
    ) -> None:
        spec = LoopSpec(variables, lambda items: body(), test, at_least_once=at_least_once)
        self._stage(k, spec)

    def _stage(self, k: int, spec: LoopSpec) -> None:
        spec.site.forbid_staging()
        _forbid_stores(spec.site, spec.variables.get())
        self.staged.append(k)
        try:
            stage_loop(spec)
        finally:
            self.staged.pop()

    def iterable(self, k: int, fun: Any, *args: Any, **kwargs: Any) -> Any:
        return iterate.call(self.sites[k], fun, *args, **kwargs)

    def for_(
        self,
        k: int,
        iterable: Any,
        body: Callable[[Any], None],
        get: _Get,
        set: _Set,
        done: Callable[[], Any] | None = None,
    ) -> None:
        variables = Variables(self.sites[k], get, set)
        steps = iterate.as_stageable(iterable)
        if steps is None:
            return self._unroll(k, iterable, body, variables, done)
        if is_traced(steps.length):
            return self._stage_for(k, steps, body, variables, done)
        if steps.length == 0:
            return
        if isinstance(iterable, range):
            long = steps.length > UNROLL_MOST or (
                steps.length > UNROLL_EXITS and self._exits_when_run(iterable, body, variables, done)
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

    @staticmethod
    def _exits_when_run(
        numbers: range, body: Callable[[Any], None], variables: Variables, done: Callable[[], Any] | None
    ) -> bool:
        """Whether the loop may end early, on a condition that only running it tells."""
        if done is None or variables.site.acts:
            return False
        saved = variables.get()
        found: list[bool] = []

        def first_iteration() -> list[Any]:
            body(numbers[0])
            found.append(is_traced(done()))
            return []

        try:
            _jax.trace(first_iteration, [])
        except Exception:
            return False
        finally:
            variables.set(saved)
        return found[0]

    def _unroll(
        self,
        k: int,
        iterable: Any,
        body: Callable[[Any], None],
        variables: Variables,
        done: Callable[[], Any] | None,
    ) -> None:
        count = 0
        for item in iterable:
            flag = done() if done is not None else False
            if not is_traced(flag):
                if flag:
                    return
                body(item)
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
        done: Callable[[], Any] | None,
    ) -> None:
        looping = done is not None or is_traced(steps.length)
        counting = _Counting(variables) if looping or steps.counts else None

        def run(slices: Sequence[Any]) -> None:
            index = None if counting is None else counting.index
            if looping:
                slices = [jnp.take(x, index, axis=0, mode="clip") for x in steps.xs]
            body(steps.item(index, slices))
            if counting is not None:
                counting.index = index + 1

        if counting is not None:
            variables = counting.variables
        at_least_once = not is_traced(steps.length)
        if not looping:
            spec = LoopSpec(variables, run, None, steps.xs, steps.length, at_least_once)
            return self._stage(k, spec)
        assert counting is not None

        def test() -> Any:
            within = lambda: jnp.less(counting.index, steps.length)  # noqa: E731
            return within() if done is None else self.go_on(k, done(), within)

        self._stage(k, LoopSpec(variables, run, test, at_least_once=at_least_once))


def _aside(test: Callable[[], Any]) -> Any:
    """What a test gives, without leaving its operations in the current trace."""
    seen: list[Any] = []

    def run() -> list[Any]:
        seen.append(test())
        return []

    _jax.trace(run, [])
    return seen[0]


class _Counting:
    """A loop's hidden index, as one more variable in front of the loop's own."""

    def __init__(self, variables: Variables) -> None:
        self.index: Any = 0
        site = variables.site
        names = ("_lw_index", *site.names)

        def assign(new: tuple[Any, ...]) -> None:
            self.index = new[0]
            variables.set(new[1:])

        self.variables = Variables(
            replace(site, names=names, live=site.live + 1),
            lambda: (self.index, *variables.get()),
            assign,
        )


def _forbid_stores(site: Site, held: tuple[Any, ...]) -> None:
    """Objects that are no pytrees cannot be copied for each side, so their parts cannot be assigned."""
    if not site.stored:
        return
    by_name = dict(zip(site.names, held, strict=True))
    for name, line in site.stored:
        value = by_name.get(name)
        if value is None or isinstance(value, Undefined):
            continue
        taken = values.take_apart(value)
        opaque = len(taken.leaves) == 1 and taken.leaves[0] is value
        if opaque and not values.is_array(value) and not isinstance(value, np.ndarray):
            raise UnsupportedSyntaxError(
                f"a part of `{name}` is assigned inside the {site.what} of line {site.line}, whose "
                f"condition is only known at run time, but {values.type_text(value)} is no pytree. "
                "Make it a dataclass, or keep the part in a local variable",
                site.at(line),
            )
