"""Workers that are actors of Ray.

A worker is an actor of its own process. Ray could restart actors and run their tasks again on its own
(`max_restarts`, `max_task_retries`); here it does neither, since it would not report how often a task was tried, nor
keep one that kills its worker from doing so on and on. It reports a death by an error in place of the answer
(`ActorDiedError` and its like), and a new actor is made then. Actors belong to the driver: Ray ends them with it.

The cluster is the one this process is connected to, or else the one at the address. "auto" is the one that
`RAY_ADDRESS` names, or that `ray start` started on this machine; where there is none, one of this machine alone is
started, which ends with this process. Ray stays connected after a stream: the next one starts at once.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import os
import re
import socket
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lanewise.core.errors import ClusterError, OptionError
from lanewise.place.cluster.engine import (
    TASKS_AT_ONCE,
    Answers,
    Event,
    Finished,
    Greeting,
    Lost,
    Raised,
    Ready,
    Recipe,
    Refused,
    Task,
    Worker,
)

AUTO = "auto"
# How long an address may take to answer.
CONNECT_SECONDS = 10.0
# How much of the text of an error is shown.
MOST_TEXT = 2000


def the_library() -> Any:
    """Ray, which is imported only where a cluster is asked for."""
    if importlib.util.find_spec("ray") is None:
        raise OptionError("cluster= needs Ray: pip install 'lanewise[ray]'.")
    return importlib.import_module("ray")


class Place(NamedTuple):
    """Where a worker is to be, and what it takes of that machine."""

    node: str
    cpus: float
    gpus: float


def places(nodes: Sequence[dict[str, Any]], workers: int | None) -> list[Place]:
    """Where workers are: on each GPU, or where there are none on each machine. More or fewer get even shares.

    >>> nodes = [{"NodeID": "a", "Alive": True, "Resources": {"CPU": 8.0}},
    ...          {"NodeID": "b", "Alive": True, "Resources": {"CPU": 2.0}}]
    >>> places(nodes, None)
    [Place(node='a', cpus=8.0, gpus=0.0), Place(node='b', cpus=2.0, gpus=0.0)]
    >>> [f"{place.node}: {place.cpus}" for place in places(nodes, 5)]
    ['a: 2.0', 'a: 2.0', 'a: 2.0', 'a: 2.0', 'b: 2.0']
    """
    alive = [node for node in nodes if node["Alive"]]
    gpus = {n["NodeID"]: n["Resources"].get("GPU", 0.0) for n in alive}
    cpus = {n["NodeID"]: n["Resources"].get("CPU", 0.0) for n in alive}
    counted = gpus if any(gpus.values()) else cpus
    usable = {node: size for node, size in counted.items() if size > 0}
    if not usable:
        raise ClusterError("the cluster has no machine with a CPU to offer.")
    if workers is None:
        workers = int(sum(gpus.values())) or len(usable)
    # Each goes where a worker's share is largest then.
    has = dict.fromkeys(usable, 0)
    if counted is cpus and workers >= len(usable):
        has = dict.fromkeys(usable, 1)
    while sum(has.values()) < workers:
        has[max(usable, key=lambda node: usable[node] / (has[node] + 1))] += 1
    return [
        Place(node, _share(cpus[node], count), _share(gpus[node], count))
        for node, count in has.items()
        for _ in range(count)
    ]


def _share(size: float, count: int) -> float:
    """What Ray gives to one of `count`: whole ones, or a part of one."""
    share = size / count
    return float(math.floor(share)) if share >= 1 else math.floor(share * 10_000) / 10_000


class ByRay:
    """Workers that a recipe makes, as actors of Ray."""

    def __init__(self, address: str, workers: int | None, recipe: Recipe) -> None:
        self.ray = ray = the_library()
        _connect(ray, address)
        self.places = places(ray.nodes(), workers)
        try:
            self.recipe = ray.put(ray.cloudpickle.dumps(recipe))
        except Exception as error:
            raise ClusterError(
                f"the program cannot travel to the workers: {error}. Whatever it closes over must be pickled; what"
                " cannot be (open files, locks) belongs inside the function."
            ) from error
        self.actors: dict[int, Any] = {}
        # What is waited for: whose it is, and the ticket of a task or None for a greeting.
        self.pending: dict[Any, tuple[int, int | None]] = {}

    @property
    def workers(self) -> int:
        return len(self.places)

    def start(self, worker: int) -> None:
        self.stop(worker)
        place = self.places[worker]
        # If that machine is gone, on another.
        node = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            place.node, soft=True
        )
        actor = _actor(self.ray).options(
            num_cpus=place.cpus, num_gpus=place.gpus, scheduling_strategy=node
        )
        self.actors[worker] = handle = actor.remote()
        self.pending[handle.set_up.remote(self.recipe)] = worker, None

    def give(self, worker: int, ticket: int, task: Task) -> None:
        self.pending[self.actors[worker].run.remote(task)] = worker, ticket

    def wait(self, seconds: float) -> Sequence[Event]:
        if not self.pending:
            return ()
        waited = list(self.pending)
        ready, _ = self.ray.wait(waited, num_returns=1, timeout=seconds)
        if ready:
            ready, _ = self.ray.wait(waited, num_returns=len(waited), timeout=0)
        found: list[Event] = []
        lost: dict[int, str] = {}
        for ref in ready:
            worker, ticket = self.pending.pop(ref)
            try:
                found.append(_event(worker, ticket, self.ray.get(ref)))
            except self.ray.exceptions.RayTaskError as error:
                why = _short(str(error))
                found.append(
                    Refused(worker, why) if ticket is None else Raised(worker, ticket, why)
                )
            except self.ray.exceptions.RayError as error:
                lost.setdefault(worker, _short(f"{type(error).__name__}: {error}"))
        for worker, why in lost.items():
            self.stop(worker)
            found.append(Lost(worker, f"its worker died ({why})"))
        return found

    def stop(self, worker: int) -> None:
        self.pending = {ref: who for ref, who in self.pending.items() if who[0] != worker}
        actor = self.actors.pop(worker, None)
        if actor is not None and self.ray.is_initialized():
            self.ray.kill(actor, no_restart=True)

    def room(self) -> str:
        everything, free = self.ray.cluster_resources(), self.ray.available_resources()
        asked = ", ".join(f"{place.cpus:g} CPUs and {place.gpus:g} GPUs" for place in self.places)
        return (
            f"the cluster has {everything.get('CPU', 0):g} CPUs and {everything.get('GPU', 0):g} GPUs, of which"
            f" {free.get('CPU', 0):g} and {free.get('GPU', 0):g} are free; workers ask for {asked}"
        )

    def close(self) -> None:
        for worker in list(self.actors):
            self.stop(worker)


class Inside:
    """What an actor is, in its process. A recipe and a task may raise, and the actor lives on."""

    def __init__(self) -> None:
        self.worker: Worker | None = None

    def set_up(self, recipe: bytes) -> Greeting | str:
        try:
            self.worker = worker = the_library().cloudpickle.loads(recipe)()
            return worker.greeting
        except Exception:
            return _short(traceback.format_exc())

    def run(self, task: Task) -> Answers | str:
        assert self.worker is not None
        try:
            return self.worker.run(task)
        except Exception:
            return _short(traceback.format_exc())


def _event(worker: int, ticket: int | None, value: Any) -> Event:
    """What a call of an actor means."""
    if ticket is None:
        return Refused(worker, value) if isinstance(value, str) else Ready(worker, value)
    if isinstance(value, str):
        return Raised(worker, ticket, value)
    # Arrays that Ray hands over are in its store, which is bounded: holding an answer would hold a part of it.
    copied = value._replace(columns=[np.array(column) for column in value.columns])
    return Finished(worker, ticket, copied)


def _short(text: str) -> str:
    """The end of a text: it says the most of a traceback."""
    text = re.sub(r"\x1b\[\d*m", "", text).strip()  # Ray colours what it shows
    return text if len(text) <= MOST_TEXT else f"... {text[-MOST_TEXT:]}"


@functools.cache
def _actor(ray: Any) -> Any:
    return ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=TASKS_AT_ONCE)(Inside)


def _connect(ray: Any, address: str) -> None:
    """Be connected to the cluster at this address."""
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in (AUTO, here):
            raise OptionError(
                f"cluster={address!r}: this process is connected to the cluster at {here} already. Give that address or"
                f' "{AUTO}", or call ray.shutdown() first.'
            )
        return
    known = os.environ.get("RAY_ADDRESS") or _started_here() if address == AUTO else address
    if known is not None and not _answers(known):
        # Ray would try for minutes. One that was started here and is gone is none.
        if address != AUTO or os.environ.get("RAY_ADDRESS"):
            raise ClusterError(f"cluster={address!r}: no cluster answers at {known}.")
        known = None
    with warnings.catch_warnings():
        # JAX warns of forks, and those of Ray become other programs at once.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        # Not Ray's own "auto", which takes any cluster it finds, such as that of another process, which ends with it.
        ray.init(
            address=known or "local",
            include_dashboard=None if known else False,
            log_to_driver=False,
            logging_level="error",
        )


def _started_here() -> str | None:
    """The address of the cluster that `ray start` started on this machine."""
    try:
        return importlib.import_module("ray._private.utils").read_ray_address()
    except (ImportError, AttributeError):
        return None


def _answers(address: str) -> bool:
    """Whether a process listens there; True for an address that is no host and port."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "/" in host:
        return True
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
