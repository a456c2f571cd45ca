"""An interrupt ends a run outside `jit`, and leaves the process as usable as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lanewise.machine.kernel import foreign

HERE = Path(__file__).parent
TICKS = ("ticks", "ticks recursion", "ticks refill")
NATIVE = ("native", "native in step", "native recursion", "stream")


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """What each case of `interrupted.py` came to. One process for all: the next case is the next call."""
    paths = [str(HERE.parent), str(HERE.parent.parent / "src"), os.environ.get("PYTHONPATH", "")]
    names = [] if foreign.available() else list(TICKS)
    ran = subprocess.run(
        [sys.executable, str(HERE / "interrupted.py"), *names],
        env=os.environ
        | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        # None of the runs would ever end.
        timeout=500,
    )
    assert ran.returncode == 0, ran.stderr
    return dict(line.split(": ", 1) for line in ran.stdout.splitlines())


@pytest.mark.parametrize("name", TICKS)
def test_ticks(told: dict[str, str], name: str) -> None:
    assert told[name] == "KeyboardInterrupt, right"


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.skipif(not foreign.available(), reason="there is no C++ compiler")
def test_native(told: dict[str, str], name: str) -> None:
    assert told[name] == "KeyboardInterrupt, right"


@pytest.mark.skipif(not foreign.available(), reason="there is no C++ compiler")
def test_a_handler_that_does_not_raise_has_the_run_start_again(told: dict[str, str]) -> None:
    assert told["handler"] == "heard, right"
