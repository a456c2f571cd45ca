"""The programs of TensorFlow Probability's auto_batching test suite, in Lanewise's form.

Each test id names the TFP test (file and test or program) whose computation, inputs and expected
outputs it takes; the programs themselves are written anew. Where TFP's suite looks inside its own
machine (stack variables, storage classes, printed instructions, caches), the test here asks the same
question of ours.

  test_programs           constant_program, single_if_program, synthetic_pattern_program,
                          synthetic_pattern_variable_program, fibonacci_program,
                          fibonacci_function_calls, is_even_function_calls, pea_nuts_program
  frontend_test           every test of AutoGraphFrontendTest and of both batch-size classes
  dsl_test                Fibonacci, EvenOdd, Multivalue
  virtual_machine_test    Constant, SingleIf, ProductTypes, Fibonacci, PeaNuts
  instructions_test       the same programs through the interpreter, one example at a time
  lowering_test, stackless_test   Fibonacci and IsEven, with stacks and by the host's own recursion
  type_inference_test     ShapeSequence, ProductType, Fibonacci and IsEven in four dtypes
  allocation_strategy_test, stack_optimization_test   what a recursive program need not save
  numpy_backend_test, tf_backend_test   a batch of stacks against a model of them
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lanewise as lw
from lanewise.blocks.analysis import Storage, storage
from lanewise.blocks.flatten import flatten
from lanewise.blocks.form import BlockProgram, Call, verify
from lanewise.blocks.simplify import simplify
from programs import tfp
from programs.tfp import ENTRIES, Entry, i32

SCHEDULES = ("lowest", "most", "sweep", "local")


def assert_same(answers: Any, expected: Any) -> None:
    """Values and structure; the tuples of `expected` below the structure of `answers` are rows."""
    if isinstance(answers, tuple):
        assert len(answers) == len(expected)
        for answer, wanted in zip(answers, expected):
            assert_same(answer, wanted)
    else:
        np.testing.assert_array_equal(np.asarray(answers), np.asarray(expected))


@pytest.mark.parametrize(
    ("entry", "schedule"),
    [
        # In `make test` each runs under `sweep` and one more, in turns.
        pytest.param(
            entry,
            schedule,
            id=f"{entry}-{schedule}",
            marks=()
            if schedule in ("sweep", ("lowest", "most", "local")[at % 3])
            else pytest.mark.slow,
        )
        for at, entry in enumerate(ENTRIES)
        for schedule in SCHEDULES
    ],
)
def test_batch(entry: Entry, schedule: str) -> None:
    answers = lw.vmap(entry.program, in_axes=entry.in_axes, schedule=schedule)(*entry.args)
    assert_same(answers, entry.expected)
    assert jax.tree.structure(answers) == jax.tree.structure(one_lane(entry))


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_larger_batch(entry: Entry) -> None:
    """frontend_test's dynamic batch size: the same lanes three times over, by `jax.vmap`."""
    axes = in_axes_of(entry)
    args = tuple(
        a if axis is None else jax.tree.map(lambda x: np.concatenate([x] * 3), a)
        for a, axis in zip(entry.args, axes)
    )
    answers = jax.jit(jax.vmap(entry.program, in_axes=axes))(*args)
    expected = lw.vmap(entry.program, in_axes=entry.in_axes)(*entry.args)
    jax.tree.map(
        lambda got, want: np.testing.assert_array_equal(got, np.concatenate([want] * 3)),
        answers,
        expected,
    )


def in_axes_of(entry: Entry) -> tuple[int | None, ...]:
    return entry.in_axes if isinstance(entry.in_axes, tuple) else (0,) * len(entry.args)


def one_lane(entry: Entry, lane: int = 0) -> Any:
    """The first lane by plain Python."""
    args = (
        a if axis is None else jax.tree.map(lambda x: jnp.asarray(x[lane]), a)
        for a, axis in zip(entry.args, in_axes_of(entry))
    )
    with jax.disable_jit():
        return entry.program(*args)


INTERPRETED = (
    ("Constant", tfp.constant, (jnp.int32(0),), 2),
    ("SingleIf-1", tfp.single_if, (jnp.int32(1),), 0),
    ("SingleIf-3", tfp.single_if, (jnp.int32(3),), 2),
    ("PatternVariables", tfp.product_variable, (jnp.int32(5),), (7, 8)),
    ("Fibonacci", tfp.fibonacci, (jnp.int32(5),), 8),
    ("FibonacciFunctions", tfp.fibonacci_main, (jnp.int32(5),), 8),
    ("PatternMatching", tfp.synthetic_pattern, (jnp.int32(0),), ((1, 3), 4, (5, 6))),
)


