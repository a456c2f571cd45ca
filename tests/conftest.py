"""What every test shares."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_code() -> Iterator[None]:
    """Drop compiled code after each file: thousands of executables would exhaust memory maps."""
    yield
    jax.clear_caches()
