"""An interrupt ends a run outside `jit`, and leaves the process as usable as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

import needs
from apart import cases_of
from lanewise.cpp.toolchain import foreign

TICKS = ("ticks", "ticks recursion", "ticks fork", "ticks refill")
NATIVE = (
    *("native", "native in step", "native meeting", "native recursion"),
    *("stream", "stream in slots"),
)


@pytest.fixture(scope="module")
def cases() -> dict[str, str]:
    """What each case of `interrupted.py` came to. One process for all: the next case is the next call."""
    return cases_of(
        Path(__file__).parent / "interrupted.py", *(() if foreign.available() else TICKS)
    )


@pytest.mark.parametrize("name", TICKS)
def test_ticks(cases: dict[str, str], name: str) -> None:
    assert cases[name] == "KeyboardInterrupt, right"


@pytest.mark.parametrize("name", NATIVE)
@needs.compiler
def test_native(cases: dict[str, str], name: str) -> None:
    assert cases[name] == "KeyboardInterrupt, right"


@needs.compiler
def test_a_handler_that_does_not_raise_has_the_run_start_again(cases: dict[str, str]) -> None:
    assert cases["handler"] == "heard, right"
