"""Programs placed at random over the devices of a process; `test_placed.py` reads what this prints.

`python on_places.py corpus SHARD SHARDS`, and `generated` or `slopes` (gradients) `SEED COUNT`. A line for each
case: its name, then "right", or what went wrong. Queues hold one message, whatever an iteration sends: whatever could
wait for ever would.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, Phase, settings

import lanewise as lw
import needs
from corpus import CORPUS
from generate import LANES, Generated, float_total, load, programs, run_plainly, substantial
from programs.case import Case
from scattered import differs, one_example, placement_of, room_for_one, scattered


def placed_at_random(fun: Callable[..., Any], args: tuple[Any, ...], rng: random.Random) -> Any:
    """What a function gives with its equations over two or four devices at random; `None` if it has none to place."""
    strewn = scattered(fun, args, 4, rng)
    places = placement_of(strewn, args, jax.devices()[: rng.choice((2, 4))], rng)
    return lw.run(strewn, places, timeout=60.0)(*args) if places else None


def of_corpus(shard: int, shards: int) -> Iterator[tuple[str, str]]:
    for number, case in enumerate(CORPUS):
        if number % shards != shard or case.recursive or case.heavy:
            continue
        rng = random.Random(zlib.crc32(case.name.encode()))
        args = one_example(case)
        want = case.program(*args)
        got = placed_at_random(case.program, args, rng)
        if got is None:
            yield case.name, "right, though nothing in it can be placed"
            continue
        yield case.name, differs(got, want, max(case.rtol, 1e-6)) or "right"
        if not case.differentiable or number % 3:
            continue

        def loss(*args: Any, case: Case = case) -> Any:
            outs = jax.tree.leaves(case.program(*args))
            return sum(jnp.sum(x) for x in outs if jnp.issubdtype(x.dtype, jnp.inexact))

        strewn = scattered(loss, args, 3, rng)
        slope = jax.grad(strewn, case.differentiable)
        want = jax.grad(loss, case.differentiable)(*args)
        places = placement_of(slope, args, jax.devices()[:3], rng)
        got = lw.run(slope, places, timeout=60.0)(*args)
        yield f"{case.name} gradient", differs(got, want, max(case.rtol, 1e-5)) or "right"


def of_generated(seed: int, count: int) -> Iterator[tuple[str, str]]:
    def check(program: Generated, serial: int, name: str) -> str:
        lane = serial % LANES
        args = tuple(jnp.asarray(a) for a in program.lane(lane))
        want = jax.tree.map(jnp.asarray, run_plainly(program)[lane])
        main = load(program.source, lw.program, name)
        got = placed_at_random(main, args, random.Random(seed * 1000 + serial))
        return "right" if got is None else differs(got, want, 0.0) or "right"

    return _each_generated(seed, count, "generated", check, lambda program: True)


def of_slopes(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """Gradients of generated programs by their float arguments; loops save in all ways in turn."""

    def check(program: Generated, serial: int, name: str) -> str | None:
        checkpoints = ("auto", "all", "sqrt", 3)[serial % 4]
        main = load(program.source, lw.program, name).with_options(checkpoints=checkpoints, tape=64)
        active, total = float_total(program, main)
        args = [jnp.asarray(a) for a in program.lane(serial % LANES)]
        moved = [args[at] for at in active]
        want = jax.jit(jax.grad(total))(moved, args)
        rng = random.Random(seed * 1000 + serial)
        slope = jax.grad(scattered(total, (moved, args), 4, rng))
        devices = jax.devices()[: 4 if serial % 2 else 2]
        places = placement_of(slope, (moved, args), devices, rng)
        if not places or not any(jnp.any(x != 0) for x in want):
            return None
        return differs(lw.run(slope, places, timeout=60.0)(moved, args), want, 1e-5) or "right"

    def moves(program: Generated) -> bool:
        floats = any(a.dtype == np.float32 for a in program.arguments)
        return floats and substantial(program.source)

    return _each_generated(seed, count, "slope", check, moves)


def _each_generated(
    seed: int,
    count: int,
    kind: str,
    check: Callable[[Generated, int, str], str | None],
    serves: Callable[[Generated], bool],
) -> Iterator[tuple[str, str]]:
    """What a check says of each program that serves; None if there is nothing to compare after all."""
    found: list[tuple[str, str]] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=[
            HealthCheck.filter_too_much,
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
        ],
    )
    @hypothesis.given(programs())
    def each(program: Generated) -> None:
        hypothesis.assume(serves(program))
        serial = len(found)
        name = f"{kind} {seed}.{serial}"
        try:
            said = check(program, serial, name)
        except Exception as error:
            said = f"{type(error).__name__} {str(error).splitlines()[0]}"
        hypothesis.assume(said is not None)
        if not str(said).startswith("right"):
            said = f"{said}\\n{program!r}".replace("\n", "\\n")
        found.append((name, str(said)))

    each()
    yield from found


# -- calls ------------------------------------------------------------------------------------------

X, W, V = jnp.linspace(0.1, 1.0, 3), 0.3 * jnp.eye(3) + 0.1, 0.5 * jnp.eye(3)


def layer(x: Any, w: Any, v: Any) -> Any:
    x = lw.placed(lambda x, w: jnp.tanh(x @ w), "encoder")(x, w)
    return lw.placed(lambda x, v: jnp.sin(x @ v) + 0.1, "decoder")(x, v)


def layers(x: Any, w: Any, v: Any, turns: Any) -> Any:
    return jax.lax.fori_loop(0, turns, lambda i, x: layer(x, w, v), x)


def two_layers(x: Any, weights: Any) -> Any:
    return layer(layer(x, weights["w"], weights["v"]), weights["w"], weights["v"])


@lw.program
def settled(x, w, v):
    turns = 0
    while (jnp.sum(x) > 0.4) & (turns < 9):
        x, turns = layer(x, w, v), turns + 1
    return jnp.sum(x)


def of_choices(places: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Gradients by what their loops save: one of known length, and one that a test of floats ends."""

    def counted(x: Any, w: Any, v: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda x, t: (layer(x + t, w, v), t), x, jnp.arange(7.0))[0])

    asked: list[tuple[Any, dict[str, Any]]] = [
        (counted, {"checkpoints": "sqrt"}),
        (settled, {"checkpoints": 2}),
        (counted, {"offload": "host"}),
    ]
    if needs.FULL:
        asked += [(counted, {"checkpoints": 2}), (settled, {"checkpoints": "all"})]
    for f, options in asked:
        slope = lw.grad(f, (1, 2), tape=16, **options)
        run, plain = lw.run(slope, places), jax.jit(jax.grad(f, (1, 2)))
        found = run(X, W, V)
        said = differs(found, plain(X, W, V), 1e-5) or "right"
        if [x.devices() for x in found] != [{place} for place in places.values()]:
            said = "not where the weights are"
        if ("offload" in options) != ("f32<host>[7,3] at 0" in run.inspect(X, W, V)):
            said = "not saved as asked for"
        yield f"gradient of {f.__name__} {options}".replace(":", ""), said


