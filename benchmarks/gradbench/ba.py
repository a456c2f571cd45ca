"""Bundle adjustment: the function of `ad.ba`, its Jacobian as compressed rows.

One camera, point, weight and feature are sent and repeated. The result repeats
too: its first thirty entries and the last are sent back, as GradBench asks for.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ad.ba import jacobian, residuals
from gradbench.protocol import Function

CAMERA, POINT = 11, 3
SENT = 30


def arguments(given: Any) -> tuple[np.ndarray, ...]:
    n, m, p = given["n"], given["m"], given["p"]
    order = np.arange(p)
    return (
        np.tile(np.array(given["cam"]), (n, 1)),
        np.tile(np.array(given["x"]), (m, 1)),
        np.full(p, given["w"]),
        np.stack([order % n, order % m], axis=1),
        np.tile(np.array(given["feat"]), (p, 1)),
    )


def compressed(cameras: Any, points: Any, weights: Any, observations: Any, features: Any) -> Any:
    """Where each row begins, the column of each entry, and the entries: errors first, then weights' own."""
    n, m, p = cameras.shape[0], points.shape[0], weights.shape[0]
    rows, last = jacobian(cameras, points, weights, observations, features)
    own = CAMERA * n + POINT * m + jnp.arange(p)
    columns = jnp.concatenate(
        [
            CAMERA * observations[:, :1] + jnp.arange(CAMERA),
            CAMERA * n + POINT * observations[:, 1:] + jnp.arange(POINT),
            own[:, None],
        ],
        axis=1,
    )
    width = CAMERA + POINT + 1
    starts = [width * jnp.arange(2 * p + 1), 2 * p * width + jnp.arange(1, p + 1)]
    both = jnp.broadcast_to(columns[:, None], (p, 2, width))
    return {
        "rows": jnp.concatenate(starts),
        "cols": jnp.concatenate([both.ravel(), own]),
        "vals": jnp.concatenate([rows.ravel(), last]),
    }


def errors_sent(result: Any) -> dict[str, Any]:
    errors, own = jax.device_get(result)
    return {
        "reproj_error": {"elements": errors[0].tolist(), "repeated": errors.shape[0]},
        "w_err": {"element": own[0].item(), "repeated": own.shape[0]},
    }


def entries_sent(result: Any) -> dict[str, Any]:
    return {
        name: [*values[:SENT].tolist(), values[-1].item()]
        for name, values in jax.device_get(result).items()
    }


FUNCTIONS = {
    "objective": Function(lambda given: (residuals, arguments(given)), errors_sent),
    "jacobian": Function(lambda given: (compressed, arguments(given)), entries_sent),
}
