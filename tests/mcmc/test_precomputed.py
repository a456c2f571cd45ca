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
