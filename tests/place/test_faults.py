"""A process that dies is noticed, and one that hangs; the others end, and name it. `make soak` tries it 50 times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import needs
from apart import cases_of

SCRIPT = Path(__file__).parent / "on_faults.py"
TRIALS = int(os.environ.get("LANEWISE_TRIALS", "1"))
# How many a process does; the script checks each.
AT_A_TIME = 5
FLAGS = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"


@pytest.mark.parametrize(
    "by_callback",
    [
        pytest.param("0", marks=needs.compiler),
        pytest.param("1", marks=pytest.mark.slow),
    ],
)
def test_others_end_and_name_it(by_callback: str) -> None:
    for first in range(0, TRIALS, AT_A_TIME):
        trials = str(min(AT_A_TIME, TRIALS - first))
        about = {"XLA_FLAGS": FLAGS, "BY_CALLBACK": by_callback, "LANEWISE_TRIALS": trials}
        cases = cases_of(SCRIPT, **about)
        for rank in (0, 2):
            assert "part p1 (rank 1) died: " in cases[f"killed at {rank}"]
            said = cases[f"stopped at {rank}"]
            assert "part p1 (rank 1) hangs: it gave no sign of life for 1 s" in said
            assert f"(seen by part p{rank} (rank {rank}))" in said
