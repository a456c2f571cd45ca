"""Plain Python recorded lazily gives what it gives one instance at a time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import by_hand
import lanewise as lw
import needs
from by_hand import WIDTH, chain_tree, compare, compilations, random_tree, weights
from lanewise.dynamic.lazy import Lazy
from lanewise.dynamic.record import LazyError, Recorder
from lanewise.errors import OptionError

leaf = lw.op(by_hand.leaf)
inner = lw.op(by_hand.inner)


@lw.op
def score(h: Any) -> Any:
    return jnp.sum(h)


@lw.op
def merge(weight: Any, bias: Any, state: Any, more: Any) -> Any:
    """An op whose arguments and results are trees."""
    i, f, u = jnp.split(jnp.concatenate([state["h"], more["h"]]) @ weight + bias, 3)
    c = jax.nn.sigmoid(f) * state["c"] + jnp.tanh(i) * u
    return {"h": jnp.tanh(c), "c": c + more["c"]}


def tree_value(shared: Any, tree: Any) -> Any:
    embedding, bias, weight, bias2 = shared

    def visit(node: Any) -> Any:
        if isinstance(node, tuple):
            (h0, c0), (h1, c1) = visit(node[0]), visit(node[1])
            return inner(weight, bias2, h0, c0, h1, c1)
        return leaf(embedding, bias, node)

    return visit(tree)[0]


def one_by_one(fun: Callable[[Any], Any], instances: Any) -> Any:
    """Ops outside of a lazy block are the functions themselves."""
    results = [fun(x) for x in instances]
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *results)


def compare_map(fun: Callable[[Any, Any], Any], instances: Any, shared: Any = None) -> None:
    shared = weights() if shared is None else shared
    compare(
        lambda s: lw.lazy_map(lambda x: fun(s, x), instances),
        lambda s: one_by_one(lambda x: fun(s, x), instances),
        shared,
    )


@pytest.fixture(params=["greenlet", "without"])
def suspension(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "without":
        monkeypatch.setattr("lanewise.dynamic.instances.greenlets", lambda: None)
    yield request.param


def trees(count: int = 6) -> list[Any]:
    rng = np.random.default_rng(0)
    return [random_tree(rng, int(n)) for n in rng.integers(1, 9, count)]


def test_trees() -> None:
    compare_map(tree_value, trees())


def test_in_double_precision() -> None:
    """Gradients agree to the last digits, where those of single precision would hide a small mistake."""
    with jax.enable_x64(True):
        shared = [w.astype(jnp.float64) for w in weights()]

        def loss(fun: Any) -> Any:
            return lambda s: jnp.sum(fun(lambda t: tree_value(s, t) * 0.5, trees()) ** 2)

        ours, theirs = (jax.grad(loss(f))(shared) for f in (lw.lazy_map, one_by_one))
        assert ours[0].dtype == np.float64
        by_hand.close(ours, theirs, 1e-12, 1e-13)


@pytest.mark.parametrize("order", ["agenda", "lookahead"])
def test_other_orders(order: str) -> None:
    shared = weights()
    ours = lw.lazy_map(lambda t: tree_value(shared, t), trees(), order=order)
    by_hand.close(ours, one_by_one(lambda t: tree_value(shared, t), trees()))


def test_trees_of_values_and_of_results() -> None:
    def total(shared: Any, words: list[int]) -> Any:
        state = {"h": np.zeros(WIDTH, np.float32), "c": np.ones(WIDTH, np.float32)}
        for word in words:
            h, c = leaf(shared[0], shared[1], word)
            state = merge(shared[2], shared[3], state, {"h": h, "c": c})
        return {"state": state, "length": len(words), "none": None}

    ours = lw.lazy_map(lambda w: total(weights(), w), [[1, 2], [3], [4, 5, 6]])
    theirs = one_by_one(lambda w: total(weights(), w), [[1, 2], [3], [4, 5, 6]])
    assert ours["length"].tolist() == [2, 1, 3]
    by_hand.close(ours, theirs)
    compare_map(lambda s, w: total(s, w)["state"]["h"], [[1, 2], [3], [4, 5, 6]])


def walk(shared: Any, start: int) -> Any:
    """How many words are added depends on values."""
    h, c = leaf(shared[0], shared[1], start)
    steps = 0
    while score(h).item() < 2.0 and steps < 6:
        more, d = leaf(shared[0], shared[1], (start + 3 * steps) % 10)
        h, c = inner(shared[2], shared[3], h, c, more, d)
        if score(h) > 1.0:
            h = h * 0.5 + more
        steps += 1
    return score(h), float(steps)


def test_values_that_decide(suspension: str) -> None:
    compare_map(lambda s, x: walk(s, x)[0], range(5))
    _, steps = lw.lazy_map(lambda x: walk(weights(), x), range(5))
    assert steps.tolist() == [walk(weights(), x)[1] for x in range(5)]


def test_instances_that_wait_are_served_together(monkeypatch: pytest.MonkeyPatch) -> None:
    needs.library("greenlet")
    flushed = []
    plain = Recorder.flush

    def flush(self: Recorder, wanted: Any = None) -> Any:
        flushed.append(len(self.calls))
        return plain(self, wanted)

    monkeypatch.setattr(Recorder, "flush", flush)

    def twice(x: float) -> Any:
        a = score(np.full(WIDTH, x, np.float32))
        b = score(np.full(WIDTH, x + a.item(), np.float32))
        return b.item()

    found = lw.lazy_map(twice, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(found, [20.0, 40.0, 60.0])
    assert [n for n in flushed if n] == [3, 3]


def test_values_that_decide_compile_little() -> None:
    """Each flush has other sizes: after some minibatches nothing is compiled."""

    def epoch(seeds: range) -> None:
        for seed in seeds:
            starts = np.random.default_rng(seed).integers(0, 10, 12).tolist()
            jax.grad(lambda s: jnp.sum(lw.lazy_map(lambda x: walk(s, x)[0], starts)))(weights(seed))

    epoch(range(6))
    with compilations() as found:
        epoch(range(6, 16))
    assert len(found) <= 4


def test_values_of_earlier_flushes_are_read_later(suspension: str) -> None:
    """One value is read by the same flush, by later ones, and is a result too."""

    def chained(shared: Any, word: int) -> Any:
        first = leaf(shared[0], shared[1], word)
        h, c = first
        for _ in range(3):
            if score(h) > -100.0:
                h, c = inner(shared[2], shared[3], *first, h, c)
        return first[0], h, c, first[0]

    compare_map(chained, [1, 5, 7])


def test_a_chain_of_ten_thousand() -> None:
    """Values and the gradient of one sum, as a list of many."""

    @lw.op
    def decay(a: Any, total: Any, x: Any) -> Any:
        return a * total + x

    def last(a: Any, n: int) -> Any:
        total = 0.0
        for i in range(n):
            total = decay(a, total, float(i % 3))
        return total

    def ours(a: Any) -> Any:
        return lw.lazy_map(lambda n: last(a, n), [10_000, 3])

    def theirs(a: Any) -> Any:
        def scan(n: int) -> Any:
            return jax.lax.scan(lambda c, x: (a * c + x, None), 0.0, jnp.arange(n) % 3.0)[0]

        return jnp.stack([scan(10_000), scan(3)])

    compare(ours, theirs, jnp.float32(0.9), rtol=1e-4)


def test_a_node_with_a_thousand_children() -> None:
    """And a value with a thousand users."""

    @lw.op
    def child(h: Any, x: Any) -> Any:
        return h + jnp.sin(h * x)

    def ours(shared: Any) -> Any:
        def summed(n: int) -> Any:
            h, _ = leaf(shared[0], shared[1], 3)
            totals = [child(h, float(i)) for i in range(n)]
            while len(totals) > 1:
                rest = totals[len(totals) // 2 * 2 :]
                totals = [a + b for a, b in zip(totals[::2], totals[1::2])] + rest
            return totals[0]

        return lw.lazy_map(summed, [1000, 1])

    def theirs(shared: Any) -> Any:
        h, _ = by_hand.leaf(shared[0], shared[1], 3)
        numbers = jnp.arange(1000.0)[:, None]
        return jnp.stack([jnp.sum(h + jnp.sin(h * numbers), 0), h])

    by_hand.close(ours(weights()), theirs(weights()), 1e-4)
    grads = [jax.grad(lambda s: f(s).sum())(weights()) for f in (ours, theirs)]
    by_hand.close(*grads, rtol=1e-3, atol=1e-1)


def test_sums_of_many_values() -> None:
    """As many as there are, in few levels; the same sum outside."""

    @lw.op
    def part(h: Any, x: Any) -> Any:
        return jnp.sin(h * x)

    def total(shared: Any, n: int) -> Any:
        h, _ = leaf(shared[0], shared[1], 3)
        return lw.lazy_sum([part(h, float(i)) for i in range(n)] + [np.ones(WIDTH, np.float32)])

    compare_map(total, [1, 7, 8, 30, 0, 70])
    with lw.lazy():
        values = [part(1.0, float(i)) for i in range(64)]
        summed = lw.lazy_sum(values)
    assert len(summed._recorder.calls) == 64 + 16 + 4 + 1
    with lw.lazy(), pytest.raises(OptionError, match=r"value 1 is float32\[4\], and another one"):
        lw.lazy_sum([part(1.0, 1.0), np.ones(4, np.float32)])
    with pytest.raises(OptionError, match="no values"):
        lw.lazy_sum([])


def test_a_block_without_instances() -> None:
    shared = weights()
    with lw.lazy():
        h, _ = leaf(shared[0], shared[1], 2)
        total = score(h)
        assert isinstance(total, Lazy) and total.shape == () and total.dtype == np.float32
        assert h.shape == (WIDTH,) and h.ndim == 1 and len(h) == WIDTH
        number = float(total)
        again = score(h + 1.0)
    plain = by_hand.leaf(shared[0], shared[1], 2)[0]
    np.testing.assert_allclose(number, jnp.sum(plain), rtol=1e-6)
    np.testing.assert_allclose(again.value, jnp.sum(plain + 1), rtol=1e-6)
    np.testing.assert_allclose(jnp.asarray(h), plain, rtol=1e-6)
    np.testing.assert_allclose(score(h), jnp.sum(plain), rtol=1e-6)

    def loss(shared: Any) -> Any:
        with lw.lazy():
            return score(leaf(shared[0], shared[1], 2)[0]).value

    np.testing.assert_allclose(jax.grad(loss)(shared)[1], 1 - plain**2, rtol=1e-5)


def test_operators_are_ops() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    def all_of(_: Any, x: Any) -> Any:
        y = lw.op(lambda v: v * 1.0)(x)
        parts = [y + 1.0, 2.0 - y, y * y, y / 3.0, y**2, -y, abs(y), y @ x.T, y // 2.0, y % 2.0]
        return (
            [jnp.asarray(p.shape) for p in parts],
            parts,
            y[1],
            y[0, 1:],
            y[..., None],
            y[:, -1],
            list(y),
        )

    with_values = [x, x - 2]
    ours = lw.lazy_map(lambda v: all_of(None, v), with_values)
    theirs = one_by_one(lambda v: all_of(None, v), with_values)
    by_hand.close(ours, theirs)
    with lw.lazy():
        y = lw.op(lambda v: v * 1.0)(2.0)
        assert y < 3.0 and y >= 2.0 and y == 2.0 and not (y != 2.0)
        assert int(y) == 2 and [10, 20, 30][lw.op(lambda v: v + 1)(1)] == 30


def test_weights_by_many_names() -> None:
    """Arrays that an op reads from outside, shared dictionaries, keyword arguments, constants."""
    table = jnp.arange(5.0)

    @lw.op
    def look(params: Any, index: Any, *, mode: str, scale: float = 1.0) -> Any:
        value = table[index] + params["a"]["w"]
        return value * scale if mode == "scaled" else value

    def fun(w: Any, i: int) -> Any:
        params = {"a": {"w": w}}
        return look(params, i, mode="scaled", scale=2.0) + look(params, i, mode="plain")

    compare_map(fun, [0, 3, 4], jnp.float32(0.5))


def test_one_op_with_several_weights() -> None:
    """Layers: calls with other arrays are other kinds, whichever comes first."""

    @lw.op
    def layer(weight: Any, x: Any) -> Any:
        return jnp.tanh(x @ weight)

    def deep(shared: Any, order: list[int]) -> Any:
        x = np.linspace(-1, 1, WIDTH, dtype=np.float32)
        for i in order:
            x = layer(shared[i], x)
        return x

    layers = [
        jnp.asarray(np.random.default_rng(i).normal(size=(WIDTH, WIDTH)), jnp.float32)
        for i in range(3)
    ]
    compare_map(deep, [[0, 1, 2], [2, 0], [1, 1, 1, 1], [0]], layers)
    compare_map(deep, [[2], [1, 0, 2]], layers)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cell:
    weight: Any
    bias: Any

    @lw.op
    def __call__(self, x: Any) -> Any:
        return jnp.tanh(x @ self.weight + self.bias)


def test_methods_of_modules() -> None:
    """Weights in an object, as Equinox and Flax have them."""
    cell = Cell(jnp.eye(WIDTH) * 0.5, jnp.arange(4.0))

    def folded(cell: Cell, n: int) -> Any:
        x = np.ones(WIDTH, np.float32)
        for _ in range(n):
            x = cell(x)
        return x

    compare_map(folded, [1, 3, 2], cell)


def test_an_op_inside_an_op() -> None:
    twice = lw.op(lambda x: 2.0 * score(x) + x)
    compare_map(lambda s, x: twice(score(s[1]) * x), [1.0, 2.0])


def test_payload_is_what_it_was_when_recorded() -> None:
    buffer = np.zeros(WIDTH, np.float32)
    with lw.lazy():
        values = []
        for i in range(3):
            buffer[:] = i
            values.append(score(buffer))
    assert [v.item() for v in values] == [0.0, 4.0, 8.0]


def test_no_compilation_for_fresh_minibatches() -> None:
    def loss(shared: Any, forest: Any) -> Any:
        return jnp.sum(lw.lazy_map(lambda t: tree_value(shared, t), forest) ** 2)

    def minibatch(seed: int) -> list[Any]:
        rng = np.random.default_rng(seed)
        return [random_tree(rng, int(n)) for n in rng.integers(5, 15, 16)]

    for seed in range(6):
        jax.value_and_grad(loss)(weights(), minibatch(seed))
    with compilations() as found:
        for seed in range(100, 110):
            jax.value_and_grad(loss)(weights(), minibatch(seed))
    assert len(found) <= 4


def test_what_a_block_holds_is_freed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a search for cycles: arenas of several steps would be held at once."""
    made = []
    plain = Recorder.__init__

    def init(self: Recorder, *args: Any) -> None:
        plain(self, *args)
        made.append(weakref.ref(self))

    monkeypatch.setattr(Recorder, "__init__", init)
    gc.collect()
    gc.disable()
    try:
        lw.lazy_map(lambda x: walk(weights(), x), [1, 2])
        jax.grad(lambda s: lw.lazy_map(lambda t: tree_value(s, t), trees(3)).sum())(weights())
        with lw.lazy():
            value = score(1.0) + 1.0
        assert value.item() == 2.0
        del value
        assert [r() for r in made] == [None] * 3
    finally:
        gc.enable()


