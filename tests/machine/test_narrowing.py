"""Machines that become narrower, and expensive blocks without guards: the answers are those of the plain sweep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.blocks.link import Linked
from lanewise.carriers import ticks
from lanewise.core.profile import CPU, GPU, Profile
from lanewise.machine import sweep
from lanewise.machine.narrowing import widths_for
from lanewise.machine.worth import around
from programs.small import fib
from seeing import linked_of, on_profile

WEIGHTS = jax.random.normal(jax.random.key(0), (4, 64, 64)) / 8.0


@lw.program
def one_of_four(x, steps, weights):
    for _ in range(steps):
        choice = jnp.argmax(x[:4])
        if choice == 0:
            x = jnp.tanh(x @ weights[0])
        elif choice == 1:
            x = jnp.tanh(x @ weights[1])
        elif choice == 2:
            x = jnp.tanh(x @ weights[2])
        else:
            x = jnp.tanh(x @ weights[3])
        x = jnp.roll(x, 1)
    return x


@lw.program
def each_turn(x, steps, weights):
    i = 0
    while i < steps:
        x = jnp.tanh(x @ weights[0])
        i += 1
    return x


@lw.program
def now_and_then(x, steps, weights):
    for i in range(steps):
        if x[0] > 1.0:
            x = jnp.tanh(x @ weights[0])
        else:
            x = x + 0.3
    return x


def linked_with_weights(fun: Any, profile: Profile = CPU) -> Linked:
    varying = (True, True, False)
    return linked_of(fun, jnp.zeros(64), jnp.int32(0), WEIGHTS, varying=varying, profile=profile)


def products(linked: Linked) -> list[int]:
    """The blocks with matrix products in them."""
    return [pc for pc, cost in enumerate(linked.costs) if cost.products]


def batch(lanes: int) -> tuple[Any, Any, Any]:
    x = jax.random.normal(jax.random.key(1), (lanes, 64))
    steps = jax.random.randint(jax.random.key(2), (lanes,), 0, 12)
    return x, steps, WEIGHTS


def swept(fun: Any, args: Any, **options: Any) -> Any:
    run = lw.vmap(fun, in_axes=(0, 0, None), carrier="ticks", schedule="sweep", **options)
    return jax.jit(run)(*args)


@pytest.fixture
def narrowing(monkeypatch: Any) -> None:
    """As on a GPU: the host reads guards, and a machine narrows."""
    on_profile(monkeypatch, host_reads_guards=True)
    widths = lambda linked, lanes, schedule: (lanes, lanes // 2, lanes // 4)  # noqa: E731
    monkeypatch.setattr(ticks, "widths_for", widths)


@pytest.mark.parametrize("fun", [one_of_four, each_turn, now_and_then])
@pytest.mark.parametrize("free", [0, 1000])
def test_the_answers_are_the_same(fun: Any, free: int, request: Any, monkeypatch: Any) -> None:
    args = batch(48)
    expected = swept(fun, args)
    request.getfixturevalue("narrowing")
    monkeypatch.setattr(sweep, "FREE_TICKS", free)
    found, stats = swept(fun, args, stats=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert stats.steps == swept(fun, args, stats=True)[1].steps


def test_a_narrower_machine_is_offered_less(narrowing: None, monkeypatch: Any) -> None:
    args = batch(64)
    narrow = swept(each_turn, args, stats=True)[1]
    monkeypatch.setattr(ticks, "widths_for", lambda linked, lanes, schedule: (lanes,))
    wide = swept(each_turn, args, stats=True)[1]
    assert narrow.advanced == wide.advanced
    assert narrow.offered < wide.offered


def test_a_recursion_narrows(narrowing: None) -> None:
    n = jnp.arange(40) % 12
    found = jax.jit(lw.vmap(fib, carrier="ticks", schedule="sweep"))(n)
    np.testing.assert_array_equal(found, lw.vmap(fib, carrier="ticks", schedule="lowest")(n))


def test_what_is_on_every_way_round() -> None:
    linked = linked_with_weights(each_turn)
    always, one_of = around(linked, products(linked))
    assert len(always) == 1 and not one_of


def test_alternatives_of_which_one_is_on_every_way_round() -> None:
    linked = linked_with_weights(one_of_four)
    always, one_of = around(linked, products(linked))
    assert not always and len(one_of) == 4


def test_what_a_lane_may_go_round_without() -> None:
    linked = linked_with_weights(now_and_then)
    assert around(linked, products(linked)) == (frozenset(), frozenset())


def test_a_gpu_narrows_and_a_cpu_does_not() -> None:
    lanes = 1 << 16
    assert widths_for(linked_with_weights(each_turn), lanes, "sweep") == (lanes,)
    on_gpu = linked_with_weights(each_turn, GPU)
    assert len(widths_for(on_gpu, lanes, "sweep")) > 1


@pytest.mark.parametrize(
    ("lanes", "ticks", "widths"),
    [
        (1 << 16, 3.9, (1 << 16, 1 << 14)),
        (1 << 16, 4.1, (1 << 16, 1 << 12)),
        (1 << 14, 100.0, (1 << 14, 2048)),
        (1 << 13, 1.0, (1 << 13, 2048)),
        (4096, 100.0, (4096,)),
    ],
)
def test_the_more_work_the_narrower(lanes: int, ticks: float, widths: tuple[int, ...]) -> None:
    """`ticks`: what a tick has to do, by what it costs whatever it does."""
    work = lanes * max(cost.operations for cost in linked_with_weights(each_turn).costs)
    profile = replace(GPU, guard_operations=work / 2, tick_operations=work / ticks)
    assert widths_for(linked_with_weights(each_turn, profile), lanes, "sweep") == widths
