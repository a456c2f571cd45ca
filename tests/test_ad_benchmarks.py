"""The AD benchmarks of `benchmarks/` differentiate what they claim: ours, JAX's and PyTorch's gradients agree.

At small sizes, with cotangents that are not all ones; nothing is timed here. PyTorch is a peer of the benchmarks alone
and is left out where it is not installed, with a message that says how to get it.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import numpy as np
import pytest

import needs
from ad import SUITE, Case, Entry
from ad.measure import (
    Measured,
    check,
    expected_gradient,
    leaves,
    precision,
    prepared,
)

# Sizes of one function are one function here.
ENTRIES = list({re.sub(r"\d+", "", entry.name): entry for entry in SUITE}.values())


@functools.cache
def expected_of(entry: Entry) -> tuple[Case, Any]:
    """A small case and the gradient that all are held to."""
    case = entry.make(True)
    with precision(case.double):
        return case, expected_gradient(case)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.key)
def test_the_gradient_is_right(entry: Entry) -> None:
    case, expected = expected_of(entry)
    with precision(case.double):
        check(entry, case, "ours", jax.jit(case.ours.gradient)(*case.arguments), expected)
        check(entry, case, "JAX", jax.jit(case.jax.gradient)(*case.arguments), expected)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.key)
def test_functions_are_the_same(entry: Entry) -> None:
    case = entry.make(True)
    with precision(case.double):
        expected = jax.jit(case.jax.primal)(*case.arguments)
        check(entry, case, "ours", jax.jit(case.ours.primal)(*case.arguments), expected)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.key)
def test_the_peer_differentiates_the_same(entry: Entry) -> None:
    """PyTorch as it is; `torch.compile` takes minutes for all of these, and benchmarks check what it gives."""
    torch = needs.library("torch")
    case, slopes = expected_of(entry)
    made = prepared(case, torch, compiled=False)
    with precision(case.double):
        check(entry, case, "PyTorch", made.finish(made.pair.gradient()), slopes)
        expected = jax.jit(case.jax.primal)(*case.arguments)
        check(entry, case, "PyTorch", made.pair.primal(), expected)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.key)
def test_no_gradient_is_a_constant(entry: Entry) -> None:
    """What all have in common could not distinguish a right gradient from a wrong one otherwise."""
    for slope in leaves(expected_of(entry)[1]):
        assert len(np.unique(np.round(slope, 6))) > min(3, slope.size - 1)


def test_overheads_are_measured_against_both_functions() -> None:
    entry = Entry("sum", "", lambda small: None, "<= 3")  # pyright: ignore[reportArgumentType]
    times = {"ours": (0.2, 0.5), "JAX": (0.1, 0.6)}
    found = {
        claim.claim.rpartition(": ")[2]: (claim.ratio, claim.met)
        for claim in Measured(entry, times, {}, (1, 1)).claims("cpu")
    }
    assert found["overhead"] == (pytest.approx(2.5), True)
    assert found["over the fastest function"] == (pytest.approx(5.0), False)
    assert found["gradient, against JAX"] == (pytest.approx(1.2), True)


def test_every_benchmark_has_a_name() -> None:
    assert len({entry.key for entry in SUITE}) == len(SUITE)
