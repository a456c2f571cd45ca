"""A recursion whose shape values decide, with matrix work: its calls at the same time, and in order; and PyTorch.

Top-down generation, as a doubly recurrent network (Alvarez-Melis and Jaakkola 2017) does it: a node's state decides by
its value whether the node is a leaf; if not, it makes the states of two children, and their vectors make its own. How
many nodes there are is known only when they have been made. Ours run on the carrier `ticks`, with `schedule="fork"` and
with `schedule="meet"`, the fastest that makes calls in order; PyTorch makes node after node, as it must look at each
decision. With `--any-number` a node has any number of children, which a loop makes: its value decides how many (none to
five). On a CPU all run on one core and CPU time is what is compared, so that other work on the machine counts less.

A training step is a gradient of a sum over the instances by the weights. "Products alone" is the limit: the same rows
times the same weights, all at once, in training with both adjoints. Freed memory stays with the process
(`lw.keep_pages`), for all of them.

    python benchmarks/fork.py [--width 256] [--instances 1 16 64] [--repeats 5] [--no-training] [--any-number]
                              [--device gpu]
"""

from __future__ import annotations

import functools
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

# Before anything makes threads.
if hasattr(os, "sched_setaffinity") and "gpu" not in sys.argv:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from _harness import Claim, compile_seconds, report, use_device, usual_arguments

DEEPEST = 7
# Of trees with any number of children: the depth, the most children, and the records that the tape of one holds.
DEEPEST_OF_ANY, MOST_CHILDREN, MOST_RECORDS = 5, 5, 1024
ANY_NUMBER = "--any-number" in sys.argv
GENERATION = "generation of any number of children" if ANY_NUMBER else "generation"


@lw.program
def generate(weights, h, depth):
    """The vector of a subtree that grows from a state, and how many nodes it has."""
    h = jnp.tanh(weights["node"] @ h)
    if depth == 0 or weights["stop"] @ h > 1.2:
        return jnp.tanh(weights["leaf"] @ h), jnp.int32(1)
    states = jnp.tanh(weights["split"] @ h)
    left, few = generate(weights, states[: h.size], depth - 1)
    right, more = generate(weights, states[h.size :], depth - 1)
    return jnp.tanh(weights["join"] @ jnp.concatenate([left, right])), few + more + 1


@lw.program
def sprout(weights, h, depth):
    """The same with any number of children."""
    h = jnp.tanh(weights["node"] @ h)
    total, nodes = jnp.zeros_like(h), jnp.int32(1)
    if depth > 0:
        number = jnp.asarray(3.4 + 1.5 * (weights["stop"] @ h), jnp.int32)
        down = weights["down"] @ h
        for k in range(jnp.clip(number, 0, MOST_CHILDREN)):
            vector, below = sprout(weights, jnp.tanh(down + k * weights["place"]), depth - 1)
            total += vector
            nodes += below
    return jnp.tanh(weights["up"] @ total + h), nodes


def problem(instances: int, width: int) -> tuple[dict[str, Any], Any]:
    """Weights for which a node has children three times in four, and the first states."""
    rng = np.random.default_rng(0)

    def normal(rows: int, columns: int, scale: float = 1.6) -> Any:
        return jnp.asarray(rng.normal(size=(rows, columns)) * scale / np.sqrt(columns), jnp.float32)

    if ANY_NUMBER:
        weights = {
            "node": normal(width, width),
            "down": normal(width, width),
            "up": normal(width, width, 1.0),
            "stop": normal(1, width)[0],
            "place": 10.0 * normal(1, width)[0],
        }
    else:
        weights = {
            "node": normal(width, width),
            "leaf": normal(width, width),
            "split": normal(2 * width, width),
            "join": normal(width, 2 * width),
            "stop": normal(1, width)[0],
        }
    return weights, jnp.asarray(rng.normal(size=(instances, width)), jnp.float32)


