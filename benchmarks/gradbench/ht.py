"""Hand tracking: the function of `ad.hand`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ad.hand import PARENTS, jacobian, residuals
from gradbench.protocol import Function, flat


def arguments(given: Any) -> tuple[np.ndarray, ...]:
    model, data = given["data"]["model"], given["data"]
    if tuple(model["parents"]) != PARENTS:
        raise ValueError("the hand's bones are not five fingers of four bones each")
    if model["is_mirrored"]:
        raise ValueError("a mirrored hand is not supported")
    return (
        np.array(given["theta"]),
        np.array(given["us"], dtype=np.float64).reshape(-1, 2),
        np.array(model["base_relatives"]),
        np.array(model["inverse_base_absolutes"]),
        np.array(model["base_positions"]),
        np.array(model["weights"]),
        np.array(model["triangles"], dtype=np.int64),
        np.array(data["correspondences"], dtype=np.int64),
        np.array(data["points"]),
    )


def by_row(result: Any) -> Any:
    return np.asarray(jax.device_get(result)).reshape(-1, result.shape[-1]).tolist()


FUNCTIONS = {
    "objective": Function(lambda given: (residuals, arguments(given)), flat),
    "jacobian": Function(lambda given: (jacobian, arguments(given)), by_row),
}