def test_an_instance_that_raises_is_named(suspension: str) -> None:
    def fails(x: int) -> Any:
        value = score(np.full(WIDTH, x, np.float32))
        if value.item() > 8.0:
            raise ValueError("too large")
        return value

    with pytest.raises(ValueError, match="too large") as caught:
        lw.lazy_map(fails, [1, 2, 3, 4])
    assert caught.value.__notes__ == ["lanewise: in instance 2 of lazy_map."]
    np.testing.assert_allclose(lw.lazy_map(fails, [1, 2]), [4.0, 8.0])


def test_inside_jit_values_cannot_decide() -> None:
    shared = weights()
    forest = trees(3)
    plain = lw.lazy_map(lambda t: tree_value(shared, t), forest)
    jitted = jax.jit(lambda s: lw.lazy_map(lambda t: tree_value(s, t), forest))(shared)
    np.testing.assert_allclose(plain, jitted, rtol=1e-5)
    with pytest.raises(LazyError, match=r"inside `jax\.jit`"):
        jax.jit(lambda s: lw.lazy_map(lambda x: walk(s, x)[0], [1, 2]))(shared)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda h, _: score({"a": [1.0, set()]}),
            r"argument 0\['a'\]\[1\] of op 'score' is a set",
        ),
        (
            lambda h, other: score(other),
            "argument 0 of op 'score' is a value of another lazy block",
        ),
        (lambda h, _: jnp.asarray(h), r"given to a JAX function inside its lazy block.*@lw.op"),
        (lambda h, _: jnp.tanh(h), r"given to a JAX function inside its lazy block.*@lw.op"),
        (lambda h, _: lw.op(lambda x: None)(h), "op '<lambda>' has no result"),
        (lambda h, _: score(2**40) + h, "does not fit into int32"),
        (lambda h, _: score(jax.random.key(0)), "argument 0 of op 'score' is a typed PRNG key"),
    ],
)
def test_mistakes_are_named(call: Any, message: str) -> None:
    with lw.lazy():
        other = score(1.0)
    with pytest.raises(LazyError, match=message), lw.lazy():
        found = call(score(2.0), other)
        found.item()


