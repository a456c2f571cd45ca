"""The tests of `on_transports.py`, in a process with 8 devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_transports() -> None:
    script = Path(__file__).parent / "on_transports.py"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(script)],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
