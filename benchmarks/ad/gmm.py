"""Gaussian mixture fitting: the gradient of a log posterior.

The function is ADBench's, with GradBench's corrections (https://github.com/gradbench/gradbench, evals/gmm):
n points in d dimensions, K Gaussians given by the logarithm of the diagonal and by the strictly lower
triangle of a factor of the precision, a Wishart prior. Points are standard normal, means uniform, all other
parameters normal, as GradBench draws them. The six sizes are those of Schenck et al. 2022. float64.

Two forms, each in all systems. The first moves the mean into the product: `Q (x - mu)` for all points and components is
one matrix product of the points, with a one appended, and all factors side by side. Its adjoint is one more such
product, and the points need none. Subtracting first, as the published form does, costs a product for the difference
too.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp, multigammaln

import lanewise as lw
from ad.case import Case, Entry, Pair, Torch, by_autograd

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


def affine_posterior(
    alpha: Any, mu: Any, q: Any, lower: Any, x: Any, m: Any, gamma: Any
) -> jax.Array:
    k, d = mu.shape
    rows, columns = lower_triangle(d)
    factor = jnp.zeros((k, d, d), q.dtype).at[:, rows, columns].set(lower)
    factor = factor + jnp.exp(q)[:, :, None] * jnp.eye(d, dtype=q.dtype)
    moved = jnp.einsum("kij,kj->ki", factor, mu)
    affine = jnp.concatenate([factor, -moved[:, :, None]], axis=2).reshape(k * d, d + 1)
    ones = jnp.ones((x.shape[0], 1), x.dtype)
    whitened = (jnp.concatenate([x, ones], axis=1) @ affine.T).reshape(-1, k, d)
    return posterior(jnp.sum(whitened**2, axis=2), alpha, q, lower, m, gamma)


def published_posterior(
    alpha: Any, mu: Any, q: Any, lower: Any, x: Any, m: Any, gamma: Any
) -> jax.Array:
    k, d = mu.shape
    rows, columns = lower_triangle(d)
    factor = jnp.zeros((k, d, d), q.dtype).at[:, rows, columns].set(lower)
    centred = x[:, None, :] - mu
    whitened = jnp.exp(q) * centred + jnp.einsum("kij,nkj->nki", factor, centred)
    return posterior(jnp.sum(whitened**2, axis=2), alpha, q, lower, m, gamma)


# Straight-line code: ours is plain JAX's as a program, with our rules of differentiation.
log_posterior = lw.lift(affine_posterior)
log_posterior_published = lw.lift(published_posterior)


# -- PyTorch -----------------------------------------------------------------------------------------


def torch_pair(torch: Any, compile: Any, published: bool) -> Torch:
    def quadratic(mu: Any, q: Any, lower: Any, x: Any) -> Any:
        k, d = mu.shape
        rows, columns = indices(x.device, d)
        factor = torch.zeros((k, d, d), dtype=q.dtype, device=q.device)
        factor[:, rows, columns] = lower
        if published:
            centred = x[:, None, :] - mu
            whitened = q.exp() * centred + torch.einsum("kij,nkj->nki", factor, centred)
            return (whitened**2).sum(2)
        factor = factor + torch.diag_embed(q.exp())
        moved = torch.einsum("kij,kj->ki", factor, mu)
        whitened = torch.addmm(-moved.reshape(-1), x, factor.reshape(k * d, d).T)
        return (whitened**2).reshape(-1, k, d).sum(2)

    @functools.cache
    def indices(device: Any, d: int) -> tuple[Any, Any]:
        rows, columns = (torch.as_tensor(i, device=device) for i in lower_triangle(d))
        return rows, columns

    def primal(alpha: Any, mu: Any, q: Any, lower: Any, x: Any, m: float, gamma: Any) -> Any:
        k, d = mu.shape
        inner = alpha + q.sum(1) - 0.5 * quadratic(mu, q, lower, x)
        likelihood = inner.logsumexp(1).sum() - x.shape[0] * (
            0.5 * d * math.log(2.0 * math.pi) + alpha.logsumexp(0)
        )
        n = d + m + 1
        constant = n * d * torch.log(gamma / math.sqrt(2.0)) - torch.special.multigammaln(
            torch.full((), 0.5 * n, dtype=q.dtype, device=q.device), d
        )
        size = 0.5 * gamma**2 * ((2.0 * q).exp().sum() + (lower**2).sum())
        return likelihood + k * constant - size + m * q.sum()

    def prepare(alpha: Any, mu: Any, q: Any, lower: Any, x: Any, m: Any, gamma: Any) -> Any:
        indices(x.device, mu.shape[1])
        return alpha, mu, q, lower, x, float(m), gamma

    made = by_autograd(torch, compile(primal), (0, 1, 2, 3))
    return replace(made, prepare=prepare)


# -- data --------------------------------------------------------------------------------------------


def data(n: int, d: int, k: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(31337)
    x = rng.normal(size=(n, d))
    alpha, mu, q = rng.normal(size=k), rng.uniform(size=(k, d)), rng.normal(size=(k, d))
    lower = rng.normal(size=(k, d * (d - 1) // 2))
    return alpha, mu, q, lower, x, np.int64(0), np.float64(1.0)


def entry(sizes: Sizes, published: bool = False, large: bool = False) -> Entry:
    n, d, k = sizes

    def case(small: bool) -> Case:
        ours = log_posterior_published if published else log_posterior
        peer = published_posterior if published else affine_posterior
        return Case(
            Pair(ours, jax.grad(ours, argnums=(0, 1, 2, 3))),
            Pair(peer, jax.grad(peer, argnums=(0, 1, 2, 3))),
            functools.partial(torch_pair, published=published),
            data(9, 4, 3) if small else data(n, d, k),
            double=True,
            rtol=1e-6,
            atol=1e-9,
        )

    form = ", published" if published else ""
    return Entry(f"GMM {n // 1000}k d{d} K{k}{form}", "", case, "<= 2.5", large=large)


# The last one's intermediate arrays are 2 GiB each, of which the published form has several.
ENTRIES = (
    entry((1000, 64, 200)),
    entry((1000, 64, 200), published=True),
    entry((1000, 128, 200)),
    entry((10000, 32, 200)),
    entry((10000, 64, 25)),
    entry((10000, 64, 25), published=True),
    entry((10000, 128, 25)),
    entry((10000, 128, 200), large=True),
)
