"""Running code as a host-compiled kernel, and comparing it with JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from lanewise.blocks.link import Linked
from lanewise.core.options import Options
from lanewise.cpp.emit.emit import emit
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.kernels import kernel_blocks
from lanewise.cpp.toolchain import host


def linked_of(f: Callable[..., Any], args: Sequence[Any], varying: Sequence[bool]) -> Linked:
    """A function of one example, linked for a kernel; `args` are one example's."""
    staged, operands = lw.program(f).stage(*args)
    assert len(operands) == len(varying), "closes over arrays: give them as arguments"
    return kernel_blocks(staged.program, varying, Options())


def kernel_of(f: Callable[..., Any], args: Sequence[Any], varying: Sequence[bool]) -> Emitted:
    return emit(linked_of(f, args, varying), varying)


def words(value: Any) -> np.ndarray:
    """An array as a kernel takes and gives it: keys as their words."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def run_batch(f: Callable[..., Any], *batch: Any, uniform: Sequence[int] = ()) -> list[np.ndarray]:
    """The answers' leaves for a batch: every argument but those of `uniform` has a leading axis of examples."""
    varying = [i not in uniform for i in range(len(batch))]
    one = [x[0] if varies else x for x, varies in zip(batch, varying, strict=True)]
    examples = next(len(x) for x, varies in zip(batch, varying, strict=True) if varies)
    emitted = kernel_of(f, one, varying)
    return host.run(emitted, [words(x) for x in batch], examples, threads=2).answers


def check(
    f: Callable[..., Any],
    *batch: Any,
    uniform: Sequence[int] = (),
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    """A kernel of `f` gives what `jax.jit(jax.vmap(f))` gives; bit for bit where `rtol` is 0."""
    axes = tuple(None if i in uniform else 0 for i in range(len(batch)))
    expected = jax.tree.leaves(jax.jit(jax.vmap(f, in_axes=axes))(*batch))
    found = run_batch(f, *batch, uniform=uniform)
    for ours, theirs in zip(found, map(words, expected), strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        if ours.dtype.kind in "biu" or (rtol == 0 and atol == 0):
            np.testing.assert_array_equal(ours, theirs)
        else:
            wide = np.complex128 if ours.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(ours.astype(wide), theirs.astype(wide), rtol=rtol, atol=atol)
