"""Scripts that run in a process of their own, and print a line for each case."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def cases_of(script: Path, *arguments: str, **environment: str) -> dict[str, str]:
    """What each case of a script came to, by its name: the script prints "name: what it came to"."""
    paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    about = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    ran = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=os.environ | about | environment,
        capture_output=True,
        text=True,
        # Some scripts run what would never end.
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    # A library may print something too.
    return dict(line.split(": ", 1) for line in ran.stdout.splitlines() if ": " in line)
