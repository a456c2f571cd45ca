"""Envelopes in JAX's compilation cache: another process that meets the same capacities compiles nothing."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import collections, sys
import jax, jax.numpy as jnp, numpy as np
import lanewise as lw

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
found = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: found.update([name.rpartition("/")[2]]))

@lw.record
class Tree:
    word: int
    left: "Tree | None" = None
    right: "Tree | None" = None

@lw.program
def encoded(tree, w):
    if tree.left is None:
        return w["words"][tree.word]
    both = jnp.concatenate([encoded(tree.left, w), encoded(tree.right, w)])
    return jnp.tanh(both @ w["square"])

rng = np.random.default_rng(int(sys.argv[2]))

def pair():
    # Other words, and other sides: the envelope is that of all trees like this one.
    leaf, deep = Tree(int(rng.integers(9))), Tree(0, Tree(int(rng.integers(9))), Tree(1))
    return Tree(0, *([leaf, deep] if rng.random() < 0.5 else [deep, leaf]))

w = {"words": jnp.ones((9, 4)), "square": jnp.ones((8, 4)) / 9}
forest = lw.pack([pair() for _ in range(8)])
run = lw.vmap(encoded, in_axes=(0, None), schedule="levels")
jax.block_until_ready(jax.value_and_grad(lambda w: jnp.sum(run(forest, w) ** 2))(w))

@lw.op
def leaf(w, i):
    return w["words"][i]

@lw.op
def join(w, a, b):
    return jnp.tanh(jnp.concatenate([a, b]) @ w["square"])

def lazily(w, tree):
    if tree.left is None:
        return leaf(w, tree.word)
    return join(w, lazily(w, tree.left), lazily(w, tree.right))

trees = [pair() for _ in range(8)]
jax.block_until_ready(
    jax.value_and_grad(lambda w: jnp.sum(lw.lazy_map(lambda t: lazily(w, t), trees) ** 2))(w)
)
print(dict(found))
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    def run(seed: int) -> dict[str, int]:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        command = [sys.executable, str(script), str(tmp_path / "cache"), str(seed)]
        # Names of compiled code must not depend on the order of sets.
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return ast.literal_eval(done.stdout.splitlines()[-1])

    first, second = run(1), run(2)
    assert first["cache_misses"] > 5
    assert "cache_misses" not in second
    assert second["cache_hits"] == second["compile_requests_use_cache"]
