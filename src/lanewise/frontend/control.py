"""The run-time of converted code: `if`, `while`, `for` and the rest, called while JAX traces.

A condition that is not traced runs as plain Python: nothing here is seen in the jaxpr. A traced one is
staged (`branch.py`, `loop.py`). Converted code reaches its run-time as the variable `_lw`, a `Runtime`
that also holds the `Construct` of each of its statements, by number.

Objects may be changed in place while a branch or a loop is staged. Local containers that are pytrees are fine:
each side works on a copy of its own, and the merge puts the two together. What cannot be copied in this way is an
error, at the line that changes it: objects that are not pytrees, objects from outside the function, and containers
known under two names (a copy each would make them two).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util

from lanewise.core.errors import (
    ProgramError,
    ResultUnknown,
    UndefinedVariableError,
    UnsupportedSyntaxError,
)
from lanewise.core.objects import asked
from lanewise.core.parts import On
from lanewise.core.program import check
from lanewise.frontend import values
from lanewise.frontend.branch import Operators, progress, stage_branch, truth
from lanewise.frontend.loop import Counting, LoopSpec, Stageable, aside, stage_loop, try_once
from lanewise.frontend.values import Construct, Undefined, Variables, is_traced

UNROLL_AT_ALL = 4096  # a range longer than this is never unrolled
_ENDLESS = 10_000

_Get = Callable[[], tuple[Any, ...]]
_Set = Callable[[tuple[Any, ...]], None]
_Block = Callable[[], None]
_Test = Callable[[], Any]


class Runtime(Operators):
    """What a converted function and the functions nested in it call."""

    @property
    def matching(self) -> Any:
        """What the patterns of a `match` check."""
        from lanewise.frontend import matching

        return matching

    def manager(self, line: int, manager: Any) -> Any:
        """The manager of a `with`, which is about to be entered."""
        change = self.naming.add if isinstance(manager, On) else self.naming.discard
        change(line)
        return manager

    # -- variables ---------------------------------------------------------------------------

    def undefined(self, name: str) -> Undefined:
        return Undefined(name)

    def deleted(self, k: int, name: str) -> Undefined:
        return Undefined(
            name, f"line {self.constructs[k].line} deletes it", f"Assign `{name}` again"
        )

    def read(self, k: int, value: Any) -> Any:
        """A variable that may be undefined is read."""
        if isinstance(value, Undefined):
            why = value.why or "no assignment comes before"
            fix = value.fix or f"Assign `{value.name}` first"
            raise UndefinedVariableError(
                f"`{value.name}` may be undefined here: {why}. {fix}", self.constructs[k].location
            )
        return value

    def returning(self, k: int, value: Any) -> Any:
        """A value is about to be returned; errors say from where."""
        progress.returned = self.constructs[k].line
        return value

    def result(self, k: int, value: Any) -> Any:
        """A function's result, where it has one `return` or several."""
        if isinstance(value, Undefined):
            raise UndefinedVariableError(
                "no path through this function reaches a `return`", self.constructs[k].location
            )
        return value

    # -- branches ----------------------------------------------------------------------------

    def if_(self, k: int, test: Any, then: _Block, orelse: _Block, get: _Get, set: _Set) -> None:
        test = asked(test)
        if not is_traced(test):
            return then() if test else orelse()
        construct = self.constructs[k]
        self._branch(k, truth(test, construct), then, orelse, Variables(construct, get, set))

    def unless(self, k: int, flag: Any, skip: _Block, rest: _Block, get: _Get, set: _Set) -> None:
        """The statements after a possible exit, skipped where its flag is set."""
        if not is_traced(flag):
            return skip() if flag else rest()
        self._branch(k, flag, skip, rest, Variables(self.constructs[k], get, set))

    def unless_left(
        self, k: int, flag: Any, skip: _Block, rest: _Block, get: _Get, set: _Set
    ) -> None:
        """The statements after what exits for certain, unless a `with` swallowed an exception."""
        # A traced flag was set by every side: `ended` would have refused to go on otherwise.
        self.unless(k, is_traced(flag) or flag, skip, rest, get, set)

    def ended(self, k: int, left: Any, around: tuple[int, ...]) -> None:
        """A `with` whose body always exits is at its end: by an exit, or by swallowing an exception."""
        staged = [construct for construct in around if construct in self.staged]
        if staged and not is_traced(left) and not left:
            construct = self.constructs[staged[-1]]
            raise UnsupportedSyntaxError(
                "an exception was raised while tracing the body of this `with`, and swallowed, so that a body "
                f"that always exits did not; that is inside the {construct.what} of line {construct.line}, whose "
                "condition is only known at run time. Do what may raise before that line, or let it raise",
                self.constructs[k].location,
            )

    def _branch(
        self, k: int, pred: Any, then: _Block, orelse: _Block, variables: Variables
    ) -> None:
        construct = variables.construct
        construct.forbid_staging(self.naming)
        saved = variables.get()
        sides = variables.from_here(then), variables.from_here(orelse)
        self.begin(construct, saved)
        try:
            with self.staging(k):
                results = stage_branch(pred, *sides, construct)
        except BaseException:
            variables.set(saved)
            raise
        finally:
            self.end()
        variables.write(results)

    def assert_(
        self, k: int, test: Any, message: Callable[[], Any] | None, source: str | None
    ) -> None:
        construct = self.constructs[k]
        test = asked(test)
        if not is_traced(test):
            if not test:
                raise AssertionError(*(() if message is None else (message(),)))
            return
        construct.forbid_staging(self.naming)
        text, writes, given = "assertion failed", None, []
        if message is not None:
            from lanewise.frontend.messages import text_of

            text, writes, given = text_of(message, source or "")
        check(truth(test, construct), text, construct.location, writes, given)

    def raising(self, k: int, around: int) -> None:
        """A `raise` is about to happen; under a traced condition it must not."""
        if self.staged and self.staged[-1] == around:
            construct = self.constructs[around]
            raise UnsupportedSyntaxError(
                f"`raise` inside the {construct.what} of line {construct.line}, whose condition is only known at "
                "run time. Write `assert condition, message`: a lane that fails it ends with an outcome",
                self.constructs[k].location,
            )

    # -- changes in place --------------------------------------------------------------------

    @property
    def _uncopied(self) -> list[dict[int, Any]]:
        """Objects that every side of what is being staged would share, by id."""
        if not hasattr(self._local, "uncopied"):
            self._local.uncopied = []
        return self._local.uncopied

    def begin(self, construct: Construct, held: Sequence[Any]) -> None:
        """Before a statement is staged: look at the objects that it changes. `end` comes after."""
        uncopied: dict[int, Any] = {}
        if construct.stored:
            named = dict(zip(construct.names, held, strict=True))
            _refuse_shared(construct, named)
            for name in construct.stored:
                for leaf in values.take_apart(named.get(name)).leaves:
                    if not values.is_array(leaf):
                        uncopied[id(leaf)] = leaf
        self._uncopied.append(uncopied)

    def end(self) -> None:
        self._uncopied.pop()

    def own(self, k: int, name: str, target: Any) -> Any:
        """An object is about to be changed by the function it belongs to."""
        if any(id(target) in shared for shared in self._uncopied):
            around = self.constructs[self.staged[-1]]
            raise UnsupportedSyntaxError(
                f"{values.type_text(target)} in `{name}` is changed in place inside the {around.what} of "
                f"line {around.line}, whose condition is only known at run time; it is not a pytree, so each "
                "side cannot have a copy. Make it a dataclass, a dict or a list, or keep the part in a "
                "local variable",
                self.constructs[k].location,
            )
        return target

    def outside(self, k: int, name: str) -> None:
        """An object from outside of its function is about to be changed."""
        if self.staged:
            around = self.constructs[self.staged[-1]]
            raise UnsupportedSyntaxError(
                f"`{name}` comes from outside this function and is changed in place inside the "
                f"{around.what} of line {around.line}, whose condition is only known at run time. Keep "
                "it in a local variable, and return it",
                self.constructs[k].location,
            )

    # -- loops -------------------------------------------------------------------------------

    def go_on(self, k: int, done: Any, test: _Test) -> Any:
        """A loop's test, once the flag of its early exits has been looked at."""
        if not is_traced(done):
            return False if done else test()
        return self._choose(k, done, lambda: False, lambda: truth(test(), self.constructs[k]))

    def while_(self, k: int, test: _Test, body: _Block, get: _Get, set: _Set) -> None:
        variables = Variables(self.constructs[k], get, set)
        once = variables.construct.once
        trial = not (variables.construct.acts or once)

        def stage(at_least_once: bool) -> None:
            spec = LoopSpec(variables, lambda items: body(), test, at_least_once=at_least_once)
            self._stage(k, spec)

        while True:
            met = progress.provisional
            going = aside(test)
            if is_traced(going):
                return stage(at_least_once=False)
            if not going:
                return
            if trial:
                trial = False
                side, traced_next = try_once(variables, test, body)
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
        spec.construct.forbid_staging(self.naming)
        self.begin(spec.construct, spec.variables.get())
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
        from lanewise.frontend import iterate

        return iterate.call(self.constructs[k], fun, *args, **kwargs)

    def for_(
        self,
        k: int,
        iterable: Any,
        body: Callable[[Any], None],
        get: _Get,
        set: _Set,
        done: _Test | None = None,
    ) -> None:
        from lanewise.frontend import iterate

        variables = Variables(self.constructs[k], get, set)
        steps = iterate.as_stageable(iterable)
        if steps is None:
            return self._unroll(k, iterable, body, variables, done)
        if is_traced(steps.length):
            return self._stage_for(k, steps, body, variables, done)
        if steps.length == 0:
            return
        if isinstance(iterable, range | np.ndarray):
            if not variables.construct.acts and iterate.is_long(iterable, body, variables, done):
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
        short = steps.length <= iterate.UNROLL_MOST
        if variables.construct.acts and steps.python is not None and short:
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
                if self.constructs[k].once:
                    return
                continue
            count += 1
            if count > _ENDLESS:
                raise ProgramError(
                    "this `for` over a Python iterable is unrolled, and its `break` is only known at "
                    f"run time: {_ENDLESS} iterations were written out without an end. Use `while`, "
                    "or `range`",
                    self.constructs[k].location,
                )
            self._branch(k, flag, lambda: None, lambda item=item: body(item), variables)

    def _stage_for(
        self,
        k: int,
        steps: Stageable,
        body: Callable[[Any], None],
        variables: Variables,
        done: _Test | None,
    ) -> None:
        """A scan, or a while loop with an index where it may end early or its length is not known."""
        counting = Counting(variables)
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
                slices = [
                    lax.dynamic_index_in_dim(x, index, keepdims=False, allow_negative_indices=False)
                    for x in steps.xs
                ]
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


def _refuse_shared(construct: Construct, named: dict[str, Any]) -> None:
    """Refuse to stage where a container that is changed is known under two names."""
    owners: dict[int, str] = {}
    for name, value in named.items():
        for container in set(map(id, _containers(value))):
            other = owners.setdefault(container, name)
            if other != name and (name in construct.stored or other in construct.stored):
                raise UnsupportedSyntaxError(
                    f"`{other}` and `{name}` hold the same object, which is changed in place inside the "
                    f"{construct.what} of line {construct.line}, whose condition is only known at run time. "
                    "Change it under one name only, or make a copy first",
                    construct.location,
                )


def _containers(value: Any) -> Iterator[Any]:
    """The parts of a pytree that can be changed in place."""
    if value is None or isinstance(value, Undefined) or values.is_array(value):
        return
    changeable = isinstance(value, list | dict) or (
        dataclasses.is_dataclass(value)
        and not isinstance(value, type)
        and not type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]
    )
    if changeable:
        yield value
    children = tree_util.tree_leaves(value, is_leaf=lambda x: x is not value)
    for child in children:
        if child is not value:
            yield from _containers(child)
