"""Adjoints that lanes share: one sum for all lanes, the same as the adjoints of each lane added up.

In float64, so that a missing term shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise.core.accumulate import accumulate_p
from lanewise.core.program import Program
from lanewise.diff.accumulate import accumulating

LANES, SIZE = 6, 7
RNG = np.random.default_rng(0)


def matrix(*shape: int) -> Any:
    return RNG.standard_normal(shape) / np.sqrt(shape[-1])


@lw.program
def looped(w: Any, x: Any, n: Any) -> Any:
    """Weights in a loop of unknown length."""
    while n > 0:
        x = jnp.tanh(x @ w + 0.1)
        n = n - 1
    return x.sum()


@lw.program
def layered(w: Any, x: Any, n: Any) -> Any:
    """Weights that are looked up."""
    i = 0
    while i < n:
        x = jnp.tanh(x @ w[i % 3])
        i = i + 1
    return (x * x).sum()


@lw.program
def tabled(w: Any, x: Any, n: Any) -> Any:
    """Single numbers of a table, and rows of it."""
    total = x.sum()
    while n > 0:
        total = jnp.sin(total) + w[(n * 5) % w.shape[0], n % 3] + (w[n % 4] * x[:3]).sum()
        n = n - 1
    return total


@lw.program
def recursive(w: Any, x: Any, n: Any) -> Any:
    """Weights in a recursion that calls itself twice."""
    if n <= 0:
        return x
    left = recursive(w, x * 0.9, n - 1)
    right = recursive(w, jnp.sin(x), n - 2)
    return jnp.tanh((left + right) @ w)


@lw.program
def even(w: Any, x: Any, n: Any) -> Any:
    if n <= 0:
        return x * 0.5
    return jnp.tanh(odd(w, x, n - 1) @ w)


@lw.program
def odd(w: Any, x: Any, n: Any) -> Any:
    """Two functions that call each other, one of them in a loop."""
    total = x
    k = 0
    while k < 2:
        total = total + even(w, total * 0.5, n - 1) * x
        k = k + 1
    return total


@lw.program
def branching(w: Any, x: Any, n: Any) -> Any:
    """Weights that some lanes read on one side of a branch, others on the other, others not at all."""
    if n % 3 == 0:
        x = x @ w
    elif n % 3 == 1:
        for _ in range(3):
            x = jnp.sin(w @ x)
    while n > 2:
        if n % 2 == 0:
            x = x + w[0] * x[1]
        n = n - 1
    return jnp.cos(x).sum()


@lw.program
def nested(w: Any, x: Any, n: Any) -> Any:
    """Loops in loops, of known and unknown length."""
    while n > 0:
        k = n
        while k > 0:
            x = jnp.tanh(w @ x)
            k = k - 1
        for row in w:
            x = x + 0.1 * jnp.sin(row * x)
        n = n - 1
    return x


@lw.program
def squared(w: Any, x: Any, n: Any) -> Any:
    """Weights that are not read one by one: what is added is as large as they are."""
    total = x.sum()
    while n > 0:
        total = jnp.sin(total) * jnp.linalg.det(w @ w.T + jnp.eye(SIZE) * (3.0 + total))
        n = n - 1
    return jnp.tanh(total)


@lw.program
def experts(w: Any, x: Any, n: Any) -> Any:
    """Parts of the weights at places that are known, in branches."""
    while n > 0:
        if x[0] > 0.3:
            x = jnp.tanh(x @ w[0])
        elif x[0] > -0.3:
            x = jnp.sin(x @ w[1])
        else:
            x = jnp.cos(x @ w[2])
        n = n - 1
    return x.sum()


@lw.program
def around(w: Any, x: Any, n: Any) -> Any:
    """A recursion and a loop that are programs of their own, called by one that reads the weights too."""
    found = recursive(w, x @ w, n)
    if n % 2 == 0:
        found = found + looped(w, x, n)
    return found


PROGRAMS: dict[str, tuple[Callable[..., Any], Any]] = {
    "looped": (looped, matrix(SIZE, SIZE)),
    "layered": (layered, matrix(3, SIZE, SIZE)),
    "experts": (experts, matrix(3, SIZE, SIZE)),
    "tabled": (tabled, matrix(50, 3)),
    "recursive": (recursive, matrix(SIZE, SIZE)),
    "mutual": (even, matrix(SIZE, SIZE)),
    "branching": (branching, matrix(SIZE, SIZE)),
    "nested": (nested, matrix(SIZE, SIZE)),
    "squared": (squared, 0.3 * matrix(SIZE, SIZE)),
    "around": (around, matrix(SIZE, SIZE)),
}
XS = RNG.standard_normal((LANES, SIZE))
NS = np.arange(LANES) % 4
WAYS: dict[str, dict[str, Any]] = {
    "sweep": {"carrier": "ticks", "schedule": "sweep"},
    "lowest": {"carrier": "ticks", "schedule": "lowest"},
    "most": {"carrier": "ticks", "schedule": "most"},
    "refill": {"carrier": "ticks", "lanes": 2},
}


def each_lane(program: Any, w: Any, weights: Any) -> Any:
    """The adjoints of each lane alone, added up."""
    grad = jax.grad(lambda w, x, n: jnp.sum(program(w, x, n) * 1.0))
    found = jax.vmap(grad, (None, 0, 0))(w, XS, NS)
    return jnp.tensordot(weights, found, 1)


def total(program: Any, w: Any, weights: Any) -> Any:
    outs = lw.vmap(program, (None, 0, 0))(w, XS, NS)
    return jnp.sum(outs.reshape(LANES, -1).sum(1) * weights)


ALL_WAYS = [
    *(pytest.param(way, marks=pytest.mark.slow) for way in ("lowest", "most")),
    "sweep",
    "refill",
    pytest.param("native", marks=[needs.compiler, needs.on_cpu]),
    pytest.param("kernel", marks=needs.on_gpu),
]


@pytest.mark.parametrize("way", ALL_WAYS)
@pytest.mark.parametrize("name", needs.in_turns(PROGRAMS))
def test_the_sum_of_each_lanes_adjoint(name: str, way: str) -> None:
    with jax.enable_x64(True):
        program, w = PROGRAMS[name]
        weights = jnp.arange(1.0, LANES + 1)
        own = program.with_options(**WAYS.get(way, {"carrier": way, "tape": 200}))  # type: ignore[attr-defined]
        wanted = each_lane(program, jnp.asarray(w), weights)
        found = jax.grad(lambda w: total(own, w, weights))(jnp.asarray(w))
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)
        if way in ("sweep", "native", "kernel"):
            inside = jax.jit(jax.grad(lambda w: total(own, w, weights)))(jnp.asarray(w))
            np.testing.assert_allclose(inside, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["looped", "recursive", "layered", "around"])
def test_no_lane_has_an_array_of_the_weights_size(name: str) -> None:
    program, w = PROGRAMS[name]
    own = program.with_options(carrier="ticks", tape=40)  # type: ignore[attr-defined]
    w = jnp.asarray(w, jnp.float32)
    text = jax.jit(jax.grad(lambda w: total(own, w, jnp.ones(LANES)))).lower(w).as_text()
    assert _type(w.shape) in text and _type((LANES, *w.shape)) not in text


@needs.compiler
@needs.on_cpu
@pytest.mark.parametrize(("lanes", "m", "n"), [(3, 21, 37), (200, 21, 37), (40, 120, 130)])
def test_outer_products_are_added_many_at_a_time(lanes: int, m: int, n: int) -> None:
    """On `native`: more and fewer than rows have room for, of a shape that is no multiple of what is added at once."""
    rng = np.random.default_rng(lanes)
    w = rng.standard_normal((m, n)) / np.sqrt(m)
    xs, ns = rng.standard_normal((lanes, m)), rng.integers(0, 4, lanes)

    @lw.program
    def wide(w: Any, x: Any, n: Any) -> Any:
        total = x.sum()
        while n > 0:
            y = jnp.tanh(x @ w)
            x = x + w @ y
            total = total + (y * y).sum()
            n = n - 1
        return total

    with jax.enable_x64(True):
        own = wide.with_options(carrier="native")
        found = jax.grad(lambda w: jax.vmap(own, (None, 0, 0))(w, xs, ns).sum())(jnp.asarray(w))
        each = jax.vmap(jax.grad(wide), (None, 0, 0))(jnp.asarray(w), xs, ns)
        np.testing.assert_allclose(found, each.sum(0), rtol=1e-9, atol=1e-11)


def _type(shape: tuple[int, ...]) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def adds(program: Program) -> list[int]:
    """How many numbers each `accumulate` of a program adds."""
    from lanewise import _jax

    def inside(jaxpr: Any) -> list[int]:
        found = []
        for eqn in jaxpr.eqns:
            if eqn.primitive is accumulate_p:
                added = eqn.invars[1 if eqn.params["places"] else 0]
                found.append(int(np.prod(added.aval.shape)))
            found += [n for code in _jax.subjaxprs(eqn) for n in inside(code)]
        return found

    return [n for function in program.functions.values() for n in inside(function.jaxpr)]


def test_a_read_by_index_adds_what_it_read() -> None:
    from lanewise.diff.checkpoint import Checkpoints
    from lanewise.diff.vjp import vjp_program

    w = jnp.zeros((50, 3), jnp.float32)
    staged, _ = tabled.stage(w, jnp.zeros(SIZE), 3)
    gradient = vjp_program(staged.program, (True, False, False), Checkpoints())
    program = accumulating(gradient.reverse.program, (0,))
    assert sorted(adds(program)) == [1, 3]
    assert not program.out_avals and [a.shape for a in program.sums] == [(50, 3)]


@pytest.mark.slow
def test_higher_orders_and_other_axes() -> None:
    """A gradient that accumulates can be differentiated, and batched."""
    with jax.enable_x64(True):
        w = jnp.asarray(matrix(SIZE, SIZE))
        weights = jnp.ones(LANES)
        own = looped

        def plain(w: Any) -> Any:
            def one(x: Any, n: int) -> Any:
                for _ in range(n):
                    x = jnp.tanh(x @ w + 0.1)
                return x.sum()

            return sum(one(x, int(n)) for x, n in zip(XS, NS, strict=True))

        direction = jnp.asarray(matrix(SIZE, SIZE))
        ours = lambda w: total(own, w, weights)  # noqa: E731
        found = jax.jvp(jax.grad(ours), (w,), (direction,))[1]
        wanted = jax.jvp(jax.grad(plain), (w,), (direction,))[1]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)
        twice = jax.grad(lambda w: (jax.grad(ours)(w) * direction).sum())(w)
        np.testing.assert_allclose(twice, wanted, rtol=1e-9, atol=1e-11)
        several = jnp.stack([w, w * 0.5])
        found = jax.vmap(jax.grad(ours))(several)
        np.testing.assert_allclose(found, jax.vmap(jax.grad(plain))(several), rtol=1e-9, atol=1e-11)


def test_several_weights_and_none_that_is_read() -> None:
    """Each has a sum of its own; small ones, ones that are not read and ones of each lane have theirs."""

    @lw.program
    def two(params: Any, own: Any, n: Any) -> Any:
        x = own
        while n > 0:
            x = jnp.tanh(x @ params["w"] + params["b"]) * params["scale"]
            n = n - 1
        return x.sum()

    params = {
        "w": jnp.asarray(matrix(40, 40), jnp.float32),
        "b": jnp.linspace(0.0, 1.0, 40),
        "scale": jnp.float32(0.9),
        "unread": jnp.ones(64),
    }
    xs = jnp.asarray(RNG.standard_normal((LANES, 40)), jnp.float32)

    def ours(params: Any, xs: Any) -> Any:
        return jax.vmap(two, (None, 0, 0))(params, xs, NS).sum()

    def plain(params: Any, xs: Any) -> Any:
        def one(x: Any, n: int) -> Any:
            for _ in range(n):
                x = jnp.tanh(x @ params["w"] + params["b"]) * params["scale"]
            return x.sum()

        return sum(one(x, int(n)) for x, n in zip(xs, NS, strict=True))

    found, wanted = (jax.grad(f, (0, 1))(params, xs) for f in (ours, plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, wanted)


def test_lanes_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum is what it would be if each lane had an adjoint of its own."""

    @lw.program
    def checked(w: Any, x: Any, n: Any) -> Any:
        while n > 0:
            assert n < 3, "too long"
            x = jnp.tanh(x @ w)
            n = n - 1
        return x.sum()

    w = jnp.asarray(matrix(SIZE, SIZE), jnp.float32)
    own = checked.with_options(throw=False)

    def lanes(w: Any, ns: Any) -> Any:
        answers, _ = jax.vmap(own, (None, 0, 0))(w, XS.astype(np.float32), ns)
        return answers.sum()

    found = jax.grad(lanes)(w, NS)
    with monkeypatch.context() as patch:
        patch.setattr("lanewise.rules.sums.FEWEST_ELEMENTS", 10**9)
        wanted = jax.grad(lanes)(w, NS)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(lw.LaneError, match="too long"):
        jax.grad(lambda w: jax.vmap(checked, (None, 0, 0))(w, XS, NS).sum())(w)


