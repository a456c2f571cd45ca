"""What a kernel's text looks like, and that it takes examples on its own."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from cpp.checking import check
from lanewise.core.errors import InternalError, Outcome
from lanewise.core.options import Options
from lanewise.cpp.emit.emit import written
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.kernels import kernel_blocks, kernel_for
from lanewise.cpp.toolchain import host
from lanewise.diff.checkpoint import Checkpoints
from lanewise.diff.vjp import vjp_program
from programs.recursion import determinant
from programs.small import collatz, fib


def kernel(f, *args, varying=None, **options) -> Emitted:
    staged, operands = lw.program(f).stage(*args)
    flags = [True] * len(operands) if varying is None else varying
    return kernel_for(staged.program, tuple(flags), Options(**options))


def body(emitted: Emitted) -> str:
    """The kernel's own code, without what it is made of."""
    text = emitted.text
    return text[text.index("LW_KERNEL lanewise_kernel") : text.rindex("#ifndef __CUDACC__")]


def test_a_loop_is_a_loop_and_a_branch_a_branch() -> None:
    text = body(kernel(collatz, jnp.int32(7)))
    # The code before the loop, and the loop, which pauses there for lanes that have ended to take an example.
    assert text.count("case ") == 2
    loop = text[text.index("LW_GOES_ON") : text.index("finished:")]
    assert "else {" in loop and loop.count("goto dispatch") == loop.count("goto finished") == 1


def test_a_kernel_is_given_arrays_of_its_own_types_alone() -> None:
    """It has pointers and would read others as garbage: an int64 of two int32, say, and loop for days."""
    emitted = kernel(collatz, jnp.int32(7))
    emitted.arguments([np.zeros(3, np.int32)])
    for wrong in (np.zeros(3, np.int16), np.zeros((3, 2), np.int32)):
        with pytest.raises(InternalError, match="operand 0 of a kernel"):
            emitted.arguments([wrong])


def test_lanes_pause_to_take_examples() -> None:
    emitted = kernel(collatz, jnp.int32(7))
    n = np.arange(1, 300, dtype=np.int32)
    expected = host.run(emitted, [n], len(n)).answers[0]
    often = host.run(emitted, [n], len(n), threads=3, flags=(*host.FLAGS, "-DLW_TURNS=2"))
    np.testing.assert_array_equal(often.answers[0], expected)


def test_a_tape_is_neither_filled_nor_copied_on_a_host() -> None:
    """What a gradient's forward program saves is in XLA's buffers from the start, and the reverse reads it there."""
    records = 12_345
    taped = determinant.with_options(carrier="native", tape=records)
    matrix = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))
    compiled = jax.jit(jax.grad(lambda matrix: taped(matrix, 0, 15))).lower(matrix).compile()
    # The tapes of entries go from one call to the other as they are.
    tapes = rf"\[(?:1,)?{records}(?:,[\d,]+)?\]\S* "
    made_by = set(re.findall(tapes + r"([\w-]+)\(", compiled.as_text() or ""))
    assert made_by == {"get-tuple-element", "bitcast"}
    np.testing.assert_allclose(
        compiled(matrix), jnp.linalg.det(matrix) * jnp.linalg.inv(matrix).T, rtol=1e-4, atol=1e-4
    )
    staged, operands = determinant.stage(matrix, 0, 15)
    gradient = vjp_program(staged.program, (True, False, False), Checkpoints(records=records))
    text = body(kernel_for(gradient.forward.program, (True,) * len(operands), Options()))
    running, ending = text.split("finished: ;")
    # No loop goes over a tape: not before records are pushed, and in the end only on a GPU, or if the lane failed.
    assert re.search(rf"LW_PLATFORM\(v\d+\.first, out1 \+ example \* {2 * records}ll\)", running)
    assert not re.search(rf"< {records}|< {2 * records}", running)
    fine, failed = ending.split("else {")
    loops = re.findall(rf"\n( *)for .*< (?:{records}|{2 * records});", fine)
    guards = re.findall(r"\n *if \(LW_PLATFORM\(true, false\)\) {\n *LW_UNROLL_FOUR\n *for", fine)
    assert len(loops) == len(guards) >= 3 and f"< {records}" in failed


