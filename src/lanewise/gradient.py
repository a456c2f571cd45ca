"""`lanewise.grad` and `lanewise.value_and_grad`: JAX's, with a say in what is saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from lanewise.decorator import ProgramFunction, lift
from lanewise.errors import OptionError


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """The gradient of a program, as `jax.grad` gives it; a plain function is lifted first.

    `jax.grad` of a program works as well; this one takes options. Beside those of `lanewise.vmap`:

    * `checkpoints`: what loops save for the way back. "all": what each iteration needs. "sqrt": a state for each strip
      of about √n iterations, which is run again. A number: at most so many states, whatever the length. "auto": all for
      a loop of known length, a number for a `while`.
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
    return jax.grad(_program(fun, "grad", options), argnums, has_aux)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """The value and the gradient of a program: see `grad`.

    >>> import jax
    >>> halve = lambda x: jax.lax.while_loop(lambda y: y > 1, lambda y: y / 2, x)
    >>> [float(x) for x in value_and_grad(halve)(6.0)]
    [0.75, 0.125]
    """
    return jax.value_and_grad(_program(fun, "value_and_grad", options), argnums, has_aux)


def _program(fun: Callable[..., Any], name: str, options: dict[str, Any]) -> ProgramFunction:
    if not callable(fun):
        raise OptionError(
            f"lanewise.{name} takes a function or a program; got {type(fun).__name__}: {fun!r}"
        )
    program = fun if isinstance(fun, ProgramFunction) else lift(fun)
    return program.with_options(**options)
