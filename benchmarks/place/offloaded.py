"""An LSTM whose saved state is in the host's memory: what `place_gpu.py` starts in a process of its own.

The process is allowed a part of the device's memory, by `XLA_PYTHON_CLIENT_MEM_FRACTION`, and XLA has the flags that
are measured. The LSTM reads characters; a step begins where the gates are known and ends with the product that makes
the next step's, as in `ad/lstm.py`, so that an iteration saves its state (gates and memory) and no product is done
twice. A step of training is the gradient of the loss and the weights' update.

    python -m place.offloaded '{"width": 64, "batch": 8, "steps": 64, "fits": 16, "repeats": 2, "label": "small"}'

Each line it prints that begins with MEASURED is JSON.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from place.two_at_a_time import two_at_a_time

CHARACTERS = 256
GATES = 4


def activated(gates: Any, memory: Any) -> tuple[Any, Any]:
    enter, forget, change, leave = jnp.split(gates, GATES, axis=-1)
    memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(enter) * jnp.tanh(change)
    return jax.nn.sigmoid(leave) * jnp.tanh(memory), memory


def loss(weights: Any, letters: Any, text: Any, targets: Any) -> Any:
    """The mean squared error of the last state; `text` is (steps, batch)."""

    def gates_of(hidden: Any, now: Any) -> Any:
        return jnp.concatenate([letters[now], hidden], axis=1) @ weights

    def step(state: Any, now: Any) -> Any:
        gates, memory = state
        hidden, memory = activated(gates, memory)
        return (gates_of(hidden, now), memory), None

    zeros = jnp.zeros(targets.shape)
    state, _ = lax.scan(step, (gates_of(zeros, text[0]), zeros), text[1:])
    return jnp.mean((activated(*state)[0] - targets) ** 2)


def loss_named(weights: Any, letters: Any, text: Any, targets: Any) -> Any:
    """The same for JAX's own offloading, which goes by names."""
    named = jax.ad_checkpoint.checkpoint_name

    def gates_of(hidden: Any, now: Any) -> Any:
        return jnp.concatenate([letters[now], hidden], axis=1) @ weights

    def step(state: Any, now: Any) -> Any:
        gates, memory = named(state[0], "gates"), named(state[1], "memory")
        hidden, memory = activated(gates, memory)
        return (gates_of(hidden, now), memory), None

    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["gates", "memory"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    zeros = jnp.zeros(targets.shape)
    start = gates_of(zeros, text[0]), zeros
    state, _ = lax.scan(jax.checkpoint(step, policy=policy), start, text[1:])
    return jnp.mean((activated(*state)[0] - targets) ** 2)


def trained(gradient: Callable[..., Any]) -> Any:
    """A step of training."""

    def step(weights: Any, *given: Any) -> Any:
        return weights - 0.1 * gradient(weights, *given)

    return jax.jit(step)


def copies(steps: int) -> Any:
    """What a step of training sends to the host's memory and fetches from it, and nothing else."""
    parts, host, here = GATES + 1, jax.memory.Space.Host, jax.memory.Space.Device

    def run(x: Any) -> Any:
        def ahead(x: Any, _: Any) -> Any:
            sent = [jax.device_put(x + i, host) for i in range(parts)]
            return x + 1, sent

        def back(total: Any, row: Any) -> Any:
            fetched = [jax.device_put(each, here) for each in row]
            return total + sum(fetched), None

        x, rows = lax.scan(ahead, x, length=steps)
        return lax.scan(back, x, rows, reverse=True)[0]

    return jax.jit(run)


def say(**found: Any) -> None:
    print("MEASURED", json.dumps(found), flush=True)


def show(text: str) -> None:
    print(f"  {text}", flush=True)


def schedule(text: str) -> list[str]:
    """The loops of compiled code: their instructions in order, copies between memories as they begin and end."""
    lines, inside = [], False
    for line in text.splitlines():
        head = re.match(r"^%?([\w.\-]+) \(.*\{$", line)
        if head:
            inside = "body" in head[1] or "region" in head[1]
            lines += [f"-- {head[1]}"] if inside else []
        elif inside and " = " in line:
            name, made = line.strip().split(" = ", 1)
            op = re.search(r"\s([\w\-]+)\(", made)
            if op and op[1] not in ("parameter", "get-tuple-element", "constant", "bitcast"):
                far = " HOST" if "S(5)" in made else ""
                lines.append(f"   {name[:60]} {op[1]}{far}")
    return lines


def profiled(label: str, run: Callable[..., Any], given: Any) -> None:
    """Which streams of the device do what at the same time, in some of the middle of a run."""
    folder = tempfile.mkdtemp()
    with jax.profiler.trace(folder):
        clocked(run, given)
    (path,) = Path(folder).rglob("*.xplane.pb")
    data = jax.profiler.ProfileData.from_file(str(path))
    found = []
    for plane in data.planes:
        if "GPU" in plane.name or "gpu" in plane.name:
            for line in plane.lines:
                if "Stream" in line.name:
                    found += [(e.start_ns, e.duration_ns, line.name, e.name) for e in line.events]
    found.sort()
    busy: dict[tuple[str, str], list[float]] = {}
    for _, took, stream, name in found:
        busy.setdefault((stream, name), []).append(took / 1000)
    copied = [(at, at + took) for at, took, _, name in found if "memcpy" in name.lower()]
    computed = [(at, at + took) for at, took, _, name in found if "memcpy" not in name.lower()]
    whole = sum(end - at for at, end in copied)
    show(
        f"{label}: copies take {whole / 1e6:.1f} ms, {overlap(copied, computed) / 1e6:.1f} of it while"
    )
    show("  something is computed; the streams, what is done there most, how often, µs each")
    for (stream, name), took in sorted(busy.items(), key=lambda item: -sum(item[1]))[:10]:
        show(f"  {stream[:40]}: {name[:40]}, {len(took)} times, {statistics.median(took):.1f}")
    lines = []
    for share in (4, 4 / 3):
        first = int(len(found) / share)
        for start, took, stream, name in found[first : first + 60]:
            at = (start - found[first][0]) / 1000
            lines.append(f"  {at:9.1f} to {at + took / 1000:9.1f}  {stream[:24]}  {name[:60]}")
    keep(f"{label}.profile", lines)


def overlap(some: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]]) -> float:
    """For how long intervals run beside others, which are sorted and do not overlap among themselves.

    >>> overlap([(0, 4), (10, 12)], [(1, 2), (3, 11)])
    3
    """
    both, k = 0.0, 0
    for at, end in some:
        while k and others[k - 1][1] > at:
            k -= 1
        while k < len(others) and others[k][0] < end:
            both += max(0, min(end, others[k][1]) - max(at, others[k][0]))
            k += 1
    return both


