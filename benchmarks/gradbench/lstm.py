"""The network of diagonal LSTM cells: the function of `ad.dlstm`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ad.dlstm import loss
from gradbench.protocol import Function, flat, listed


def arguments(given: Any) -> tuple[np.ndarray, ...]:
    """Rows of weights and of biases take turns, and so do hidden states and memories."""
    sequence = np.array(given["sequence"], dtype=np.float64)
    bits = sequence.shape[1]
    main = np.array(given["main_params"]).reshape(-1, 2, 4, bits)
    state = np.array(given["state"]).reshape(-1, 2, bits)
    return main, np.array(given["extra_params"]), state, sequence


FUNCTIONS = {
    "objective": Function(lambda given: (loss, arguments(given)), listed),
    "jacobian": Function(
        lambda given: (jax.grad(loss, argnums=(0, 1)), arguments(given)),
        lambda result: flat(*result),
    ),
}