def ours(schedule: str, **options: Any) -> Callable[..., Any]:
    own, deepest = (sprout, DEEPEST_OF_ANY) if ANY_NUMBER else (generate, DEEPEST)
    program = own.with_options(carrier="ticks", schedule=schedule, max_depth=deepest + 1, **options)
    return lambda weights, first: jax.vmap(program, (None, 0, None))(weights, first, deepest)


def training(schedule: str) -> Callable[..., Any]:
    """The gradient by the weights; a tree has at most 255 nodes, each of which leaves a record.

    With any number of children, each turn of a loop leaves one as well.
    """
    run = ours(schedule, tape=MOST_RECORDS if ANY_NUMBER else 2 ** (DEEPEST + 1))
    return jax.grad(lambda weights, first: (run(weights, first)[0] ** 2).sum())


def in_torch(
    weights: dict[str, Any], first: Any, device: str, train: bool = False
) -> Callable[[], Any]:
    """The same, node by node; gives how many nodes each instance has, or the gradients."""
    import torch

    held = {
        k: torch.tensor(np.array(v), device=device, requires_grad=train) for k, v in weights.items()
    }
    states = torch.as_tensor(np.array(first), device=device)
    size = states.shape[1]

    def one(h: Any, depth: int) -> tuple[Any, int]:
        h = torch.tanh(held["node"] @ h)
        if depth == 0 or float((held["stop"] @ h).detach()) > 1.2:
            return torch.tanh(held["leaf"] @ h), 1
        children = torch.tanh(held["split"] @ h)
        left, few = one(children[:size], depth - 1)
        right, more = one(children[size:], depth - 1)
        return torch.tanh(held["join"] @ torch.cat([left, right])), few + more + 1

    def any_number(h: Any, depth: int) -> tuple[Any, int]:
        h = torch.tanh(held["node"] @ h)
        total, nodes = torch.zeros_like(h), 1
        if depth > 0:
            number = int(3.4 + 1.5 * float((held["stop"] @ h).detach()))
            down = held["down"] @ h
            for k in range(min(max(number, 0), MOST_CHILDREN)):
                vector, below = any_number(torch.tanh(down + k * held["place"]), depth - 1)
                total, nodes = total + vector, nodes + below
        return torch.tanh(held["up"] @ total + h), nodes

    if ANY_NUMBER:
        one = any_number
    deepest = DEEPEST_OF_ANY if ANY_NUMBER else DEEPEST

    def step() -> list[Any]:
        loss = torch.stack([(one(h, deepest)[0] ** 2).sum() for h in states]).sum()
        used = [x for name, x in held.items() if name != "stop"]
        found = torch.autograd.grad(loss, used)
        if device == "cuda":
            torch.cuda.synchronize()
        return [np.asarray(x.cpu()) for x in found]

    def run() -> list[int]:
        with torch.inference_mode():
            found = [one(h, deepest)[1] for h in states]
        if device == "cuda":
            torch.cuda.synchronize()
        return found

    return step if train else run


