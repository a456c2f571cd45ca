"""Dynamic networks: a Tree-LSTM over random binary trees, ours against PyTorch by level and node by node.

Ours is run as a table that is built from the forest's arrays, as a recursive program, by levels and inside `jit` (each
lane by itself, which is for narrow networks), and recorded lazily from Python objects. Every step has fresh trees, and
what is done on the host for them (levels, index tables, the slice, recording) counts for all. On a CPU all run on one
core and CPU time is what is compared, so that other work on the machine counts less. The limit is the matrix products
of the same number of rows, without dependences between them.

    python benchmarks/dynamic.py [--widths 32 256] [--trees 64] [--repeats 7] [--no-nodes] [--device gpu]

The contenders are in the package of the same name, which `import dynamic` finds first.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Before anything makes threads.
if hasattr(os, "sched_setaffinity") and "gpu" not in sys.argv:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from _harness import Claim, report, use_device, usual_arguments
from dynamic import program
from dynamic import tree_lstm as ours
from dynamic.forest import Forest, forest, weights
from lanewise.dynamic.lazy import recording
from lanewise.dynamic.record import Recorder
from lanewise.dynamic.run import STORE

MINIBATCHES = 4
# (width, trees) -> ours over PyTorch by level: forward, training. Others have no target of their own.
BY_LEVEL = {
    (256, 64): (1.15, 1.1),
    (512, 64): (1.15, 1.1),
    (256, 256): (1.25, 1.2),
    (512, 256): (1.25, 1.2),
    (32, 64): (3.0, 2.5),
}
ON_GPU = {(32, 256): (9.0, 18.0), (256, 256): (6.0, 10.0), (512, 256): (4.0, 6.0)}
LAZILY = {(256, 64): (1.0, 0.9)}
FINELY = 0.35
BY_NODE = {256: (6.0, 12.0), 32: (50.0, 50.0)}
LIMIT = (0.8, 0.88)
RECORDING_MICROSECONDS = 1.5
HOST_MICROSECONDS = 0.15

Contender = Callable[[int], Any]


def in_turns(
    contenders: Mapping[str, Contender], repeats: int, clock: Callable[[], float]
) -> dict[str, float]:
    """The median time of each, one after the other, each time with the next minibatch.

    Before it is timed, each runs once: caches are its own then, as they are in training.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats):
        for name, contender in contenders.items():
            jax.block_until_ready(contender((turn - 1) % MINIBATCHES))
            start = clock()
            jax.block_until_ready(contender(turn % MINIBATCHES))
            times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def claims_of(
    name: str, took: Mapping[str, float], pairs: Sequence[tuple[str, str, float | None]]
) -> list[Claim]:
    made = []
    for mine, peer, target in pairs:
        if target is not None and peer in took:
            claim = Claim(f"{name}: {mine} against {peer}", took[mine], took[peer], f">= {target}")
            made.append(claim)
            print(
                f"  {mine:<10} {1e3 * claim.ours:9.2f} ms   {peer:<18} {1e3 * claim.peer:9.2f} ms"
                f"   {claim.ratio:6.2f}x, target {claim.target}: {'met' if claim.met else 'missed'}",
                flush=True,
            )
    return made


def warm(
    params: Any, batches: Sequence[Forest], trees: Sequence[Any], packed: Sequence[Any]
) -> None:
    """Compile for all minibatches."""
    before, start = STORE.made, time.perf_counter()
    for some in packed:
        jax.block_until_ready(program.roots_by_program(some, params))
        jax.block_until_ready(program.train_by_program(params, some))
        jax.block_until_ready(program.roots_inside_jit(some, params))
        jax.block_until_ready(program.train_inside_jit(params, some))
    print(
        f"  program: {STORE.made - before} envelopes, {time.perf_counter() - start:.1f} s",
        flush=True,
    )
    before, start = STORE.made, time.perf_counter()
    for batch, objects in zip(batches, trees, strict=True):
        jax.block_until_ready(ours.roots_by_table(params, batch))
        jax.block_until_ready(ours.train_by_table(params, batch))
        jax.block_until_ready(ours.roots_lazily(params, objects))
        jax.block_until_ready(ours.train_lazily(params, objects))
        jax.block_until_ready(ours.roots_finely(params, objects))
        jax.block_until_ready(ours.train_finely(params, objects))
    print(f"  {STORE.made - before} envelopes, {time.perf_counter() - start:.1f} s", flush=True)


