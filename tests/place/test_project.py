"""The programs of places, each run by itself in plain Python, with queues between them in place of a transport."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.place.placement import placement_from
from lanewise.place.prepared import Prepared, ask
from lanewise.place.project import dry_run, inputs_at, projected, results_at
from lanewise.place.text import traffic

Edge = tuple[int, int]
SECONDS = 120.0


class Queued:
    """A channel of one place, and how many messages and bytes it has sent over each edge."""

    def __init__(self, me: int, queues: dict[Edge, queue.Queue[Any]]) -> None:
        self.me, self.queues = me, queues
        self.messages: Counter[Edge] = Counter()
        self.bytes: Counter[Edge] = Counter()

    def send(self, token: Any, value: Any, *, target: int, number: int) -> Any:
        edge = self.me, target
        self.queues[edge].put((number, value), timeout=SECONDS)
        self.messages[edge] += 1
        self.bytes[edge] += jnp.asarray(value).nbytes
        return token

    def receive(self, token: Any, aval: Any, *, source: int, number: int) -> tuple[Any, Any]:
        came, value = self.queues[source, self.me].get(timeout=SECONDS)
        assert came == number and value.shape == aval.shape
        return token, value

    def require(self, token: Any, ok: Any, *, number: int) -> Any:
        assert ok, f"requirement {number}"
        return token


def run_apart(prepared: Prepared, leaves: list[Any], in_flight: int) -> tuple[Any, list[Queued]]:
    """Each place in a thread of its own: the results, and the channels."""
    actions = prepared.actions
    queues = {edge: queue.Queue(room) for edge, room in actions.credits(in_flight).items()}
    whole = [*prepared.captured, *leaves]

    def run(place: int) -> tuple[dict[int, Any], Queued]:
        here, channel = frozenset((place,)), Queued(place, queues)
        with jax.disable_jit():
            given = [whole[i] for i in inputs_at(actions, here)]
            _, outs = projected(actions, here, channel)(jnp.int32(0), *given)
        return dict(zip(results_at(actions, here), outs, strict=True)), channel

    size = prepared.placement.size
    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(run, range(size)))
    assert all(each.empty() for each in queues.values())
    results = {i: value for outs, _ in found for i, value in outs.items()}
    return [results[i] for i in range(len(results))], [channel for _, channel in found]


def made(
    fun: Callable[..., Any], placement: dict[str, Any], *args: Any
) -> tuple[Prepared, list[Any]]:
    leaves, tree = jax.tree.flatten((args, {}))
    asked = ask(fun, "f", placement_from(placement), leaves, tree)
    return asked.divided(False), leaves


def part(name: str, fun: Callable[..., Any]) -> Callable[..., Any]:
    return lw.placed(fun, name)


def pipeline(x: Any, n: Any) -> Any:
    def turn(i: Any, carry: Any) -> Any:
        x, total = carry
        x = part("a", lambda x: jnp.sin(x) + 0.1)(x)
        return x, part("b", lambda t, x: t + jnp.tanh(x))(total, x)

    return jax.lax.fori_loop(0, n, turn, (x, jnp.zeros_like(x)))


def chooses(x: Any, w: Any) -> Any:
    def body(carry: Any) -> Any:
        i, x, w = carry
        x = part("b", lambda x, w: jnp.cos(x @ w))(x, w)
        w = jax.lax.cond(x[0] > 0.8, lambda: part("a", lambda w: w * 0.7)(w), lambda: w)
        y = lw.placed(lambda x: x * 0.9, "c", (i * 3) % 2)(x)
        return i + 1, x + y, w

    return jax.lax.while_loop(lambda c: (c[0] < 6) & (jnp.sum(c[1]) < 50), body, (0, x, w))


def slope(x: Any, w: Any) -> Any:
    return jax.grad(lambda x, w: jnp.sum(pipeline(x @ w, 3)[1] ** 2), (0, 1))(x, w)


X, W = jnp.linspace(0.1, 1.0, 3), 0.3 * jnp.eye(3) + 0.1
CASES = [
    (pipeline, {"a": 0, "b": 1}, (X, 5)),
    (chooses, {"a": 0, "b": 1, "c": [2, 0]}, (X, W)),
    (slope, {"a": 1, "b": 0}, (X, W)),
]


@pytest.mark.parametrize(("fun", "placement", "args"), CASES)
@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_dry_run_counts_what_places_send(
    fun: Any, placement: Any, args: Any, in_flight: int
) -> None:
    prepared, leaves = made(fun, placement, *args)
    outs, channels = run_apart(prepared, leaves, in_flight)
    for mine, plain in zip(outs, jax.tree.leaves(fun(*args)), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-6)
    places = prepared.placement.everywhere
    counts, _ = dry_run(prepared.actions, places, [*prepared.captured, *leaves])
    said = traffic(prepared.actions, prepared.placement, counts)
    assert said.messages == sum(sum(c.messages.values()) for c in channels) > 0
    assert said.bytes == sum(sum(c.bytes.values()) for c in channels)


def test_adjoints_travel_the_edges_backwards() -> None:
    prepared, leaves = made(slope, {"a": 0, "b": 1}, X, W)
    sent: Counter[Edge] = sum(
        (c.messages for c in run_apart(prepared, leaves, 2)[1]), start=Counter()
    )
    assert sent[0, 1] == sent[1, 0] == 3


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_place_is_as_far_ahead_as_it_may_be(in_flight: int) -> None:
    """The second place waits in its first iteration for the first to be there, which is never further ahead."""
    ahead, most = threading.Semaphore(0), [0, 0]
    done = {"a": 0, "b": 0}

    def first(x: Any) -> Any:
        done["a"] += 1
        most[0] = max(most[0], done["a"] - done["b"])
        ahead.release()
        return x

    def second(x: Any) -> Any:
        if not done["b"]:
            for _ in range(in_flight + 1):
                assert ahead.acquire(timeout=SECONDS)
        done["b"] += 1
        return x

    def calls(fun: Callable[..., Any], x: Any) -> Any:
        return jax.pure_callback(fun, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def f(x: Any) -> Any:
        def turn(carry: Any, t: Any) -> Any:
            x, total = carry
            x = part("a", lambda x: calls(first, jnp.sin(x)))(x)
            return (x, part("b", lambda t, x: t + calls(second, x))(total, x)), None

        return jax.lax.scan(turn, (x, x), jnp.arange(12))[0]

    prepared, leaves = made(f, {"a": 0, "b": 1}, X)
    done.update(a=0, b=0)
    run_apart(prepared, leaves, in_flight)
    # One more waits for room, and one has been taken.
    assert in_flight + 1 <= most[0] <= in_flight + 2
