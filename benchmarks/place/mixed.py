"""One program with places on devices of two kinds: a world on the CPU, the network that acts in it on the GPU.

Where there is no GPU, two devices of the CPU take their parts. Started by `place_gpu.py`; lines that begin with
MEASURED are JSON.

    python -m place.mixed [REPEATS]
"""

from __future__ import annotations

import os

# Before JAX starts: a second device where there is no GPU.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
)

import functools
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw

HIDDEN, SEEN = 32, 4
TURNS, STEPS = 5_000, 2_000


# -- a world and a network that is trained through it ------------------------------------------------


def swung(seen: Any, force: Any) -> Any:
    """A step of a pole's motion, which is smooth."""
    x, dx, angle, turn = seen
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    pull = (force + 0.05 * turn**2 * sine) / 1.1
    bend = (9.8 * sine - cosine * pull) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
    push = pull - 0.05 * bend * cosine / 1.1
    return jnp.stack([x + 0.02 * dx, dx + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * bend])


def force_of(weights: Any, seen: Any) -> Any:
    return (jnp.tanh(jnp.tanh(seen @ weights[0]) @ weights[1]) @ weights[2])[0]


def cost(weights: Any, seen: Any, steps: int = 40) -> Any:
    """How far the pole leans in all, and whether it is pushed at all: with a branch and a loop in the program."""

    def step(carry: Any, t: Any) -> Any:
        seen, total = carry
        force = lw.placed(force_of, "network")(weights, seen)
        seen = lw.placed(swung, "world")(seen, force)
        with lw.on("world"):
            lean = seen[2] ** 2 + 0.1 * seen[0] ** 2
            total = lax.cond(t % 2 == 0, lambda: total + lean, lambda: total + 0.5 * lean)
        return (seen, total), None

    return lax.scan(step, (seen, jnp.float32(0)), jnp.arange(steps))[0][1]


def training(weights: Any, seen: Any) -> Any:
    def step(_: Any, weights: Any) -> Any:
        slope = jax.grad(cost)(weights, seen, 20)
        return jax.tree.map(lambda w, g: w - 0.02 * g, weights, slope)

    return lax.fori_loop(0, 10, step, weights)


def settled(weights: Any, x: Any) -> Any:
    """A `while` whose test is made at one place from what both do."""

    def body(carry: Any) -> Any:
        x, _, count = carry
        new = lw.placed(lambda w, x: jnp.tanh(x @ w) * 0.5 + 0.1, "network")(weights, x)
        new = lw.placed(lambda y: jnp.cos(y) * 0.5, "world")(new)
        with lw.on("world"):
            change = jnp.max(jnp.abs(new - x))
        return new, change, count + 1

    return lax.while_loop(lambda carry: carry[1] > 1e-3, body, (x, jnp.float32(1), 0))


def experts(weights: Any, tokens: Any) -> Any:
    def one(total: Any, x: Any) -> Any:
        runs = [lambda x, w=w: jnp.tanh(x @ w) for w in weights]
        chosen = jnp.argmax(x[: len(runs)])
        return total + lw.placed(runs, "expert", chosen)(x), None

    return lax.scan(one, jnp.zeros(8), tokens)[0]


# -- measured ---------------------------------------------------------------------------------------


def show(text: str) -> None:
    print(f"  {text}", flush=True)


def clocked(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def agrees(name: str, found: Any, expected: Any) -> None:
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    worst = max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in leaves)
    largest = max(float(np.max(np.abs(np.asarray(b)))) for b in jax.tree.leaves(expected))
    right = worst <= 1e-3 * max(largest, 1e-6)
    show(f"{name}: {'right' if right else 'WRONG'}, off by {worst:.1e} of {largest:.1e}")


