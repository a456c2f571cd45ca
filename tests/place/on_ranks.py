"""Placed programs over two real processes; `test_places.py` starts this with `lanewise launch` and reads what it
prints.

`on_ranks.py programs`: programs and gradients at random, an assertion, a recursion inside a part. `on_ranks.py saved
FOLDER SIGNAL ITERATION`: two loops that are saved; rank 1 sends itself the signal in that iteration, the first time.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from corpus import case_named
from scattered import differs, one_example, placement_of, room_for_one, scattered

RANK = int(os.environ.get("LANEWISE_RANK", "0"))


def say(name: str, what: str) -> None:
    print(f"{name}: {what}", flush=True)


def at_random() -> None:
    """Programs and gradients, with room for one message on each edge."""
    for name in ("collatz", "encode_and_decode", "routed", "newton_sqrt", "early_exit"):
        case = case_named(name)
        rng = random.Random(name)
        args = one_example(case)
        strewn = scattered(case.program, args, 4, rng)
        run = lw.run(strewn, placement_of(strewn, args, [0, 1], rng))
        say(name, differs(run(*args), case.program(*args), 1e-5) or "right")
        if case.differentiable and name != "early_exit":

            def loss(*args: Any, strewn: Any = strewn) -> Any:
                return jnp.sum(jax.tree.leaves(strewn(*args))[0])

            saving: dict[str, Any] = {"offload": "host"} if name == "routed" else {"checkpoints": 3}
            slope = lw.grad(loss, case.differentiable, **saving)
            plain = jax.grad(loss, case.differentiable)
            run = lw.run(slope, placement_of(slope, args, [0, 1], rng))
            say(f"{name} gradient", differs(run(*args), plain(*args), 1e-4) or "right")


def programs() -> None:
    with room_for_one() as narrowed:
        at_random()
    say("several messages an iteration", "right" if narrowed else "none")

    def step(weights, x):
        def loss(weights):
            y = lw.placed(lambda w: jnp.tanh(x @ w), "a")(weights["a"])
            return jnp.sum(lw.placed(lambda y, w: (y @ w) ** 2, "b")(y, weights["b"]))

        value, slope = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, s: w - 0.1 * s, weights, slope), value

    places, x = {"a": 0, "b": 1}, jnp.linspace(0.1, 1.0, 3)
    mine: Any
    plain: Any
    mine = plain = {name: jnp.eye(3) * scale for name, scale in (("a", 0.5), ("b", 0.3))}
    run = lw.run(step, places, gather=False)
    for _ in range(3):
        mine, value = run(mine, x)
        plain, wanted = step(plain, x)
    (own,) = [name for name, held in mine.items() if held.is_here]
    where = differs(mine[own].value, plain[own], 1e-5) or f"{own} is here"
    off = differs(value.value, wanted, 1e-5) if value.is_here else ""
    say("held", f"{where}, {off or 'loss'}")

    @lw.program
    def checked(x):
        while x < 10:
            x = lw.placed(lambda x: x + 1, "a")(x)
            assert x != 7, "seven"
            x = lw.placed(lambda x: x + 2, "b")(x)
        return x

    run = lw.run(checked, {"a": 0, "b": 1})
    say("again", differs(run(5), checked(5), 0) or "right")
    try:
        run(3)
    except lw.LaneError as error:
        say("assertion", str(error).split(" (")[0])
    except lw.errors.PlaceError as error:
        say("assertion", f"{type(error).__name__} {error}")
    say("after an error", differs(run(5), checked(5), 0) or "right")
    starts = jnp.array([5, 3, 2, 4, 6])
    for gather in (True, False):
        try:
            lw.run(lw.vmap(checked), {"a": 0, "b": 1}, gather=gather)(starts)
        except lw.LaneError as error:
            _, _, where = str(error).partition(" lanes: ")
            said = "right" if where.startswith("1, 4.") else str(error)
            say(f"assertion of lanes {gather}", said)
    answers, outcomes = lw.run(lw.vmap(checked, throw=False), {"a": 0, "b": 1})(starts)
    wanted = lw.vmap(checked, throw=False)(starts)
    say("outcomes", differs((answers, outcomes.code), (wanted[0], wanted[1].code), 0) or "right")


def saved(folder: str, name: str, iteration: int) -> None:
    mark = Path(folder) / "killed"

    def watch(i: Any, x: Any) -> Any:
        if RANK == 1 and i == iteration and not mark.exists():
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
            os.kill(os.getpid(), getattr(signal, name))
        return np.asarray(x)

    def f(x, key):
        def body(c):
            i, x, key = c
            key, own = jax.random.split(key)
            x = lw.placed(lambda x, k: jnp.cos(x) + 0.1 * jax.random.normal(k, x.shape), "a")(
                x, own
            )

            def second(x, i):
                return jax.pure_callback(watch, jax.ShapeDtypeStruct(x.shape, x.dtype), i, x * 1.01)

            return i + 1, lw.placed(second, "b")(x, i), key

        carry = jax.lax.while_loop(lambda c: c[0] < 20, body, (0, x, key))
        return jax.lax.while_loop(lambda c: c[0] < 28, body, carry)[:2]

    run = lw.run(f, {"a": 0, "b": 1}, checkpoint=f"{folder}/states", every=5, timeout=3.0)
    steps, x = run(jnp.linspace(0.0, 1.0, 4), jax.random.key(3))
    say("steps", str(steps))
    say("bits", np.asarray(x).tobytes().hex())
    for name, own in (("states", "."), ("later states", "loop1")):
        found = Path(folder, "states", f"rank{RANK}", own).iterdir()
        say(name, " ".join(sorted(p.name for p in found if p.name.isdecimal())))


if __name__ == "__main__":
    if sys.argv[1] == "programs":
        programs()
    else:
        saved(sys.argv[2], sys.argv[3], int(sys.argv[4]))