@pytest.mark.parametrize(
    ("program", "args", "expected"),
    [row[1:] for row in INTERPRETED],
    ids=[f"instructions_test.test{row[0]}" for row in INTERPRETED],
)
def test_one_example(program: Any, args: tuple[Any, ...], expected: Any) -> None:
    """One example: alone, jitted, and as plain Python."""
    assert_same(program(*args), expected)
    assert_same(jax.jit(program)(*args), expected)
    with jax.disable_jit():
        assert_same(program(*args), expected)


def test_first_ten_fibonacci_numbers() -> None:
    """frontend_test.testFibonacci: the function itself, unbatched."""
    with jax.disable_jit():
        numbers = [int(tfp.fibonacci_literal(n)) for n in range(10)]
    assert numbers == [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]


def pea_nuts(data: np.ndarray, depth_of: Callable[[Any], Any]) -> Any:
    """test_programs.pea_nuts_program: a loop around a doubling recursion with work at its leaves."""

    def step(state):
        return state + jnp.sum(data @ state)

    @lw.program
    def grow(depth, state):
        if depth > 0:
            state = grow(depth - 1, state) + 1
            return grow(depth - 1, state) + 1
        return step(state)

    @lw.program
    def run(count, state):
        while count > 0:
            count = count - 1
            state = grow(depth_of(count), state)
        return state

    return run


def pea_nuts_by_hand(data: np.ndarray, depth_of: Any, count: int, state: np.ndarray) -> np.ndarray:
    def grow(depth: int, state: np.ndarray) -> np.ndarray:
        if depth > 0:
            return grow(depth - 1, grow(depth - 1, state) + 1) + 1
        return state + np.sum(data @ state)

    for left in range(count - 1, -1, -1):
        state = grow(int(depth_of(left)), state)
    return state


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("depth_of", "counts"),
    [
        (lambda count: 3, (3, 3, 3, 3)),
        (lambda count: 2, (3, 3, 3, 3)),
        (lambda count: count % 3, (0, 5, 1, 3)),
    ],
    ids=["virtual_machine_test.testPeaNutsNumpy", "virtual_machine_test.testPeaNutsTF", "uneven"],
)
def test_pea_nuts(depth_of: Any, counts: tuple[int, ...], schedule: str) -> None:
    rng = np.random.default_rng(0)
    data = rng.uniform(0.0, 0.01, (10, 3)).astype(np.float32)
    states = rng.normal(size=(4, 3)).astype(np.float32)
    answers = lw.vmap(pea_nuts(data, depth_of), schedule=schedule)(i32(*counts), states)
    by_hand = [pea_nuts_by_hand(data, depth_of, c, s) for c, s in zip(counts, states)]
    np.testing.assert_allclose(answers, np.stack(by_hand), rtol=1e-4)


@pytest.mark.parametrize("schedule", ["lowest", "local"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64])
def test_recursion_keeps_its_dtype(dtype: Any, schedule: str) -> None:
    """type_inference_test: testFibonacciTypeInference and testIsEvenTypeInference."""
    with jax.enable_x64(True):
        for inputs, outputs in ([5], [8]), ([5, 6, 8, 9], [8, 13, 34, 55]):
            answers = lw.vmap(tfp.fibonacci_main, schedule=schedule)(np.array(inputs, dtype))
            assert answers.dtype == dtype
            assert_same(answers, outputs)
        for inputs, outputs in ([1], [False]), ([5, 6, 0, 3], [False, True, True, False]):
            answers = lw.vmap(tfp.is_even_main, schedule=schedule)(np.array(inputs, dtype))
            assert answers.dtype == np.bool_
            assert_same(answers, outputs)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64])
def test_shapes_in_sequence(dtype: Any) -> None:
    """type_inference_test.testShapeSequenceInference: one name may hold one shape after another."""

    @lw.program
    def sequence(answer):
        for shape in ((1, 3, 1), (1, 1, 2), (1, 3, 2), (5, 1, 1)):
            answer = jnp.zeros(shape, answer.dtype)
        return answer

    with jax.enable_x64(True):
        answers = lw.vmap(sequence)(np.zeros(1, dtype))
    assert answers.shape == (1, 5, 1, 1)
    assert answers.dtype == dtype


