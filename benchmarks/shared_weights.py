"""Gradients by weights that lanes share, where lanes go ways of their own: time over the forward run's, and memory.

A binary Tree-LSTM written as a recursion (random trees of 20 to 40 leaves), look-ups in a table, an early-exit MLP and
a mixture of experts. The bar is a step of three forward runs: each product has two in reverse. A loop saves states and
runs its body again, which makes it four, so that a loop of products cannot meet the bar. The memory that a lane more
takes is given as a share of the weights'; a tree's is its tape, and says nothing.

    python benchmarks/shared_weights.py [--trees 64] [--lanes 256] [--repeats 5] [--device gpu]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from _harness import Claim, compile_seconds, medians, report, use_device, usual_arguments
from control.networks import early_exit_case, experts_case

WORDS = 1000


@dataclass(frozen=True)
class Subject:
    """A program, its weights, and what each lane has: `run(weights, lanes)` gives an array of answers."""

    name: str
    run: Callable[[Any, Any], Any]
    weights: Any
    lanes: Any


def tree_lstm(width: int) -> Any:
    @lw.program
    def tree(weights: Any, left: Any, right: Any, word: Any, node: Any) -> Any:
        if left[node] < 0:
            gates = weights["words"][word[node]] @ weights["leaf"] + weights["leaf_bias"]
            i, o, u = jnp.split(gates, 3)
            c = jax.nn.sigmoid(i) * jnp.tanh(u)
            return jax.nn.sigmoid(o) * jnp.tanh(c), c
        h0, c0 = tree(weights, left, right, word, left[node])
        h1, c1 = tree(weights, left, right, word, right[node])
        gates = jnp.concatenate([h0, h1]) @ weights["inner"] + weights["inner_bias"]
        i, f0, f1, o, u = jnp.split(gates, 5)
        c = jax.nn.sigmoid(i) * jnp.tanh(u) + jax.nn.sigmoid(f0) * c0 + jax.nn.sigmoid(f1) * c1
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    return tree


def random_tree(rng: np.random.Generator, leaves: int) -> list[tuple[int, int]]:
    """The children of each node, -1 for none; the root is the last."""
    nodes: list[tuple[int, int]] = []

    def grow(count: int) -> int:
        children = (-1, -1)
        if count > 1:
            split = int(rng.integers(1, count))
            children = (grow(split), grow(count - split))
        nodes.append(children)
        return len(nodes) - 1

    grow(leaves)
    return nodes


def trees(count: int, width: int) -> Subject:
    rng = np.random.default_rng(0)
    most = 2 * 40 - 1
    left, right = np.full((2, count, most), -1, np.int32)
    root = np.zeros(count, np.int32)
    for i in range(count):
        nodes = np.array(random_tree(rng, int(rng.integers(20, 41))), np.int32)
        left[i, : len(nodes)], right[i, : len(nodes)] = nodes.T
        root[i] = len(nodes) - 1
    word = rng.integers(0, WORDS, (count, most)).astype(np.int32)

    def normal(*shape: int) -> Any:
        return jnp.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]), jnp.float32)

    weights = {
        "words": normal(WORDS, width) * np.sqrt(WORDS),
        "leaf": normal(width, 3 * width),
        "leaf_bias": jnp.zeros(3 * width),
        "inner": normal(2 * width, 5 * width),
        "inner_bias": jnp.zeros(5 * width),
    }
    # A tree has as many records as nodes, and is as deep as it has leaves at the worst.
    program = tree_lstm(width).with_options(tape=most, max_depth=40)

    def run(weights: Any, lanes: Any) -> Any:
        return jax.vmap(program, (None, 0, 0, 0, 0))(weights, *lanes)[0]

    lanes = tuple(map(jnp.asarray, (left, right, word, root)))
    return Subject(f"Tree-LSTM as a recursion, H={width}", run, weights, lanes)


@lw.program
def looked_up(table: Any, x: Any, n: Any) -> Any:
    while n > 0:
        x = jnp.sin(x) + table[(n * 7919) % table.shape[0]]
        n = n - 1
    return x


def table(count: int) -> Subject:
    lanes = (jnp.linspace(0.1, 1.0, count), 20 + jnp.arange(count, dtype=jnp.int32) % 61)

    def run(table: Any, lanes: Any) -> Any:
        return jax.vmap(looked_up, (None, 0, 0))(table, *lanes)

    return Subject("look-ups in a table of 100,000", run, jnp.linspace(0.0, 1.0, 100_000), lanes)


def network(name: str, case: Any) -> Subject:
    """A case of the control suite, by the arguments that its lanes share."""
    shared = [axis is None for axis in case.in_axes]
    arguments = [jnp.asarray(x) for x in case.arguments]

    def run(weights: Any, lanes: Any) -> Any:
        given = iter(weights), iter(lanes)
        found = jax.vmap(case.ours, case.in_axes)(*(next(given[not own]) for own in shared))
        return found[0] if isinstance(found, tuple) else found

    weights = tuple(x for x, own in zip(arguments, shared, strict=True) if own)
    return Subject(name, run, weights, tuple(x for x, own in zip(arguments, shared) if not own))


def subjects(num_trees: int, lanes: int) -> list[Subject]:
    return [
        trees(num_trees, 32),
        trees(num_trees, 256),
        table(lanes),
        network("early-exit MLP", early_exit_case(lanes, small=False)),
        network("mixture of experts", experts_case(lanes, small=False)),
    ]


def compiled(subject: Subject) -> tuple[Any, Any, float]:
    """The forward run and the gradient, compiled, and how long the gradient took to compile."""

    def loss(weights: Any, lanes: Any) -> Any:
        return (subject.run(weights, lanes) ** 2).sum()

    arguments = (subject.weights, subject.lanes)
    forward, _ = compile_seconds(subject.run, arguments)
    gradient, seconds = compile_seconds(jax.grad(loss), arguments)
    return forward, gradient, seconds


def measure(subject: Subject, count: int, repeats: int) -> Claim:
    forward, gradient, seconds = compiled(subject)
    times = medians(
        {"forward": forward, "gradient": gradient}, (subject.weights, subject.lanes), repeats
    )
    claim = Claim(
        f"shared weights: {subject.name}, {count} lanes, gradient over forward",
        times["gradient"],
        times["forward"],
        "<= 3",
    )
    print(
        f"{subject.name}, {count} lanes: forward {1e3 * times['forward']:.2f} ms, gradient"
        f" {1e3 * times['gradient']:.2f} ms, {claim.ratio:.2f} of it, compiled in {seconds:.1f} s"
    )
    return claim


def memory(fewer: Subject, more: Subject, lanes: tuple[int, int]) -> Claim:
    """What a lane more takes in a gradient, as a share of what the weights take."""
    found = [compiled(s)[1].memory_analysis().temp_size_in_bytes for s in (fewer, more)]
    weights = sum(x.nbytes for x in jax.tree.leaves(fewer.weights))
    each = max(found[1] - found[0], 0) / (lanes[1] - lanes[0])
    print(f"{fewer.name}: {each:,.0f} bytes for each lane more, weights {weights:,} bytes")
    name = f"shared weights: {fewer.name}, memory of a lane over the weights'"
    return Claim(name, each, float(weights), "<= 0.1")


def main() -> None:
    parser = usual_arguments(__doc__)
    parser.add_argument("--trees", type=int, default=64)
    parser.add_argument("--lanes", type=int, default=256)
    arguments = parser.parse_args()
    use_device(arguments.device)
    num_trees, lanes = arguments.trees, arguments.lanes
    few = subjects(num_trees, lanes)
    counts = [num_trees, num_trees, *[lanes] * 3]
    claims = [measure(s, n, arguments.repeats) for s, n in zip(few, counts, strict=True)]
    for subject, more in zip(few[2:], subjects(num_trees, 2 * lanes)[2:], strict=True):
        claims.append(memory(subject, more, (lanes, 2 * lanes)))
    report(claims)


if __name__ == "__main__":
    main()
