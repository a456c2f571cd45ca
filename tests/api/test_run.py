"""`lanewise.run`: what one process can ask about a program for several."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import lanewise as lw
from lanewise.core.errors import OptionError


def ring(x: Any) -> Any:
    """Once round 100 places."""
    for i in range(100):
        x = lw.placed(lambda x: x + 1, "part", i)(x)
    return x


def test_a_dry_run_with_ranks_needs_no_other_process() -> None:
    run = lw.run(ring, {"part": list(range(100))})
    found = run.dry_run(jnp.zeros(4))
    # And the result goes to all others.
    assert found.messages == 99 + 99 and found.bytes == 16 * found.messages
    assert "98 -> 99: " in run.inspect(jnp.zeros(4))


def test_a_run_with_ranks_does() -> None:
    with pytest.raises(OptionError, match=r"lanewise launch -n 100 script\.py.*dry_run"):
        lw.run(ring, {"part": list(range(100))})(jnp.zeros(4))


def test_a_process_that_is_one_of_several_has_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("SIZE", "2"), ("ADDRESS", "localhost:1"), ("SECRET", "x")):
        monkeypatch.setenv(f"LANEWISE_{name}", value)
    with pytest.raises(OptionError, match="the rank 99, and there are 2 processes"):
        lw.run(ring, {"part": list(range(100))})
    assert lw.run(jax.grad(lambda x: ring(x)), {"part": [0, 1] * 50}).dry_run(0.0).messages > 0