def products_alone(arguments: tuple[dict[str, Any], Any], nodes: int, train: bool) -> Any:
    """All products of this many nodes, without what makes one wait for another."""
    weights, first = arguments
    inner = (nodes - len(first)) // 2
    number = {"node": nodes, "leaf": nodes - inner, "split": inner, "join": inner}
    if ANY_NUMBER:
        # About: a node at the greatest depth makes no states of children.
        number = {"node": nodes, "down": nodes // 3, "up": nodes}
    rng = np.random.default_rng(1)
    rows = {
        name: jnp.asarray(rng.normal(size=(n, weights[name].shape[1])), jnp.float32)
        for name, n in number.items()
    }

    def products(weights: Any, rows: Any) -> Any:
        return {name: rows[name] @ weights[name].T for name in rows}

    def step(weights: Any, rows: Any) -> Any:
        found, back = jax.vjp(products, weights, rows)
        return back(found)

    own = {name: weights[name] for name in rows}
    return functools.partial(jax.jit(step if train else products), own, rows)


def in_turns(
    contenders: dict[str, Callable[[], Any]], repeats: int, device: str
) -> dict[str, float]:
    """The median time of each, after one run that is not counted."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(1 + repeats):
        for name, run in contenders.items():
            start = clock()
            jax.block_until_ready(run())
            if turn:
                times[name].append(clock() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def measure(instances: int, width: int, repeats: int, device: str) -> list[Claim]:
    arguments = problem(instances, width)
    contenders, compiled_in = {}, {}
    for name, schedule in (("fork", "fork"), ("in order", "meet")):
        contenders[name], compiled_in[name] = compile_seconds(ours(schedule), arguments)
    vectors, nodes = contenders["fork"](*arguments)
    expected, count = contenders["in order"](*arguments)
    np.testing.assert_array_equal(nodes, count)
    np.testing.assert_allclose(vectors, expected, rtol=1e-3, atol=1e-3)
    runs: dict[str, Callable[[], Any]] = {
        name: functools.partial(run, *arguments) for name, run in contenders.items()
    }
    targets = {"in order": ">= 1"}
    if importlib.util.find_spec("torch") is not None:
        runs["PyTorch node by node"] = run = in_torch(*arguments, device)
        assert run() == list(map(int, nodes)), "PyTorch has made other trees"
        targets["PyTorch node by node"] = ">= 50" if device == "cuda" else ">= 4"
    runs["products alone"] = products_alone(arguments, int(nodes.sum()), train=False)
    title = f"{GENERATION}, H={width}, {instances} instances"
    print(f"{title}: {int(nodes.sum())} nodes")
    return _claims(title, in_turns(runs, repeats, device), compiled_in, targets)


def measure_training(instances: int, width: int, repeats: int, device: str) -> list[Claim]:
    arguments = problem(instances, width)
    contenders, compiled_in = {}, {}
    for name, schedule in (("fork", "fork"), ("in order", "meet")):
        contenders[name], compiled_in[name] = compile_seconds(training(schedule), arguments)
    found, expected = (contenders[name](*arguments) for name in ("fork", "in order"))
    for name in found:
        scale = float(jnp.abs(expected[name]).max()) + 1e-6
        np.testing.assert_allclose(found[name], expected[name], atol=1e-3 * scale)
    runs: dict[str, Callable[[], Any]] = {
        name: functools.partial(run, *arguments) for name, run in contenders.items()
    }
    targets = {"in order": ">= 1"}
    if importlib.util.find_spec("torch") is not None:
        runs["PyTorch node by node"] = in_torch(*arguments, device, train=True)
        targets["PyTorch node by node"] = ">= 15"
    nodes = jax.jit(ours("fork"))(*arguments)[1]
    runs["products alone"] = products_alone(arguments, int(nodes.sum()), train=True)
    title = f"training of {GENERATION}, H={width}, {instances} instances"
    print(title)
    return _claims(title, in_turns(runs, repeats, device), compiled_in, targets)


def _claims(
    title: str, times: dict[str, float], compiled_in: dict[str, float], targets: dict[str, str]
) -> list[Claim]:
    for name, seconds in times.items():
        compiled = f"   (compiled in {compiled_in[name]:.1f} s)" if name in compiled_in else ""
        print(f"  {name:<22} {1e3 * seconds:9.2f} ms{compiled}")
    return [
        Claim(
            f"fork: {title}, over {peer}",
            times["fork"],
            times[peer],
            target,
        )
        for peer, target in targets.items()
    ]


def main() -> None:
    parser = usual_arguments(__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--any-number", action="store_true")
    arguments = parser.parse_args()
    use_device(arguments.device)
    lw.keep_pages()
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    given = {"width": arguments.width, "repeats": arguments.repeats, "device": device}
    claims = [claim for number in arguments.instances for claim in measure(number, **given)]
    for number in [] if arguments.no_training else arguments.instances:
        claims += measure_training(number, **given)
    report(claims)


if __name__ == "__main__":
    main()
