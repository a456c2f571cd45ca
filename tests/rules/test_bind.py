"""JAX manners: a program takes JAX's own transformations as if JAX had always had control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import lanewise as lw
from lanewise.carriers import native
from lanewise.core.errors import TransformError
from lanewise.cpp.toolchain import foreign
from programs.small import fib

TRACES = {"power": 0}


@lw.program
def power(x, n):
    TRACES["power"] += 1
    y = jnp.ones_like(x)
    while n > 0:
        y = y * x
        n -= 1
    return y


X = jnp.array([1.0, 2.0, 3.0])
N = jnp.array([4, 0, 2])
POWERS = [1.0, 1.0, 9.0]


def test_jit_and_vmap_in_both_orders() -> None:
    for run in (
        jax.vmap(power),
        jax.jit(jax.vmap(power)),
        jax.vmap(jax.jit(power)),
        jax.jit(jax.vmap(jax.jit(power))),
        lw.vmap(power),
        jax.jit(lw.vmap(power)),
    ):
        assert run(X, N).tolist() == POWERS
    assert float(jax.jit(power)(3.0, 2)) == 9.0


@pytest.mark.parametrize(
    ("in_axes", "out_axes"),
    [
        (0, 0),
        ((1, 0), 1),
        ((-1, 0), -1),
        ((0, None), 0),
        ((None, 0), 0),
        ((1, -1), -2),
        ([0, 0], 0),
    ],
)
def test_axes(in_axes: Any, out_axes: Any) -> None:
    def lax_power(x, n):
        return lax.while_loop(
            lambda s: s[1] > 0, lambda s: (s[0] * x, s[1] - 1), (jnp.ones_like(x), n)
        )[0]

    x, n = jnp.arange(1.0, 10.0).reshape(3, 3), jnp.array([4, 0, 2])
    if in_axes == (0, None):
        n = jnp.int32(3)
    expected = jax.vmap(lax_power, in_axes, out_axes)(x, n)
    np.testing.assert_array_equal(jax.vmap(power, in_axes, out_axes)(x, n), expected)
    np.testing.assert_array_equal(lw.vmap(power, in_axes, out_axes)(x, n), expected)


def test_axes_of_dictionaries_and_keywords() -> None:
    @lw.program
    def scaled(d, k=1):
        n = d["n"]
        while n > 0:
            d = {"x": d["x"] * k, "n": d["n"]}
            n -= 1
        return {"y": d["x"], "k": k}

    args = {"x": jnp.arange(6.0).reshape(3, 2), "n": jnp.array([0, 1])}
    found = jax.vmap(scaled, in_axes=({"x": 1, "n": 0},), out_axes={"y": 1, "k": None})(args)
    np.testing.assert_array_equal(found["y"], args["x"])
    assert int(found["k"]) == 1
    mapped = jax.vmap(scaled, in_axes=({"x": None, "n": 0},))(
        {"x": 2.0, "n": jnp.array([0, 3])}, k=jnp.array([5, 3])
    )
    assert mapped["y"].tolist() == [2.0, 54.0] and mapped["k"].tolist() == [5, 3]


def test_nested_vmaps_flatten_into_lanes() -> None:
    grid = jax.vmap(jax.vmap(power, in_axes=(None, 0)), in_axes=(0, None))
    expected = np.asarray(X)[:, None] ** np.asarray(N)[None, :]
    np.testing.assert_allclose(grid(X, N), expected)
    np.testing.assert_allclose(jax.jit(grid)(X, N), expected)
    bound = [e for e in jax.make_jaxpr(grid)(X, N).eqns if e.primitive.name == "program"]
    assert [e.params["lanes"] for e in bound] == [(3, 3)]
    # Neither operand was copied along the axis it does not have.
    assert [v.aval.shape for v in bound[0].invars if v.aval.shape] == [(3,), (3,)]
    cube = jax.vmap(jax.vmap(jax.vmap(fib)))(jnp.arange(8).reshape(2, 2, 2))
    assert cube.ravel().tolist() == [0, 1, 1, 2, 3, 5, 8, 13]


def test_eval_shape_and_make_jaxpr_run_nothing() -> None:
    out = jax.eval_shape(
        jax.vmap(power),
        jax.ShapeDtypeStruct((5, 2), jnp.float32),
        jax.ShapeDtypeStruct((5,), jnp.int32),
    )
    assert (out.shape, out.dtype) == ((5, 2), jnp.float32)
    names = [e.primitive.name for e in jax.make_jaxpr(fib)(10).eqns]
    assert "program" in names and "throw" in names


def test_donation_and_axis_size() -> None:
    run = jax.jit(jax.vmap(power), donate_argnums=0)
    assert run(X + 0, N).tolist() == POWERS
    assert lw.vmap(lambda: jnp.float32(2.0), axis_size=3)().tolist() == [2.0, 2.0, 2.0]
    assert lw.vmap(power, in_axes=(None, None), axis_size=2)(3.0, 2).tolist() == [9.0, 9.0]


def test_collectives_are_refused_by_name_and_line() -> None:
    @lw.program
    def shared(x):
        while x > 0:
            x = x - 1 - 0 * lax.psum(x, "lanes")
        return x

    with pytest.raises(TransformError, match=r"psum.*test_bind"):
        jax.vmap(shared, axis_name="lanes")(X)
    assert jax.vmap(power, axis_name="lanes")(X, N).tolist() == POWERS
    summed = jax.vmap(lambda x, n: lax.psum(power(x, n), "lanes"), axis_name="lanes")(X, N)
    assert summed.tolist() == [11.0] * 3


def test_spmd_axis_name_and_shard_map() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    assert lw.vmap(power, spmd_axis_name="d")(X, N).tolist() == POWERS
    spec = PartitionSpec("d")
    run = jax.shard_map(
        jax.vmap(power), mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False
    )
    assert run(X, N).tolist() == POWERS
    assert jax.jit(run)(X, N).tolist() == POWERS
    recursive = jax.shard_map(
        lw.vmap(fib), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    assert jax.jit(recursive)(jnp.array([3, 7])).tolist() == [2, 13]


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_shard_map_that_checks_what_varies(jit: Callable[..., Any]) -> None:
    split, whole = PartitionSpec("d"), PartitionSpec()
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))

    def sharded(fun, *in_specs, out_specs=split):
        return jit(jax.shard_map(fun, mesh=mesh, in_specs=in_specs, out_specs=out_specs))

    for schedule in ("sweep", "plain"):
        run = sharded(lw.vmap(power, schedule=schedule), split, split)
        assert run(X, N).tolist() == POWERS
    shared = sharded(jax.vmap(power, in_axes=(0, None)), split, whole)
    assert shared(X, 2).tolist() == (X * X).tolist()
    assert float(sharded(power, whole, whole, out_specs=whole)(2.0, 3)) == 8.0
    assert sharded(jax.vmap(fib), split)(jnp.array([3, 7])).tolist() == [2, 13]
    assert sharded(jax.vmap(jax.jacfwd(power)), split, split)(X, N).shape == X.shape


def test_closing_over_what_varies() -> None:
    def doubled(x, n):
        @lw.program
        def run(n):
            y = x
            while n > 0:
                if n % 3 == 0:
                    y = x
                else:
                    y = y * 2
                n = n - 1
            return y

        return run(n)

    mesh, split = Mesh(np.array(jax.devices()[:1]), ("d",)), PartitionSpec("d")
    run = jax.shard_map(jax.vmap(doubled), mesh=mesh, in_specs=(split, split), out_specs=split)
    expected = jax.vmap(doubled)(X, N)
    assert jax.jit(run)(X, N).tolist() == expected.tolist()


def test_zero_size_arrays() -> None:
    found = jax.vmap(power)(jnp.zeros((3, 0)), N)
    assert found.shape == (3, 0)

    @lw.program
    def total(xs):
        s = 0.0
        for x in xs:
            if x > 0:
                s += x
        return s

    assert jax.vmap(total)(jnp.zeros((3, 0))).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "float32", "int8", "uint32", "bool", "complex64"]
)
def test_dtypes(dtype: str) -> None:
    @lw.program
    def shuffle(x, n):
        seen = jnp.stack([x, x])
        while n > 0:
            seen = seen.at[n % 2].set(jnp.where(n > 1, x, jnp.zeros_like(x)))
            n -= 1
        return seen, x

    x = jnp.array([1, 0, 1]).astype(dtype)
    for schedule in ("sweep", "most"):
        seen, same = lw.vmap(shuffle, schedule=schedule)(x, N)
        assert seen.dtype == same.dtype == jnp.dtype(dtype)
        assert same.astype(jnp.int32).tolist() == [1, 0, 1] if dtype != "complex64" else True
    for lane in range(3):
        np.testing.assert_array_equal(
            np.asarray(shuffle(x[lane], N[lane])[0]), np.asarray(seen[lane])
        )


def test_failed_lanes_of_every_dtype_are_blank() -> None:
    @lw.program
    def checked(x):
        assert x > 0
        return (
            x,
            x.astype(jnp.bfloat16),
            x > 0,
            x.astype(jnp.complex64),
            x.astype(jnp.uint8),
            jax.random.key(1),
        )

    values, outcomes = lw.vmap(checked, throw=False)(jnp.array([1.0, -1.0]))
    assert outcomes.ok().tolist() == [True, False]
    assert [bool(jnp.isnan(v[1])) for v in (values[0], values[1], values[3])] == [True] * 3
    assert [int(v[1]) for v in (values[2], values[4])] == [0, 0]
    assert (jax.random.key_data(values[5])[0] == jax.random.key_data(jax.random.key(1))).all()


def test_typed_keys_as_arguments_state_and_results() -> None:
    @lw.program
    def draws(key, n):
        x = 0.0
        while n > 0:
            key, sub = jax.random.split(key)
            x = jax.random.normal(sub)
            n -= 1
        return key, x

    keys = jax.random.split(jax.random.key(3), 3)
    out, xs = jax.vmap(draws)(keys, N)
    assert jnp.issubdtype(out.dtype, jax.dtypes.prng_key)
    for lane in range(3):
        key, x = draws(keys[lane], N[lane])
        assert (jax.random.key_data(key) == jax.random.key_data(out[lane])).all() and x == xs[lane]
    assert (jax.random.key_data(out[1]) == jax.random.key_data(keys[1])).all()


def test_x64() -> None:
    with jax.enable_x64(True):
        found = jax.vmap(power)(jnp.array([1.0, 1e200]), jnp.array([3, 1]))
        assert found.dtype == jnp.float64 and found.tolist() == [1.0, 1e200]
        assert jax.vmap(fib)(jnp.array([10, 3], jnp.int64)).dtype == jnp.int64
    assert jax.vmap(power)(X, N).dtype == jnp.float32


def test_inner_vmap() -> None:
    @lw.program
    def outer(xs, n):
        while n > 0:
            xs = jax.vmap(lambda x: jnp.sin(x) + 1)(xs)
            n -= 1
        return jax.vmap(power, in_axes=(0, None))(xs, 2), jax.vmap(fib)(xs.astype(jnp.int32) + 3)

    xs, n = jnp.arange(6.0).reshape(2, 3), jnp.array([0, 2])
    powers, fibs = jax.vmap(outer)(xs, n)
    for lane in range(2):
        p, f = outer(xs[lane], n[lane])
        np.testing.assert_allclose(powers[lane], p, rtol=1e-6)
        assert fibs[lane].tolist() == f.tolist()
    assert fibs[0].tolist() == [2, 3, 5]


def test_a_failure_under_an_inner_vmap_is_the_lanes_own() -> None:
    @lw.program
    def positive(x):
        assert x > 0, "positive"
        return x

    @lw.program
    def outer(xs):
        return jax.vmap(positive)(xs).sum()

    answers, outcomes = lw.vmap(outer, throw=False)(jnp.array([[1, 2], [1, -1], [3, 4]]))
    assert answers.tolist() == [3, 0, 7]
    assert outcomes.code.tolist() == [0, 3, 0] and "positive" in outcomes.describe()
    with pytest.raises(lw.LaneError, match="positive"):
        outer(jnp.array([1, -1]))


def test_vmap_of_the_recursion_itself_is_refused() -> None:
    @lw.program
    def tree(n, xs):
        if n <= 0:
            return xs.sum()
        return jax.vmap(lambda x: tree(n - 1, x[None]))(xs).sum()

    with pytest.raises(TransformError, match=r"tree.*jax\.vmap"):
        tree(2, jnp.ones(3))


def test_the_same_signature_never_traces_or_compiles_again() -> None:
    run = jax.vmap(power)
    for _ in range(2):
        run(X, N)
        power(2.0, 3)
        jax.vmap(fib)(N)
        lw.vmap(power)(X, N)
    traced = TRACES["power"]
    compiled: list[str] = []

    def listen(event: str, *_: Any, **__: Any) -> None:
        if "compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for _ in range(3):
            jax.block_until_ready(
                (run(X, N), power(2.5, 4), jax.vmap(fib)(N), lw.vmap(power)(X, N))
            )
        again = list(compiled)
        jax.block_until_ready(jax.vmap(power)(jnp.ones(7), jnp.ones(7, jnp.int32)))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert TRACES["power"] == traced
    assert again == [] and compiled


def test_jit_traces_once() -> None:
    count = [0]

    @lw.program
    def counted(n):
        count[0] += 1
        while n > 3:
            n -= 2
        return n

    jitted = jax.jit(jax.vmap(counted))
    for shift in range(3):
        jitted(N + shift)
    assert jitted._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]
    assert count[0] <= 2
    once = count[0]
    jax.jit(jax.vmap(counted))(jnp.arange(50))
    assert count[0] == once


def test_options_of_the_outermost_call_hold_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program inside another, which JAX's own batching runs, is not `native` where the outer one is `ticks`."""

    @lw.program
    def steady(x, w):
        for _ in range(40):
            x = x * w + 1
        return x

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("it was asked to run by ticks")

    many, w = jnp.linspace(0.1, 5.0, 100_000), jnp.float32(0.3)
    if foreign.available():
        assert lw.inspect(steady, many, w, in_axes=(0, None)).plan.carrier == "native"
    monkeypatch.setattr(native, "_run_lanes", refuse)
    inside = lw.vmap(lambda x, w: steady(x, w), in_axes=(0, None), carrier="ticks")
    expected = jax.vmap(lambda x: lax.fori_loop(0, 40, lambda _, x: x * w + 1, x))(many)
    np.testing.assert_allclose(inside(many, w), expected, rtol=1e-5)

    def total(w: Any) -> Any:
        return inside(many, w).mean()

    slope = jax.grad(total)(w)
    for found in (
        jax.jit(jax.grad(total))(w),
        jax.jvp(total, (w,), (jnp.float32(1.0),))[1],
        jax.linearize(total, w)[1](jnp.float32(1.0)),
        lw.grad(lambda w: jax.vmap(steady, (0, None))(many, w).mean(), carrier="ticks")(w),
    ):
        np.testing.assert_allclose(found, slope, rtol=1e-3)
