"""Samplers: rejection, random walks until exit, HMC of random lengths.

Every lane has its own key, and both forms draw from it in the same order: the same draws.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

import lanewise as lw
from control.case import Case, entry


def keys(seed: int, lanes: int) -> jax.Array:
    return random.split(random.key(seed), lanes)


# -- rejection -------------------------------------------------------------------------------------


@lw.program
def reject(key, centre, sharpness):
    """A draw from a bump on [0, 1) under a flat envelope: the sharper the bump the more tries."""
    tries = 0
    while True:
        tries += 1
        key, sub = random.split(key)
        draws = random.uniform(sub, (2,), jnp.float32)
        away = draws[0] - centre
        if draws[1] < jnp.exp(-sharpness * away * away):
            return draws[0], tries


def reject_lax(key: jax.Array, centre: jax.Array, sharpness: jax.Array) -> Any:
    def attempt(state: Any) -> Any:
        key, _, _, tries = state
        key, sub = random.split(key)
        draws = random.uniform(sub, (2,), jnp.float32)
        away = draws[0] - centre
        return key, draws[1] < jnp.exp(-sharpness * away * away), draws[0], tries + 1

    start = (key, jnp.bool_(False), jnp.float32(0.0), jnp.int32(0))
    _, _, draw, tries = lax.while_loop(lambda state: ~state[1], attempt, start)
    return draw, tries


def reject_case(lanes: int, small: bool) -> Case:
    rng = np.random.default_rng(30)
    centre = rng.uniform(0.1, 0.9, lanes).astype(np.float32)
    sharpness = np.minimum(20.0 * rng.lognormal(0.0, 2.0, lanes), 200.0 if small else 1e5)
    arguments = (keys(30, lanes), centre, sharpness.astype(np.float32))
    # One draw in millions is so close to the density that an exponential's last bit decides.
    return Case(reject, reject_lax, arguments, (0, 0, 0), agreement=0.999)


# -- random walks ----------------------------------------------------------------------------------


@lw.program
def walk(key, radius):
    """Steps on the square grid until the walk leaves a disk: where, and after how many steps."""
    x = 0
    y = 0
    t = 0
    while x * x + y * y < radius * radius:
        way = random.bits(random.fold_in(key, t)) >> 30
        if way == 0:
            x += 1
        elif way == 1:
            x -= 1
        elif way == 2:
            y += 1
        else:
            y -= 1
        t += 1
    return x, y, t


def walk_lax(key: jax.Array, radius: jax.Array) -> Any:
    across, along = jnp.array([1, -1, 0, 0], jnp.int32), jnp.array([0, 0, 1, -1], jnp.int32)

    def step(state: Any) -> Any:
        x, y, t = state
        way = random.bits(random.fold_in(key, t)) >> 30
        return x + across[way], y + along[way], t + 1

    start = (jnp.int32(0), jnp.int32(0), jnp.int32(0))
    return lax.while_loop(lambda s: s[0] ** 2 + s[1] ** 2 < radius**2, step, start)


def walk_case(lanes: int, small: bool) -> Case:
    rng = np.random.default_rng(31)
    radius = np.minimum(3.0 + rng.pareto(1.5, lanes) * 4.0, 5 if small else 40)
    return Case(walk, walk_lax, (keys(31, lanes), radius.astype(np.int32)), (0, 0))


# -- HMC -------------------------------------------------------------------------------------------


def bent(x: jax.Array) -> jax.Array:
    """A Gaussian of unequal scales, its first axis bent."""
    scales = jnp.linspace(0.5, 2.0, x.shape[0], dtype=x.dtype)
    return -0.5 * jnp.sum((x / scales) ** 2) - 0.05 * (x[1] - x[0] ** 2) ** 2


def leapfrog(x: jax.Array, momentum: jax.Array, step: float) -> tuple[jax.Array, jax.Array]:
    momentum = momentum + 0.5 * step * jax.grad(bent)(x)
    x = x + step * momentum
    return x, momentum + 0.5 * step * jax.grad(bent)(x)


def energy(x: jax.Array, momentum: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum(momentum * momentum) - bent(x)


@lw.program
def hmc(key, x, draws):
    """Chains whose trajectories have lengths drawn at random, some of them long."""
    leapfrogs = 0
    for i in range(draws):
        k1, k2, k3 = random.split(random.fold_in(key, i), 3)
        momentum = random.normal(k1, x.shape, x.dtype)
        new = x
        speed = momentum
        length = 1 + (6.0 * random.exponential(k2, (), jnp.float32)).astype(jnp.int32)
        for _ in range(length):
            new, speed = leapfrog(new, speed, 0.2)
        leapfrogs += length
        if jnp.log(random.uniform(k3, (), jnp.float32)) < energy(x, momentum) - energy(new, speed):
            x = new
    return x, leapfrogs


def hmc_lax(key: jax.Array, x: jax.Array, draws: jax.Array) -> Any:
    def update(i: jax.Array, state: Any) -> Any:
        x, leapfrogs = state
        k1, k2, k3 = random.split(random.fold_in(key, i), 3)
        momentum = random.normal(k1, x.shape, x.dtype)
        length = 1 + (6.0 * random.exponential(k2, (), jnp.float32)).astype(jnp.int32)
        new, speed = lax.fori_loop(0, length, lambda _, s: leapfrog(s[0], s[1], 0.2), (x, momentum))
        gain = energy(x, momentum) - energy(new, speed)
        accept = jnp.log(random.uniform(k3, (), jnp.float32)) < gain
        return jnp.where(accept, new, x), leapfrogs + length

    return lax.fori_loop(0, draws, update, (x, jnp.int32(0)))


def hmc_case(lanes: int, small: bool) -> Case:
    start = random.normal(random.key(32), (lanes, 4 if small else 16))
    arguments = (keys(33, lanes), start, np.int32(2 if small else 10))
    # A chain that meets one rounding difference at an accept step goes another way for good.
    return Case(hmc, hmc_lax, arguments, (0, 0, None), rtol=1e-2, atol=1e-2, agreement=0.95)


ENTRIES = (
    entry("rejection", reject_case, "diverges", "scalar"),
    entry("random walks", walk_case, "diverges", "scalar"),
    entry("HMC, random lengths", hmc_case, "diverges", "small"),
)