def _same_bits(got: Any, want: Any) -> str:
    pairs = zip(got, want, strict=True)
    same = all(a.dtype == b.dtype and bool((a == jax.device_get(b)).all()) for a, b in pairs)
    return "right" if same else f"{got} instead of {want}"


def of_calls(folder: str) -> Iterator[tuple[str, str]]:
    first, second = jax.devices()[:2]
    places = {"encoder": first, "decoder": second}
    run = lw.run(layers, places)
    out = run(X, W, V, 5)
    yield "result", differs(out, layers(X, W, V, 5), 1e-6) or f"right at {out.device}"

    weights = {"w": W, "v": V}
    slope, plain = (
        jax.grad(lambda p, f=f: jnp.sum(f(X, p)))(weights)
        for f in (lw.run(two_layers, places), two_layers)
    )
    where = ", ".join(f"{name} at {x.device}" for name, x in sorted(slope.items()))
    yield "gradient around", differs(slope, plain, 1e-5) or f"right, {where}"

    yield from of_choices(places)

    def swapped(value: Any) -> Any:
        def turn(_: Any, pair: Any) -> Any:
            first = lw.placed(lambda x: x[::-1], "encoder")(pair[1])
            return first, lw.placed(lambda x: x[::-1], "decoder")(pair[0])

        return jax.lax.fori_loop(0, 3, turn, (value, value[::-1]))

    bits = jnp.arange(6).reshape(3, 2) % 2
    for dtype in (bool, jnp.int4, jnp.int8, jnp.bfloat16, jnp.complex64):
        given = bits.astype(dtype)
        yield f"swapped {given.dtype}", _same_bits(lw.run(swapped, places)(given), swapped(given))
    nothing = jnp.zeros((0, 2))
    yield "swapped nothing", _same_bits(lw.run(swapped, places)(nothing), swapped(nothing))

    batch = jnp.stack([X * k for k in range(6)])
    mapped = jax.vmap(layers, (0, None, None, None))
    grouped = lw.run(mapped, places, groups=3, in_axes=(0, None, None, None))
    yield "groups", differs(grouped(batch, W, V, 2), mapped(batch, W, V, 2), 1e-6) or "right"

    def rows(x: Any, w: Any) -> Any:
        def step(x: Any, t: Any) -> Any:
            x = lw.placed(lambda x: jnp.tanh(x @ w) + t, "encoder")(x)
            return lw.placed(lambda x: jnp.cos(x), "decoder")(x), jnp.sum(x)

        return jax.lax.scan(step, x, jnp.linspace(0.0, 1.0, 10), reverse=True)

    saving = lw.run(rows, places, checkpoint=f"{folder}/rows", every=4)
    ends = [differs(saving(X, W), rows(X, W), 1e-6) or "right" for _ in range(2)]
    yield "saved rows", ", ".join(ends)
    shutil.rmtree(Path(folder) / "rows" / "all" / "8")
    yield "saved rows again", differs(saving(X, W), rows(X, W), 1e-6) or "right"
    try:
        saving(X + 1, W)
    except lw.errors.OptionError as error:
        yield "other arguments", str(error)

    yield from of_saved_loops(f"{folder}/loops", places)

    # A shell that starts tests in the background has them ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    try:
        run(X, W, V, 10**7)
        yield "interrupt", "never came"
    except KeyboardInterrupt:
        yield "interrupt", "right" if time.monotonic() - begun < 20 else "late"
    yield "after it", differs(run(X, W, V, 5), layers(X, W, V, 5), 1e-6) or "right"

    def broken(x: Any) -> Any:
        def fail(x: Any) -> Any:
            raise ValueError("no such page")

        x = lw.placed(lambda x: x + 1, "encoder")(x)
        x = lw.placed(lambda x: jax.pure_callback(fail, x, x), "decoder")(x)
        return lw.placed(lambda x: x + 1, "encoder")(x)

    try:
        lw.run(broken, places)(X)
    except lw.errors.PlaceError as error:
        yield "error", f"{error.kind} {str(error).splitlines()[0][:60]}"

    yield from of_ends(places)


