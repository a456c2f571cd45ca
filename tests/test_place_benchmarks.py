"""The benchmark of placed parts compares what computes the same: placed, stage by stage, and driven by the host."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import place_gpu
from place import offloaded
from place.actor_learner import EVERY, compiled_control, host_control
from place.learning import lstm_gradient
from place.loops import Loop, placed, stage_alone
from place.numbers import numbers
from place.two_at_a_time import two_at_a_time

STEPS = 5


def one_place(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, jax.devices()[0])


@pytest.mark.parametrize("size", [0, 8])
def test_loops_compute_what_they_say(size: int) -> None:
    times = np.matmul if size else np.multiply
    z, w0, w1 = numbers(size)
    back = made = taken = z
    for _ in range(STEPS):
        back = times(np.tanh(times(back, w0)), w1)
        made = np.tanh(times(made, w0))
        taken = np.tanh(times(taken, w1) + made)
    places = one_place("first", "second")
    found = placed(Loop("round", size), places)(STEPS)
    np.testing.assert_allclose(found, back.sum(), rtol=1e-4, atol=1e-4)
    pipeline = Loop("pipeline", size)
    np.testing.assert_allclose(placed(pipeline, places)(STEPS), taken.sum(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(stage_alone(pipeline, 0)(STEPS), made.sum(), rtol=1e-4, atol=1e-4)
    alone = z
    for _ in range(STEPS):
        alone = np.tanh(times(alone, w1) + z)
    np.testing.assert_allclose(stage_alone(pipeline, 1)(STEPS), alone.sum(), rtol=1e-4, atol=1e-4)


def test_actor_and_learner_by_both_controls() -> None:
    device = jax.devices()[0]
    compiled = compiled_control(one_place("actor", "learner"))(2 * EVERY + 3)
    by_host = host_control(device, device)(2 * EVERY + 3)
    for mine, theirs in zip(compiled, by_host, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_the_placed_gradient_has_the_loss_of_the_plain_one() -> None:
    mine, plain = lstm_gradient(one_place("first", "second"))(), lstm_gradient(None)()
    np.testing.assert_allclose(mine, plain, rtol=1e-4)


def test_two_iterations_a_turn_have_the_same_gradient() -> None:
    random = np.random.default_rng(0)
    width, batch, steps = 6, 3, 9
    weights = random.normal(size=(2 * width, 4 * width)).astype("float32") / 4
    letters = random.normal(size=(offloaded.CHARACTERS, width)).astype("float32")
    text = random.integers(0, offloaded.CHARACTERS, (steps, batch))
    targets = random.normal(size=(batch, width)).astype("float32")
    given = [jnp.asarray(x) for x in (weights, letters, text, targets)]
    away = lw.grad(offloaded.loss, checkpoints="all", offload="host")
    with two_at_a_time():
        paired = jax.jit(lambda *given: away(*given))
        assert f"<host>[{(steps - 1) // 2}," in str(jax.make_jaxpr(paired)(*given))
        found = paired(*given)
    np.testing.assert_allclose(found, jax.grad(offloaded.loss)(*given), rtol=1e-4, atol=1e-5)


def test_flags_that_xla_does_not_have_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert place_gpu.known(f"{place_gpu.HIDING} --xla_gpu_is_no_flag=1") == place_gpu.HIDING
    assert "has no flag --xla_gpu_is_no_flag=1: left out" in capsys.readouterr().out


def test_copies_beside_what_is_computed_are_added_up() -> None:
    assert offloaded.overlap([(0, 4), (10, 12)], [(1, 2), (3, 11)]) == 3
    assert offloaded.overlap([(0, 4), (1, 6)], [(2, 3), (5, 9)]) == 3
