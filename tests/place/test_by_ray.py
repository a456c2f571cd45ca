"""Streams over workers of Ray, in processes that are killed (SIGKILL)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise import mcmc
from lanewise.core.errors import ClusterError, OptionError, Outcome
from lanewise.place.cluster.by_ray import ByRay
from lanewise.place.cluster.engine import Answers, Recipe, Task

HERE = Path(__file__).parent
pytestmark = needs.installed("ray")

NUMBERS = list(range(1, 61))


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    """Ray for this file, whose workers cannot import this module: what it holds travels."""
    ray: Any = needs.library("ray")
    here = sys.modules[__name__]
    ray.cloudpickle.register_pickle_by_value(here)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("PYTHONPATH", str(Path(lw.__file__).parent.parent), prepend=os.pathsep)
        yield ray
        ray.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(here)


@lw.program
def walk(key, x):
    """Steps of a random walk until it leaves an interval: uneven, of floats, by keys."""
    steps = 0
    while abs(x) < 3.0:
        key, own = jax.random.split(key)
        x = x + 0.5 * jax.random.normal(own)
        steps += 1
    return x, steps


@lw.program
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@pytest.fixture(scope="module")
def steps() -> dict[int, int]:
    return {i: int(n) for i, n in lw.stream(collatz, NUMBERS, lanes=4)}


class Troubled:
    """A worker that fails at the chunk with 17 in it, as `how` says; its process's number is in a file."""

    def __init__(self, recipe: Recipe, how: str, directory: Path) -> None:
        self.worker = recipe()
        self.greeting = self.worker.greeting
        self.how, self.directory = how, directory
        (directory / f"{os.getpid()}.pid").touch()

    def run(self, task: Task) -> Answers:
        waited = self.directory / "waited"
        if 17 in task.columns[0]:
            if self.how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.how == "raises":
                raise RuntimeError("out of something")
            elif self.how == "stops" and not waited.exists():
                waited.touch()
                os.kill(os.getpid(), signal.SIGSTOP)
            elif self.how == "waits" and not waited.exists():
                waited.write_text(str(os.getpid()))
                waited.rename(self.directory / "here")
                waited.touch()
                time.sleep(300)
        return self.worker.run(task)


@dataclass(frozen=True)
class Trouble(lw.Cluster):
    """A cluster of such workers."""

    how: str = ""
    directory: Path = Path()

    def engine(self, recipe: Recipe) -> ByRay:
        how, directory = self.how, self.directory
        return ByRay(self.address, self.workers, lambda: Troubled(recipe, how, directory))


def processes(directory: Path) -> set[int]:
    return {int(path.stem) for path in directory.glob("*.pid")}


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()


def counted(cluster: lw.Cluster, examples: Any = NUMBERS, **options: Any) -> dict[int, Any]:
    found = list(lw.stream(collatz, examples, lanes=4, cluster=cluster, **options))
    assert len({i for i, _ in found}) == len(found)
    return {i: x if isinstance(x, lw.Failure) else int(x) for i, x in found}


def test_answers_have_the_same_bits_on_any_number_of_workers() -> None:
    walks = [(jax.random.key(i), np.float32(i % 5 - 2)) for i in range(40)]

    def bits(found: Any) -> list[Any]:
        return [[leaf.tobytes() for leaf in jax.tree.leaves(x)] for _, x in sorted(found)]

    alone = bits(lw.stream(walk, walks, lanes=8))
    for workers in (1, 2, 3) if needs.FULL else (1, 3):
        cluster = lw.Cluster(workers=workers, chunk=7)
        assert bits(lw.stream(walk, walks, lanes=8, cluster=cluster)) == alone


