"""GradBench's protocol: a line of JSON for each message, a line of JSON for each answer.

An evaluation names a module and a function of it and gives the input. The function is compiled in a first run, which is
a timing of its own ("compile"), and run as often as the input asks for; each run's timing ("evaluate") ends when
the result is there and not when it has been sent for. All is done in float64. Runs are calls of `jax.jit`, as a user's
are: what is compiled ahead by hand is called through Python, which takes 20 microseconds more.
"""

from __future__ import annotations

import importlib
import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

MODULES = (
    "ba",
    "det",
    "gmm",
    "hello",
    "ht",
    "kmeans",
    "llsq",
    "lse",
    "lstm",
    "ode",
    "particle",
    "saddle",
)


@dataclass(frozen=True)
class Function:
    """A function of an evaluation.

    `bind` takes the input and gives what is to be run, and its arguments; `finish` makes JSON of the result.
    """

    bind: Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]
    finish: Callable[[Any], Any]


def listed(result: Any) -> Any:
    """Arrays as nested lists, scalars as numbers."""
    return jax.tree.map(lambda x: x.tolist(), jax.device_get(result))


def flat(*results: Any) -> list[float]:
    """Arrays one after another, as one list."""
    return [x for result in results for x in jax.device_get(result).ravel().tolist()]


def functions_of(module: str) -> dict[str, Function]:
    if module not in MODULES:
        raise LookupError(f"no evaluation {module!r}; there are {', '.join(MODULES)}")
    return importlib.import_module(f"gradbench.{module}").FUNCTIONS


def evaluate(module: str, function: str, given: Any) -> dict[str, Any]:
    """Run a function on an input, as often and as long as it asks for."""
    functions = functions_of(module)
    if function not in functions:
        raise LookupError(f"{module} has no function {function!r}, but {', '.join(functions)}")
    runs, seconds = (
        (given.get("min_runs", 1), given.get("min_seconds", 0.0))
        if isinstance(given, dict)
        else (1, 0.0)
    )
    with jax.enable_x64(True):
        chosen = functions[function]
        fun, arguments = chosen.bind(given)
        arguments = jax.device_put(arguments)
        start = time.perf_counter_ns()
        compiled = jax.jit(fun)
        jax.block_until_ready(compiled(*arguments))
        timings = [{"name": "compile", "nanoseconds": time.perf_counter_ns() - start}]
        elapsed, done, result = 0, 0, None
        while done < max(runs, 1) or elapsed < seconds * 1e9:
            start = time.perf_counter_ns()
            result = jax.block_until_ready(compiled(*arguments))
            took = time.perf_counter_ns() - start
            timings.append({"name": "evaluate", "nanoseconds": took})
            elapsed, done = elapsed + took, done + 1
        return {"success": True, "output": chosen.finish(result), "timings": timings}


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """What the tool has to say to one message.

    >>> answer({"id": 0, "kind": "start", "eval": "hello"})
    {'id': 0, 'tool': 'lanewise'}
    >>> answer({"id": 1, "kind": "define", "module": "chess"})["success"]
    False
    """
    said: dict[str, Any] = {}
    try:
        if message["kind"] == "start":
            said = {"tool": "lanewise"}
        elif message["kind"] == "define":
            functions_of(message["module"])
            said = {"success": True}
        elif message["kind"] == "evaluate":
            said = evaluate(message["module"], message["function"], message["input"])
    except Exception as error:  # the protocol has a place for whatever went wrong
        said = {"success": False, "error": "".join(traceback.format_exception(error))}
    return {"id": message["id"], **said}


def answers(lines: Iterable[str]) -> Iterator[str]:
    """An answer for each line, as it comes."""
    for line in lines:
        if line.strip():
            yield json.dumps(answer(json.loads(line)))
