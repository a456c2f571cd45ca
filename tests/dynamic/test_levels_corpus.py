"""Programs of the corpus mean the same by levels, where their control does not depend on matrix work."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from comparing import assert_same, take
from corpus import CORPUS, Case
from lanewise.errors import OptionError

LANES = 3
# Why the others are not run by levels.
REFUSED = {
    "mix_down": "control depends on values",
    **dict.fromkeys(("metropolis", "hamiltonian", "recursive_nuts", "iterative_nuts"), "PRNG key"),
    **dict.fromkeys(("carry_key", "choose_key"), "PRNG key"),
}
# Recursion of every shape, loops, values that come back as they were given, records, assertions. `make test-full` runs
# the whole corpus.
SOME = frozenset(
    """fibonacci hofstadter_female binomial adaptive_simpson evaluate tree_network tree_folded node_total term_value
    escape_time damped_history mixture early_exit checked python_branches nested_choice identity empty_arrays""".split()
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
