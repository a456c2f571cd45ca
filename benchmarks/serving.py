"""Serving a small language model: `lw.stream`, where requests join and leave, against static batches.

The model of `examples/models/language_model.py`, wider, trained here; prompts and answers have long-tailed lengths. The
peers are static batches, sorted by the length of the prompt, compiled once for each size of prompts: `jax.vmap` of one
request's `while_loop`, and the same batch written by hand (one loop with a scalar test around `jax.vmap` of a step, so
that no cache is copied for lanes that have ended). Both end when the slowest of a batch has, attend to a cache that
grows with the batch in steps of 64 places, and run at several sizes of batch; the best one counts. All give the same
tokens, which is checked first.

Throughput is that of requests that are all there. Latency is of requests that come one by one, at random, at 70% of
the rate that the best static batches of `jax.vmap` can serve, the same requests at the same moments for all; time in
which a server has nothing to do is skipped. On a CPU all run on one core and CPU time is what counts, so that other
work on the machine counts less.

    python benchmarks/serving.py [--requests 256] [--lanes 16] [--carrier auto] [--steps 240] [--device gpu]
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import _served  # isort: skip

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from models.language_model import (
    END,
    Params,
    Sizes,
    mixed,
    norm,
    projected,
    requests,
    scores,
    trained,
)
from models.language_model import server as serving

import lanewise as lw
from _harness import Claim, compilations, report
from lanewise.cpp.toolchain import host

TARGET = ">= 2"
LATENCY = "<= 1"
# Of requests that come one by one, over what the best static batches serve.
LOAD = 0.7
PROMPTS = (32, 64, 128)
GROWTH = 64
# By device: the sizes of static batches that are tried, and the lanes of the stream.
BATCHES = {"cpu": (1, 4, 16), "gpu": (64, 256, 1024)}
LANES = {"cpu": 16, "gpu": 1024}

Request = tuple[np.ndarray, np.int32, np.int32]
Answers = dict[int, tuple[np.ndarray, int]]


# -- the peers -------------------------------------------------------------------------------------

# For each layer keys and values, each [heads, places, head].
Cache = list[tuple[jax.Array, jax.Array]]


def prefilled(params: Params, prompt: jax.Array, sizes: Sizes) -> Cache:
    """The cache after all of a prompt, read at once."""
    place = jnp.arange(len(prompt))
    x = params["words"][prompt]
    cache = []
    for layer in range(sizes.layers):
        q, k, v = projected(params, layer, x, sizes)
        weights = jax.nn.softmax(scores(q, k, place[:, None] - place, sizes))
        x = mixed(params, layer, x, jnp.einsum("hnm,hmd->hnd", weights, v))
        cache.append((k, v))
    return cache


def next_token(params: Params, cache: Cache, token: Any, at: Any, sizes: Sizes) -> Any:
    """The token after this one, and the rows that it adds to the cache, which is read as it was."""
    x = params["words"][token][None]
    rows = []
    for layer, (keys, values) in enumerate(cache):
        q, k, v = projected(params, layer, x, sizes)
        distance = (at - jnp.arange(keys.shape[1]))[None]
        old = jnp.where(distance > 0, scores(q, keys, distance, sizes), -1e9)
        new = jnp.einsum("hnd,hnd->hn", q, k)[..., None]
        weights = jax.nn.softmax(jnp.concatenate([old, new], -1))
        seen = jnp.einsum("hnm,hmd->hnd", weights[..., :-1], values) + weights[..., -1:] * v
        x = mixed(params, layer, x, seen)
        rows.append((k, v))
    return jnp.argmax(norm(x[0]) @ params["head"]).astype(jnp.int32), rows


def written(cache: Cache, rows: Cache, at: Any) -> Cache:
    return [
        tuple(
            lax.dynamic_update_slice(old, row, (0, at, 0)) for old, row in zip(*pair, strict=True)
        )
        for pair in zip(cache, rows, strict=True)
    ]


def growing(sizes: Sizes, prompt: int) -> list[int]:
    """The sizes of the cache, one after the other."""
    most = sizes.prompt + sizes.limit
    return [size for size in range(GROWTH, most + 1, GROWTH) if size >= prompt]


def padded(cache: Cache, size: int) -> Cache:
    def pad(array: jax.Array) -> jax.Array:
        more = [(0, 0)] * array.ndim
        more[-2] = (0, size - array.shape[-2])
        return jnp.pad(array, more)

    return [(pad(k), pad(v)) for k, v in cache]


def one_request(params: Params, sizes: Sizes, prompt: Any, length: Any, limit: Any) -> Any:
    """For `jax.vmap`."""
    text = jnp.zeros(sizes.limit, jnp.int32)
    state = (prefilled(params, prompt, sizes), prompt[length - 1], length - 1, jnp.int32(0), text)

    def turn(state: Any) -> Any:
        cache, token, at, count, text = state
        token, rows = next_token(params, cache, token, at, sizes)
        text = text.at[count].set(token)
        return written(cache, rows, at), token, at + 1, count + 1, text

    for size in growing(sizes, len(prompt)):
        state = lax.while_loop(
            lambda s, size=size: (s[3] < limit) & (s[1] != END) & (s[2] < size),
            turn,
            (padded(state[0], size), *state[1:]),
        )
    return state[4], state[3]


def one_batch(params: Params, sizes: Sizes, prompt: Any, length: Any, limit: Any) -> Any:
    """By hand: one test for the batch, and caches that are written without regard to which have ended."""
    lanes = jnp.arange(len(prompt))
    cache = jax.vmap(lambda p: prefilled(params, p, sizes))(prompt)
    text = jnp.zeros((len(prompt), sizes.limit), jnp.int32)
    state = (cache, prompt[lanes, length - 1], length - 1, jnp.zeros_like(length), text)

    def alive(state: Any) -> Any:
        return (state[3] < limit) & (state[1] != END)

    def turn(state: Any) -> Any:
        cache, token, at, count, text = state
        runs = alive(state)
        found, rows = jax.vmap(lambda *a: next_token(params, *a, sizes))(cache, token, at)
        text = text.at[lanes, jnp.where(runs, count, sizes.limit)].set(found, mode="drop")
        cache = jax.vmap(written)(cache, rows, at)
        token = jnp.where(runs, found, token)
        return cache, token, at + runs, count + runs, text

    for size in growing(sizes, prompt.shape[1]):
        state = lax.while_loop(
            lambda s, size=size: alive(s).any() & ~(alive(s) & (s[2] >= size)).any(),
            turn,
            (padded(state[0], size), *state[1:]),
        )
    return state[4], state[3]


class Static:
    """A server that runs batches of a fixed size, each to the end of its slowest request."""

    def __init__(self, run: Callable[..., Any], size: int) -> None:
        self.run = jax.jit(run)
        self.size = size

    def batch(self, taken: Sequence[Request]) -> list[tuple[np.ndarray, int]]:
        filled = [*taken, *[taken[-1]] * (self.size - len(taken))]
        room = next(p for p in PROMPTS if p >= max(int(length) for _, length, _ in taken))
        prompts, lengths, limits = map(np.stack, zip(*filled, strict=True))
        text, count = map(np.asarray, self.run(prompts[:, :room], lengths, limits))
        return [(text[i], int(count[i])) for i in range(len(taken))]

    def compile(self, asked: Sequence[Request]) -> None:
        for room in PROMPTS:
            fits = [request for request in asked if room // 2 < request[1] <= room]
            if fits:
                self.batch(fits[:1])

    def all(self, asked: Sequence[Request]) -> Answers:
        order = sorted(range(len(asked)), key=lambda i: asked[i][1])
        answers: Answers = {}
        for start in range(0, len(order), self.size):
            chosen = order[start : start + self.size]
            answers |= dict(zip(chosen, self.batch([asked[i] for i in chosen]), strict=True))
        return answers

    def as_they_come(self, asked: Sequence[Request], arrivals: np.ndarray, clock: Clock) -> Any:
        """How long each request took from when it came to when its batch had ended."""
        done: dict[int, float] = {}
        first = 0
        while first < len(asked):
            clock.skip_to(arrivals[first])
            last = int(np.searchsorted(arrivals, clock.now(), side="right"))
            last = min(max(last, first + 1), first + self.size)
            self.batch(asked[first:last])
            done |= {i: clock.now() - arrivals[i] for i in range(first, last)}
            first = last
        return list(done.values())


# -- ours ------------------------------------------------------------------------------------------


class Clock:
    """Time that passes as the server works; what it would sleep is skipped."""

    def __init__(self, read: Callable[[], float]) -> None:
        self.read = read
        self.start = read()

    def now(self) -> float:
        return self.read() - self.start

    def skip_to(self, moment: float) -> None:
        self.start -= max(0.0, moment - self.now())


class Stream:
    """The same requests through `lw.stream`."""

    def __init__(self, params: Params, sizes: Sizes, lanes: int, options: dict[str, Any]) -> None:
        self.answer = serving(params, sizes)
        self.options = {"lanes": lanes, **options}

    def all(self, asked: Sequence[Request]) -> Answers:
        found = lw.stream(self.answer, asked, **self.options)
        return {index: (text, int(count)) for index, (text, count) in found}

    def as_they_come(self, asked: Sequence[Request], arrivals: np.ndarray, clock: Clock) -> Any:
        done: dict[int, float] = {}
        sent = 0

        def source() -> Iterator[Any]:
            nonlocal sent
            while sent < len(asked):
                if len(done) == sent:
                    clock.skip_to(arrivals[sent])
                if arrivals[sent] > clock.now():
                    yield lw.NOT_YET
                else:
                    sent += 1
                    yield asked[sent - 1]

        for index, _ in lw.stream(self.answer, source(), **self.options):
            done[index] = clock.now() - arrivals[index]
        return list(done.values())


# -- what is measured ------------------------------------------------------------------------------


def same(ours: Answers, theirs: Answers, who: str) -> None:
    for index, (text, count) in ours.items():
        if count != theirs[index][1] or not np.array_equal(text[:count], theirs[index][0][:count]):
            raise AssertionError(f"request {index}: {who} gives other tokens")


def rates(
    servers: dict[str, Any], asked: Sequence[Request], repeats: int, read: Callable[[], float]
) -> dict[str, float]:
    """Seconds a request, the medians of runs in turns."""
    times: dict[str, list[float]] = {name: [] for name in servers}
    host.wait()
    for _ in range(repeats):
        for name, server in servers.items():
            start = read()
            server.all(asked)
            times[name].append((read() - start) / len(asked))
    return {name: statistics.median(found) for name, found in times.items()}


def waits(
    server: Any, asked: Sequence[Request], rate: float, repeats: int, read: Callable[[], float]
) -> tuple[float, float]:
    """What half of the requests waited at most, and all but one in twenty: the medians over several days."""
    days = []
    for day in range(repeats):
        gaps = np.random.default_rng(day).exponential(1 / rate, len(asked))
        waited = server.as_they_come(asked, np.cumsum(gaps), Clock(read))
        days.append(np.quantile(waited, [0.5, 0.95]))
    half, most = np.median(days, axis=0)
    return float(half), float(most)


def best_of(way: str, found: dict[str, float]) -> str:
    return min((name for name in found if name.startswith(way)), key=lambda name: found[name])


def main() -> None:
    parser = _served.arguments(__doc__, repeats=3, layers=3, steps=240)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--lanes", type=int)
    parser.add_argument("--batches", type=int, nargs="*")
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    device, read, how = _served.setting(options)
    sizes = Sizes(layers=options.layers, width=options.width)
    params = trained(sizes, options.steps)
    asked = requests(11, options.requests, sizes)

    lanes = options.lanes or LANES[device]
    stream = Stream(params, sizes, lanes, how)
    servers: dict[str, Any] = {"lw.stream": stream}
    for size in options.batches or BATCHES[device]:
        alone = functools.partial(one_request, params, sizes)
        servers[f"jax.vmap, batches of {size}"] = Static(jax.vmap(alone), size)
        by_hand = functools.partial(one_batch, params, sizes)
        servers[f"by hand, batches of {size}"] = Static(by_hand, size)
    start = read()
    ours = stream.all(asked)
    print(f"lw.stream compiled in {read() - start:.1f} s", flush=True)
    for name, server in servers.items():
        start = read()
        if isinstance(server, Static):
            server.compile(asked)
        took = read() - start
        same(ours, server.all(asked), name)
        print(f"{name}: same tokens, compiled in {took:.1f} s", flush=True)

    compiled = compilations()
    took = rates(servers, asked, options.repeats, read)
    lengths = [count for _, count in ours.values()]
    print(
        f"{len(asked)} requests, prompts of {min(r[1] for r in asked)} to {max(r[1] for r in asked)} tokens, answers of"
        f" {min(lengths)} to {max(lengths)}, {np.mean(lengths):.0f} on average"
    )
    rate = LOAD / took[best_of("jax.vmap", took)]
    late = {}
    for server in servers:
        half, late[server] = waits(servers[server], asked, rate, options.repeats, read)
        print(
            f"  {server:<28} {1 / took[server]:8.1f} requests/s; at {rate:.0f} requests/s half wait"
            f" {1e3 * half:.1f} ms at most, 95% {1e3 * late[server]:.1f} ms",
            flush=True,
        )
    print(f"{len(compiled)} compilations by XLA in all of this")
    name = f"serving, {device}, {sizes.layers} layers of {sizes.width}, {lanes} lanes: "
    claims = []
    for way in ("jax.vmap", "by hand"):
        peer = best_of(way, took)
        of_ours = took["lw.stream"]
        claims.append(Claim(f"{name}seconds a request, {peer}", of_ours, took[peer], TARGET))
        peer = best_of(way, late)
        claims.append(
            Claim(f"{name}p95 at {rate:.0f}/s, {peer}", late["lw.stream"], late[peer], LATENCY)
        )
    report(claims)


if __name__ == "__main__":
    main()
