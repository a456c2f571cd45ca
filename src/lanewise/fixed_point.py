"""`lanewise.fixed_point`: iterate until nothing changes, and two ways to differentiate that.

*Unrolled*: through the iterations, like any loop. Exact for what was computed, whatever it is.

*Implicit*: by the implicit function theorem. At x = f(x, p) the tangent solves x' = J x' + f_p p', with J the
derivative by x, so only the answer counts, nothing is saved, and the cost does not depend on how many iterations it
took. It is right where the iteration has converged. The linear equation is solved by the same kind of iteration, which
converges where f does; its transpose, for reverse mode, likewise (`jax.lax.custom_linear_solve`), so derivatives of
every order work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise.decorator import lift
from lanewise.errors import OptionError

RULES = ("implicit", "unrolled")


def fixed_point(
    f: Callable[[Any], Any],
    x0: Any,
    *,
    rule: str = "implicit",
    tolerance: float = 1e-6,
    max_steps: int = 1000,
    **options: Any,
) -> Any:
    """The x with x = f(x), found by iterating from `x0` until no entry changes by more than `tolerance`, relatively.

    `f` may close over what is differentiated; `x0` may be any pytree of floats. `rule` says how derivatives are taken:
    "implicit" (at the answer alone) or "unrolled" (through the iterations). After `max_steps` without convergence a
    lane ends with `Outcome.STEPS_EXHAUSTED`. Other options are those of `lanewise.grad`.

    >>> root = lambda a: fixed_point(lambda x: (x + a / x) / 2, a)
    >>> print(f"{root(9.0):.4f} {jax.grad(root)(9.0):.4f} {jax.grad(jax.grad(root))(9.0):.4f}")
    3.0000 0.1667 -0.0093
    """
    if not callable(f):
        raise OptionError(f"fixed_point takes a function; got {type(f).__name__}: {f!r}")
    if rule not in RULES:
        raise OptionError(f'rule={rule!r} is not known; choose "implicit" or "unrolled".')
    x0 = jax.tree.map(jnp.asarray, x0)
    _check_types(f, x0)
    pure, captured = jax.closure_convert(f, x0)

    def iterate(x: Any, *captured: Any) -> Any:
        def moved(carry: Any) -> Any:
            before, after = carry
            return _differ(before, after, tolerance)

        def step(carry: Any) -> Any:
            _, x = carry
            return x, pure(x, *captured)

        return lax.while_loop(moved, step, (x, pure(x, *captured)))[1]

    # What a lane that does not converge is told by.
    iterate.__name__ = "fixed_point"
    solve = lift(iterate, max_steps=max_steps, **options)
    if rule == "unrolled":
        return solve(x0, *captured)

    @jax.custom_jvp
    def implicit(x0: Any, *captured: Any) -> Any:
        return solve(x0, *captured)

    @implicit.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        x0, *captured = primals
        _, *moves = tangents
        answer = implicit(x0, *captured)
        _, pushed = jax.jvp(lambda *given: pure(answer, *given), tuple(captured), tuple(moves))
        return answer, _solved(lambda x: pure(x, *captured), answer, pushed, tolerance, max_steps)

    return implicit(x0, *captured)


def _solved(f: Callable[[Any], Any], answer: Any, right: Any, tolerance: float, most: int) -> Any:
    """The v with v = J v + right, for J the derivative of `f` at the answer."""
    _, push = jax.linearize(f, answer)

    def matvec(v: Any) -> Any:
        return jax.tree.map(jnp.subtract, v, push(v))

    def neumann(matvec: Callable[[Any], Any], b: Any) -> Any:
        # v <- v - (v - J v - b): the same iteration as that of f itself, so it converges where that does.
        def going(carry: Any) -> Any:
            before, after, step = carry
            return _differ(before, after, tolerance) & (step < most)

        def again(carry: Any) -> Any:
            _, v, step = carry
            left = jax.tree.map(jnp.subtract, b, matvec(v))
            return v, jax.tree.map(jnp.add, v, left), step + 1

        first = jax.tree.map(jnp.zeros_like, b)
        return lax.while_loop(going, again, (first, b, jnp.int32(0)))[1]

    return lax.custom_linear_solve(matvec, right, neumann, transpose_solve=neumann)


def _differ(before: Any, after: Any, tolerance: float) -> Any:
    """Whether any entry changed by more than the tolerance, relatively."""
    changes = [
        jnp.any(jnp.abs(b - a) > tolerance * (1 + jnp.abs(b)))
        for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    ]
    return jnp.stack(changes).any() if changes else jnp.bool_(False)


def _check_types(f: Callable[[Any], Any], x0: Any) -> None:
    for leaf in jax.tree.leaves(x0):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise OptionError(
                f"x0 must hold floats; got {leaf.dtype}. Convert it with `.astype(float)`."
            )
    after = jax.eval_shape(f, x0)
    found, wanted = jax.tree.structure(after), jax.tree.structure(x0)
    types = [(x.shape, x.dtype) for x in jax.tree.leaves(after)]
    expected = [(x.shape, x.dtype) for x in jax.tree.leaves(x0)]
    if found != wanted or types != expected:
        raise OptionError(
            f"f must give back what it is given: x0 is {wanted} of {expected}, f(x0) is {found} of {types}."
        )
