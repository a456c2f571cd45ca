"""Wrong calls, as one makes them: the message names the argument, and what would be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import lanewise as lw
from lanewise import arrays, mcmc
from lanewise.core.errors import LanewiseError


@lw.program
def doubled(x):
    while x < 10:
        x = x * 2
    return x


@lw.program
def either(x, y):
    return x + y if x > 0 else y


X = jnp.ones(4)
KEY = jax.random.key(0)


def sample(**wrong: Any) -> Any:
    given: dict[str, Any] = {
        "logdensity": lambda q: -(q**2).sum(),
        "key": KEY,
        "chains": 2,
        "draws": 3,
        "warmup": 3,
        "init": jnp.zeros((2, 2)),
        "progress": False,
    }
    return mcmc.sample(**(given | wrong))


def start(key: Any) -> Any:
    return jax.random.normal(key, (2,))


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: lw.vmap(None), "vmap takes a function"),  # type: ignore[arg-type]
    (lambda: lw.vmap(doubled, axis_size="4"), "axis_size='4' must be an int"),  # type: ignore[arg-type]
    (lambda: lw.vmap(doubled, out_axes=2)(X), "out_axes=2 does not fit"),
    (lambda: lw.vmap(doubled, lane=2), "did you mean 'lanes'"),
    (lambda: lw.grad(None), "grad takes a function"),  # type: ignore[arg-type]
    (lambda: lw.grad(doubled, argnums="x"), "argnums='x' must be the place"),  # type: ignore[arg-type]
    (lambda: lw.grad(doubled, argnums=(0, 1.5)), "argnums=(0, 1.5) must be"),  # type: ignore[arg-type]
    (lambda: lw.grad(doubled, throw=False), "throw=False gives more than the answer"),
    (lambda: lw.value_and_grad(doubled, stats=True), "stats=True gives more than the answer"),
    (lambda: lw.value_and_grad(3), "value_and_grad takes a function"),  # type: ignore[arg-type]
    (lambda: lw.check_grads(doubled, 1.0), "arguments as a tuple"),  # type: ignore[arg-type]
    (lambda: lw.recomputed(0, 3), "length=0 must be"),
    (lambda: lw.stream(doubled, 3), "examples is of type int"),  # type: ignore[arg-type]
    (lambda: lw.stream(None, [1]), "stream takes a function"),  # type: ignore[arg-type]
    (lambda: lw.stream(doubled, [1.0], lanes=0), "lanes=0 must be"),
    (lambda: lw.stream(doubled, [1.0], ordered="yes"), "ordered='yes' must be"),  # type: ignore[arg-type]
    (lambda: lw.stream(doubled, [1.0], throw="no"), "throw='no' must be"),  # type: ignore[arg-type]
    (lambda: lw.stream(doubled, [1.0], stats=True), "stats=True is for lanewise.vmap"),
    (lambda: lw.program(3), "made from a function; got int"),  # type: ignore[arg-type]
    (lambda: lw.program(jax.grad(lambda x: x * x))(1.0), "made, and its source is JAX's"),
    (lambda: lw.program(abs)(-3.0), "use `lanewise.lift`"),
    (lambda: lw.program(max_step=3)(doubled.python), "did you mean 'max_steps'"),
    (lambda: lw.program(static_argnums=1.5)(doubled.python), "static_argnums takes int"),  # type: ignore[arg-type]
    (lambda: lw.program(static_argnums=7)(doubled.python), "static_argnums=7 is out of range"),
    (lambda: lw.program(static_argnames="z")(doubled.python), "static_argnames='z' is not"),
    (lambda: lw.lift(None), "made from a function"),  # type: ignore[arg-type]
    (lambda: lw.lift(doubled, static_argnums=0), "where a program is first made"),
    (lambda: arrays.reduce("add", X), "`operator` is 'add', not a function"),  # type: ignore[arg-type]
    (lambda: arrays.reduce(jnp.add, None), "`xs` holds no array"),
    (lambda: arrays.reduce(jnp.add, 3.0), "`xs` is a scalar"),
    (lambda: arrays.scan(lambda a: a, X), "`operator` is <lambda>(a). Give one that takes two"),  # type: ignore[arg-type]
    (lambda: arrays.scan(lambda a, b: jnp.ones(3), X), "`operator` gives float32[3]"),
    (lambda: arrays.map(None, X), "`function` is None"),  # type: ignore[arg-type]
    (lambda: arrays.map(jnp.add, X, jnp.ones(3)), "lengths differ"),
    (lambda: arrays.histogram(jnp.add, X, jnp.zeros(4, int), 3), "`indices` is float32[4]"),
    (lambda: arrays.scatter(X, jnp.zeros(3), X), "`indices` is float32[3]"),
    (lambda: lw.fixed_point(None, 1.0), "fixed_point takes a function"),  # type: ignore[arg-type]
    (lambda: lw.inspect(3), "made from a function"),  # type: ignore[arg-type]
    (lambda: lw.inspect(doubled, 1.0), "in_axes=0 maps axis 0"),
    (lambda: lw.inspect(doubled, X, in_axes=-3), "in_axes=-3 maps axis -3"),
    (lambda: lw.inspect(doubled, X, in_axes="a"), "in_axes='a' must be"),
    (lambda: lw.inspect(doubled, X, carrier="ticks"), "with_options(carrier='ticks')"),
    (lambda: sample(logdensity=None), "logdensity must be a function"),
    (lambda: sample(key=1.5), "key=1.5 is not one random key"),
    (lambda: sample(chains=True), "chains=True must be an int"),
    (lambda: sample(draws=2.5), "draws=2.5 must be an int"),
    (lambda: sample(init=jnp.zeros((3, 2))), "init has shape (3, 2)"),
    (lambda: sample(sampler=mcmc.NUTS), "must be NUTS(...)"),
    (lambda: sample(step_size="a"), "step_size='a' must be a positive number"),
    (lambda: sample(resume=3), "resume=3 must be the path"),
    (lambda: sample(resume=""), "resume='' must be the path"),
    (lambda: sample(thin=0), "thin=0 must be an int, 1 or more"),
    (lambda: sample(keep_warmup="no"), "keep_warmup='no' must be True or False"),
    (lambda: sample(target_accept=1.0), "target_accept=1.0 must be a number between 0 and 1"),
    (lambda: sample(init=start, initial_values={"y": 1.0}), "names 'y'; the quantities are 'x'"),
    (lambda: sample(init=start, initial_values={"x": X}), "has shape (4,); it must be (2,)"),
    (
        lambda: sample(init=start, initial_values={"x": "a"}),
        "initial_values['x']='a' must be numbers",
    ),
    (lambda: sample(initial_values={"x": 1.0}), "needs an init that is a function of a key"),
    (lambda: mcmc.NUTS(target_accept="a"), "target_accept='a' must be"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_wrong_call_names_the_argument(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(LanewiseError) as caught:
        call()
    assert says in str(caught.value)


def test_what_the_messages_advise_works() -> None:
    gradients, outcomes = lw.vmap(lw.grad(doubled), throw=False)(X)
    assert gradients.tolist() == [16.0] * 4 and outcomes.ok().all()
    assert lw.inspect(doubled.with_options(carrier="ticks"), X, in_axes=-1).lanes == 4
    assert lw.vmap(doubled, axis_size=jnp.int32(4).item())(X).shape == (4,)