def keep(name: str, lines: Sequence[str]) -> None:
    """Write lines to the folder for results, or print them if there is none."""
    folder = os.environ.get("OUT")
    if folder:
        (Path(folder) / re.sub(r"[^\w.]+", "-", name)).write_text("\n".join(lines))
    else:
        print("\n".join(lines[:120]), flush=True)


def clocked(run: Callable[..., Any], given: Any) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run(*given))
    return time.perf_counter() - start


def made_ready(name: str, run: Any, given: Any, asked: Any) -> Any:
    """A function compiled, and run once."""
    began = time.perf_counter()
    with two_at_a_time() if name.endswith("two a turn") else contextlib.nullcontext():
        lowered = run.lower(*given)
    compiled = lowered.compile()
    took, about = time.perf_counter() - began, compiled.memory_analysis()
    here, there = about.temp_size_in_bytes / 1e9, about.host_temp_size_in_bytes / 1e9
    show(
        f"{name}: compiled in {took:.1f} s; {here:.2f} GB beside its operands, {there:.2f} GB of the host's"
    )
    text = compiled.as_text()
    if os.environ.get("OUT"):
        keep(f"{asked['label']} {name}.hlo", [text])
    if name.startswith(("offload", "copies")):
        keep(f"{asked['label']} {name}.schedule", schedule(text))
    show(f"{name}: first run {1e3 * clocked(compiled, given):.0f} ms")
    return compiled


def compare(names: list[str], ready: Any, given: Any) -> None:
    """How much updates by several contenders differ."""
    found = {name: np.asarray(ready[name][0](*given)) for name in names}
    for name in names[1:]:
        largest = np.abs(found[names[0]] - np.asarray(given[0])).max()
        apart = np.abs(found[name] - found[names[0]]).max()
        show(f"{names[0]} and {name}: updates of up to {largest:.1e} differ by {apart:.1e}")


def main() -> None:
    asked = json.loads(sys.argv[1])
    width, batch, steps, fits = (asked[name] for name in ("width", "batch", "steps", "fits"))
    jax.config.update("jax_default_matmul_precision", asked.get("precision", "default"))
    device = jax.devices()[0]
    stats = device.memory_stats() or {}
    show(
        f"jax {jax.__version__} {device.device_kind}, allowed {stats.get('bytes_limit', 0) / 1e9:.2f} GB"
    )
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return random.normal(size=shape).astype(np.float32)

    weights = jnp.asarray(normal(2 * width, GATES * width) / np.sqrt(2 * width))
    rest = (
        jnp.asarray(normal(CHARACTERS, width)),
        jnp.asarray(random.integers(0, CHARACTERS, (steps, batch)).astype(np.int32)),
    )
    targets = jnp.asarray(normal(batch, width))
    whole = (weights, *rest, targets)
    short = (weights, rest[0], rest[1][:fits], targets)
    gradient = functools.partial(lw.grad, loss)
    start = (jnp.zeros((batch, width)),)

    def away() -> Any:
        return trained(gradient(checkpoints="all", offload="host"))

    contenders: dict[str, tuple[Callable[[], Any], Any, int]] = {
        "fits": (lambda: trained(gradient(checkpoints="all")), short, fits),
        "offload": (away, whole, steps),
        "offload, two a turn": (away, whole, steps),
        "sqrt": (lambda: trained(gradient(checkpoints="sqrt")), whole, steps),
        "copies alone": (lambda: copies(steps), start, steps),
        "JAX's own offloading": (lambda: trained(jax.grad(loss_named)), whole, steps),
        "all on the device": (lambda: trained(gradient(checkpoints="all")), whole, steps),
    }
    ready = {}
    for name, (make, given, length) in contenders.items():
        if name in asked.get("modes", contenders):
            try:
                ready[name] = made_ready(name, make(), given, asked), given, length
            except Exception as error:
                show(f"{name}: {type(error).__name__} {str(error).strip().splitlines()[0][:300]}")
                say(name=name, failed=type(error).__name__)
    compare([name for name in ready if name.startswith(("offload", "sqrt"))], ready, whole)
    times: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(asked.get("repeats", 3)):
        for name, (run, given, length) in ready.items():
            times[name].append(clocked(run, given) / length)
            # Again after each run: what is known stays known if the time is over.
            say(name=name, seconds=statistics.median(times[name]), least=min(times[name]))
    for name in ready:
        if asked.get("profile") and name.startswith("offload"):
            try:
                profiled(f"{asked['label']} {name}", *ready[name][:2])
            except Exception as error:
                show(f"no profile: {type(error).__name__} {error}")


if __name__ == "__main__":
    main()
