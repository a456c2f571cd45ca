"""A run is cut into stretches: no draw depends on where, nothing is compiled anew, memory is bounded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanewise import mcmc
from lanewise.core.errors import OptionError
from lanewise.mcmc import watching
from lanewise.mcmc.inference import groups_of
from lanewise.mcmc.mixing import Mixing
from lanewise.mcmc.pace import Pace
from lanewise.watch import progress
from mcmc.test_sample import Guarded, assert_equal
from watch.test_progress import Terminal, shown

CHAINS, DRAWS, WARMUP = 5, 30, 60


def logdensity(x: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum((x / jnp.array([1.0, 3.0])) ** 2)


def init(key: jax.Array) -> jax.Array:
    return jax.random.normal(key, (2,))


def go(**changes: Any) -> Any:
    run: dict[str, Any] = {"chains": CHAINS, "draws": DRAWS, "warmup": WARMUP, "init": init}
    return mcmc.sample(logdensity, changes.pop("key", 0), progress=False, **run | changes)


def lengths(monkeypatch: pytest.MonkeyPatch, draws: int) -> None:
    """Every stretch has at most this many draws."""
    monkeypatch.setattr(Pace, "took", lambda self, *_, **__: setattr(self, "draws", draws))


@pytest.mark.parametrize("adaptation", ["pooled", "chain"])
@pytest.mark.parametrize("mass_matrix", ["diagonal", "dense"])
def test_where_a_run_is_cut_changes_no_draw(
    adaptation: str, mass_matrix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"adaptation": adaptation, "mass_matrix": mass_matrix, "keep_warmup": True, "thin": 2}
    found = []
    for draws in (1, 7, 1000):
        lengths(monkeypatch, draws)
        found.append(go(**options))
    for other in found[1:]:
        assert_equal(found[0], other)
        for group in ("warmup_posterior", "warmup_sample_stats"):
            for name, values in found[0][group].items():
                np.testing.assert_array_equal(values, other[group][name], err_msg=name)


def test_a_chain_that_fails_keeps_what_it_drew_before(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = jnp.zeros((4, 2)).at[2, 0].set(19.5)
    found = []
    for draws in (1, 6, 1000):
        lengths(monkeypatch, draws)
        with pytest.warns(mcmc.SamplingWarning, match=r"1 of 4 chains \(2\) failed"):
            data = mcmc.sample(
                Guarded(jnp.array([1e-4, 1.0])),
                0,
                chains=4,
                draws=40,
                warmup=0,
                step_size=1.0,
                init=starts * jnp.array([-1.0, 1.0]),
                sampler=mcmc.HMC(steps=1),
                progress=False,
            )
        found.append(data)
    lost = np.isnan(found[0].posterior["x"].values).all(axis=2)
    assert lost[2].any() and not lost[2].all() and not lost[[0, 1, 3]].any()
    assert (np.diff(lost[2].astype(int)) >= 0).all()
    for other in found[1:]:
        assert_equal(found[0], other, 40)


def test_thinned_draws_are_some_of_all() -> None:
    whole, thinned = go(draws=30), go(draws=10, thin=3)
    np.testing.assert_array_equal(whole.posterior["x"][:, 2::3], thinned.posterior["x"])
    np.testing.assert_array_equal(whole.sample_stats["lp"][:, 2::3], thinned.sample_stats["lp"])


def test_the_warmup_is_kept_with_its_step_sizes() -> None:
    data = go(keep_warmup=True)
    assert data.warmup_posterior["x"].shape == (CHAINS, WARMUP, 2)
    assert len(np.unique(data.warmup_sample_stats["step_size"][0])) > WARMUP // 2
    assert_equal(data, go())


def test_seeds_are_keys_and_the_acceptance_is_the_samplers() -> None:
    assert_equal(go(key=3), go(key=jax.random.key(3)))
    assert_equal(go(key=np.int64(3)), go(key=3))
    high = go(target_accept=0.99)
    assert_equal(high, go(sampler=mcmc.NUTS(target_accept=0.99)))
    assert float(high.sample_stats["step_size"][0, 0]) < float(go().sample_stats["step_size"][0, 0])


@pytest.mark.parametrize("adaptation", ["pooled", "chain"])
def test_the_mass_matrix_comes_back(adaptation: str) -> None:
    diagonal = go(warmup=400, adaptation=adaptation).sample_stats["inverse_mass_matrix"]
    dense = go(warmup=400, adaptation=adaptation, mass_matrix="dense").sample_stats
    each = (CHAINS,) if adaptation == "chain" else ()
    assert diagonal.shape == (*each, 2)
    assert dense["inverse_mass_matrix"].shape == (*each, 2, 2)
    np.testing.assert_allclose(
        np.log(diagonal.mean(each and "chain")), np.log([1.0, 9.0]), atol=0.7
    )
    assert "inverse_mass_matrix" not in go(mass_matrix="unit").sample_stats


def test_other_numbers_compile_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Of draws, of chains in one bucket, of warm-up draws."""
    model = mcmc.Model(logdensity, init, shown=lambda x: {"y": 2.0 * x})
    compiled = []
    for chains, draws, warmup in ((17, 10, 20), (18, 33, 20), (17, 300, 60)):
        caplog.clear()
        with jax.log_compiles(), caplog.at_level("DEBUG", "jax"):
            data = mcmc.sample(model, 0, chains=chains, draws=draws, warmup=warmup, progress=False)
        assert data.posterior["y"].shape == (chains, draws, 2)
        said = [record.getMessage() for record in caplog.records]
        compiled.append([text for text in said if text.startswith("Compiling ")])
    assert compiled[0] and not compiled[1] and not compiled[2], compiled


