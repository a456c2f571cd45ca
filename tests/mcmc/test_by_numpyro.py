"""A NumPyro model is what NumPyro makes of it: its density, its axes, its data, and what is drawn from it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import needs
from lanewise import mcmc
from lanewise.core.errors import OptionError

pytestmark = needs.installed("numpyro")

OBSERVED = np.array([0.5, -1.2, 2.2, 0.9, 1.7], np.float32)


def sites() -> tuple[Any, Any]:
    import numpyro
    from numpyro import distributions as dist

    return numpyro, dist


def ragged() -> None:
    """Supports of several kinds, one of which depends on another site."""
    numpyro, dist = sites()
    low: Any = numpyro.sample("low", dist.Normal(0.0, 1.0))
    numpyro.sample("between", dist.Uniform(low, low + 2.0))
    weights: Any = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    numpyro.deterministic("first", weights[0])
    with numpyro.plate("rows", 5):
        numpyro.sample("observed", dist.Normal(low, 1.0), obs=OBSERVED)


def looping() -> None:
    numpyro, dist = sites()
    from numpyro.contrib.control_flow import scan

    def step(state: Any, observed: Any) -> Any:
        state = numpyro.sample("state", dist.Normal(0.9 * state, 1.0))
        numpyro.sample("observed", dist.Normal(state, 0.5), obs=observed)
        return state, None

    scan(step, numpyro.sample("start", dist.Normal(0.0, 1.0)), jnp.asarray(OBSERVED))


def constrained() -> None:
    """Matrices, order, flat priors, a mask, a factor, branches."""
    numpyro, dist = sites()
    from numpyro.contrib.control_flow import cond

    numpyro.sample("correlation", dist.LKJCholesky(3, 2.0))
    ordered = dist.transforms.OrderedTransform()
    cuts = numpyro.sample(
        "cuts", dist.TransformedDistribution(dist.Normal(0, 1).expand([3]).to_event(1), ordered)
    )
    flat = numpyro.sample("flat", dist.ImproperUniform(dist.constraints.positive, (), ()))
    numpyro.factor("tail", -flat)
    mean = cond(flat > 1.0, lambda x: x, lambda x: 2.0 * x, flat)
    with numpyro.handlers.mask(mask=np.array([True, True, False, True, True])):
        numpyro.sample("observed", dist.Normal(mean, 1.0).expand([5]), obs=OBSERVED)
    numpyro.sample("graded", dist.OrderedLogistic(flat, cuts), obs=np.array([0, 3, 1]))


def reparameterized() -> None:
    numpyro, dist = sites()
    from numpyro.infer.reparam import CircularReparam, LocScaleReparam

    def model() -> None:
        spread = numpyro.sample("spread", dist.HalfCauchy(1.0))
        angle = numpyro.sample("angle", dist.VonMises(0.0, 2.0))
        with numpyro.plate("groups", 3):
            numpyro.sample("effect", dist.Normal(angle, spread))

    config = {"effect": LocScaleReparam(0), "angle": CircularReparam()}
    numpyro.handlers.reparam(model, config=config)()


def with_parameters() -> None:
    numpyro, dist = sites()
    scale = numpyro.param("scale", lambda key: 1.0 + jax.random.uniform(key))
    numpyro.sample("x", dist.Normal(0.0, scale))


@pytest.mark.parametrize("model", [ragged, looping, constrained, reparameterized])
def test_a_model_is_what_numpyro_makes_of_it(model: Callable[[], None]) -> None:
    from numpyro.infer.util import initialize_model

    ours = mcmc.from_numpyro(model)
    theirs = initialize_model(jax.random.PRNGKey(0), model, validate_grad=False)
    assert ours.init is not None and ours.shown is not None and ours.unconstrained is not None
    position = jax.jit(ours.init)(jax.random.key(3))
    shapes = jax.tree.map(jnp.shape, (position, theirs.param_info.z))
    assert shapes[0] == shapes[1]
    expected = theirs.postprocess_fn(position)
    shown = jax.jit(ours.shown)(position)
    assert set(expected) == set(shown)
    close(
        (ours.logdensity(position), dict(shown)),
        (-theirs.potential_fn(position), {name: expected[name] for name in shown}),
    )
    close(jax.jit(ours.unconstrained)(dict(shown)), position)


def close(found: Any, wanted: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found, wanted)


def test_parameters_stay_as_they_are() -> None:
    model = mcmc.from_numpyro(with_parameters)
    gradient = jax.grad(model.logdensity)({"x": jnp.float32(1.0)})["x"]
    assert 0.25 < -gradient < 1.0, "x / scale**2, with scale between 1 and 2"
    close(gradient, jax.grad(model.logdensity)({"x": jnp.float32(1.0)})["x"])


def regression(x: Any, y: Any = None, *, scale: float = 2.0) -> None:
    numpyro, dist = sites()
    with numpyro.plate("feature", x.shape[1]):
        slope = numpyro.sample("slope", dist.Normal(0.0, scale))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("row", x.shape[0]):
        mean = numpyro.deterministic("mean", x @ slope)
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)


X = np.arange(10.0, dtype=np.float32).reshape(5, 2) / 5.0


def test_data_axes_and_places() -> None:
    model = mcmc.from_numpyro(
        regression, X, y=OBSERVED, scale=1.0, coords={"feature": ["age", "height"]}
    )
    assert dict(model.dims) == {"slope": ["feature"], "mean": ["row"], "y": ["row"]}
    assert dict(model.coords) == {"feature": ["age", "height"]}
    np.testing.assert_array_equal(model.observed["y"], OBSERVED)
    assert set(model.constant) == {"x"}
    named = mcmc.from_numpyro(ragged, dims={"weights": ["part"]})
    assert named.dims["weights"] == ["part"] and named.dims["observed"] == ["rows"]


def test_what_is_observed_can_be_drawn_and_weighed() -> None:
    from jax.scipy.stats import norm

    model = mcmc.from_numpyro(regression, X, OBSERVED)
    assert model.unconstrained and model.log_likelihood and model.predictive and model.prior
    values = {"slope": np.array([0.5, -0.25], np.float32), "noise": np.float32(0.1), "mean": 0.0}
    position = model.unconstrained(values)
    mean = X @ values["slope"]
    weighed = jax.jit(model.log_likelihood)(position)
    close(weighed, {"y": norm.logpdf(OBSERVED, mean, 0.1)})
    keys = jax.random.split(jax.random.key(0), 400)
    drawn = jax.jit(jax.vmap(model.predictive, (0, None)))(keys, position)
    assert set(drawn) == {"y"} and drawn["y"].shape == (400, 5)
    np.testing.assert_allclose(drawn["y"].mean(0), mean, atol=0.03)
    np.testing.assert_allclose(drawn["y"].std(0), 0.1, atol=0.02)
    prior = jax.jit(jax.vmap(model.prior))(keys)
    assert set(prior) == {"slope", "noise", "mean", "y"}
    np.testing.assert_allclose(prior["slope"].std(0), 2.0, atol=0.3)
    close(prior["mean"], prior["slope"] @ X.T)
    assert not np.allclose(prior["y"], OBSERVED)


def test_masked_data_weigh_nothing_and_flat_priors_have_no_draws() -> None:
    model = mcmc.from_numpyro(constrained)
    assert model.init and model.log_likelihood and model.predictive
    position = model.init(jax.random.key(0))
    weighed = model.log_likelihood(position)
    assert weighed["observed"].shape == (5,) and weighed["observed"][2] == 0.0
    assert set(model.observed) == {"observed", "graded"}, "a factor is no data"
    assert set(model.predictive(jax.random.key(1), position)) == {"observed", "graded"}
    assert model.prior is None


def test_what_a_scan_observes_is_drawn_anew_or_not_at_all() -> None:
    model = mcmc.from_numpyro(looping)
    assert model.init is not None and model.shown is not None
    if model.predictive is None:
        pytest.skip("this NumPyro keeps the data of a scan")
    position = model.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 500)
    drawn = jax.jit(jax.vmap(model.predictive, (0, None)))(keys, position)["observed"]
    np.testing.assert_allclose(drawn.mean(0), model.shown(position)["state"], atol=0.1)
    np.testing.assert_allclose(drawn.std(0), 0.5, atol=0.1)


def test_starts_by_a_strategy_of_numpyro() -> None:
    from numpyro import infer

    values = {"slope": np.array([1.0, 2.0]), "noise": 0.5}
    strategy: Any = infer.init_to_value(values=values)
    model = mcmc.from_numpyro(regression, X, OBSERVED, init_strategy=strategy)
    assert model.init is not None and model.shown is not None
    shown = model.shown(model.init(jax.random.key(0)))
    close({name: shown[name] for name in values}, values)
    partial: Any = infer.init_to_value(values={"noise": 0.5})
    model = mcmc.from_numpyro(regression, X, OBSERVED, init_strategy=partial)
    assert model.init is not None
    starts = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 8))
    close(starts["noise"], np.full(8, np.log(0.5), np.float32))
    assert len(np.unique(starts["slope"])) == 16
    uniform: Any = infer.init_to_uniform  # whose radius is annotated as an int
    for strategy in (infer.init_to_median, infer.init_to_sample, uniform(radius=0.1)):
        for program in (regression, None):
            args = (X, OBSERVED) if program else ()
            model = mcmc.from_numpyro(program or looping, *args, init_strategy=strategy)
            assert model.init is not None
            starts = jax.jit(jax.vmap(model.init))(jax.random.split(jax.random.key(0), 4))
            assert all(np.isfinite(leaf).all() for leaf in starts.values())
            if strategy not in (infer.init_to_median, infer.init_to_sample):
                assert all((abs(leaf) <= 0.1).all() for leaf in starts.values())


def subsampling() -> None:
    numpyro, dist = sites()
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 5, subsample_size=2) as rows:
        numpyro.sample("observed", dist.Normal(mean, 1.0), obs=jnp.asarray(OBSERVED)[rows])


def counting() -> None:
    numpyro, dist = sites()
    numpyro.sample("x", dist.Normal(numpyro.sample("count", dist.Poisson(3.0)), 1.0))


def pinned() -> None:
    numpyro, dist = sites()
    numpyro.sample("x", dist.Normal(numpyro.sample("point", dist.Delta(3.0)), 1.0))


def pointing() -> None:
    numpyro, dist = sites()
    numpyro.sample("direction", dist.ProjectedNormal(jnp.ones(3)))


def branching() -> None:
    numpyro, dist = sites()
    if numpyro.sample("x", dist.Normal(0.0, 1.0)) > 0.0:
        numpyro.sample("y", dist.Normal(0.0, 1.0))


def nothing() -> None:
    numpyro, dist = sites()
    numpyro.sample("observed", dist.Normal(0.0, 1.0), obs=1.0)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (subsampling, {}, "plate 'rows' takes 2 of 5 at random: .* Leave subsample_size out"),
        (counting, {}, r"site 'count' is discrete \(Poisson\)"),
        (pinned, {}, r"site 'point' has a Delta .*numpyro.deterministic\('point', value\)"),
        (pointing, {}, r"site 'direction' \(ProjectedNormal\) .*Reparameterize"),
        (branching, {}, r"test_by_numpyro.py:\d+: the model asks Python .*jnp.where"),
        (nothing, {}, "no site that is sampled"),
        (ragged, {"dims": {"weights": ["a", "b"]}}, r"dims\['weights'\] names 2 axes"),
        (ragged, {"coords": {"rows": ["a"]}}, r"coords\['rows'\] has 1 places; the model has 5"),
        (ragged, {"coords": {"rwos": ["a"]}}, r"coords\['rwos'\] is no axis .*: rows"),
        (ragged, {"init_strategy": 3}, "init_strategy=3 must be one of NumPyro's"),
        (3, {}, "takes a NumPyro model, a function; got 3"),
    ],
)
def test_what_no_chain_can_sample_is_refused(model: Any, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        mcmc.from_numpyro(model, **options)


def test_values_that_do_not_make_a_position_are_refused() -> None:
    from numpyro.infer import init_to_value

    model = mcmc.from_numpyro(regression, X, OBSERVED)
    assert model.unconstrained is not None
    with pytest.raises(OptionError, match="values of noise are missing"):
        model.unconstrained({"slope": np.zeros(2)})  # type: ignore[dict-item]
    with pytest.raises(OptionError, match=r"slope has shape \(3,\); the model has \(2,\)"):
        model.unconstrained({"slope": np.zeros(3), "noise": 1.0})  # type: ignore[dict-item]
    strategy: Any = init_to_value(values={"slop": np.zeros(2)})
    with pytest.raises(OptionError, match="values for slop; the model samples slope, noise"):
        mcmc.from_numpyro(regression, X, OBSERVED, init_strategy=strategy)


def test_an_angle_is_warned_of_once() -> None:
    numpyro, dist = sites()

    def turning() -> None:
        numpyro.sample("angle", dist.VonMises(0.0, 1.0))

    with pytest.warns(UserWarning, match="site 'angle' is an angle") as caught:
        model = mcmc.from_numpyro(turning)
        assert model.unconstrained is not None
        model.unconstrained({"angle": jnp.float32(1.0)})
    assert len(caught) == 1


def mixture(observed: Any) -> None:
    numpyro, dist = sites()
    means = numpyro.sample("means", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    shared = numpyro.sample("shared", dist.Bernoulli(0.5))
    with numpyro.plate("rows", len(observed)):
        kind = numpyro.sample("kind", dist.Bernoulli(0.3))
        numpyro.sample("observed", dist.Normal(means[kind] + 5.0 * shared, 1.0), obs=observed)


@pytest.mark.skipif(importlib.util.find_spec("funsor") is not None, reason="Funsor is installed")
def test_discrete_sites_need_funsor() -> None:
    with pytest.raises(OptionError, match=r"'shared' is discrete \(Bernoulli.*pip install funsor"):
        mcmc.from_numpyro(mixture, OBSERVED)


@needs.installed("funsor")
def test_discrete_sites_are_summed_out() -> None:
    from jax.scipy.stats import norm

    model = mcmc.from_numpyro(mixture, OBSERVED)
    position = {"means": jnp.array([-1.0, 2.0])}

    def given(shared: float) -> Any:
        parts = [
            jnp.log(w) + norm.logpdf(OBSERVED, m + 5 * shared) for w, m in ((0.7, -1), (0.3, 2))
        ]
        return jnp.log(0.5) + jnp.logaddexp(*parts).sum()

    wanted = norm.logpdf(position["means"], 0.0, 3.0).sum() + jnp.logaddexp(given(0), given(1))
    close(model.logdensity(position), wanted)
    assert model.log_likelihood is None and model.predictive is not None
    keys = jax.random.split(jax.random.key(0), 200)
    drawn = jax.jit(jax.vmap(model.predictive, (0, None)))(keys, position)["observed"]
    assert drawn.shape == (200, 5) and drawn.mean() < 2.0, "`shared` is 0 given the data"
