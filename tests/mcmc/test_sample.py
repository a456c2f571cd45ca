"""`sample`: what it gives, what it refuses, what it warns of, and that a killed run goes on where it was."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise import mcmc
from lanewise.core.errors import LaneError, OptionError
from lanewise.cpp.toolchain import foreign
from lanewise.mcmc.saved import Saved

CHAINS, DRAWS, WARMUP, EVERY = 6, 12, 40, 5


def logdensity(position: Any) -> jax.Array:
    return -0.5 * (position["group"]["mean"] ** 2 + jnp.sum((position["scale"] / 2.0) ** 2))


def init(key: jax.Array) -> Any:
    return {"group": {"mean": jax.random.normal(key)}, "scale": jnp.ones((2,))}


def identity(position: Any) -> Any:
    return position


def go(directory: Path | None, **changes: Any) -> Any:
    """The run that these tests share, so that it is compiled once."""
    arguments: dict[str, Any] = {
        "chains": CHAINS,
        "draws": DRAWS,
        "warmup": WARMUP,
        "init": init,
        "resume": directory,
        "save_every": EVERY,
        "progress": False,
    }
    key = changes.pop("key", jax.random.key(0))
    return mcmc.sample(logdensity, key, **arguments | changes)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sampled")


@pytest.fixture(scope="module")
def whole(directory: Path) -> Any:
    return go(directory)


def assert_equal(one: Any, other: Any, draws: int = DRAWS) -> None:
    """Bit for bit, as far as both go."""
    for group in ("posterior", "sample_stats"):
        for name, values in one[group].items():
            same = other[group][name]
            if "draw" in values.dims:
                values, same = (array[:, :draws] for array in (values, same))
            np.testing.assert_array_equal(values, same, err_msg=name)


# -- what it gives ------------------------------------------------------------------------------------


def test_positions_become_named_variables(whole: Any) -> None:
    shapes = {name: values.shape for name, values in whole.posterior.items()}
    assert shapes == {"group.mean": (CHAINS, DRAWS), "scale": (CHAINS, DRAWS, 2)}


def test_the_usual_statistics_are_there(whole: Any) -> None:
    stats = whole.sample_stats
    for name in (
        "lp",
        "acceptance_rate",
        "step_size",
        "tree_depth",
        "n_steps",
        "diverging",
        "energy",
    ):
        assert stats[name].shape == (CHAINS, DRAWS), name
        assert np.isfinite(stats[name].values.astype(float)).all(), name
    assert stats["diverging"].dtype == bool
    assert len(np.unique(stats["step_size"])) == 1, "pooled chains share a step size"
    assert stats.attrs["inference_library"] == "lanewise"
    positions = {
        "group": {"mean": jnp.asarray(whole.posterior["group.mean"].values)},
        "scale": jnp.asarray(whole.posterior["scale"].values),
    }
    values = jax.vmap(jax.vmap(logdensity))(positions)
    np.testing.assert_allclose(stats["lp"], values, rtol=1e-4, atol=1e-5)


def test_lanes_and_other_keys(whole: Any, tmp_path: Path) -> None:
    assert_equal(whole, go(tmp_path / "lanes", lanes=2))
    old_style = jax.random.key_data(jax.random.key(0))
    assert_equal(whole, go(tmp_path / "old", key=old_style))
    other = go(tmp_path / "other", key=jax.random.key(1))
    assert not np.array_equal(whole.posterior["scale"], other.posterior["scale"])


def test_more_chains_leave_the_first_ones_as_they_are(tmp_path: Path) -> None:
    fixed = {"warmup": 0, "step_size": 0.5, "draws": EVERY}
    few = go(tmp_path / "few", **fixed)
    many = go(tmp_path / "many", chains=2 * CHAINS, **fixed)
    assert_equal(few, many.isel(chain=slice(CHAINS)), EVERY)


class Guarded(eqx.Module):
    """A density that holds an array, and so has no hash; far to one side it is an error to ask it."""

    weights: jax.Array
    least: float = -20.0

    def __call__(self, x: jax.Array) -> jax.Array:
        @lw.program
        def guarded(x):
            assert x[0] > self.least, "too far"
            return -0.5 * self.weights @ x**2

        return guarded(x)


def test_failing_chains_are_named_and_have_no_draws_from_there_on(tmp_path: Path) -> None:
    starts = jnp.zeros((4, 2)).at[2, 0].set(50.0)  # it swings to the other side
    for _ in range(2):  # from disk too
        with pytest.warns(mcmc.SamplingWarning, match=r"1 of 4 chains \(2\) failed"):
            data = mcmc.sample(
                Guarded(jnp.array([1.0, 2.0])),
                jax.random.key(0),
                chains=4,
                draws=3,
                warmup=0,
                step_size=0.5,
                init=starts,
                resume=tmp_path,
                device="cpu",
                progress=False,
            )
        lost = np.isnan(data.posterior["x"].values).all(axis=2)
        assert lost[2, -1] and not lost[[0, 1, 3]].any()


@pytest.mark.filterwarnings("ignore:.* draws diverged")
def test_starts_without_a_density_are_named() -> None:
    starts = jnp.zeros((CHAINS, 2)).at[1, 0].set(jnp.nan).at[4].set(-3.0)

    def nowhere_below(x: jax.Array) -> jax.Array:
        return jnp.where(x[0] > -2.0, -0.5 * jnp.sum(x**2), jnp.nan)

    with pytest.warns(mcmc.SamplingWarning, match=r"2 of 6 chains \(1, 4\) never moved"):
        data = mcmc.sample(
            nowhere_below,
            jax.random.key(0),
            chains=CHAINS,
            draws=4,
            warmup=15,
            init=starts,
            progress=False,
        )
    others = data.isel(chain=[0, 2, 3, 5])
    assert np.isfinite(others.posterior["x"]).all()
    assert not others.sample_stats["diverging"].all()
    assert float(data.sample_stats["step_size"][0, 0]) > 0.1, "stuck chains decide the step size"


@pytest.mark.parametrize("adaptation", ["pooled", "chain"])
def test_a_chain_is_compiled_once(
    adaptation: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One kernel for all windows and the draws, and no XLA compilation of what the host computes."""
    key = jax.random.key(0)
    kernels = []
    load = foreign.host.load_soon

    def counted(text: str, flags: tuple[str, ...]) -> Any:
        kernels.append(text)
        return load(text, flags)

    monkeypatch.setattr(foreign.host, "load_soon", counted)
    with jax.log_compiles(), caplog.at_level("DEBUG", "jax"):
        data = mcmc.sample(
            lambda x: -0.503 * jnp.sum(x**2),  # no other test has it: its code would be known
            key,
            chains=3,
            draws=2,
            warmup=150,
            init=np.zeros((3, 2), np.float32),
            adaptation=adaptation,
            carrier="native",
            progress=False,
        )
    assert data.posterior.sizes["draw"] == 2
    assert len(set(kernels)) == 1
    said = [record.getMessage() for record in caplog.records]
    compiled = [text.split()[1] for text in said if text.startswith("Compiling ")]
    # The keys, the call of the kernel, and at most what makes a kernel's text.
    assert 1 <= len(compiled) <= 4, compiled