def test_more_mistakes() -> None:
    with pytest.raises(OptionError, match="lazy_map takes a function of one instance"):
        lw.lazy_map(3, [1])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="takes the instances as a list; got int: 3"):
        lw.lazy_map(score, 3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no instances"):
        lw.lazy_map(score, [])
    with pytest.raises(LazyError, match="instance 1 of lazy_map gave another structure"):
        lw.lazy_map(lambda x: (score(1.0),) * x, [1, 2])
    with pytest.raises(
        LazyError,
        match=r"result 0 of instance 1 .* is float32\[2\], and that of instance 0 is float32\[1\]",
    ):
        lw.lazy_map(lambda n: lw.op(lambda x: x * 2)(np.ones(n, np.float32)), [1, 2])
    with pytest.raises(LazyError, match="reads a traced value from outside"):
        jax.grad(lambda w: lw.lazy_map(lw.op(lambda x: w * x), [1.0])[0])(2.0)
    with pytest.raises(LazyError, match="different JAX arrays as the same argument"):
        lw.lazy_map(lambda i: score(jnp.ones(3) * i), range(100))


def test_an_op_that_does_not_fit_its_arguments_is_named_with_its_line() -> None:
    state = {"h": np.ones(3), "c": 1.0}
    with pytest.raises(LazyError) as caught:
        lw.lazy_map(lambda x: merge(weights()[2], weights()[3], state, more=state), [1])
    line = merge.fun.__code__.co_firstlineno + 3
    place, shown, given = str(caught.value).splitlines()
    assert place.startswith(f"{__file__}:{line}, in merge: op 'merge' does not fit its arguments:")
    assert "(6,) and (8,)" in place and "@ weight + bias" in shown
    assert given == (
        "It was traced for one row with (weight: shared float32[8,12], bias: shared float32[12],"
        " state['c']: float32[], state['h']: float32[3], more['c']: float32[], more['h']: float32[3])."
    )
    assert caught.value.__notes__ == ["lanewise: in instance 0 of lazy_map."]
    assert isinstance(caught.value.__cause__, TypeError)


def test_what_an_op_raises_itself_stays_and_is_noted() -> None:
    @lw.op
    def picky(x: Any) -> Any:
        if x.ndim:
            raise ValueError("only numbers")
        return x

    with pytest.raises(ValueError, match="only numbers") as caught:
        lw.lazy_map(picky, [np.ones(2)])
    note = "lanewise: in op 'picky', which was traced for one row with (x: float32[2])."
    assert note in caught.value.__notes__


def test_blocks_inside_blocks() -> None:
    def outer(x: float) -> Any:
        inside = lw.lazy_map(lambda y: score(np.full(WIDTH, y, np.float32)), [x, x + 1])
        return score(np.asarray(inside)) + score(x)

    found = lw.lazy_map(outer, [1.0, 2.0])
    np.testing.assert_allclose(found, [4 + 8 + 1, 8 + 12 + 2])


def test_deep_trees_of_python_are_fine() -> None:
    compare_map(tree_value, [chain_tree(60), 3])


def test_an_order_that_there_is_not_is_refused_before_anything_is_recorded() -> None:
    with pytest.raises(OptionError, match="order='widest' is none of 'depth'"):
        lw.lazy_map(lambda x: x, [1], order="widest")
