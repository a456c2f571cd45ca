"""Dynamic networks: a Tree-LSTM over random binary trees, ours against PyTorch by level and node by node.

Ours is run as a table that is built from the forest's arrays, as a recursive program, by levels and inside `jit` (each
lane separately, which is for narrow networks), and recorded lazily from Python objects. Every step has fresh trees, and
what is done on the host for them (levels, index tables, the slice, recording) counts for all; on a GPU there is a row
too for tables that threads of the host make meanwhile (`lw.ahead`), and one for tables made before. On a CPU all run on
one core and CPU time is what is compared, so that other work on the machine counts less. On a GPU each takes several
minibatches in a row before the host waits, as in training, and wall time is compared. The limit is the matrix products
of the same number of rows, without dependences between them.

    python benchmarks/dynamic.py [--widths 32 256] [--trees 64] [--repeats 7] [--no-nodes] [--device gpu]

The contenders are in the package of the same name, which `import dynamic` finds first.
"""

from __future__ import annotations

import itertools
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
from _harness import Claim, finished, report, use_device, usual_arguments
from dynamic import program
from dynamic import tree_lstm as ours
from dynamic.forest import forest, weights
from lanewise.dynamic.lazy import recording
from lanewise.dynamic.record import Recorder
from lanewise.dynamic.run import STORE

