"""The cost of a clustering, and Newton's step for its centroids: the function of `ad.kmeans`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ad.kmeans import cost, newton
from gradbench.protocol import Function, listed


def direction(centroids: Any, points: Any) -> jax.Array:
    slope, diagonal = newton(cost)(centroids, points)
    return slope / diagonal


def arguments(given: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.array(given["centroids"]), np.array(given["points"])


FUNCTIONS = {
    "cost": Function(lambda given: (cost, arguments(given)), listed),
    "dir": Function(lambda given: (direction, arguments(given)), listed),
}
