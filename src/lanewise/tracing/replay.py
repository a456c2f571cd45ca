"""Calls outside `jit`: each signature is traced once, and replayed from then on.

Outside `jit` JAX runs through a function again at every call: it makes tracers, wraps and unwraps them at each `vmap`,
and looks up what to run for each primitive it meets, some hundred microseconds to arrive where it was the last time.
What it meets in a call of a program is always the same: perhaps a few equations that move axes, `program_p`,
`throw_p` where a lane can fail, perhaps a few equations that spread answers. So the first call of a signature is
traced to a jaxpr, and later calls run its equations: `program_p` and `throw_p` by what they do outside `jit`, so that
stacks grow and failed lanes are named as usual, and each run of other equations as one compiled function.

What the trace depends on is the key: the static half of the arguments, the types of the rest, JAX's settings. Values
that a program closes over are cached with its trace, as `jax.jit` does.

A call inside any trace is not replayed, but left to JAX: it decides there what the call becomes. That includes a
program under a bare `jax.vmap`, whose trace JAX makes again each time; `lanewise.vmap` and `jax.jit` do not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise._jax import Atom, DropVar, Jaxpr, JaxprEqn, Literal, Var
from lanewise.core.program import program_p, throw_p
from lanewise.tracing.captured import Captured, Places
from lanewise.tracing.signature import (
    CallStatics,
    Signature,
    StaticLeaves,
    as_hashable,
    is_array_like,
    split_leaves,
)

_PYTHON_SCALARS = frozenset({bool, int, float, complex})


class Replays:
    """A function whose calls outside `jit` are traced once for each signature."""

    def __init__(self, fun: Callable[..., Any], signature: Signature, places: Places) -> None:
        self._fun = fun
        self._signature = signature
        self._places = places
        self._cached: dict[Hashable, _Replay] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Replays, (self._fun, self._signature, self._places)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _jax.outside_traces():
            return self._fun(*args, **kwargs)
        leaves, tree = self._signature.flat(args, kwargs)
        values, kinds = [], []
        for leaf in leaves:
            if type(leaf) is _jax.ArrayImpl:
                values.append(leaf)
                kinds.append(leaf.aval)
            elif isinstance(leaf, _jax.Tracer):
                return self._fun(*args, **kwargs)
            elif is_array_like(leaf):
                value, kind = _taken(leaf)
                values.append(value)
                kinds.append(kind)
            else:
                kinds.append((_STATIC, as_hashable(leaf)))
        key = (tree, tuple(kinds), _jax.trace_context())
        cached = self._cached.get(key)
        if cached is None:
            _, statics = self._signature.split(args, kwargs)
            cached = self._cached[key] = _record(self._fun, statics, values, self._places)
        else:
            cached.captured.check()
        return cached(values)


# Marks what is part of a signature: the leaf `int` is not the type of the leaf 3.
_STATIC = object()


def _taken(leaf: Any) -> tuple[Any, Hashable]:
    """A leaf as `jit` takes it, which converts faster than `jnp.asarray` does, and what a trace depends on of it."""
    if isinstance(leaf, jax.Array):
        return leaf, leaf.aval
    if type(leaf) in _PYTHON_SCALARS:
        return leaf, type(leaf)
    if type(leaf) is np.ndarray or isinstance(leaf, np.generic):
        return leaf, (leaf.shape, leaf.dtype)
    return _taken(jnp.asarray(leaf))


@dataclass(frozen=True)
class _Step:
    """A function of some of the values so far, which gives further ones."""

    run: Callable[..., Sequence[Any]]
    takes: tuple[Atom, ...]
    gives: tuple[Var, ...]


@dataclass(frozen=True)
class _Replay:
    """A call as functions over a growing list of values: constants, the arguments, then what each function gave."""

    constants: tuple[Any, ...]
    steps: tuple[tuple[Callable[..., Sequence[Any]], tuple[int, ...]], ...]
    answers: tuple[int, ...]
    tree: Any
    static: StaticLeaves
    captured: Captured

    def __call__(self, arguments: Sequence[Any]) -> Any:
        values = [*self.constants, *arguments]
        for run, takes in self.steps:
            values += run(*[values[i] for i in takes])
        answers = [values[i] for i in self.answers]
        return jax.tree.unflatten(self.tree, self.static.join(answers))


def _record(
    fun: Callable[..., Any], statics: CallStatics, values: Sequence[Any], places: Places
) -> _Replay:
    """Trace a call, and number what its steps take and give."""
    results: list[tuple[Any, StaticLeaves]] = []

    def flat(*leaves: Any) -> Sequence[Any]:
        args, kwargs = statics.join(leaves)
        answers, static, tree = split_leaves(fun(*args, **kwargs))
        results.append((tree, static))
        return answers

    places.begin()
    traced = _jax.trace_at(flat, values)
    tree, static = results[-1]
    code, num_captures = traced.jaxpr, len(traced.captures)
    steps = list(_steps(code))
    asked_for = [*(atom for step in steps for atom in step.takes), *code.outvars]
    literals = [atom for atom in asked_for if isinstance(atom, Literal)]
    in_order = [
        *code.invars[:num_captures],
        *literals,
        *code.invars[num_captures:],
        *(var for step in steps for var in step.gives),
    ]
    place = {id(atom): i for i, atom in enumerate(in_order)}
    constants = (*traced.captures, *(literal.val for literal in literals))
    return _Replay(
        constants=tuple(map(_jax.to_device, constants)),
        steps=tuple((step.run, tuple(place[id(a)] for a in step.takes)) for step in steps),
        answers=tuple(place[id(atom)] for atom in code.outvars),
        tree=tree,
        static=static,
        captured=places.now(),
    )


def _steps(code: Jaxpr) -> Iterator[_Step]:
    """Each equation in which the host has a part by itself, those between them compiled together."""
    for host, group in itertools.groupby(code.eqns, _on_host):
        if host:
            for eqn in group:
                run = functools.partial(eqn.primitive.impl, **eqn.params)
                yield _Step(run, tuple(eqn.invars), tuple(eqn.outvars))
        else:
            eqns = list(group)
            gives = [var for eqn in eqns for var in eqn.outvars if not isinstance(var, DropVar)]
            inside = set(gives)
            needed = (atom for eqn in eqns for atom in eqn.invars if isinstance(atom, Var))
            takes = list(dict.fromkeys(var for var in needed if var not in inside))
            run = functools.partial(_jax.eval_jaxpr, _jax.new_jaxpr(takes, gives, eqns))
            yield _Step(jax.jit(run), tuple(takes), tuple(gives))


def _on_host(eqn: JaxprEqn) -> bool:
    return eqn.primitive is program_p or eqn.primitive is throw_p
