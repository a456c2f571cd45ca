"""An early-exit transformer encoder: `lw.vmap` against `jax.vmap` of the same layers, and PyTorch one at a time.

The model of `examples/models/early_exit.py` with 12 layers over 16 tokens of width 64, trained here; instances stop
where they are sure. `jax.vmap` runs all layers for all instances with masks, in one scan over the stacked weights,
which is what someone who knows it writes: a loop that indexes weights by an instance's own layer would copy them.
PyTorch is eager, and stops each instance where it is sure. On a CPU all run on one core, and CPU time counts.

    python benchmarks/early_exit.py [--instances 512] [--carrier auto] [--steps 120] [--device gpu]
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import _served  # isort: skip

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from models.early_exit import (
    HEADS,
    LAYER,
    Params,
    Sizes,
    answer_at,
    classify,
    embedded,
    instances,
    trained,
)
from models.early_exit import layer as one_layer

import lanewise as lw
from _harness import Claim, report

CERTAINTY = 0.9
# PyTorch runs this many of the instances; the others would take as long.
BY_TORCH = 64


def all_layers(params: Params, tokens: jax.Array, certainty: jax.Array) -> Any:
    """The same answers by a scan with masks, for `jax.vmap`."""

    def through(state: Any, weights: dict[str, jax.Array]) -> Any:
        x, best, sure, used, done = state
        new = one_layer(weights, x)
        odds = jax.nn.softmax(answer_at(params, new))
        x = jnp.where(done, x, new)
        best = jnp.where(done, best, jnp.argmax(odds).astype(jnp.int32))
        sure = jnp.where(done, sure, jnp.max(odds))
        used = jnp.where(done, used, used + 1)
        return (x, best, sure, used, done | (sure > certainty)), None

    x = embedded(params, tokens)
    start = (x, jnp.int32(0), jnp.zeros((), x.dtype), jnp.int32(0), jnp.bool_(False))
    weights = {name: params[name] for name in LAYER}
    return lax.scan(through, start, weights)[0][1:4]


def in_torch(params: Params, device: str) -> Callable[[np.ndarray], Any]:
    """PyTorch, eager: one instance after the other, each until it is sure."""
    import torch

    torch.set_num_threads(1)
    given = {name: torch.from_numpy(np.array(value)).to(device) for name, value in params.items()}

    def norm(x: Any) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    def one(symbols: Any) -> tuple[int, int]:
        x = given["symbols"][symbols]
        tokens, width = x.shape
        best = used = 0
        for qkv, out, up, down in zip(*(given[name] for name in LAYER), strict=True):
            parts = (norm(x) @ qkv).reshape(tokens, 3, HEADS, -1).permute(1, 2, 0, 3)
            seen = torch.nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
            x = x + seen.transpose(0, 1).reshape(tokens, width) @ out
            x = x + torch.nn.functional.gelu(norm(x) @ up, approximate="tanh") @ down
            odds = torch.softmax(norm(x.mean(0)) @ given["exit"], -1)
            sure, chosen = odds.max(0)
            best, used = chosen, used + 1
            if sure.item() > CERTAINTY:
                break
        return int(best), used

    def run(symbols: np.ndarray) -> list[tuple[int, int]]:
        with torch.inference_mode():
            return [one(row) for row in torch.from_numpy(symbols).to(device).long()]

    return run


def main() -> None:
    parser = _served.arguments(__doc__, repeats=5, layers=12, steps=120)
    parser.add_argument("--instances", type=int, default=512)
    options = parser.parse_args()
    device, read, how = _served.setting(options)
    sizes = Sizes(layers=options.layers)
    params = trained(sizes, options.steps)
    symbols, _, _ = instances(3, options.instances, sizes)
    arguments = jax.device_put((params, symbols, np.float32(CERTAINTY)))
    contenders: dict[str, Any] = {
        "lw.vmap": lw.vmap(classify, in_axes=(None, 0, None), **how),
        "jax.vmap": jax.jit(jax.vmap(all_layers, in_axes=(None, 0, None))),
    }
    found = {}
    for name, run in contenders.items():
        start = read()
        found[name] = jax.tree.map(np.asarray, run(*arguments))
        print(f"{name}: first call in {read() - start:.1f} s", flush=True)
    by_torch = in_torch(params, "cuda" if device == "gpu" else "cpu")
    torch_found = np.array(by_torch(symbols[:BY_TORCH]))
    (best, _, used), (peer_best, _, peer_used) = found["lw.vmap"], found["jax.vmap"]
    agree = np.mean((best == peer_best) & (used == peer_used))
    torch_agrees = np.mean(best[:BY_TORCH] == torch_found[:, 0])
    print(f"{np.mean(used):.2f} of {sizes.layers} layers; {agree:.1%} agree with jax.vmap,")
    print(f"{torch_agrees:.1%} with PyTorch")
    # An instance within rounding of the wanted certainty is accepted by one form and not by another.
    if min(agree, torch_agrees) < 0.98:
        raise AssertionError("too few answers agree")
    print(lw.inspect(classify, *arguments, in_axes=(None, 0, None)).plan.why)

    times: dict[str, list[float]] = {name: [] for name in (*contenders, "PyTorch")}
    for _ in range(options.repeats):
        for name, run in contenders.items():
            start = read()
            jax.block_until_ready(run(*arguments))
            times[name].append((read() - start) / options.instances)
        start = read()
        by_torch(symbols[:BY_TORCH])
        times["PyTorch"].append((read() - start) / BY_TORCH)
    took = {name: statistics.median(values) for name, values in times.items()}
    for name, seconds in took.items():
        print(f"  {name:<10} {1e6 * seconds:9.1f} µs an instance")
    name = f"early-exit transformer, {device}, {options.instances} instances: seconds an instance, "
    target = ">= 4" if device == "cpu" else ">= 50"
    report(
        [
            Claim(f"{name}jax.vmap", took["lw.vmap"], took["jax.vmap"], ">= 1"),
            Claim(f"{name}PyTorch eager, one at a time", took["lw.vmap"], took["PyTorch"], target),
        ]
    )


if __name__ == "__main__":
    main()
