"""Runs that are interrupted or killed at random moments: what was drawn is there, and a run goes on with the same bits.

`LANEWISE_TRIALS` says how often; `make soak` has many.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanewise import mcmc
from lanewise.mcmc import ended
from lanewise.mcmc.inference import groups_of
from lanewise.mcmc.interrupts import held
from lanewise.mcmc.loop import Loop
from lanewise.mcmc.pace import Pace
from mcmc.test_sample import assert_equal

TRIALS = int(os.environ.get("LANEWISE_TRIALS", "3"))
DRAWS = 3000


def logdensity(x: jax.Array) -> jax.Array:
    """Slow enough that a run takes a second or so."""
    for _ in range(20):
        x = x + 1e-3 * jnp.sin(x)
    return -0.5 * jnp.sum(x**2)


def go(directory: Path | None, draws: int = DRAWS) -> Any:
    return mcmc.sample(
        logdensity,
        0,
        chains=4,
        draws=draws,
        warmup=300,
        init=lambda key: jax.random.normal(key, (20,)),
        sampler=mcmc.HMC(steps=32),
        resume=directory,
        save_every=50,
        progress=False,
    )


SCRIPT = """
import sys, warnings
from pathlib import Path
from mcmc.test_interrupted import go
from lanewise import mcmc
print("begins", flush=True)
try:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        data = go(Path(sys.argv[1]))
    print("drawn", data.posterior.sizes["draw"], [str(w.message) for w in said], flush=True)
except KeyboardInterrupt:
    print("nothing drawn", flush=True)
"""


@pytest.fixture(scope="module")
def whole() -> Any:
    return go(None)


def struck(directory: Path, number: int, delay: float) -> str:
    """Send the signal `delay` seconds after the state was saved first."""
    path = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(directory)],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 120.0
    while not (directory / "state.npz").exists() and process.poll() is None:
        assert time.monotonic() < until, "it did not begin"
        time.sleep(0.005)
    time.sleep(delay)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert number == signal.SIGKILL or process.returncode == 0, err
    return out


def test_a_run_struck_at_random_goes_on(whole: Any, tmp_path: Path) -> None:
    for trial in range(TRIALS):
        number = (signal.SIGINT, signal.SIGKILL)[trial % 2]
        directory = tmp_path / str(trial)
        said = struck(directory, number, random.Random(trial).random() * 0.6)
        assert "begins" in said
        if number == signal.SIGINT and "nothing drawn" not in said:
            count = int(said.partition("drawn ")[2].split()[0])
            assert count == DRAWS or f"interrupted: it has {count:,} of {DRAWS:,} draws" in said, (
                said
            )
            assert_equal(whole, go(directory, count), count)
        assert_equal(whole, go(directory), DRAWS)


@pytest.mark.parametrize("after", [0, 1, 4])
def test_what_was_drawn_comes_back(whole: Any, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt after this many stretches of draws."""
    step, left = Loop._next, [after]
    monkeypatch.setattr(Pace, "took", lambda self, *_, **__: setattr(self, "draws", 100))

    def counted(self: Loop, state: Any) -> Any:
        if int(state.number) >= self.settings.warmup:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
        return step(self, state)

    monkeypatch.setattr(Loop, "_next", counted)
    if after == 0:
        with pytest.raises(KeyboardInterrupt):
            go(None)
        return
    with pytest.warns(mcmc.SamplingWarning, match=rf"has [\d,]+ of {DRAWS:,} draws of each chain"):
        data = go(None)
    count = data.posterior.sizes["draw"]
    assert 0 < count < DRAWS
    assert_equal(data, whole, count)


def test_a_warmup_that_is_kept_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Loop._next

    def counted(self: Loop, state: Any) -> Any:
        if int(state.number) >= 20:
            raise KeyboardInterrupt
        return step(self, state)

    monkeypatch.setattr(Loop, "_next", counted)
    run: dict[str, Any] = {"chains": 2, "draws": 5, "warmup": 40, "progress": False}
    with pytest.warns(mcmc.SamplingWarning, match="draws of the warm-up and no others"):
        data = mcmc.sample(
            lambda x: -0.5 * jnp.sum(x**2),
            0,
            init=np.zeros((2, 2), np.float32),
            keep_warmup=True,
            **run,
        )
    assert set(groups_of(data)) == {"warmup_posterior", "warmup_sample_stats"}
    assert data.warmup_posterior["x"].shape[1] >= 20


def short() -> Any:
    return mcmc.sample(
        lambda x: -0.5 * jnp.sum(x**2),
        0,
        chains=2,
        draws=7,
        warmup=0,
        step_size=0.5,
        sampler=mcmc.HMC(steps=2),
        init=np.zeros((2, 2), np.float32),
        progress=False,
    )


def fails(*_: Any, **__: Any) -> Any:
    raise ArithmeticError("by chance")


def strikes(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


FAILED = r"failed by ArithmeticError: by chance\. The draws are not touched"
STRUCK = "interrupted: it has 7 of 7 draws of each chain. Their diagnosis is not complete"


@pytest.mark.parametrize("place", ["diagnosis.findings", "diagnosis.add_sampling"])
@pytest.mark.parametrize("does, words", [(fails, FAILED), (strikes, STRUCK)])
def test_what_follows_a_run_loses_no_draws(
    place: str, does: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"lanewise.mcmc.{place}", does)
    with pytest.warns(mcmc.SamplingWarning, match=words):
        data = short()
    assert data.posterior["x"].shape == (2, 7, 2) and np.isfinite(data.posterior["x"]).all()


@pytest.mark.parametrize("does, words", [(fails, FAILED), (strikes, STRUCK)])
def test_draws_come_back_without_arviz(
    does: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanewise.mcmc.inference._imported", does)
    with pytest.warns(mcmc.SamplingWarning, match=words):
        groups = short()
    assert groups["posterior"]["x"].shape == (2, 7, 2)
    assert groups["sample_stats"]["lp"].shape == (2, 7)


def test_an_interrupt_while_data_are_made_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ended.sampled

    def struck_there(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return made(*given)

    monkeypatch.setattr(ended, "sampled", struck_there)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.warns(mcmc.SamplingWarning, match=STRUCK):
            data = short()
    finally:
        signal.signal(signal.SIGINT, before)
    assert data.posterior["x"].shape == (2, 7, 2)


def test_an_interrupt_is_held_and_a_second_is_not() -> None:
    done = []
    # A shell that starts tests in the background has them ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), held():
        signal.raise_signal(signal.SIGINT)
        done.append(1)
    with pytest.raises(KeyboardInterrupt), held():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append(2)
    signal.signal(signal.SIGINT, before)
    assert done == [1]
