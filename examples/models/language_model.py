"""A small decoder language model, trained on text of a small grammar, and served with `lw.stream`.

The program is written for one request: it reads the prompt a page at a time, then writes a token, and another, until
the text ends or the limit is reached. Requests join and leave as they come and end; none waits for the slowest of a
batch. The key/value cache is read by pages: a request pays for the tokens it has, not for the room it has.

The text is short stories that end in a number, from which the model counts down to zero:

    the red fox sees a dog that likes the old cat . count 12 11 10 9 8 7 6 5 4 3 2 1 0

A prompt stops at the first number, so prompts and answers have any length, and an answer can be checked.

    python examples/models/language_model.py [steps]
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import lanewise as lw

END = ord("\n")
BYTES = 128
# Tokens that are read, or attended to, at a time.
PAGE = 16
NEVER = -1e9


class Sizes(NamedTuple):
    """A model's sizes, and the longest prompt and answer that it serves: multiples of `PAGE`."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    prompt: int = 128
    limit: int = 256

    @property
    def head(self) -> int:
        return self.width // self.heads


# -- text ------------------------------------------------------------------------------------------

WORDS = {
    "article": ["the", "a", "one"],
    "adjective": ["red", "old", "small", "quiet"],
    "noun": ["fox", "dog", "cat", "bird", "child"],
    "verb": ["sees", "likes", "finds", "calls"],
}


def story(rng: np.random.Generator) -> str:
    """A sentence: each noun may have an adjective, and a clause of its own."""

    def noun() -> Iterator[str]:
        yield rng.choice(WORDS["article"])
        if rng.random() < 0.3:
            yield rng.choice(WORDS["adjective"])
        yield rng.choice(WORDS["noun"])

    words = [*noun(), rng.choice(WORDS["verb"]), *noun()]
    while rng.random() < 0.35 and len(words) < 15:
        words += ["that", rng.choice(WORDS["verb"]), *noun()]
    return " ".join([*words, "."])


def request_text(rng: np.random.Generator) -> tuple[str, str]:
    """A prompt, and what should come after it; most answers are short, and a few are twenty times as long."""
    number = int(np.clip(rng.lognormal(2.2, 1.0), 1, 85))
    return f"{story(rng)} count {number}", "".join(f" {i}" for i in reversed(range(number)))