def answers(first: Any, second: Any) -> None:
    """Each program and its gradient over two devices, against one device of the CPU."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    weights = [normal(SEEN, HIDDEN), normal(HIDDEN, HIDDEN), normal(HIDDEN, 1)]
    seen = np.asarray([0.0, 0.1, 0.05, -0.1], np.float32)
    square, x = normal(8, 8), normal(8)
    four, tokens = [normal(8, 8) for _ in range(4)], normal(32, 8)
    both = {"world": first, "network": second}
    swapped = {"world": second, "network": first}
    family = {"expert": [first, second, second, first]}

    def summed(weights: Any, tokens: Any) -> Any:
        return jnp.sum(experts(weights, tokens) ** 2)

    cases: list[tuple[str, Any, Any, tuple[Any, ...]]] = [
        ("cost", cost, both, (weights, seen)),
        ("cost and gradient", jax.value_and_grad(cost), both, (weights, seen)),
        ("cost and gradient, swapped", jax.value_and_grad(cost), swapped, (weights, seen)),
        ("ten steps of training", training, both, (weights, seen)),
        ("a while", settled, both, (square, x)),
        ("experts", experts, family, (four, tokens)),
        ("gradient of experts", jax.grad(summed), family, (four, tokens)),
    ]
    for name, fun, places, given in cases:
        try:
            with jax.default_device(jax.devices("cpu")[0]):
                expected = jax.device_get(jax.jit(fun)(*given))
            run = lw.run(fun, places)
            agrees(name, run(*given), expected)
        except Exception:
            show(f"{name}: FAILED")
            traceback.print_exc(limit=8)
    try:
        run = lw.run(cost, both)
        slope = jax.device_get(jax.grad(lambda w: run(w, seen))(weights))
        with jax.default_device(jax.devices("cpu")[0]):
            agrees("gradient around", slope, jax.device_get(jax.grad(cost)(weights, seen)))
    except Exception:
        show("gradient around: FAILED")
        traceback.print_exc(limit=8)


def bounced(x: Any, turns: Any) -> Any:
    """There and back in each turn."""

    def turn(_: Any, x: Any) -> Any:
        x = lw.placed(lambda x: x + 1, "world")(x)
        return lw.placed(lambda x: x * 0.5, "network")(x)

    return lax.fori_loop(0, turns, turn, x)


def by_host(first: Any, second: Any, x: Any, turns: int) -> Any:
    there, back = jax.jit(lambda x: x + 1), jax.jit(lambda x: x * 0.5)
    for _ in range(turns):
        x = there(jax.device_put(x, first))
        x = back(jax.device_put(x, second))
    return jax.block_until_ready(x)


def round_trips(first: Any, second: Any, repeats: int) -> None:
    for size in ((), (64, 64), (256, 256)):
        x = np.ones(size, np.float32)
        run = lw.run(bounced, {"world": first, "network": second})
        turns = TURNS if np.size(x) < 10_000 else TURNS // 5
        try:
            took = clocked(lambda run=run, x=x: run(x, 10))
            ours, host = [], []
            by_host(first, second, x, 10)
            for _ in range(repeats):
                ours.append(clocked(lambda run=run, x=x, n=turns: run(x, n)) / turns)
                host.append(clocked(lambda x=x: by_host(first, second, x, 500)) / 500)
            one, other = 1 / statistics.median(ours), 1 / statistics.median(host)
            show(
                f"round trips of {size or 'a number'}: {one:,.0f}/s, by a loop of the host {other:,.0f}/s,"
                f" first call {took:.2f} s"
            )
        except Exception:
            show(f"round trips of {size}: FAILED")
            traceback.print_exc(limit=8)


def actor_learner(first: Any, second: Any, repeats: int) -> None:
    """The actor on the CPU, the learner on the GPU."""
    from place.actor_learner import compiled_control, host_control

    runs = {
        "compiled": compiled_control({"actor": first, "learner": second}),
        "host": host_control(first, second),
    }
    for name, run in runs.items():
        show(f"actor-learner, {name}: first call {clocked(functools.partial(run, 20)):.2f} s")
    agrees("actor-learner, 100 steps", runs["compiled"](100), runs["host"](100))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(clocked(functools.partial(run, STEPS)) * 1000 / STEPS)
    found = {name: statistics.median(took) for name, took in times.items()}
    show(f"actor-learner: {', '.join(f'{k} {1000 / v:,.0f} steps/s' for k, v in found.items())}")
    kinds = "/".join(d.platform for d in (first, second))
    about = {
        "claim": f"place: 1,000 steps of the actor-learner loop over {kinds}, against control on the host",
        "ours": found["compiled"],
        "peer": found["host"],
        "target": ">= 3",
    }
    print("MEASURED", json.dumps(about), flush=True)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    # Products of the GPU are compared with those of the CPU.
    jax.config.update("jax_default_matmul_precision", "highest")
    first = jax.devices("cpu")[0]
    second = jax.devices()[0] if jax.default_backend() == "gpu" else jax.devices("cpu")[1]
    show(f"jax {jax.__version__}: {first} and {second} ({second.device_kind})")
    for part in (
        lambda: answers(first, second),
        lambda: round_trips(first, second, repeats),
        lambda: actor_learner(first, second, repeats),
    ):
        try:
            part()
        except Exception:
            traceback.print_exc(limit=8)


if __name__ == "__main__":
    main()
