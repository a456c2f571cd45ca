"""NUTS as it is written by hand for `jax.vmap`: the peer of the demonstration, not a sampler of the library.

A batch under `jax.vmap` cannot recurse, so the tree is built by a loop over its leaves, which keeps one momentum and one
sum of momenta for each level and compares with those of the subtrees that a leaf completes (Phan, Pradhan and
Jankowiak 2019, "Composable effects for flexible and accelerated probabilistic programming in NumPyro", appendix; Lao
and Dillon 2019). NumPyro and TensorFlow Probability sample this way. It is the same algorithm as `nuts.py` but for one
more check there, across the seam of two halves. Chains are in step: each draw takes as long as the longest trajectory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random
from jaxtyping import Array

DIVERGED = 1000.0


class Point(NamedTuple):
    position: Array
    momentum: Array
    value: Array
    gradient: Array


class Tree(NamedTuple):
    """A trajectory: its ends, the sum of its momenta, and the point that is drawn of it."""

    left: Point
    right: Point
    momenta: Array
    drawn: Point
    log_weight: Array
    points: Array
    stops: Array


def in_step(
    density: Callable[[Array], Array], draws: int, max_depth: int = 10
) -> Callable[..., tuple[Array, Array]]:
    """A function of keys, starts and a step size, which gives the draws of all chains and their numbers of gradients."""
    valued = jax.value_and_grad(density)

    def chain(key: Array, start: Array, step: Array) -> tuple[Array, Array]:
        def draw(point: Point, key: Array) -> tuple[Point, tuple[Array, Array]]:
            tree = _tree(valued, key, point, step, max_depth)
            return tree.drawn, (tree.drawn.position, tree.points)

        first = Point(start, jnp.zeros_like(start), *valued(start))
        return lax.scan(draw, first, random.split(key, draws))[1]

    return jax.jit(jax.vmap(chain, in_axes=(0, 0, None)))


def _energy(point: Point) -> Array:
    return 0.5 * point.momentum @ point.momentum - point.value


def _leapfrog(valued: Any, point: Point, step: Array) -> Point:
    half = point.momentum + 0.5 * step * point.gradient
    position = point.position + step * half
    value, gradient = valued(position)
    return Point(position, half + 0.5 * step * gradient, value, gradient)


def _turns(one: Array, other: Array, momenta: Array) -> Array:
    return (one @ momenta <= 0.0) | (other @ momenta <= 0.0)


def _choose(which: Array, one: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(which, a, b), one, other)


def _tree(valued: Any, key: Array, point: Point, step: Array, max_depth: int) -> Tree:
    """The whole trajectory of a draw, by doubling."""
    momentum_key, key = random.split(key)
    point = point._replace(momentum=random.normal(momentum_key, point.position.shape))
    before = _energy(point)
    zero, never = jnp.zeros_like(before), jnp.array(False)
    tree = Tree(point, point, point.momentum, point, zero, jnp.int32(0), never)

    def doubled(state: tuple[Tree, Array]) -> tuple[Tree, Array]:
        tree, depth = state
        way, inside, choice = random.split(random.fold_in(key, depth), 3)
        right = random.bernoulli(way)
        start, signed = _choose(right, tree.right, tree.left), jnp.where(right, step, -step)
        more = _subtree(valued, inside, start, signed, before, depth, max_depth)
        taken = ~more.stops & (jnp.log(random.uniform(choice)) < more.log_weight - tree.log_weight)
        left_end, right_end = (
            _choose(right, tree.left, more.right),
            _choose(right, more.right, tree.right),
        )
        momenta = tree.momenta + more.momenta
        return Tree(
            left_end,
            right_end,
            momenta,
            _choose(taken, more.drawn, tree.drawn),
            jnp.logaddexp(tree.log_weight, more.log_weight),
            tree.points + more.points,
            more.stops | _turns(left_end.momentum, right_end.momentum, momenta),
        ), depth + 1

    going = lambda state: ~state[0].stops & (state[1] < max_depth)  # noqa: E731
    return lax.while_loop(going, doubled, (tree, jnp.int32(0)))[0]


def _subtree(
    valued: Any,
    key: Array,
    start: Point,
    step: Array,
    before: Array,
    depth: Array,
    max_depth: int,
) -> Tree:
    """`2**depth` points beyond `start`, or as many as it takes to stop; `right` is the last."""
    kept = jnp.zeros((max_depth, start.position.size), start.position.dtype)
    lowest, nothing = jnp.full_like(before, -jnp.inf), jnp.zeros_like(start.momentum)
    empty = Tree(start, start, nothing, start, lowest, jnp.int32(0), jnp.array(False))

    def stepped(state: tuple[Tree, Array, Array]) -> tuple[Tree, Array, Array]:
        tree, firsts, sums = state
        number = tree.points
        point = _leapfrog(valued, tree.right, step)
        gain = before - _energy(point)
        gain = jnp.where(jnp.isnan(gain), -jnp.inf, gain)
        log_weight = jnp.logaddexp(tree.log_weight, gain)
        taken = jnp.log(random.uniform(random.fold_in(key, number))) < gain - log_weight
        momenta = tree.momenta + point.momentum
        level = lax.population_count(number >> 1)
        even = number % 2 == 0
        firsts = jnp.where(even, firsts.at[level].set(point.momentum), firsts)
        sums = jnp.where(even, sums.at[level].set(momenta), sums)
        # A leaf completes as many subtrees as its number ends in ones.
        lowest_level = level - lax.population_count((number ^ (number + 1)) >> 1) + 1

        def asked(state: tuple[Array, Array]) -> tuple[Array, Array]:
            at, _ = state
            across = momenta - sums[at] + firsts[at]
            return at - 1, _turns(firsts[at], point.momentum, across)

        asking = lambda state: (state[0] >= lowest_level) & ~state[1]  # noqa: E731
        turning = lax.while_loop(asking, asked, (level, jnp.array(False)))[1]
        drawn = _choose(taken, point, tree.drawn)
        stops = turning | (gain < -DIVERGED)
        grown = Tree(tree.left, point, momenta, drawn, log_weight, number + 1, stops)
        return grown, firsts, sums

    going = lambda state: ~state[0].stops & (state[0].points < 2**depth)  # noqa: E731
    return lax.while_loop(going, stepped, (empty, kept, kept))[0]