def encoded(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def corpus(seed: int, texts: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([encoded("".join(request_text(rng)) + "\n") for _ in range(texts)])


def requests(seed: int, count: int, sizes: Sizes) -> list[tuple[np.ndarray, np.int32, np.int32]]:
    """Prompts in arrays of one size, their lengths, and how many tokens are wanted at most."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        prompt = encoded(request_text(rng)[0])[-sizes.prompt :]
        padded = np.zeros(sizes.prompt, np.int32)
        padded[: len(prompt)] = prompt
        found.append((padded, np.int32(len(prompt)), np.int32(sizes.limit)))
    return found


# -- the model -------------------------------------------------------------------------------------

Params = dict[str, jax.Array]


def initial(key: jax.Array, sizes: Sizes, dtype: Any = jnp.float32) -> Params:
    layers, width = sizes.layers, sizes.width
    shapes = {
        "qkv": (layers, width, 3 * width),
        "out": (layers, width, width),
        "up": (layers, width, 4 * width),
        "down": (layers, 4 * width, width),
        "words": (BYTES, width),
        "head": (width, BYTES),
    }
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(k, shape, dtype) / np.sqrt(shape[-2] if name != "words" else 4)
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def norm(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def slopes(sizes: Sizes) -> np.ndarray:
    """How fast each head forgets: positions are known by their distance alone (Press et al. 2022, ALiBi)."""
    return np.float32(4.0 ** -np.arange(sizes.heads))


def projected(params: Params, layer: int, x: jax.Array, sizes: Sizes) -> list[jax.Array]:
    """Queries, keys and values of tokens `[n, width]`, each `[heads, n, head]`."""
    parts = jnp.split(norm(x) @ params["qkv"][layer], 3, axis=-1)
    heads = [part.reshape(-1, sizes.heads, sizes.head).swapaxes(0, 1) for part in parts]
    return [heads[0] * sizes.head**-0.5, *heads[1:]]


def mixed(params: Params, layer: int, x: jax.Array, seen: jax.Array) -> jax.Array:
    """What follows attention in a layer."""
    x = x + seen.swapaxes(0, 1).reshape(x.shape) @ params["out"][layer]
    return x + jax.nn.gelu(norm(x) @ params["up"][layer]) @ params["down"][layer]


def scores(queries: jax.Array, keys: jax.Array, distance: jax.Array, sizes: Sizes) -> jax.Array:
    """`[heads, n, m]`; none of what is ahead."""
    forgotten = slopes(sizes)[:, None, None] * distance
    return jnp.where(distance >= 0, jnp.einsum("hnd,hmd->hnm", queries, keys) - forgotten, NEVER)


def logits(params: Params, tokens: jax.Array, sizes: Sizes) -> jax.Array:
    """Of all tokens of a text at once, for training."""
    place = jnp.arange(len(tokens))
    x = params["words"][tokens]
    for layer in range(sizes.layers):
        q, k, v = projected(params, layer, x, sizes)
        weights = jax.nn.softmax(scores(q, k, place[:, None] - place, sizes))
        x = mixed(params, layer, x, jnp.einsum("hnm,hmd->hnd", weights, v))
    return norm(x) @ params["head"]


# -- one request -----------------------------------------------------------------------------------


def index(*places: Any) -> list[jax.Array]:
    """Of one type, whatever type a Python number has."""
    return [jnp.asarray(place, jnp.int32) for place in places]


def attended(cache: jax.Array, layer: int, queries: jax.Array, at: Any, sizes: Sizes) -> jax.Array:
    """Attention of tokens `at`, `at + 1`, … to all that came before them, page by page, and to each other."""
    heads, count, size = queries.shape
    places = at + jnp.arange(count)

    def page(state: Any) -> Any:
        start, most, total, seen = state
        window = (1, 1, heads, PAGE, size)
        keys = lax.dynamic_slice(cache, index(layer, 0, 0, start, 0), window)[0, 0]
        values = lax.dynamic_slice(cache, index(layer, 1, 0, start, 0), window)[0, 0]
        found = scores(queries, keys, places[:, None] - (start + jnp.arange(PAGE)), sizes)
        # A softmax over pages: what was summed before is scaled to the largest score so far.
        larger = jnp.maximum(most, found.max(-1))
        weights, kept = jnp.exp(found - larger[..., None]), jnp.exp(most - larger)
        seen = seen * kept[..., None] + jnp.einsum("hnm,hmd->hnd", weights, values)
        return start + PAGE, larger, total * kept + weights.sum(-1), seen

    nothing = jnp.zeros((heads, count), queries.dtype)
    start = (jnp.int32(0), nothing + NEVER, nothing, jnp.zeros_like(queries))
    _, _, total, seen = lax.while_loop(lambda state: state[0] < at + count, page, start)
    return seen / total[..., None]


def read(params: Params, cache: jax.Array, tokens: jax.Array, at: Any, sizes: Sizes) -> Any:
    """Tokens from `at` on, into the cache `[layers, 2, heads, places, head]`."""
    x = params["words"][tokens]
    for layer in range(sizes.layers):
        q, k, v = projected(params, layer, x, sizes)
        cache = lax.dynamic_update_slice(cache, jnp.stack([k, v])[None], index(layer, 0, 0, at, 0))
        x = mixed(params, layer, x, attended(cache, layer, q, at, sizes))
    return cache, x


def server(params: Params, sizes: Sizes) -> Callable[..., Any]:
    """The program of one request: a prompt, its length and a limit to the tokens of the answer."""
    room = (sizes.layers, 2, sizes.heads, sizes.prompt + sizes.limit, sizes.head)

    @lw.program
    def answer(prompt, length, limit):
        cache = jnp.zeros(room, params["words"].dtype)
        # All of the prompt but its last token. What the last page has beyond it is written over before it is read.
        at = 0
        while at < length - 1:
            cache, _ = read(params, cache, lax.dynamic_slice(prompt, (at,), (PAGE,)), at, sizes)
            at += PAGE
        at = length - 1
        token = prompt[at]
        text = jnp.zeros(sizes.limit, jnp.int32)
        count = 0
        while count < limit and token != END:
            cache, x = read(params, cache, token[None], at, sizes)
            token = jnp.argmax(norm(x[0]) @ params["head"]).astype(jnp.int32)
            text = text.at[count].set(token)
            count += 1
            at += 1
        return text, count

    return answer


# -- training --------------------------------------------------------------------------------------

WINDOW = 96
BATCH = 16


def trained(sizes: Sizes, steps: int, seed: int = 0, show: Callable[[str], Any] = print) -> Params:
    """Weights after some steps of Adam on windows of the text."""
    text = jnp.asarray(corpus(seed, 4000))
    schedule = optax.cosine_decay_schedule(4e-3, max(steps, 1))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))

    def loss(params: Params, windows: jax.Array) -> jax.Array:
        found = jax.vmap(functools.partial(logits, params, sizes=sizes))(windows[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(found, windows[:, 1:]).mean()

    @functools.partial(jax.jit, static_argnums=3, donate_argnums=(0, 1))
    def some_steps(params: Params, state: Any, key: jax.Array, count: int) -> Any:
        def step(carry: Any, key: jax.Array) -> Any:
            params, state = carry
            starts = jax.random.randint(key, (BATCH,), 0, len(text) - WINDOW)
            windows = text[starts[:, None] + jnp.arange(WINDOW + 1)]
            value, grads = jax.value_and_grad(loss)(params, windows)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), value

        (params, state), values = lax.scan(step, (params, state), jax.random.split(key, count))
        return params, state, values

    params = initial(jax.random.key(seed), sizes)
    state = optimizer.init(params)
    parts = 4 if steps >= 4 else 1
    for part in range(parts):
        key = jax.random.fold_in(jax.random.key(seed + 1), part)
        params, state, values = some_steps(params, state, key, steps // parts)
        done = (part + 1) * (steps // parts)
        show(f"step {done}: loss {float(values[0]):.3f} -> {float(values[-1]):.3f} nats a byte")
    return params


def decoded(tokens: np.ndarray) -> str:
    return bytes(np.asarray(tokens).astype(np.uint8)).decode("ascii", "replace")


def main(steps: int = 600) -> None:
    sizes = Sizes()
    params = trained(sizes, steps)
    answer = server(params, sizes)
    asked = requests(7, 200, sizes)
    dict(lw.stream(answer, asked[:2], lanes=16))
    start = time.perf_counter()
    answers = dict(lw.stream(answer, asked, lanes=16))
    seconds = time.perf_counter() - start
    right = 0
    rng = np.random.default_rng(7)
    for index in range(len(asked)):
        expected = request_text(rng)[1] + "\n"
        text, count = answers[index]
        right += decoded(text[:count]) == expected
    lengths = [int(count) for _, count in answers.values()]
    for index in range(3):
        (prompt, length, _), (text, count) = asked[index], answers[index]
        print(f"{decoded(prompt[:length])!r} -> {decoded(text[:count])!r}")
    alone = [answer(*request) for request in asked[:5]]
    same = all(np.array_equal(one[0], answers[i][0]) for i, one in enumerate(alone))
    print(f"{right} of {len(asked)} count down to zero; as one at a time: {same}")
    print(
        f"{len(asked) / seconds:.0f} requests/s, {sum(lengths) / seconds:.0f} tokens/s;"
        f" answers have {min(lengths)} to {max(lengths)} tokens, {np.mean(lengths):.0f} on average"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
