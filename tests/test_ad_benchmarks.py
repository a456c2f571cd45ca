"""The AD benchmarks of `benchmarks/` differentiate what they claim: ours, JAX's and PyTorch's gradients agree.

At small sizes; nothing is timed here. PyTorch is a peer of the benchmarks alone and is left out where it is
not installed.
"""

from __future__ import annotations

import re

import jax
import pytest

import needs
from ad import SUITE, Entry
from ad.measure import check, expected_gradient, precision, torch_pair

# Sizes of one function are one function here.
ENTRIES = list({re.sub(r"\d+", "", entry.name): entry for entry in SUITE}.values())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.key)
def test_the_gradient_is_right(entry: Entry) -> None:
    case = entry.make(True)
    with precision(case.double):
        expected = expected_gradient(case)
        check(entry, case, "ours", jax.jit(case.ours.gradient)(*case.arguments), expected)
        check(entry, case, "JAX", jax.jit(case.jax.gradient)(*case.arguments), expected)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.key)
def test_functions_are_the_same(entry: Entry) -> None:
    case = entry.make(True)
    with precision(case.double):
        expected = jax.jit(case.jax.primal)(*case.arguments)
        check(entry, case, "ours", jax.jit(case.ours.primal)(*case.arguments), expected)


@pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES if entry.make(True).torch], ids=lambda entry: entry.key
)
def test_the_peer_differentiates_the_same(entry: Entry) -> None:
    needs.library("torch")
    case = entry.make(True)
    pair = torch_pair(case)
    assert pair is not None
    with precision(case.double):
        check(entry, case, "PyTorch", pair.gradient(), expected_gradient(case))


def test_every_benchmark_has_a_name() -> None:
    assert len({entry.key for entry in SUITE}) == len(SUITE)
