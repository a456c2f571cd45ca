"""Calls that say what their functions read: before a recursion is differentiated.

What functions close over is no argument of their calls, yet its adjoint is a sum over all calls. Lifted, a call takes
what its function closes over and is active as its first operands, like any code that reads it. The sum of its adjoint
so far then goes into the call's reverse, which gives it on with its own part: a read by index adds to one element of
it, in whichever frame. The same serves for an array that a function takes and every call hands on as it is.

Such an array is often one that the program was called with, and so the same in all frames. Then no frame saves it:
the caller of the reverse functions has it, and hands it on as their forward functions did.

Only the rules see lifted calls. The functions that run find what they close over where all frames share it; the sums
alone are handed from call to call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lanewise import _jax
from lanewise.core.program import Function, Program, call_p
from lanewise.diff.activity import Active
from lanewise.diff.calls import calls, rebind


@dataclass(frozen=True, eq=False)
class Lifted:
    """A function whose calls are lifted.

    The inputs of its code are `constants`, values of the captures numbered `captures` (its own and those of what it
    calls), and its parameters; `handed_on`: which parameters are arrays that every call of it has from its caller as it
    had them; `fixed`: which of these come from the program's own operands, by way of any number of calls.
    """

    code: _jax.Jaxpr
    constants: tuple[Any, ...]
    captures: tuple[int, ...]
    handed_on: Active
    fixed: Active

    @property
    def num_held(self) -> int:
        """How many inputs come before the parameters."""
        return len(self.constants) + len(self.captures)

    @property
    def params(self) -> list[_jax.Var]:
        return list(self.code.invars[self.num_held :])


def lifted(program: Program, captured: Active) -> dict[str, Lifted]:
    """The functions of a program, lifted; `captured`: which captured values are active.

    Calls in the tests of loops stay as they are: they are not differentiated.
    """
    needs = _needed(program, captured)
    handed_on = {
        name: [math.prod(v.aval.shape) > 1 for v in function.params]
        for name, function in program.functions.items()
    }
    passed: list[_Passed] = []

    def of_function(function: Function) -> tuple[_jax.Traced, tuple[int, ...]]:
        more = (i for i in needs[function.name] if i not in function.captures)
        captures = (*function.captures, *more)

        def run(*values: Any) -> list[Any]:
            held = dict(zip(captures, values, strict=False))

            def on_call(eqn: _jax.JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
                callee = eqn.params["name"]
                for i, operand in enumerate(operands):
                    at = next((k for k, value in enumerate(values) if operand is value), None)
                    if at is None:
                        handed_on[callee][i] = False
                    elif at >= len(captures):
                        passed.append(_Passed(function.name, at - len(captures), callee, i))
                taken = [held[i] for i in needs[callee]]
                return call_p.bind(*taken, *operands, **eqn.params)

            args = (*values[: len(function.captures)], *values[len(captures) :])
            return rebind(function.jaxpr, args, on_call, of_values=True)

        avals = [program.capture_avals[i] for i in captures]
        return _jax.trace(run, [*avals, *(v.aval for v in function.params)]), captures

    traced = {name: of_function(function) for name, function in program.functions.items()}
    fixed = _fixed(handed_on, passed)
    return {
        name: Lifted(
            code.jaxpr, code.captures, captures, tuple(handed_on[name]), tuple(fixed[name])
        )
        for name, (code, captures) in traced.items()
    }


class _Passed(NamedTuple):
    """A parameter of a function that it hands on as it is, as a parameter of another or of itself."""

    caller: str
    given: int
    callee: str
    taken: int


def _fixed(handed_on: dict[str, list[bool]], passed: Sequence[_Passed]) -> dict[str, list[bool]]:
    """The parameters that are handed on and that no caller computes."""
    found = {name: list(flags) for name, flags in handed_on.items()}
    changed = True
    while changed:
        changed = False
        for way in passed:
            if found[way.callee][way.taken] and not found[way.caller][way.given]:
                found[way.callee][way.taken] = False
                changed = True
    return found


def _needed(program: Program, captured: Active) -> dict[str, list[int]]:
    """The active captured values that a function reads, itself or by what it calls."""
    needs = {
        name: [i for i in function.captures if captured[i]]
        for name, function in program.functions.items()
    }
    called = {
        name: [eqn.params["name"] for eqn in calls(function.jaxpr, of_values=True)]
        for name, function in program.functions.items()
    }
    changed = True
    while changed:
        changed = False
        for name, needed in needs.items():
            more = {i for callee in called[name] for i in needs[callee]}.difference(needed)
            needed += sorted(more)
            changed = changed or bool(more)
    return needs
