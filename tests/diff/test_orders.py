"""Reverse mode meets JAX's other transformations, in any order and place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import lanewise as lw
from lanewise.core.errors import Outcome


@lw.program
def wander(x, n, w):
    """A loop of unknown length with a branch."""
    i = 0
    while i < n:
        if x > 1.0:
            x = jnp.sin(x) * 2.0
        else:
            x = x * x + 0.3 * w
        i += 1
    return x


def plain_wander(x, n, w):
    for _ in range(int(n)):
        x = jnp.where(x > 1.0, jnp.sin(x) * 2.0, x * x + 0.3 * w)
    return x


@lw.program
def product(x, n, w):
    """A recursion."""
    if n == 0:
        return x * w
    return jnp.sin(x) * product(x + w, n - 1, w)


def plain_product(x, n, w):
    return x * w if n == 0 else jnp.sin(x) * plain_product(x + w, n - 1, w)


PAIRS = {"loop": (wander, plain_wander), "recursion": (product, plain_product)}
XS, NS, W = jnp.array([0.7, 0.2, 1.5]), jnp.array([3, 0, 5]), jnp.float32(1.3)
X, N = XS[0], 3

Fun = Callable[..., Any]


def each(f: Fun, xs: Any, w: Any = W) -> Any:
    """A batch; the plain form one example at a time."""
    if isinstance(f, lw.ProgramFunction):
        return jax.vmap(f, (0, 0, None))(xs, NS, w)
    return jnp.stack([f(x, n, w) for x, n in zip(xs, (3, 0, 5), strict=True)])


ORDERS: dict[str, Callable[[Fun], Any]] = {
    "grad": lambda f: jax.grad(f, (0, 2))(X, N, W),
    "grad of a batch": lambda f: jax.grad(lambda xs, w: (each(f, xs) * w).sum(), (0, 1))(XS, W),
    "jit of grad": lambda f: jax.jit(jax.grad(f, 2), static_argnums=1)(X, N, W),
    "grad of jit": lambda f: jax.grad(jax.jit(f, static_argnums=1))(X, N, W),
    "grad of grad": lambda f: jax.grad(jax.grad(f, 2))(X, N, W),
    "jvp of grad": lambda f: jax.jvp(lambda x: jax.grad(f)(x, N, W), (X,), (W,)),
    "grad of jvp": lambda f: jax.grad(lambda x: jax.jvp(lambda x: f(x, N, x), (x,), (W,))[1])(X),
    "hessian": lambda f: jax.hessian(lambda v: f(v[0], N, v[1]))(jnp.stack([X, W])),
    "jacrev": lambda f: jax.jacrev(partial(each, f))(XS),
    "jacfwd": lambda f: jax.jacfwd(partial(each, f))(XS),
    "linearize": lambda f: jax.vmap(jax.linearize(lambda x: f(x, N, W), X)[1])(XS),
    "pulled in a batch": lambda f: jax.vmap(jax.vjp(lambda x: f(x, N, W), X)[1])(XS),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(lambda x: jnp.cos(f(x, N, x))))(X),
    "checkpoint in jit of a batch": lambda f: jax.jit(
        jax.grad(lambda xs: jnp.sum(jnp.cos(jax.checkpoint(partial(each, f))(xs))))
    )(XS),
    "scan around": lambda f: jax.grad(
        lambda x: lax.scan(lambda x, _: (f(x, 2, W), x), x, length=3)[0]
    )(X),
    "cond around": lambda f: jax.grad(lambda x: lax.cond(x > 0, lambda x: f(x, 2, W), jnp.sin, x))(
        X
    ),
    "a sum in two places": lambda f: jax.grad(lambda x: f(x, 2, x) * f(x * x, 1, W))(X),
}
# Each with one of the two programs, in turns; the plain ones first.
RUNS = [
    pytest.param(order, list(PAIRS)[(at + (at > 9)) % 2], id=order)
    for at, order in enumerate(ORDERS)
]


def close(found: Any, expected: Any, tolerance: float = 2e-4) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("order", "which"), RUNS)
def test_orders(order: str, which: str) -> None:
    ours, plain = PAIRS[which]
    # Ours is traced and run where it stands; what it is compared with is compiled whole, which is quicker.
    close(ORDERS[order](ours), jax.jit(lambda: ORDERS[order](plain))())


@pytest.mark.parametrize("carrier", ["ticks", "native"])
@pytest.mark.parametrize("which", PAIRS)
def test_carriers(which: str, carrier: str) -> None:
    ours, plain = PAIRS[which]
    batch = lw.vmap(ours, (0, 0, None), carrier=carrier)
    found = jax.jit(jax.grad(lambda xs, w: (batch(xs, NS, w) * XS).sum(), (0, 1)))(XS, W)
    close(found, jax.jit(jax.grad(lambda xs, w: (each(plain, xs, w) * XS).sum(), (0, 1)))(XS, W))


@pytest.mark.parametrize("which", PAIRS)
def test_a_batch_of_batches(which: str) -> None:
    """What one batch shares and the other does not is summed over the right lanes."""
    ours, plain = PAIRS[which]
    ws = jnp.array([1.3, 0.8])

    def total(xs: Any, ws: Any) -> Any:
        return jnp.sum(jax.vmap(lambda w: jax.vmap(ours, (0, 0, None))(xs, NS, w))(ws) ** 2)

    def plain_total(xs: Any, ws: Any) -> Any:
        return sum(plain(x, n, w) ** 2 for x, n in zip(xs, (3, 0, 5), strict=True) for w in ws)

    found = jax.jit(jax.grad(total, (0, 1)))(XS, ws)
    close(found, jax.jit(jax.grad(plain_total, (0, 1)))(XS, ws), 2e-3)


def test_lanes_are_refilled() -> None:
    ours, plain = PAIRS["loop"]
    xs, ns = jnp.tile(XS, 3), jnp.tile(NS, 3)
    batch = lw.vmap(ours, (0, 0, None), lanes=2, carrier="ticks")
    found = jax.grad(lambda xs: batch(xs, ns, W).sum())(xs)
    expected = jax.jit(jax.grad(lambda xs: each(plain, xs).sum()))(XS)
    close(found, jnp.tile(expected, 3))


def test_shards() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = PartitionSpec("d")
    batch = jax.vmap(wander, (0, 0, None))

    def total(xs: Any, w: Any) -> Any:
        part = jax.shard_map(
            batch, mesh=mesh, in_specs=(spec, spec, PartitionSpec()), out_specs=spec
        )
        return part(xs, NS, w).sum()

    expected = jax.grad(lambda xs, w: batch(xs, NS, w).sum(), (0, 1))(XS, W)
    close(jax.jit(jax.grad(total, (0, 1)))(XS, W), expected)


def test_gradients_inside_a_program() -> None:
    """A program that descends the gradient of another, differentiated by where it starts."""

    @lw.program
    def descend(x, w):
        steps = 0
        while steps < 3:
            x = x - 0.1 * jax.grad(wander)(x, 2, w)
            steps += 1
        return x

    def plain(x, w):
        for _ in range(3):
            x = x - 0.1 * jax.grad(plain_wander)(x, 2, w)
        return x

    found = jax.jit(jax.value_and_grad(descend, (0, 1)))(X, W)
    close(found, jax.jit(jax.value_and_grad(plain, (0, 1)))(X, W))


# -- rules of the user --------------------------------------------------------------------------------


@jax.custom_jvp
def doubled(x):
    return x * 2.0


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 100.0 * tangents[0]))


@jax.custom_vjp
def tripled(x):
    return x * 3.0


tripled.defvjp(lambda x: (tripled(x), None), lambda _, ct: (1000.0 * ct,))


@pytest.mark.parametrize(("rule", "slope"), [(doubled, 100.0), (tripled, 1000.0)])
def test_custom_rules_are_respected(rule: Fun, slope: float) -> None:
    @lw.program
    def repeated(x, n):
        while n > 0:
            x = rule(x)
            n -= 1
        return x

    @lw.program
    def deep(x, n):
        if n == 0:
            return x
        return rule(deep(x, n - 1))

    ns = jnp.array([0, 1, 2])
    for program in (repeated, deep):
        found = jax.vmap(jax.grad(program))(jnp.ones(3), ns)
        np.testing.assert_allclose(found, slope**ns)
    scanned = lw.lift(lambda x: lax.scan(lambda x, _: (rule(x), x), x, length=2))
    np.testing.assert_allclose(jax.grad(lambda x: scanned(x)[0])(1.0), slope**2)


def test_a_stopped_gradient_is_zero() -> None:
    @lw.program
    def half_stopped(x, n):
        y = x
        while n > 0:
            y = y * lax.stop_gradient(x)
            n -= 1
        return y

    assert float(jax.grad(half_stopped)(3.0, 2)) == 9.0


def test_remat_inside_a_program() -> None:
    step = jax.checkpoint(lambda x: jnp.sin(x) * x)
    ours = lw.lift(
        lambda x: lax.while_loop(lambda s: s[1] < 3, lambda s: (step(s[0]), s[1] + 1), (x, 0))[0]
    )
    close(jax.grad(ours)(X), jax.grad(lambda x: step(step(step(x))))(X))


# -- kinds of values ----------------------------------------------------------------------------------


def test_pytrees_aux_and_other_types() -> None:
    """Integers, bools and keys are carried along; floats in containers have gradients in the same containers."""

    @lw.program
    def walk(params, key, n, flip):
        total = params["scale"]
        count = 0
        while count < n:
            key, own = jax.random.split(key)
            step = params["shift"][count % 2] * jax.random.uniform(own)
            total = total * params["scale"] - step if flip else total + step
            flip = ~flip
            count += 1
        return total, {"count": count, "flip": flip, "key": key}

    def plain(params, key, n, flip):
        total = params["scale"]
        for count in range(int(n)):
            key, own = jax.random.split(key)
            step = params["shift"][count % 2] * jax.random.uniform(own)
            total = total * params["scale"] - step if flip else total + step
            flip = not flip
        return total

    params = {"scale": jnp.float32(1.2), "shift": jnp.array([0.3, -0.5])}
    key = jax.random.key(0)
    expected = jax.jit(jax.value_and_grad(plain), static_argnums=(2, 3))(params, key, 5, True)
    (value, aux), found = jax.value_and_grad(walk, has_aux=True)(params, key, 5, True)
    close((value, found), expected)
    assert int(aux["count"]) == 5 and not bool(aux["flip"])
    keys, ns = jax.random.split(key, 3), jnp.array([0, 2, 5])
    flips = jnp.array([True, False, True])
    found, _ = jax.vmap(jax.grad(walk, has_aux=True), (None, 0, 0, 0))(params, keys, ns, flips)

    @jax.jit
    def rows(params: Any, keys: Any) -> Any:
        lanes = zip(keys, (0, 2, 5), (True, False, True), strict=True)
        return jax.tree.map(lambda *x: jnp.stack(x), *(jax.grad(plain)(params, *a) for a in lanes))

    close(found, rows(params, keys))
    with_integers = jax.grad(walk, (0, 2), has_aux=True, allow_int=True)(params, key, 2, True)
    assert with_integers[0][1].dtype == jax.dtypes.float0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64"])
def test_other_floats(dtype: str) -> None:
    def last(x, n):
        i = 0
        while i < n:
            x = x * x + x
            i += 1
        return x

    xs, ns = jnp.array([0.5, 0.25, -0.5]).astype(dtype), jnp.array([0, 1, 3])
    if dtype == "complex64":
        xs = xs + 0.25j
    real = lambda f: lambda x, n: jnp.real(f(x, n))  # noqa: E731
    found = jax.vmap(jax.grad(real(lw.program(last))))(xs, ns)
    assert found.dtype == dtype
    expected = jnp.stack([jax.grad(real(last))(x, int(n)) for x, n in zip(xs, ns, strict=True)])
    wide = np.complex64 if dtype == "complex64" else np.float32
    np.testing.assert_allclose(found.astype(wide), expected.astype(wide), rtol=2e-2)


def test_guards_keep_gradients_finite() -> None:
    """A branch that is not taken adds nothing, even where its slope is infinite; nor does a loop of no iterations."""

    @lw.program
    def rooted(x, n):
        y = jnp.sqrt(x) if x > 0 else x
        while n > 0:
            y = jnp.log(y)
            n -= 1
        return y

    found = jax.vmap(jax.grad(rooted))(jnp.array([0.0, 4.0, 4.0]), jnp.array([0, 0, 1]))
    np.testing.assert_allclose(found, [1.0, 0.25, 0.125], rtol=1e-5)


def test_donated_arguments() -> None:
    step = jax.jit(
        lambda x: x - 0.1 * jax.vmap(jax.grad(wander), (0, 0, None))(x, NS, W), donate_argnums=0
    )
    expected = XS - 0.1 * jax.vmap(jax.grad(wander), (0, 0, None))(XS, NS, W)
    close(step(XS + 0.0), expected)


def test_closures_over_differentiated_values() -> None:
    def scaled(k: Any, table: Any) -> Any:
        @lw.program
        def grow(x):
            while x < 10.0:
                x = x * k
            return x

        @lw.program
        def climb(n):
            if n == 0:
                return k
            return climb(n - 1) * table[n]

        return grow(1.0) + climb(2)

    table = jnp.array([1.0, 2.0, 3.0])
    by_k, by_table = jax.grad(scaled, (0, 1))(2.0, table)
    # k^4 and k t_1 t_2
    assert float(by_k) == 4 * 8.0 + 6.0
    assert by_table.tolist() == [0.0, 6.0, 4.0]
    assert jax.vmap(jax.grad(scaled), (0, None))(jnp.array([2.0, 3.0]), table).tolist() == [
        38.0,
        27.0 + 6.0,
    ]


# -- how lanes end ------------------------------------------------------------------------------------


def test_a_lane_that_fails_leaves_the_others_their_gradients() -> None:
    @lw.program
    def checked(x, w):
        assert x > 0
        while x < 8:
            x = x * w
        return x

    run = checked.with_options(throw=False)

    def total(xs: Any, w: Any) -> Any:
        values, outcomes = jax.vmap(run, (0, None))(xs, w)
        fine = outcomes.code == Outcome.DONE
        return jnp.sum(jnp.where(fine, values, 0.0)), outcomes.code

    by_x, codes = jax.grad(total, has_aux=True)(jnp.array([1.0, -1.0, 3.0]), 2.0)
    assert by_x.tolist()[::2] == [8.0, 4.0]
    assert codes.tolist() == [Outcome.DONE, Outcome.ASSERTION_FAILED, Outcome.DONE]
    with pytest.raises(lw.LaneError):
        jax.grad(lambda xs: jax.vmap(checked, (0, None))(xs, 2.0).sum())(jnp.array([1.0, -1.0]))


def test_steps_are_bounded() -> None:
    """The bound is on the program's own steps; the way back takes as many as it needs."""
    bounded = wander.with_options(max_steps=200, throw=False)
    value, pull, outcome = jax.vjp(lambda x: bounded(x, N, W), X, has_aux=True)
    assert outcome.code == Outcome.DONE
    close(pull(jnp.ones_like(value))[0], jax.grad(plain_wander)(X, N, W))
    short = wander.with_options(max_steps=3, throw=False)
    _, _, outcome = jax.vjp(lambda x: short(x, 100, W), X, has_aux=True)
    assert outcome.code == Outcome.STEPS_EXHAUSTED
