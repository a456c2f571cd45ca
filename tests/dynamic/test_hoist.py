"""Programs of which some calls are run by levels, and the rest is not, give what they give one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.carriers.levels import in_parts
from lanewise.errors import LaneError, OptionError
from lanewise.plan.choose import inside_jit, plan

WIDTH, WORDS = 12, 7


@lw.record
class Tree:
    word: int
    left: Tree | None = None
    right: Tree | None = None


@lw.record
class Item:
    word: int
    rest: Item | None = None


def weights(width: int = WIDTH) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"words": (WORDS, width), "join": (2 * width, width), "square": (width, width)}
    return {
        k: jnp.asarray(rng.normal(size=s) / np.sqrt(s[0] / 2), jnp.float32)
        for k, s in shapes.items()
    }


@lw.program
def encode(tree, w):
    if tree.left is None:
        return jnp.tanh(w["words"][tree.word])
    children = jnp.concatenate([encode(tree.left, w), encode(tree.right, w)])
    return jnp.tanh(children @ w["join"])


@lw.program
def settled(tree, w):
    """An early return, a recursion, and a loop on values."""
    if tree.word == 0:
        return w["words"][0]
    h = encode(tree, w)
    turns = 0
    while jnp.sum(h * h) > 1.0 and turns < 5:
        h = jnp.sin(h @ w["square"])
        turns += 1
    return h * (1 + turns)


@lw.program
def wrapped(tree, w):
    """A program around such a program."""
    return 2 * settled(tree, w) + settled(tree, {**w, "square": -w["square"]})


@lw.program
def down(tree, state, w):
    state = jnp.tanh(state @ w["square"] + w["words"][tree.word])
    if tree.left is None:
        return state
    return down(tree.left, state, w) - down(tree.right, 2 * state, w)


@lw.program
def up_and_down(tree, w):
    """The second recursion reads the first, and the branch on values makes calls that stay."""
    h = encode(tree, w)
    scale = h @ w["square"]
    found = down(tree, scale, w)
    if found[0] > scale[0]:
        return found + scale
    return encode(tree, w) * scale


@lw.program
def read_then_say(item, w):
    """No recursion: a loop over words, then one on values."""
    h = jnp.ones(WIDTH) / 2
    while item is not None:
        h = jnp.tanh(w["words"][item.word] + h @ w["square"])
        item = item.rest
    said = h * 0
    for _ in range(6):
        said = said + jnp.sin(h)
        h = h @ w["square"]
        if jnp.max(h) > 0.8:
            break
    return said


@lw.program
def two_sides(tree, w):
    """Other calls on either side of a branch that is decided first."""
    if tree.word % 2 == 0:
        h = encode(tree, w)
    else:
        h = down(tree, w["words"][1], w)
    if jnp.sum(h) > 0:
        h = encode_again(h, 3, w)
    return h


@lw.program
def encode_again(h, n, w):
    if n == 0:
        return h
    return jnp.tanh(encode_again(h, n - 1, w) @ w["square"])


@lw.program
def parsed(tree, w):
    """The recursion itself waits for values; its first call does not."""
    h = encode(tree, w)
    if tree.left is not None and h[0] > 0:
        h = h + parsed(tree.left, w)
    return h


@lw.program
def parsed_up(tree, h, w):
    """The same, where one function calls another."""
    h = jnp.sin(h) + encode(tree, w)
    if tree.left is None:
        return h
    return parsed_down(tree.left, h, w)


@lw.program
def parsed_down(tree, h, w):
    return parsed_up(tree, -h, w) if jnp.sum(h) > 0 else h @ w["square"]


@lw.program
def around_a_parser(tree, w):
    """Calls of recursions that wait for values, behind a branch that does not; of one the arguments wait."""
    first = w["words"][2]
    if tree.word % 2 == 0:
        first = parsed_up(tree, first, w)
    return parsed_up(tree, first, w)


def random_tree(rng: np.random.Generator, leaves: int) -> Tree:
    word = int(rng.integers(WORDS))
    if leaves <= 1:
        return Tree(word)
    first = int(rng.integers(1, leaves))
    return Tree(word, random_tree(rng, first), random_tree(rng, leaves - first))


def trees(seed: int, count: int = 5, most: int = 6) -> list[Tree]:
    rng = np.random.default_rng(seed)
    return [random_tree(rng, int(n)) for n in rng.integers(1, most, count)]


def sentences() -> list[Item | None]:
    found: list[Item | None] = []
    for words in ([1, 2, 3], [], [4], [5, 6, 1, 2]):
        item = None
        for word in reversed(words):
            item = Item(word, item)
        found.append(item)
    return found


def one_by_one(program: Any, instances: Sequence[Any], w: Any) -> Any:
    """Plain Python, an instance after the other."""
    with jax.disable_jit():
        return jnp.stack([program(x, w) for x in instances])


@pytest.mark.parametrize(
    ("program", "instances"),
    [
        (settled, trees(0)),
        pytest.param(wrapped, trees(3), marks=pytest.mark.slow),
        pytest.param(up_and_down, trees(1), marks=pytest.mark.slow),
        pytest.param(two_sides, trees(2), marks=pytest.mark.slow),
        pytest.param(read_then_say, sentences(), marks=pytest.mark.slow),
        (parsed, trees(4)),
        pytest.param(around_a_parser, trees(5, 4), marks=pytest.mark.slow),
    ],
)
def test_values_gradients_and_tangents(program: Any, instances: Sequence[Any]) -> None:
    w, forest = weights(), lw.pack(list(instances))
    run = lw.vmap(program, in_axes=(0, None), schedule="levels")
    shown = jnp.asarray(np.random.default_rng(9).normal(size=(len(instances), WIDTH)), jnp.float32)

    def loss(w: Any) -> Any:
        return jnp.sum(run(forest, w) * shown)

    def plainly(w: Any) -> Any:
        return jnp.sum(one_by_one(program, instances, w) * shown)

    expected = one_by_one(program, instances, w)
    np.testing.assert_allclose(run(forest, w), expected, rtol=1e-4, atol=1e-5)
    pairs = [jax.value_and_grad(f)(w) for f in (loss, plainly)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *pairs)
    pairs = [jax.jvp(f, (w,), (w,)) for f in (loss, plainly)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *pairs)


def parts_of(program: Any, instances: Sequence[Any], w: Any) -> Any:
    found = lw.inspect(
        program.with_options(schedule="levels"), lw.pack(list(instances)), w, in_axes=(0, None)
    )
    return in_parts(found.plan.job), str(found)


def test_what_is_hoisted_and_what_stays() -> None:
    w = weights()
    found, shown = parts_of(settled, trees(0), w)
    assert [c.split("`")[1] for c in found.split.calls] == ["encode"]
    # The rest makes no calls any more, and the first half has no loop.
    assert not found.rest.program.recursive
    assert "while" not in found.first.program.text
    assert "by levels: the call of `encode` at" in shown
    assert "control depends on values: the test of the loop at" in shown
    assert "the rest: carrier" in shown
    found, shown = parts_of(up_and_down, trees(1), w)
    assert [c.split("`")[1] for c in found.split.calls] == ["encode", "down"]
    # The product between the calls is not made twice.
    assert "dot_general" not in found.rest.program.text.split("encode")[0]
    assert "the call of `encode` at" in found.split.stays[0]
    assert "the test of the branch at /" in found.split.stays[0]
    found, _ = parts_of(two_sides, trees(1), w)
    assert len(found.split.calls) == 2
    assert parts_of(read_then_say, sentences(), w)[0].split.calls[0].startswith("the loop at")


def test_the_first_call_of_a_recursion_that_waits_is_looked_into() -> None:
    w = weights()
    found, _ = parts_of(parsed, trees(1), w)
    assert [c.split("`")[1] for c in found.split.calls] == ["encode"]
    assert "the call of `parsed` at" in found.split.stays[0]
    assert "stays: control depends on values" in found.split.stays[0]
    assert found.rest.program.name == "parsed"
    found, _ = parts_of(around_a_parser, trees(1), w)
    assert [c.split("`")[1] for c in found.split.calls] == ["encode"]
    assert any("`parsed_up`" in s and "arguments wait" in s for s in found.split.stays)


@lw.program
def each_turn(tree, w):
    """The call in the loop has other arguments at each turn."""
    h, turns = w["words"][0], 0
    while jnp.sum(h @ w["square"]) < 3.0 and turns < 3:
        h = h + encode(tree, w)
        tree = tree if tree.left is None else tree.left
        turns += 1
    return h


@lw.program
def behind_an_assertion(tree, w):
    h = w["words"][tree.word] @ w["square"]
    assert jnp.sum(h) < 1e9, "values explode"
    return encode(tree, w)


@lw.program
def small(tree, w):
    if tree.left is None:
        return w["words"][tree.word][0]
    return jnp.sin(small(tree.left, w) + small(tree.right, w))


@lw.program
def cheap_calls(tree, w):
    h = w["words"][0] * small(tree, w)
    while jnp.sum(h @ w["square"]) > 1.0:
        h = h / 2 - jnp.abs(small(tree, w))
    return h


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (cheap_calls, "the call of `small` at .* stays: it is no matrix work"),
        (each_turn, "the call of `encode` at .* stays: it is inside the loop at"),
        (behind_an_assertion, "stays: it is after the check at"),
    ],
)
def test_why_nothing_is_hoisted(program: Any, why: str) -> None:
    run = lw.vmap(program, in_axes=(0, None), schedule="levels")
    with pytest.raises(OptionError, match=f"control depends on values: (?s:.*){why}"):
        run(lw.pack(trees(0)), weights())


@lw.program
def bounded(tree, w):
    assert tree.word < 5, "a word beyond the table"
    if tree.left is None:
        return w["words"][tree.word]
    return jnp.tanh(jnp.concatenate([bounded(tree.left, w), bounded(tree.right, w)]) @ w["join"])


@lw.program
def endless_on_nan(tree, w):
    """A lane that has failed must not go into the loop."""
    h = bounded(tree, w)
    while not jnp.max(h @ w["square"]) < 0.1:
        h = h / 2
    assert h[0] < 0.01, "too large"
    return h


def test_lanes_that_fail_in_either_half() -> None:
    w = weights()
    good, bad = Tree(1, Tree(2), Tree(3)), Tree(1, Tree(2), Tree(6))
    run = lw.vmap(endless_on_nan, in_axes=(0, None), schedule="levels", throw=False)
    other = lw.vmap(endless_on_nan, in_axes=(0, None), carrier="native", throw=False)
    forest = lw.pack([good, bad, Tree(4), *(Tree(word) for word in range(4))])
    pairs = [f(forest, w) for f in (run, other)]
    np.testing.assert_allclose(pairs[0][0], pairs[1][0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(pairs[0][1].code, pairs[1][1].code)
    np.testing.assert_array_equal(pairs[0][1].site, pairs[1][1].site)
    assert len(set(np.asarray(pairs[0][1].site).tolist())) == 3
    grads = [
        jax.grad(lambda w, f=f: jnp.nansum(f(forest, w)[0]))(w)  # type: ignore[misc]
        for f in (run, other)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *grads)
    with pytest.raises(LaneError, match="a word beyond the table"):
        lw.vmap(endless_on_nan, in_axes=(0, None), schedule="levels")(lw.pack([good, bad]), w)


def test_outcomes_inside_jit_are_an_error_that_says_so() -> None:
    """Control is known there if trees are constants, but lanes that end are not."""
    w, forest = weights(), lw.pack(trees(0))
    run = lw.vmap(settled, in_axes=(0, None), schedule="levels", throw=False)
    with pytest.raises(OptionError, match="Call `settled` outside jit, or without throw=False"):
        jax.jit(jax.grad(lambda w: jnp.sum(run(forest, w)[0])))(w)


def test_lanes_in_two_axes_and_a_lone_call() -> None:
    w, forest = weights(), lw.pack(trees(4, 6))
    flat = lw.vmap(settled, in_axes=(0, None), schedule="levels")(forest, w)
    program = settled.with_options(schedule="levels")
    nested = jax.vmap(jax.vmap(lambda i: program(forest[i], w)))(jnp.arange(6).reshape(2, 3))
    np.testing.assert_allclose(nested.reshape(6, WIDTH), flat, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(program(forest[3], w), flat[3], rtol=1e-5, atol=1e-6)


@lw.program
def noisy(tree, key, w):
    if tree.left is None:
        return w["words"][tree.word], key
    h, key = noisy(tree.left, key, w)
    g, key = noisy(tree.right, key, w)
    key, own = jax.random.split(key)
    return jnp.tanh(h @ w["square"] - g) + 0.1 * jax.random.normal(own, (WIDTH,)), key


@lw.program
def sampled(tree, key, w):
    """The recursion hands a key on to the loop on values."""
    h, key = noisy(tree, key, w)
    turns = 0
    while jnp.max(h @ w["square"]) > 0.5 and turns < 4:
        key, own = jax.random.split(key)
        h = h * jax.random.uniform(own)
        turns += 1
    return h


def test_typed_keys_are_handed_on() -> None:
    w, forest = weights(), lw.pack(trees(5))
    keys = jax.random.split(jax.random.key(1), 5)
    by_levels = lw.vmap(sampled, in_axes=(0, 0, None), schedule="levels")(forest, keys, w)
    expected = lw.vmap(sampled, in_axes=(0, 0, None), carrier="native")(forest, keys, w)
    np.testing.assert_allclose(by_levels, expected, rtol=1e-4, atol=1e-5)


@lw.program
def exits(tree, w):
    h = encode(tree, w)
    for layer in w["layers"]:
        if jnp.max(h) > 0.9:
            break
        h = jnp.tanh(h @ layer)
    return h


def test_auto_picks_it_and_a_report_names_it(tmp_path: Any) -> None:
    w, forest = weights(256), lw.pack(trees(5, 16, 4))
    found = lw.inspect(settled, forest, w, in_axes=(0, None)).plan
    assert found.schedule == "levels" and "the call of `encode`" in found.why
    # Inside jit nothing is known: it runs otherwise, and says what would be better.
    traced = inside_jit(plan(found.job))
    assert traced.schedule == "meet" and "called outside jit, it is run by levels" in traced.why
    # As a whole this one would be run a lane at a time; its calls alone would not.
    layered = {**w, "layers": jnp.ones((3, 256, 256))}
    found = lw.inspect(exits, forest, layered, in_axes=(0, None)).plan
    assert found.schedule == "levels" and plan(found.job).carrier == "native"
    few = lw.inspect(settled, lw.pack(trees(5, 4, 4)), w, in_axes=(0, None))
    assert few.plan.schedule != "levels"
    run = lw.vmap(settled, in_axes=(0, None))
    with lw.report(tmp_path / "report.html"):
        answers = run(forest, w)
    expected = lw.vmap(settled, in_axes=(0, None), schedule="sweep")(forest, w)
    np.testing.assert_allclose(answers, expected, rtol=1e-3, atol=1e-4)
    text = (tmp_path / "report.html").read_text()
    assert "calls of settled" in text and "ticks, levels" in text


@pytest.mark.slow
def test_what_is_left_may_capture_and_hold_constants() -> None:
    """The parser of the examples reads ahead by levels; the rest of it closes over arrays and has constants."""
    import transition_parser as parser

    params, sentences = parser.init(8), lw.pack(parser.batch(0, 3))

    def loss(p: Any, schedule: str) -> Any:
        return lw.vmap(parser.measure, in_axes=(None, 0), schedule=schedule)(p, sentences)[
            :, 0
        ].sum()

    by_levels, swept = (jax.value_and_grad(loss)(params, way) for way in ("levels", "auto"))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), by_levels, swept
    )
