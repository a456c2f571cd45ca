"""Programs of the corpus, and random ones, mean the same by levels, where control does not depend on matrix work."""

from __future__ import annotations

from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

import generate
import lanewise as lw
import needs
from comparing import assert_same, take
from corpus import CORPUS, Case, case_named
from lanewise.errors import OptionError

LANES = 3
# Why the others are not run by levels.
REFUSED = {"mix_down": "control depends on values"}
# Recursion of every shape, loops, values that come back as they were given, records, assertions. `make test-full` runs
# the whole corpus.
SOME = frozenset(
    """fibonacci hofstadter_female binomial adaptive_simpson evaluate tree_network settled_tree tree_folded node_total
    term_value escape_time damped_history mixture early_exit checked python_branches nested_choice choose_key identity
    empty_arrays halvings_until histogram""".split()
)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            c, id=c.name, marks=() if c.name in SOME | REFUSED.keys() else pytest.mark.slow
        )
        for c in CORPUS
    ],
)
def test_by_levels(case: Case) -> None:
    args = jax.tree.map(jnp.asarray, case.examples(np.random.default_rng(1), LANES))
    run = lw.vmap(case.program, in_axes=case.in_axes, schedule="levels")
    if case.name in REFUSED:
        with pytest.raises(OptionError, match=REFUSED[case.name]):
            run(*args)
        return
    one = case.program.with_options(carrier="ticks")
    answers = run(*args)
    for lane in range(LANES):
        assert_same(take(0, answers, lane), one(*take(case.in_axes, args, lane)), case.rtol)


def test_gradients_of_a_program_in_parts() -> None:
    """The sum over lanes of what a lane at a time has."""
    case = case_named("settled_tree")
    args = jax.tree.map(jnp.asarray, case.examples(np.random.default_rng(2), LANES))

    def loss(mix: Any, embedding: Any, run: Any, *rest: Any) -> Any:
        return jnp.sum(jnp.sin(run(mix, embedding, *rest)[0]))

    run = lw.vmap(case.program, in_axes=case.in_axes, schedule="levels")
    found = jax.grad(loss, (0, 1))(*args[:2], run, *args[2:])
    one = case.program.with_options(carrier="ticks")
    lanes = [
        jax.grad(loss, (0, 1))(*args[:2], one, *(x[lane] for x in args[2:]))
        for lane in range(LANES)
    ]
    expected = jax.tree.map(lambda *each: sum(each), *lanes)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), found, expected
    )


def test_random_programs() -> None:
    tried = []

    @hypothesis.seed(7)
    @settings(
        max_examples=100 if needs.FULL else 8,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=(HealthCheck.filter_too_much, HealthCheck.too_slow),
    )
    @hypothesis.given(generate.programs())
    def compare(program: Any) -> None:
        hypothesis.assume(12 <= len(program.source.splitlines()) <= 60)
        expected = generate.run_plainly(program)
        main = generate.load(program.source, lw.program, f"levels {len(tried)}")
        answers = lw.vmap(main, in_axes=program.in_axes, schedule="levels")(*program.arguments)
        for lane in range(generate.LANES):
            # Pieces are compiled for many rows: products and sums may be rounded otherwise.
            assert_same(take(0, answers, lane), expected[lane], 1e-4)
        tried.append(program.source)

    compare()
    assert len(tried) >= 8
