"""The models of `examples/models`: ours, recorded lazily, against PyTorch an instance at a time.

Every step has 64 fresh instances of the sizes below, and recording and tables count for ours. All run on one core,
and CPU time is compared, so that other work on the machine counts less. Values and gradients are compared first. Then
both run over fresh minibatches, of which the compilations are counted.

    python benchmarks/dynamic_models.py [--models tree_lstm dag] [--widths 32 256] [--repeats 3]

An MV-RNN of width 256 has a matrix of 256 KB at each node, and its products take the time whoever starts them: it is
run at 32 and 64.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before anything makes threads.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "models"))

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from _harness import Claim, compilations, report, usual_arguments

INSTANCES = 64
WARM_UP = 10
# Sizes of instances, and whether values decide.
MODELS: dict[str, tuple[dict[str, Any], bool]] = {
    "tree_lstm": ({"leaves": (20, 41)}, False),
    "child_sum": ({"size": (20, 41)}, False),
    "tagger": ({"words": (10, 31)}, False),
    "mv_rnn": ({"leaves": (20, 41)}, False),
    "nested_rnn": ({"sentences": (3, 9)}, False),
    "dag": ({"size": (20, 41)}, False),
    "stack_rnn": ({"pairs": (8, 20)}, True),
    "drnn": ({}, True),
    "transition_parser": ({"deep": 0.4}, True),
}
# By whether values decide: the targets of forward and training at a large width, and of both at width 32.
TARGETS = {False: (6.0, 12.0, 50.0), True: (4.0, 4.0, 15.0)}


def widths_of(name: str, widths: list[int]) -> list[int]:
    return [min(w, 64) if name == "mv_rnn" else w for w in widths]


def loss(model: Any, params: Any, instances: Any) -> Any:
    return _mean(lw.lazy_map(lambda x: model.measure(params, x), instances))


@jax.jit
def _mean(found: Any) -> Any:
    total = jnp.sum(found, 0)
    return total[0] / jax.lax.stop_gradient(total[2])


def agree(name: str, peer: Any, params: Any, weights: Any, model: Any, instances: Any) -> None:
    """Values and gradients. Where values decide, rounding may send an instance another way: those are left out."""
    one = getattr(peer, name)
    mine = lw.lazy_map(lambda x: model.measure(params, x), instances)
    theirs = peer.forward(one, weights, instances).numpy()
    same = np.isclose(mine, theirs, rtol=1e-3, atol=1e-3).all(1)
    assert same.mean() > (0.9 if MODELS[name][1] else 0.999), f"{name}: {same.mean():.1%} agree"
    chosen = [x for x, ok in zip(instances, same) if ok]
    grads = jax.grad(lambda p: loss(model, p, chosen))(params)
    peer.training(one, weights, chosen)
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        key = ".".join(str(getattr(k, "key", getattr(k, "name", ""))) for k in path)
        expected = weights[key].grad
        expected = np.zeros(leaf.shape) if expected is None else expected.numpy()
        scale = max(abs(expected).max(), 1e-3)
        np.testing.assert_allclose(leaf, expected, rtol=1e-2, atol=2e-3 * scale, err_msg=key)


def timed(fun: Callable[[Any], Any], batches: list[Any]) -> float:
    """The median of CPU seconds over fresh minibatches."""
    times = []
    for instances in batches:
        start = time.process_time()
        jax.block_until_ready(fun(instances))
        times.append(time.process_time() - start)
    return statistics.median(times)


def one_model(name: str, width: int, repeats: int, compiled: list[str]) -> list[Claim]:
    from dynamic import one_at_a_time as peer

    peer.torch.set_num_threads(1)
    sizes, decides = MODELS[name]
    model = importlib.import_module(name)
    params = model.init(width)
    weights = peer.torch_weights(params)
    one = getattr(peer, name)
    forward = lambda x: lw.lazy_map(lambda i: model.measure(params, i), x)  # noqa: E731
    gradient = jax.value_and_grad(lambda p, x: loss(model, p, x))
    training = lambda x: gradient(params, x)  # noqa: E731

    def batch(seed: int) -> Any:
        return model.batch(seed, INSTANCES, **sizes)

    start = time.perf_counter()
    for seed in range(WARM_UP):
        jax.block_until_ready((forward(batch(seed)), training(batch(seed))))
    took = time.perf_counter() - start
    agree(name, peer, params, weights, model, batch(0))
    before = len(compiled)
    mine = [batch(100 + seed) for seed in range(max(repeats, 7))]
    ours = timed(forward, mine), timed(training, mine)
    theirs = (
        timed(lambda x: peer.forward(one, weights, x), mine[:repeats]),
        timed(lambda x: peer.training(one, weights, x), mine[:repeats]),
    )
    print(
        f"{name}, width {width}: warm-up of {WARM_UP} minibatches {took:.0f} s,"
        f" {len(compiled) - before} compilations in {2 * len(mine)} steps after it",
        flush=True,
    )
    forward_target, training_target, narrow = TARGETS[decides]
    claims = []
    for k, (way, target) in enumerate((("forward", forward_target), ("training", training_target))):
        claim = Claim(
            f"{name}, {INSTANCES} instances, width {width}, {way}, against PyTorch by node",
            ours[k],
            theirs[k],
            f">= {narrow if width == 32 else target}",
        )
        claims.append(claim)
        print(
            f"  {way:<9} ours {1e3 * claim.ours:8.1f} ms, PyTorch {1e3 * claim.peer:9.1f} ms,"
            f" {claim.ratio:6.1f}x, target {claim.target}: {'met' if claim.met else 'missed'}",
            flush=True,
        )
    return claims


def main() -> None:
    parser = usual_arguments(__doc__, repeats=3)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--widths", type=int, nargs="*", default=[32, 256])
    options = parser.parse_args()
    lw.keep_pages()
    compiled = compilations()
    claims = []
    for name in options.models:
        for width in widths_of(name, options.widths):
            claims += one_model(name, width, options.repeats, compiled)
    report(claims)


if __name__ == "__main__":
    main()
