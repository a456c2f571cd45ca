"""What tests of samplers leave as it was."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    """PyMC's JAX backend turns on double precision for the whole process when it is imported."""
    before = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    yield
    jax.config.update("jax_enable_x64", before)
