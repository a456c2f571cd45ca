"""`lanewise.grad` and `lanewise.value_and_grad`: JAX's, with a say in what is saved; and a check of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.core.errors import GradientError, OptionError
from lanewise.tracing.decorator import ProgramFunction, lift


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """The gradient of a program, as `jax.grad` gives it; a plain function is lifted first.

    `jax.grad` of a program works too; this one takes options. Beside those of `lanewise.vmap`:

    * `checkpoints`: what loops save for the backward pass. "all": what each iteration needs. "sqrt": a state for each
      strip of about √n iterations, which is run again. A number: at most this many states, whatever the length. "auto":
      all for a loop of known length, a number for a `while`.
    * `offload="host"`: what a loop of known length saves is held in the host's memory until the backward pass reads it,
      for sequences whose states do not fit the device. For a lone call, or lanes that do not diverge.
    * `tape`: how many iterations, under "all", or calls of a recursion a tape has room for. Outside `jit` tapes grow.

    >>> import lanewise as lw
    >>> @lw.program
    ... def power(x, n):
    ...     result = 1.0
    ...     while n > 0:
    ...         result = result * x
    ...         n = n - 1
    ...     return result
    >>> float(lw.grad(power, checkpoints=8)(3.0, 4))
    108.0
    """
    program = _program(fun, "grad", options)
    _refuse(program, "grad", argnums)
    return jax.grad(program, argnums, has_aux, holomorphic, allow_int)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """The value and the gradient of a program: see `grad`.

    >>> import jax
    >>> halve = lambda x: jax.lax.while_loop(lambda y: y > 1, lambda y: y / 2, x)
    >>> [float(x) for x in value_and_grad(halve)(6.0)]
    [0.75, 0.125]
    """
    program = _program(fun, "value_and_grad", options)
    _refuse(program, "value_and_grad", argnums)
    return jax.value_and_grad(program, argnums, has_aux, holomorphic, allow_int)


def recomputed(length: int, checkpoints: int) -> int:
    """How many iterations of a `while` its gradient runs again if it keeps this many states at a time.

    Besides these, each of the `length` iterations runs once ahead and once in reverse.

    >>> recomputed(64, 64), recomputed(1000, 64)
    (0, 1083)
    """
    from lanewise.diff.checkpoint import recomputed as counted

    for name, value in (("length", length), ("checkpoints", checkpoints)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{name}={value!r} must be a positive int.")
    return counted(length, checkpoints)


def check_grads(
    fun: Callable[..., Any],
    args: Sequence[Any],
    *,
    order: int = 1,
    modes: Sequence[str] = ("fwd", "rev"),
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
    **options: Any,
) -> None:
    """Raise `GradientError` unless a program's derivatives agree with each other and with finite differences.

    Forward mode is compared with finite differences, and reverse mode with both, in a random direction, by
    `jax.test_util.check_grads`; `order=2` checks derivatives of derivatives too. Arguments without derivatives
    (integers, bools, keys) stay as they are. In float32 finite differences are rough: give `atol` and `rtol`, or arrays
    of float64 under `jax.enable_x64`. Options are those of `grad`.

    >>> import lanewise as lw
    >>> check_grads(lambda x, n: lw.grad(lambda y: y**3)(x) * n, (2.0, 3), rtol=1e-2)
    """
    from jax.test_util import check_grads as check

    if not isinstance(args, tuple | list):
        raise OptionError(f"check_grads takes the arguments as a tuple; got {type(args).__name__}.")
    unknown = set(modes) - {"fwd", "rev"}
    if unknown or not modes:
        raise OptionError(f'modes={modes!r} must be one or both of "fwd" and "rev".')
    program = _program(fun, "check_grads", options)
    leaves, tree = jax.tree.flatten(tuple(args))
    active = [jnp.issubdtype(jnp.result_type(x), jnp.inexact) for x in leaves]
    if not any(active):
        raise OptionError(
            "check_grads needs an argument with derivatives: floats or complex numbers."
        )

    def run(*values: Any) -> list[Any]:
        outs = jax.tree.leaves(program(*jax.tree.unflatten(tree, values)))
        return [x for x in outs if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]

    of_active, given = _jax.restricted(run, leaves, active)
    try:
        check(of_active, tuple(given), order, tuple(modes), atol, rtol, eps)
    except AssertionError as error:
        raise GradientError(f"derivatives of `{program.__name__}` disagree: {error}") from error


def _program(fun: Callable[..., Any], name: str, options: dict[str, Any]) -> ProgramFunction:
    if not callable(fun):
        raise OptionError(
            f"lanewise.{name} takes a function or a program; got {type(fun).__name__}: {fun!r}"
        )
    program = fun if isinstance(fun, ProgramFunction) else lift(fun)
    return program.with_options(**options)


def _refuse(program: ProgramFunction, name: str, argnums: Any) -> None:
    """Raise for what `jax.grad` would only find out when it is called, and report in other words."""
    every = argnums if isinstance(argnums, Sequence) and not isinstance(argnums, str) else [argnums]
    if not all(isinstance(place, int | np.integer) for place in every):
        raise OptionError(
            f"argnums={argnums!r} must be the place of an argument, an int, or a sequence of them."
        )
    for option, value in (("throw", False), ("stats", True)):
        if getattr(program.options, option) is value:
            raise OptionError(
                f"{option}={value} gives more than the answer, and lanewise.{name} needs a scalar. Leave it out; for"
                f" outcomes beside gradients use lanewise.vmap(lanewise.{name}(...), throw=False)."
                if option == "throw"
                else f"stats=True gives more than the answer, and lanewise.{name} needs a scalar. Leave it out."
            )
