"""Sums over lanes that are made after the loops of a gradient: the same numbers, and no sum over lanes in a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanewise import _jax
from lanewise.place.after_loops import sums_after_loops

LANES, SIZE = 7, 3
W, V = 0.3 * jnp.eye(SIZE) + 0.1, 0.5 * jnp.eye(SIZE) - 0.2
XS = jax.random.normal(jax.random.key(0), (5, LANES, SIZE))


def recurrent(w: Any, v: Any, bias: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        return jnp.tanh(h @ w + jnp.sin(h @ v) @ w + x @ v + bias), h

    return jax.lax.scan(step, jnp.zeros((LANES, SIZE)), XS, reverse=True)


def same_input(w: Any, v: Any, bias: Any) -> Any:
    return jax.lax.fori_loop(0, 4, lambda i, h: jnp.cos(h * bias + XS[0] @ w) * 2.0, XS[1] @ v)


def layers(w: Any, v: Any, bias: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        def layer(h: Any, one: Any) -> Any:
            return jnp.tanh(h @ one[0] + one[1]), None

        return jax.lax.scan(layer, h + x, (jnp.stack([w, v]), jnp.stack([bias, bias])))[0], None

    return jax.lax.scan(step, jnp.zeros((LANES, SIZE)), XS)[0]


def decayed(w: Any, v: Any, bias: Any) -> Any:
    """What is added in an iteration is no sum over lanes alone."""

    def step(state: Any, x: Any) -> Any:
        h, total = state
        return (jnp.tanh(h @ w + bias), total + x.T @ h + 0.1 * v), None

    return jax.lax.scan(step, (XS[0], v), XS)[0]


def loops_in(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        for inner in _jax.subjaxprs(eqn):
            if eqn.primitive.name == "scan":
                yield inner
            yield from loops_in(inner)


def sums_over_lanes(jaxpr: Any) -> list[str]:
    """The equations of loops that sum over an axis as long as the batch."""
    found = []
    for eqn in (eqn for body in loops_in(jaxpr) for eqn in body.eqns):
        shape = eqn.invars[0].aval.shape if eqn.invars else ()
        name = eqn.primitive.name
        axes = {"reduce_sum": lambda: eqn.params["axes"]}
        axes["dot_general"] = lambda: eqn.params["dimension_numbers"][0][0]
        if name == "scatter-add" or any(shape[a] == LANES for a in axes.get(name, lambda: ())()):
            found.append(name)
    return found


@pytest.mark.parametrize("fun", [recurrent, same_input, layers, decayed])
def test_a_gradient_sums_over_lanes_after_its_loops(fun: Callable[..., Any]) -> None:
    def loss(*weights: Any) -> Any:
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(fun(*weights)))

    given = (W, V, jnp.linspace(0.1, 0.3, SIZE))
    code = _jax.trace_at(lambda *args: jax.grad(loss, (0, 1, 2))(*args), given)
    held = code.captures
    later = sums_after_loops(code.jaxpr, (LANES,))
    assert sums_over_lanes(code.jaxpr) and not sums_over_lanes(later)
    for mine, plain in zip(_jax.eval_jaxpr(later, *held, *given), code(*given), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=2e-5, atol=1e-5)


def test_additions_at_indices_are_made_after_the_loop() -> None:
    def counts(xs: Any) -> list[Any]:
        def step(state: Any, x: Any) -> Any:
            h, total = state
            at = (10 * x[:, 0]).astype(jnp.int32) % 4
            return (jnp.tanh(h + x), total.at[at].add(h)), None

        return list(jax.lax.scan(step, (xs[0], jnp.ones((4, SIZE))), xs)[0])

    code = _jax.trace(counts, [jax.typeof(XS)]).jaxpr
    later = sums_after_loops(code, (LANES,))
    assert sums_over_lanes(code) == ["scatter-add"] and not sums_over_lanes(later)
    for mine, plain in zip(_jax.eval_jaxpr(later, XS), counts(XS), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-5)


def test_code_without_such_loops_stays_as_it_is() -> None:
    def straight(x: Any) -> list[Any]:
        return [jnp.sum(x @ W, 0)]

    code = _jax.trace(straight, [jax.typeof(XS[0])]).jaxpr
    assert sums_after_loops(code, (LANES,)) is code
    # A sum that the next iteration reads is needed in the loop.
    read = _jax.trace(
        lambda xs: [jax.lax.scan(lambda c, x: (jnp.sin(c + x.sum(0)), None), xs[0, 0], xs)[0]],
        [jax.typeof(XS)],
    ).jaxpr
    assert sums_over_lanes(sums_after_loops(read, (LANES,))) == ["reduce_sum"]


def test_more_than_there_is_room_for_is_summed_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanewise.place.after_loops.MOST_BYTES", 100)

    def loss(w: Any) -> Any:
        return jnp.sum(recurrent(w, V, 0.1)[0])

    code = _jax.trace_at(lambda w: [jax.grad(loss)(w)], (W,)).jaxpr
    later = sums_after_loops(code, (LANES,))
    assert sums_over_lanes(later) == sums_over_lanes(code)
