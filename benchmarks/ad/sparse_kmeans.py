"""Sparse k-means: the same derivatives where points are rows of a sparse matrix.

Schenck et al. 2022 run k = 10 on the MovieLens, NYTimes and scRNA matrices in compressed rows; here the matrix is
made up with the shape of MovieLens 1M: 6,040 rows of 3,706 columns with 1,000,209 ratings from one to five, row
lengths from a log-normal law. float32.

Ours visits a row as plain Python would, one entry after another, each row as long as it is: a program
whose lanes are rows. Clusters then enter the cost by their histograms, as in the dense one, in all systems.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from ad.case import Case, Entry, Pair, Torch
from ad.kmeans import newton
from lanewise import arrays

# -- ours --------------------------------------------------------------------------------------------


@lw.program
def nearest(begin, end, values, columns, table, squares):
    """The centroid nearest to one row; `table` has all centroids' entries of a column together."""
    scores = squares
    for j in range(begin, end):
        scores = scores - 2.0 * values[j] * table[columns[j]]
    return jnp.argmin(scores)


def cost(centroids: Any, values: Any, columns: Any, rows: Any, starts: Any) -> jax.Array:
    k, width = centroids.shape
    fixed = lax.stop_gradient(centroids)
    own = lw.vmap(nearest, in_axes=(0, 0, None, None, None, None))(
        starts[:-1], starts[1:], values, columns, fixed.T, jnp.sum(fixed**2, axis=1)
    )
    sums = arrays.histogram(jnp.add, own[rows] * width + columns, values, k * width)
    counts = arrays.histogram(jnp.add, own, jnp.ones(own.shape, values.dtype), k)
    of_clusters = counts[:, None] * centroids**2 - 2.0 * centroids * sums.reshape(k, width)
    return jnp.sum(values**2) + jnp.sum(of_clusters)


# -- plain JAX ---------------------------------------------------------------------------------------


def cost_jax(centroids: Any, values: Any, columns: Any, rows: Any, starts: Any) -> jax.Array:
    (k, width), n = centroids.shape, starts.shape[0] - 1
    fixed = lax.stop_gradient(centroids)
    products = jax.ops.segment_sum(
        values[:, None] * fixed.T[columns], rows, n, indices_are_sorted=True
    )
    own = jnp.argmin(jnp.sum(fixed**2, axis=1) - 2.0 * products, axis=1)
    sums = jax.ops.segment_sum(values, own[rows] * width + columns, k * width)
    counts = jnp.bincount(own, length=k).astype(values.dtype)
    of_clusters = counts[:, None] * centroids**2 - 2.0 * centroids * sums.reshape(k, width)
    return jnp.sum(values**2) + jnp.sum(of_clusters)


# -- PyTorch -----------------------------------------------------------------------------------------


def torch_pair(torch: Any, compile: Any) -> Torch:
    def cost(centroids: Any, values: Any, columns: Any, rows: Any, points: Any) -> Any:
        (k, width), fixed = centroids.shape, centroids.detach()
        own = ((fixed**2).sum(1) - 2.0 * (points @ fixed.T)).argmin(1)
        place = own[rows] * width + columns
        sums = torch.zeros(k * width, device=values.device).index_add(0, place, values)
        counts = torch.bincount(own, minlength=k).to(values.dtype)
        of_clusters = counts[:, None] * centroids**2 - 2.0 * centroids * sums.reshape(k, width)
        return (values**2).sum() + of_clusters.sum()

    def prepare(centroids: Any, values: Any, columns: Any, rows: Any, starts: Any) -> list[Any]:
        shape = (starts.shape[0] - 1, centroids.shape[1])
        # Its product of sparse matrices takes indices of 32 bits.
        indices = starts.int(), columns.int()
        points = torch.sparse_csr_tensor(*indices, values, shape, check_invariants=False)
        return [centroids, values, columns, rows, points]

    def gradient(centroids: Any, *rest: Any) -> Any:
        (slope,) = torch.autograd.grad(cost(centroids, *rest), centroids, create_graph=True)
        (diagonal,) = torch.autograd.grad(slope.sum(), centroids)
        return slope.detach(), diagonal

    return Torch(cost, gradient, (0,), prepare)


# -- data --------------------------------------------------------------------------------------------


def data(n: int, width: int, entries: int, k: int = 10) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(6)
    shares = rng.lognormal(0.0, 1.0, n)
    lengths = np.clip(shares / shares.sum() * entries, 1, width).astype(np.int64)
    columns = np.concatenate([np.sort(rng.choice(width, m, replace=False)) for m in lengths])
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    rows = np.repeat(np.arange(n), lengths).astype(np.int32)
    values = rng.integers(1, 6, columns.shape[0]).astype(np.float32)
    centroids = np.zeros((k, width), np.float32)
    for j in range(k):
        own = slice(starts[j], starts[j + 1])
        centroids[j, columns[own]] = values[own]
    return centroids, values, columns.astype(np.int32), rows, starts


def by_hand(
    centroids: np.ndarray, values: np.ndarray, columns: np.ndarray, rows: np.ndarray, starts: Any
) -> tuple[np.ndarray, np.ndarray]:
    scores = np.zeros((len(starts) - 1, len(centroids)))
    np.add.at(scores, rows, values[:, None] * centroids.T[columns])
    own = np.argmin(np.sum(centroids**2, 1) - 2.0 * scores, axis=1)
    sums = np.zeros(centroids.shape)
    np.add.at(sums, (own[rows], columns), values)
    counts = np.bincount(own, minlength=len(centroids)).astype(np.float64)[:, None]
    return 2.0 * (counts * centroids - sums), np.broadcast_to(2.0 * counts, centroids.shape)


def case(small: bool) -> Case:
    return Case(
        Pair(cost, newton(cost)),
        Pair(cost_jax, newton(cost_jax)),
        torch_pair,
        data(40, 25, 300, 4) if small else data(6040, 3706, 1_000_209),
        compiles=False,  # it has no sparse matrices
        reference=by_hand,
        rtol=1e-2,
        atol=1e-3,
        agreement=0.98,
    )


ENTRIES = (Entry("sparse k-means k10", "6,040 x 3,706, 1M", case, "<= 2"),)
