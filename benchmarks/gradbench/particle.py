"""A charged particle that should pass through the origin: descent on a simulation that is itself driven by a gradient.

The particle is pushed by the gradient of a potential until it crosses the axis, in as many steps as that takes; the
control is then improved by the derivative of where it crosses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from gradbench.descent import MODES, argmin, norm
from gradbench.protocol import Function, listed

STEP = 1e-1


def potential(x: Any, w: Any) -> jax.Array:
    one, other = jnp.stack([jnp.full_like(w, 10.0), 10.0 - w]), jnp.array([10.0, 0.0])
    return 1.0 / norm(x - one) + 1.0 / norm(x - other)


def missed_by(mode: str) -> Callable[[Any], Any]:
    """The squared distance from the origin at which a particle with this control crosses the axis."""

    @lw.program
    def simulate(control):
        w = control[0]
        x = jnp.array([0.0, 8.0])
        speed = jnp.array([0.75, 0.0])
        new = x + STEP * speed
        while new[1] > 0.0:
            force = -MODES[mode](lambda x: potential(x, w))(x)
            x = new
            speed = speed + STEP * force
            new = x + STEP * speed
        return (x[0] - x[1] / speed[1] * speed[0]) ** 2

    return simulate


def variant(outer: str, inner: str) -> Function:
    descend = argmin(missed_by(inner), outer)
    return Function(lambda given: (descend, (np.array([given["w"]]),)), lambda x: listed(x)[0])


FUNCTIONS = {outer + inner: variant(outer, inner) for outer in "fr" for inner in "fr"}
