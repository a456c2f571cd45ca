"""Placed parts: loops over two processes against TensorFlow's `while_loop`, pipelines, and control on the host.

Every group of processes is started once and asked in turns. TensorFlow may have an interpreter of its own, as its
packages may not go with JAX's. Loops between processes are measured twice: with all cores for all processes, as they
are started by default, and with a core for each. TensorFlow prefers the second, ours the first: where both sleep and
wake each other, a core that is awake already is worth more than one of one's own. So there are two claims: as started,
and each in the arrangement that suits it.

    python benchmarks/place.py [--tensorflow PYTHON] [--repeats 5]
        [--only loops pipeline in-flight actor gradient trips]

The contenders are in the package of the same name, which `import place` finds first.
"""

from __future__ import annotations

import os

# Before JAX starts.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
)

import contextlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from _harness import Claim, report, usual_arguments
from lanewise.place.transports.launched import local_group
from place.actor_learner import compiled_control, host_control
from place.learning import lstm_gradient
from place.round_trips import over_queues
from place.serving import HERE, Group, Server

SOURCES = HERE.parent / "src"
ARRANGEMENTS = {"all cores": False, "a core each": True}
# The loops there and back, by the size of their matrices: iterations of ours and of TensorFlow's, and the target.
THERE_AND_BACK = {0: (10_000, 1_000, ">= 20"), 64: (10_000, 1_000, ">= 8")}
PIPELINE = 256
SUBJECTS = ("loops", "pipeline", "in-flight", "actor", "gradient", "trips")


@contextlib.contextmanager
def ours() -> Iterator[Group]:
    """Two processes of ours."""
    flags = {"XLA_FLAGS": "", "PYTHONPATH": os.pathsep.join(map(str, (HERE, SOURCES)))}
    command = [sys.executable, "-m", "place.worker"]
    group = local_group(2)
    with Group([Server(command, {**flags, **each.environment()}) for each in group]) as found:
        yield found


