"""Where a job runs decides, not which backend is the default: a machine with a stand-in for a GPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise import mcmc
from lanewise.core.profile import CPU, GPU, profile_of
from lanewise.job.job import Job
from lanewise.plan import choose
from programs.small import fib
from seeing import forget_plans


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that are planned, on a machine whose default backend is said to be a GPU."""
    planned: list[Job] = []
    real = choose._decided

    def seen(job: Job, **how: Any) -> Any:
        planned.append(job)
        return real(job, **how)

    forget_plans()
    monkeypatch.setattr(choose, "_decided", seen)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    return planned


def test_profiles() -> None:
    assert profile_of("cpu") is CPU and profile_of("gpu") is GPU
    assert profile_of("tpu").alone is None and profile_of("tpu").host_reads_guards
    assert profile_of(None).alone is None


NUMBERS = np.arange(12, dtype=np.int32)
FIBONACCI = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]


def test_arrays_that_are_nowhere_go_to_the_default_backend(jobs: list[Job]) -> None:
    assert lw.inspect(fib, NUMBERS).plan.job.profile is GPU


def test_committed_arrays_run_where_they_are(jobs: list[Job]) -> None:
    numbers = jax.device_put(NUMBERS, jax.devices("cpu")[0])
    assert lw.vmap(fib)(numbers).tolist() == FIBONACCI
    assert jobs and all(job.platform == "cpu" for job in jobs)


def test_the_default_device_decides_for_others(jobs: list[Job]) -> None:
    with jax.default_device(jax.devices("cpu")[0]):
        assert lw.vmap(fib)(NUMBERS).tolist() == FIBONACCI
        assert dict(lw.stream(fib, NUMBERS[:3], lanes=2)) == {0: 0, 1: 1, 2: 1}
        slope = jax.vmap(jax.grad(lambda x: lw.lift(jnp.sin)(x)))(jnp.arange(3.0))
        np.testing.assert_allclose(slope, np.cos(np.arange(3.0)), rtol=1e-6)
    assert jobs and all(job.platform == "cpu" for job in jobs)


def test_inside_jit_it_is_what_xla_compiles_for(jobs: list[Job]) -> None:
    assert jax.jit(lw.vmap(fib))(NUMBERS).tolist() == FIBONACCI
    assert jobs and all(job.platform == jax.devices()[0].platform for job in jobs)


def test_a_sampler_runs_on_the_device_that_is_asked_for(jobs: list[Job]) -> None:
    pytest.importorskip("arviz")
    data = mcmc.sample(
        lambda x: -0.5 * jnp.sum(x**2),
        jax.random.key(0),
        chains=4,
        draws=5,
        warmup=5,
        init=lambda key: jax.random.normal(key, (2,)),
        device="cpu",
        progress=False,
    )
    assert data.posterior.sizes["chain"] == 4
    assert jobs and all(job.platform == "cpu" for job in jobs)
