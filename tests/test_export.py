"""`jax.export`: what is XLA's own code can be written down, the rest says what to do instead."""

from __future__ import annotations

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export

import lanewise as lw
from lanewise.core.errors import OptionError, TransformError
from programs.small import collatz


@lw.program
def depth(n: Any) -> Any:
    return 0 if n <= 1 else 1 + depth(n // 2)


NS = jnp.array([1, 8, 1000])


@pytest.mark.parametrize("carrier", ["auto", "ticks"])
def test_ticks_are_exported(carrier: str) -> None:
    exported = export.export(jax.jit(lw.vmap(collatz, carrier=carrier)))(NS)
    if importlib.util.find_spec("flatbuffers") is not None:
        exported = export.deserialize(exported.serialize())
    assert exported.call(NS).tolist() == [0, 3, 111]


def test_lanes_that_may_fail_are_exported_with_their_outcomes() -> None:
    with pytest.raises(OptionError, match=r"jax\.export cannot serialize `depth`.*throw=False"):
        export.export(jax.jit(lw.vmap(depth)))(NS)
    answers, outcomes = export.export(jax.jit(lw.vmap(depth, throw=False)))(NS).call(NS)
    assert answers.tolist() == [0, 3, 9] and outcomes.ok().all()


@pytest.mark.parametrize("carrier", ["native", "kernel"])
def test_libraries_are_not(carrier: str) -> None:
    with pytest.raises(OptionError, match=f"carrier='{carrier}'.*Use carrier=\"ticks\""):
        export.export(jax.jit(lw.vmap(collatz, carrier=carrier)))(NS)
    with pytest.raises(OptionError, match="progress=True"):
        export.export(jax.jit(lw.vmap(collatz, progress=True)))(NS)


def test_symbolic_sizes_are_refused() -> None:
    (size,) = export.symbolic_shape("b")
    batch = jax.ShapeDtypeStruct((size,), jnp.int32)
    with pytest.raises(TransformError, match=r"`collatz` is batched with the symbolic size b"):
        export.export(jax.jit(lw.vmap(collatz)))(batch)
    with pytest.raises(TransformError, match=r"test_export\.py.*symbolic shape \(b,\)"):
        export.export(jax.jit(lw.lift(lambda x: x.sum())))(batch)