@contextlib.contextmanager
def tensorflows(python: str) -> Iterator[Group | None]:
    """Two workers of TensorFlow's; None if that interpreter has none."""
    has = subprocess.run([python, "-c", "import tensorflow"], capture_output=True, check=False)
    if has.returncode:
        print(f"{python} has no TensorFlow (extra `bench-tf`): its claims are left out", flush=True)
        yield None
        return
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        ports = ",".join(str(sock.getsockname()[1]) for sock in sockets)
    flags = {"PYTHONPATH": str(HERE), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [python, "-m", "place.in_tensorflow"]
    with Group([Server([*command, str(rank), ports], flags) for rank in range(2)]) as found:
        yield found


def medians(contenders: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The median of what each measures, in turns, after one turn that does not count."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, measure in contenders.items():
            times[name] += [measure()][: 1 if turn else 0]
    return {name: statistics.median(found) for name, found in times.items()}


def show(text: str) -> None:
    print(text, flush=True)


def rates(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {1000 / seconds:,.0f}/s" for name, seconds in found.items())


def for_a_thousand(group: Group, steps: int, **asked: Any) -> Callable[[], float]:
    """Seconds for 1,000 iterations, measured over more."""
    return lambda: 1000 / steps * group.ask(do="run", steps=steps, **asked)["seconds"]


def first_calls(mine: Group, theirs: Group | None, kind: str, size: int) -> None:
    """How long a loop's first call takes, and that both sides compute the same."""
    asked = {"do": "run", "kind": kind, "size": size, "steps": 20}
    found = {"ours": mine.ask(**asked)}
    if theirs is not None:
        found["TensorFlow"] = theirs.ask(**asked)
        results = [each["result"] for each in found.values()]
        # Sums of 65,536 numbers of about 1 in other orders.
        np.testing.assert_allclose(*results, rtol=1e-3, atol=0.1 if size else 1e-6)
    said = ", ".join(f"{name} {each['seconds']:.2f} s" for name, each in found.items())
    show(f"{kind} {size or 'scalar'}: first call (trace and compile, graph): {said}")


def against(name: str, took: Mapping[str, float], target: str) -> Claim:
    return Claim(name, took["ours"], took["TensorFlow"], target)


def loops(mine: Group, theirs: Group | None, repeats: int) -> list[Claim]:
    """A value goes to the other process and back in each iteration."""
    claims = []
    for size, (our_steps, their_steps, target) in THERE_AND_BACK.items():
        first_calls(mine, theirs, "round", size)
        asked = {"kind": "round", "size": size}
        contenders = {"ours": for_a_thousand(mine, our_steps, **asked)}
        if theirs is not None:
            contenders["TensorFlow"] = for_a_thousand(theirs, their_steps, **asked)
        body = f"{size}×{size} products" if size else "a number"
        name = f"place: 1,000 iterations there and back, {body}, against TensorFlow"
        best: dict[str, float] = {}
        for arrangement, apart in ARRANGEMENTS.items():
            for group in (mine, theirs):
                if group is not None:
                    group.use_cores(apart)
            found = medians(contenders, repeats)
            show(f"  {arrangement}: {rates(found)}")
            best = {who: min(best.get(who, took), took) for who, took in found.items()}
            if theirs is not None and not apart:
                claims.append(against(f"{name}, as started", found, target))
        if theirs is not None:
            claims.append(against(f"{name}, each at its best", best, target))
    return claims


def pipeline(mine: Group, theirs: Group | None, repeats: int) -> list[Claim]:
    """The first place makes, the second takes, a core each: against the slower stage alone."""
    steps = 300
    first_calls(mine, theirs, "pipeline", PIPELINE)
    asked = {"kind": "pipeline", "size": PIPELINE}

    def alone(stage: int) -> Callable[[], float]:
        def measure() -> float:
            found = mine.alone(stage, do="alone", stage=stage, steps=steps, **asked)
            return 1000 / steps * found["seconds"]

        return measure

    contenders = {
        "ours": for_a_thousand(mine, steps, **asked),
        "first stage alone": alone(0),
        "second stage alone": alone(1),
    }
    if theirs is not None:
        contenders["TensorFlow"] = for_a_thousand(theirs, steps, **asked)
    for group in (mine, theirs):
        if group is not None:
            group.use_cores(apart=True)
    found = medians(contenders, repeats)
    show(f"  a core each: {rates(found)}")
    slower = max(found["first stage alone"], found["second stage alone"])
    name = f"place: pipeline of {PIPELINE}×{PIPELINE}, against its slower stage alone"
    return [Claim(name, found["ours"], slower, ">= 0.85")]


def in_flight(mine: Group, repeats: int) -> list[Claim]:
    """The same two stages with one and with eight iterations under way."""
    mine.use_cores(apart=True)
    claims = []
    for size, steps, target in ((0, 10_000, None), (64, 5_000, ">= 1.6"), (256, 300, None)):
        contenders = {
            f"in_flight={n}": for_a_thousand(mine, steps, kind="pipeline", size=size, in_flight=n)
            for n in (1, 2, 8)
        }
        found = medians(contenders, repeats)
        show(f"stages of {f'{size}×{size}' if size else 'a number'}, a core each: {rates(found)}")
        if target is not None:
            name = f"place: in_flight 1 to 8, two stages of {size}×{size}"
            claims.append(Claim(name, found["in_flight=8"], found["in_flight=1"], target))
    return claims


def actor_learner(repeats: int) -> list[Claim]:
    """Both on two devices of this process."""
    steps = 2_000
    first, second = jax.devices()[:2]
    runs = {
        "compiled": compiled_control({"actor": first, "learner": second}),
        "host": host_control(first, second),
    }
    took = {name: clocked(lambda run=run: run(20)) for name, run in runs.items()}
    show(f"actor-learner: first call: {', '.join(f'{k} {v:.2f} s' for k, v in took.items())}")
    for one, other in zip(runs["compiled"](200), runs["host"](200), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    contenders = {
        name: lambda run=run: 1000 / steps * clocked(lambda: run(steps))
        for name, run in runs.items()
    }
    found = medians(contenders, repeats)
    show(f"  {rates(found)}")
    name = "place: 1,000 steps of the actor-learner loop, against control on the host"
    return [Claim(name, found["compiled"], found["host"], ">= 3")]


def gradient(mine: Group, repeats: int) -> None:
    """Two layers of an LSTM: placed and on one device."""
    first, second = jax.devices()[:2]
    here = {
        "one device": lstm_gradient(None),
        "two devices": lstm_gradient({"first": first, "second": second}),
    }
    mine.use_cores(apart=False)
    contenders: dict[str, Callable[[], float]] = {
        name: lambda run=run: clocked(run) for name, run in here.items()
    }
    contenders["two processes"] = lambda: mine.ask(do="gradient", where="placed")["seconds"]
    took = {name: run() for name, run in contenders.items()}
    show(f"gradient of an LSTM: first call: {', '.join(f'{k} {v:.2f} s' for k, v in took.items())}")
    found = medians(contenders, repeats)
    show(f"  {', '.join(f'{name} {1e3 * took:.1f} ms' for name, took in found.items())}")


def trips(mine: Group, repeats: int) -> None:
    """Round trips of a number over each transport, by compiled handlers and by callbacks."""

    def over_tcp(count: int, by_callback: bool) -> float:
        return 1000 / count * mine.ask(do="round trips", trips=count, by_callback=by_callback)

    def over_local(count: int, by_callback: bool) -> float:
        return 1000 / count * over_queues(count, by_callback)

    for arrangement, apart in ARRANGEMENTS.items():
        mine.use_cores(apart)
        contenders = {
            "tcp": lambda: over_tcp(10_000, False),
            "tcp by callback": lambda: over_tcp(200, True),
        }
        if not apart:
            contenders["local"] = lambda: over_local(10_000, False)
            contenders["local by callback"] = lambda: over_local(200, True)
        show(f"round trips, {arrangement}: {rates(medians(contenders, repeats))}")


def clocked(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def main() -> None:
    parser = usual_arguments(__doc__)
    parser.add_argument("--tensorflow", default=sys.executable, help="TensorFlow's interpreter")
    parser.add_argument("--only", nargs="*", choices=SUBJECTS, default=SUBJECTS)
    options = parser.parse_args()
    if options.device == "gpu":
        parser.error("--device gpu: the processes of this benchmark share a CPU")
    claims: list[Claim] = []
    with ours() as mine, tensorflows(options.tensorflow) as theirs:
        if "loops" in options.only:
            claims += loops(mine, theirs, options.repeats)
        if "pipeline" in options.only:
            claims += pipeline(mine, theirs, options.repeats)
    with ours() as mine:
        if "in-flight" in options.only:
            claims += in_flight(mine, options.repeats)
        if "actor" in options.only:
            claims += actor_learner(options.repeats)
        if "gradient" in options.only:
            gradient(mine, options.repeats)
        if "trips" in options.only:
            trips(mine, options.repeats)
    report(claims)


if __name__ == "__main__":
    main()
