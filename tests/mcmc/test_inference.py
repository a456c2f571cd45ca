"""Draws as ArviZ has them, whichever ArviZ is installed: no copies, names of axes, data, attributes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import needs
from lanewise import mcmc
from lanewise.core.errors import OptionError
from lanewise.mcmc.inference import data_of, groups_of, sampled, with_groups
from lanewise.mcmc.models import Model

arviz: Any = needs.library("arviz")
xarray: Any = needs.library("xarray")

DRAWS = np.random.default_rng(0).normal(size=(4, 50, 3))


def model(**fields: Any) -> Model:
    return Model(lambda x: -x @ x, **fields)


def run(**fields: Any) -> Any:
    groups = {"posterior": {"x": DRAWS}, "sample_stats": {"lp": DRAWS[..., 0]}}
    return sampled(model(**fields), groups, {"tuning_steps": 7, "sampling_time": 1.5})


def test_the_kind_is_that_of_the_installed_arviz() -> None:
    data = run()
    first = int(arviz.__version__.split(".")[0])
    assert isinstance(data, xarray.DataTree if first >= 1 else arviz.InferenceData)
    assert {"mean", "ess_bulk"} <= set(arviz.summary(data).columns)
    assert float(arviz.rhat(data)["x"].max()) < 1.1


def test_a_run_has_the_scale_of_its_coordinates() -> None:
    data = mcmc.sample(
        model(), 0, chains=2, draws=20, warmup=20, init=np.zeros((2, 3), np.float32), progress=False
    )
    scale = data.sample_stats["inverse_mass_matrix"]
    assert (scale.dims, scale.shape) == (("coordinate",), (3,))
    assert scale.dtype == np.float32 and (scale.values > 0).all()


def test_names_may_have_slashes() -> None:
    groups = {"posterior": {"group/x": DRAWS, "y": DRAWS[..., 0]}}
    data = sampled(model(dims={"group/x": ["a/row"]}), groups, {})
    trees = hasattr(data, "children")
    name, row = ("group.x", "a.row") if trees else ("group/x", "a/row")
    assert data.posterior[name].dims == ("chain", "draw", row)
    assert np.shares_memory(data.posterior[name].values, DRAWS)
    again = groups_of(with_groups(data, {"prior": groups_of(data)["posterior"]}))
    for group in ("posterior", "prior"):
        assert set(again[group].data_vars) == {"group/x", "y"}
        assert again[group]["group/x"].dims == ("chain", "draw", "a/row")


def test_nothing_is_copied() -> None:
    data = run()
    assert np.shares_memory(data.posterior["x"].values, DRAWS)
    more = with_groups(data, {"posterior_predictive": data.posterior})
    assert np.shares_memory(more.posterior["x"].values, DRAWS)
    assert "posterior_predictive" not in groups_of(data)


class Counting:
    """An array on disk that counts what is read of it."""

    shape, dtype = DRAWS.shape, DRAWS.dtype
    read = 0

    def __getitem__(self, key: Any) -> np.ndarray:
        part = DRAWS[key]
        self.read += part.size
        return part


def test_arrays_on_disk_are_read_when_they_are_asked_for() -> None:
    disk = Counting()
    data = sampled(model(), {"posterior": {"x": disk}}, {})
    assert disk.read == 0
    part = data.posterior["x"].isel(draw=slice(2, 4)).values
    np.testing.assert_array_equal(part, DRAWS[:, 2:4])
    assert disk.read == part.size
    np.testing.assert_array_equal(data.posterior["x"].isel(chain=[3, 1]).values, DRAWS[[3, 1]])


def test_zarr_arrays_stay_on_disk(tmp_path: Path) -> None:
    zarr: Any = needs.library("zarr")
    stored = zarr.create_array(str(tmp_path / "x"), data=DRAWS)
    data = sampled(model(), {"posterior": {"x": stored}}, {})
    assert not isinstance(data.posterior["x"].variable._data, np.ndarray)
    np.testing.assert_array_equal(data.posterior["x"].values, DRAWS)


def test_groups_axes_and_attributes_are_those_of_the_schema() -> None:
    warm = {"warmup_posterior": {"x": DRAWS[:, :7]}, "warmup_sample_stats": {"lp": DRAWS[:, :7, 0]}}
    groups = {"posterior": {"x": DRAWS}, "sample_stats": {"lp": DRAWS[..., 0]}}
    named = model(
        observed={"y": np.zeros(3)},
        constant={"z": np.ones((2, 3))},
        dims={"x": ["place"], "y": ["place"], "z": [None, "place"]},
        coords={"place": ["a", "b", "c"]},
    )
    found = groups_of(sampled(named, groups | warm, {"tuning_steps": 7, "sampling_time": 1.5}))
    assert set(found) == {*groups, *warm, "observed_data", "constant_data"}
    assert found["posterior"]["x"].dims == ("chain", "draw", "place")
    assert found["warmup_posterior"].sizes == {"chain": 4, "draw": 7, "place": 3}
    assert found["observed_data"]["y"].sel(place="b") == 0.0
    assert found["constant_data"]["z"].dims == ("z_dim_0", "place")
    attributes = found["posterior"].attrs
    assert attributes["inference_library"] == attributes["creation_library"] == "lanewise"
    assert (attributes["tuning_steps"], attributes["sampling_time"]) == (7, 1.5)
    assert "inference_library" not in found["observed_data"].attrs


def test_more_chains_than_draws_is_no_mistake(recwarn: pytest.WarningsRecorder) -> None:
    data = data_of({"posterior": {"x": np.zeros((50, 4))}})
    assert data.posterior["x"].dims == ("chain", "draw")
    assert not recwarn.list


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dims": {"x": ["a", "b"]}}, "dims names 2 axes of x, which has 1"),
        ({"dims": {"x": ["a"]}, "coords": {"a": [1, 2]}}, "axis 0 of x has size 3, and 'a' has 2"),
        ({"dims": {"x": ["draw"]}}, "axis 0 of x has size 3, and 'draw'"),
    ],
)
def test_names_that_do_not_fit_cost_no_draws(fields: dict[str, Any], says: str) -> None:
    with pytest.warns(UserWarning, match=says):
        data = run(**fields)
    assert data.posterior["x"].dims == ("chain", "draw", "x_dim_0")


def test_other_things_than_data_are_refused() -> None:
    with pytest.raises(OptionError, match=r"data must be what mcmc.sample gives.*; got int"):
        groups_of(3)


@pytest.mark.parametrize("name", ["chain", "draw"])
def test_names_of_arviz_axes_are_refused_before_a_run(name: str) -> None:
    with pytest.raises(OptionError, match=f"named '{name}'"):
        mcmc.sample(
            lambda p: -jnp.sum(p[name] ** 2),
            0,
            chains=2,
            draws=2,
            warmup=2,
            init=lambda key: {name: jnp.zeros(2)},
        )


def test_a_model_that_shows_nothing_is_refused() -> None:
    model = mcmc.Model(lambda x: -(x**2), lambda key: jnp.zeros(()), shown=lambda x: {})
    with pytest.raises(OptionError, match="nothing would be kept"):
        mcmc.sample(model, 0, chains=2, draws=2, warmup=2)


@pytest.mark.parametrize("other", ["x", "y"])
def test_an_axis_with_the_name_of_a_variable_costs_no_draws(other: str) -> None:
    model = mcmc.Model(
        lambda p: -jnp.sum(p["x"] ** 2) - p["y"] ** 2,
        lambda key: {"x": jax.random.normal(key, (3,)), "y": jnp.zeros(())},
        dims={"x": [other]},
        coords={other: ["a", "b", "c"]},
    )
    with pytest.warns(UserWarning, match=f"'{other}' is the name of axis 0 of x and of a variable"):
        data = mcmc.sample(model, 0, chains=2, draws=4, warmup=20, progress=False)
    assert data.posterior["x"].dims == ("chain", "draw", "x_dim_0")


def test_a_position_given_to_numpy_is_said_to_be() -> None:
    def density(x: Any) -> Any:
        return -np.exp(x).sum()

    with pytest.raises(OptionError, match=r"`density` gives its position to NumPy; use jax.numpy"):
        mcmc.sample(density, 0, chains=2, draws=2, warmup=2, init=lambda key: jnp.zeros(2))
