"""Log densities as users write them: with `jax.numpy` alone, or with `if`, `while` and recursion.

A density that JAX can trace is taken as it is. One that asks Python for a value that only a chain has is a program, and
is made one here (`lanewise.program`): its own source is converted. Functions that it calls are not, and one that calls
itself by its name calls the original; for both the error says where the decorator belongs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from lanewise.core.errors import LanewiseError, OptionError
from lanewise.mcmc.space import KEPT
from lanewise.tracing.decorator import ProgramFunction, program

Function = Callable[..., Any]


def traceable(density: Function, like: Any) -> Function:
    """The density, or a program of it if its control flow depends on the position.

    >>> import jax.numpy as jnp
    >>> scalar = jax.ShapeDtypeStruct((), jnp.float32)
    >>> traceable(jnp.sin, scalar) is jnp.sin
    True
    """
    try:
        jax.eval_shape(density, like)
    except jax.errors.TracerArrayConversionError as error:
        raise OptionError(_by_numpy(density, error)) from error
    except (jax.errors.ConcretizationTypeError, RecursionError) as error:
        if isinstance(density, ProgramFunction):
            raise OptionError(_helper(density, error)) from error
    except Exception:
        return density  # the check of the density reports what is wrong with it
    else:
        return density
    return _as_program(density, like)


@functools.lru_cache(KEPT)
def _program(density: Function) -> Function:
    """One program of a density, so that cached code for it is found."""
    return program(density)


def _as_program(density: Function, like: Any) -> Function:
    try:
        made = _program(density)
        jax.eval_shape(made, like)
    except jax.errors.TracerArrayConversionError as error:
        raise OptionError(_by_numpy(density, error)) from error
    except (jax.errors.ConcretizationTypeError, RecursionError, LanewiseError) as error:
        raise OptionError(_helper(density, error)) from error
    return made


def _by_numpy(density: Any, error: BaseException) -> str:
    name, why = getattr(density, "__name__", repr(density)), str(error).partition("\n")[0]
    return f"logdensity `{name}` gives its position to NumPy; use jax.numpy in its place: {why}"


def _helper(density: Any, error: BaseException) -> str:
    name = getattr(density, "__name__", repr(density))
    why = str(error).partition("\n")[0]
    return (
        f"logdensity `{name}` has an `if`, a `while` or recursion that depends on the position, or gives it to a"
        " function of Python's (`math.exp`, `float`), for which jax.numpy has one. Put @lanewise.program on it, and on"
        f" each function that it calls with such control flow: {why}"
    )
