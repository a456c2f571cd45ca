"""The models of `examples/models` against PyTorch an instance at a time.

Every step has 64 fresh instances of the sizes below. Ours are programs, as `auto` runs them unless `FORMS` says
otherwise: what was chosen is printed. Narrow ones are inside `jax.jit`, as a user has a training step: outside, JAX's
`grad` alone takes two milliseconds. Tapes there have room for 128 records, and on a GPU, where the machine is compiled
again for longer ones. Wide ones are not, as runs by levels and tapes that grow need the host. Records are packed into
arrays when data is loaded, as PyTorch has its objects then; the slice, recording and tables count. On a CPU all run on
one core, and CPU time is compared, so that other work on the machine counts less; on a GPU it is wall time. Values and
gradients are compared first. Then both run over fresh minibatches, of which the compilations are counted: those of XLA,
without which no C++ kernel is called either.

    python benchmarks/dynamic_models.py [--models tree_lstm dag] [--widths 32 256] [--repeats 3]
        [--instances 64] [--device gpu]

An MV-RNN of width 256 has a matrix of 256 KB at each node, and its products take the time however they are started: it
is run at 32 and 64.
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
if hasattr(os, "sched_setaffinity") and "gpu" not in sys.argv:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "models"))

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from _harness import Claim, compilations, finished, report, use_device, usual_arguments
from lanewise.cpp.toolchain import host

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
# Forms other than programs by `auto`, by model and width: options of `lw.vmap`, or plain Python under `lw.lazy_map`.
LAZILY = "lazily"
FORMS: dict[tuple[str, int], Any] = {
    ("dag", 256): LAZILY,
}
# The widest that are inside `jit`, and the records that a lane's tape has room for there, and on a GPU.
INSIDE_JIT = 64
TAPE = 128
# By whether values decide: the targets of forward and training at a large width, and of both at width 32.
TARGETS = {False: (6.0, 12.0, 50.0), True: (4.0, 15.0, 15.0)}
ON_GPU = 50.0


def widths_of(name: str, widths: list[int]) -> list[int]:
    return [min(w, 64) if name == "mv_rnn" else w for w in widths]


def form_of(name: str, width: int, model: Any, instances: Any) -> tuple[Any, Any, bool, str]:
    """What runs a minibatch, and its gradient; whether it is packed; and all that in words."""
    form = FORMS.get((name, width), {})
    if form == LAZILY:
        run = lambda p, given: lw.lazy_map(lambda x: model.lazily(p, x), given)  # noqa: E731
        return run, jax.value_and_grad(lambda p, x: _mean(run(p, x))), False, "recorded lazily"
    inside = width <= INSIDE_JIT and not on_gpu()
    tape = {"tape": TAPE} if inside or on_gpu() else {}
    program = model.measure.with_options(**form, **tape)
    run = lw.vmap(program, in_axes=(None, 0))
    gradient = jax.value_and_grad(lambda p, x: _mean(run(p, x)))
    plan = lw.inspect(program, model.init(width), lw.pack(instances), in_axes=(None, 0)).plan
    chosen = plan.schedule if plan.carrier == "ticks" else plan.carrier
    said = (
        f"a program{' inside jit' if inside else ''}, {'asked to be' if form else 'auto'}: {chosen}"
    )
    return (jax.jit(run), jax.jit(gradient), True, said) if inside else (run, gradient, True, said)


def packed(batches: list[Any]) -> list[Any]:
    """Minibatches as arrays of one size."""
    largest: Any = None
    for batch in batches:
        largest = lw.pack(batch, like=largest)
    return [lw.pack(batch, like=largest) for batch in batches]


@jax.jit
def _mean(found: Any) -> Any:
    total = jnp.sum(found, 0)
    return total[0] / jax.lax.stop_gradient(total[2])


def agree(name: str, peer: Any, params: Any, weights: Any, form: Any, instances: Any) -> None:
    """Values and gradients. Where values decide, rounding may send an instance another way: those are left out."""
    one = getattr(peer, name)
    run, gradient, pack, _ = form
    mine = run(params, lw.pack(instances) if pack else instances)
    theirs = peer.forward(one, weights, instances).cpu().numpy()
    # A GPU's products round their operands.
    near = 2e-2 if on_gpu() else 1e-3
    same = np.isclose(mine, theirs, rtol=near, atol=near).all(1)
    assert same.mean() > (0.9 if MODELS[name][1] else 0.999), f"{name}: {same.mean():.1%} agree"
    chosen = [x for x, ok in zip(instances, same) if ok]
    _, grads = gradient(params, lw.pack(chosen) if pack else chosen)
    peer.training(one, weights, chosen)
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        key = ".".join(str(getattr(k, "key", getattr(k, "name", ""))) for k in path)
        expected = weights[key].grad
        expected = np.zeros(leaf.shape) if expected is None else expected.cpu().numpy()
        scale = max(abs(expected).max(), 1e-3)
        np.testing.assert_allclose(
            leaf, expected, rtol=10 * near, atol=2 * near * scale, err_msg=key
        )


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def timed(fun: Callable[[Any], Any], batches: list[Any]) -> float:
    """The median of seconds over fresh minibatches."""
    clock = time.perf_counter if on_gpu() else time.process_time
    times = []
    for instances in batches:
        start = clock()
        finished(fun(instances))
        times.append(clock() - start)
    return statistics.median(times)


def one_model(name: str, width: int, num: int, repeats: int, compiled: list[str]) -> list[Claim]:
    from dynamic import one_at_a_time as peer

    peer.torch.set_num_threads(1)
    peer.torch.set_default_device("cuda" if on_gpu() else "cpu")
    sizes, decides = MODELS[name]
    model = importlib.import_module(name)
    params = model.init(width)
    weights = peer.torch_weights(params)
    one = getattr(peer, name)
    fresh = max(repeats, 7)
    instances = [model.batch(seed, num, **sizes) for seed in range(WARM_UP + fresh)]
    run, gradient, pack, said = form = form_of(name, width, model, instances[0])
    forward, training = lambda x: run(params, x), lambda x: gradient(params, x)
    batches = packed(instances) if pack else instances

    start = time.perf_counter()
    for given in batches[:WARM_UP]:
        jax.block_until_ready((forward(given), training(given)))
    took = time.perf_counter() - start
    # Large kernels begin on a quick tier; what is timed is the code that a longer run has.
    host.wait()
    for given in batches[:2]:
        jax.block_until_ready((forward(given), training(given)))
    agree(name, peer, params, weights, form, instances[0])
    before = len(compiled)
    mine = batches[WARM_UP:]
    ours = timed(forward, mine), timed(training, mine)
    theirs = (
        timed(lambda x: peer.forward(one, weights, x), instances[WARM_UP:][:repeats]),
        timed(lambda x: peer.training(one, weights, x), instances[WARM_UP:][:repeats]),
    )
    print(
        f"{name}, width {width}, {said}: warm-up of {WARM_UP} minibatches {took:.0f} s,"
        f" {len(compiled) - before} compilations in {2 * len(mine)} steps after it",
        flush=True,
    )
    forward_target, training_target, narrow = TARGETS[decides]
    claims = []
    for k, (way, target) in enumerate((("forward", forward_target), ("training", training_target))):
        wanted = ON_GPU if on_gpu() else narrow if width == 32 else target
        claim = Claim(
            f"{name}, {num} instances, width {width}, {way}, against PyTorch by node",
            ours[k],
            theirs[k],
            f">= {wanted}",
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
    parser.add_argument("--instances", type=int, default=64)
    options = parser.parse_args()
    lw.keep_pages()
    use_device(options.device)
    compiled = compilations()
    claims = []
    for name in options.models:
        for width in widths_of(name, options.widths):
            claims += one_model(name, width, options.instances, options.repeats, compiled)
    report(claims)


if __name__ == "__main__":
    main()
