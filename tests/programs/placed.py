"""Programs with parts: run by anything but `lw.run` they are the code that they hold."""

from __future__ import annotations

import jax.numpy as jnp

import lanewise as lw
from programs.case import Case, floats, inputs, ints, normals


@lw.program
def encode_and_decode(x, w, goal):
    steps = 0
    while (steps < 12) & (jnp.sum(x * x) < goal):
        x = lw.placed(lambda x, w: jnp.tanh(x @ w) + 0.4, "encoder")(x, w)
        with lw.on("decoder"):
            x = 1.5 * x
            if x[0] > 1.0:
                x = x - 0.25 * x[0]
        steps += 1
    return jnp.sum(x), steps


@lw.program
def routed(x, first, second, turns):
    total = 0.0
    for turn in range(turns):
        which = jnp.int32(x[0] > 0.3) + jnp.int32(turn % 3 == 2)
        experts = [
            lambda z: jnp.tanh(z @ first),
            lambda z: jnp.sin(z @ second) + 0.1,
            lambda z: 0.5 * z,
        ]
        x = lw.placed(experts, "expert", which)(x)
        y = lw.placed(lambda z: z * z, "judge", which)(x)
        total = total + jnp.sum(y)
    return total


CASES = (
    Case(
        "encode_and_decode",
        encode_and_decode,
        inputs(normals(3), normals(3, 3, scale=0.4), floats(0.5, 9.0)),
        differentiable=(0, 1),
    ),
    Case(
        "routed",
        routed,
        inputs(normals(3), normals(3, 3, scale=0.5), normals(3, 3, scale=0.5), ints(0, 6)),
        differentiable=(0, 1, 2),
    ),
)
