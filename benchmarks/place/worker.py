"""One of the processes that run ours: `python -m place.worker`, with a rank in the environment."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax

from place.learning import lstm_gradient
from place.loops import PLACES, Loop, placed, stage_alone
from place.round_trips import over_tcp
from place.serving import serve, use_cores


def timed(run: Callable[[], Any]) -> dict[str, Any]:
    start = time.perf_counter()
    found = float(jax.block_until_ready(run()))
    return {"seconds": time.perf_counter() - start, "result": found}


@functools.cache
def _placed(loop: Loop, in_flight: int) -> Any:
    return placed(loop, PLACES, in_flight)


@functools.cache
def _alone(loop: Loop, stage: int) -> Any:
    return stage_alone(loop, stage)


@functools.cache
def _gradient(where: str) -> Any:
    return lstm_gradient(PLACES if where == "placed" else None)


def run(kind: str, size: int, steps: int, in_flight: int = 8) -> dict[str, Any]:
    return timed(lambda: _placed(Loop(kind, size), in_flight)(steps))


def alone(kind: str, size: int, steps: int, stage: int) -> dict[str, Any]:
    return timed(lambda: _alone(Loop(kind, size), stage)(steps))


def gradient(where: str) -> dict[str, Any]:
    return timed(lambda: _gradient(where)())


def main() -> None:
    # XLA makes its threads for the cores that it sees now; with a single thread a product alone took twice as long.
    jax.devices()
    answers = {
        "cores": use_cores,
        "run": run,
        "alone": alone,
        "gradient": gradient,
        "round trips": over_tcp,
    }
    serve(answers)


if __name__ == "__main__":
    main()
