"""The No-U-Turn sampler in its textbook form: a recursion, for one chain.

A draw grows a trajectory by doubling, forwards or backwards in time, until its ends begin to come back towards each
other or the integrator fails; a point of it is drawn with weight exp(-energy). Hoffman and Gelman (2014) gave the
recursion. Points are drawn by multinomial weights and the later half is preferred (Betancourt 2017); the criterion is
the generalized one, on the sum of momenta (Betancourt 2013), also tested across the seam of two halves, as Stan does
since 2.21: a trajectory that went once around would pass the first test alone.

There is no mass matrix here: the sampler runs in whitened coordinates (`space.py`), in which it is the identity.

It neither adapts (`adapt.py`) nor uses other chains. The machine runs many chains at once, each at its own depth of its
own tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Bool, Float, Int, Key

from lanewise.core.errors import OptionError
from lanewise.mcmc.samplers import DIVERGED, Info, must_be_share
from lanewise.mcmc.space import Density, Place, Point, Space, energy, leapfrog
from lanewise.tracing.decorator import program

GREATEST_DEPTH = 20


class Tree(NamedTuple):
    """A stretch of trajectory, in the direction of its growth."""

    first: Float[Array, " d"]  # momentum at the end it was begun from
    last: Point
    momenta: Float[Array, " d"]  # their sum
    drawn: Place  # by the weights of its points
    log_weight: Float[Array, ""]
    acceptance: Float[Array, ""]  # sum over points of min(1, exp(energy lost))
    points: Int[Array, ""]  # steps taken
    turning: Bool[Array, ""]
    diverging: Bool[Array, ""]


def turns(
    momenta: Float[Array, " d"], first: Float[Array, " d"], last: Float[Array, " d"]
) -> Bool[Array, ""]:
    """Whether either end of a stretch has begun to come back, its momenta summing to `momenta`."""
    return (first @ momenta <= 0.0) | (last @ momenta <= 0.0)


def leaf(density: Density, space: Space, start: Point, step: Array, before: Array) -> Tree:
    """One step beyond `start`."""
    point = leapfrog(density, space, start, step)
    gain = before - energy(point)
    gain = jnp.where(jnp.isnan(gain), -jnp.inf, gain)
    return Tree(
        first=point.momentum,
        last=point,
        momenta=point.momentum,
        drawn=point.place,
        log_weight=gain,
        acceptance=jnp.exp(jnp.minimum(gain, 0.0)),
        points=jnp.int32(1),
        turning=jnp.array(False),
        diverging=gain < -DIVERGED,
    )


def begun(point: Point) -> Tree:
    """The tree of the point a draw begins at; it has taken no step yet."""
    zero = jnp.zeros_like(point.place.logdensity)
    return Tree(
        first=point.momentum,
        last=point,
        momenta=point.momentum,
        drawn=point.place,
        log_weight=zero,
        acceptance=zero,
        points=jnp.int32(0),
        turning=jnp.array(False),
        diverging=jnp.array(False),
    )


def stopped(tree: Tree, more: Tree) -> Tree:
    """A tree that found `more` to turn or diverge, and may draw none of its points."""
    return tree._replace(
        acceptance=tree.acceptance + more.acceptance,
        points=tree.points + more.points,
        turning=more.turning,
        diverging=more.diverging,
    )


def joined(near: Tree, far: Tree, prefers_far: Bool[Array, ""]) -> Tree:
    """Two adjacent stretches as one."""
    momenta = near.momenta + far.momenta
    turning = (
        turns(momenta, near.first, far.last.momentum)
        | turns(near.momenta + far.first, near.first, far.first)
        | turns(far.momenta + near.last.momentum, near.last.momentum, far.last.momentum)
    )
    return Tree(
        first=near.first,
        last=far.last,
        momenta=momenta,
        drawn=jax.tree.map(lambda n, f: jnp.where(prefers_far, f, n), near.drawn, far.drawn),
        log_weight=jnp.logaddexp(near.log_weight, far.log_weight),
        acceptance=near.acceptance + far.acceptance,
        points=near.points + far.points,
        turning=near.turning | far.turning | turning,
        diverging=near.diverging | far.diverging,
    )


def chance(key: Key[Array, ""], number: Int[Array, ""]) -> Float[Array, ""]:
    return random.uniform(random.fold_in(key, number), (), jnp.float32)


@program(static_argnames=("density",))
def grow(density, space, key, start, step, before, number, depth):
    """The stretch of 2**depth points beyond `start`, or as far as it goes straight."""
    if depth == 0:
        return leaf(density, space, start, step, before)
    near = grow(density, space, key, start, step, before, number, depth - 1)
    if near.turning or near.diverging:
        return near
    far = grow(density, space, key, near.last, step, before, number + near.points, depth - 1)
    prefers_far = jnp.array(False)
    if not (far.turning or far.diverging):
        share = jnp.exp(far.log_weight - jnp.logaddexp(near.log_weight, far.log_weight))
        prefers_far = chance(key, 32 * number + depth) < share
    return joined(near, far, prefers_far)


@dataclass(frozen=True)
class NUTS:
    """The No-U-Turn sampler; a trajectory has at most `2**max_depth` points.

    >>> NUTS(max_depth=8)
    NUTS(max_depth=8, target_accept=0.8)
    """

    max_depth: int = 10
    target_accept: float = 0.8

    def __post_init__(self) -> None:
        if not 1 <= self.max_depth <= GREATEST_DEPTH:
            raise OptionError(f"max_depth={self.max_depth} must be from 1 to {GREATEST_DEPTH}.")
        must_be_share("target_accept", self.target_accept)

    def draw(
        self, density: Density, space: Space, key: Key[Array, ""], place: Place, step: Array
    ) -> tuple[Place, Info]:
        return draw(density, space, key, place, step, self.max_depth)


@program(static_argnames=("density", "max_depth"))
def draw(density, space, key, place, step, max_depth):
    """The next place of a chain, and the statistics of the draw."""
    momentum_key, tree_key = random.split(key)
    momentum = random.normal(momentum_key, place.position.shape, place.position.dtype)
    tail = Point(place, momentum)
    before = energy(tail)
    tree = begun(tail)
    depth = jnp.int32(0)
    while depth < max_depth and not (tree.turning or tree.diverging):
        if chance(tree_key, depth) < 0.5:  # turn round, to grow at the other end
            tree, tail, step = tree._replace(first=tree.last.momentum, last=tail), tree.last, -step
        more = grow(density, space, tree_key, tree.last, step, before, tree.points + 1, depth)
        if more.turning or more.diverging:
            tree = stopped(tree, more)
        else:
            share = jnp.exp(more.log_weight - tree.log_weight)
            tree = joined(tree, more, chance(tree_key, 32 * tree.points + 31) < share)
        depth += 1
    info = Info(tree.acceptance / tree.points, before, depth, tree.points, tree.diverging)
    return tree.drawn, info
