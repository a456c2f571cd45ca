"""Lanes over the devices of a mesh: each runs its own, answers are those of one device, no loop has a collective."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from apart import cases_of

KINDS = ("Auto", "Explicit")
CARRIERS = ("ticks", "native")


@pytest.fixture(scope="module")
def cases() -> dict[str, str]:
    """What each case of `on_devices.py` came to. One process for all: it has devices that this one has not."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    return cases_of(Path(__file__).parent / "on_devices.py", XLA_FLAGS=flags)


@pytest.mark.parametrize("name", ["machine", "refill", "recursion"])
def test_each_device_runs_its_own_lanes(cases: dict[str, str], name: str) -> None:
    for case in (f"{name} {carrier} {kind}" for carrier in CARRIERS for kind in KINDS):
        assert cases[case].startswith("right P('i'"), (case, cases[case])
        inside = cases[f"{case} jit"]
        assert inside.startswith("right P('i'") and inside.endswith(" []"), (case, inside)


def test_weight_gradients_are_summed_once(cases: dict[str, str]) -> None:
    for case in (f"gradient {kind} jit" for kind in KINDS):
        assert cases[case].startswith("right P('i'") and cases[case].endswith(" []"), cases[case]
        assert cases[case].count("all-reduce f32") == 1, (case, cases[case])
    assert cases["gradient Explicit"].startswith("right P('i'")
    for case in (f"straight gradient {kind} jit" for kind in KINDS):
        assert cases[case].startswith("right"), (case, cases[case])
        assert cases[case].endswith("['all-reduce f32'] []"), (case, cases[case])
    for case in ("straight gradient alone jit", "layers alone jit"):
        assert cases[case].startswith("right P('i'"), (case, cases[case])
        assert cases[case].endswith("['all-reduce f32'] []"), (case, cases[case])
    # How often it goes round is known when it runs; lanes stay where they are.
    assert cases["times alone jit"].startswith("right P('i'"), cases["times alone jit"]


def test_lanes_that_cannot_fail_need_no_message_between_devices(cases: dict[str, str]) -> None:
    names = ("machine ticks", "refill native", "keys")
    for case in (f"{name} {kind} jit" for name in names for kind in KINDS):
        assert cases[case].endswith(" [] []"), (case, cases[case])


def test_failures_have_the_lane_numbers_of_the_whole_batch(cases: dict[str, str]) -> None:
    for kind in KINDS:
        assert "in 2 of 16 lanes: 4, 15." in cases[f"failure {kind}"]


def test_other_ways_to_split(cases: dict[str, str]) -> None:
    specs = {
        "two axes": "P(('i', 'j'),)",
        "nested": "P('j', 'i')",
        "uneven": "P()",
        "lone": "P()",
        "split weights": "P('i',)",
        "shard_map over one of two axes": "P('i',)",
    }
    for name, spec in specs.items():
        for case in (name, f"{name} jit"):
            assert cases[case].startswith(f"right {spec}"), (case, cases[case])
        assert cases[f"{name} jit"].endswith(" []"), cases[f"{name} jit"]
    assert (cases["steps"], cases["pmap"]) == ("right", "right")


@pytest.mark.parametrize("kind", KINDS)
def test_vmap_over_a_mesh(cases: dict[str, str], kind: str) -> None:
    assert cases[f"vmap {kind}"].startswith("right P('i'"), cases[f"vmap {kind}"]
    assert cases[f"vmap uneven {kind}"].startswith("right P("), cases[f"vmap uneven {kind}"]
    for name in ("vmap", "vmap uneven", "vmap refill", "vmap gradient"):
        inside = cases[f"{name} {kind} jit"]
        assert inside.startswith("right") and inside.endswith(" []"), (name, inside)
    assert cases[f"vmap gradient {kind} jit"].count("all-reduce f32") == 1
    assert "in 1 of 14 lanes: 4." in cases[f"vmap failure {kind}"]
    assert cases[f"vmap outcomes {kind}"] == "right"


def test_failures_inside_shard_map_have_them_too(cases: dict[str, str]) -> None:
    for name in ("one axis", "both axes", "pmap"):
        assert "in 1 of 16 lanes: 13." in cases[f"failure {name}"]


def test_devices_share_a_bar(cases: dict[str, str]) -> None:
    assert cases["bars"] == "[('collatz', 16)]"