def test_answers_are_in_their_buffers_whatever_the_order_of_examples() -> None:
    """The tape of a loop, and a state that is written in place; by threads, with pauses, and examples that fail."""

    @lw.program
    def cumulated(x, n):
        i = 0
        while i < n:
            x = x.at[i + 1].set(jnp.sin(x[i]) + x[i + 1])
            i = i + 1
        return x

    records, length = 311, 400
    staged, operands = cumulated.stage(jnp.zeros(length), jnp.int32(3))
    gradient = vjp_program(staged.program, (True, False), Checkpoints("all", records=records))
    assert not gradient.forward.constants
    emitted = kernel_for(gradient.forward.program, (True,) * len(operands), Options())
    running, _ = body(emitted).split("finished: ;")
    assert not re.search(rf"< {records};", running)
    assert len(re.findall(r"= LW_PLATFORM\(v\d+\.first, out\d \+ example", running)) == 2
    x = np.random.default_rng(0).normal(size=(20, length)).astype(np.float32)
    n = np.array([0, 310, 7, 330] * 5, np.int32)
    for threads, flags in ((1, ()), (3, ("-DLW_TURNS=2",))):
        ran = host.run(emitted, [x, n], len(n), threads=threads, flags=(*host.FLAGS, *flags))
        np.testing.assert_array_equal(ran.code, [0, 0, 0, int(Outcome.TAPE_FULL)] * 5)
        for i, found in enumerate(ran.answers[0]):
            expected = x[i].copy() if n[i] <= records else np.full(length, np.nan, np.float32)
            for k in range(n[i] if n[i] <= records else 0):
                expected[k + 1] += np.sin(expected[k])
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_nothing_is_left_unwritten_under_debug_nans() -> None:
    matrix = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))
    with jax.debug_nans(True):
        _, back = jax.vjp(determinant.with_options(carrier="native", tape=999), matrix, 0, 15)
    found = jax.tree.leaves(back)
    saved = [x for x in found if x.shape == (2 * 999,) and x.dtype == matrix.dtype]
    # 41 calls, 40 of them from a loop, whose turns save two numbers each.
    assert len(saved) == 1 and np.count_nonzero(saved[0]) == 80
    np.testing.assert_array_equal(np.ravel(saved[0])[80:], 0.0)


def test_a_program_without_loops_has_no_switch() -> None:
    def sign(x):
        if x > 0:
            return 1
        return -1 if x < 0 else 0

    assert "switch" not in body(kernel(sign, jnp.float32(1)))
    check(lw.program(sign), np.linspace(-1, 1, 7, dtype=np.float32))


def test_an_early_exit_is_a_jump() -> None:
    def first_over(x, limit):
        for row in range(5):
            for column in range(5):
                if x[row, column] > limit:
                    return row * 5 + column
        return -1

    x = np.random.default_rng(0).normal(size=(9, 5, 5)).astype(np.float32)
    check(lw.program(first_over), x, np.linspace(0, 3, 9, dtype=np.float32))


def test_recursion_is_a_switch_on_the_pc() -> None:
    text = body(kernel(fib, jnp.int32(7)))
    assert text.count("switch (pc)") == 1
    assert re.search(r"stack\d\[depth\] = ", text)


def test_every_example_is_taken_once_however_many_threads() -> None:
    emitted = kernel(collatz, jnp.int32(7))
    n = np.arange(1, 300, dtype=np.int32)
    expected = None
    for threads in (1, 3, 8):
        ran = host.run(emitted, [n], len(n), threads=threads)
        expected = ran.answers[0] if expected is None else expected
        np.testing.assert_array_equal(ran.answers[0], expected)
    assert expected is not None and expected[26] == 111