def test_shapes_in_branches_must_agree() -> None:
    """type_inference_test.testShapeSequenceInference, where ours differs: nothing is broadcast."""

    @lw.program
    def either(x):
        if x > 0:
            answer = jnp.zeros((3, 1))
        else:
            answer = jnp.zeros((1, 2))
        return answer

    with pytest.raises(lw.errors.BranchTypeError, match="answer"):
        lw.vmap(either)(i32(1, -1))


class Counter:
    """Counts how often Python itself runs through a place in a program."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, x: Any) -> Any:
        self.count += 1
        return x


@pytest.mark.parametrize(
    "nested",
    [False, True],
    ids=[
        "frontend_test.testDisablingAutoBatching",
        "frontend_test.testDisablingAutoBatchingNested",
    ],
)
def test_disabled_it_is_plain_python(nested: bool) -> None:
    counter = Counter()

    @lw.program
    def function(x):
        true = True
        if true:
            return counter(x)
        else:
            return counter(x)

    @lw.program
    def caller(x):
        return function(x)

    program = caller if nested else function
    assert_same(lw.vmap(program)(i32(4, 5, 6, 7, 8)), (4, 5, 6, 7, 8))
    counter.count = 0
    with jax.disable_jit():
        assert program(jnp.int32(4)) == 4
    assert counter.count == 1


def test_dry_run_of_a_branch() -> None:
    """frontend_test.testDryRunIf: plain Python takes the branch its value selects."""
    with jax.disable_jit():
        assert tfp.absolute(jnp.int32(12)) == 12
        assert tfp.absolute(jnp.int32(-13)) == 13


def test_traced_once_for_each_signature() -> None:
    """frontend_test.testCompileCache and testLoweringCache."""
    counter = Counter()

    @lw.program
    def double(x):
        return counter(x) + x

    batched = lw.vmap(double)
    batched(i32(1, 2))
    first = counter.count
    batched(i32(3, 4))
    assert counter.count == first
    batched(np.array([1.0, 2.0], np.float32))
    assert counter.count > first


@pytest.mark.parametrize("schedule", ["lowest", "most", "sweep"])
def test_tail_call_saves_nothing(schedule: str) -> None:
    """frontend_test.testSelfTailCallOptimization: a hundred calls fit in a stack of three."""
    batched = lw.vmap(tfp.sum_to, schedule=schedule, max_depth=3)
    assert_same(batched(i32(12, -13, 100), i32(0, 0, 0)), (78, 0, 5050))
    batched = lw.vmap(tfp.subtracting_gcd, schedule=schedule, max_depth=3)
    assert_same(batched(i32(7, 12, 49), i32(9, 9, 56)), (1, 3, 7))


def stored(program: Any, *args: Any) -> tuple[BlockProgram, Storage]:
    staged, operands = program.stage(*args)
    varying = [True] * len(operands)
    blocks = flatten(staged.program, varying)
    blocks = simplify(verify(blocks), verify)
    return blocks, storage(blocks, varying)


@pytest.mark.parametrize(
    "program",
    [tfp.constant, tfp.single_if, tfp.is_even],
    ids=[f"allocation_strategy_test.testAllocating{name}" for name in ("Constant", "If", "IsEven")],
)
def test_nothing_needs_a_stack(program: Any) -> None:
    """Neither straight code, nor a branch, nor mutual recursion whose calls are all tail calls."""
    blocks, where = stored(program, jnp.int32(5))
    assert where.stacks == ()
    assert not any(isinstance(block.terminator, Call) for _, block in blocks.all_blocks())


def test_two_variables_need_a_stack() -> None:
    """allocation_strategy_test.testAllocatingFibonacciProgram and stack_optimization_test.

    The argument waits for the first call to return, the first answer for the second call; each is
    pushed once, and nothing else is.
    """
    _, where = stored(tfp.fibonacci, jnp.int32(5))
    assert len(where.stacks) == 2
    assert sorted(len(call.push) for call in where.calls.values()) == [1, 1]
    assert sorted(len(call.pop) for call in where.calls.values()) == [1, 1]


@pytest.mark.parametrize("schedule", ["lowest", "most"])
def test_lanes_share_their_work(schedule: str) -> None:
    """frontend_test.testSyncingAsExpected: the batch costs about what its hardest lane costs alone.

    TFP counts how often the block that adds is run; here all blocks are counted, and the lanes need
    not meet again in each of them.
    """
    run = lw.vmap(tfp.fibonacci_literal, schedule=schedule, stats=True)
    answers, together = run(i32(3, 7, 4, 5))
    assert_same(answers, (3, 21, 5, 8))
    _, alone = run(i32(7))
    assert int(alone.ticks) <= int(together.ticks) <= 1.2 * int(alone.ticks)


class Walk(NamedTuple):
    """What the stack program below hands back up: where on the tape it is, and what it has read."""

    at: jax.Array
    reads: jax.Array


@lw.program
def stack_program(operations, values, at, top, reads):
    """A stack made of calls. Operation 0 reads, 1 writes, 2 pushes (a call), 3 pops (a return)."""
    while at < operations.shape[0]:
        operation, here = operations[at], at
        at = at + 1
        if operation == 0:
            reads = reads.at[here].set(top)
        elif operation == 1:
            top = values[here]
        elif operation == 2:
            walk = stack_program(operations, values, at, top, reads)
            at, reads = walk.at, walk.reads
        else:
            return Walk(at, reads)
    return Walk(at, reads)


def stack_model(operations: list[int], values: list[int], top: int) -> list[int]:
    """The same by a list: a push copies the top, a pop at the bottom ends the run."""
    stack, reads = [top], [-1] * len(operations)
    for at, operation in enumerate(operations):
        if operation == 0:
            reads[at] = stack[-1]
        elif operation == 1:
            stack[-1] = values[at]
        elif operation == 2:
            stack.append(stack[-1])
        else:
            stack.pop()
            if not stack:
                break
    return reads


def check_stacks(operations: list[list[int]], values: list[list[int]]) -> None:
    lanes, length = np.shape(operations)
    tops = list(range(100, 100 + lanes))
    args = (
        i32(*operations),
        i32(*values),
        np.zeros(lanes, np.int32),
        i32(*tops),
        np.full((lanes, length), -1, np.int32),
    )
    expected = [stack_model(*lane) for lane in zip(operations, values, tops)]
    for schedule in SCHEDULES:
        walk = lw.vmap(stack_program, schedule=schedule)(*args)
        assert_same(walk.reads, expected)


def test_stacks_smoke() -> None:
    """numpy_backend_test.testNumpySmoke and tf_backend_test.testTFSmoke."""
    check_stacks(
        [[2, 1, 0, 3, 0, 0], [1, 0, 2, 2, 0, 3], [2, 2, 1, 3, 0, 3]],
        [[7, 8, 9, 10, 11, 12], [1, 2, 3, 4, 5, 6], [0, 0, 5, 5, 5, 5]],
    )


@given(st.data())
@settings(max_examples=10, deadline=None)
def test_stacks_random(data: Any) -> None:
    """numpy_backend_test.testNumpyVariableRandomOps and tf_backend_test.testTFVariableRandomOps.

    The shapes are always the same, so that the program is compiled once.
    """
    lanes, length = 3, 12
    tape = st.lists(st.integers(0, 3), min_size=length, max_size=length)
    batch = st.lists(tape, min_size=lanes, max_size=lanes)
    check_stacks(data.draw(batch), data.draw(batch))


def test_stack_overflow_is_reported() -> None:
    """backend_test_lib: a push beyond the stack's room fails, and only for that lane."""
    program = lw.vmap(tfp.fibonacci_main, max_depth=4, throw=False)
    answers, outcomes = program(i32(2, 9, 1))
    assert outcomes.code.tolist() == [
        lw.Outcome.DONE,
        lw.Outcome.STACK_OVERFLOW,
        lw.Outcome.DONE,
    ]
    assert_same(answers, (2, 0, 1))
    with pytest.raises(lw.errors.LaneError):
        lw.vmap(tfp.fibonacci_main, max_depth=4)(i32(2, 9, 1))


def test_closing_over_an_array() -> None:
    """tf_backend_test.testClosingOverTensorDoesntRaise."""
    zero = jnp.float32(0.0)

    @lw.program
    def times_zero(y):
        if y > 1.0:
            y = y * zero
        return y

    assert_same(lw.vmap(times_zero)(np.array([1.0, 2.0], np.float32)), (1.0, 0.0))


def test_bools_merge() -> None:
    """tf_backend_test.testDtypeMergingBoolsDoesntRaise."""

    @lw.program
    def either(x):
        if x > 0:
            answer = True
        else:
            answer = x < -5
        return answer

    answers = lw.vmap(either)(i32(1, -9, 0))
    assert answers.dtype == np.bool_
    assert_same(answers, (True, True, False))