def of_saved_loops(folder: str, places: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A program with three loops, begun again after each of its states."""
    first: list[int] = []

    def seen(x: Any) -> Any:
        first.append(1)
        return np.asarray(x)

    def f(x: Any, w: Any) -> Any:
        def step(x: Any, t: Any) -> Any:
            x = lw.placed(lambda x: jax.pure_callback(seen, x, jnp.tanh(x @ w) + t), "encoder")(x)
            return lw.placed(lambda x: jnp.cos(x), "decoder")(x), jnp.sum(x)

        def half(x: Any) -> Any:
            return lw.placed(lambda x: 0.8 * x, "decoder")(lw.placed(jnp.tanh, "encoder")(x))

        x, rows = jax.lax.scan(step, x, jnp.linspace(0.0, 1.0, 7))
        y = jax.lax.while_loop(lambda x: jnp.sum(x) > 0.2, half, x + rows[0])
        return jax.lax.scan(lambda y, t: (layer(y, w, w) + t, y[0]), y, rows), x, rows

    def run() -> str:
        first.clear()
        found = lw.run(f, places, checkpoint=folder, every=3)(X, W)
        return differs(found, want, 1e-6) or ("right" if first else "right, not again")

    want = f(X, W)
    yield "saved loops", f"{run()}; {run()}"
    states = [p for p in Path(folder).rglob("*") if p.name.isdecimal() and p.parent.name != "rows"]
    for path in sorted(states, key=lambda p: (len(p.parts), int(p.name)), reverse=True):
        shutil.rmtree(path)
        yield f"saved loops without {path.relative_to(Path(folder) / 'all')}", run()


def of_ends(places: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """How calls and lanes end that fail."""

    @lw.program
    def checked(x):
        x = lw.placed(lambda x: x + 1, "encoder")(x)
        with lw.on("decoder"):
            assert x[2] < 4, "too large"
            return x * 2

    batch = jnp.stack([X * k for k in (1, 2, 5, 1, 9, 2)])
    answers, outcomes = lw.run(lw.vmap(checked, throw=False), places)(batch)
    good = np.asarray(outcomes.ok())
    said = f"right, failed {np.flatnonzero(~good).tolist()}"
    yield "outcomes", differs(np.asarray(answers)[good], 2 * batch[good] + 2, 1e-6) or said

    def raised(fun: Any, x: Any, **options: Any) -> str:
        try:
            lw.run(fun, places, **options)(x)
        except lw.errors.LaneError as error:
            return str(error).split(" (")[0] + str(error).rpartition(".py")[2]
        return "nothing"

    yield "assertion", raised(checked, X + 5)
    yield "assertion of lanes", raised(lw.vmap(checked), batch)
    yield "assertion in groups", raised(lw.vmap(checked), batch, groups=3)

    @lw.program
    def root(x):
        assert x[0] < 0.6, "no root"
        return x

    def in_a_part(x: Any) -> Any:
        return lw.placed(jnp.sin, "decoder")(lw.placed(lw.vmap(root), "encoder")(x))

    def in_no_part(x: Any) -> Any:
        return layer(root(x), W, V)

    def in_a_while(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 1e9, lw.vmap(checked), x)

    yield "assertion in a while", raised(in_a_while, batch[:2])
    yield "assertion in a part", raised(in_a_part, batch)
    yield "assertion in no part", raised(in_no_part, X + 5)


if __name__ == "__main__":
    kind, arguments = sys.argv[1], sys.argv[2:]
    if kind == "calls":
        for name, said in of_calls(arguments[0]):
            print(f"{name}: {said}", flush=True)
    else:
        cases = {"corpus": of_corpus, "generated": of_generated, "slopes": of_slopes}[kind]
        with room_for_one() as narrowed:
            for name, said in cases(*map(int, arguments)):
                print(f"{name}: {said}", flush=True)
        print(f"edges with less room: {len(narrowed)}")