def test_uniform_operands_are_read_in_place() -> None:
    def lookup(table, i):
        return table[i] + table[i + 1]

    emitted = kernel(lookup, jnp.zeros(5000), jnp.int32(3), varying=[False, True])
    assert "const float32* __restrict__ in0" in emitted.text
    assert emitted.fixed_bytes == 0
    check(lookup, np.arange(5000, dtype=np.float32), np.arange(9, dtype=np.int32), uniform=(0,))


def test_an_indexed_write_in_a_loop_copies_nothing() -> None:
    def fill(x, n):
        i = 0
        while i < n:
            x = x.at[i].set(x[i] * 2.0)
            i += 1
        return x

    loop = body(kernel(fill, jnp.zeros(300), jnp.int32(3)))
    inside = loop[loop.index("LW_GOES_ON") : loop.index("goto finished;", loop.index("LW_GOES_ON"))]
    assert "for (int" not in inside
    x = np.random.default_rng(0).normal(size=(7, 300)).astype(np.float32)
    check(lw.program(fill), x, np.arange(7, dtype=np.int32) * 40)


def test_a_write_keeps_the_old_array_where_it_is_still_read() -> None:
    def shifted(x, n):
        i = 0
        while i < n:
            old = x
            x = x.at[i].set(old[i + 1] + old.sum())
            x = x + 0.5 * old[::-1]
            i += 1
        return x, x.at[0].set(9.0) + x

    x = np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32)
    check(lw.program(shifted), x, np.arange(7, dtype=np.int32) % 4, rtol=1e-4, atol=1e-4)


def test_a_write_keeps_what_other_frames_read() -> None:
    @lw.program
    def ones(total, i):  # `zeros` is the same in every frame, so it is not on a stack
        if i == 0:
            return total
        zeros = jnp.zeros(4)
        total = ones(total, i - 1)
        return total + zeros.at[i].set(1.0)

    @lw.program
    def firsts(x, i):  # `x` is handed on as it is
        if i == 0:
            return x.at[0].set(5.0)
        return firsts(x, i - 1) + x

    n = np.arange(4, dtype=np.int32)
    totals, x = np.zeros((4, 4), np.float32), np.arange(16, dtype=np.float32).reshape(4, 4)
    expected = np.tril(np.ones((4, 4)), 0) * (n > 0)
    np.testing.assert_array_equal(lw.vmap(ones, carrier="native")(totals, n), expected)
    expected = x * (n + 1)[:, None] + np.array([[5, 0, 0, 0]]) - np.eye(1, 4) * x
    np.testing.assert_array_equal(lw.vmap(firsts, carrier="native")(x, n), expected)


def test_swaps_and_transpositions_store_all_at_once() -> None:
    def turn(x, y, n):
        for _ in range(n):
            x, y = y, x
            x = x.T
        return x, y

    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(6, 3, 3)).astype(np.float32) for _ in range(2))
    check(lw.program(turn), x, y, np.arange(6, dtype=np.int32))


def test_large_arrays_are_in_scratch_memory() -> None:
    def walk(n):
        x = jnp.zeros(1000, jnp.float32)
        i = 0
        while i < n:
            x = x.at[i % 1000].add(1.0)
            i += 7
        return x.sum(), x[0]

    emitted = kernel(walk, jnp.int32(3))
    assert emitted.fixed_bytes >= 4000
    check(lw.program(walk), np.arange(1, 20, dtype=np.int32) * 300)


def test_nested_control_flow_that_all_lanes_share() -> None:
    def sums(x, table):
        def step(carry, row):
            total, i = carry
            total = lax.cond(i % 2 == 0, lambda t: t + row, lambda t: t - row, total)
            return (total, i + 1), total[0]

        (total, _), firsts = lax.scan(step, (x, 0), table)
        doubled = lax.while_loop(lambda s: s[1] < 5, lambda s: (s[0] * 1.5, s[1] + 1), (total, 0))
        backwards = lax.scan(lambda c, r: (c + r, c), x, table, reverse=True)
        return total, firsts, doubled[0], backwards

    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    table = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    check(sums, x, table, uniform=(1,), rtol=1e-6)


