"""The models of the benchmarks: what is compared is the same posterior, whichever form it is written in.

The density written by hand, NumPyro's and PyMC's are equal up to a constant, in the unconstrained coordinates of each:
differences between positions are compared, in double precision.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import _models
import _models_more
import _models_pymc
import needs
from lanewise import mcmc

pytest.importorskip("numpyro")

BY_HAND = _models.MODELS | _models_more.MORE
# Coordinates that have other names than their sites, beside logarithms of scales.
NAMES = {"triangle": "raw", "means": "raw_means"}
# Of densities of the order of a hundred: constants of the models are in single precision.
CLOSE = 1e-4
# These take the most time to trace.
SLOW = ("lkj", "lotka_volterra", "horseshoe", "item_response", "gaussian", "poisson", "mixture")


def coordinate(site: str, shapes: dict[str, Any]) -> str:
    """The coordinate of the density by hand that a site or a PyMC value variable is."""
    site = site.removesuffix("_log__")
    named = (name for name in (site, f"log_{site}", NAMES.get(site, "")) if name in shapes)
    return next(named)


def positions(model: _models.Posterior) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {name: rng.uniform(-1.0, 1.0, shape) for name, shape in model.shapes.items()}
        for _ in range(4)
    ]


def assert_apart_by_a_constant(by_hand: list[float], theirs: list[float]) -> None:
    apart = np.subtract(by_hand, theirs)
    assert np.ptp(by_hand) > 1.0, "positions of one density compare nothing"
    np.testing.assert_allclose(apart, apart[0], rtol=0.0, atol=CLOSE)


@pytest.mark.parametrize(
    "name",
    [
        *needs.in_turns(n for n in BY_HAND if n not in SLOW),
        *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW),
    ],
)
def test_numpyro_has_the_density_written_by_hand(name: str) -> None:
    from numpyro.infer.util import initialize_model

    with jax.enable_x64(True):
        model = BY_HAND[name]()
        info: Any = initialize_model(jax.random.PRNGKey(0), model.numpyro())
        places = positions(model)
        sites = {site: coordinate(site, model.shapes) for site in info.param_info.z}
        assert {*sites.values()} == model.shapes.keys()
        by_hand = [float(model.logdensity(jax.tree.map(jnp.asarray, p))) for p in places]
        theirs = [
            -float(info.potential_fn({site: p[its] for site, its in sites.items()})) for p in places
        ]
    assert_apart_by_a_constant(by_hand, theirs)


def test_a_density_of_other_data_is_noticed() -> None:
    with pytest.raises(AssertionError):
        assert_apart_by_a_constant([0.0, 2.0, 5.0], [1.0, 3.0, 6.01])


@pytest.mark.parametrize("name", ["eight_schools"])
def test_pymc_has_the_density_written_by_hand(name: str) -> None:
    pytest.importorskip("pymc")
    with jax.enable_x64(True):
        model = BY_HAND[name]()
        theirs = mcmc.from_pymc(_models_pymc.MODELS[name]())
        assert theirs.init is not None
        like: Any = jax.eval_shape(theirs.init, jax.random.key(0))
        values = {value: coordinate(value, model.shapes) for value in like}
        assert {*values.values()} == model.shapes.keys()
        places = positions(model)
        by_hand = [float(model.logdensity(jax.tree.map(jnp.asarray, p))) for p in places]
        found = [
            float(theirs.logdensity({v: jnp.asarray(p[its]) for v, its in values.items()}))
            for p in places
        ]
    assert_apart_by_a_constant(by_hand, found)
