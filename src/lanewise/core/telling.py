"""Calls of the host from traced code: a run tells when it begins and when it has ended.

Whoever wants to know is known by `events.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise._jax import Primitive, mlir, stored
from lanewise.core import events
from lanewise.core.errors import Outcome
from lanewise.core.events import Site

# What is recorded of each example is recorded of this many.
MOST_EXAMPLES = 1 << 16

tell_p = Primitive("tell")
tell_p.multiple_results = True


@tell_p.def_effectful_abstract_eval
def _tell_abstract(*args: Any, fun: Any, results: tuple[Any, ...]) -> Any:
    del args, fun
    return list(results), {_jax.calls_host}


mlir.register_lowering(
    tell_p,
    lambda ctx, *args, fun, results: _jax.lower_host_call(ctx, fun, args),
    cacheable=False,
)


def call_host(fun: Callable[..., Sequence[Any]], answers: int, *args: Any) -> list[Any]:
    """Call the host from traced code; it answers with this many int32."""
    results = (_jax.shaped((), jnp.int32.dtype),) * answers
    return tell_p.bind(*args, fun=fun, results=results)


def begin_run(site: Site, operands: Sequence[Any]) -> Any:
    """Tell that a run begins, when its operands are there; gives its number."""
    (number,) = call_host(lambda *_: [events.begin(site)], 1, *map(_first_word, operands))
    return number


def end_run(number: Any, **arrays: Any) -> None:
    """Tell that a run has ended, when these arrays are there, and what they hold."""
    names = tuple(arrays)

    def report(number: Any, *values: Any) -> list[Any]:
        # XLA's own memory, which it takes back.
        events.end(number, {name: np.array(x) for name, x in zip(names, values, strict=True)})
        return []

    call_host(report, 0, number, *arrays.values())


def outcome_counts(code: Any) -> Any:
    """How many examples ended in each way."""
    return jnp.zeros((len(Outcome),), jnp.int32).at[code.reshape(-1)].add(1, mode="drop")


class Whole:
    """A run that is reported as a whole: when it begins and when it ends."""

    def __init__(self, site: Site, operands: Sequence[Any]) -> None:
        self.site = site
        self.number = begin_run(site, operands)

    def ended(self, answer: Any, code: Any = None, steps: Any = None, deepest: Any = None) -> None:
        """Tell the end, when `answer` is there; of each example its steps and the most frames it had."""
        if not self.site.recorded or code is None:
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
