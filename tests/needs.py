"""What some tests need beyond `make test`'s own set-up, and how to get it.

A test that cannot run here is skipped with a reason that names the way to run it; `conftest.py` prints the reasons and
their counts after the tests.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from typing import Any

import jax
import pytest

from lanewise.cpp.toolchain import device, foreign

# Which extra of the package brings a library that tests use.
EXTRA = {
    "arviz": "mcmc",
    "blackjax": "peers",
    "diffrax": "peers",
    "flax": "examples",
    "numba": "bench",
    "numpyro": "peers",
    "optax": "examples",
    "optimistix": "peers",
    "pymc": "test",
    "ray": "ray",
    "selenium": "test",
    "torch": "bench",
}

FULL = os.environ.get("LANEWISE_FULL", "") not in ("", "0")
FULL_REASON = "slow; `make test-full` runs it"
GPU_REASON = "no NVIDIA GPU here; `benchmarks/gpu.sh tests` runs it on one"
COMPILER_REASON = "no C++ compiler here; install g++ or clang++"
BROWSER_REASON = "no Chromium with its driver here; `make browser`, or set CHROME and CHROMEDRIVER"


def reason(library: str) -> str:
    """Why a test is skipped where a library is absent.

    >>> reason("torch")
    "no torch here; pip install '.[bench]'"
    """
    extra = EXTRA.get(library.partition(".")[0])
    return f"no {library} here; pip install '.[{extra}]'" if extra else f"no {library} here"


def library(name: str) -> Any:
    """A library that the test needs, imported; the test is skipped where it is absent."""
    return pytest.importorskip(name, reason=reason(name))


def installed(name: str) -> pytest.MarkDecorator:
    """A mark: the test needs a library, which it imports itself."""
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=reason(name))


def in_turns(values: Iterable[Any], every: int = 2) -> list[Any]:
    """Parameters of a test: one in `every` runs in `make test`, all in `make test-full`.

    For tests whose time goes into compiling, and whose cases differ little in what they cover.
    """
    return [
        pytest.param(value, marks=() if at % every == 0 else pytest.mark.slow)
        for at, value in enumerate(values)
    ]


# Marks.
compiler = pytest.mark.skipif(not foreign.available(), reason=COMPILER_REASON)
on_gpu = pytest.mark.skipif(
    jax.default_backend() != "gpu" or not device.available(), reason=GPU_REASON
)
on_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="it tests a CPU's choices")
