"""Graphs of PyTensor as JAX functions: those of a PyMC model that sampling and predictions need.

PyMC compiles log densities to JAX, and PyTensor compiles most random variables, so all of a model runs in JAX. What
PyTensor cannot compile (a distribution that it has no JAX code for, sizes that depend on values) is drawn by PyTensor's
own function on the host, called from JAX draw by draw: slower, the same distribution.

A graph takes its data, the model's shared variables, when it is made: `pymc.set_data` later changes nothing in it. The
expensive parts, rewriting and compiling, wait for the first call.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from lanewise.core.errors import OptionError


@contextlib.contextmanager
def flags_kept() -> Iterator[None]:
    """PyMC's JAX module asks XLA for a hundred CPU devices when it is imported; this process keeps its own."""
    before = os.environ.get("XLA_FLAGS")
    try:
        yield
    finally:
        os.environ.pop("XLA_FLAGS", None)
        if before is not None:
            os.environ["XLA_FLAGS"] = before


def with_data(outputs: Sequence[Any]) -> list[Any]:
    """The graphs with the data that the model holds now as constants; generators of random numbers stay."""
    from pytensor.graph.replace import clone_replace
    from pytensor.tensor.basic import constant

    shared = {
        variable: constant(variable.get_value(borrow=True), name=variable.name)
        for variable in _shared(outputs)
        if not _is_random(variable)
    }
    return list(clone_replace(list(outputs), replace=shared))


def jax_function(
    inputs: Sequence[Any], outputs: Sequence[Any], of: str, *, now: bool = False
) -> Callable[..., Any]:
    """A graph without random variables as a JAX function, compiled at the first call or now; `of` is for errors."""
    outputs = with_data(outputs)
    if any(_is_random(variable) for variable in _shared(outputs)):
        raise OptionError(
            f"{of} of the PyMC model draws random numbers itself (pymc.Minibatch, or a distribution made by .dist()"
            " inside of a Deterministic): use all of the data, and make such draws variables of the model."
        )
    inputs = list(inputs)
    return _compiled(inputs, outputs, of) if now else lazily(lambda: _compiled(inputs, outputs, of))


def drawing(outputs: Sequence[Any], given: dict[Any, Any]) -> Callable[..., tuple[Array, ...]]:
    """Draws of random variables as a function of a key and the values of those that are given.

    `given` maps a variable to the input that takes its place.
    """
    from pytensor.graph.replace import clone_replace

    outputs = with_data(clone_replace(list(outputs), replace=given))
    generators = {v: v.type() for v in _shared(outputs) if _is_random(v)}
    outputs = clone_replace(outputs, replace=generators)
    inputs = [*generators.values(), *given.values()]
    return lazily(lambda: _drawn_by_jax_or_host(inputs, outputs, len(generators)))


def lazily(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """The function that `make` makes, made when it is first called."""

    @functools.cache
    def made() -> Callable[..., Any]:
        # The first call may be under a trace, and the constants of a graph must not belong to it.
        with jax.ensure_compile_time_eval():
            return make()

    return lambda *arguments: made()(*arguments)


def _shared(outputs: Sequence[Any]) -> list[Any]:
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.traversal import graph_inputs

    found = (v for v in graph_inputs(list(outputs)) if isinstance(v, SharedVariable))
    return list(dict.fromkeys(found))


def _is_random(variable: Any) -> bool:
    from pytensor.tensor.random.type import RandomType

    return isinstance(variable.type, RandomType)


def _compiled(inputs: list[Any], outputs: list[Any], of: str) -> Callable[..., Any]:
    from pymc.sampling.jax import get_jaxified_graph

    try:
        return get_jaxified_graph(inputs=inputs, outputs=outputs)
    except NotImplementedError as error:
        raise OptionError(f"PyTensor cannot compile {of} to JAX: {error}") from error


def _drawn_by_jax_or_host(
    inputs: list[Any], outputs: list[Any], generators: int
) -> Callable[..., tuple[Array, ...]]:
    by_jax = lazily(lambda: _by_jax(inputs, outputs, generators))
    by_host = lazily(lambda: _by_host(inputs, outputs, generators))

    def draw(key: Key[Array, ""], *values: Array) -> tuple[Array, ...]:
        try:
            jax.eval_shape(by_jax, key, *values)
        except Exception:  # PyTensor has many ways to say that it has no JAX code
            return by_host(key, *values)
        return by_jax(key, *values)

    return draw


def _by_jax(
    inputs: list[Any], outputs: list[Any], generators: int
) -> Callable[..., tuple[Array, ...]]:
    function = _compiled(inputs, outputs, "random variables")

    def draw(key: Key[Array, ""], *values: Array) -> tuple[Array, ...]:
        # PyTensor's JAX code reads a generator's key, in the old form, from this entry of its state.
        keys = [jax.random.fold_in(key, number) for number in range(generators)]
        states = [{"jax_state": jax.random.key_data(key)} for key in keys]
        return tuple(map(jnp.asarray, function(*states, *values)))

    return draw


def _by_host(
    inputs: list[Any], outputs: list[Any], generators: int
) -> Callable[..., tuple[Array, ...]]:
    # It has moved between modules from PyMC 5 to 6.
    from pytensor import function as compiled  # pyright: ignore[reportPrivateImportUsage]

    function: Any = compiled(inputs, outputs, on_unused_input="ignore")
    dtypes = [variable.dtype for variable in inputs[generators:]]

    def call(seed: np.ndarray, *values: np.ndarray) -> tuple[np.ndarray, ...]:
        words = np.asarray(seed).ravel().tolist()
        states = [np.random.default_rng([*words, number]) for number in range(generators)]
        arrays = (np.asarray(value, dtype) for value, dtype in zip(values, dtypes, strict=True))
        return tuple(map(_as_jax_has_it, function(*states, *arrays)))

    def draw(key: Key[Array, ""], *values: Array) -> tuple[Array, ...]:
        # Shapes are known after a draw only. They do not depend on the values.
        middle = [np.full(jnp.shape(value), 0.5) for value in values]
        try:
            example = call(np.zeros(2, np.uint32), *middle)
        except NotImplementedError as error:
            raise OptionError(f"PyMC cannot draw from a variable of the model: {error}") from error
        shapes = tuple(jax.ShapeDtypeStruct(one.shape, one.dtype) for one in example)
        seed = jax.random.key_data(key)
        return jax.pure_callback(call, shapes, seed, *values, vmap_method="sequential")

    return draw


def _as_jax_has_it(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