def agree(
    params: Any, torch_params: Any, peer: Any, batch: Forest, objects: Any, packed: Any
) -> None:
    loss, grads = ours.train_by_table(params, batch)
    lazily, _ = ours.train_lazily(params, objects)
    by_program, others = program.train_by_program(params, packed)
    inside, inner = program.train_inside_jit(params, packed)
    np.testing.assert_allclose([by_program, inside], loss, rtol=1e-4)
    theirs = peer.by_level_training(torch_params, batch)
    np.testing.assert_allclose(loss, theirs.cpu().numpy(), rtol=1e-4)
    np.testing.assert_allclose(loss, lazily, rtol=1e-4)
    # A GPU's products round their operands.
    near = 1e-3 if jax.default_backend() == "gpu" else 1e-4
    for name, grad in grads.items():
        expected = torch_params[name].grad.cpu().numpy()
        for found in (grad, others[name], inner[name]):
            np.testing.assert_allclose(found, expected, rtol=1e-2, atol=near * abs(expected).max())


def one_size(width: int, trees: int, repeats: int, nodes: bool) -> list[Claim]:
    from dynamic import in_torch as peer

    gpu = jax.default_backend() == "gpu"
    peer.torch.set_num_threads(1)
    batches = [forest(trees, seed) for seed in range(MINIBATCHES)]
    objects = [batch.trees() for batch in batches]
    packed = program.packed(batches)
    numbers = weights(width)
    params = jax.tree.map(jnp.asarray, numbers)
    theirs = peer.parameters(numbers, "cuda" if gpu else "cpu")
    name = f"Tree-LSTM, {trees} trees, width {width}"
    print(f"{name}, {len(batches[0].left)} nodes", flush=True)
    warm(params, batches, objects, packed)
    agree(params, theirs, peer, batches[0], objects[0], packed[0])

    inner_nodes = int((batches[0].left >= 0).sum())
    leaves = len(batches[0].left) - inner_nodes
    x, e = jnp.ones((inner_nodes, 2 * width)), jnp.ones((leaves, width))
    dz, dl = jnp.ones((inner_nodes, 5 * width)), jnp.ones((leaves, 3 * width))
    forward = {
        "table": lambda i: ours.roots_by_table(params, batches[i]),
        "program": lambda i: program.roots_by_program(packed[i], params),
        "in jit": lambda i: program.roots_inside_jit(packed[i], params),
        "lazy": lambda i: ours.roots_lazily(params, objects[i]),
        "fine ops": lambda i: ours.roots_finely(params, objects[i]),
        "PyTorch by level": lambda i: peer.wait(peer.by_level_forward(theirs, batches[i])),
        "the limit": lambda i: ours.limit_forward(params, x, e),
    }
    training = {
        "table": lambda i: ours.train_by_table(params, batches[i]),
        "program": lambda i: program.train_by_program(params, packed[i]),
        "in jit": lambda i: program.train_inside_jit(params, packed[i]),
        "lazy": lambda i: ours.train_lazily(params, objects[i]),
        "fine ops": lambda i: ours.train_finely(params, objects[i]),
        "PyTorch by level": lambda i: peer.wait(peer.by_level_training(theirs, batches[i])),
        "the limit": lambda i: ours.limit_training(params, x, e, dz, dl),
    }
    claims = []
    clock = time.perf_counter if gpu else time.process_time
    for k, (way, contenders) in enumerate({"forward": forward, "training": training}.items()):
        took = in_turns(contenders, repeats, clock)
        if nodes:
            by_node = peer.by_node_forward if k == 0 else peer.by_node_training
            one = functools.partial(by_node, theirs)
            took |= in_turns(
                {"PyTorch by node": lambda i, one=one: peer.wait(one(objects[i]))}, 1, clock
            )
        targets = {key: found[k] for key, found in (ON_GPU if gpu else BY_LEVEL).items()}
        lazily = {key: found[k] for key, found in LAZILY.items()}
        limit = LIMIT[k] if width >= 256 and not gpu else None
        narrow = width in BY_NODE and width < 64 and not gpu
        pairs = [
            ("table", "PyTorch by level", targets.get((width, trees))),
            ("program", "PyTorch by level", targets.get((width, trees))),
            # Where products are large, levels are the better way.
            ("in jit", "PyTorch by level", targets.get((width, trees)) if narrow else None),
            ("in jit", "PyTorch by node", BY_NODE[width][k] if narrow else None),
            ("program", "PyTorch by node", BY_NODE[width][k] if width in BY_NODE else None),
            ("table", "PyTorch by node", BY_NODE[width][k] if width in BY_NODE else None),
            ("lazy", "PyTorch by level", lazily.get((width, trees))),
            ("fine ops", "PyTorch by level", FINELY if (width, trees) in LAZILY else None),
            ("fine ops", "PyTorch by node", 3.0 if (width, trees) in LAZILY else None),
            ("table", "the limit", limit),
            ("program", "the limit", limit),
        ]
        claims += claims_of(f"{name}, {way}", took, pairs)
    return claims


