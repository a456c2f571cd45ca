"""Chains that start near the typical set: Pathfinder (Zhang, Carpenter, Gelman and Vehtari 2022), one for each chain.

A quasi-Newton method climbs from where a chain would start. At every point on its way the gradients seen so far give a
normal approximation of the density; the one with the largest evidence lower bound (ELBO) is kept, and the chain starts
at a draw from it: not at the mode, where many dimensions have no mass. Chains climb for different numbers of steps, and
search a line different numbers of times: each is one example of a program with loops of its own.

ELBOs are estimated with a few draws. All of a climb's are from the same standard normal draws, since the largest of
independent estimates would be that of a poor approximation with a lucky estimate.

The inverse Hessian is BFGS's in product form (Brodlie, Gourlay and Greenstadt 1973): `H = J J'`, and a step `s` with
the change `y` of the gradient makes `J` into `(I + s v') J`, with `v = -y / s'y + c B s` and `c = 1 / sqrt(s'y s'Bs)`.
Since `s` is `length * H gradient`, `B s` is known without `H` or its inverse. So `J z` is a loop over pairs `(s, v)`,
the determinant is a product of `sqrt(s'Bs / s'y)`, and nothing is factorized: only `max_steps` pairs of vectors are
stored, where the paper keeps the last few pairs and factorizes their result. A step ends with one secant step along
its line, which on a normal density is the line's maximum.

Limits: a climb ends before it has seen every direction, and those it has not seen have the scale of the first step,
which is small. So draws are too close to the mode in many dimensions: for a normal density of 100 with
variances over a factor of fifty, climbs took 66 steps and draws had about two thirds of the energy that they should
have (half, by backtracking alone). Starts still need a warm-up, and are not draws from the posterior. The normal
approximation of a density with several modes is one of the mode that was climbed, and of a funnel one of its mouth.
Draws are not resampled by importance across chains (the paper's multi-path Pathfinder), since chains sample on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Float, Int

from lanewise.api.vmap import vmap
from lanewise.core.errors import OptionError
from lanewise.mcmc.samplers import must_be_count
from lanewise.mcmc.space import KEPT, Density, with_gradient
from lanewise.tracing.decorator import ProgramFunction, program

# A step is halved until it gains this share of what the slope predicts, at most this often.
GAINS, MOST_HALVINGS = 1e-4, 30
# It ends where a step gains less than this share of the density, in units of the precision.
PRECISIONS = 10.0
# A pair is kept if s'y is more than this share of the lengths' product.
CURVATURE = 1e-6
# The key of a chain's path is folded with this number: chains draw with 0 and up.
OWN = 2**31 - 7


class Normal(NamedTuple):
    """A normal approximation: its mean, and `J` by its first factor and `count` pairs of vectors."""

    mean: Float[Array, " d"]
    scale: Float[Array, ""]
    steps: Float[Array, "k d"]
    others: Float[Array, "k d"]
    log_determinant: Float[Array, ""]
    count: Int[Array, ""]


class Path(NamedTuple):
    """A climb's result: a draw from the best approximation, the approximation, its ELBO, and the number of steps."""

    position: Float[Array, " d"]
    normal: Normal
    elbo: Float[Array, ""]
    taken: Int[Array, ""]


@dataclass(frozen=True)
class Pathfinder:
    """Starts by Pathfinder from where `init`, or the model's own, starts: `mcmc.sample(..., init=Pathfinder())`.

    It climbs at most `max_steps` steps, and estimates each ELBO with `draws` draws.

    >>> Pathfinder(max_steps=50)
    Pathfinder(init=None, max_steps=50, draws=8)
    """

    init: Any = None
    max_steps: int = 200
    draws: int = 8

    def __post_init__(self) -> None:
        must_be_count("max_steps", self.max_steps, 1)
        must_be_count("draws", self.draws, 1)
        if isinstance(self.init, Pathfinder):
            raise OptionError(
                "init= of a Pathfinder must be positions or a function of a key, not another one."
            )

    def refined(self, density: Density, positions: np.ndarray, keys: Any) -> np.ndarray:
        """The new starts of chains with these positions; those whose climb fails stay."""
        found, _ = self.paths(density, positions, keys)
        fine = np.isfinite(found.position).all(axis=1) & np.isfinite(found.elbo)
        return np.where(fine[:, None], found.position, positions).astype(positions.dtype)

    def paths(self, density: Density, positions: Any, keys: Any) -> tuple[Path, Any]:
        """The climbs from positions with an axis of chains in front, on the host, and their outcomes."""
        run = vmap(path_of(density, self.max_steps, self.draws), in_axes=(0, 0), throw=False)
        own = jax.vmap(random.fold_in, (0, None))(keys, OWN)
        found, outcomes = run(own, positions)
        return jax.tree.map(np.asarray, found), outcomes


@program
def scaled(normal, z):
    """`J z`."""
    z = normal.scale * z
    row = jnp.int32(0)
    while row < normal.count:
        z = z + normal.steps[row] * (normal.others[row] @ z)
        row += 1
    return z


