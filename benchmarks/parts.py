"""A recursion over trees, then code that values decide: in two parts, as one program without levels, and in PyTorch.

An encoder makes a vector of each tree; layers refine it until a head is sure enough. These are eight layers ("early
exits"), or one that is applied again and again ("settling"). Ours is one
program for one tree: `auto` makes the encoder's calls first, level by level, and runs the layers on the answers. The
same program with levels left out is how it ran before. PyTorch is written by hand for the minibatch: the encoder level
by level, with index tables made for each minibatch, the layers for the trees that are not done. All run on one core,
and CPU time is compared, so that other work on the machine counts less.

    python benchmarks/parts.py [--widths 256] [--trees 64] [--repeats 7] [--no-training]
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

# Before anything makes threads.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from _harness import Claim, in_turns, report, usual_arguments
from dynamic.forest import WORDS, Forest, forest
from lanewise.plan import choose

LAYERS, CLASSES, SURE = 8, 5, 0.5


@lw.record
class Tree:
    word: int
    left: Tree | None = None
    right: Tree | None = None


@lw.program
def encoded(tree, w):
    if tree.left is None:
        return jnp.tanh(w["words"][tree.word])
    children = jnp.concatenate([encoded(tree.left, w), encoded(tree.right, w)])
    return jnp.tanh(children @ w["join"])


@lw.program
def exits(tree, w):
    h = encoded(tree, w)
    for layer in w["layers"]:
        if jnp.max(jax.nn.softmax(h @ w["head"])) > SURE:
            break
        h = h + jnp.tanh(h @ layer)
    return jax.nn.log_softmax(h @ w["head"])


@lw.program
def settles(tree, w):
    h = encoded(tree, w)
    for _ in range(LAYERS):
        if jnp.max(jax.nn.softmax(h @ w["head"])) > SURE:
            break
        h = h + jnp.tanh(h @ w["layers"][0])
    return jax.nn.log_softmax(h @ w["head"])


PROGRAMS = {"early exits": exits, "settling": settles}


def weights(width: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {
        "words": (WORDS, width),
        "join": (2 * width, width),
        "layers": (LAYERS, width, width),
        "head": (width, CLASSES),
    }
    made = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    return {k: x if k == "words" else x / np.float32(np.sqrt(x.shape[-2])) for k, x in made.items()}


def records(batch: Forest) -> list[Tree]:
    def of(tree: Any) -> Tree:
        return Tree(0, of(tree[0]), of(tree[1])) if isinstance(tree, tuple) else Tree(int(tree))

    return [of(tree) for tree in batch.trees()]


def ours(kind: str, packed: Any, w: Any, *, train: bool, **options: Any) -> Callable[[], Any]:
    run = lw.vmap(PROGRAMS[kind], in_axes=(0, None), **options)
    loss = jax.jit(lambda rows: -jnp.mean(rows[:, 0]))
    if train:
        return lambda: jax.block_until_ready(jax.grad(lambda w: loss(run(packed, w)))(w))
    return lambda: jax.block_until_ready(run(packed, w))


def in_torch(kind: str, batch: Forest, w: Any, *, train: bool) -> Callable[[], Any]:
    """By level; rows of a minibatch are in the order of levels."""
    import torch

    torch.set_num_threads(1)
    held = {k: torch.tensor(v, requires_grad=train) for k, v in w.items()}

    def logits() -> Any:
        level = np.zeros(len(batch.left), np.int64)
        for i, (left, right) in enumerate(zip(batch.left.tolist(), batch.right.tolist())):
            if left >= 0:
                level[i] = 1 + max(level[left], level[right])
        order = np.argsort(level, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        ends = np.searchsorted(level[order], np.arange(level.max() + 2))
        rows = [
            torch.tanh(held["words"][torch.from_numpy(batch.word[order[: ends[1]]].astype(int))])
        ]
        done = rows[0]
        for k in range(1, len(ends) - 1):
            nodes = order[ends[k] : ends[k + 1]]
            left, right = (torch.from_numpy(place[x[nodes]]) for x in (batch.left, batch.right))
            pair = torch.cat([done[left], done[right]], 1)
            rows.append(torch.tanh(pair @ held["join"]))
            done = torch.cat(rows)
        h = done[torch.from_numpy(place[batch.root])]
        scores = h @ held["head"]
        layers = held["layers"] if kind == "early exits" else [held["layers"][0]] * LAYERS
        for layer in layers:
            left = torch.nonzero(torch.softmax(scores.detach(), 1).amax(1) <= SURE)[:, 0]
            if not len(left):
                break
            now = h[left]
            now = now + torch.tanh(now @ layer)
            h = h.index_copy(0, left, now)
            scores = scores.index_copy(0, left, now @ held["head"])
        return torch.log_softmax(scores, 1)

    def step() -> Any:
        found = torch.autograd.grad(-logits()[:, 0].mean(), list(held.values()))
        return dict(zip(held, (x.numpy() for x in found), strict=True))

    def run() -> Any:
        with torch.inference_mode():
            return logits().numpy()

    return step if train else run


def without_levels(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same as `auto` would run it if there were no levels: for more lanes than anyone has."""

    def called() -> Any:
        before = choose.FEWEST_LANES_BY_LEVELS
        choose.FEWEST_LANES_BY_LEVELS = 1 << 60
        try:
            return run()
        finally:
            choose.FEWEST_LANES_BY_LEVELS = before

    return called


def timed(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def measure(kind: str, width: int, trees: int, repeats: int, *, train: bool) -> list[Claim]:
    batch, w = forest(trees, seed=0), weights(width)
    packed, params = lw.pack(records(batch)), jax.tree.map(jnp.asarray, w)
    found = {"in parts": ours(kind, packed, params, train=train)}
    # How a job runs is decided once: with another option it is another job.
    found["as a whole"] = without_levels(ours(kind, packed, params, train=train, max_depth=1000))
    if importlib.util.find_spec("torch") is not None:
        found["PyTorch by level"] = in_torch(kind, batch, w, train=train)
    title = f"{kind} after trees, H={width}, {trees} trees, {'training' if train else 'forward'}"
    answers = []
    for name, run in found.items():
        start = time.perf_counter()
        answers.append(run())
        print(f"{title}: {name}: first call {time.perf_counter() - start:.1f} s", flush=True)
    for other in answers[1:]:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-3), other, answers[0]
        )
    claims = []
    for peer, target in (("as a whole", ">= 1"), ("PyTorch by level", ">= 1")):
        if peer in found:
            pair = [(name, lambda run=found[name]: timed(run)) for name in ("in parts", peer)]
            claims.append(in_turns(f"parts: {title}, over {peer}", target, *pair, repeats))  # type: ignore[arg-type]
    return claims


def main() -> None:
    parser = usual_arguments(__doc__, repeats=7)
    parser.add_argument("--widths", type=int, nargs="+", default=[256])
    parser.add_argument("--trees", type=int, default=64)
    parser.add_argument("--no-training", action="store_true")
    given = parser.parse_args()
    claims = []
    for width in given.widths:
        for kind, train in itertools.product(PROGRAMS, (False, True)):
            if not (train and given.no_training):
                claims += measure(kind, width, given.trees, given.repeats, train=train)
    report(claims)


if __name__ == "__main__":
    main()
