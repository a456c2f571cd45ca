"""Records that are read by their places: the same adjoints, in whichever order calls leave them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comparing import assert_same
from corpus import case_named
from lanewise.blocks.flatten import flatten
from lanewise.blocks.fork import forked, widest_fork
from lanewise.blocks.form import BlockProgram, verify
from lanewise.blocks.reference import interpret
from lanewise.blocks.simplify import simplify
from lanewise.core.errors import Outcome
from lanewise.core.push import push
from lanewise.diff.checkpoint import Checkpoints
from lanewise.diff.vjp import vjp_program


def staged(name: str) -> tuple[Any, list[Any], tuple[bool, ...]]:
    """A program of the corpus, operands of one example, and which of them are floats."""
    case = case_named(name)
    args = jax.tree.map(lambda x: jnp.asarray(x)[1], case.examples(np.random.default_rng(1), 2))
    found, operands = case.program.stage(*args)
    active = tuple(jnp.issubdtype(jnp.asarray(x).dtype, jnp.floating) for x in operands)
    return found.program, list(operands), active


def blocks_of(program: Any) -> BlockProgram:
    return simplify(flatten(program, [True] * len(program.operand_avals)), check=verify)


def adjoints(
    name: str, numbered: bool, forks: bool = False, records: int = 128
) -> tuple[Any, list[float]]:
    """Adjoints by both sweeps, and how many calls the widest fork of each makes."""
    program, operands, active = staged(name)
    gradient = vjp_program(program, active, Checkpoints(records=records, numbered=numbered))
    widths = []

    def run(found: Any, given: list[Any]) -> list[Any]:
        blocks = blocks_of(found.program)
        widths.append(widest_fork(forked(blocks, check=verify)))
        answer = interpret(forked(blocks) if forks else blocks, [*found.constants, *given])
        assert answer.outcome is Outcome.DONE
        assert answer.values is not None
        return answer.values

    values = run(gradient.forward, operands)
    answers, saved = values[: len(program.out_avals)], values[len(program.out_avals) :]
    cts = [jnp.ones_like(x) for x, flag in zip(answers, gradient.out_active) if flag]
    reads = [operands[i] for i in gradient.reads]
    return run(gradient.reverse, [*reads, *saved, *cts]), widths


@pytest.mark.parametrize("name", ["adaptive_simpson", "fold_tree", "continued_fraction"])
def test_places_give_what_popping_gives(name: str) -> None:
    expected, in_order = adjoints(name, numbered=False)
    found, _ = adjoints(name, numbered=True)
    assert in_order == [1, 1]
    assert_same(found, expected, 1e-6)


def test_calls_that_leave_records_fork() -> None:
    expected, widths = adjoints("adaptive_simpson", numbered=True)
    assert widths == [2, 2]
    found, _ = adjoints("adaptive_simpson", numbered=True, forks=True)
    assert_same(found, expected, 1e-6)


def test_a_sum_that_goes_from_call_to_call_keeps_their_order() -> None:
    # Each example has values of its own, whose adjoint every call adds to.
    assert adjoints("fold_tree", numbered=True)[1] == [2, 1]


@pytest.mark.parametrize("name", ["sprout", "branching", "determinant"])
def test_loops_of_calls_are_read_by_places(name: str) -> None:
    """Each turn of a loop has the places of the turn before it; those of a scan are stacked."""
    expected, in_order = adjoints(name, numbered=False)
    found, widths = adjoints(name, numbered=True, forks=True)
    assert in_order == [1, 1]
    # What a minor of a matrix gives is added to an array that belongs to the example alone.
    assert widths == [math.inf, 1 if name == "determinant" else math.inf]
    assert_same(found, expected, 1e-6)


def test_push_says_where_and_whether_it_fits() -> None:
    tape, top = jnp.zeros((3, 2)), jnp.int32(1)
    tape, top, at, fits = push(tape, top, jnp.ones((2, 2)))
    assert (int(top), int(at), bool(fits)) == (3, 1, True)
    assert tape.tolist() == [[0, 0], [1, 1], [1, 1]]
    assert not push(tape, top, jnp.ones((1, 2)))[3]


def test_push_has_derivatives_and_batches() -> None:
    def last(x: Any, at: Any) -> Any:
        tape, *_ = push(jnp.zeros(4), at, jnp.stack([x, x**2]))
        return tape[at + 1]

    at = jnp.arange(3)
    x = jnp.array([1.0, 2.0, 3.0])
    assert jax.vmap(jax.grad(last))(x, at).tolist() == [2.0, 4.0, 6.0]
