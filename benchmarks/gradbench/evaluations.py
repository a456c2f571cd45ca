"""GradBench's own evaluations, run from a checkout of it: its inputs at its sizes, its validation, and its other
tools.

An evaluation is a process that writes messages and reads answers, and so is a tool; GradBench's own program hands the
lines from one to the other. Here `converse` does, and keeps the timings. Two of its tools can run beside ours: `jax`,
made to wait for its results, which it does not do on its own, and `manual`, the derivatives by hand in C++, against
which most evaluations are validated. Its programs must have been built (`make -C cpp && make -C tools/manual`, in the
checkout).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _harness import Claim, geometric_mean

Answer = Callable[[dict[str, Any]], dict[str, Any]]
TOOL = Path(__file__).with_name("run.py")
# What `jax` of GradBench has; `manual` has all but the two that are validated by numbers written down.
IN_JAX = ("gmm", "hello", "kmeans", "llsq", "lse", "ode")
NOT_BY_HAND = ("particle", "saddle")
PEERS = ("jax", "manual")
# GradBench's JAX tool, whose runs would end when a call returns, which is before the result is there.
WAITING = """
import runpy, sys
script, package = sys.argv.pop(1), sys.argv.pop(1)
sys.path[:0] = [script.rpartition("/")[0], package]
import jax
from gradbench import wrap
as_it_is = wrap.multiple_runs
def waiting(**options):
    return lambda fun: as_it_is(**options)(lambda given: jax.block_until_ready(fun(given)))
wrap.multiple_runs = waiting
runpy.run_path(script, run_name="__main__")
"""


@dataclass(frozen=True)
class Timed:
    """One function on one input."""

    function: str
    description: str
    seconds: float
    error: str | None


@contextmanager
def lines(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that answers a line with a line."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def asked(process: subprocess.Popen[str], message: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the tool ended at {message['kind']}, with code {process.wait()}")
    return json.loads(line)


@contextmanager
def tool(name: str, checkout: Path, multithreaded: bool) -> Iterator[Answer]:
    """What answers an evaluation's messages."""
    flag = ["--multithreaded"] if multithreaded else []
    if name == "manual":
        yield lambda message: by_hand(message, checkout)
        return
    command = [str(TOOL)]
    if name == "jax":
        package = checkout / "python/gradbench"
        script = package / "gradbench/tools/jax/run.py"
        command = ["-c", WAITING, str(script), str(package)]
    with lines([sys.executable, *command, *flag]) as process:
        yield lambda message: asked(process, message)


def by_hand(message: dict[str, Any], checkout: Path) -> dict[str, Any]:
    """`manual`'s answer: its program is run on a file with the input."""
    said: dict[str, Any] = {"id": message["id"], "tool": "manual", "success": True}
    if message["kind"] != "evaluate":
        return said
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(message["input"], file)
        file.flush()
        program = checkout / "tools/manual/bin" / message["module"]
        command = [str(program), file.name, message["function"]]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        return said | {"success": False, "error": done.stderr}
    output, *timings = map(json.loads, done.stdout.splitlines())
    return said | {"output": output, "timings": timings}


def converse(name: str, checkout: Path, answer: Answer, options: Sequence[str]) -> list[Timed]:
    """One evaluation from its first message to its last."""
    script = checkout / "python/gradbench/gradbench/evals" / name / "run.py"
    environment = os.environ | {"PYTHONPATH": str(checkout / "python/gradbench")}
    found: dict[int, Timed] = {}
    command = [sys.executable, str(script), *options]
    with lines(command, cwd=checkout, env=environment) as evaluation:
        assert evaluation.stdin is not None and evaluation.stdout is not None
        for line in evaluation.stdout:
            message = json.loads(line)
            said = answer(message)
            if message["kind"] == "define" and not said.get("success"):
                raise RuntimeError(f"{name} is not defined here: {said.get('error')}")
            if message["kind"] == "evaluate":
                found[message["id"]] = timed(message, said)
            elif message["kind"] == "analysis" and not message["valid"]:
                before = found[message["of"]]
                error = message.get("error", "not valid")
                found[message["of"]] = Timed(
                    before.function, before.description, before.seconds, error
                )
            evaluation.stdin.write(json.dumps(said) + "\n")
            evaluation.stdin.flush()
        if evaluation.wait():
            raise RuntimeError(f"{name}: GradBench's evaluation ended with {evaluation.returncode}")
    return list(found.values())


def timed(message: dict[str, Any], said: dict[str, Any]) -> Timed:
    runs = [t["nanoseconds"] for t in said.get("timings") or [] if t["name"] == "evaluate"]
    seconds = statistics.median(runs) / 1e9 if runs else float("nan")
    error = None if said["success"] else said.get("error", "failed")
    return Timed(message["function"], message.get("description", ""), seconds, error)


def has(peer: str, name: str) -> bool:
    return name in IN_JAX if peer == "jax" else name not in NOT_BY_HAND


def compare(
    name: str, checkout: Path, peers: Sequence[str], options: Sequence[str], multithreaded: bool
) -> list[Claim]:
    """Our tool and others through one evaluation: a line for each function and size, and a claim for each
    function."""
    rows: dict[str, list[Timed]] = {}
    for who in ("lanewise", *(peer for peer in peers if has(peer, name))):
        with tool(who, checkout, multithreaded) as answer:
            rows[who] = converse(name, checkout, answer, options)
    for i, ours in enumerate(rows["lanewise"]):
        times = ", ".join(f"{who} {1e3 * found[i].seconds:.3f} ms" for who, found in rows.items())
        verdict = "valid" if ours.error is None else f"NOT VALID: {ours.error[-300:]}"
        print(f"{name} {ours.function} {ours.description}: {times}; {verdict}", flush=True)
    if any(ours.error is not None for ours in rows["lanewise"]):
        raise AssertionError(f"{name}: answers that GradBench does not find valid")
    return [
        Claim(
            f"gradbench, {name} {function}: against {who}, geometric mean of its sizes",
            mean_of(rows["lanewise"], function),
            mean_of(found, function),
            ">= 1",
        )
        for who, found in rows.items()
        if who != "lanewise"
        for function in dict.fromkeys(ours.function for ours in rows["lanewise"])
    ]


def mean_of(rows: Sequence[Timed], function: str) -> float:
    return geometric_mean(row.seconds for row in rows if row.function == function)
