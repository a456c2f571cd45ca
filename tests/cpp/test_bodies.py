"""On a GPU, the arrays that only the callers of a recursion touch leave it the registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.blocks.link import Linked
from lanewise.core.options import Options
from lanewise.cpp.emit import bodies
from lanewise.cpp.emit.emit import written
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.kernels import kernel_blocks


def linked_and_text(f: Callable[..., Any], *example: Any) -> tuple[Linked, str]:
    staged, _ = lw.program(f).stage(*example)
    varying = (True,) * len(example)
    linked = kernel_blocks(staged.program, varying, Options())
    found = written(linked, varying, Options())
    assert isinstance(found, Emitted)
    return linked, found.text[found.text.index("LW_KERNEL lanewise_kernel") :]


@lw.program
def grown(x, depth):
    if depth == 0:
        return jnp.sin(x)
    left = grown(0.5 * x, depth - 1)
    return left + grown(x + left, depth - 1)


def total_of_rounds(x, rounds):
    """`total` and `scale` are touched once a round, what `grown` holds at each of its calls."""
    total, scale = jnp.zeros_like(x), jnp.ones_like(x)
    while rounds > 0:
        total = total + scale * grown(x, rounds)
        scale = 0.9 * scale
        rounds = rounds - 1
    return total


@pytest.mark.parametrize("size", [2, 16], ids=["all has room", "it has not"])
def test_arrays_outside_of_a_recursion(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "REGISTERS", 64)
    linked, text = linked_and_text(total_of_rounds, np.zeros(size, np.float32), np.int32(3))
    far = bodies.seldom_touched(linked)
    # The total and its scale; the argument is read where it is.
    assert text.count("LW_IN_MEMORY(v") == (0 if size == 2 else 2)
    assert len(far) == (0 if size == 2 else 3)
    (recursive,) = (f for f in linked.program.functions.values() if "grown" in f.name)
    assert not far & {*recursive.params, *recursive.results}


@pytest.mark.parametrize("wide", [True, False])
def test_only_a_recursion_is_hot(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "REGISTERS", 0 if wide else 10**6)

    def loop(x):
        while x[0] < 10.0:
            x = x + 1.0
        return x

    x = np.zeros(8, np.float32)
    assert "LW_IN_MEMORY(" not in linked_and_text(loop, x)[1]
    # All of it is inside of itself.
    assert "LW_IN_MEMORY(" not in linked_and_text(grown, x, np.int32(2))[1]
    rounds = linked_and_text(total_of_rounds, x, np.int32(2))[1]
    assert ("LW_IN_MEMORY(" in rounds) == wide
