"""Arguments that are split over devices: what cannot run so is refused with a way out, before XLA fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from apart import cases_of

REFUSED = ("machine", "refill", "recursion", "assertion", "gradient")
KINDS = ("Auto", "Explicit")


@pytest.fixture(scope="module")
def cases() -> dict[str, str]:
    """What each case of `on_two_devices.py` came to. One process for all: it has devices that this one has not."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    return cases_of(Path(__file__).parent / "on_two_devices.py", XLA_FLAGS=flags)


@pytest.mark.parametrize("name", REFUSED)
def test_a_machine_by_ticks_is_refused_and_shard_map_named(
    cases: dict[str, str], name: str
) -> None:
    for kind in KINDS:
        for case in (f"{name} {kind}", f"{name} {kind} jit"):
            assert cases[case].startswith("TransformError"), (case, cases[case])
            assert "split over 2 devices" in cases[case] and "jax.shard_map" in cases[case]
    assert "along 'i'" in cases[f"{name} Explicit"]


def test_what_is_split_inside_jit_is_refused(cases: dict[str, str]) -> None:
    assert cases["split inside jit"].startswith("TransformError")
    assert cases["plain Explicit"].startswith("TransformError")


def test_what_runs_split_is_right(cases: dict[str, str]) -> None:
    names = [f"native {kind}{jit}" for kind in KINDS for jit in ("", " jit")]
    for case in (*names, "plain Auto", "copied"):
        assert cases[case] == "right", (case, cases[case])


def test_shard_map_and_pmap_go_on_working(cases: dict[str, str]) -> None:
    for case in (*(f"{name} shard_map" for name in ("machine", "assertion", "gradient")), "pmap"):
        assert cases[case] == "right", (case, cases[case])
