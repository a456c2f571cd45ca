"""Arguments that are split over devices: what cannot run so is refused with a way out, before XLA fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REFUSED = ("machine", "refill", "recursion", "assertion", "gradient")
KINDS = ("Auto", "Explicit")


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """What each case of `on_two_devices.py` came to. One process for all: it has devices that this one has not."""
    paths = [str(HERE.parent), str(HERE.parent.parent / "src"), os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [sys.executable, str(HERE / "on_two_devices.py")],
        env=os.environ
        | {
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    return dict(line.split(": ", 1) for line in ran.stdout.splitlines())


@pytest.mark.parametrize("name", REFUSED)
def test_a_machine_by_ticks_is_refused_and_shard_map_named(told: dict[str, str], name: str) -> None:
    for kind in KINDS:
        for case in (f"{name} {kind}", f"{name} {kind} jit"):
            assert told[case].startswith("TransformError"), (case, told[case])
            assert "split over 2 devices" in told[case] and "jax.shard_map" in told[case]
    assert "along 'i'" in told[f"{name} Explicit"]


def test_what_is_split_inside_jit_is_refused(told: dict[str, str]) -> None:
    assert told["split inside jit"].startswith("TransformError")
    assert told["plain Explicit"].startswith("TransformError")


def test_what_runs_split_is_right(told: dict[str, str]) -> None:
    cases = [f"native {kind}{jit}" for kind in KINDS for jit in ("", " jit")]
    for case in (*cases, "plain Auto", "copied"):
        assert told[case] == "right", (case, told[case])


def test_shard_map_and_pmap_go_on_working(told: dict[str, str]) -> None:
    for case in (*(f"{name} shard_map" for name in ("machine", "assertion", "gradient")), "pmap"):
        assert told[case] == "right", (case, told[case])