def test_a_worker_that_is_killed_has_its_chunk_run_again(
    tmp_path: Path, steps: dict[int, int]
) -> None:
    def kill() -> None:
        while not (tmp_path / "waited").exists():
            time.sleep(0.01)
        os.kill(int((tmp_path / "here").read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    cluster = Trouble(workers=2, chunk=6, how="waits", directory=tmp_path)
    assert counted(cluster) == steps
    killer.join()
    assert len(processes(tmp_path)) >= 2


@pytest.mark.slow
def test_a_worker_that_is_stopped_is_replaced(tmp_path: Path, steps: dict[int, int]) -> None:
    cluster = Trouble(workers=2, chunk=6, limit=10.0, how="stops", directory=tmp_path)
    assert counted(cluster) == steps
    assert len(processes(tmp_path)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(int(os.environ.get("LANEWISE_KILLS", "5"))))
def test_killing_at_random_points_loses_and_duplicates_nothing(trial: int, tmp_path: Path) -> None:
    draws = np.random.default_rng(trial)
    numbers = list(range(1, 20_001))
    alone = {i: int(n) for i, n in lw.stream(collatz, numbers, lanes=64)}
    killed: set[int] = set()

    def source() -> Iterator[int]:
        """Kills one of the workers now and then."""
        for number in numbers:
            if draws.random() < 3e-4 and (there := processes(tmp_path) - killed):
                process = int(draws.choice(sorted(there)))
                os.kill(process, signal.SIGKILL)
                killed.add(process)
            yield number

    cluster = Trouble(workers=2, chunk=50, directory=tmp_path)
    found = list(lw.stream(collatz, source(), lanes=64, cluster=cluster))
    assert len(found) == len(numbers)
    assert {i: int(n) for i, n in found} == alone


@pytest.mark.slow
@pytest.mark.parametrize(("how", "why"), [("dies", "its worker died"), ("raises", "of something")])
def test_an_example_that_always_fails_is_reported_and_the_rest_goes_on(
    how: str, why: str, tmp_path: Path, steps: dict[int, int]
) -> None:
    found = counted(Trouble(workers=2, chunk=6, how=how, directory=tmp_path))
    failed = {i: x for i, x in found.items() if isinstance(x, lw.Failure)}
    assert {**steps, **failed} == found and list(failed) == [16]
    assert failed[16].outcome is Outcome.NOT_RUN
    text = str(failed[16])
    assert "example 16 failed 3 times" in text and why in text
    assert len(processes(tmp_path)) >= (3 if how == "dies" else 1)


def test_an_interrupt_hands_over_what_has_finished_and_releases_workers(tmp_path: Path) -> None:
    found: list[int] = []

    def source() -> Iterator[int]:
        """Endless, until some answers are there."""
        number = 0
        while len(found) < 50:
            number += 1
            yield number % 50 + 1
        raise KeyboardInterrupt

    cluster = Trouble(workers=1, chunk=6, directory=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        for i, _ in lw.stream(collatz, source(), lanes=4, cluster=cluster):
            found.append(i)
    assert len(set(found)) == len(found) >= 50
    assert processes(tmp_path)
    for process in processes(tmp_path):
        while is_there(process):  # they are ended, if not at once
            time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_driver_goes_on(tmp_path: Path, steps: dict[int, int]) -> None:
    """It has a cluster of its own, which ends with it."""
    script = [sys.executable, str(HERE / "driver.py"), str(tmp_path), "ray"]
    paths = [str(HERE.parent), str(HERE.parent.parent / "src")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}
    killed = subprocess.run(
        script, env=environment | {"LANEWISE_DIES_AT": "3"}, timeout=300, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert len((tmp_path / "chunks.jsonl").read_text().splitlines()) == 2
    # The rest is for this process's cluster: the program there is the same.
    assert counted(lw.Cluster(workers=1), resume=tmp_path) == steps


def test_chains_of_a_model(tmp_path: Path) -> None:
    run: Any = {
        "chains": 4,
        "draws": 6,
        "warmup": 20,
        "init": lambda key: jax.random.normal(key, (2,)),
        "sampler": mcmc.HMC(steps=4),
        "progress": False,
    }

    def logdensity(x: Any) -> Any:
        return -0.5 * (x**2).sum()

    alone = mcmc.sample(logdensity, jax.random.key(0), **run)
    cluster = Trouble(workers=1, directory=tmp_path)
    spread = mcmc.sample(logdensity, jax.random.key(0), cluster=cluster, **run)
    assert np.array_equal(alone.posterior["x"], spread.posterior["x"])
    assert len(processes(tmp_path)) == 1  # the same for all stretches


def test_a_program_that_cannot_travel_is_an_error(ray: Any) -> None:
    lock = threading.Lock()
    with pytest.raises(ClusterError, match="cannot travel to the workers"):
        list(lw.stream(lambda x: x if lock else -x, [1.0], cluster="auto"))


def test_a_module_that_workers_lack_is_an_error(ray: Any) -> None:
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    try:
        with pytest.raises(ClusterError, match=r"No module named[^$]*register_pickle_by_value"):
            counted(lw.Cluster(workers=1))
    finally:
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_another_cluster_than_the_one_this_process_has(ray: Any) -> None:
    if not ray.is_initialized():
        counted(lw.Cluster(workers=1), [1])
    with pytest.raises(OptionError, match="is connected to the cluster at"):
        counted(lw.Cluster("10.0.0.1:6379"))
    here = ray.get_runtime_context().gcs_address
    assert counted(lw.Cluster(here, workers=1), [6]) == {0: 8}
