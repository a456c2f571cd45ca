"""Programs placed at random over the devices of a process; `test_placed.py` reads what this prints.

`python on_places.py corpus SHARD SHARDS` and `python on_places.py generated SEED COUNT`. A line for each case: its
name, then "right", or what went wrong. Queues hold one message (`in_flight=1`): whatever could wait for ever would.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, Phase, settings

import lanewise as lw
from corpus import CORPUS
from generate import LANES, Generated, load, programs, run_plainly
from lanewise import _jax
from place.scattered import placement_of, scattered
from programs.case import Case


def numbers(value: Any) -> np.ndarray:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def differs(got: Any, want: Any, rtol: float) -> str:
    """What is wrong with an answer; nothing if it is right."""
    mine, theirs = jax.tree.leaves(got), jax.tree.leaves(want)
    for a, b in zip(map(numbers, mine), map(numbers, theirs), strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
        if not np.allclose(a, b, rtol=rtol, atol=rtol, equal_nan=True):
            return f"{a} instead of {b}"
    return ""


def placed_at_random(fun: Callable[..., Any], args: tuple[Any, ...], rng: random.Random) -> Any:
    """What a function gives with its equations over two or four devices at random; `None` if it has none to place."""
    strewn = scattered(fun, args, 4, rng)
    places = placement_of(strewn, args, jax.devices()[: rng.choice((2, 4))], rng)
    return lw.run(strewn, places, in_flight=1, timeout=60.0)(*args) if places else None


def one_example(case: Case) -> tuple[Any, ...]:
    args = case.examples(np.random.default_rng(3), 2)
    leaves, tree = jax.tree.flatten(args)
    axes = _jax.broadcast_axes(case.in_axes, args)
    one = [x if axis is None else x[0] for x, axis in zip(leaves, axes, strict=True)]
    return jax.tree.unflatten(tree, [jnp.asarray(x) for x in one])


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
        got = lw.run(slope, places, in_flight=1, timeout=60.0)(*args)
        yield f"{case.name} gradient", differs(got, want, max(case.rtol, 1e-5)) or "right"


def of_generated(seed: int, count: int) -> Iterator[tuple[str, str]]:
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
        serial = len(found)
        name = f"generated {seed}.{serial}"
        main = load(program.source, lw.program, name)
        lane = serial % LANES
        args = tuple(jnp.asarray(a) for a in program.lane(lane))
        want = jax.tree.map(jnp.asarray, run_plainly(program)[lane])
        try:
            got = placed_at_random(main, args, random.Random(seed * 1000 + serial))
            said = "right" if got is None else differs(got, want, 0.0) or "right"
        except Exception as error:
            said = f"{type(error).__name__} {str(error).splitlines()[0]}"
        found.append(
            (name, said if said == "right" else f"{said}\\n{program!r}".replace("\n", "\\n"))
        )

    each()
    yield from found


if __name__ == "__main__":
    kind, first, second = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    cases = of_corpus if kind == "corpus" else of_generated
    for name, said in cases(first, second):
        print(f"{name}: {said}", flush=True)
