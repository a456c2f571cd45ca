"""What importing Lanewise brings in: only what every use of it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

# benchmarks/overhead.py measures what it costs; these are what made it expensive, each needed by some uses only.
EXPENSIVE = (
    "jax.extend",
    "jax._src.pallas",
    "equinox",
    "jaxtyping",
    # The extras.
    "arviz",
    "greenlet",
    "orbax",
    "ray",
    "zarr",
    "lanewise.frontend.python",
    "lanewise.arrays",
    "lanewise.diff.jvp",
    "lanewise.carriers.native",
    "lanewise.cpp.emit.emit",
)


@pytest.fixture(scope="module")
def imported() -> set[str]:
    code = "import jax, sys; before = set(sys.modules); import lanewise; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", EXPENSIVE)
def test_expensive_modules_are_imported_only_where_used(name: str, imported: set[str]) -> None:
    assert "lanewise.api.vmap" in imported
    assert name not in imported
