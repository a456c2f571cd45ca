"""The served models of `examples/models/`: their answers do not depend on what is served beside, and they learn."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw

MODELS = Path(__file__).resolve().parent.parent / "examples" / "models"


def loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"served_{name}", MODELS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


language = loaded("language_model")
exits = loaded("early_exit")
SIZES = language.Sizes(layers=1, width=16, heads=2, prompt=64, limit=32)


def asked() -> list[Any]:
    """Requests with limits of their own, down to none at all."""
    limits = (5, 32, 0, 1, 17, 9, 3)
    found = language.requests(3, len(limits), SIZES)
    return [(prompt, length, np.int32(limit)) for (prompt, length, _), limit in zip(found, limits)]


@pytest.fixture(scope="module")
def answer() -> Any:
    with jax.enable_x64(True):
        params = language.initial(jax.random.key(0), SIZES, jnp.float64)
        return language.server(params, SIZES)


def test_every_token_is_the_likeliest_after_all_that_came_before_it() -> None:
    """Read at once and without a cache, as in training."""
    with jax.enable_x64(True):
        params = language.initial(jax.random.key(0), SIZES, jnp.float64)
        prompt, length, limit = asked()[1]
        text, count = language.server(params, SIZES)(prompt, length, limit)
        whole = np.concatenate([prompt[:length], text[: int(count)]])
        likeliest = language.logits(params, jnp.asarray(whole), SIZES).argmax(-1)
        assert int(count) > 1
        assert likeliest[int(length) - 1 : -1].tolist() == text[: int(count)].tolist()


@pytest.mark.parametrize(
    "lanes, how",
    [
        (1, {"carrier": "native"}),
        (3, {"carrier": "native"}),
        (3, {"carrier": "ticks"}),
        (8, {"carrier": "ticks", "schedule": "meet"}),
    ],
)
def test_answers_depend_on_neither_order_nor_lanes(answer: Any, lanes: int, how: Any) -> None:
    with jax.enable_x64(True):
        requests = asked()
        alone = [answer(*request) for request in requests]
        for order in (range(len(requests)), reversed(range(len(requests)))):
            order = list(order)
            for place, (text, count) in lw.stream(
                answer, [requests[i] for i in order], lanes=lanes, **how
            ):
                assert int(count) == int(alone[order[place]][1])
                assert text.tolist() == alone[order[place]][0].tolist()


def test_the_language_model_learns_its_text() -> None:
    said: list[str] = []
    language.trained(SIZES, 24, show=said.append)
    first, last = (float(line.split()[place]) for line, place in ((said[0], 3), (said[-1], 5)))
    assert last < first - 1.0


@pytest.mark.slow
def test_the_encoder_learns_and_exits_early_where_that_is_easy() -> None:
    sizes = exits.Sizes(tokens=12, width=16, layers=3, classes=4)
    params = exits.trained(sizes, 80, show=lambda line: None)
    tokens, answers, lead = exits.instances(1, 96, sizes)
    run = lw.vmap(exits.classify, in_axes=(None, 0, None))
    best, _, used = run(params, tokens, 0.8)
    assert np.mean(best == answers) > 0.7
    assert np.mean(used[lead >= 5]) < np.mean(used[lead <= 1])
    every = jax.vmap(exits.at_all_exits, in_axes=(None, 0))(params, tokens)
    at_exit = np.asarray(every)[np.arange(len(tokens)), np.asarray(used) - 1]
    np.testing.assert_array_equal(at_exit.argmax(-1), best)
    served = lw.stream(lambda x: exits.classify(params, x, np.float32(0.8)), tokens, lanes=16)
    assert {i: int(found[2]) for i, found in served} == dict(enumerate(used.tolist()))
