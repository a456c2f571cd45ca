"""Streams over a cluster: chunks, faults, the log, what is refused. It is simulated here; `test_by_ray.py` has Ray."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise import mcmc
from lanewise.api import on_cluster, worker
from lanewise.core.errors import ClusterError, LaneError, OptionError, Outcome
from lanewise.place.cluster import by_ray, crew
from lanewise.place.cluster.chunked import MOST_ATTEMPTS, size_of_chunk
from lanewise.place.cluster.engine import Greeting, Lost, Refused, Task
from simulated import DIES, RAISES, Engine, Simulated, ran

HERE = Path(__file__).parent


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
    assert n > 0, "not a positive number"
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


class _Greets:
    """A worker that gets nothing to do."""

    greeting = Greeting("ticks on cpu", "", "", "here")


GREETS = _Greets()
WALKS = [(jax.random.key(i), np.float32(i % 5 - 2)) for i in range(40)]
NUMBERS = list(range(1, 61))


@pytest.fixture(scope="module")
def steps() -> dict[int, int]:
    return {i: int(n) for i, n in lw.stream(collatz, NUMBERS, lanes=4)}


def counted(cluster: Simulated, examples: Any = NUMBERS, **options: Any) -> dict[int, Any]:
    """The answers by number, none of which came twice."""
    found = list(lw.stream(collatz, examples, lanes=4, cluster=cluster, **options))
    assert len({i for i, _ in found}) == len(found)
    return {i: x if isinstance(x, lw.Failure) else int(x) for i, x in found}


def bits(found: Any) -> list[Any]:
    return [[leaf.tobytes() for leaf in jax.tree.leaves(x)] for _, x in sorted(found)]


# -- answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("carrier", ["ticks", "native"])
def test_answers_have_the_same_bits_on_any_number_of_workers(carrier: str) -> None:
    options: Any = {"lanes": 8, "carrier": carrier}
    alone = bits(lw.stream(walk, WALKS, **options))
    for workers in (1, 2, 3):
        cluster = Simulated(workers=workers, seed=workers, chunk=7)
        assert bits(lw.stream(walk, WALKS, cluster=cluster, **options)) == alone


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_and_nothing_comes_twice(seed: int, steps: dict[int, int]) -> None:
    """Workers die and raise at random. No chunk fails three times: once alone, once beside another one."""
    draws = np.random.default_rng(seed)
    failed: dict[bytes, int] = {}

    def fault(worker: int, task: Task) -> str | None:
        which = task.columns[0].tobytes()
        if failed.get(which, 0) == MOST_ATTEMPTS - 2 or draws.random() < 0.6:
            return None
        failed[which] = failed.get(which, 0) + 1
        return str(draws.choice([DIES, RAISES]))

    cluster = Simulated(workers=1 + seed % 4, seed=seed, chunk=5, fault=fault)
    assert counted(cluster, ordered=seed % 2 == 0) == steps
    assert sorted(ran(cluster)) == NUMBERS
    assert sum(failed.values()) > 0
    assert cluster.seen.closed


def test_order_and_failures_are_those_of_a_stream_in_one_process() -> None:
    numbers = [3, -1, 27, 5, -7, 6]
    options: Any = {"lanes": 2, "ordered": True, "max_steps": 50}
    alone = [(i, str(x)) for i, x in lw.stream(collatz, numbers, **options)]
    cluster = Simulated(chunk=2)
    found = [(i, str(x)) for i, x in lw.stream(collatz, numbers, cluster=cluster, **options)]
    assert found == alone
    with pytest.raises(LaneError, match="not a positive number"):
        list(lw.stream(collatz, numbers, throw=True, cluster=Simulated(), **options))


def test_answers_of_any_type() -> None:
    def f(key: Any, tree: Any) -> Any:
        return {"key": jax.random.split(key)[0], "half": (tree["x"] * 2).astype(jnp.bfloat16)}, None

    examples = [(jax.random.key(i), {"x": jnp.arange(3.0) + i}) for i in range(5)]
    alone = dict(lw.stream(f, examples, lanes=2))
    for i, (found, nothing) in lw.stream(f, examples, lanes=2, cluster=Simulated()):
        assert nothing is None and found["half"].dtype == jnp.bfloat16
        assert np.array_equal(found["half"], alone[i][0]["half"])
        assert jnp.array_equal(
            jax.random.key_data(found["key"]), jax.random.key_data(alone[i][0]["key"])
        )


def test_settings_of_jax_travel() -> None:
    with jax.enable_x64(True):
        ((_, found),) = lw.stream(lambda x: x / 3, [1.0], lanes=1, cluster=Simulated())
    assert found.dtype == np.float64


@pytest.mark.parametrize("carrier", ["ticks", "native"])
def test_a_worker_runs_several_tasks_at_a_time(
    carrier: str, steps: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = collatz.with_options(lanes=4, throw=False, carrier=carrier)
    made = worker.Traveling(program, (), (1,), worker.settings_here())()

    def task(first: int) -> Task:
        return Task(5, [np.arange(first, first + 5, dtype=np.int32)], [], 0)

    def run(first: int) -> Any:
        return made.run(task(first)).columns[0].tolist()

    firsts = range(1, 56, 5)
    expected = [[steps[n - 1] for n in range(first, first + 5)] for first in firsts]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, firsts)) == expected
        # What breaks the lanes fails the tasks that are there, and no later ones.
        broken = type(made.fed)
        monkeypatch.setattr(broken, "start", lambda *_: 1 / 0)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                list(pool.map(run, (1, 6)))
        monkeypatch.undo()
        assert list(pool.map(run, firsts)) == expected
    assert not made.under_way and not made.waiting


# -- chunks -----------------------------------------------------------------------------------------


def test_chunks_are_large_first_and_small_last() -> None:
    cluster = Simulated(workers=2, chunk=10)
    counted(cluster)
    sizes = cluster.seen.sizes
    assert sizes[0] == 10 and sizes[-1] == 1
    assert sorted(sizes, reverse=True) == sizes
    assert sum(sizes) == len(NUMBERS)


def test_idle_workers_take_the_rest() -> None:
    """Of uneven costs the last worker ends soon after the first: none has more than a small share in the end."""
    draws = np.random.default_rng(0)
    costs = np.minimum(1.0 / draws.random(4000), 100.0)  # a heavy tail
    workers = 8

    def cost(task: Task) -> float:
        return float(costs[task.columns[0]].sum())

    cluster = Simulated(workers=workers, cost=cost, chunk=4000)
    for _ in lw.stream(lambda n: n, range(4000), lanes=64, cluster=cluster):
        pass
    best = costs.sum() / workers
    in_equal_parts = max(part.sum() for part in np.split(costs, workers))
    assert cluster.seen.clock < best + costs.max()
    assert cluster.seen.clock < in_equal_parts
    assert len(cluster.seen.ran) < 150


def test_an_endless_source_is_read_as_workers_come_free() -> None:
    read = 0

    def source() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield read % 50 + 1

    cluster = Simulated(workers=3, chunk=5)
    answers = lw.stream(collatz, source(), lanes=4, cluster=cluster)
    for got, _ in enumerate(answers, 1):
        # Two chunks a worker, one more for each that waits, and one whose answers are handed over.
        assert read - got <= (2 * 3 + 3 + 1) * 5
        if got == 300:
            break
    answers.close()
    assert cluster.seen.closed


def test_sizes() -> None:
    left, sizes = 1000, []
    while left:
        sizes.append(min(left, size_of_chunk(left, 4, 1, 64)))
        left -= sizes[-1]
    assert sizes[0] == 64 and sizes[-8:] == [1] * 8
    assert all(a >= b for a, b in itertools.pairwise(sizes))


# -- faults -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [DIES, RAISES])
def test_an_example_that_always_fails_is_reported_and_the_rest_goes_on(
    how: str, steps: dict[int, int]
) -> None:
    """Its chunk is cut until it is alone: nothing goes along with it."""
    tries: list[int] = []

    def fault(worker: int, task: Task) -> str | None:
        if 17 not in task.columns[0]:
            return None
        tries.append(task.count)
        return how

    found = counted(Simulated(workers=2, chunk=6, fault=fault))
    failed = {i: x for i, x in found.items() if isinstance(x, lw.Failure)}
    assert {**steps, **failed} == found and list(failed) == [16]
    assert failed[16].outcome is Outcome.NOT_RUN
    assert "not run: example 16 failed 3 times, the last time: " in str(failed[16])
    assert tries.count(1) == MOST_ATTEMPTS
    assert all(tries.count(n) <= (MOST_ATTEMPTS if n == max(tries) else 2) for n in {*tries} - {1})
    with pytest.raises(LaneError, match="example 16 failed 3 times"):
        counted(Simulated(chunk=6, fault=fault), throw=True)


def test_several_examples_that_always_fail() -> None:
    numbers = list(range(1, 300))
    poison = {5, 6, 130, 131, 299}

    def fault(worker: int, task: Task) -> str | None:
        return RAISES if poison & set(task.columns[0].tolist()) else None

    cluster = Simulated(workers=2, chunk=128, fault=fault)
    found = dict(lw.stream(collatz, numbers, lanes=8, cluster=cluster, throw=False))
    failed = {i for i, x in found.items() if isinstance(x, lw.Failure)}
    assert len(found) == len(numbers) and failed == {n - 1 for n in poison}


def test_where_all_examples_fail_the_search_ends() -> None:
    tries: list[int] = []

    def fault(worker: int, task: Task) -> str | None:
        tries.append(task.count)
        return RAISES

    cluster = Simulated(workers=2, chunk=256, fault=fault)
    found = dict(lw.stream(collatz, list(range(1, 257)), lanes=8, cluster=cluster, throw=False))
    assert len(found) == 256 and all(isinstance(x, lw.Failure) for x in found.values())
    # A bounded number of pieces of each chunk, and examples alone three times.
    assert len(tries) < 4 * 256
    assert any("failed together" in str(x) for x in found.values())


def test_chunks_beside_one_that_kills_its_worker_are_not_given_up() -> None:
    """With one worker every deadly chunk has had another beside it, which was blamed as well, and then ran alone."""
    deadly = {1, 11, 21, 31}

    def fault(worker: int, task: Task) -> str | None:
        return DIES if deadly & set(task.columns[0].tolist()) else None

    cluster = Simulated(workers=1, chunk=1, fault=fault)
    found = counted(cluster)
    assert {i + 1 for i, x in found.items() if isinstance(x, lw.Failure)} == deadly
    assert len(cluster.seen.started) <= 1 + MOST_ATTEMPTS * len(deadly)


def test_a_worker_that_hangs_is_ended() -> None:
    now = 0.0
    cluster = Simulated(workers=1)
    there = crew.Crew(cluster.engine(lambda: GREETS), GREETS.greeting, limit=5, clock=lambda: now)  # type: ignore[arg-type]
    there.wait(0.1)
    task = Task(0, [], [], 0)
    first, second = there.give(0, task, alone=False), there.give(0, task, alone=False)
    engine: Any = there.engine
    engine.todo[0].clear()  # it does nothing more
    now = 4.0
    assert there.wait(0.1) == []
    now = 5.5
    why = "it had not ended after 5 seconds"
    assert there.wait(0.1) == [crew.Failed(first, why), crew.Failed(second, why)]
    assert cluster.seen.stopped == [0] and cluster.seen.started == [0, 0]


def test_workers_that_die_as_they_start_are_given_up(steps: dict[int, int]) -> None:
    def greets(worker: int, greeting: Greeting) -> Any:
        return Lost(worker, "no memory") if worker == 1 else greeting

    cluster = Simulated(greets=greets)
    assert counted(cluster) == steps
    assert cluster.seen.started.count(1) == crew.MOST_STARTS
    with pytest.raises(ClusterError, match=r"no worker of the cluster can be used.*no memory"):
        counted(Simulated(greets=lambda worker, _: Lost(worker, "no memory")))


def test_a_worker_that_cannot_run_the_program_is_an_error() -> None:
    cluster = Simulated(greets=lambda worker, _: Refused(worker, "No module named 'mine'"))
    with pytest.raises(ClusterError, match=r"No module named 'mine'[^$]*register_pickle_by_value"):
        counted(cluster)
    assert cluster.seen.closed


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"digest": "other"}, "another program"), ({"versions": "JAX 0.1"}, "has JAX 0.1")],
)
def test_workers_with_another_program_or_versions_are_refused(
    changes: dict[str, str], text: str
) -> None:
    cluster = Simulated(greets=lambda worker, greeting: greeting._replace(**changes))
    with pytest.raises(ClusterError, match=text):
        counted(cluster)


def test_workers_with_another_carrier_are_left_out(steps: dict[int, int]) -> None:
    def greets(worker: int, greeting: Greeting) -> Greeting:
        return greeting._replace(carrier="kernel on gpu") if worker == 1 else greeting

    # The one that is first decides: the other one has to be later.
    cluster = Simulated(greets=greets, seed=1)
    with pytest.warns(UserWarning, match="left out: it would run the program on"):
        assert counted(cluster) == steps
    assert len({worker for worker, _ in cluster.seen.ran}) == 1


def test_a_cluster_without_room_is_reported() -> None:
    time = itertools.count(step=20)
    engine = Engine(Simulated(workers=1, greets=lambda *_: None), lambda: GREETS)  # type: ignore[arg-type]
    waiting = crew.Crew(engine, GREETS.greeting, clock=lambda: next(time))
    waiting.wait(1.0)
    with pytest.warns(UserWarning, match="no worker has started.*it has nothing to offer"):
        waiting.wait(1.0)


# -- sources and interrupts -------------------------------------------------------------------------


def test_a_source_that_raises_or_waits() -> None:
    def source() -> Iterator[Any]:
        yield 3
        yield lw.NOT_YET
        yield 27
        yield lw.NOT_YET
        raise RuntimeError("no more")

    found = {}
    with pytest.raises(RuntimeError, match="no more"):
        for i, n in lw.stream(collatz, source(), lanes=4, cluster=Simulated()):
            found[i] = int(n)
    assert found == {0: 7, 1: 111}


def test_an_interrupt_hands_over_what_has_finished_and_releases_workers() -> None:
    cluster = Simulated(chunk=2)

    def source() -> Iterator[int]:
        yield from NUMBERS
        raise KeyboardInterrupt

    found = []
    with pytest.raises(KeyboardInterrupt):
        for i, _ in lw.stream(collatz, source(), lanes=4, cluster=cluster):
            found.append(i)
    assert cluster.seen.closed
    assert len(set(found)) == len(found) == sum(task.count for _, task in cluster.seen.ran)


# -- the log ----------------------------------------------------------------------------------------


def stopped_after(answers: int, directory: Path, **about: Any) -> Simulated:
    """A run whose driver goes away after some answers."""
    cluster = Simulated(chunk=5, **about)
    stream = lw.stream(collatz, NUMBERS, lanes=4, cluster=cluster, resume=directory)
    for _ in range(answers):
        next(stream)
    stream.close()
    return cluster


def test_a_run_goes_on_where_it_was(tmp_path: Path, steps: dict[int, int]) -> None:
    before = stopped_after(23, tmp_path)
    after = Simulated(chunk=4, workers=3)
    assert counted(after, resume=tmp_path, ordered=True) == steps
    assert len(ran(before)) >= 23
    assert sorted(ran(before) + ran(after)) == NUMBERS
    again = Simulated()
    assert counted(again, resume=tmp_path) == steps and ran(again) == []


def test_chunks_that_were_given_up_are_tried_again(tmp_path: Path, steps: dict[int, int]) -> None:
    def fault(worker: int, task: Task) -> str | None:
        return DIES if 17 in task.columns[0] else None

    first = counted(Simulated(chunk=5, fault=fault), resume=tmp_path)
    assert any(isinstance(x, lw.Failure) for x in first.values())
    after = Simulated()
    assert counted(after, resume=tmp_path) == steps
    assert sorted(ran(after)) == [i + 1 for i, x in first.items() if isinstance(x, lw.Failure)]


def test_answers_on_disk_are_of_any_type(tmp_path: Path) -> None:
    def f(key: Any) -> Any:
        return jax.random.split(key)[0], jax.random.normal(key, (2,), jnp.bfloat16)

    keys = [jax.random.key(i) for i in range(4)]
    options: Any = {"lanes": 2, "ordered": True, "resume": tmp_path}
    first = list(lw.stream(f, keys, cluster=Simulated(), **options))
    again = Simulated()
    for (_, (key, x)), (_, (same, y)) in zip(
        first, lw.stream(f, keys, cluster=again, **options), strict=True
    ):
        assert x.dtype == y.dtype and x.tobytes() == y.tobytes()
        assert key.dtype == same.dtype
        assert jnp.array_equal(jax.random.key_data(key), jax.random.key_data(same))
    assert again.seen.ran == []


def test_another_run_is_not_mixed_in(tmp_path: Path) -> None:
    stopped_after(20, tmp_path)
    with pytest.raises(OptionError, match="an answer for another example 0"):
        counted(Simulated(), [n + 1 for n in NUMBERS], resume=tmp_path)
    with pytest.raises(OptionError, match="another run: max_steps was None and is 9"):
        counted(Simulated(), resume=tmp_path, max_steps=9)
    with pytest.raises(OptionError, match=r"another run: .*hash was"):
        list(
            lw.stream(
                lambda n: collatz(n) + 1, NUMBERS, lanes=4, cluster=Simulated(), resume=tmp_path
            )
        )


def test_workers_carry_a_resumed_run_as_before(tmp_path: Path) -> None:
    stopped_after(20, tmp_path)
    cluster = Simulated(greets=lambda worker, greeting: greeting._replace(carrier="kernel on gpu"))
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(ClusterError, match="kernel on gpu"),
    ):
        counted(cluster, resume=tmp_path)


def test_what_is_damaged_on_disk(tmp_path: Path, steps: dict[int, int]) -> None:
    stopped_after(30, tmp_path)
    chunks = tmp_path / "chunks.jsonl"
    # A line that was cut off is none.
    content = chunks.read_bytes()
    last = json.loads(content.splitlines()[-1])
    chunks.write_bytes(content[:-9])
    after = Simulated()
    assert counted(after, resume=tmp_path) == steps
    assert {first + 1 for first, _ in last["examples"]} <= set(ran(after))
    # A file with other bytes is found out, and without it its examples are run again.
    (path, *_) = sorted(tmp_path.glob("*.npz"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(OptionError, match=r"is not what was written there\. Delete it"):
        counted(Simulated(), resume=tmp_path)
    path.unlink()
    after = Simulated()
    assert counted(after, resume=tmp_path) == steps
    assert 0 < len(ran(after)) < len(NUMBERS)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(OptionError, match=r"run\.json is damaged"):
        counted(Simulated(), resume=tmp_path)


def test_two_drivers_cannot_have_one_directory(tmp_path: Path) -> None:
    first = lw.stream(collatz, NUMBERS, lanes=4, cluster=Simulated(chunk=5), resume=tmp_path)
    next(first)
    with pytest.raises(OptionError, match="in use by another process"):
        counted(Simulated(), resume=tmp_path)
    first.close()
    counted(Simulated(), resume=tmp_path)


def test_a_killed_driver_goes_on(tmp_path: Path, steps: dict[int, int]) -> None:
    """It is killed while it writes a chunk."""
    script = [sys.executable, str(HERE / "driver.py"), str(tmp_path), "simulated"]
    paths = [str(HERE), str(HERE.parent), str(HERE.parent.parent / "src")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}
    killed = subprocess.run(
        script, env=environment | {"LANEWISE_DIES_AT": "4"}, timeout=300, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert len((tmp_path / "chunks.jsonl").read_text().splitlines()) == 3
    assert list(tmp_path.glob("*.unfinished"))
    done = subprocess.run(script, env=environment, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {int(i): n for i, n in found["answers"]} == steps
    assert len(found["answers"]) == len(steps)
    assert len(found["ran"]) == len(steps) - 3 * 5


# -- chains -----------------------------------------------------------------------------------------


def test_chains_over_a_cluster_have_the_draws_of_one_process() -> None:
    run: Any = {
        "chains": 6,
        "draws": 8,
        "warmup": 30,
        "init": lambda key: jax.random.normal(key, (2,)),
        "sampler": mcmc.HMC(steps=4),
        "progress": False,
    }

    def logdensity(x: Any) -> Any:
        return -0.5 * jnp.sum(x**2)

    alone = mcmc.sample(logdensity, jax.random.key(0), **run)
    cluster = Simulated(chunk=2, fault=_every_fifth_dies())
    spread = mcmc.sample(logdensity, jax.random.key(0), cluster=cluster, **run)
    for name in ("posterior", "sample_stats"):
        for variable in alone[name]:
            assert np.array_equal(alone[name][variable], spread[name][variable]), variable
    assert cluster.seen.closed
    assert len(cluster.seen.started) > 2  # some died
    with pytest.raises(OptionError, match="device= is for one process"):
        mcmc.sample(logdensity, jax.random.key(0), cluster=cluster, device="cpu", **run)


def _every_fifth_dies() -> Callable[[int, Task], str | None]:
    number = itertools.count(1)
    return lambda worker, task: DIES if next(number) % 5 == 0 else None


# -- what is refused --------------------------------------------------------------------------------


def test_wrong_arguments() -> None:
    for cluster in (3, ""):
        with pytest.raises(OptionError, match='must be "auto", the address'):
            lw.stream(collatz, NUMBERS, cluster=cluster)  # type: ignore[arg-type]
    for name in ("workers", "chunk"):
        with pytest.raises(OptionError, match=f"{name}=0 must be a positive int"):
            lw.Cluster(**{name: 0})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="limit=-1 must be a positive number"):
        lw.Cluster(limit=-1)
    with pytest.raises(OptionError, match="give cluster= as well"):
        lw.stream(collatz, NUMBERS, resume="there")
    with pytest.raises(OptionError, match="must be the path of a directory"):
        lw.stream(collatz, NUMBERS, cluster="auto", resume=3)  # type: ignore[arg-type]
    with (
        jax.disable_jit(),
        pytest.raises(OptionError, match=r"leave it out under jax\.disable_jit"),
    ):
        lw.stream(collatz, NUMBERS, cluster="auto")


def test_without_ray_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_ray.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"pip install 'lanewise\[ray\]'"):
        list(lw.stream(collatz, NUMBERS, cluster="auto"))


def test_an_address_without_a_cluster() -> None:
    needs.library("ray")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        empty = f"localhost:{probe.getsockname()[1]}"
    with pytest.raises(ClusterError, match=f"no cluster answers at {empty}"):
        list(lw.stream(collatz, NUMBERS, cluster=empty))


def test_where_workers_are() -> None:
    def nodes(*resources: dict[str, float]) -> list[dict[str, Any]]:
        found = [{"NodeID": str(i), "Alive": True, "Resources": r} for i, r in enumerate(resources)]
        return [*found, {"NodeID": "gone", "Alive": False, "Resources": {"CPU": 64.0}}]

    mixed = nodes({"CPU": 4.0}, {"CPU": 16.0, "GPU": 2.0})
    assert by_ray.places(mixed, None) == [by_ray.Place("1", 8.0, 1.0)] * 2
    assert by_ray.places(mixed, 4) == [by_ray.Place("1", 4.0, 0.5)] * 4
    assert by_ray.places(nodes({"CPU": 2.0}), 3) == [by_ray.Place("0", 0.6666, 0.0)] * 3
    assert len(by_ray.places(nodes({"CPU": 2.0}, {"CPU": 8.0}), 1)) == 1
    with pytest.raises(ClusterError, match="no machine"):
        by_ray.places(nodes({}), None)


def test_one_cluster_serves_streams_one_after_another() -> None:
    """What samplers do: workers stay, and what all examples share changes."""
    there = on_cluster.OnCluster(cluster := Simulated(chunk=2), keeps=True)
    program = lw.lift(lambda a, x: a * x, lanes=2, throw=False)
    for a in (2.0, 3.0):
        from lanewise.api.stream import Streaming

        stream = Streaming(
            program, iter([1.0, 2.0, 3.0]), False, None, on_cluster=there, shared=(a,)
        )
        assert [float(x) for _, x in sorted(stream.answers())] == [a, 2 * a, 3 * a]
    assert len(cluster.seen.started) == 2 and not cluster.seen.closed
    there.close()
    assert cluster.seen.closed