def test_a_second_call_compiles_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = mcmc.Model(logdensity, init, shown=identity)
    compiled = []
    for key in (jax.random.key(0), jax.random.key(1)):
        caplog.clear()
        with jax.log_compiles(), caplog.at_level("DEBUG", "jax"):
            mcmc.sample(model, key, chains=CHAINS, draws=EVERY, warmup=WARMUP, progress=False)
        said = [record.getMessage() for record in caplog.records]
        compiled.append([text for text in said if text.startswith("Compiling ")])
    assert compiled[0] and not compiled[1], compiled


def test_bars_say_what_chains_are_at(capsys: pytest.CaptureFixture[str]) -> None:
    go(None, draws=EVERY, progress=True)
    said = capsys.readouterr().err
    total = CHAINS * (WARMUP + EVERY)
    assert f"sampling: {total} of {total} draws (100%)" in said, said
    assert "divergences 0" in said and "step size" in said, said


# -- what it refuses ----------------------------------------------------------------------------------


def standard(x: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(x**2)


STARTS = jnp.zeros((CHAINS, 2))
FINE: dict[str, Any] = {
    "logdensity": standard,
    "key": jax.random.key(0),
    "chains": CHAINS,
    "draws": 10,
    "warmup": 10,
    "init": STARTS,
    "progress": False,
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a number for a density": (
        {"logdensity": 3.0},
        "logdensity must be a function or a Model; got 3.0",
    ),
    "a density that is no scalar": (
        {"logdensity": lambda x: -0.5 * x**2},
        "logdensity must give one float.*shape (2,) and type float32. Sum what belongs",
    ),
    "an int for a density": (
        {"logdensity": lambda x: jnp.sum(x > 0)},
        "logdensity must give one float.*type int32",
    ),
    "two densities": ({"logdensity": lambda x: (x[0], x[1])}, "logdensity must give one float"),
    "shapes that disagree": (
        {"logdensity": lambda x: standard(x @ jnp.ones((3, 3)))},
        "logdensity does not take a position of shapes (2,), as init gives it",
    ),
    "NaN at every start": (
        {"logdensity": lambda x: jnp.nan * standard(x)},
        "not a finite number at the start of any of the 6 chains: check the density, or start elsewhere with init=",
    ),
    "NaN wherever it starts": (
        {"logdensity": lambda x: jnp.nan * standard(x), "init": lambda key: jnp.zeros(2)},
        "6 chains in 100 tries each",
    ),
    "no start": ({"init": None}, "init is missing: give positions"),
    "starts of other chains": (
        {"init": {"a": jnp.zeros((4, 2))}},
        "init['a'] has shape (4, 2); with chains=6 its first axis must be 6",
    ),
    "whole numbers": ({"init": {"n": jnp.zeros((CHAINS,), int)}}, "init['n'] is of type int32"),
    "nothing to start from": ({"init": {}}, "init gives a position without any array"),
    "an init of no key": ({"init": lambda: jnp.zeros(2)}, "init must take a key"),
    "no chains": ({"chains": 0}, "chains=0 must be an int, 1 or more"),
    "half a draw": ({"draws": 0.5}, "draws=0.5 must be an int, 1 or more"),
    "less than no warm-up": ({"warmup": -1}, "warmup=-1 must be an int, 0 or more"),
    "saving never": ({"save_every": 0}, "save_every=0 must be an int, 1 or more"),
    "a mass matrix": (
        {"mass_matrix": "full"},
        "mass_matrix='full' is not known; choose one of 'diagonal', 'dense', 'unit'",
    ),
    "an adaptation": (
        {"adaptation": "none"},
        "adaptation='none' is not known; choose one of 'pooled', 'chain'",
    ),
    "no step size": ({"warmup": 0}, "warmup=0 adapts nothing: give step_size= as well"),
    "a step back": ({"step_size": -1.0}, "step_size=-1.0 must be a positive number"),
    "no key": (
        {"key": None},
        "key=None is not one random key; make one with jax.random.key(0), or give a seed",
    ),
    "half a seed": ({"key": 0.5}, "key=0.5 is not one random key"),
    "thinned to nothing": ({"thin": 0}, "thin=0 must be an int, 1 or more"),
    "a sampler of its own acceptance": (
        {"sampler": mcmc.NUTS, "target_accept": 0.9},
        "target_accept= is for samplers that take it",
    ),
    "more than all accepted": (
        {"target_accept": 1.5},
        "target_accept=1.5 must be a number between 0 and 1",
    ),
    "several keys": ({"key": jax.random.split(jax.random.key(0))}, "is not one random key"),
    "an unknown device": ({"device": "abacus"}, "device='abacus' is not there"),
    "no device": ({"device": 3}, "device=3 must be a JAX device"),
    "no sampler": ({"sampler": "nuts"}, "sampler='nuts' must be"),
    "the class of a sampler": ({"sampler": mcmc.ChEES}, "ChEES'> must be NUTS(...), HMC(...)"),
    "a matrix for the name of one": ({"mass_matrix": np.eye(2)}, "is not known; choose one of"),
    "an endless step": ({"step_size": np.inf}, "step_size=inf must be a positive number"),
    "progress in words": ({"progress": "no"}, "progress='no' must be True or False"),
    "the class of starts": ({"init": mcmc.Pathfinder}, "must be Pathfinder(...)"),
    "numbers of 16 bits": (
        {"init": STARTS.astype(jnp.bfloat16)},
        "init is of type bfloat16; positions are arrays of float32 or float64",
    ),
    "a place that cannot be written": ({"resume": __file__}, "cannot be made a directory"),
    "no lanes": ({"lanes": 0}, "lanes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_named_with_the_fix(case: str) -> None:
    wrong, says = REFUSED[case]
    arguments = FINE | wrong
    positional = arguments.pop("logdensity"), arguments.pop("key")
    pattern = re.escape(says).replace(re.escape(".*"), ".*")
    with pytest.raises(OptionError, match=pattern):
        mcmc.sample(*positional, **arguments)


def test_numbers_of_numpy_are_numbers() -> None:
    counts: Any = {name: np.int64(FINE[name]) for name in ("chains", "draws", "warmup")}
    counts |= {"key": np.int32(0), "thin": np.int8(1)}
    data = mcmc.sample(standard, init=STARTS, progress=False, **counts)
    assert data.posterior["x"].shape == (CHAINS, 10, 2)


def test_a_flat_density_is_moved_on() -> None:
    flat: Any = FINE | {"logdensity": lambda x: 0.0 * jnp.sum(x)}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*never moved")
        mcmc.sample(**flat)


def test_an_axis_of_nothing_and_one_draw_of_one_chain() -> None:
    def density(position: Any) -> jax.Array:
        return standard(position["some"]) + standard(position["none"])

    init = {"some": jnp.zeros((1, 2)), "none": jnp.zeros((1, 0))}
    data = mcmc.sample(
        density, 0, chains=1, draws=1, warmup=0, step_size=0.5, init=init, progress=False
    )
    assert data.posterior["none"].shape == (1, 1, 0)


def test_without_arviz_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(OptionError, match=re.escape('pip install "lanewise[mcmc]"')):
        go(None)


def test_when_every_chain_fails_that_is_an_error() -> None:
    @lw.program
    def only_here(x):
        assert jnp.sum(x**2) < 1e-6, "not here"
        return -0.5 * jnp.sum(x**2)

    with pytest.raises(LaneError, match="every chain failed: assertion failed: not here"):
        mcmc.sample(
            only_here,
            jax.random.key(0),
            chains=2,
            draws=1,
            warmup=0,
            step_size=0.5,
            init=jnp.zeros((2, 2)),
            progress=False,
        )


# -- going on -----------------------------------------------------------------------------------------


class Killed(Exception):
    pass


def die_after(saves: int, die: Any, patch: pytest.MonkeyPatch) -> None:
    """Let the state be saved so often, and then `die`."""
    save, left = Saved.save, [saves]

    def counted(self: Saved, number: int, state: Any, beside: Any) -> None:
        save(self, number, state, beside)
        left[0] -= 1
        if left[0] == 0:
            die()

    patch.setattr(Saved, "save", counted)


@pytest.mark.parametrize("saves", [2, 9])
def test_a_run_that_ended_goes_on_with_the_same_bits(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    """It ends in the warm-up, and in the draws."""

    def die() -> None:
        raise Killed

    with monkeypatch.context() as patch:
        die_after(saves, die, patch)
        with pytest.raises(Killed):
            go(tmp_path)
    assert (tmp_path / "draws.zarr" / "posterior").exists() == (saves > 8)
    assert_equal(whole, go(tmp_path))


def test_more_draws_go_on_from_those_that_are_there(whole: Any, tmp_path: Path) -> None:
    few = go(tmp_path, draws=7)
    assert_equal(whole, few, 7)
    assert_equal(whole, go(tmp_path))
    fewer = go(tmp_path, draws=3)
    assert fewer.posterior.sizes["draw"] == 3
    assert_equal(whole, fewer, 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"key": jax.random.key(7)}, "key was"),
        ({"chains": 5}, "chains was 6 and is 5"),
        ({"warmup": 30}, "warmup was 40 and is 30"),
        ({"sampler": mcmc.HMC()}, r"sampler was 'NUTS\(.*' and is 'HMC\("),
        ({"init": lambda key: {"group": {"mean": 0.5}, "scale": jnp.ones((2,))}}, "other starts"),
    ],
    ids=["key", "chains", "warmup", "sampler", "starts"],
)
def test_the_directory_of_another_run_is_refused(
    whole: Any, directory: Path, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(OptionError, match=f"holds another run: .*{says}"):
        go(directory, **change)
