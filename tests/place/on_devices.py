"""Lanes over four devices, in a process that has them; `test_lanes.py` reads what this prints.

A line for each case: its name, then "right" with the collectives of the compiled code and those inside its loops, or
"wrong", or the type and text of the error.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import lanewise as lw
from corpus import case_named
from lanewise.core import events

collatz, fibonacci = (case_named(name).program for name in ("collatz", "fibonacci"))


@lw.program
def checked(n):
    assert n >= 0, "negative"
    return fibonacci(n)


@lw.program
def net(n, x, w):
    if n < 1:
        return x
    y = jnp.tanh(w @ x)
    if y[0] > 0:
        return net(n - 1, y, w) + net(n - 2, x, w)
    return net(n - 1, y + 1, w)


@lw.program
def recurrent(xs, w):
    def step(h, x):
        return jnp.tanh(w @ h + x), None

    return jax.lax.scan(step, jnp.zeros(6), xs)[0]


@lw.program
def layered(xs, ws):
    def step(h, x):
        return jax.lax.scan(lambda h, w: (jnp.tanh(w @ h + w[0]), None), h + x, ws)[0], None

    return jax.lax.scan(step, jnp.zeros(6), xs)[0]


@lw.program
def repeated(x, w, times):
    return jax.lax.fori_loop(0, times, lambda i, h: jnp.tanh(w @ h), x)


@lw.program
def walk(key, scale):
    steps, x = 0, 0.0
    while (x < 1.5) & (steps < 30):
        key, own = jax.random.split(key)
        x = x + scale * jax.random.normal(own)
        steps = steps + 1
    return steps, key


NUMBERS = np.arange(16, dtype=np.int32) % 11 + 1
COUNTS = np.array([0, 1, 7, 2, 5, 8, 16, 3, 19, 6, 14, 0, 1, 7, 2, 5])
CALLS = np.array([1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 1, 2, 3, 5, 8])
RANDOM = np.random.default_rng(0)
DEPTHS = np.arange(16, dtype=np.int32) % 5
VECTORS = RANDOM.normal(size=(16, 6)).astype(np.float32)
WEIGHTS = (RANDOM.normal(size=(6, 6)) / 4).astype(np.float32)
LAYERS = np.stack([WEIGHTS, WEIGHTS.T])
SERIES = RANDOM.normal(size=(16, 3, 6)).astype(np.float32)

_COLLECTIVE = re.compile(
    r"= \(?(\w+)\[.* (all-reduce|all-gather|collective-permute|all-to-all)(?:-start)?\("
)


def collectives(text: str) -> tuple[list[str], ...]:
    """Those of compiled code, and those in the loops of it, also in what loops call."""
    bodies: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        head = re.match(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$", line)
        if head:
            name = head[1]
        bodies[name] = bodies.get(name, "") + line + "\n"
    reached = set(re.findall(r"(?:body|condition)=%?([\w.\-]+)", text))
    while True:
        inside = "".join(bodies.get(name, "") for name in reached)
        more = {name for name in re.findall(r"%([\w.\-]+)", inside) if name in bodies} - reached
        if not more:
            found = (_COLLECTIVE.findall(code) for code in (text, inside))
            return tuple([f"{what} {kind}" for kind, what in each] for each in found)
        reached |= more


def mesh_of(kind: AxisType, *sizes: int) -> Mesh:
    sizes = sizes or (4,)
    return jax.make_mesh(sizes, ("i", "j")[: len(sizes)], axis_types=(kind,) * len(sizes))


def put(values: Any, mesh: Mesh, *spec: Any) -> jax.Array:
    return jax.device_put(values, NamedSharding(mesh, P(*spec)))


def same(found: Any, expected: Any) -> bool:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return all(
        a.shape == b.shape and np.allclose(np.asarray(a), np.asarray(b), 1e-5, 1e-5)
        for a, b in pairs
    )


def report(
    name: str, run: Callable[..., Any], expected: Any, *given: Any, eager: bool = True
) -> None:
    """The case inside `jit`, and outside it."""
    for kind, how in ((" jit", jax.jit(run)), *([("", run)] if eager else [])):
        try:
            found = how(*given)
            text = "right" if same(found, expected) else "wrong"
            specs = [str(leaf.sharding.spec) for leaf in jax.tree.leaves(found)]
            text += f" {specs[0]}"
            if kind:
                everywhere, in_loops = collectives(str(how.lower(*given).compile().as_text()))
                text += f" {sorted(everywhere)} {in_loops}"
        except Exception as error:
            text = f"{type(error).__name__} {error}".replace("\n", " ")
        print(f"{name}{kind}: {text}", flush=True)


def squares(run: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda *args: (run(*args) ** 2).sum(), (0, 1))


def of_kind(kind: AxisType) -> None:
    """What is the same for automatic and for explicit axes."""
    mesh = mesh_of(kind)
    for carrier in ("ticks", "native"):
        one = {
            "machine": lw.vmap(collatz, carrier=carrier, schedule="auto"),
            "refill": lw.vmap(collatz, carrier=carrier, lanes=8),
            "recursion": lw.vmap(checked, carrier=carrier),
        }
        expected = {"machine": COUNTS, "refill": COUNTS, "recursion": CALLS}
        for name, run in one.items():
            report(f"{name} {carrier} {kind.name}", run, expected[name], put(NUMBERS, mesh, "i"))
    carrier = "ticks" if kind == AxisType.Auto else "native"

    def network(x: Any, w: Any, n: Any, carrier: str = carrier) -> Any:
        return lw.vmap(net, in_axes=(0, 0, None), carrier=carrier)(n, x, w)

    expected = squares(functools.partial(network, carrier="native"))(VECTORS, WEIGHTS, DEPTHS)
    split = (put(VECTORS, mesh, "i"), put(WEIGHTS, mesh), put(DEPTHS, mesh, "i"))
    with jax.set_mesh(mesh):
        eager = carrier == "native"
        report(f"gradient {kind.name}", squares(network), expected, *split, eager=eager)
    series = squares(lw.vmap(recurrent, in_axes=(0, None)))
    expected = series(SERIES, WEIGHTS)
    with jax.set_mesh(mesh):
        split = (put(SERIES, mesh, "i"), put(WEIGHTS, mesh))
        report(f"straight gradient {kind.name}", series, expected, *split)
        deep = squares(lw.vmap(layered, in_axes=(0, None)))
        report(f"layers {kind.name}", deep, deep(SERIES, LAYERS), split[0], put(LAYERS, mesh))
    if kind == AxisType.Auto:
        # Where no mesh is set, XLA alone knows that arrays are split.
        report("straight gradient alone", series, expected, *split, eager=False)
        split = (split[0], put(LAYERS, mesh))
        report("layers alone", deep, deep(SERIES, LAYERS), *split, eager=False)
        times = squares(lambda x, w: lw.vmap(repeated, in_axes=(0, None, None))(x, w, 3))
        given = (put(VECTORS, mesh, "i"), put(WEIGHTS, mesh))
        report("times alone", times, times(VECTORS, WEIGHTS), *given, eager=False)
    keys = jax.random.split(jax.random.key(0), 16)

    def walks(keys: Any, scale: Any) -> Any:
        steps, last = lw.vmap(walk, in_axes=(0, None), carrier="ticks")(keys, scale)
        return steps, jax.random.key_data(last)

    report(f"keys {kind.name}", walks, walks(keys, 1.0), put(keys, mesh, "i"), 1.0)
    bad = np.where(NUMBERS == 5, -1, NUMBERS)
    try:
        with lw.lane_errors():
            jax.jit(lw.vmap(checked))(put(bad, mesh, "i"))
    except lw.LaneError as error:
        print(f"failure {kind.name}: {error}", flush=True)


def automatic() -> None:
    """Meshes of two axes, and what is split otherwise than along lanes."""
    mesh = mesh_of(AxisType.Auto, 2, 2)
    fib = lw.vmap(fibonacci, carrier="native")
    report("two axes", fib, CALLS, put(NUMBERS, mesh, ("i", "j")))
    nested = jax.vmap(fib)
    square = NUMBERS.reshape(4, 4)
    report("nested", nested, nested(square), put(square, mesh, "j", "i"))
    report("uneven", lambda n: fib(n[:13]), fib(NUMBERS[:13]), put(NUMBERS, mesh, "i"))
    report("lone", lambda n: fibonacci(n[3]), fibonacci(NUMBERS[3]), put(NUMBERS, mesh, "i"))
    run = lw.vmap(net, in_axes=(0, 0, None), carrier="ticks")
    given = (put(DEPTHS, mesh, "i"), put(VECTORS, mesh, "i", "j"), put(WEIGHTS, mesh, "j"))
    report("split weights", run, run(DEPTHS, VECTORS, WEIGHTS), *given)

    def part(n: Any) -> Any:
        return jax.shard_map(fib, mesh=mesh, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})(n)

    report("shard_map over one of two axes", part, fib(NUMBERS), put(NUMBERS, mesh, "i"))
    counted = lw.vmap(collatz, carrier="ticks", stats=True)
    steps = [counted(n)[1].steps for n in (NUMBERS, put(NUMBERS, mesh, "i"))]
    print(f"steps: {'right' if steps[0] == steps[1] else steps}", flush=True)
    of_each = jax.pmap(fib)(jnp.asarray(NUMBERS).reshape(4, 4))
    print(f"pmap: {'right' if same(of_each.reshape(16), fib(NUMBERS)) else 'wrong'}", flush=True)


def by_vmap() -> None:
    """`lw.vmap` with a mesh, for batches that its devices cannot share alike too."""
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = mesh_of(kind)
        fib = lw.vmap(checked, carrier="native", mesh=mesh, axis="i")
        report(f"vmap {kind.name}", fib, CALLS, NUMBERS)
        report(f"vmap uneven {kind.name}", fib, CALLS[:13], NUMBERS[:13])
        refilled = lw.vmap(collatz, carrier="ticks", lanes=8, mesh=mesh)
        report(f"vmap refill {kind.name}", refilled, COUNTS[:14], NUMBERS[:14], eager=False)
        rows = np.moveaxis(SERIES, 0, 1)
        alone, spread = (
            squares(lw.vmap(recurrent, in_axes=(1, None), out_axes=1, mesh=where))
            for where in (None, mesh)
        )
        given = (rows, WEIGHTS)
        report(f"vmap gradient {kind.name}", spread, alone(*given), *given, eager=False)
        bad = np.where(NUMBERS == 5, -1, NUMBERS)[:14]
        try:
            fib(bad)
        except lw.LaneError as error:
            print(f"vmap failure {kind.name}: {error}", flush=True)
        options = {"throw": False, "stats": True}
        found = lw.vmap(checked, mesh=mesh, **options)(bad)
        plain = lw.vmap(checked, **options)(bad)
        pairs = [(found[0], plain[0]), (found[1].code, plain[1].code)]
        # Copies of the last example make the batch even, and count. Turns of machines depend on how many there are.
        stats = lw.vmap(checked, **options)(np.append(bad, bad[[-1, -1]]))[2]
        pairs += [(getattr(found[2], name), getattr(stats, name)) for name in ("steps", "deepest")]
        right = all(np.array_equal(a, b) for a, b in pairs)
        print(f"vmap outcomes {kind.name}: {'right' if right else found}", flush=True)


def named() -> None:
    """Failures inside `shard_map` and `pmap`, and the bar of several devices."""
    bad = np.where(np.arange(16) == 13, -1, NUMBERS)
    mesh = mesh_of(AxisType.Auto, 2, 2)
    run = lw.vmap(checked, carrier="native")
    over = {"one axis": P("j"), "both axes": P(("i", "j"))}
    calls: dict[str, Callable[..., Any]] = {
        name: jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec))
        for name, spec in over.items()
    }
    calls["pmap"] = lambda n: jax.pmap(run)(n.reshape(4, 4))
    for name, call in calls.items():
        try:
            with lw.lane_errors():
                call(bad)
        except lw.LaneError as error:
            print(f"failure {name}: {error}", flush=True)
    bars = []

    class Bar:
        def __init__(self, total: int, label: str) -> None:
            self.done, self.total, self.label = 0, total, label
            bars.append(self)

        def update(self, done: int | None = None, *, total: int | None = None) -> None:
            self.done, self.total = done or self.done, total or self.total

        def close(self, finished: bool = True) -> None:
            pass

    events.show_bars_with(Bar)
    shown = lw.vmap(
        collatz, carrier="ticks", schedule="sweep", progress=True, mesh=mesh_of(AxisType.Auto)
    )
    shown(NUMBERS).block_until_ready()
    jax.effects_barrier()
    print(f"bars: {[(bar.label, bar.total) for bar in bars]}", flush=True)


if __name__ == "__main__":
    of_kind(AxisType.Auto)
    of_kind(AxisType.Explicit)
    automatic()
    by_vmap()
    named()
