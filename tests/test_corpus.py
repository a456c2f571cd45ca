"""Every program of the corpus means the same however it runs.

Plain Python is the first truth; the reference interpreter must agree with it on a few lanes, the compiled one-lane
program with both. One lane at a time then stands for the batch, and every schedule at every size must agree with it,
as must `jax.vmap` of the form in `jax.lax` where the corpus has one.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from comparing import assert_same, lane_axes, lanes_of, take
from corpus import CORPUS, Case
from lanewise.blocks.flatten import flatten
from lanewise.blocks.form import verify
from lanewise.blocks.link import link
from lanewise.blocks.reference import interpret
from lanewise.blocks.simplify import simplify
from lanewise.core.errors import Outcome

SIZES = (1, 2, 17, 256)
HEAVY_SIZES = (2, 17)
LARGEST = max(SIZES)
SCHEDULES = ("sweep", "most", "lowest", "local")
# Compiling is what tests spend their time on. So each program runs under `sweep` and one more schedule, each at one
# size, in turns: every size meets every schedule. `make test-full` runs every program under all, at every size.
TURNS = [
    (case, schedule)
    for at, case in enumerate(CORPUS)
    for schedule in ("sweep", SCHEDULES[1 + at % (len(SCHEDULES) - 1)])
]


def sizes_of(case: Case, schedule: str) -> tuple[int, ...]:
    if needs.FULL:
        return HEAVY_SIZES if case.heavy else SIZES
    if case.heavy:
        return HEAVY_SIZES[-1:]
    return (SIZES[(CORPUS.index(case) + SCHEDULES.index(schedule)) % len(SIZES)],)


every_case = pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)


@functools.cache
def batch(name: str) -> Any:
    """The largest batch of a case; smaller ones are its first lanes."""
    case = next(case for case in CORPUS if case.name == name)
    size = max(HEAVY_SIZES) if case.heavy else LARGEST
    return jax.tree.map(jnp.asarray, case.examples(np.random.default_rng(1), size))


@functools.cache
def one_at_a_time(name: str) -> Any:
    """Answers of the whole batch, one lane after the other, through XLA's own loops or a one-lane machine."""
    case = next(case for case in CORPUS if case.name == name)
    args = batch(name)
    axes = lane_axes(case.in_axes, args)
    leaves, tree = jax.tree.flatten(args)
    moving = [leaf for leaf, axis in zip(leaves, axes, strict=True) if axis is not None]

    def one(lane: list[Any]) -> Any:
        given = iter(lane)
        mine = [
            leaf if axis is None else next(given) for leaf, axis in zip(leaves, axes, strict=True)
        ]
        # By XLA, whatever would be chosen for a lone call.
        return case.program.with_options(carrier="ticks")(*jax.tree.unflatten(tree, mine))

    return jax.jit(lambda moving: jax.lax.map(one, moving))(moving)


@every_case
def test_reference_is_plain_python(case: Case) -> None:
    args = batch(case.name)
    lanes = lanes_of(case.in_axes, args)
    for lane in range(1 if case.heavy else min(2, lanes)):
        one = take(case.in_axes, args, lane)
        with jax.disable_jit():
            plain = case.program(*one)
        staged, operands = case.program.stage(*one)
        varying = [True] * len(staged.program.operand_avals)
        blocks = verify(flatten(staged.program, varying))
        found = interpret(link(simplify(blocks, check=verify), varying).program, operands)
        assert found.outcome is Outcome.DONE
        assert_same(found.values, jax.tree.leaves(plain), case.rtol)
        if lane == 0:
            assert_same(interpret(blocks, operands).values, found.values, case.rtol)
        assert_same(take(0, one_at_a_time(case.name), lane), plain, case.rtol)


@pytest.mark.parametrize(
    ("case", "schedule"),
    [
        pytest.param(
            case,
            schedule,
            id=f"{case.name}-{schedule}",
            marks=() if (case, schedule) in TURNS else pytest.mark.slow,
        )
        for case in CORPUS
        for schedule in SCHEDULES
    ],
)
def test_schedules(case: Case, schedule: str) -> None:
    expected = one_at_a_time(case.name)
    for size in sizes_of(case, schedule):
        args = take(case.in_axes, batch(case.name), slice(size))
        answers = lw.vmap(case.program, in_axes=case.in_axes, schedule=schedule)(*args)
        assert_same(answers, take(0, expected, slice(size)), case.rtol)


@pytest.mark.parametrize(
    "case", needs.in_turns((c for c in CORPUS if c.lax_form), 3), ids=lambda case: case.name
)
def test_jax_vmap_of_the_lax_form(case: Case) -> None:
    assert case.lax_form is not None
    args = take(case.in_axes, batch(case.name), slice(17))
    expected = jax.jit(jax.vmap(case.lax_form, in_axes=case.in_axes))(*args)
    assert_same(jax.jit(jax.vmap(case.program, in_axes=case.in_axes))(*args), expected, case.rtol)
    lifted = lw.vmap(case.lax_form, in_axes=case.in_axes, schedule="sweep")
    assert_same(lifted(*args), expected, case.rtol)


def test_every_size_meets_every_schedule() -> None:
    met = {(size, name) for case, name in TURNS for size in sizes_of(case, name)}
    assert met == {(size, name) for size in SIZES for name in SCHEDULES}


def test_the_corpus_is_large_and_named_once() -> None:
    names = [case.name for case in CORPUS]
    assert len(names) == len(set(names)) >= 60
