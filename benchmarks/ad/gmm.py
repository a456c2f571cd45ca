"""Gaussian mixture fitting: the gradient of a log posterior.

The function is ADBench's, with GradBench's corrections (https://github.com/gradbench/gradbench, evals/gmm):
n points in d dimensions, K Gaussians given by the logarithm of the diagonal and by the strictly lower
triangle of a factor of the precision, a Wishart prior. Points are standard normal, means uniform, all other
parameters normal, as GradBench draws them. The six sizes are those of Schenck et al. 2022. float64.

Ours moves the mean into the product: `Q (x - mu)` for all points and components is one matrix product of the
points, with a one appended, and all factors side by side. Its adjoint is one more such product, and the
points need none. Subtracting first, as the published forms do, costs a product for the difference as well.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp, multigammaln

import lanewise as lw
from ad.case import Case, Entry, Pair

Sizes = tuple[int, int, int]


def lower_triangle(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the strictly lower triangle, column by column."""
    columns, rows = np.triu_indices(d, 1)
    return rows, columns


def wishart(d: int, k: int, q: Any, lower: Any, m: Any, gamma: Any) -> Any:
    """The logarithm of the prior of all K precisions."""
    n = d + m + 1
    constant = n * d * jnp.log(gamma / math.sqrt(2.0)) - multigammaln(0.5 * n, d)
    return (
        k * constant
        - 0.5 * gamma**2 * (jnp.sum(jnp.exp(2.0 * q)) + jnp.sum(lower**2))
        + m * jnp.sum(q)
    )


def posterior(quadratic: Any, alpha: Any, q: Any, lower: Any, m: Any, gamma: Any) -> Any:
    """The log posterior, given the (n, K) quadratic forms."""
    n, k = quadratic.shape
    d = q.shape[1]
    inner = alpha + jnp.sum(q, axis=1) - 0.5 * quadratic
    likelihood = jnp.sum(logsumexp(inner, axis=1)) - n * (
        0.5 * d * math.log(2.0 * math.pi) + logsumexp(alpha)
    )
    return likelihood + wishart(d, k, q, lower, m, gamma)


# -- ours --------------------------------------------------------------------------------------------


@lw.program
def log_posterior(alpha, mu, q, lower, x, m, gamma):
    k, d = mu.shape
    rows, columns = lower_triangle(d)
    factor = jnp.zeros((k, d, d), q.dtype).at[:, rows, columns].set(lower)
    factor = factor + jnp.exp(q)[:, :, None] * jnp.eye(d, dtype=q.dtype)
    moved = jnp.einsum("kij,kj->ki", factor, mu)
    affine = jnp.concatenate([factor, -moved[:, :, None]], axis=2).reshape(k * d, d + 1)
    ones = jnp.ones((x.shape[0], 1), x.dtype)
    whitened = (jnp.concatenate([x, ones], axis=1) @ affine.T).reshape(-1, k, d)
    return posterior(jnp.sum(whitened**2, axis=2), alpha, q, lower, m, gamma)


# -- plain JAX ---------------------------------------------------------------------------------------


def log_posterior_jax(
    alpha: Any, mu: Any, q: Any, lower: Any, x: Any, m: Any, gamma: Any
) -> jax.Array:
    k, d = mu.shape
    rows, columns = lower_triangle(d)
    factor = jnp.zeros((k, d, d), q.dtype).at[:, rows, columns].set(lower)
    centred = x[:, None, :] - mu
    whitened = jnp.exp(q) * centred + jnp.einsum("kij,nkj->nki", factor, centred)
    return posterior(jnp.sum(whitened**2, axis=2), alpha, q, lower, m, gamma)


# -- PyTorch -----------------------------------------------------------------------------------------


def torch_pair(torch: Any) -> Pair:
    def primal(alpha: Any, mu: Any, q: Any, lower: Any, x: Any, m: Any, gamma: Any) -> Any:
        k, d = mu.shape
        rows, columns = (torch.as_tensor(i, device=x.device) for i in lower_triangle(d))
        factor = torch.zeros((k, d, d), dtype=q.dtype, device=q.device)
        factor[:, rows, columns] = lower
        centred = x[:, None, :] - mu
        whitened = q.exp() * centred + torch.einsum("kij,nkj->nki", factor, centred)
        inner = alpha + q.sum(1) - 0.5 * (whitened**2).sum(2)
        likelihood = inner.logsumexp(1).sum() - x.shape[0] * (
            0.5 * d * math.log(2.0 * math.pi) + alpha.logsumexp(0)
        )
        n = d + int(m) + 1
        constant = n * d * torch.log(gamma / math.sqrt(2.0)) - torch.special.multigammaln(
            torch.tensor(0.5 * n, dtype=q.dtype), d
        )
        size = 0.5 * gamma**2 * ((2.0 * q).exp().sum() + (lower**2).sum())
        return likelihood + k * constant - size + m * q.sum()

    def gradient(alpha: Any, mu: Any, q: Any, lower: Any, x: Any, m: Any, gamma: Any) -> Any:
        wanted = [y.clone().requires_grad_() for y in (alpha, mu, q, lower)]
        return torch.autograd.grad(primal(*wanted, x, m, gamma), wanted)

    return Pair(primal, gradient)


# -- data --------------------------------------------------------------------------------------------


def data(n: int, d: int, k: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(31337)
    x = rng.normal(size=(n, d))
    alpha, mu, q = rng.normal(size=k), rng.uniform(size=(k, d)), rng.normal(size=(k, d))
    lower = rng.normal(size=(k, d * (d - 1) // 2))
    return alpha, mu, q, lower, x, np.int64(0), np.float64(1.0)


def entry(sizes: Sizes, large: bool = False) -> Entry:
    n, d, k = sizes

    def case(small: bool) -> Case:
        return Case(
            Pair(log_posterior, jax.grad(log_posterior, argnums=(0, 1, 2, 3))),
            Pair(log_posterior_jax, jax.grad(log_posterior_jax, argnums=(0, 1, 2, 3))),
            torch_pair,
            data(9, 4, 3) if small else data(n, d, k),
            double=True,
            rtol=1e-6,
            atol=1e-9,
        )

    return Entry(f"GMM {n // 1000}k d{d} K{k}", "", case, "<= 2.5", large=large)


# The last one's intermediate arrays are 2 GiB each, of which the published forms have several.
ENTRIES = (
    entry((1000, 64, 200)),
    entry((1000, 128, 200)),
    entry((10000, 32, 200)),
    entry((10000, 64, 25)),
    entry((10000, 128, 25)),
    entry((10000, 128, 200), large=True),
)
