"""Where draws are not to be relied on: the rules that a run's warnings and the marks of a report share.

R-hat and ESS are those of Vehtari et al. (2021). Many chains are judged by nested R-hat (`convergence.py`).
"""

from __future__ import annotations

import numpy as np

from lanewise.watch.convergence import Mixing

GREATEST_R_HAT = 1.01
# For each chain; of many chains, in all.
LEAST_ESS, LEAST_ESS_OF_MANY = 100, 400
# From this many chains on, chains are judged by groups.
MANY_CHAINS = 32
# Nested R-hat counts if chance explains it in fewer than this share of runs.
LEAST_CHANCE = 1e-3
# Below this, chains explore the tails slowly (Betancourt 2016).
LEAST_E_BFMI = 0.3


def least_ess(chains: int) -> int:
    """The bulk and tail ESS that n chains should have together.

    >>> least_ess(4), least_ess(1000)
    (400, 400)
    """
    return LEAST_ESS * chains if chains < MANY_CHAINS else LEAST_ESS_OF_MANY


def is_sure(mixed: Mixing, variables: int) -> bool:
    """Whether chance does not explain a nested R-hat, the largest of several."""
    return mixed.chance < LEAST_CHANCE / variables


def cut_short(steps: np.ndarray, max_depth: int) -> np.ndarray:
    """Which trajectories of NUTS have all the steps that the depth limit allows.

    One that turns within its last doubling ends by itself, though its tree is as deep.
    """
    return steps >= 2**max_depth - 1
