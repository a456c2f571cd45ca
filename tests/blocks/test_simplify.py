"""What the passes leave: jumps for early exits, one block an iteration, selects for cheap branches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from corpus import case_named
from lanewise.blocks.analysis import storage
from lanewise.blocks.flatten import flatten
from lanewise.blocks.form import Block, BlockProgram, Branch, Call, Jump, Return, TailCall, verify
from lanewise.blocks.simplify import SELECTING, THREADING, simplify, tail_calls
from lanewise.core.errors import InternalError
from seeing import all_blocks, blocks_of, branches, linked_of, operations, targets

INT = jnp.int32(3)
NAMES = ("collatz", "gcd", "fibonacci", "ackermann", "mccarthy_91", "tak", "hanoi")


@lw.program
def with_break(n):
    total = 0
    while total < 100:
        total += n
        if total % 7 == 3:
            break
        total += 1
    return total


@lw.program
def with_return(n):
    i = 0
    while i < 20:
        if i * i > n:
            return i
        i += 1
    return -1


@lw.program
def with_continue(n):
    i = total = 0
    while i < n:
        i += 1
        if i % 3 == 0:
            continue
        total += i
    return total


@lw.program
def nested_exits(n):
    found = 0
    for i in range(n):
        for j in range(n):
            if i * j > 20:
                return found
            if j > i:
                break
            found += 1
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_pass_keeps_the_rules(name: str) -> None:
    case = case_named(name)
    one = jax.tree.map(lambda x: x[0], case.examples(np.random.default_rng(0), 1))
    staged, operands = case.program.stage(*one)
    seen: list[int] = []

    def check(program: BlockProgram) -> BlockProgram:
        seen.append(1)
        return verify(program)

    simplify(verify(flatten(staged.program, [True] * len(operands))), check=check)
    assert len(seen) >= 1 + len(THREADING) + len(SELECTING)


def test_the_verifier_reports_a_broken_program() -> None:
    program = blocks_of(with_break, INT)
    function = program.entry_function
    first = function.blocks[0]
    wrong_target = first.with_(terminator=Jump(999))
    never_written = first.with_(eqns=())
    for bad in (wrong_target, never_written):
        broken = BlockProgram(
            {
                function.name: type(function)(
                    function.name, function.params, function.results, (bad, *function.blocks[1:])
                )
            },
            program.entry,
            program.inputs,
            program.constants,
            program.sites,
        )
        with pytest.raises(InternalError, match="bug in Lanewise"):
            verify(broken)


@pytest.mark.parametrize(
    "program", [with_break, with_return, with_continue, nested_exits], ids=lambda p: p.__name__
)
def test_early_exits_leave_no_flag(program: lw.ProgramFunction) -> None:
    linked = linked_of(program, INT)
    flags = [var for var in linked.storage.registers if var.aval.dtype == jnp.bool_]
    assert flags == []


@pytest.mark.parametrize(
    "program", [with_break, with_return, with_continue, nested_exits], ids=lambda p: p.__name__
)
def test_early_exits_mean_what_python_means(program: lw.ProgramFunction) -> None:
    numbers = [1, 2, 5, 9, 30]
    with jax.disable_jit():
        expected = [int(program(n)) for n in numbers]
    assert lw.vmap(program, schedule="sweep")(jnp.array(numbers)).tolist() == expected


def test_a_simple_loop_iterates_in_one_block() -> None:
    def countdown(n):
        return jax.lax.while_loop(lambda n: n > 0, lambda n: n - 2, n)

    blocks = all_blocks(blocks_of(countdown, INT))
    loops = [
        b for b in blocks if isinstance(b.terminator, Branch) and b.label in b.terminator.targets
    ]
    assert len(loops) == 1
    assert loops[0].steps == 1
    # The test went behind the body, and to the entry: nothing but entry, loop and end is left.
    assert len(blocks) == 3


def test_collatz_iterates_in_one_block() -> None:
    blocks = all_blocks(blocks_of(case_named("collatz").program, INT))
    assert [
        b.steps
        for b in blocks
        if isinstance(b.terminator, Branch) and b.label in b.terminator.targets
    ] == [1]


def test_a_cheap_branch_is_a_select() -> None:
    def cheap(x):
        return jax.lax.cond(x > 0, lambda: x * 2.0, lambda: x + 1.0)

    program = blocks_of(cheap, jnp.float32(1))
    assert len(all_blocks(program)) == 1
    assert "select_n" in operations(all_blocks(program))


def test_a_expensive_branch_stays_a_branch() -> None:
    def expensive(x, m):
        return jax.lax.cond(x > 0, lambda: (m @ m @ m)[0, 0], lambda: x)

    program = blocks_of(expensive, jnp.float32(1), jnp.ones((16, 16)), varying=[True, False])
    (branch,) = branches(program)
    by_label = {block.label: block for block in all_blocks(program)}
    holds = ["dot_general" in operations([by_label[t]]) for t in targets(branch)]
    assert sorted(holds) == [False, True]
    assert "dot_general" not in operations([branch])


def test_a_branch_around_a_loop_is_never_a_select() -> None:
    # A uniform loop that would never end must not run for a side that no lane takes.
    @jax.jit
    def forever(w):
        return jax.lax.while_loop(lambda w: w != 0, lambda w: w - 2, w)

    def guarded(x, w):
        return jax.lax.cond(x > 0, lambda: forever(w), lambda: w)

    assert branches(blocks_of(guarded, INT, INT, varying=[True, False]))
    answers = lw.vmap(guarded, in_axes=(0, None), schedule="sweep")(
        jnp.array([-1, -2]), jnp.int32(3)
    )
    assert answers.tolist() == [3, 3]


def test_dead_code_goes() -> None:
    def lean(n):
        unused = jnp.exp(n.astype(jnp.float32))
        del unused
        return jax.lax.while_loop(lambda n: n > 0, lambda n: n - 1, n)

    assert "exp" not in operations(all_blocks(blocks_of(lean, INT)))


def test_a_carried_value_without_a_reader_is_no_register() -> None:
    def carries(n):
        return jax.lax.while_loop(lambda s: s[0] > 0, lambda s: (s[0] - 1, s[1] + 2.0), (n, 0.0))[0]

    linked = linked_of(carries, INT)
    assert all(var.aval.dtype != jnp.float32 for var in linked.registers)


def test_short_circuits_test_once() -> None:
    @lw.program
    def both(a, b):
        if a > 0 and b > 0:
            while a < 100:
                a *= 2
        return a

    program = blocks_of(both, INT, INT)
    # One branch for both tests, and the loop's own two.
    assert len(branches(program)) <= 3
    assert "select_n" in operations(branches(program)[:1])
    assert lw.vmap(both)(jnp.array([3, 9, -1]), jnp.array([9, -5, 2])).tolist() == [192, 9, -1]


def test_a_loop_with_two_tests_iterates_in_one_block() -> None:
    @lw.program
    def both(a, b):
        while a > 0 and b > 0:
            a -= 1
            b -= 2
        return a

    loops = [b for b in branches(blocks_of(both, INT, INT)) if b.label in targets(b)]
    assert len(loops) == 1


def test_nested_loop_state_shares_registers() -> None:
    @lw.program
    def nested(n, x):
        i = 0
        while i < n:
            j = 0
            while j < i:
                x = x * 1.5 + 1.0
                j += 1
            i += 1
        return x

    linked = linked_of(nested, INT, jnp.float32(1))
    floats = [var for var in linked.registers if var.aval.dtype == jnp.float32]
    assert len(floats) <= 2
    copies = [
        (var, atom)
        for block in all_blocks(linked.program)
        for var, atom in block.assigns
        if var.aval.dtype == jnp.float32 and atom in linked.registers
    ]
    assert len(copies) <= 1


def test_a_swap_stays_a_swap() -> None:
    @lw.program
    def swapped(n, a, b):
        while n > 0:
            a, b = b, a
            n -= 1
        return a, b

    found = lw.vmap(swapped, schedule="sweep")(jnp.arange(4), jnp.full(4, 1), jnp.full(4, 2))
    assert [x.tolist() for x in found] == [[1, 2, 1, 2], [2, 1, 2, 1]]


def test_constants_that_differ_in_sign_only_stay_apart() -> None:
    @lw.program
    def signed(x):
        if x > 0:
            y = 0.0
        else:
            y = -0.0
        while x > 5:
            x -= 1
        return jnp.copysign(1.0, y) + 0 * x

    found = lw.vmap(signed, schedule="sweep")(jnp.array([1.0, -1.0, 7.0]))
    assert found.tolist() == [1.0, -1.0, 1.0]


def test_tail_calls_become_jumps_without_frames() -> None:
    @lw.program
    def count(n, total):
        if n == 0:
            return total
        return count(n - 1, total + n)

    program = blocks_of(count, INT, INT)
    kinds = [type(block.terminator) for block in all_blocks(program)]
    assert TailCall in kinds and Call not in kinds and Return in kinds
    assert isinstance(all_blocks(tail_calls(program))[0], Block)


def test_functions_that_are_no_longer_called_go() -> None:
    @lw.program
    def down(x, step, n):
        return x if n <= 0 else down(x + step, step, n - 1) + 1

    @lw.program
    def decided(b, n):
        i = 0
        while i < 2 and b:
            i += 1
            if b or down(n, n, n) > 3:
                n += i
        return n

    # Another test may have traced a function of that name; this one has a number then.
    left = linked_of(decided, jnp.array(True), INT).program.functions
    assert [name.split(".")[0] for name in left] == ["decided"]
    found = lw.vmap(decided, schedule="lowest")(jnp.array([True, False]), jnp.array([1, 2]))
    assert found.tolist() == [4, 2]


# What a program inside a program closes over is read where it is.
TABLE = np.linspace(-1.0, 1.0, 400, dtype=np.float32)


@lw.program
def descend(x, step, depth):
    """A recursion that closes over a table, and hands its step on."""
    if depth == 0:
        return x + step * jnp.sum(jnp.sin(TABLE * x))
    near = descend(x, step, depth - 1)
    return descend(near, step, depth - 1)


@lw.program
def outer(x, step):
    total = x
    for i in range(20):
        total = descend(total, step * x, i % 3)
    return total


def blocks_with_table() -> BlockProgram:
    return blocks_of(outer, jnp.float32(0.5), jnp.float32(0.1))


def test_a_closed_over_table_is_no_parameter_and_is_shared() -> None:
    found = blocks_with_table()
    given = [
        var.aval.shape
        for _, block in found.all_blocks()
        if isinstance(block.terminator, Call)
        for var, _ in block.terminator.arguments
    ]
    assert given and TABLE.shape not in given
    (table,) = [var for var in found.inputs if var.aval.shape == TABLE.shape]
    assert table in storage(found, [False, True, True]).uniform


def test_what_a_recursion_hands_on_is_not_saved() -> None:
    found = blocks_with_table()
    saved = storage(found, [False, True, True])
    (recursion,) = [f for name, f in found.functions.items() if name.startswith("descend")]
    _, step, _ = recursion.params
    assert saved.stacks and step not in saved.stacks


def test_answers_with_a_shared_table() -> None:
    xs, steps = jnp.linspace(0.1, 2.0, 5), jnp.full(5, 1e-3)
    ticked = lw.vmap(outer, carrier="ticks", schedule="sweep")(xs, steps)
    alone = jnp.stack([outer.python(x, s) for x, s in zip(xs, steps)])
    np.testing.assert_allclose(ticked, alone, rtol=1e-5)
    native = jax.vmap(outer.with_options(carrier="native"))(xs, steps)
    np.testing.assert_allclose(native, alone, rtol=1e-5)
