"""What the loops begin with, for both sides. It needs no JAX and no TensorFlow."""

from __future__ import annotations

import numpy as np


def numbers(size: int) -> list[np.ndarray]:
    """Where a loop begins, and both weights: square matrices, or numbers if the size is 0."""
    random = np.random.default_rng(0)
    shape = (size, size) if size else ()
    scale = 1.0 / np.sqrt(size) if size else 0.5
    return [
        (by * random.normal(size=shape) + (0.0 if size else 1.0)).astype(np.float32)
        for by in (1.0, scale, scale)
    ]