@program
def scaled_back(normal, z):
    """`J' z`."""
    row = normal.count
    while row > 0:
        row -= 1
        z = z + normal.others[row] * (normal.steps[row] @ z)
    return normal.scale * z


def widened(normal: Normal, step: Array, change: Array, slope: Array, keeps: Array) -> Normal:
    """The approximation with one pair more; `slope` is `B s`, `change` the gradient's loss. The mean stays."""
    curvature, stretch = step @ change, step @ slope
    safe = jnp.where(keeps, curvature * stretch, 1.0)
    over = jnp.where(keeps, curvature, 1.0)
    other = -change / over + slope / jnp.sqrt(safe)
    at = normal.count
    return normal._replace(
        steps=normal.steps.at[at].set(jnp.where(keeps, step, 0.0)),
        others=normal.others.at[at].set(jnp.where(keeps, other, 0.0)),
        log_determinant=normal.log_determinant
        + jnp.where(keeps, 0.5 * jnp.log(jnp.where(keeps, stretch / over, 1.0)), 0.0),
        count=at + keeps.astype(jnp.int32),
    )


@functools.lru_cache(KEPT)
def path_of(density: Density, max_steps: int, draws: int) -> ProgramFunction:
    """The program of one climb: from a key and a position, a `Path`."""
    valued: Callable[..., Any] = with_gradient(density)

    @program
    def elbo_of(key, normal):
        total = jnp.zeros_like(normal.scale)
        number = jnp.int32(0)
        while number < draws:
            shape, dtype = normal.mean.shape, normal.mean.dtype
            z = random.normal(random.fold_in(key, number), shape, dtype)
            value, _ = valued(normal.mean + scaled(normal, z))
            total = total + value + 0.5 * (z @ z)
            number += 1
        return total / draws + normal.log_determinant

    @program
    def path(key, position):
        dtype, size = position.dtype, position.size
        value, gradient = valued(position)
        one, zero = jnp.ones((), dtype), jnp.zeros((), dtype)
        pairs = jnp.zeros((max_steps, size), dtype)
        normal = Normal(position, one, pairs, pairs, zero, jnp.int32(0))
        mean, scale, best, log_determinant = position, one, -jnp.inf * one, zero
        used = jnp.int32(0)
        taken = jnp.int32(0)
        climbs = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
        while taken < max_steps and climbs:
            direction = scaled(normal, scaled_back(normal, gradient))
            slope = direction @ gradient
            first = 1.0 / jnp.maximum(1.0, jnp.sqrt(gradient @ gradient))
            length = jnp.where(normal.count == 0, first, 1.0).astype(dtype)
            ahead, ahead_gradient = valued(position + length * direction)
            halvings = jnp.int32(0)
            while halvings < MOST_HALVINGS and not (ahead >= value + GAINS * length * slope):
                length = 0.5 * length
                ahead, ahead_gradient = valued(position + length * direction)
                halvings += 1
            # The line's maximum if the density is quadratic along it.
            bend = slope - ahead_gradient @ direction
            share = jnp.where(bend > 0, slope / jnp.where(bend > 0, bend, 1.0), 1.0)
            secant = length * jnp.clip(share, 0.1, 10.0)
            further, further_gradient = valued(position + secant * direction)
            nearer = further > ahead
            length = jnp.where(nearer, secant, length)
            ahead = jnp.where(nearer, further, ahead)
            ahead_gradient = jnp.where(nearer, further_gradient, ahead_gradient)
            gain = ahead - value
            least = PRECISIONS * jnp.finfo(dtype).eps * jnp.maximum(1.0, jnp.abs(value))
            climbs = (gain > least) & jnp.all(jnp.isfinite(ahead_gradient))
            if climbs:
                step, change = length * direction, gradient - ahead_gradient
                curvature, bent = step @ change, change @ change
                keeps = curvature > CURVATURE * jnp.sqrt((step @ step) * bent)
                # The first pair shows how large the coordinates are: J is rescaled before it is taken.
                begins = keeps & (normal.count == 0)
                size_of = jnp.where(begins, curvature / jnp.where(bent > 0, bent, 1.0), 1.0)
                normal = normal._replace(
                    scale=normal.scale * jnp.sqrt(size_of),
                    log_determinant=normal.log_determinant + 0.5 * size * jnp.log(size_of),
                )
                normal = widened(normal, step, change, length * gradient / size_of, keeps)
                position, value, gradient = position + step, ahead, ahead_gradient
                newton = scaled(normal, scaled_back(normal, gradient))
                normal = normal._replace(mean=position + newton)
                elbo = elbo_of(key, normal)
                better = elbo > best
                mean = jnp.where(better, normal.mean, mean)
                scale = jnp.where(better, normal.scale, scale)
                used = jnp.where(better, normal.count, used)
                log_determinant = jnp.where(better, normal.log_determinant, log_determinant)
                best = jnp.where(better, elbo, best)
            taken += 1
        found = Normal(mean, scale, normal.steps, normal.others, log_determinant, used)
        z = random.normal(random.fold_in(key, draws), (size,), dtype)
        return Path(mean + scaled(found, z), found, best, taken)

    return path
