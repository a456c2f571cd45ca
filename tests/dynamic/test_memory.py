"""Memory that stays with the process, if it is asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import apart

SCRIPT = """
import ctypes
import resource
import numpy as np
import lanewise as lw

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

asked = lw.keep_pages()
np.ones(1 << 23).sum()
before = faults()
for _ in range(5):
    np.ones(1 << 23).sum()
print(f"asked: {asked}")
print(f"faults: {faults() - before}")

def touch():
    # As a tape that may grow: more than an `int` counts, of which little is used. (NumPy would ask for huge pages.)
    block = libc.malloc(5 << 29)
    ctypes.memset(block, 1, 1 << 26)
    libc.free(block)

touch()
before = faults()
for _ in range(5):
    touch()
print(f"faults of large blocks: {faults() - before}")
"""

STEPS = """
import resource
import statistics

import lanewise as lw

asked = lw.keep_pages()

import jax
import jax.numpy as jnp
import numpy as np

@lw.record
class Tree:
    word: int
    left: "Tree | None" = None
    right: "Tree | None" = None

@lw.program
def encode(tree, words, join):
    if tree.left is None:
        return jnp.tanh(words[tree.word])
    pair = [encode(tree.left, words, join), encode(tree.right, words, join)]
    return jnp.tanh(jnp.concatenate(pair) @ join)

rng, width = np.random.default_rng(0), 128

def random_tree(leaves):
    if leaves == 1:
        return Tree(int(rng.integers(10)))
    left = int(rng.integers(1, leaves))
    return Tree(0, random_tree(left), random_tree(leaves - left))

def minibatch(like=None):
    return lw.pack([random_tree(int(n)) for n in rng.integers(20, 41, 64)], like=like)

weights = [jnp.ones((10, width)) / 9, jnp.ones((2 * width, width)) / 99]
run = lw.vmap(encode, in_axes=(0, None, None), schedule="levels")
loss = jax.jit(lambda rows: jnp.sum(rows**2))

def step(forest):
    return jax.block_until_ready(jax.value_and_grad(lambda w: loss(run(forest, *w)))(weights))

def faults(forest):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step(forest)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

forest = lw.pack([random_tree(40) for _ in range(64)])
for _ in range(8):
    step(minibatch(forest))
print(f"asked: {asked}")
print(f"faults: {statistics.median(map(faults, [minibatch(forest) for _ in range(9)]))}")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is asked")
def test_freed_pages_are_taken_again(tmp_path: Path) -> None:
    script = tmp_path / "pages.py"
    script.write_text(SCRIPT)
    found = apart.cases_of(script)
    # Without it each of the five arrays of 64 MB has 16,384 fresh pages.
    kept = [int(found[name]) < 16_384 for name in ("faults", "faults of large blocks")]
    assert found["asked"] == "False" or all(kept)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is asked")
def test_a_training_step_takes_no_fresh_pages(tmp_path: Path) -> None:
    script = tmp_path / "steps.py"
    script.write_text(STEPS)
    found = apart.cases_of(script)
    # A step has some 20 MB: 5,000 pages.
    assert found["asked"] == "False" or float(found["faults"]) <= 8
