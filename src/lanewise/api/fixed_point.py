"""`lanewise.fixed_point`: iterate until nothing changes, and two ways to differentiate that.

*Unrolled*: through the iterations, like any loop. Exact for what was computed, whatever it is.

*Implicit*: by the implicit function theorem. At x = f(x, p) the tangent solves x' = J x' + f_p p', with J the
derivative by x, so only the answer counts, nothing is saved, and the cost does not depend on how many iterations it
took. It is right where the iteration has converged. `implicit.py` solves the linear equation, and its transpose for
reverse mode (`jax.lax.custom_linear_solve`), so derivatives of every order work.

`f` is traced once for each code and types of what it closes over (`closures.py`): a function created at each call,
which is the usual one, is looked up, with its programs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise.api import implicit
from lanewise.core.errors import Location, OptionError
from lanewise.core.options import Options, refuse_unknown
from lanewise.core.program import check
from lanewise.tracing.closures import put_together, taken_apart
from lanewise.tracing.decorator import ProgramFunction, lift

RULES = ("implicit", "unrolled")

# Traces that are cached, the last ones used.
_MOST_CACHED = 256
_cached: dict[Hashable, _Problem | None] = {}
_lock = threading.Lock()


def fixed_point(
    f: Callable[[Any], Any],
    x0: Any,
    *,
    rule: str = "implicit",
    tolerance: float = 1e-6,
    max_steps: int | None = 1000,
    **options: Any,
) -> Any:
    """The x with x = f(x), found by iterating from `x0` until no entry changes by more than `tolerance`, relatively.

    `f` may close over what is differentiated; `x0` may be any pytree of floats or complex numbers. `rule` says how
    derivatives are taken: "implicit" (at the answer alone) or "unrolled" (through the iterations). A lane whose
    iteration has not converged after `max_steps` (None for no bound), or reaches what is not finite, ends with
    `Outcome.ASSERTION_FAILED`; so does one whose derivative has no solution to the tolerance. Other options are those
    of `lanewise.grad`; inside a program those of the whole hold.

    >>> root = lambda a: fixed_point(lambda x: (x + a / x) / 2, a)
    >>> print(f"{root(9.0):.4f} {jax.grad(root)(9.0):.4f} {jax.grad(jax.grad(root))(9.0):.4f}")
    3.0000 0.1667 -0.0093
    """
    if not callable(f):
        raise OptionError(f"fixed_point takes a function; got {type(f).__name__}: {f!r}")
    if rule not in RULES:
        raise OptionError(f'rule={rule!r} is not known; choose "implicit" or "unrolled".')
    refuse_unknown(options)
    for name, usual in (("throw", True), ("stats", False)):
        if options.get(name, usual) != usual:
            raise OptionError(
                f"{name}={options[name]!r} is not for fixed_point, which gives x alone: give it to `lanewise.vmap`, or"
                " to the program around it."
            )
    # The same bound as an option, so the same check.
    checked: dict[str, Any] = {**options, "max_steps": max_steps}
    max_steps = Options(**checked).max_steps
    settings = _Settings(rule, float(tolerance), max_steps, tuple(sorted(options.items())))
    leaves, tree = jax.tree.flatten(x0)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    _refuse_whole_numbers(leaves)
    leaves = [lax.convert_element_type(leaf, leaf.dtype) for leaf in leaves]
    problem, captured = _found(f, leaves, tree, settings)
    return jax.tree.unflatten(tree, problem.answer(leaves, captured))


@dataclass(frozen=True)
class _Settings:
    rule: str
    tolerance: float
    max_steps: int | None
    options: tuple[tuple[str, Any], ...]


def _found(
    f: Callable[[Any], Any], leaves: Sequence[Any], tree: Any, settings: _Settings
) -> tuple[_Problem, list[Any]]:
    """The problem that `f` is, new or met before, and the values it closes over."""
    for numbers in (True, False):
        apart = taken_apart(f, numbers=numbers)
        arrays, spec = [jnp.asarray(x) for x in apart.arrays], apart.spec
        avals = tuple(_jax.aval_of(x) for x in (*leaves, *arrays))
        key = (spec, tree, len(leaves), avals, settings, _jax.trace_context())
        with _lock:
            met = key in _cached
            problem = _cached.pop(key, None)
            if met:
                _cached[key] = problem
        if not met:
            problem = _made(spec, avals, leaves, tree, settings, may_fail=numbers)
            if apart.lasting and (problem is None or not _of_a_trace(problem)):
                with _lock:
                    _cached[key] = problem
                    while len(_cached) > _MOST_CACHED:
                        del _cached[next(iter(_cached))]
        if problem is not None:
            return problem, [*problem.step.captures, *arrays]
    raise AssertionError("a function is traced, or the error of its trace is raised")


def _made(
    spec: Hashable,
    avals: Sequence[Any],
    leaves: Sequence[Any],
    tree: Any,
    settings: _Settings,
    may_fail: bool,
) -> _Problem | None:
    """Trace `f`; None where it needs the numbers it closes over as they are, to branch on them."""

    def flat(*values: Any) -> list[Any]:
        f = put_together(spec, values[len(leaves) :])
        after = f(jax.tree.unflatten(tree, values[: len(leaves)]))
        _refuse_other_types(after, leaves, tree)
        return [lax.convert_element_type(x, x.dtype) for x in jax.tree.leaves(after)]

    try:
        traced = _jax.trace(flat, avals)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        if may_fail:
            return None
        raise
    code = getattr(put_together(spec, avals[len(leaves) :]), "__code__", None)
    where = (
        Location("lanewise.fixed_point", 0)
        if code is None
        else Location(code.co_filename, code.co_firstlineno, code.co_name)
    )
    return _Problem(traced, len(leaves), settings, where)


def _of_a_trace(problem: _Problem) -> bool:
    """Whether a function closes over values of a trace that were not seen: it is of no use after that."""
    return any(isinstance(x, _jax.Tracer) for x in problem.step.captures)


class _Problem:
    """A function to iterate, as code, and the programs that do it: all of flat lists of arrays."""

    def __init__(
        self, step: _jax.Traced, num_leaves: int, settings: _Settings, where: Location
    ) -> None:
        self.step, self._num_leaves, self._settings, self._where = step, num_leaves, settings, where
        self._iterated = self._program("fixed_point", self._iterate)
        if settings.rule == "unrolled":
            self.answer: Callable[..., list[Any]] = self._iterated
            return
        name = "the derivative of fixed_point"
        self._pushed = self._program(name, lambda *args: self._solve(*args, transposed=False))
        self._pulled = self._program(name, lambda *args: self._solve(*args, transposed=True))
        self.answer = jax.custom_jvp(self._iterated)
        self.answer.defjvp(self._jvp)

    def _program(self, name: str, fun: Callable[..., Any]) -> ProgramFunction:
        def run(*args: Any) -> Any:
            return fun(*args)

        run.__name__ = name
        return lift(run, **dict(self._settings.options))

    def _next(self, x: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
        held = len(self.step.captures)
        return _jax.eval_jaxpr(self.step.jaxpr, *captured[:held], *x, *captured[held:])

    def _iterate(self, x: list[Any], captured: list[Any]) -> list[Any]:
        tolerance, most = self._settings.tolerance, self._settings.max_steps

        def goes_on(carry: Any) -> Any:
            before, after, step = carry
            moves = ~_alike(before, after, tolerance) & _finite(after)
            return moves if most is None else moves & (step < most)

        def again(carry: Any) -> Any:
            _, x, step = carry
            return x, self._next(x, captured), step + (most is not None)

        first = (x, self._next(x, captured), jnp.int32(1))
        before, after, _ = lax.while_loop(goes_on, again, first)
        limit = "" if most is None else f" in {most} steps"
        check(
            _alike(before, after, tolerance) & _finite(after),
            f"the iteration has not converged{limit} to tolerance={tolerance:g}, or what it reached is not finite",
            self._where,
        )
        return after

    def _jvp(self, primals: Any, tangents: Any) -> Any:
        (x0, captured), (_, moves) = primals, tangents
        x = self.answer(x0, captured)
        _, pushed = jax.jvp(lambda captured: self._next(x, captured), (captured,), (moves,))
        right, back = implicit.as_reals(pushed)
        v = lax.custom_linear_solve(
            self._product(x, captured, transposed=False),
            right,
            lambda _, b: self._pushed(x, captured, b),
            transpose_solve=lambda _, b: self._pulled(x, captured, b),
        )
        return x, back(v)

    def _product(self, x: Any, captured: Any, transposed: bool) -> implicit.Product:
        """v - J v of a real vector, or the same with J transposed."""
        _, back = implicit.as_reals(x)

        def step(vector: Any) -> Any:
            return implicit.as_reals(self._next(back(vector), captured))[0]

        at = implicit.as_reals(x)[0]
        if transposed:
            pull = jax.vjp(step, at)[1]
            return lambda v: v - pull(v)[0]
        push = jax.linearize(step, at)[1]
        return lambda v: v - push(v)

    def _solve(self, x: Any, captured: Any, b: Any, transposed: bool) -> Any:
        finest = max((float(jnp.finfo(leaf.dtype).eps) for leaf in x), default=0.0)
        tolerance = max(self._settings.tolerance, 8 * finest)
        v, holds = implicit.solved(self._product(x, captured, transposed), b, tolerance)
        check(
            holds,
            f"its linear equation v = J v + b has no solution to tolerance={tolerance:g}: the derivative J of the"
            " function by x has an eigenvalue too near to 1",
            self._where,
        )
        return v


def _alike(before: Sequence[Any], after: Sequence[Any], tolerance: float) -> Any:
    """Whether no entry changed by more than the tolerance, relatively; one that is not a number did."""
    kept = [
        jnp.all(jnp.abs(b - a) <= tolerance * (1 + jnp.abs(b)))
        for a, b in zip(before, after, strict=True)
    ]
    return jnp.stack(kept).all() if kept else jnp.bool_(True)


def _finite(values: Sequence[Any]) -> Any:
    found = [jnp.isfinite(x).all() for x in values]
    return jnp.stack(found).all() if found else jnp.bool_(True)


def _refuse_whole_numbers(leaves: Sequence[Any]) -> None:
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise OptionError(
                f"x0 must hold floats; got {leaf.dtype}. Convert it with `.astype(float)`."
            )


def _refuse_other_types(after: Any, leaves: Sequence[Any], tree: Any) -> None:
    found = jax.tree.structure(after)
    types = [(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(after)]
    expected = [(x.shape, x.dtype) for x in leaves]
    if found != tree or types != expected:
        raise OptionError(
            f"f must give back what it is given: x0 is {tree} of {expected}, f(x0) is {found} of {types}."
        )