def test_obstacles_name_the_operation_and_its_line() -> None:
    def called(x):
        return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((), np.float32), x)

    staged, _ = lw.program(called).stage(jnp.float32(1))
    linked = kernel_blocks(staged.program, [True], Options())
    obstacles = written(linked, [True], Options())
    assert isinstance(obstacles, tuple)
    (found,) = obstacles
    assert found.operation == "pure_callback" and "test_emit.py" in found.line


def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="C\\+\\+"):
        host.commands()


def test_a_compiler_that_knows_no_such_cpu_and_a_library_for_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    emitted = kernel(lambda x: x * 3 + 7, np.int32(0))
    n = np.arange(5, dtype=np.int32)

    def libraries() -> int:
        host._loaded.cache_clear()
        np.testing.assert_array_equal(host.run(emitted, [n], len(n)).answers[0], n * 3 + 7)
        return len(list(tmp_path.glob("**/*.so")))

    monkeypatch.setattr(host, "FOR_THIS_CPU", "-march=of-no-maker")
    assert libraries() == libraries() == 1
    monkeypatch.setattr(host, "this_cpu", lambda: "another")
    assert libraries() == 2


def test_a_nest_of_short_loops_is_not_unrolled_whole() -> None:
    def nest(x):
        def repeated(step):
            return lambda c: lax.scan(lambda c, _: (step(c), None), c, length=16)[0]

        return repeated(repeated(repeated(jnp.sin)))(x)

    copies, most, unrolled = [], 1, False
    for line in body(kernel(nest, jnp.zeros(16))).splitlines():
        depth = len(line) - len(line.lstrip())
        while copies and copies[-1][0] >= depth:
            copies.pop()
        if "for (int" in line and unrolled:
            copies.append((depth, 16))
            most = max(most, int(np.prod([n for _, n in copies])))
        unrolled = "LW_UNROLL" in line
    assert 16 <= most <= 256


def test_a_buffer_and_its_entry_carried_into_a_loop_are_not_copied() -> None:
    """As the reverse of a `while` does with its checkpoints: nothing goes over all of the buffer in a turn."""

    def rewound(buffer, turns):
        def turn(state):
            i, buffer = state

            def further(state):
                j, buffer, entry = state
                entry = jnp.sin(entry)
                return j + 1, lax.dynamic_update_slice(buffer, entry[None], (j, 0)), entry

            entry = lax.dynamic_slice(buffer, (i, 0), (1, 2))[0]
            _, buffer, _ = lax.while_loop(lambda s: s[0] < turns, further, (i, buffer, entry))
            return i + 1, buffer

        return lax.while_loop(lambda s: s[0] < turns, turn, (jnp.int32(0), buffer))[1]

    buffer = jnp.arange(200.0, dtype=jnp.float32).reshape(100, 2)
    text = body(kernel(rewound, buffer, jnp.int32(5)))
    # Once in, and once out.
    assert len(re.findall(r"< 200;", text)) <= 2
    check(rewound, np.stack([buffer, 0.5 * buffer]), np.array([5, 3], np.int32), rtol=1e-5)


def test_what_a_recursion_saves_is_not_copied_by_a_function_around_it() -> None:
    """A function that gives on what a call gave leaves it where the call put it."""

    @lw.program
    def halved(matrix):
        return determinant(matrix, 0, 15) / 2

    records = 12_345
    staged, operands = halved.stage(jnp.eye(4))
    gradient = vjp_program(staged.program, (True,), Checkpoints(records=records))
    text = body(kernel_for(gradient.forward.program, (True,) * len(operands), Options()))
    running, _ = text.split("finished: ;")
    assert not re.search(rf"< {records}|< {2 * records}", running)
