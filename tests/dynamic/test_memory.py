"""Memory that stays with the process, if it is asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import apart

SCRIPT = """
import resource
import numpy as np
import lanewise as lw

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

asked = lw.keep_pages()
np.ones(1 << 23).sum()
before = faults()
for _ in range(5):
    np.ones(1 << 23).sum()
print(f"asked: {asked}")
print(f"faults: {faults() - before}")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is asked")
def test_freed_pages_are_taken_again(tmp_path: Path) -> None:
    script = tmp_path / "pages.py"
    script.write_text(SCRIPT)
    found = apart.cases_of(script)
    # Without it each of the five arrays of 64 MB has 16,384 fresh pages.
    assert found["asked"] == "False" or int(found["faults"]) < 16_384
