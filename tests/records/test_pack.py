"""Packing: what is in the arrays, that shapes repeat, and that errors name instance and path."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lanewise as lw
from lanewise.errors import OptionError, RecordError


@lw.record
class Tree:
    label: int
    left: Tree | None = None
    right: Tree | None = None


@lw.record
class Plant:
    height: float
    vector: np.ndarray
    word: str
    children: list[Plant]


@lw.record
class Strict:
    below: Strict


@lw.record
class Even:
    odd: Odd | None


@lw.record
class Odd:
    evens: list[Even]
    size: np.int8


def unpacked(reference: Any, seen: dict[int, Tree]) -> Tree | None:
    """A tree made of what references read, one object for each row."""
    if reference is None:
        return None
    row = int(reference._index)
    if row not in seen:
        seen[row] = Tree(int(reference.label))
        seen[row].left = unpacked(reference.left, seen)
        seen[row].right = unpacked(reference.right, seen)
    return seen[row]


def same(one: Tree | None, other: Tree | None, pairs: dict[int, int]) -> bool:
    """Whether two graphs are alike, shared nodes included."""
    if one is None or other is None:
        return one is other
    if id(one) in pairs:
        return pairs[id(one)] == id(other)
    pairs[id(one)] = id(other)
    return (
        one.label == other.label
        and same(one.left, other.left, pairs)
        and same(one.right, other.right, pairs)
    )


@st.composite
def graphs(draw: Any) -> list[Tree | None]:
    """Roots of a graph without cycles, or of trees: each child is one of the nodes before, or None."""
    sharing = draw(st.booleans())
    free: list[Tree] = []
    every: list[Tree] = []
    for label in draw(st.lists(st.integers(-5, 5), max_size=30)):
        node = Tree(label)
        for side in ("left", "right"):
            pool = every if sharing else free
            if pool and draw(st.booleans()):
                child = pool[draw(st.integers(0, len(pool) - 1))]
                setattr(node, side, child)
                if not sharing:
                    free.remove(next(each for each in free if each is child))
        every.append(node)
        free.append(node)
    picked = draw(st.lists(st.integers(0, max(len(every) - 1, 0)), max_size=5))
    roots = [every[i] for i in picked if every] if sharing else free
    return [*roots, Tree(9), None]


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_what_is_packed_is_read_again(roots: list[Tree | None]) -> None:
    forest = lw.pack(roots)
    seen: dict[int, Tree] = {}
    pairs: dict[int, int] = {}
    for root, found in zip(roots, [forest[i] for i in range(len(roots))]):
        assert same(root, unpacked(found, seen), pairs)
    assert len({id(node) for node in forest.objects}) == int(forest.size)
    labels = np.asarray(forest.nodes.label)[: int(forest.size)]
    assert labels.tolist() == [node.label for node in forest.objects]


def test_arrays_lists_and_words() -> None:
    rng = np.random.default_rng(0)

    def plant(size: int) -> Plant:
        children = [plant(size - 2) for _ in range(size % 4)] if size > 1 else []
        vector = rng.normal(size=3).astype(np.float32)
        return Plant(float(size), vector, "ab"[size % 2], children)

    batch = [plant(n) for n in (1, 5, 7)]
    forest = lw.pack(batch, codes={"word": {"a": 10, "b": 11}})

    def check(reference: Any, record: Plant) -> None:
        assert reference.height == record.height
        np.testing.assert_array_equal(reference.vector, record.vector)
        assert reference.word == {"a": 10, "b": 11}[record.word]
        assert len(reference.children) == len(record.children)
        for found, expected in zip(reference.children, record.children):
            check(found, expected)

    for i, record in enumerate(batch):
        check(forest[i], record)
    with pytest.raises(AttributeError, match=r"Plant.word is a str, .* `codes=\{'word': ...\}`"):
        lw.pack(batch)[0].word  # noqa: B018


def test_classes_that_name_each_other() -> None:
    forest = lw.pack([Even(Odd([Even(None), Even(Odd([], np.int8(2)))], np.int8(5)))])
    odd: Any = forest[0].odd
    assert odd.size == 5
    assert np.asarray(odd.size).dtype == np.int8
    assert forest[0].odd.evens[0].odd is None
    assert forest[0].odd.evens[-1].odd.size == 2
    assert len(forest.nodes_of(Odd)) >= 2
    assert repr(forest) == "<forest of 1: 3 Even, 2 Odd>"


def test_a_shared_record_is_packed_once() -> None:
    node = Tree(0)
    for label in range(200):
        node = Tree(label, node, node)
    forest = lw.pack([node, node])
    assert int(forest.size) == 201
    assert forest.rows(forest.roots).tolist() == [1, 1]


def test_long_chains_wide_nodes_and_many_trees() -> None:
    chain = None
    for label in range(10_000):
        chain = Tree(label, chain)
    wide = Plant(0.0, np.zeros(2), "", [Plant(1.0, np.ones(2), "", []) for _ in range(3000)])
    assert int(lw.pack([chain]).size) == 10_000
    assert len(lw.pack([wide])[0].children) == 3000
    many = lw.pack([Tree(i, Tree(-i)) for i in range(5000)])
    assert many.roots.label.tolist() == list(range(5000))
    assert many.roots.left.label.tolist() == [-i for i in range(5000)]


def random_tree(rng: random.Random, size: int) -> Tree:
    if size == 1:
        return Tree(rng.randrange(9))
    part = rng.randrange(1, size)
    return Tree(rng.randrange(9), random_tree(rng, part), random_tree(rng, size - part))


def test_fresh_batches_have_few_types() -> None:
    """A program is traced once for each type: over 40 batches of fresh trees a few times, with `like` once or twice."""

    @lw.program
    def depth(tree):
        traces.append(1)
        if tree is None:
            return 0
        return 1 + jnp.maximum(depth(tree.left), depth(tree.right))

    traces: list[int] = []
    rng = random.Random(0)
    batched = lw.vmap(depth, carrier="ticks")
    batches = [[random_tree(rng, rng.randint(20, 40)) for _ in range(32)] for _ in range(40)]
    types = {jax.tree.structure(lw.pack(b)): 1 for b in batches}
    assert len(types) == 1
    shapes = {tuple(x.shape for x in jax.tree.leaves(lw.pack(b))) for b in batches}
    assert len(shapes) <= 3
    forest = lw.pack(batches[0])
    batched(forest)
    once, kinds = len(traces), set()
    for batch in batches:
        forest = lw.pack(batch, like=forest)
        kinds.add(tuple(x.shape for x in jax.tree.leaves(forest)))
        batched(forest)
    assert len(kinds) <= 2 and len(traces) <= once * len(kinds)


def cycle() -> Tree:
    tree = Tree(1, None, Tree(2, Tree(3)))
    assert tree.right is not None and tree.right.left is not None
    tree.right.left.right = tree.right
    return tree


# As the type checker would not have it.
tree: Any = Tree
strict: Any = Strict
plant: Any = Plant
ONES, TWOS = np.ones(1), np.ones(2)
WRONG: dict[str, tuple[Any, str]] = {
    "a cycle": (
        [tree(1), cycle()],
        r"trees\[1\]\.right\.left\.right is the same record as trees\[1\]\.right, which it is part of: a cycle",
    ),
    "no child": ([strict(None)], r"trees\[0\]\.below is None, and its annotation is `Strict`"),
    "another class": (
        [tree(1, Even(None))],
        r"trees\[0\]\.left is a record Even; its annotation is `Tree`",
    ),
    "a number for a record": ([tree(1), tree(2, None, 7)], r"trees\[1\]\.right is 7 \(int\)"),
    "a string for a number": (
        [tree(0, tree("x"))],
        r"trees\[0\]\.left\.label is 'x' \(str\), which",
    ),
    "a float for an int": (
        [tree(0.5)],
        r"trees\[0\]\.label is 0\.5 \(float\), which does not fit one int32",
    ),
    "too large": ([tree(2**40)], r"trees\[0\]\.label is 1099511627776 \(int\), which does not"),
    "None for a number": ([tree(None)], r"trees\[0\]\.label is None. Give it a value"),
    "two shapes": (
        [plant(0.0, ONES, "", []), plant(0.0, ONES, "", [plant(0.0, TWOS, "", [])])],
        r"trees\[1\]\.children\[0\]\.vector is float64\[2\], and trees\[0\]\.vector is float64\[1\]",
    ),
    "no list": ([plant(0.0, ONES, "", None)], r"trees\[0\]\.children is None; .* a list"),
    "a dictionary for a list": (
        [plant(0.0, ONES, "", {})],
        r"trees\[0\]\.children is {} \(dict\); its annotation asks for a list",
    ),
    "one record": (
        tree(1),
        r"takes a list of records, and got one Tree: give `pack\(\[record\]\)`",
    ),
    "None alone": (None, r"takes a list of records, and got None \(NoneType\)"),
    "a forest": (lw.pack([tree(1)]), "got what is packed already"),
    "None in a list": ([plant(0.0, ONES, "", [None])], r"trees\[0\]\.children\[0\] is None, and"),
    "no record": ([tree(1), 5], r"trees\[1\] is of class int; `pack` takes records"),
    "nothing": ([], "Give `of=` or `like=`"),
}


@pytest.mark.parametrize("records, message", WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_reported_by_instance_and_path(records: Any, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        lw.pack(records)


def test_words_without_a_code() -> None:
    with pytest.raises(
        RecordError, match=r"trees\[0\]\.word is 'c' \(str\), for which `codes` has no"
    ):
        lw.pack([Plant(0.0, ONES, "c", [])], codes={"word": {"a": 1}})
    assert lw.pack([Plant(0.0, ONES, "c", [])], codes={"word": len})[0].word == 1
    with pytest.raises(OptionError, match="has no field of strings with that name"):
        lw.pack([Tree(1)], codes={"label": {}})
    with pytest.raises(RecordError, match=r"for which `codes` has 'x', which is no int32"):
        lw.pack([Plant(0.0, ONES, "c", [])], codes={"word": {"c": "x"}})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"codes": ["word"]}, r"codes=\['word'\] is a list; it takes the codes of each field"),
        ({"codes": {"word": ["a"]}}, r"codes={'word': \['a'\]}: .* and this is a list"),
        ({"of": "Tree"}, "of='Tree' is no class"),
        ({"of": Tree(1)}, r"of=Tree\(label=1.* is no class"),
        ({"like": [Tree(1)]}, "is a list; it takes a forest that `pack` gave before"),
    ],
)
def test_options_that_are_wrong(options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        lw.pack([Plant(0.0, ONES, "c", [])], **options)


def test_lists_of_every_kind() -> None:
    @lw.record
    class Bag:
        words: list[int]

    bags: list[Any] = [[1, 2], (3,), np.arange(2), range(1), jnp.arange(3)]
    forest = lw.pack([Bag(each) for each in bags])
    assert [np.asarray(forest[i].words).tolist() for i in range(5)] == [list(b) for b in bags]
    for wrong in ({1: 2}, {1}, b"ab", np.ones((1, 2))):
        with pytest.raises(RecordError, match=r"trees\[1\].words is .* asks for a list"):
            lw.pack([Bag([1]), Bag(wrong)])  # type: ignore[arg-type]


def test_like_another_forest() -> None:
    large = lw.pack([random_tree(random.Random(0), 100)])
    small = lw.pack([Tree(1)], like=large)
    assert [x.shape for x in jax.tree.leaves(small)] == [x.shape for x in jax.tree.leaves(large)]
    assert len(lw.pack([], like=large)) == len(lw.pack([], of=Tree)) == 0
    with pytest.raises(OptionError, match=r"of=<class 'int'>: int has no @lanewise\.record"):
        lw.pack([], of=int)
    plants = lw.pack([Plant(0.0, ONES, "", [])])
    with pytest.raises(
        RecordError, match=r"float32\[2\], and those of the forest given as `like` are float32\[1\]"
    ):
        lw.pack([Plant(0.0, TWOS, "", [])], like=plants)


def test_annotations_that_are_no_records() -> None:
    @lw.record
    class Odd_:
        things: dict[str, int]

    @lw.record
    class Bare:
        items: list

    @lw.record
    class First:
        value: int

    @lw.record
    class Second:
        value: float

    @lw.record
    class Holder:
        inside: First | Second

    with pytest.raises(
        OptionError, match=r"Odd_\.things is annotated dict\[str, int\]; .* is not a number"
    ):
        lw.pack([Odd_({})])
    with pytest.raises(OptionError, match=r"say what its items are, as in `list\[Bare\]`"):
        lw.pack([Bare([])])
    with pytest.raises(OptionError, match="`value` is int32 in First and float32 in Second"):
        lw.pack([Holder(First(1))])
    with pytest.raises(OptionError, match="takes a class"):
        lw.record(3)  # type: ignore[call-overload]


def test_records_are_data_classes() -> None:
    @lw.record(frozen=True)
    class Point:
        x: int
        y: int = 0

    assert Point(1) == Point(1, 0) and hash(Point(1)) == hash(Point(1))
    with pytest.raises(AttributeError):
        Point(1).x = 2  # type: ignore[misc]
