"""What runs where, and what travels: counted in one process, with all places together and no messages."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.core.errors import OptionError, TransformError
from lanewise.place.held import held
from lanewise.place.moves import Move
from lanewise.place.placement import placement_from
from lanewise.place.prepared import Prepared, ask
from lanewise.place.project import dry_run
from programs.edges import swayed

X, W, V = jnp.linspace(0.1, 1.0, 3), 0.3 * jnp.eye(3) + 0.1, 0.5 * jnp.eye(3)
TWO = {"encoder": 0, "decoder": 1}


def encoder(x: Any, w: Any) -> Any:
    return lw.placed(lambda x, w: jnp.tanh(x @ w), "encoder")(x, w)


def decoder(x: Any, w: Any) -> Any:
    return lw.placed(lambda x, w: jnp.sin(x @ w), "decoder")(x, w)


class Divided:
    """A function divided between places, and what a run of it sends."""

    def __init__(self, fun: Any, placement: dict[str, Any], *args: Any) -> None:
        leaves, tree = jax.tree.flatten((args, {}))
        found = ask(fun, "f", placement_from(placement), leaves, tree)
        self.prepared: Prepared = found.divided(False)
        actions, places = self.prepared.actions, self.prepared.placement.everywhere
        self.counts, self.outs = dry_run(actions, places, [*found.captured, *leaves])
        for mine, plain in zip(self.outs, jax.tree.leaves(fun(*args)), strict=True):
            np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-6)

    @property
    def homes(self) -> list[list[int]]:
        return [sorted(places) for places in self.prepared.actions.outs]

    def sent(self, *, small: bool = False) -> dict[tuple[int, int], list[int]]:
        """How often each move that carries arrays, or else scalars, is made, by edge."""
        found: dict[tuple[int, int], list[int]] = {}
        for move in self.prepared.actions.moves():
            if small == (not move.var.aval.shape):
                found.setdefault((move.source, move.target), []).append(self.counts[move.number])
        return found


def test_a_value_travels_once() -> None:
    def f(x, w, v):
        y = encoder(x, w)
        return decoder(y, v) + decoder(-decoder(y, v), v), decoder(y, v)

    found = Divided(f, TWO, X, W, V)
    assert found.sent() == {(0, 1): [1]} and found.homes == [[1], [1]]


def test_what_a_loop_reads_travels_before_it() -> None:
    def f(x, w, v):
        y = encoder(x, w)
        return jax.lax.fori_loop(0, 7, lambda i, z: decoder(z + y, v), x)

    assert Divided(f, TWO, X, W, V).sent() == {(0, 1): [1]}


def test_a_counted_loop_needs_no_messages_for_its_control() -> None:
    def f(x, w, v, n):
        return jax.lax.fori_loop(0, n, lambda i, x: decoder(encoder(x, w), v), x)

    found = Divided(f, TWO, X, W, V, 5)
    assert found.sent(small=True) == {} and found.sent() == {(1, 0): [5], (0, 1): [5]}


def test_the_outcome_of_a_test_goes_to_those_that_have_work_inside() -> None:
    def f(x, w, v):
        def body(x):
            return lw.placed(lambda x: x * 0.5, "decoder")(encoder(x, w))

        y = jax.lax.while_loop(lambda x: jnp.sum(x) > 0.05, body, x)
        return lw.placed(lambda y: y + 1, "other")(y)

    found = Divided(f, {**TWO, "other": 2}, X, W, V)
    assert set(found.sent(small=True)) == {(1, 0)}
    assert found.sent()[1, 2] == [1]


def test_an_outcome_goes_along_a_tree() -> None:
    """With forty places none sends it to more than eight, and each gets it once."""
    number = 40

    def f(x):
        def body(xs):
            return [lw.placed(lambda x: x * 0.5, "all", k)(xs[k]) for k in range(number)]

        def goes_on(xs):
            return jnp.sum(lw.placed(lambda x: x, "all", 3)(xs[3])) > 0.05

        return jax.lax.while_loop(goes_on, body, [x] * number)

    found = Divided(f, {"all": list(range(number))}, X)
    tests = found.sent(small=True)
    sent = [sum(map(len, (v for (a, _), v in tests.items() if a == k))) for k in range(number)]
    got = [sum(map(len, (v for (_, b), v in tests.items() if b == k))) for k in range(number)]
    assert max(sent) == 8 and got == [int(k != 3) for k in range(number)]


def test_a_state_lives_where_its_next_value_is_made() -> None:
    def f(x, w, v):
        def body(i, state):
            a, b = state
            return encoder(a, w), decoder(b, v)

        return jax.lax.fori_loop(0, 4, body, (x, x))

    found = Divided(f, TWO, X, W, V)
    assert found.sent() == {} and found.homes == [[0], [1]]


def test_a_state_that_was_sent_is_not_sent_again() -> None:
    """The decoder reads the last code beside the new one: it has had it."""

    def f(x, w, v):
        def body(carry):
            code, y, i = carry
            new = encoder(code, w)
            y = lw.placed(lambda new, code, y: jnp.tanh(new - code + y @ v), "decoder")(
                new, code, y
            )
            return new, y, i + 1

        return jax.lax.while_loop(lambda carry: carry[2] < 6, body, (x, x, 0))

    found = Divided(f, TWO, X, W, V)
    assert found.sent() == {(0, 1): [6]} and found.homes[:2] == [[0], [1]]

    def rows(x, w, v):
        def step(carry, t):
            code, y = carry
            new = encoder(code + t, w)
            return (new, lw.placed(lambda new, code, y: new * code + y, "decoder")(new, code, y)), t

        return jax.lax.scan(step, (x, x), jnp.arange(5.0))[0]

    found = Divided(rows, TWO, X, W, V)
    assert found.sent() == {(0, 1): [5]} and found.homes == [[0], [1]]


def test_a_state_that_rarely_changes_is_sent_when_it_does() -> None:
    """Weights that an actor reads in each step and a learner changes in some of them."""

    def f(x, w, v, limit):
        w = lw.placed(lambda w: w * 0.5, "encoder")(w)

        def body(carry):
            i, x, w = carry
            x = decoder(x, w)
            learn = (i % 4 == 3) if limit is None else encoder(x, v)[0] < limit
            w = jax.lax.cond(
                learn, lambda: lw.placed(lambda w, x: w * 0.9 + x[0], "encoder")(w, x), lambda: w
            )
            return i + 1, x, w

        return jax.lax.while_loop(lambda carry: carry[0] < 9, body, (0, x, w))[1:]

    def moved(limit: float | None) -> int:
        found = Divided(lambda x, w, v: f(x, w, v, limit), TWO, X, W, V)
        moves, counts = found.prepared.actions.moves(), found.counts
        return sum(counts[m.number] for m in moves if m.var.aval.shape == W.shape)

    # Before the loop, and when it has changed; what floats decide is sent in each iteration instead.
    assert moved(None) == 1 + 2 and moved(-1e9) == 1 and moved(1e9) == 1 + 9

    def buffered(x, w):
        def body(i, carry):
            x, buffer = carry
            buffer = jax.lax.cond(
                i % 2 == 0,
                lambda: lw.placed(lambda b, x: b + x, "encoder")(buffer, x),
                lambda: buffer,
            )
            x = jax.lax.cond(i == 5, lambda: decoder(x, buffer), lambda: x)
            return encoder(x, w), buffer

        return jax.lax.fori_loop(0, 8, body, (x, w))

    # What is read in one iteration goes there in that one.
    found = Divided(buffered, TWO, X, W)
    moves, counts = found.prepared.actions.moves(), found.counts
    assert [counts[m.number] for m in moves if m.var.aval.shape == W.shape] == [1]


def test_a_side_that_is_not_taken_costs_nothing() -> None:
    def f(x, w, v, flag):
        return jax.lax.cond(flag, lambda: decoder(x, v), lambda: encoder(encoder(x, w), w))

    found = Divided(f, TWO, X, W, V, False)
    assert found.sent() == {(1, 0): [0]} and found.sent(small=True) == {}
    assert Divided(f, TWO, X, W, V, True).sent() == {(1, 0): [1]}


def test_experts_by_a_computed_index() -> None:
    weights = [jnp.eye(3) * (0.5 + k / 10) for k in range(3)]

    def route(x, *weights):
        def step(x, _):
            which = (jnp.abs(x[0]) * 1000).astype(jnp.int32) % 3
            experts = [lambda z, w=w: jnp.tanh(z @ w) + 0.1 for w in weights]
            x = lw.placed(experts, "expert", which)(x)
            return x, jnp.sum(x)

        return jax.lax.scan(step, x, None, length=6)

    places = {"expert": [0, 1, 2]}
    ahead = Divided(route, places, X, *weights)
    # An answer is sent where it is taken, not where it is not.
    assert sum(map(sum, ahead.sent().values())) <= 2 * 6

    def loss(*args):
        return jnp.sum(route(*args)[1])

    back = Divided(jax.grad(loss, (1, 2, 3)), places, X, *weights)
    assert back.homes == [[0], [1], [2]]
    # Neither weights nor their adjoints travel.
    assert all(m.var.aval.shape in ((3,), ()) for m in back.prepared.actions.moves())


@pytest.mark.parametrize("how", ["jax", "lanewise"])
def test_one_function_for_a_family_saves_at_each_place(how: str) -> None:
    """What a gradient needs stays with the expert that made it: what travels are tokens, answers and adjoints."""
    weights = jnp.stack([jnp.eye(3) * (0.5 + k / 10) for k in range(3)])

    def expert(z, w):
        for _ in range(4):
            z = jnp.tanh(z @ w) + jnp.sin(z)
        return z

    def route(x, weights):
        def step(x, _):
            which = (jnp.abs(x[0]) * 1000).astype(jnp.int32) % 3
            # As a program would, it is one function, and its weights are an argument.
            x = lw.placed(expert, "expert", which)(x, weights[which])
            return x, jnp.sum(x)

        return jnp.sum(jax.lax.scan(step, x, None, length=6)[1])

    slope = jax.grad(route) if how == "jax" else lw.grad(lw.program(route))
    placement = placement_from({"expert": [0, 1, 2]})
    found = Divided(slope, {"expert": [0, 1, 2]}, X, weights)
    moves = found.prepared.actions.moves()
    assert placement.families == (("expert", 3),)
    rows = [move for move in moves if move.var.aval.shape[:1] == (6,) and move.var.aval.ndim > 1]
    assert not rows
    # A token and its weights there, its answer back; its adjoint there and back.
    total = sum(sum(counts) for counts in found.sent().values())
    assert total <= 6 * 8, total


def test_one_function_for_a_family_and_lanes_that_ask_for_different_ones() -> None:
    weights = jnp.stack([jnp.eye(3) * (0.5 + k / 10) for k in range(3)])

    def f(x, weights):
        which = (jnp.abs(x[0]) * 1000).astype(jnp.int32) % 3
        return lw.placed(lambda z, w, k: jnp.tanh(z @ w[k]), "expert", which)(x, weights, which)

    Divided(f, {"expert": [0, 1, 2]}, X, weights)
    Divided(f, {"expert": 0}, X, weights)
    batch = jnp.stack([X, 0.7 * X, 0.31 * X])
    Divided(jax.vmap(f, (0, None)), {"expert": [2, 0, 1]}, batch, weights)


@lw.program
def polished(x, w, v, goal):
    while jnp.sum(x) < goal:
        x = encoder(x, w) + 1.0
        with lw.on("decoder"):
            x = 1.5 * x
            if x[0] > 1.7:
                x = x - 0.1
    return jnp.sum(decoder(x, v))


def test_programs_and_their_gradients() -> None:
    Divided(polished, TWO, X, W, V, 5.0)
    back = Divided(jax.grad(polished, (0, 1, 2)), TWO, X, W, V, 5.0)
    assert back.homes[1:] == [[0], [1]]
    batch = jnp.stack([X, 0.5 * X])
    goals = jnp.array([3.0, 5.0])
    Divided(jax.vmap(polished, (0, None, None, 0)), TWO, batch, W, V, goals)

    def loss(w, v):
        return jnp.sum(jax.vmap(polished, (0, None, None, 0))(batch, w, v, goals))

    assert Divided(jax.grad(loss, (0, 1)), TWO, W, V).homes == [[0], [1]]


def test_parts_have_derivatives_of_any_order() -> None:
    def f(x):
        return jnp.sum(decoder(encoder(x, W), V) ** 2)

    def plain(x):
        return jnp.sum(jnp.sin(jnp.tanh(x @ W) @ V) ** 2)

    for derive in (jax.grad, jax.hessian, jax.jacfwd, lambda f: jax.jacrev(jax.jacfwd(f))):
        np.testing.assert_allclose(derive(f)(X), derive(plain)(X), rtol=1e-4, atol=1e-6)
    remade = jax.grad(jax.checkpoint(f))
    np.testing.assert_allclose(remade(X), jax.grad(plain)(X), rtol=1e-5)
    lines = jax.vmap(jax.grad(f))(jnp.stack([X, -X]))
    np.testing.assert_allclose(lines[1], jax.grad(plain)(-X), rtol=1e-5)


def test_a_part_whose_rules_hold_an_array() -> None:
    def f(x):
        return jnp.sum(lw.placed(lambda x: swayed(x) * x, "encoder")(x) ** 2)

    def plain(x):
        return jnp.sum((jnp.sin(x) * x) ** 2)

    for derive in (jax.grad, jax.jacfwd, lambda f: jax.jacfwd(jax.grad(f))):
        np.testing.assert_allclose(derive(f)(X), derive(plain)(X), rtol=1e-4, atol=1e-6)
    here = {"encoder": jax.devices()[0]}
    np.testing.assert_allclose(lw.run(jax.grad(f), here)(X), jax.grad(plain)(X), rtol=1e-4)


def test_a_weight_is_not_saved_with_each_iteration() -> None:
    def loss(x, w):
        return jnp.sum(jax.lax.fori_loop(0, 5, lambda i, x: encoder(x, w), x))

    text = str(jax.make_jaxpr(jax.grad(loss, 1))(X, W))
    assert "f32[5,3,3]" not in text and "f32[5,3]" in text


def test_a_part_inside_a_part() -> None:
    def outer(x, w, v):
        return lw.placed(lambda x: decoder(jnp.cos(x), v) * 2, "encoder")(x)

    found = Divided(outer, TWO, X, W, V)
    assert found.sent() == {(0, 1): [1], (1, 0): [1]} and found.homes == [[0]]


def test_a_recursion_is_inside_one_part() -> None:
    @lw.program
    def tree(n, x):
        if n < 1:
            return encoder(x, W)
        return tree(n - 1, x) + decoder(tree(n - 2, x), V)

    with pytest.raises(TransformError, match=r"`tree` is a recursion .*parts decoder, encoder"):
        Divided(lambda x: tree(3, x), TWO, X)
    found = Divided(lambda x: tree(3, x), {"encoder": 0, "decoder": 0}, X)
    assert found.sent() == {}


def test_keys_travel_as_what_they_are() -> None:
    def f(key, x):
        key = lw.placed(lambda key: jax.random.fold_in(key, 7), "encoder")(key)
        return lw.placed(lambda key, x: x + jax.random.normal(key, (3,)), "decoder")(key, x)

    Divided(f, TWO, jax.random.key(0), X)


def test_the_text_says_why_places_wait() -> None:
    def pipeline(xs, w, v):
        return jax.lax.map(lambda x: decoder(encoder(x, w), v), xs)

    def ring(x, w, v):
        return jax.lax.fori_loop(0, 3, lambda i, x: decoder(encoder(x, w), v), x)

    text = Divided(pipeline, TWO, jnp.stack([X, X]), W, V).prepared.text
    assert "places may be iterations apart" in text and "part encoder (rank 0)" in text
    assert "values go round through places 0 -> 1 -> 0" in Divided(ring, TWO, X, W, V).prepared.text


def test_moves_are_numbered_in_order() -> None:
    found = Divided(polished, TWO, X, W, V, 5.0)
    numbers = [m.number for m in found.prepared.actions.moves() if isinstance(m, Move)]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        (
            {"encoder": 0},
            r"has a part 'decoder', and placement= gives no place for it; it has 'enc",
        ),
        ({**TWO, "coder": 1}, r"placement= has 'coder', which is no part of the program"),
        ({"encoder": [0, 1], "decoder": 1}, r"'encoder' has 2 places and is used without an index"),
        ({"encoder": "cpu"}, r"placement\['encoder'\] must be a device .* got 'cpu'"),
        ({"encoder": -1}, r"placement\['encoder'\] must be a device"),
        ({"encoder": []}, r"placement\['encoder'\] is an empty sequence"),
        ({}, r"placement= must be a dict"),
        ({0: 0}, r"name of a part must be a str"),
    ],
)
def test_wrong_placements(placement: dict[Any, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Divided(lambda x: decoder(encoder(x, W), V), placement, X)


def test_wrong_calls() -> None:
    device = jax.devices()[0]
    here = {"encoder": device}

    def f(x):
        return encoder(x, W)

    with pytest.raises(OptionError, match=r"lanewise launch -n 2 script.py"):
        lw.run(lambda x: decoder(f(x), V), TWO)(X)
    with pytest.raises(OptionError, match="mixes devices and ranks"):
        lw.run(f, {"encoder": device, "decoder": 1})
    with pytest.raises(OptionError, match="in_flight=0 must be a positive int"):
        lw.run(f, here, in_flight=0)
    with pytest.raises(OptionError, match="timeout=-1 must be a positive number"):
        lw.run(f, here, timeout=-1)
    with pytest.raises(OptionError, match="checkpoint= and every= belong together"):
        lw.run(f, here, checkpoint="somewhere")
    with pytest.raises(OptionError, match="takes a function or a program; got int"):
        lw.run(3, here)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"inside jax.jit, jax.grad or jax.vmap"):
        jax.jit(lw.run(f, here))(X)
    with pytest.raises(OptionError, match="an argument holds str"):
        lw.run(f, here)("x")
    with pytest.raises(OptionError, match="groups=2 needs a batch that it divides"):
        lw.run(f, here, groups=2)(X)
    with pytest.raises(OptionError, match="no loop over several places"):
        lw.run(f, here, checkpoint="somewhere", every=2)(X)
    with pytest.raises(OptionError, match="must be one integer; got an array of type float32"):
        lw.placed(f, "encoder", 0.5)(X)
    with pytest.raises(OptionError, match="3 functions for the part 'encoder' and no index"):
        lw.placed([f, f, f], "encoder")
    with pytest.raises(OptionError, match="takes a function; got int"):
        lw.placed(3, "encoder")  # type: ignore[arg-type]


def test_one_place_is_enough() -> None:
    run = lw.run(lambda x: encoder(x, W), {"encoder": jax.devices()[0]})
    np.testing.assert_allclose(run(X), jnp.tanh(X @ W), rtol=1e-6)
    assert run.dry_run(X).messages == 0 and str(run.dry_run(X)) == "no messages"


def test_what_crosses_in_a_forward_loop_is_there_in_the_reverse_one() -> None:
    def loss(xs, w, v):
        return jnp.sum(jax.lax.map(lambda x: decoder(encoder(x, w), v), xs))

    found = Divided(jax.grad(loss, (1, 2)), TWO, jnp.stack([X, 2 * X]), W, V)
    # The encoder's answer ahead, its adjoint back, and nothing else.
    assert found.sent() == {(0, 1): [2], (1, 0): [2]} and found.homes == [[0], [1]]


def test_a_result_that_another_process_holds() -> None:
    placement = placement_from(TWO)
    weights = held(None, jax.typeof(W), frozenset((1,)), placement)
    assert (weights.shape, weights.dtype, weights.is_here) == ((3, 3), jnp.float32, False)
    assert repr(weights) == "Held(f32[3,3] at part decoder (rank 1), not here)"
    with pytest.raises(OptionError, match=r"is at part decoder \(rank 1\), and not in this proc"):
        np.asarray(weights)
    run = lw.run(lambda x, w: decoder(encoder(x, W), w), TWO, gather=False)
    assert "v2:f32[3,3] at 1" in run.inspect(X, weights)
    with pytest.raises(OptionError, match="an argument is held by another"):
        run.dry_run(X, weights)
    here = held(V, jax.typeof(V), frozenset((0,)), placement)
    same = lw.run(lambda x, w: encoder(x, w), {"encoder": jax.devices()[0]})
    np.testing.assert_allclose(same(X, here), jnp.tanh(X @ V), rtol=1e-6)