def written_again() -> mcmc.Model:
    """The same code and constants, as other functions."""
    data = jnp.arange(3.0)
    return mcmc.Model(
        lambda x: jnp.sum(data) - 0.5 * jnp.sum(x**2) - jnp.sum(jax.nn.softplus(x)),
        lambda key: jax.random.normal(key, (2,)),
        lambda x: {"y": jnp.exp(x) + data[1]},
    )


def test_code_that_is_written_again_compiles_nothing(caplog: pytest.LogCaptureFixture) -> None:
    compiled = []
    for _ in range(2):
        caplog.clear()
        model = written_again()
        with jax.log_compiles(), caplog.at_level("DEBUG", "jax"):
            mcmc.sample(model, 0, chains=3, draws=5, warmup=0, step_size=0.5, progress=False)
        said = [record.getMessage() for record in caplog.records]
        compiled.append([text for text in said if text.startswith("Compiling ")])
    assert compiled[0] and not compiled[1], compiled


@pytest.mark.parametrize("factor", [1.0, 1.0 + 1e-6])
def test_other_constants_are_another_density(factor: float) -> None:
    """They differ in the last bits of one element of an array."""
    data = jnp.ones(2000).at[1234].multiply(factor)
    run: dict[str, Any] = {"chains": 2, "draws": 5, "warmup": 0, "step_size": 0.5, "init": init}
    found = mcmc.sample(lambda x: -0.5 * jnp.sum(x**2) + 1e3 * data[1234], 0, progress=False, **run)
    x = found.posterior["x"].values
    expected = -0.5 * (x**2).sum(axis=2) + 1e3 * float(np.float32(factor))
    np.testing.assert_allclose(found.sample_stats["lp"], expected, rtol=0, atol=4e-4)


SCALE = mcmc.Model(
    lambda x: -0.5 * jnp.sum(x**2),
    lambda key: jax.random.normal(key, (2,)),
    lambda x: {"scale": jnp.exp(x[0]), "mean": x[1]},
    lambda shown: jnp.stack([jnp.log(shown["scale"]), shown["mean"]]),
)


def test_chains_start_at_constrained_values() -> None:
    run: dict[str, Any] = {"chains": 3, "draws": 1, "warmup": 0, "step_size": 1e-6}
    sampler = mcmc.HMC(steps=1)
    values = {"scale": [1.0, 2.0, 3.0]}
    data = mcmc.sample(SCALE, 0, initial_values=values, sampler=sampler, progress=False, **run)
    free = mcmc.sample(SCALE, 0, sampler=sampler, progress=False, **run)
    np.testing.assert_allclose(data.posterior["scale"][:, 0], [1.0, 2.0, 3.0], rtol=1e-4)
    np.testing.assert_allclose(data.posterior["mean"], free.posterior["mean"], atol=1e-4)
    for wrong, says in (
        ({"scale": -1.0}, "outside what its quantity can be"),
        ({"spread": 1.0}, "names 'spread'; the quantities are 'mean', 'scale'"),
        ({"scale": [1.0, 2.0]}, r"has shape \(2,\); it must be \(\), or \(3,\)"),
    ):
        with pytest.raises(OptionError, match=says):
            mcmc.sample(SCALE, 0, initial_values=wrong, progress=False, **run)


