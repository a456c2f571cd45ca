"""The log posterior of a Gaussian mixture: the function of `ad.gmm`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ad.gmm import log_posterior
from gradbench.protocol import Function, listed

INDEPENDENT = ("alpha", "mu", "q", "l")


def arguments(given: Any) -> tuple[Any, ...]:
    independent = [np.array(given[name], dtype=np.float64) for name in INDEPENDENT]
    fixed = np.array(given["x"]), np.int64(given["m"]), np.float64(given["gamma"])
    return (*independent, *fixed)


def named(result: Any) -> dict[str, Any]:
    return dict(zip(INDEPENDENT, listed(result), strict=True))


FUNCTIONS = {
    "objective": Function(lambda given: (log_posterior, arguments(given)), listed),
    "jacobian": Function(
        lambda given: (jax.grad(log_posterior, argnums=(0, 1, 2, 3)), arguments(given)), named
    ),
}
