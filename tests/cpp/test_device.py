"""Kernels on a GPU: the corpus through NVRTC and a launch inside `jit`. Left out where there is no GPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from comparing import assert_same, take
from corpus import CORPUS, Case
from cpp.test_corpus import CARRIED
from derivatives import of_smooth, to_scalar
from lanewise.core.errors import OptionError
from machine.test_meet import arguments, walks
from programs.small import collatz, depth, fib
from test_corpus import batch, one_at_a_time


def on_host(name: str) -> tuple[Any, Any]:
    """The batch of a case and its answers, from the CPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        return batch(name), one_at_a_time(name)


@needs.on_gpu
@pytest.mark.parametrize("case", CARRIED, ids=lambda case: case.name)
def test_the_corpus_as_kernels(case: Case) -> None:
    args, expected = on_host(case.name)
    args = jax.device_put(args, jax.devices("gpu")[0])
    run = lw.vmap(case.program, in_axes=case.in_axes, carrier="kernel")
    assert_same(jax.jit(run)(*args), expected, max(case.rtol, 2e-4))


@needs.on_gpu
@pytest.mark.parametrize(
    "case", [c for c in CORPUS if c.differentiable and not c.heavy], ids=lambda case: case.name
)
def test_gradients_as_kernels(case: Case) -> None:
    def gradient(args: Any, **how: Any) -> Any:
        run = lw.vmap(case.program, in_axes=case.in_axes, **how)

        def of_moved(*moved: Any) -> Any:
            given = dict(zip(case.differentiable, moved, strict=True))
            return run(*(given.get(i, x) for i, x in enumerate(args)))

        moved = tuple(args[i] for i in case.differentiable)
        scalar, smooth = of_smooth(to_scalar(of_moved), moved)
        return jax.jit(jax.grad(scalar))(smooth)

    with jax.default_device(jax.devices("cpu")[0]):
        args = take(case.in_axes, batch(case.name), slice(17))
        expected = gradient(args, tape=256)
    args = jax.device_put(args, jax.devices("gpu")[0])
    assert_same(gradient(args, carrier="kernel", tape=256), expected, max(case.rtol, 2e-3))


@needs.on_gpu
def test_more_examples_than_lanes() -> None:
    n = jnp.arange(1, 100_001)
    few = lw.vmap(collatz, carrier="kernel", lanes=256)(n)
    assert (few == lw.vmap(collatz, carrier="kernel")(n)).all()


@needs.on_gpu
def test_between_other_operations_and_more_than_once() -> None:
    @jax.jit
    def run(n):
        first = jax.vmap(fib)(n % 11)
        return jax.vmap(collatz)(first + 1) * 2

    n = jnp.arange(4096)
    expected = 2 * np.asarray(jax.vmap(collatz)(jax.vmap(fib)(n % 11) + 1))
    for _ in range(3):
        np.testing.assert_array_equal(run(n), expected)


@needs.on_gpu
def test_stacks_grow_outside_jit() -> None:
    n = jnp.array([0, 5, 100, 3000])
    assert lw.vmap(depth, carrier="kernel")(n).tolist() == n.tolist()
    _, outcomes = jax.jit(lw.vmap(depth, carrier="kernel", max_depth=50, throw=False))(n)
    assert outcomes.ok().tolist() == [True, True, False, False]


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_without_a_gpu_it_is_reported() -> None:
    with pytest.raises(OptionError, match="carrier='kernel' runs on a GPU"):
        lw.vmap(collatz, carrier="kernel")(jnp.arange(1, 5))


@needs.on_gpu
def test_lanes_that_meet_are_run_by_warps() -> None:
    with jax.default_device(jax.devices("cpu")[0]):
        args = arguments(40)
        expected = lw.vmap(walks, carrier="native")(*args)
    args = jax.device_put(args, jax.devices("gpu")[0])
    for how in ({}, {"lanes": 16}):
        found = lw.vmap(walks, carrier="ticks", schedule="meet", **how)(*args)
        assert_same(found, expected, 1e-3)