def test_draws_on_disk_are_those_in_memory(tmp_path: Path) -> None:
    model = mcmc.Model(logdensity, init, shown=lambda x: {"a/b": x, "positive": x > 0})
    run: dict[str, Any] = {"chains": CHAINS, "draws": DRAWS, "warmup": WARMUP, "progress": False}
    in_memory = groups_of(mcmc.sample(model, 0, keep_warmup=True, **run))
    for _ in range(2):
        on_disk = groups_of(mcmc.sample(model, 0, keep_warmup=True, resume=tmp_path, **run))
        assert not on_disk["posterior"]["a/b"].variable._in_memory
        for group in in_memory:
            for name, values in in_memory[group].items():
                np.testing.assert_array_equal(values, on_disk[group][name], err_msg=name)
                assert values.dtype == on_disk[group][name].dtype
    other = mcmc.Model(logdensity, init, shown=lambda x: {"other": x})
    run["draws"] *= 2
    with pytest.raises(OptionError, match="holds draws of"):
        mcmc.sample(other, 0, keep_warmup=True, resume=tmp_path, **run)


def test_the_minimum_ess_on_the_way_is_about_right() -> None:
    random = np.random.default_rng(0)
    share, chains, draws = 0.9, 4, 8000
    x = np.zeros((chains, draws, 2))
    noise = random.normal(size=x.shape)
    for i in range(1, draws):
        x[:, i] = np.array([share, 0.0]) * x[:, i - 1] + noise[:, i]
    mixing = Mixing(chains, 2)
    for part in np.array_split(x, 37, axis=1):
        mixing.add(part)
    exact = chains * draws * (1 - share) / (1 + share)
    found = mixing.minimum_ess()
    assert found is not None and 0.5 * exact < found < 2.0 * exact
    assert mixing.blocks.shape[1] < 64


def test_the_line_of_a_run_has_the_ess_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths(monkeypatch, 10)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(progress._Terminal, "pause", 0.0)
    monkeypatch.setattr(watching, "SHARE", 1e9)
    file = Terminal()
    monkeypatch.setattr(sys, "stderr", file)
    run = {"chains": CHAINS, "draws": 100, "warmup": 40, "step_size": 0.5}
    data = mcmc.sample(logdensity, 0, init=init, sampler=mcmc.HMC(steps=4), progress=True, **run)
    lines = shown(file)
    tuning = [line for line in lines if line.startswith("warm-up")]
    drawing = [line for line in lines if line.startswith("sampling")]
    assert tuning and not any("ESS" in line for line in tuning)
    left = re.compile(
        r"\[\d\d:\d\d<\d\d:\d\d, [^]]+/s\], step size \S+, divergences \d+, minimum ESS ([\d,]+)"
    )
    found = [int(hit[1].replace(",", "")) for line in drawing if (hit := left.search(line))]
    assert len(found) >= 3, drawing
    assert 0 < found[-1] <= 4 * data.posterior["x"][..., 0].size


MEMORY = """
import resource, sys
import jax, jax.numpy as jnp
from lanewise import mcmc
from lanewise.mcmc.inference import groups_of
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def logdensity(x):
    return -0.5 * jnp.sum(x**2)
def init(key):
    return jax.random.normal(key, (500,))
derived = mcmc.Model(logdensity, init, lambda x: {"square": x**2})
def go(draws, model=mcmc.Model(logdensity, init), **options):
    before = peak()
    data = mcmc.sample(
        model, 0, chains=100, draws=draws, warmup=0, step_size=0.5,
        sampler=mcmc.HMC(steps=1), progress=False, **options,
    )
    print(sum(v.nbytes for group in groups_of(data).values() for v in group.values()), peak() - before)
go(200)
go(2000, resume=sys.argv[1])
go(2000)
go(2000, derived)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="maximum sizes have other units elsewhere")
def test_memory_is_that_of_the_draws_or_bounded(tmp_path: Path) -> None:
    """The process has run before, so what is added is the draws (400 MB), or what a chunk and a stretch need."""
    command = [sys.executable, "-c", MEMORY, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    (_, _), (on_disk, bounded), (kept, added), (derived, more) = (
        map(int, line.split()) for line in ran.stdout.splitlines()[-4:]
    )
    assert min(on_disk, kept, derived) > 400e6
    assert bounded < 0.5 * on_disk
    # What the run on disk had is used again, and counts.
    assert bounded + added < 1.5 * kept
    # Derived quantities are made a stretch at a time, in place of the positions.
    assert bounded + added + more < 1.5 * derived
