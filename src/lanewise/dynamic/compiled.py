"""Code of levels, compiled separately.

XLA measures each new product before it compiles it. For a GPU it has two ways to make one, cuBLAS and kernels by
Triton. Compiling the latter takes most of an envelope's compilation, for products that are thin and no faster by them.
So where code of levels is compiled separately, outside of `jax.jit`, it is compiled with the options of the platform's
profile. Inside `jax.jit` the options are those of the function around.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from lanewise import _jax
from lanewise.core.profile import profile_of


def compiled(fun: Callable[..., Any], **static: Any) -> Callable[..., Any]:
    """`jax.jit`, with the profile's options where a call is compiled separately; `static` as `jax.jit` takes them.

    >>> import jax.numpy as jnp
    >>> double = compiled(lambda x: x + x)
    >>> print(double(jnp.ones(())), jax.jit(double)(jnp.ones(())))
    2.0 2.0
    """
    inside = jax.jit(fun, **static)

    @functools.cache
    def alone(platform: str) -> Callable[..., Any]:
        options = dict(profile_of(platform).level_options)
        return jax.jit(fun, **static, compiler_options=options) if options else inside

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        chosen = alone(_jax.default_platform()) if _jax.outside_traces() else inside
        return chosen(*args, **kwargs)

    return call
