"""Programs over records against plain Python over the objects, on random trees and graphs."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.errors import OptionError, RecordError

CARRIERS = ("ticks", "native")
every_carrier = pytest.mark.parametrize("carrier", CARRIERS)


@lw.record
class Tree:
    label: int
    weight: float = 0.0
    left: Tree | None = None
    right: Tree | None = None


@lw.record
class Node:
    label: int
    children: list[Node]
    scores: list[float]


@lw.record
class Leaf:
    value: float
    label: int


@lw.record
class Binary:
    sign: int
    label: int
    first: Leaf | Binary | Call
    second: Leaf | Binary | Call


@lw.record
class Call:
    arguments: list[Leaf | Binary | Call]
    label: int


@lw.record
class Link:
    value: int
    mark: int | None = None
    next: Link | None = None


def random_tree(rng: random.Random, size: int) -> Tree | None:
    """Any shape, also one child alone."""
    if size == 0:
        return None
    left = rng.randrange(size)
    return Tree(
        rng.randrange(100),
        rng.uniform(-1, 1),
        random_tree(rng, left),
        random_tree(rng, size - 1 - left),
    )


def random_graph(rng: random.Random, size: int) -> Tree:
    """A graph without cycles: children are any of the nodes before."""
    nodes: list[Tree] = []
    for _ in range(size):
        kids = [rng.choice([None, *nodes[-4:]]) for _ in range(2)]
        nodes.append(Tree(rng.randrange(100), rng.uniform(-1, 1), *kids))
    return nodes[-1]


def random_node(rng: random.Random, size: int) -> Node:
    children, left = [], size - 1
    while left > 0:
        part = rng.randint(1, left)
        children.append(random_node(rng, part))
        left -= part
    return Node(rng.randrange(100), children, [rng.random() for _ in range(rng.randrange(3))])


def random_term(rng: random.Random, size: int) -> Any:
    if size <= 1:
        return Leaf(rng.uniform(-1, 1), rng.randrange(9))
    if rng.random() < 0.5:
        part = rng.randint(1, size - 1)
        sign = rng.choice([-1, 1])
        return Binary(sign, 7, random_term(rng, part), random_term(rng, size - part))
    sizes = [rng.randint(0, size - 1) for _ in range(rng.randrange(3))]
    return Call([random_term(rng, each // 2) for each in sizes], 8)


def links(values: list[int]) -> Link | None:
    head = None
    for value in reversed(values):
        head = Link(value, value if value % 3 == 0 else None, head)
    return head


def trees(
    count: int, most: int, seed: int = 0, make: Callable[..., Any] = random_tree
) -> list[Any]:
    rng = random.Random(seed)
    return [make(rng, rng.randint(1, most)) for _ in range(count)]


# -- programs, each beside its meaning in plain Python ------------------------------------------


@lw.program
def depth(tree):
    if tree is None:
        return 0
    return 1 + jnp.maximum(depth(tree.left), depth(tree.right))


@lw.program
def leaves(tree):
    match tree:
        case None:
            return 0
        case Tree(left=None, right=None):
            return 1
        case Tree(left=left, right=right):
            return leaves(left) + leaves(right)


@lw.program
def signed(tree):
    if tree.left is None and tree.right is None:
        return tree.weight
    if tree.left is not None and tree.right is None:
        return 2.0 * signed(tree.left)
    if tree.left is None:
        return 3.0 * signed(tree.right)
    return signed(tree.left) - signed(tree.right) + tree.weight


@lw.program
def total(node):
    found = node.label
    for child in node.children:
        found += total(child)
    return found


@lw.program
def alternating(node):
    """Places, both ends and the lists of numbers."""
    found = 0.0
    for i, child in enumerate(node.children):
        found += (i + 1) * alternating(child)
    if len(node.children) > 0:
        found += node.children[0].label - node.children[-1].label
    for score in node.scores:
        found += score
    return found


@lw.program
def evaluate(term):
    match term:
        case Leaf(value=value):
            return value
        case Binary(sign=sign, first=first, second=second):
            return evaluate(first) + sign * evaluate(second)
        case Call(arguments):
            found = 0.0
            for argument in arguments:
                found = 0.5 * found + evaluate(argument)
            return found


@lw.program
def count_labels(term, label):
    found = 1 if term.label == label else 0
    if isinstance(term, Binary):
        found += count_labels(term.first, label) + count_labels(term.second, label)
    elif isinstance(term, Call):
        for argument in term.arguments:
            found += count_labels(argument, label)
    return found


@lw.program
def longest(node):
    """The length of a list, and its marks: a loop over `next`."""
    count = 0
    marks = 0
    while node is not None:
        count += 1
        marks += node.mark if node.mark is not None else 100
        node = node.next
    return count, marks


def run(program: Any, forest: Any, carrier: str, *more: Any) -> Any:
    axes = (0, *(None for _ in more))
    found = lw.vmap(program, in_axes=axes, carrier=carrier)(forest, *more)
    return jax.tree.map(np.asarray, found)


def plain(program: Any, *args: Any) -> Any:
    """The function itself, over objects: recursive calls come back here."""
    return _PLAIN[program](*args)


def plain_depth(tree):
    return 0 if tree is None else 1 + max(plain_depth(tree.left), plain_depth(tree.right))


def plain_leaves(tree):
    if tree is None:
        return 0
    if tree.left is None and tree.right is None:
        return 1
    return plain_leaves(tree.left) + plain_leaves(tree.right)


def plain_signed(tree):
    if tree.left is None and tree.right is None:
        return tree.weight
    if tree.right is None:
        return 2.0 * plain_signed(tree.left)
    if tree.left is None:
        return 3.0 * plain_signed(tree.right)
    return plain_signed(tree.left) - plain_signed(tree.right) + tree.weight


def plain_total(node):
    return node.label + sum(map(plain_total, node.children))


def plain_alternating(node):
    found = sum((i + 1) * plain_alternating(child) for i, child in enumerate(node.children))
    if node.children:
        found += node.children[0].label - node.children[-1].label
    return found + sum(node.scores)


def plain_evaluate(term):
    if isinstance(term, Leaf):
        return term.value
    if isinstance(term, Binary):
        return plain_evaluate(term.first) + term.sign * plain_evaluate(term.second)
    found = 0.0
    for argument in term.arguments:
        found = 0.5 * found + plain_evaluate(argument)
    return found


def plain_count(term, label):
    inside = ()
    if isinstance(term, Binary):
        inside = (term.first, term.second)
    elif isinstance(term, Call):
        inside = term.arguments
    return (term.label == label) + sum(plain_count(each, label) for each in inside)


_PLAIN = {
    depth: plain_depth,
    leaves: plain_leaves,
    signed: plain_signed,
    total: plain_total,
    alternating: plain_alternating,
    evaluate: plain_evaluate,
}


@every_carrier
@pytest.mark.parametrize("make", [random_tree, random_graph], ids=["trees", "graphs"])
@pytest.mark.parametrize("program", [depth, leaves, signed], ids=lambda p: p.__name__)
def test_binary(program: Any, make: Any, carrier: str) -> None:
    for seed in range(4):
        batch = trees(17, 12, seed, make)
        expected = [plain(program, tree) for tree in batch]
        np.testing.assert_allclose(
            run(program, lw.pack(batch), carrier), expected, rtol=1e-5, atol=1e-4
        )


@every_carrier
@pytest.mark.parametrize("program", [total, alternating], ids=lambda p: p.__name__)
def test_children(program: Any, carrier: str) -> None:
    for seed in range(3):
        batch = trees(9, 25, seed, random_node)
        expected = [plain(program, tree) for tree in batch]
        np.testing.assert_allclose(
            run(program, lw.pack(batch), carrier), expected, rtol=1e-4, atol=1e-2
        )


@every_carrier
def test_unions(carrier: str) -> None:
    for seed in range(3):
        batch = trees(13, 20, seed, random_term)
        forest = lw.pack(batch)
        expected = [plain_evaluate(term) for term in batch]
        np.testing.assert_allclose(run(evaluate, forest, carrier), expected, rtol=1e-4, atol=1e-5)
        expected = [plain_count(term, 3) for term in batch]
        assert run(count_labels, forest, carrier, 3).tolist() == expected


@every_carrier
def test_lists_and_optional_fields(carrier: str) -> None:
    values = [[], [1], [3, 4, 6], list(range(40))]
    count, marks = run(longest, lw.pack([links(each) for each in values]), carrier)
    assert count.tolist() == [len(each) for each in values]
    assert marks.tolist() == [sum(v if v % 3 == 0 else 100 for v in each) for each in values]


@every_carrier
def test_beyond_the_last_record_a_recursion_ends(carrier: str) -> None:
    """`nodes` has None where there is no record, and a match over all classes has no case for it."""
    forest = lw.pack(trees(3, 9, 1, random_term))
    found = run(evaluate, forest.nodes, carrier)
    count = len(forest.objects)
    expected = [plain_evaluate(term) for term in forest.objects]
    np.testing.assert_allclose(found[:count], expected, rtol=1e-4, atol=1e-5)
    assert len(found) > count and not found[count:].any()
    assert run(count_labels, forest.nodes, carrier, 0)[count:].all()


def test_none_among_the_roots() -> None:
    forest = lw.pack([None, Tree(1, 0.0, Tree(2)), None])
    assert run(depth, forest, "ticks").tolist() == [0, 2, 0]
    assert run(leaves, forest, "native").tolist() == [0, 1, 0]

    @lw.program
    def kind(term):
        match term:
            case Leaf():
                return 1
            case Binary() | Call():
                return 2
            case None:
                return 3

    assert run(kind, lw.pack([Call([], 0), None, Leaf(1.0, 0)]), "ticks").tolist() == [2, 3, 1]


def test_a_record_as_an_argument() -> None:
    (tree,) = trees(1, 30, 3)
    assert depth(tree) == plain_depth(tree)
    assert jax.jit(depth)(lw.pack([tree])[0]) == plain_depth(tree)
    assert depth(None) == 0
    assert depth(tree=tree) == plain_depth(tree)


def test_as_plain_python() -> None:
    """Under `disable_jit` references are looked at, by `is None`, `isinstance` and `match` themselves."""
    with jax.disable_jit():
        for tree in trees(3, 9, 5):
            assert depth(tree) == plain_depth(tree)
            assert leaves(tree) == plain_leaves(tree)
        for term in trees(4, 9, 5, random_term):
            np.testing.assert_allclose(evaluate(term), plain_evaluate(term), rtol=1e-5)
        for node in trees(3, 9, 5, random_node):
            assert total(node) == plain_total(node)
        assert longest(links([3, 1])) == (2, 103)
        assert lw.vmap(depth)(lw.pack([None, Tree(1)])).tolist() == [0, 1]


def test_answers_at_every_node() -> None:
    batch = trees(5, 20, 7, random_graph)
    forest = lw.pack([*batch, batch[0]])
    found = np.asarray(lw.vmap(depth)(forest.nodes))
    assert int(forest.size) == len(forest.objects) < len(found)
    assert found[: len(forest.objects)].tolist() == [plain_depth(node) for node in forest.objects]
    assert (found[len(forest.objects) :] == 0).all()
    rows = np.asarray(forest.rows(forest.roots))
    assert [forest.objects[row - 1] is tree for row, tree in zip(rows, batch)] == [True] * 5
    assert rows[0] == rows[5]


def test_jax_vmap() -> None:
    batch = trees(6, 15, 2)
    forest = lw.pack(batch)
    expected = [plain_depth(tree) for tree in batch]
    by_row = jax.vmap(lambda i: depth(forest[i]))(jnp.arange(6))
    by_axes = jax.vmap(depth, in_axes=(forest.axes,))(forest.roots)
    jitted = jax.jit(lambda forest: lw.vmap(depth)(forest))(forest)
    assert by_row.tolist() == by_axes.tolist() == jitted.tolist() == expected
    with pytest.raises(ValueError, match="vmap"):
        jax.vmap(depth)(forest.roots)


def test_forests_inside_arguments() -> None:
    """A minibatch is often a dictionary: trees beside their labels."""
    batch = trees(3, 9, 4)
    forest, shift = lw.pack(batch), jnp.arange(3)

    @lw.program
    def shifted(given, others):
        return depth(given["tree"]) + given["shift"] + depth(others[0])

    expected = np.array([plain_depth(tree) for tree in batch])
    both = {"tree": forest, "shift": shift}
    found = lw.vmap(shifted)(both, [forest])
    assert found.tolist() == (2 * expected + np.arange(3)).tolist()
    axes = ({"tree": 0, "shift": None}, [forest.axes])
    found = lw.vmap(shifted, in_axes=axes)({"tree": forest, "shift": 5}, [forest.roots])
    assert found.tolist() == (2 * expected + 5).tolist()
    with pytest.raises(OptionError, match="a record Tree is one example: give `lanewise"):
        lw.vmap(depth)(batch[0])
    with pytest.raises(OptionError, match="a list of records is packed first"):
        lw.vmap(depth)([None, batch[0]])


def test_refilled_lanes() -> None:
    batch = trees(40, 15, 4)
    forest = lw.pack(batch)
    expected = [plain_depth(tree) for tree in batch]
    assert lw.vmap(depth, lanes=8)(forest).tolist() == expected


@every_carrier
def test_long_chains_and_wide_nodes(carrier: str) -> None:
    chain = None
    for label in range(3_000):
        chain = Tree(label, 0.0, chain)
    assert run(depth, lw.pack([chain, Tree(1), None]), carrier).tolist() == [3_000, 1, 0]
    twice = Node(1, [], [])
    wide = Node(1, [Node(i, [twice, twice], []) for i in range(1000)], [])
    assert run(total, lw.pack([wide, Node(3, [], [])]), carrier).tolist() == [501_501, 3]


def test_fresh_batches_compile_nothing(caplog: pytest.LogCaptureFixture) -> None:
    jitted = jax.jit(lambda forest: lw.vmap(depth, carrier="ticks")(forest).sum())
    batched = lw.vmap(depth, carrier="ticks")
    forest = lw.pack(trees(16, 40, 100))
    for seed in range(30):
        batch = trees(16, 30, seed)
        forest = lw.pack(batch, like=forest)
        with jax.log_compiles(seed > 0):
            found = batched(forest)
            assert jitted(forest) == found.sum()
        assert found.tolist() == [plain_depth(tree) for tree in batch]
    assert not [text for text in caplog.messages if "ompil" in text]


def test_wide_numbers() -> None:
    with jax.enable_x64(True):
        forest = lw.pack([Node(2**40, [Node(1, [], [0.5])], [])])
        assert lw.vmap(total)(forest).tolist() == [2**40 + 1]
        assert forest[0].children[0].scores[0].dtype == np.float64
    assert lw.pack([Node(1, [], [])])[0].label.dtype == np.int32


def test_streams_and_inspection() -> None:
    batch = trees(5, 9)
    forest = lw.pack(batch)
    found = dict(lw.stream(lambda i: depth(forest[i]), range(5), lanes=2))
    assert [found[i] for i in range(5)] == [plain_depth(tree) for tree in batch]
    with pytest.raises(lw.errors.OptionError, match="Pack them, and give their numbers"):
        list(lw.stream(depth, batch))
    assert lw.inspect(depth, forest).lanes == 5
    assert lw.inspect(depth, batch[0], in_axes=None).lanes is None


@lw.program
def crossed(tree):
    """Two references take turns in a loop, and one of them becomes None in a conditional expression."""
    a, b, steps = tree.left, tree.right, 0
    while a is not None or b is not None:
        a, b = b, (a.left if a is not None else None)
        steps += 1
    return steps


@every_carrier
def test_references_that_change_places(carrier: str) -> None:
    batch = trees(11, 15, 8)
    expected = []
    for tree in batch:
        a, b, steps = tree.left, tree.right, 0
        while a is not None or b is not None:
            a, b = b, (a.left if a is not None else None)
            steps += 1
        expected.append(steps)
    assert run(crossed, lw.pack(batch), carrier).tolist() == expected


def test_what_is_not_one_record() -> None:
    forest = lw.pack(trees(3, 5))
    with pytest.raises(lw.errors.OptionError, match=r"packed first: give `lanewise\.pack"):
        lw.vmap(depth)([Tree(1), Tree(2)])
    with pytest.raises(AttributeError, match="a forest has no 'left'"):
        signed(forest)
    with pytest.raises(lw.errors.RecordError, match="Use a `for` statement"):
        lw.lift(lambda node: [child.label for child in node.children])(Node(1, [], []))


# -- references as values --------------------------------------------------------------------


@lw.program
def find(node, value):
    if node is None:
        return None
    if node.value == value:
        return node
    return find(node.next, value)


@lw.program
def value_after(node, value):
    """Reads a reference that a call returned."""
    found = find(node, value)
    if found is None:
        return -1
    return 0 if found.next is None else found.next.value


@lw.program
def largest(node):
    best = None
    while node is not None:
        if best is None or node.value > best.value:
            best = node
        node = node.next
    return best


@lw.program
def meets(a, b):
    """Whether a list is reached from another: the identity of records."""
    while a:
        if a is b:
            return True
        a = a.next
    return False


@lw.program
def last_but_reset(node, value):
    """None is assigned inside of the loop."""
    found = node
    while node is not None:
        if node.value == value:
            found = None
        elif found is not None:
            found = node
        node = node.next
    return found


@every_carrier
def test_references_are_values(carrier: str) -> None:
    values = [[], [5], [3, 5, 4], [9, 8, 5, 7]]
    forest = lw.pack([links(each) for each in values])
    found = lw.vmap(find, in_axes=(0, None), carrier=carrier)(forest, 5)
    assert np.asarray(forest.rows(found) >= 0).tolist() == [False, True, True, True]
    assert forest.at(found).value.tolist() == [0, 5, 5, 5]
    assert run(value_after, forest, carrier, 5).tolist() == [-1, 0, 4, 7]
    most = forest.at(lw.vmap(largest, carrier=carrier)(forest))
    assert most.value.tolist() == [0, 5, 5, 9]
    left = forest.at(lw.vmap(last_but_reset, in_axes=(0, None), carrier=carrier)(forest, 8))
    assert left.value.tolist() == [0, 5, 4, 0]


def test_identity() -> None:
    tail = links([4, 5])
    assert tail is not None
    forest = lw.pack([Link(1, None, tail), links([4, 5]), tail])
    found = jax.vmap(lambda i: meets(forest[i], forest[2]))(jnp.arange(3))
    assert found.tolist() == [True, False, True]


@lw.program
def marks(node):
    """Patterns over a field that may be None: None is not zero."""
    found = 0
    while node is not None:
        match node:
            case Link(mark=None):
                found += 1
            case Link(mark=0):
                found += 10
            case _:
                found += 100
        node = node.next
    return found


def test_none_is_not_zero() -> None:
    values = [[0, 1, 3], [0, 0, 2, 4]]
    forest = lw.pack([links(each) for each in values])
    assert lw.vmap(marks)(forest).tolist() == [111, 22]
    optional = jax.vmap(lambda i: forest[i].mark)(jnp.arange(2))
    assert (optional == 0).tolist() == [True, True] and (optional == None).tolist() == [False] * 2  # noqa: E711


def test_copies() -> None:
    batch = trees(5, 12)
    forest = lw.pack(batch)
    twin = pickle.loads(pickle.dumps(forest))
    assert jax.tree.structure(twin) == jax.tree.structure(forest)
    assert lw.vmap(depth)(twin).tolist() == [plain_depth(tree) for tree in batch]
    assert copy.copy(forest[0]).label == copy.deepcopy(forest[0]).label == batch[0].label
    with pytest.raises(RecordError, match="`pack` gave one with objects"):
        twin.objects  # noqa: B018
    with pytest.raises(TypeError, match="compared by `is`"):
        assert forest[0] == forest[0]


def test_a_reference_that_left_says_how_to_read_it() -> None:
    forest = lw.pack([links([1, 2])])
    found = lw.vmap(largest)(forest)
    with pytest.raises(AttributeError, match=r"forest\.at"):
        found.value  # noqa: B018
    with pytest.raises(
        AttributeError, match="has no field 'valeu'; it has 'value', 'mark', 'next'"
    ):
        forest[0].valeu  # noqa: B018
    with pytest.raises(AttributeError, match="shared by all lanes"):
        forest[0].value = 3


# -- map, reduce, attention --------------------------------------------------------------------


@lw.program
def attention(node):
    """Softmax attention of a node over its children."""
    own = jnp.array([jnp.sin(1.0 * node.label), 1.0])
    if len(node.children) == 0:
        return own
    below = lw.arrays.map(attention, node.children)
    scores = lw.arrays.map(lambda child: child @ own, below)
    norm = lw.arrays.reduce(jnp.logaddexp, scores)
    weights = lw.arrays.map(lambda score: jnp.exp(score - norm), scores)
    return own + lw.arrays.reduce(jnp.add, lw.arrays.map(lambda w, x: w * x, weights, below))


def plain_attention(node):
    own = np.array([np.sin(node.label), 1.0])
    if not node.children:
        return own
    below = np.array([plain_attention(child) for child in node.children])
    weights = np.exp(below @ own)
    return own + weights @ below / weights.sum()


@lw.program
def best_score(node):
    """A reduction of a list of numbers, which may be empty."""
    found = lw.arrays.reduce(jnp.maximum, node.scores)
    for child in node.children:
        found = jnp.maximum(found, best_score(child))
    return found


def plain_best(node):
    return max([-np.inf, *node.scores, *map(plain_best, node.children)])


@every_carrier
def test_attention_over_children(carrier: str) -> None:
    batch = trees(7, 14, 1, random_node)
    forest = lw.pack(batch)
    expected = [plain_attention(node) for node in batch]
    np.testing.assert_allclose(run(attention, forest, carrier), expected, rtol=1e-4)
    np.testing.assert_allclose(
        run(best_score, forest, carrier), [plain_best(n) for n in batch], rtol=1e-6
    )


def test_records_are_not_reduced() -> None:
    @lw.program
    def wrong(node):
        return lw.arrays.reduce(jnp.add, node.children)

    with pytest.raises(lw.errors.OptionError, match="the elements are records"):
        wrong(Node(1, [Node(2, [], [])], []))
