"""k-means by Newton's method: the gradient and the diagonal of the Hessian of the clustering cost.

The cost is the sum over points of the squared distance to the nearest of k centroids; its Hessian has nothing
off the diagonal, so one `jvp` of the gradient, along ones, gives all of it. Sizes (k, n, d) and the form of the
peers are those of Schenck et al. 2022 (k-means on KDD Cup data, and random points); here all points are uniform,
and centroids are the last k points. float32.

Two forms, each in all systems. In the first, which centroid is nearest is an integer and has no derivative; a
cluster's points enter the cost through their number and their sum alone, which are two histograms; the cost is then a
polynomial in the centroids, and both derivatives cost next to nothing. The published form takes the minimum of all
distances, whose adjoint is an (n, k) array and a matrix product, twice.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from ad.case import Case, Entry, Pair, Torch
from lanewise import arrays

BLOCK = 32


def newton(cost: Any) -> Any:
    """The gradient and the Hessian's diagonal in the first argument."""

    def both(centroids: Any, *rest: Any) -> Any:
        slope = jax.grad(lambda centroids: cost(centroids, *rest))
        return jax.jvp(slope, (centroids,), (jnp.ones_like(centroids),))

    return both


# -- ours --------------------------------------------------------------------------------------------


def least(scores: Any) -> jax.Array:
    """Where the least of each row is. The least of blocks first, then the place within one.

    XLA finds a minimum several times as fast as its place; with blocks, little is left to be placed.
    """
    rows, columns = scores.shape
    if columns % BLOCK or columns <= BLOCK:
        return jnp.argmin(scores, axis=1)
    blocks = scores.reshape(rows, columns // BLOCK, BLOCK)
    block = jnp.argmin(jnp.min(blocks, axis=2), axis=1)
    within = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    return block * BLOCK + jnp.argmin(within, axis=1)


def nearest(centroids: Any, points: Any) -> jax.Array:
    centroids = lax.stop_gradient(centroids)
    return least(jnp.sum(centroids**2, axis=1) - 2.0 * (points @ centroids.T))


def of_each(own: Any, points: Any, k: int) -> tuple[Any, Any]:
    """The sum and the number of each cluster's points: by a product where clusters are few."""
    if k <= BLOCK:
        member = (own[None, :] == jnp.arange(k)[:, None]).astype(points.dtype)
        return member @ points, jnp.sum(member, axis=1)
    ones = jnp.ones(points.shape[0], points.dtype)
    return arrays.histogram(jnp.add, own, points, k), arrays.histogram(jnp.add, own, ones, k)


def cost(centroids: Any, points: Any) -> jax.Array:
    sums, counts = of_each(nearest(centroids, points), points, centroids.shape[0])
    of_clusters = jnp.sum(counts[:, None] * centroids**2 - 2.0 * centroids * sums)
    return jnp.sum(points**2) + of_clusters


@lw.program
def cost_published(centroids, points):
    squares = jnp.sum(points**2, axis=1)[None, :] + jnp.sum(centroids**2, axis=1)[:, None]
    distances = squares - 2.0 * (points @ centroids.T).T
    return arrays.reduce(jnp.add, jnp.min(distances, axis=0))


# -- plain JAX ---------------------------------------------------------------------------------------


def cost_jax(centroids: Any, points: Any) -> jax.Array:
    k = centroids.shape[0]
    own = nearest(centroids, points)
    if k <= BLOCK:
        member = jax.nn.one_hot(own, k, axis=0, dtype=points.dtype)
        sums, counts = member @ points, jnp.sum(member, axis=1)
    else:
        sums = jax.ops.segment_sum(points, own, k)
        counts = jnp.bincount(own, length=k).astype(points.dtype)
    of_clusters = jnp.sum(counts[:, None] * centroids**2 - 2.0 * centroids * sums)
    return jnp.sum(points**2) + of_clusters


def cost_published_jax(centroids: Any, points: Any) -> jax.Array:
    squares = jnp.sum(points**2, axis=1)[None, :] + jnp.sum(centroids**2, axis=1)[:, None]
    return jnp.sum(jnp.min(squares - 2.0 * (points @ centroids.T).T, axis=0))


# -- PyTorch -----------------------------------------------------------------------------------------


def torch_newton(torch: Any, compile: Any, cost: Any) -> Torch:
    def gradient(centroids: Any, *rest: Any) -> Any:
        slope = torch.func.grad(lambda centroids: cost(centroids, *rest))
        return torch.func.jvp(slope, (centroids,), (torch.ones_like(centroids),))

    return Torch(compile(cost), compile(gradient))


def torch_pair(torch: Any, compile: Any) -> Torch:
    def cost(centroids: Any, points: Any) -> Any:
        k, fixed = centroids.shape[0], centroids.detach()
        own = ((fixed**2).sum(1) - 2.0 * (points @ fixed.T)).argmin(1)
        if k <= BLOCK:
            member = (own[None, :] == torch.arange(k, device=own.device)[:, None]).to(points.dtype)
            sums, counts = member @ points, member.sum(1)
        else:
            sums = torch.zeros_like(fixed).index_add(0, own, points)
            counts = torch.bincount(own, minlength=k).to(points.dtype)
        of_clusters = (counts[:, None] * centroids**2 - 2.0 * centroids * sums).sum()
        return (points**2).sum() + of_clusters

    return torch_newton(torch, compile, cost)


def torch_published(torch: Any, compile: Any) -> Torch:
    def cost(centroids: Any, points: Any) -> Any:
        squares = (points**2).sum(1)[None, :] + (centroids**2).sum(1)[:, None]
        return (squares - 2.0 * (centroids @ points.T)).min(0).values.sum()

    return torch_newton(torch, compile, cost)


# -- data --------------------------------------------------------------------------------------------


def data(k: int, n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    points = np.random.default_rng(5).random((n, d), dtype=np.float32)
    return points[-k:][::-1].copy(), points


def by_hand(centroids: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Twice the number of a cluster's points times its centroid, less their sum; twice their number."""
    distances = np.sum(centroids**2, 1) - 2.0 * points @ centroids.T
    own = np.argmin(distances, axis=1)
    counts = np.bincount(own, minlength=len(centroids)).astype(np.float64)[:, None]
    sums = np.zeros(centroids.shape)
    np.add.at(sums, own, points)
    return 2.0 * (counts * centroids - sums), np.broadcast_to(2.0 * counts, centroids.shape)


def entry(k: int, n: int, d: int, published: bool) -> Entry:
    def case(small: bool) -> Case:
        ours, jax_ = (cost_published, cost_published_jax) if published else (cost, cost_jax)
        return Case(
            Pair(ours, newton(ours)),
            Pair(jax_, newton(jax_)),
            torch_published if published else torch_pair,
            data(64, 300, 5) if small else data(k, n, d),
            reference=by_hand,
            rtol=1e-2,
            atol=1e-3,
            # A point between two centroids goes to either, as rounding has it.
            agreement=0.98,
        )

    form = ", published" if published else ""
    target = "<= 4" if published else "<= 2"
    return Entry(f"k-means k{k}{form}", f"n {n:,}, d {d}", case, target)


ENTRIES = tuple(
    entry(*sizes, published)
    for sizes in ((5, 494_019, 35), (1024, 10_000, 256))
    for published in (False, True)
)
