"""What is wrong with a run is said, and nothing is said of a run that is fine."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise import mcmc
from lanewise.mcmc.adapt import Moments, agreeing
from lanewise.mcmc.diagnosis import Course, findings
from lanewise.mcmc.inference import data_of
from lanewise.mcmc.settings import MASS_MATRICES
from lanewise.watch.report import add_sampling


def course(chains: int, sampler: Any = None, **lost: list[int]) -> Course:
    moved, failed = np.ones(chains, bool), np.zeros(chains, bool)
    moved[lost.get("stuck", [])] = False
    failed[lost.get("failed", [])] = True
    return Course(sampler or mcmc.NUTS(), 500, "diagonal", moved, failed)


def data(values: np.ndarray, **stats: np.ndarray) -> Any:
    shape = values.shape[:2]
    rng = np.random.default_rng(1)
    fine = {
        "diverging": np.zeros(shape, bool),
        "step_size": np.full(shape, 0.5),
        "n_steps": np.full(shape, 7),
        "energy": rng.normal(size=shape),
    }
    return data_of({"posterior": {"x": values}, "sample_stats": fine | stats})


def kinds(values: np.ndarray, run: Course, **stats: np.ndarray) -> set[str]:
    return {found.kind for found in findings(data(values, **stats), run)}


@pytest.mark.parametrize("chains, draws", [(1, 800), (4, 1000), (256, 50), (1000, 20)])
def test_independent_draws_are_fine(chains: int, draws: int) -> None:
    values = np.random.default_rng(0).standard_t(3, size=(chains, draws, 3))
    assert not kinds(values, course(chains))


def walks(chains: int, draws: int, correlation: float) -> np.ndarray:
    """Autoregressive chains that start far from each other."""
    rng = np.random.default_rng(0)
    at, rows = 5.0 * rng.normal(size=chains), []
    for _ in range(draws):
        at = correlation * at + np.sqrt(1.0 - correlation**2) * rng.normal(size=chains)
        rows.append(at)
    return np.stack(rows, axis=1)


def test_chains_that_do_not_mix_are_found() -> None:
    assert {"r_hat", "bulk_ess"} <= kinds(walks(4, 500, 0.999), course(4))
    assert "nested_r_hat" in kinds(walks(256, 50, 0.99), course(256))


def test_few_effective_draws_are_found_where_chains_agree() -> None:
    values = np.random.default_rng(0).normal(size=(4, 60))
    assert kinds(values, course(4)) >= {"bulk_ess", "tail_ess"}


def test_a_chain_in_another_mode_is_found_among_many() -> None:
    values = np.random.default_rng(0).normal(size=(200, 100))
    values[17] += 40.0
    found = {one.kind: one for one in findings(data(values), course(200))}
    assert found["lost"].text.startswith("1 of 200 chains (17) is far from all others in x")


def test_divergences_depth_and_energy_in_proportion() -> None:
    values = np.random.default_rng(0).normal(size=(100, 400))
    one = np.zeros(values.shape, bool)
    one[3, 5] = True
    assert not kinds(values, course(100), diverging=one)
    some = np.zeros((4, 400), bool)
    some[1, 7] = True
    found = findings(data(values[:4], diverging=some), course(4))
    assert found[0].text == "1 of 1,600 draws diverged, in 1 chain."
    assert "target_accept=0.9, now 0.8" in found[0].advice
    deep = np.full((4, 400), 1023)
    assert "depth" in kinds(values[:4], course(4), n_steps=deep)
    assert "depth" not in kinds(values[:4], course(4, mcmc.HMC()), n_steps=deep)
    slow = np.cumsum(values[:4], axis=1)
    assert "e_bfmi" in kinds(values[:4], course(4), energy=slow)
    assert "e_bfmi" not in kinds(values[:4], course(4, mcmc.MCLMC()), energy=slow)


@pytest.mark.parametrize("target", [0.6, 0.8, 0.89, 0.9, 0.95, 0.979, 0.98, 0.985, 0.99, 0.999])
@pytest.mark.parametrize("warmup", [0, 500])
def test_smaller_steps_are_advised_where_there_are_some(target: float, warmup: int) -> None:
    values = np.random.default_rng(0).normal(size=(4, 400))
    diverging = np.zeros(values.shape, bool)
    diverging[1, 7] = True
    run = replace(course(4, mcmc.NUTS(target_accept=target)), warmup=warmup)
    (found,) = findings(data(values, diverging=diverging), run)
    assert "ther coordinates may help" in found.advice
    advised = re.search(r"target_accept=([\d.]+), now", found.advice)
    if warmup == 0:
        assert "step_size=" in found.advice and advised is None
    elif target < 0.97:
        assert advised is not None and target < float(advised[1]) < 1.0
    else:
        assert advised is None or float(advised[1]) > target


@pytest.mark.parametrize("depth", [1, 10, 18, 19, 20])
@pytest.mark.parametrize("mass_matrix", MASS_MATRICES)
@pytest.mark.parametrize("warmup", [0, 500])
def test_longer_trajectories_are_advised_as_settings_allow(
    depth: int, mass_matrix: str, warmup: int
) -> None:
    values = np.random.default_rng(0).normal(size=(4, 400))
    run = replace(course(4, mcmc.NUTS(depth)), mass_matrix=mass_matrix, warmup=warmup)
    (found,) = findings(data(values, n_steps=np.full((4, 400), 2**depth - 1)), run)
    deeper = re.search(r"NUTS\(max_depth=(\d+)\)", found.advice)
    assert deeper is None if depth == 20 else mcmc.NUTS(int(deeper[1])).max_depth > depth  # type: ignore[index]
    other = re.search(r"mass_matrix='(\w+)'", found.advice)
    if mass_matrix == "dense" or warmup == 0:
        assert other is None
    else:
        assert other is not None and other[1] in set(MASS_MATRICES) - {mass_matrix, "unit"}
    assert found.advice[0].isupper() and found.advice.endswith(".")


def marked(values: np.ndarray, file: Path, **stats: np.ndarray) -> list[str]:
    """What a report marks in its table."""
    with lw.report(file):
        add_sampling(data(values, **stats))
    return re.findall(r'<td class="n"><span class="bad">(.*?)</span>', file.read_text())


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).normal(size=(8, 120)),
        np.random.default_rng(0).normal(size=(8, 70)),
        np.random.default_rng(0).normal(size=(256, 20)),
        walks(4, 500, 0.999),
        walks(256, 50, 0.99),
        walks(256, 50, 0.5),
    ],
    ids=["few", "few draws", "many", "few apart", "many apart", "many near"],
)
def test_a_report_marks_what_a_warning_is_of(values: np.ndarray, tmp_path: Path) -> None:
    found = kinds(values, course(len(values)))
    wrong = marked(values, tmp_path / "run.html")
    sizes = sum("." not in figure for figure in wrong)
    assert sizes == len(found & {"bulk_ess", "tail_ess"})
    assert len(wrong) - sizes == len(found & {"r_hat", "nested_r_hat"})


def test_a_run_says_the_same_in_its_report(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as said, lw.report(tmp_path / "run.html"):
        warnings.simplefilter("always")
        mcmc.sample(
            lambda x: -0.5 * jnp.sum(x**2),
            0,
            chains=4,
            draws=20,
            warmup=20,
            init=lambda key: jax.random.normal(key, (2,)),
            sampler=mcmc.NUTS(max_depth=1),
            progress=False,
        )
    page = (tmp_path / "run.html").read_text()
    words = [str(one.message) for one in said if one.category is mcmc.SamplingWarning]
    assert any("depth limit of 1" in text for text in words)
    top = re.sub(r"</?b>", "", unescape(page[: page.index("<table")]))
    assert all(text in top for text in words)
    share = next(text for text in words if "depth limit" in text).partition("%")[0]
    assert f"({share}." in page[page.index("draws reached the limit of 1") :][:60]


def test_failed_and_stuck_chains_are_left_out_of_the_rest() -> None:
    values = np.random.default_rng(0).normal(size=(4, 1000))
    values[1], values[2] = np.nan, 50.0
    assert kinds(values, course(4, failed=[1], stuck=[2])) == {"failed", "stuck"}


def test_very_many_draws_are_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanewise.mcmc.diagnosis.MOST_NUMBERS", 400)
    found = findings(data(walks(4, 1000, 0.999)), course(4))
    assert any("by one draw in" in one.text for one in found)


def test_warnings_are_at_the_line_of_the_caller() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        mcmc.sample(
            lambda x: -0.5 * jnp.sum(x**2),
            0,
            chains=4,
            draws=20,
            warmup=20,
            init=lambda key: jax.random.normal(key, (2,)),
            progress=False,
        )
    ours = [one for one in said if issubclass(one.category, mcmc.SamplingWarning)]
    assert ours and all(one.filename == __file__ for one in ours)


def test_one_bad_chain_is_not_pooled() -> None:
    """The step size of chains in one mode is theirs, whatever a chain in a much narrower mode does."""

    def logdensity(x: jax.Array) -> jax.Array:
        broad, narrow = -0.5 * jnp.sum(x**2), -0.5 * jnp.sum(((x - 50.0) / 1e-3) ** 2)
        return jnp.logaddexp(broad, narrow)

    starts = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    starts[5] = 50.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mcmc.SamplingWarning)
        found = mcmc.sample(
            logdensity, 0, chains=8, draws=50, warmup=200, init=starts, progress=False
        )
    assert float(found.sample_stats["step_size"][0, 0]) > 0.3
    assert float(found.sample_stats["inverse_mass_matrix"].max()) < 4.0


def test_chains_that_have_yet_to_meet_are_all_heard() -> None:
    means = np.array([[-9.0], [-3.0], [2.0], [8.0]])
    assert agreeing(Moments(np.full(4, 10.0), means, np.full((4, 1), 10.0))).all()  # type: ignore[arg-type]


def test_an_improper_posterior_is_said_to_be_one() -> None:
    run = {"chains": 4, "draws": 50, "warmup": 50, "progress": False}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mcmc.sample(lambda x: 0.0 * jnp.sum(x), 0, init=lambda key: jnp.zeros(2), **run)
    assert all(w.category is mcmc.SamplingWarning for w in found)
    assert any("the posterior may be improper" in str(w.message) for w in found)