def test_no_lanes_at_all() -> None:
    w = jnp.asarray(matrix(SIZE, SIZE), jnp.float32)
    empty = jax.grad(
        lambda w: jax.vmap(looped, (None, 0, 0))(w, jnp.zeros((0, SIZE)), jnp.zeros(0, int)).sum()
    )(w)
    np.testing.assert_array_equal(empty, jnp.zeros_like(w))


def test_a_block_that_no_lane_runs_adds_nothing() -> None:
    """Also where a factor that all lanes share is not finite there."""
    none = jnp.zeros((SIZE, SIZE))

    @lw.program
    def guarded(w: Any, x: Any, n: Any) -> Any:
        while n > 0:
            if n > 50:
                x = jnp.tanh(x @ (w / none))
            x = jnp.tanh(x @ w)
            n = n - 1
        return x.sum()

    w = jnp.asarray(matrix(SIZE, SIZE), jnp.float32)
    own = guarded.with_options(carrier="ticks", schedule="sweep")
    found = jax.grad(lambda w: total(own, w, jnp.ones(LANES)))(w)
    wanted = each_lane(guarded.with_options(carrier="ticks"), w, jnp.ones(LANES))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_long_sums_of_narrow_numbers(dtype: Any) -> None:
    """3,000 ones are no 256, and ten thousands of tenths keep their digits."""

    @lw.program
    def adds(w: Any, n: Any) -> Any:
        total = w * 0
        while n > 0:
            total = total + w
            n = n - 1
        return total

    for carrier, lanes in (("auto", None), ("ticks", 2)):
        own = adds.with_options(carrier=carrier, lanes=lanes)
        run = lambda w, own=own: lw.vmap(own, (None, 0))(w, jnp.ones(3000, int))  # noqa: E731
        found = jax.grad(lambda w, run=run: run(w).astype(jnp.float32).sum())(jnp.ones(40, dtype))
        np.testing.assert_allclose(found.astype(np.float32), 3000, rtol=5e-3)


@needs.compiler
@needs.on_cpu
def test_a_long_sum_on_native_keeps_its_digits() -> None:
    @lw.program
    def turns(w: Any, n: Any) -> Any:
        total = jnp.float32(0)
        while n > 0:
            total = total + w[n % 4]
            n = n - 1
        return total

    own = turns.with_options(carrier="native")
    ns = jnp.full(100_000, 40)
    found = jax.grad(lambda w: 0.1 * jax.vmap(own, (None, 0))(w, ns).sum())(jnp.ones(40))
    np.testing.assert_allclose(found[:4], 1e5, rtol=1e-6)


def test_a_value_that_is_used_twice_is_summed_once() -> None:
    """Code that doubles a value forty times over would else be summed 2 to the 40th times."""
    from lanewise import _jax
    from lanewise.core.summed import sum_over_rows

    def doubled(x: Any) -> list[Any]:
        for _ in range(40):
            x = x + x
        return [x * 2.0**-40]

    code = _jax.trace(doubled, [_jax.shaped((3,), jnp.float32.dtype)]).jaxpr
    (found,) = sum_over_rows(code, [jnp.ones((5, 3))], [True])
    np.testing.assert_allclose(found, 5.0)
