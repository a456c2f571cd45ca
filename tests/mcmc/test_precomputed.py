"""What a density computes from constants alone is computed once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

from lanewise.mcmc.precomputed import precomputed

COVARIANCE = np.array([[2.0, 0.3], [0.3, 1.0]], np.float32)


def normal(x: Any) -> Any:
    factor = jnp.linalg.cholesky(jnp.asarray(COVARIANCE) + jnp.eye(2))
    return -0.5 * (jax.scipy.linalg.solve_triangular(factor, x, lower=True) ** 2).sum()


def test_a_factor_of_data_is_made_when_the_density_is_traced() -> None:
    x = jnp.array([0.4, -1.2])
    text = str(jax.make_jaxpr(jax.value_and_grad(precomputed(normal)))(x))
    # The solve has the position in it and stays.
    assert "cholesky" not in text and "triangular_solve" in text
    for found, wanted in zip(
        jax.jit(jax.value_and_grad(precomputed(normal)))(x), jax.value_and_grad(normal)(x)
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_what_is_traced_or_cheap_stays() -> None:
    def value(x: Any, matrix: Any) -> Any:
        return precomputed(lambda x: (jnp.linalg.cholesky(matrix) @ x).sum() + jnp.arange(9).sum())(
            x
        )

    text = str(jax.make_jaxpr(value)(jnp.ones(2), COVARIANCE))
    assert "cholesky" in text and "iota" in text
    np.testing.assert_allclose(
        jax.jit(value)(jnp.ones(2), COVARIANCE),
        np.linalg.cholesky(COVARIANCE).sum() + 36,
        rtol=1e-5,
    )


def test_functions_of_data_and_their_sums_are_taken_when_the_density_is_traced() -> None:
    counts = np.arange(50.0, dtype=np.float32)

    def poisson(x: Any) -> Any:
        return (counts * x - jnp.exp(x)).sum() - jax.scipy.special.gammaln(counts + 1.0).sum()

    text = str(jax.make_jaxpr(precomputed(poisson))(0.3))
    assert "lgamma" not in text and "exp" in text
    # The sum of the factorials is one number; that of what the position is in stays.
    assert text.count("reduce_sum") == 1
    np.testing.assert_allclose(precomputed(poisson)(0.3), poisson(0.3), rtol=1e-6)


def test_a_density_of_constants_alone_is_one_number() -> None:
    value = precomputed(lambda x: jnp.log(jnp.arange(1.0, 20.0)).sum())
    np.testing.assert_allclose(jax.jit(value)(0.0), np.log(np.arange(1.0, 20.0)).sum(), rtol=1e-6)


def test_a_narrow_matrix_of_data_is_kept_by_columns() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    x = jnp.array([0.4, -1.2, 0.3])
    for density in (lambda x: ((rows @ x) ** 2).sum(), lambda x: ((x @ rows.T) ** 2).sum()):
        text = str(jax.make_jaxpr(precomputed(density))(x))
        assert "f32[40,3]" not in text and "f32[3,40]" in text
        for found, wanted in zip(
            jax.value_and_grad(precomputed(density))(x), jax.value_and_grad(density)(x)
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
    # A square one is not narrow, and keeps its layout.
    assert "f32[40,40]" in str(
        jax.make_jaxpr(precomputed(lambda x: (rows @ rows.T @ x).sum()))(jnp.ones(40))
    )