def host_costs(trees: int, repeats: int) -> list[Claim]:
    """What the host does for a node: levels and index tables, the slice, and recording it lazily."""
    width = 32
    params = jax.tree.map(jnp.asarray, weights(width))
    batches = [forest(trees, seed) for seed in range(MINIBATCHES)]
    objects = [batch.trees() for batch in batches]
    nodes = len(batches[0].left)

    def recorded(i: int) -> None:
        with recording(Recorder()):
            for tree in objects[i]:
                _visit(params, tree)

    def packed(i: int) -> None:
        ours.prepared(batches[i], width, True)

    sliced, whole = program.on_the_host(params, program.packed(batches))
    parts: dict[str, tuple[Contender, float]] = {
        "recording": (recorded, RECORDING_MICROSECONDS),
        "levels and tables": (packed, HOST_MICROSECONDS),
        "slice and levels": (sliced, HOST_MICROSECONDS),
        "slice, levels and tables": (whole, HOST_MICROSECONDS),
    }
    took = in_turns({name: run for name, (run, _) in parts.items()}, repeats, time.process_time)
    claims = []
    for name, (_, bar) in parts.items():
        microseconds = 1e6 * took[name] / nodes
        claim = Claim(
            f"{name}, µs a node, {trees} trees", microseconds, 1.0, f"<= {bar}", share=True
        )
        print(f"{claim.claim}: {microseconds:.2f}, target {claim.target}", flush=True)
        claims.append(claim)
    return claims


def _visit(params: Any, tree: Any) -> Any:
    if type(tree) is int:
        return ours.lazy_leaf(params["words"], params["leaf"], params["leaf_bias"], tree)
    h0, c0 = _visit(params, tree[0])
    h1, c1 = _visit(params, tree[1])
    return ours.lazy_inner(params["inner"], params["inner_bias"], h0, c0, h1, c1)


def main() -> None:
    parser = usual_arguments(__doc__, repeats=7)
    parser.add_argument("--widths", type=int, nargs="*", default=[32, 256])
    parser.add_argument("--trees", type=int, nargs="*", default=[64])
    parser.add_argument("--no-nodes", action="store_true", help="leave PyTorch node by node out")
    options = parser.parse_args()
    # For ours and for PyTorch alike.
    lw.keep_pages()
    use_device(options.device)
    claims = host_costs(256, options.repeats)
    for trees in options.trees:
        for width in options.widths:
            claims += one_size(width, trees, options.repeats, not options.no_nodes)
    report(claims)


if __name__ == "__main__":
    main()
