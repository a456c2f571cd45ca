"""Placed programs with real messages: over devices of one process, and over processes that may die."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

import needs
from apart import TESTS, cases_of

HERE = Path(__file__).parent
SHARDS = 11
TRIALS = int(os.environ.get("LANEWISE_TRIALS", "1"))


def on_devices(*arguments: str) -> dict[str, str]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    return cases_of(HERE / "on_places.py", *arguments, XLA_FLAGS=flags)


def wrong(cases: dict[str, str]) -> dict[str, str]:
    return {name: said for name, said in cases.items() if not said.startswith("right")}


@pytest.mark.parametrize(
    "shard", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, SHARDS))]
)
def test_the_corpus_at_random_places(shard: int) -> None:
    cases = on_devices("corpus", str(shard), str(SHARDS))
    assert int(cases.pop("edges with less room")) > 0
    assert len(cases) > 8 and not wrong(cases), wrong(cases)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_generated_programs_at_random_places(seed: int) -> None:
    cases = on_devices("generated", str(seed), "20")
    assert int(cases.pop("edges with less room")) > 0
    assert len(cases) >= 20 and not wrong(cases), wrong(cases)


@pytest.mark.parametrize(
    ("seed", "count"), [(9, 2), *(pytest.param(i, 20, marks=pytest.mark.slow) for i in range(2, 7))]
)
def test_gradients_of_generated_programs_at_random_places(seed: int, count: int) -> None:
    cases = on_devices("slopes", str(seed), str(count))
    del cases["edges with less room"]
    assert len(cases) >= count and not wrong(cases), wrong(cases)


def test_calls(tmp_path: Path) -> None:
    cases = on_devices("calls", str(tmp_path))
    assert cases.pop("other arguments").endswith(
        "holds a state of other arguments. Give another folder, or remove it to begin anew."
    )
    assert cases.pop("error").startswith("failed part decoder (")
    failed = {name: cases.pop(name) for name in list(cases) if name.startswith("assertion")}
    alone = " in the call. It ends the run at all places."
    others = " Pass throw=False to the program, or to lanewise.vmap, for the other answers."
    assert {name: re.sub(r":\d+, in \w+\)", "", said) for name, said in failed.items()} == {
        "assertion": f"checked: assertion failed: too large{alone}",
        "assertion of lanes": f"checked: assertion failed: too large in 2 of 6 lanes: 2, 4.{others}",
        "assertion in groups": f"checked: assertion failed: too large in 2 of 6 lanes: 2, 4.{others}",
        "assertion in a while": f"checked: assertion failed: too large{alone}",
        "assertion in a part": f"root: assertion failed: no root in 1 of 6 lanes: 4.{others}",
        "assertion in no part": f"root: assertion failed: no root{alone}",
    }
    assert cases.pop("outcomes") == "right, failed [2, 4]"
    assert cases.pop("result").startswith("right at ")
    slope = cases.pop("gradient around")
    assert re.fullmatch(r"right, v at (.*1), w at (.*0)", slope), slope
    choices = [cases.pop(name) for name in list(cases) if name.startswith("gradient of ")]
    assert choices == ["right"] * (5 if needs.FULL else 3)
    swapped = [cases.pop(name) for name in list(cases) if name.startswith("swapped ")]
    assert swapped == ["right"] * 6
    loops = {name: cases.pop(name) for name in list(cases) if name.startswith("saved loops")}
    assert loops.pop("saved loops") == "right; right, not again"
    # Without its last state the first loop does its last iteration again.
    assert loops.pop("saved loops without 7") == "right"
    assert len(loops) == 5 and set(loops.values()) == {"right, not again"}
    assert cases == {
        "groups": "right",
        "saved rows": "right, right",
        "saved rows again": "right",
        "interrupt": "right",
        "after it": "right",
    }


def launched(*arguments: str, more: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """What the processes of a run print, by rank."""
    paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    about = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    script = str(HERE / "on_ranks.py")
    command = [sys.executable, "-m", "lanewise.cli", "launch", "-n", "2", *more, script, *arguments]
    ran = subprocess.run(
        command, env=os.environ | about, capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: list[dict[str, str]] = [{}, {}]
    for rank, name, said in re.findall(r"^\[(\d)\] ([\w ]+): (.*)$", ran.stdout, re.MULTILINE):
        found[int(rank)][name] = said
    return found


def test_programs_over_two_processes() -> None:
    first, second = launched("programs")
    assert first.pop("held") == "a is here, loss" and second.pop("held") == "b is here, loss"
    failed = "checked: assertion failed: seven"
    assert failed in (first.pop("assertion"), second.pop("assertion"))
    assert len(first) > 8 and first == second and not wrong(first), (first, second)


def test_a_run_that_is_killed_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    """`make soak` does this 50 times, at random iterations."""
    whole = launched("saved", str(tmp_path / "whole"), "SIGKILL", "-1")
    assert whole[0]["steps"] == "28" and whole[0]["states"] == "15 20"
    assert whole[0]["later states"] == "5"
    trials = [("SIGKILL", 26), *([("SIGSTOP", 7)] if needs.FULL else [])]
    if TRIALS > 1:
        rng = random.Random()
        trials = [(rng.choice(("SIGKILL", "SIGSTOP")), rng.randrange(28)) for _ in range(TRIALS)]
    for number, (name, iteration) in enumerate(trials):
        folder = tmp_path / str(number)
        killed = launched("saved", str(folder), name, str(iteration), more=("--restarts", "1"))
        assert (folder / "killed").exists()
        assert [c["bits"] for c in killed] == [c["bits"] for c in whole], (name, iteration)
