"""A recursion whose shape values decide, with matrix work: its calls at the same time, and in order; and PyTorch.

Top-down generation, as a doubly recurrent network (Alvarez-Melis and Jaakkola 2017) does it: a node's state decides by
its value whether the node is a leaf; if not, it makes the states of two children, and their vectors make its own. How
many nodes there are is known only when they have been made. Ours run on the carrier `ticks`, with `schedule="fork"` and
as `auto` runs ticks otherwise; PyTorch makes node after node, as it must look at each decision.

    python benchmarks/fork.py [--width 256] [--instances 1 16 64] [--repeats 5] [--device gpu]
"""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from _harness import Claim, compile_seconds, medians, report, use_device, usual_arguments

DEEPEST = 7


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


def problem(instances: int, width: int) -> tuple[dict[str, Any], Any]:
    """Weights for which a node has children three times in four, and the first states."""
    rng = np.random.default_rng(0)

    def normal(rows: int, columns: int, scale: float = 1.6) -> Any:
        return jnp.asarray(rng.normal(size=(rows, columns)) * scale / np.sqrt(columns), jnp.float32)

    weights = {
        "node": normal(width, width),
        "leaf": normal(width, width),
        "split": normal(2 * width, width),
        "join": normal(width, 2 * width),
        "stop": normal(1, width)[0],
    }
    return weights, jnp.asarray(rng.normal(size=(instances, width)), jnp.float32)


def ours(schedule: str) -> Callable[..., Any]:
    program = generate.with_options(carrier="ticks", schedule=schedule, max_depth=DEEPEST + 1)
    return lambda weights, first: jax.vmap(program, (None, 0, None))(weights, first, DEEPEST)


def in_torch(weights: dict[str, Any], first: Any, device: str) -> Callable[[], list[int]]:
    """The same, node by node; gives how many nodes each instance has."""
    import torch

    held = {k: torch.as_tensor(np.array(v), device=device) for k, v in weights.items()}
    states = torch.as_tensor(np.array(first), device=device)
    size = states.shape[1]

    def one(h: Any, depth: int) -> tuple[Any, int]:
        h = torch.tanh(held["node"] @ h)
        if depth == 0 or float(held["stop"] @ h) > 1.2:
            return torch.tanh(held["leaf"] @ h), 1
        children = torch.tanh(held["split"] @ h)
        left, few = one(children[:size], depth - 1)
        right, more = one(children[size:], depth - 1)
        return torch.tanh(held["join"] @ torch.cat([left, right])), few + more + 1

    def run() -> list[int]:
        with torch.inference_mode():
            found = [one(h, DEEPEST)[1] for h in states]
        if device == "cuda":
            torch.cuda.synchronize()
        return found

    return run


def torch_seconds(run: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(1 + min(repeats, 3)):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


def measure(instances: int, width: int, repeats: int, device: str) -> list[Claim]:
    arguments = problem(instances, width)
    contenders, compiled_in = {}, {}
    for name, schedule in (("fork", "fork"), ("in order", "auto")):
        contenders[name], compiled_in[name] = compile_seconds(ours(schedule), arguments)
    vectors, nodes = contenders["fork"](*arguments)
    expected, count = contenders["in order"](*arguments)
    np.testing.assert_array_equal(nodes, count)
    np.testing.assert_allclose(vectors, expected, rtol=1e-3, atol=1e-3)
    times = medians(contenders, arguments, repeats)
    peers = {"in order": (times["in order"], ">= 1")}
    if importlib.util.find_spec("torch") is not None:
        run = in_torch(*arguments, device)
        assert run() == list(map(int, nodes)), "PyTorch has made other trees"
        peers["PyTorch node by node"] = (torch_seconds(run, repeats), ">= 4")
    print(
        f"{instances} instances, {int(nodes.sum())} nodes, H={width}: "
        + ", ".join(f"{n} {1e3 * t:.2f} ms (compiled in {compiled_in[n]:.1f} s)" for n, t in times.items())
    )
    claims = []
    for peer, (seconds, target) in peers.items():
        name = f"fork: generation, H={width}, {instances} instances, over {peer}"
        claims.append(Claim(name, times["fork"], seconds, target))
        print(f"  {peer}: {1e3 * seconds:.2f} ms, {claims[-1].ratio:.2f}x")
    return claims


def main() -> None:
    parser = usual_arguments(__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 16, 64])
    arguments = parser.parse_args()
    use_device(arguments.device)
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    run = functools.partial(
        measure, width=arguments.width, repeats=arguments.repeats, device=device
    )
    report([claim for number in arguments.instances for claim in run(number)])


if __name__ == "__main__":
    main()