MINIBATCHES = 4
# Steps before the host waits, on a GPU.
IN_A_ROW = 8
READY, READY_PEER = "table, made before", "PyTorch by level, tables made before"
# The same tables made on threads while the device works, and how many steps before; and so for the program.
AHEAD, STEPS_AHEAD, THREADS = "table, made ahead", 4, 3
PROGRAM_AHEAD = "program, prepared ahead"
# Fresh minibatches.
EPOCH = 12
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
    contenders: Mapping[str, Contender],
    repeats: int,
    clock: Callable[[], float],
    in_a_row: int = 1,
) -> dict[str, float]:
    """The median time of each, one after the other, each time with the next minibatches.

    Before it is timed, each runs once: caches are its own then, as they are in training.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats):
        for name, contender in contenders.items():
            out = contender((turn - 1) % MINIBATCHES)
            finished(out)
            start = clock()
            for step in range(in_a_row):
                out = contender((turn + step) % MINIBATCHES)
            finished(out)
            times[name].append((clock() - start) / in_a_row)
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
                f"  {mine:<17} {1e3 * claim.ours:9.2f} ms   {peer:<18} {1e3 * claim.peer:9.2f} ms"
                f"   {claim.ratio:6.2f}x, target {claim.target}: {'met' if claim.met else 'missed'}",
                flush=True,
            )
    return made


def compiled(ways: Mapping[str, Contender]) -> dict[str, float]:
    """Run each for all minibatches; gives how long the first call of each took."""
    first = {}
    before, start = STORE.made, time.perf_counter()
    for name, way in ways.items():
        for i in range(MINIBATCHES):
            begin = time.perf_counter()
            finished(way(i))
            first.setdefault(name, time.perf_counter() - begin)
    took = time.perf_counter() - start
    print(f"  {STORE.made - before} envelopes, compiled and run in {took:.1f} s", flush=True)
    return first


def agree(training: Mapping[str, Contender], torch_params: Any) -> None:
    """Losses and gradients of all ways to train are those of PyTorch by level."""
    expected = training["PyTorch by level"](0).cpu().numpy()
    gradients = {name: p.grad.cpu().numpy() for name, p in torch_params.items()}
    # A GPU's products round their operands.
    near = 1e-3 if jax.default_backend() == "gpu" else 1e-4
    for way, train in training.items():
        if way in ("PyTorch by level", READY_PEER, "the limit"):
            continue
        loss, grads = train(0)
        np.testing.assert_allclose(loss, expected, rtol=1e-4, err_msg=way)
        for name, grad in grads.items():
            bound = near * abs(gradients[name]).max()
            np.testing.assert_allclose(
                grad, gradients[name], rtol=1e-2, atol=bound, err_msg=f"{way}: {name}"
            )


def an_epoch(params: Any, trees: int) -> list[Claim]:
    """How many envelopes fresh minibatches ask for, and how long the first steps with them took."""
    before, slowest = STORE.made, 0.0
    for seed in range(100, 100 + EPOCH):
        made, batch = STORE.made, forest(trees, seed)
        start = time.perf_counter()
        finished(ours.train_by_table(params, batch))
        if STORE.made > made:
            slowest = max(slowest, time.perf_counter() - start)
    print(f"  an epoch of {EPOCH}: the slowest new envelope took {slowest:.1f} s")
    name = f"Tree-LSTM, {trees} trees, envelopes for {EPOCH} fresh minibatches"
    return [Claim(name, STORE.made - before, 1.0, "<= 4", share=True)]


def contenders(
    width: int, trees: int, params: Any, theirs: Any, gpu: bool
) -> tuple[dict[str, Contender], dict[str, Contender], dict[str, Contender]]:
    """Forward runs, training steps, and PyTorch node by node in both."""
    from dynamic import in_torch as peer

    batches = [forest(trees, seed) for seed in range(MINIBATCHES)]
    objects = [batch.trees() for batch in batches]
    packed = program.packed(batches)
    # Control is decided where the host has the trees.
    near = jax.device_get(packed)
    ready_for = program.READY_FOR
    print(f"{named(width, trees)}, {len(batches[0].left)} nodes", flush=True)
    inner_nodes = int((batches[0].left >= 0).sum())
    leaves = len(batches[0].left) - inner_nodes
    x, e = jnp.ones((inner_nodes, 2 * width)), jnp.ones((leaves, width))
    dz, dl = jnp.ones((inner_nodes, 5 * width)), jnp.ones((leaves, 3 * width))
    forward: dict[str, Contender] = {
        "table": lambda i: ours.roots_by_table(params, batches[i]),
        "program": lambda i: program.roots_by_program(packed[i], params),
        "program, prepared": lambda i: program.roots_prepared(
            params, packed[i], ready_for[False](near[i], params)
        ),
        "lazy": lambda i: ours.roots_lazily(params, objects[i]),
        "PyTorch by level": lambda i: peer.by_level_forward(theirs, batches[i]),
        "the limit": lambda i: ours.limit_forward(params, x, e),
    }
    training: dict[str, Contender] = {
        "table": lambda i: ours.train_by_table(params, batches[i]),
        "program": lambda i: program.train_by_program(params, packed[i]),
        "program, prepared": lambda i: program.train_prepared(
            params, packed[i], ready_for[True](near[i], params)
        ),
        "lazy": lambda i: ours.train_lazily(params, objects[i]),
        "PyTorch by level": lambda i: peer.by_level_training(theirs, batches[i]),
        "the limit": lambda i: ours.limit_training(params, x, e, dz, dl),
    }
    if gpu:
        # An op a node has a target on the CPU alone.
        del forward["lazy"], training["lazy"]
        # What the device takes, where a loader has made the tables beside: of both.
        made = [
            made_ahead(lambda i, g=gradient: ours.prepared(batches[i], width, g))
            for gradient in (False, True)
        ]
        forward[AHEAD] = lambda i: ours.roots_by_table(params, batches[i], made[False](i))
        training[AHEAD] = lambda i: ours.train_by_table(params, batches[i], made[True](i))
        decided = [
            made_ahead(lambda i, g=gradient: ready_for[g](near[i], params))
            for gradient in (False, True)
        ]
        forward[PROGRAM_AHEAD] = lambda i: program.roots_prepared(
            params, packed[i], decided[False](i)
        )
        training[PROGRAM_AHEAD] = lambda i: program.train_prepared(
            params, packed[i], decided[True](i)
        )
        device = theirs["words"].device
        torch_tables = [peer.tables(batch, device) for batch in batches]
        forward |= {
            READY: lambda i: ours.roots_by_table(params, batches[i], tables[False][i]),
            READY_PEER: lambda i: peer.by_level_forward(theirs, batches[i], torch_tables[i]),
        }
        training |= {
            READY: lambda i: ours.train_by_table(params, batches[i], tables[True][i]),
            READY_PEER: lambda i: peer.by_level_training(theirs, batches[i], torch_tables[i]),
        }
    else:
        # Lanes run separately on the CPU only, and small ops one by one are no way to use a GPU.
        forward["in jit"] = lambda i: program.roots_inside_jit(packed[i], params)
        training["in jit"] = lambda i: program.train_inside_jit(params, packed[i])
        forward["fine ops"] = lambda i: ours.roots_finely(params, objects[i])
        training["fine ops"] = lambda i: ours.train_finely(params, objects[i])
    # Made twice: the first may be for an envelope that a later minibatch makes grow.
    tables: dict[bool, Any] = {}
    for gradient in (False, True, False, True) if gpu else ():
        ready = [ours.prepared(batch, width, gradient) for batch in batches]
        tables[gradient] = jax.device_put(ready)
    by_node: dict[str, Contender] = {
        "forward": lambda i: peer.by_node_forward(theirs, objects[i]),
        "training": lambda i: peer.by_node_training(theirs, objects[i]),
    }
    return forward, training, by_node


def made_ahead(prepared: Contender) -> Contender:
    """Gives what is prepared for a minibatch, where minibatches are asked for in turn."""

    def make(i: int) -> tuple[int, Any]:
        return i, prepared(i)

    turns = itertools.cycle(range(MINIBATCHES))
    stream = lw.ahead(make, turns, depth=STEPS_AHEAD, threads=THREADS)
    return lambda i: next(ready for j, ready in stream if j == i)


def named(width: int, trees: int) -> str:
    return f"Tree-LSTM, {trees} trees, width {width}"


def one_size(width: int, trees: int, repeats: int, nodes: bool) -> list[Claim]:
    from dynamic import in_torch as peer

    gpu = jax.default_backend() == "gpu"
    peer.torch.set_num_threads(1)
    numbers = weights(width)
    params = jax.tree.map(jnp.asarray, numbers)
    theirs = peer.parameters(numbers, "cuda" if gpu else "cpu")
    name = named(width, trees)
    forward, training, by_node = contenders(width, trees, params, theirs, gpu)
    claims = []
    for way, group in {"forward": forward, "training": training}.items():
        first = compiled(group)
        for mine in ("table", "program"):
            print(f"  first call, {way}, {mine}: {first[mine]:.1f} s")
            if gpu:
                text = f"{name}, first call, {way}, {mine}, s"
                claims.append(Claim(text, first[mine], 1.0, "<= 10", share=True))
    agree(training, theirs)
    clock = time.perf_counter if gpu else time.process_time
    for k, (way, group) in enumerate({"forward": forward, "training": training}.items()):
        took = in_turns(group, repeats, clock, IN_A_ROW if gpu else 1)
        if nodes:
            took |= in_turns({"PyTorch by node": by_node[way]}, 1, clock)
        targets = {key: found[k] for key, found in (ON_GPU if gpu else BY_LEVEL).items()}
        lazily = {key: found[k] for key, found in ({} if gpu else LAZILY).items()}
        limit = LIMIT[k] if width >= 256 and not gpu else None
        narrow = width in BY_NODE and width < 64 and not gpu
        by_node_target = BY_NODE[width][k] if width in BY_NODE else None
        fine = None if (width, trees) not in lazily else FINELY
        pairs = [
            ("table", "PyTorch by level", targets.get((width, trees))),
            ("program", "PyTorch by level", targets.get((width, trees))),
            (READY, READY_PEER, targets.get((width, trees)) if gpu else None),
            (AHEAD, "PyTorch by level", targets.get((width, trees)) if gpu else None),
            ("program, prepared", "PyTorch by level", targets.get((width, trees))),
            (PROGRAM_AHEAD, "PyTorch by level", targets.get((width, trees)) if gpu else None),
            # Where products are large, levels are the better way.
            ("in jit", "PyTorch by level", targets.get((width, trees)) if narrow else None),
            ("in jit", "PyTorch by node", by_node_target if narrow else None),
            ("program", "PyTorch by node", by_node_target),
            ("program, prepared", "PyTorch by node", by_node_target),
            ("table", "PyTorch by node", by_node_target),
            ("lazy", "PyTorch by level", lazily.get((width, trees))),
            ("fine ops", "PyTorch by level", fine),
            ("fine ops", "PyTorch by node", None if fine is None else 3.0),
            ("table", "the limit", limit),
            ("program", "the limit", limit),
            ("program, prepared", "the limit", limit),
        ]
        claims += claims_of(f"{name}, {way}", took, pairs)
        print("  " + ", ".join(f"{key} {1e3 * t:.2f} ms" for key, t in took.items()), flush=True)
    return claims + (an_epoch(params, trees) if gpu else [])


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
