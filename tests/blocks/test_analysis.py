"""Where variables live, and what blocks cost."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import lanewise as lw
from lanewise.blocks.analysis import reachable_functions
from lanewise.blocks.equations import holds_while
from lanewise.blocks.form import Call, TailCall
from lanewise.blocks.link import ReturnPoint
from lanewise.core.primitives.facts import cost_of, eqn_cost
from programs.small import fib
from seeing import all_blocks, calls, linked_of

INT = jnp.int32(3)


@lw.program
def even(n):
    if n == 0:
        return True
    return odd(n - 1)


@lw.program
def odd(n):
    if n == 0:
        return False
    return even(n - 1)


@lw.program
def tak(x, y, z):
    if y >= x:
        return z
    return tak(tak(x - 1, y, z), tak(y - 1, z, x), tak(z - 1, x, y))


def test_fib_saves_only_what_is_live_across_its_calls() -> None:
    linked = linked_of(fib, INT)
    first, second = [linked.storage.calls[b.label] for b in calls(linked.program)]
    # Across the first call n is needed, across the second the first answer.
    assert len(first.push) == 1 and first.push[0] in linked.program.entry_function.params
    assert len(second.push) == 1 and second.push[0] not in linked.program.entry_function.params
    assert first.pop == first.push and second.pop == second.push
    assert len(linked.storage.stacks) == 2
    assert {linked.storage.of(v) for v in linked.storage.stacks} == {"stack"}


def test_tail_recursion_needs_no_stack() -> None:
    linked = linked_of(even, INT)
    assert linked.storage.stacks == ()
    assert not linked.has_calls
    kinds = {type(b.terminator) for b in calls(linked.program)}
    assert kinds == {TailCall}
    # So it goes as deep as it likes, inside jit too.
    deep = jax.jit(jax.vmap(even))(jnp.array([4000, 4001]))
    assert deep.tolist() == [True, False]


def test_tak_pushes_each_argument_once() -> None:
    linked = linked_of(tak, INT, INT, INT)
    params = set(linked.program.entry_function.params)
    made = [
        linked.storage.calls[b.label]
        for b in calls(linked.program)
        if isinstance(b.terminator, Call)
    ]
    assert len(made) == 3
    pushed = [var for call in made for var in call.push if var in params]
    assert len(pushed) == len(set(pushed)) == 3
    # The last call gives no argument back: nothing of the frame is read after it but earlier answers.
    assert not set(made[-1].pop) & params


def test_popped_only_if_read() -> None:
    @lw.program
    def sums(n, a):
        if n == 0:
            return a
        left = sums(n - 1, a)
        right = sums(n - 1, a + 1)
        return left + right + n

    linked = linked_of(sums, INT, INT)
    first, second = [linked.storage.calls[b.label] for b in calls(linked.program)]
    n, a = linked.program.entry_function.params
    assert set(first.push) == {n, a}
    assert n not in second.push and a not in second.push
    assert n in second.pop and a not in second.pop
    points = [item for item in linked.order if isinstance(item, ReturnPoint)]
    assert [point.call for point in points] == [b.label for b in calls(linked.program)]


def test_a_changed_variable_is_pushed_again() -> None:
    @lw.program
    def walk(n, k):
        if n == 0:
            return k
        first = walk(n - 1, k)
        k = k + first
        second = walk(n - 1, k)
        return second + k

    found = lw.vmap(walk)(jnp.array([0, 1, 2]), jnp.array([1, 1, 1]))
    with jax.disable_jit():
        assert found.tolist() == [walk(n, 1) for n in (0, 1, 2)]
    made = [linked.push for linked in linked_of(walk, INT, INT).storage.calls.values()]
    assert len(made[1]) == 1


def test_uniform_weights_stay_uniform_and_unsaved() -> None:
    @lw.program
    def descend(n, w, x):
        if n <= 0:
            return x
        y = descend(n - 1, w, jnp.tanh(w @ x))
        return y + descend(n - 2, w, x)

    linked = linked_of(descend, INT, jnp.ones((4, 4)), jnp.ones(4), varying=[True, False, True])
    weights = [var for var in linked.storage.registers if var.aval.shape == (4, 4)]
    assert weights and all(var in linked.storage.uniform for var in weights)
    assert all(var.aval.shape != (4, 4) for var in linked.storage.stacks)
    assert all(var.aval.shape != (4, 4) for var in linked.registers)


def test_captures_are_never_saved() -> None:
    table = jnp.arange(6.0)

    @lw.program
    def climb(n):
        if n <= 0:
            return table[0]
        return climb(n - 1) + climb(n - 2) + table[n % 6]

    linked = linked_of(climb, INT)
    held = [var for var in linked.storage.registers if var.aval.shape == (6,)]
    assert held and all(var in linked.storage.uniform for var in held)
    assert all(var.aval.shape == () for var in linked.storage.stacks)


def test_a_loop_counter_varies_once_its_loop_is_flattened() -> None:
    def loop(n, start):
        return jax.lax.fori_loop(start, n, lambda i, s: s + i, 0) * start

    linked = linked_of(loop, INT, INT, varying=[True, False])
    start = linked.program.inputs[1]
    assert start in linked.storage.uniform
    assert len(linked.registers) >= 2


def test_an_array_that_is_written_between_loops_has_one_place() -> None:
    """A cache that a step writes and a loop reads, again and again: none of the writes is into a copy."""

    @lw.program
    def attend_twice(n):
        cache = jnp.zeros((4, 8))
        total = 0.0
        for at in range(n):
            for layer in (0, 1):
                cache = jax.lax.dynamic_update_slice(cache, total + jnp.ones((1, 1)), (layer, at))
                seen = 0
                while seen <= at:
                    total += cache[layer, seen]
                    seen += 1
        return total

    linked = linked_of(attend_twice, INT)
    assert len([var for var in linked.registers if var.aval.shape == (4, 8)]) == 1
    numbers = jnp.arange(5, dtype=jnp.int32)
    expected = [attend_twice(n) for n in numbers]
    for schedule in ("sweep", "lowest"):
        found = lw.vmap(attend_twice, carrier="ticks", schedule=schedule)(numbers)
        assert found.tolist() == [float(x) for x in expected]


def test_functions_that_call_each_other_reach_each_other() -> None:
    linked = linked_of(tak, INT, INT, INT)
    reach = reachable_functions(linked.program)
    assert all(name in found for name, found in reach.items())


def test_a_matmul_costs_more_than_a_scalar() -> None:
    jaxpr = jax.make_jaxpr(lambda m, x: (m @ m, x + 1.0))(jnp.ones((32, 32)), 1.0)
    dot, add = jaxpr.eqns
    assert eqn_cost(dot).operations == 2 * 32**3
    assert eqn_cost(dot).bytes == 32 * 32 * 4
    assert eqn_cost(add).operations == 1
    assert cost_of(jaxpr.eqns).operations == 2 * 32**3 + 1


def test_a_loop_costs_its_trips() -> None:
    once = jax.make_jaxpr(jnp.sin)(1.0)
    ten = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=10)[0])(
        1.0
    )
    assert cost_of(ten.eqns).operations == 10 * cost_of(once.eqns).operations
    assert not holds_while(ten.eqns)
    nested = jax.make_jaxpr(
        jax.jit(lambda x: jax.lax.while_loop(lambda x: x < 1, lambda x: x + 1, x))
    )(0.0)
    assert holds_while(nested.eqns)


def test_temporaries_never_leave_their_block() -> None:
    def poly(n, x):
        return jax.lax.fori_loop(0, n, lambda i, s: jnp.sin(s) * 2.0 + jnp.cos(s), x)

    linked = linked_of(poly, INT, jnp.float32(1), varying=[True, True])
    floats = [var for var in linked.registers if var.aval.dtype == jnp.float32]
    # The input and the result (which the loop works in) may stay; sines and products may not.
    assert len(floats) <= 2
    made = {out for b in all_blocks(linked.program) for eqn in b.eqns for out in eqn.outvars}
    assert all(linked.storage.of(var) == "temporary" for var in made)
