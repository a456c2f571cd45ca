"""Solvers: RK45 with step control, Diffrax on the same equation, Optimistix root finding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from control.case import Case, entry

# -- van der Pol's oscillator ----------------------------------------------------------------------

RELATIVE, ABSOLUTE = 1e-4, 1e-6
MOST_STEPS = 20_000


def van_der_pol(y: jax.Array, mu: jax.Array) -> jax.Array:
    return jnp.stack([y[1], mu * (1.0 - y[0] ** 2) * y[1] - y[0]])


def dormand_prince(y: jax.Array, k1: jax.Array, h: jax.Array, mu: jax.Array) -> Any:
    """One step of order five: the new point, its slope, and the error beside the tolerance."""
    k2 = van_der_pol(y + h * (k1 / 5), mu)
    k3 = van_der_pol(y + h * (3 / 40 * k1 + 9 / 40 * k2), mu)
    k4 = van_der_pol(y + h * (44 / 45 * k1 - 56 / 15 * k2 + 32 / 9 * k3), mu)
    k5 = van_der_pol(
        y + h * (19372 / 6561 * k1 - 25360 / 2187 * k2 + 64448 / 6561 * k3 - 212 / 729 * k4), mu
    )
    k6 = van_der_pol(
        y
        + h
        * (
            9017 / 3168 * k1 - 355 / 33 * k2 + 46732 / 5247 * k3 + 49 / 176 * k4 - 5103 / 18656 * k5
        ),
        mu,
    )
    new = y + h * (
        35 / 384 * k1 + 500 / 1113 * k3 + 125 / 192 * k4 - 2187 / 6784 * k5 + 11 / 84 * k6
    )
    k7 = van_der_pol(new, mu)
    off = h * (
        71 / 57600 * k1
        - 71 / 16695 * k3
        + 71 / 1920 * k4
        - 17253 / 339200 * k5
        + 22 / 525 * k6
        - 1 / 40 * k7
    )
    scale = ABSOLUTE + RELATIVE * jnp.maximum(jnp.abs(y), jnp.abs(new))
    return new, k7, jnp.sqrt(jnp.mean((off / scale) ** 2))


@lw.program
def runge_kutta(mu, end):
    y = jnp.array([2.0, 0.0], jnp.float32)
    slope = van_der_pol(y, mu)
    t = jnp.float32(0.0)
    h = jnp.float32(0.01)
    steps = 0
    while t < end and steps < MOST_STEPS:
        h = jnp.minimum(h, end - t)
        new, new_slope, error = dormand_prince(y, slope, h, mu)
        if error <= 1.0:
            t = t + h
            y = new
            slope = new_slope
        h = h * jnp.clip(0.9 * (error + 1e-10) ** -0.2, 0.2, 5.0)
        steps += 1
    return y, steps


def runge_kutta_lax(mu: jax.Array, end: jax.Array) -> tuple[jax.Array, jax.Array]:
    def unfinished(state: Any) -> jax.Array:
        _, _, t, _, steps = state
        return (t < end) & (steps < MOST_STEPS)

    def step(state: Any) -> Any:
        y, slope, t, h, steps = state
        h = jnp.minimum(h, end - t)
        new, new_slope, error = dormand_prince(y, slope, h, mu)
        good = error <= 1.0
        return (
            jnp.where(good, new, y),
            jnp.where(good, new_slope, slope),
            jnp.where(good, t + h, t),
            h * jnp.clip(0.9 * (error + 1e-10) ** -0.2, 0.2, 5.0),
            steps + 1,
        )

    y = jnp.array([2.0, 0.0], jnp.float32)
    start = (y, van_der_pol(y, mu), jnp.float32(0.0), jnp.float32(0.01), jnp.int32(0))
    y, _, _, _, steps = lax.while_loop(unfinished, step, start)
    return y, steps


def stiffness(lanes: int, small: bool) -> np.ndarray:
    """Most oscillators are mild; a few are so stiff that an explicit method crawls."""
    rng = np.random.default_rng(20)
    return np.clip(rng.lognormal(0.5, 1.5, lanes), 0.1, 3.0 if small else 150.0).astype(np.float32)


def runge_kutta_case(lanes: int, small: bool) -> Case:
    arguments = (stiffness(lanes, small), np.float32(1.0 if small else 8.0))
    # The number of steps may differ by a few: a step at the edge of its tolerance is redone or not.
    return Case(
        runge_kutta,
        runge_kutta_lax,
        arguments,
        (0, None),
        rtol=2e-2,
        atol=2e-2,
        agreement=0.9,
    )


def diffrax_case(lanes: int, small: bool) -> Case:
    import diffrax

    def field(t: Any, y: jax.Array, mu: jax.Array) -> jax.Array:
        del t
        return van_der_pol(y, mu)

    def solve(mu: jax.Array) -> Any:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Dopri5(),
            t0=0.0,
            t1=1.0 if small else 8.0,
            dt0=0.01,
            y0=jnp.array([2.0, 0.0]),
            args=mu,
            stepsize_controller=diffrax.PIDController(rtol=RELATIVE, atol=ABSOLUTE),
            max_steps=MOST_STEPS,
            throw=False,
        )
        # How many steps it took is not an answer: a step at the edge of its tolerance is redone or not.
        return solution.ys

    # As above: a step at the edge of its tolerance.
    arguments = (stiffness(lanes, small),)
    return Case(solve, solve, arguments, (0,), rtol=2e-2, atol=2e-2, agreement=0.9)


# -- root finding ----------------------------------------------------------------------------------


def freudenstein_roth(y: jax.Array, slack: jax.Array) -> jax.Array:
    """A classic with a valley that leads away from its root."""
    a, b = y[0], y[1]
    return jnp.stack(
        [a - 13.0 + ((5.0 - b) * b - 2.0) * b, slack * (a - 29.0 + ((b + 1.0) * b - 14.0) * b)]
    )


def optimistix_case(lanes: int, small: bool) -> Case:
    import optimistix

    solver = optimistix.Newton(rtol=1e-4, atol=1e-4)
    most = 16 if small else 256

    def find(start: jax.Array, slack: jax.Array) -> Any:
        found = optimistix.root_find(
            freudenstein_roth, solver, start, args=slack, max_steps=most, throw=False
        )
        # Nor is the number of iterations: near the tolerance rounding decides.
        return found.value

    rng = np.random.default_rng(21)
    start = (3.0 * rng.standard_normal((lanes, 2)) + [0.0, 0.5]).astype(np.float32)
    slack = rng.lognormal(0.0, 1.0, lanes).astype(np.float32)
    # A start in the valley is thrown to and fro by the smallest slope there: chaotic.
    return Case(find, find, (start, slack), (0, 0), rtol=1e-2, atol=1e-2, agreement=0.8)


ENTRIES = (
    entry("RK45, van der Pol", runge_kutta_case, "diverges", "scalar"),
    entry("Diffrax, van der Pol", diffrax_case, "diverges", "small", needs="diffrax"),
    entry("Optimistix roots", optimistix_case, "diverges", "small", needs="optimistix"),
)
