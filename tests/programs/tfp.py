"""What TensorFlow Probability's auto_batching tests compute, written anew as Lanewise programs.

`ENTRIES` pairs each program with the inputs and expected outputs of the TFP test it is named after.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

import lanewise as lw


@lw.program
def constant(ignored):
    answer = 1
    answer = 2
    return answer


@lw.program
def single_if(n):
    if n > 1:
        answer = 2
    else:
        answer = 0
    return answer


@lw.program
def synthetic_pattern(ignored):
    one, (five, three) = 1, (2, 3)
    (four, five), six = (4, 5), 6
    return (one, three), four, (five, six)


@lw.program
def product_variable(x):
    many = x + 1, (x + 2, x + 3)
    _one, two = many
    return two


@lw.program
def fibonacci(n):
    if n > 1:
        one_less = fibonacci(n - 1)
        two_less = fibonacci(n - 2)
        return one_less + two_less
    return jnp.ones_like(n)


@lw.program
def fibonacci_literal(n):
    if n <= 1:
        return 1
    else:
        left = fibonacci_literal(n - 2)
        right = fibonacci_literal(n - 1)
        return left + right


@lw.program
def fibonacci_main(n):
    return fibonacci(n)


@lw.program
def is_even(n):
    if n < 1:
        return True
    return is_odd(n - 1)


@lw.program
def is_odd(n):
    if n < 1:
        return False
    return is_even(n - 1)


@lw.program
def is_even_main(n):
    return is_even(n)


@lw.program
def three_values(x):
    a, b, c = [1, 2, 3]
    return x + a + b + c


def nested_list():
    return [([1, 2], 3), 4]


@lw.program
def four_values(x):
    [(a, b), c], d = nested_list()
    return x + a + b + c + d


Point = collections.namedtuple("Point", ["x", "y"])


def moved(point):
    return Point(point.x + 1, point.y + 2)


@lw.program
def moved_twice(point):
    once = moved(point)
    return moved(once)


@lw.program
def moved_four_times(point):
    half = moved_twice(point)
    return moved_twice(half)


@lw.program
def absolute(x):
    if x > 0:
        return x
    else:
        return -x


@lw.program
def two_in_two_out(pair):
    x, y = pair
    return x + 1, y + 2


@lw.program
def two_in_two_out_caller(pair):
    first, second = two_in_two_out(pair)
    return first, second


@lw.program
def quadruple(x):
    left = x + 1, x + 2
    third, fourth = x + 3, x + 4
    return left, (third, fourth)


@lw.program
def restructured(x):
    (a, b), right = quadruple(x)
    c, d = right
    return a + b + c + d


@lw.program
def twice_the_sum(x):
    y = jnp.sum(x)
    return y + y


def neighbours(x):
    return x, x + 1


neighbours_program = lw.program(neighbours)


@lw.program
def dummy_from_function(x):
    _, y = neighbours(x)
    return y, y + 1


@lw.program
def dummy_from_program(x):
    _, y = neighbours_program(x)
    return y, y + 1


@lw.program
def seven_arguments(a, b, c, d, e, f, g):
    return a + b + c + d + e + f + g


@lw.program
def sum_to(n, total):
    if n <= 0:
        return total
    return sum_to(n - 1, total + n)


@lw.program
def subtracting_gcd(a, b):
    if a == 0:
        return b
    elif a <= b:
        return subtracting_gcd(a, b - a)
    return subtracting_gcd(b, a)


@lw.program
def literal_condition(x):
    if True:
        return x + np.array(1, np.int32)
    else:
        return x + np.array(1, np.int32)


FIVE = Point(5, 20)


@lw.program
def fields(x):
    y = x + FIVE.x
    made_here = Point(y, y + 5)
    return made_here.y


@lw.program
def one_armed_nested(x):
    answer = 1
    if x > 4:
        if x > 10:
            answer = 5
        else:
            answer = 3
    return answer


def kept_sum(x):
    return jnp.sum(x, axis=-1, keepdims=True)


@lw.program
def untagged_callee(x):
    return x + kept_sum(x)


WORD = "four"


@lw.program
def enclosing_scope(x):
    return x + len(WORD)


@dataclass(frozen=True)
class Entry:
    """A program with a batch and what TFP's test expects of it."""

    tfp: str
    program: Callable[..., Any]
    args: tuple[Any, ...]
    expected: Any
    in_axes: Any = 0

    def __str__(self) -> str:
        return self.tfp


def i32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


FIB = ((i32(5),), (8,)), ((i32(5, 6, 8, 9),), (8, 13, 34, 55)), ((i32(0, 1, 3),), (1, 1, 3))
EVEN = (
    ((i32(0),), (True,)),
    ((i32(1),), (False,)),
    ((i32(2),), (True,)),
    ((i32(5, 6, 8, 9, 0),), (False, True, True, False, True)),
)

ENTRIES = (
    Entry("virtual_machine_test.testConstant-1", constant, (i32(5),), (2,)),
    Entry("virtual_machine_test.testConstant-3", constant, (i32(5, 10, 15),), (2, 2, 2)),
    Entry("virtual_machine_test.testConstant-2", constant, (i32(8, 3),), (2, 2)),
    Entry("virtual_machine_test.testSingleIf-1", single_if, (i32(1),), (0,)),
    Entry("virtual_machine_test.testSingleIf-one", single_if, (i32(3),), (2,)),
    Entry("virtual_machine_test.testSingleIf-3", single_if, (i32(0, 5, -15),), (0, 2, 0)),
    Entry("virtual_machine_test.testSingleIf-2", single_if, (i32(-3, 7),), (0, 2)),
    Entry(
        "virtual_machine_test.testProductTypes",
        product_variable,
        (i32(3, 4, 5),),
        ((5, 6, 7), (6, 7, 8)),
    ),
    Entry(
        "type_inference_test.testProductTypeInference",
        product_variable,
        (i32(4, 5),),
        ((6, 7), (7, 8)),
    ),
    Entry(
        "dsl_test.testAutoBatchingMultivalue",
        synthetic_pattern,
        (i32(1, 1, 1),),
        (((1, 1, 1), (3, 3, 3)), (4, 4, 4), ((5, 5, 5), (6, 6, 6))),
    ),
    *(
        Entry(f"{test}-{i}", program, *case)
        for test, program in (
            ("virtual_machine_test.testFibonacci", fibonacci),
            ("lowering_test.testLoweringFibonacci", fibonacci_main),
            ("stackless_test.testStacklessFibonacci", fibonacci_main),
            ("dsl_test.testAutoBatchingFibonacci", fibonacci),
        )
        for i, case in enumerate(FIB)
    ),
    *(
        Entry(f"{test}-{i}", is_even_main, *case)
        for test in ("lowering_test.testLoweringIsEven", "stackless_test.testStacklessIsEven")
        for i, case in enumerate(EVEN)
    ),
    Entry(
        "dsl_test.testAutoBatchingEvenOdd", is_even, (i32(5, 6, 8, 9),), (False, True, True, False)
    ),
    Entry(
        "frontend_test.testEvenOddWithContext",
        is_even,
        (i32(5, 6, 8, 9),),
        (False, True, True, False),
    ),
    Entry(
        "frontend_test.testFibonacciNumpy", fibonacci_literal, (i32(6, 7, 8, 9),), (13, 21, 34, 55)
    ),
    Entry(
        "frontend_test.testFibonacciNumpyStackless",
        fibonacci_literal,
        (i32(3, 7, 4, 5),),
        (3, 21, 5, 8),
    ),
    Entry("frontend_test.testFibonacciTF", fibonacci_literal, (i32(6, 7, 8),), (13, 21, 34)),
    Entry(
        "frontend_test.testSyntheticMultipleValueReturns",
        three_values,
        (i32(6, 7, 8),),
        (12, 13, 14),
    ),
    Entry(
        "frontend_test.testNestedMultipleValueReturns", four_values, (i32(6, 7, 8),), (16, 17, 18)
    ),
    Entry(
        "frontend_test.testNamedTuples",
        moved_four_times,
        (Point(i32(6, 7, 8), i32(60, 70, 80)),),
        Point((10, 11, 12), (68, 78, 88)),
    ),
    Entry("frontend_test.testDryRunIf", absolute, (i32(12, -13, 14),), (12, 13, 14)),
    Entry(
        "frontend_test.testConsumeEmitMultipleValues",
        two_in_two_out,
        ((i32(12, -13, 14), i32([4, 3], [3, 2], [2, 1])),),
        ((13, -12, 15), ((6, 5), (5, 4), (4, 3))),
    ),
    Entry(
        "frontend_test.testConsumeEmitMultipleValuesNested",
        two_in_two_out_caller,
        ((i32(12, -13, 14), i32([4, 8], [3, 6], [2, 4])),),
        ((13, -12, 15), ((6, 10), (5, 8), (4, 6))),
    ),
    Entry(
        "frontend_test.testRestructureOnFunctionReturn",
        restructured,
        (i32(12, -13, 14),),
        (58, -42, 66),
    ),
    Entry(
        "frontend_test.testBatchDimensionSensitivePrimop",
        twice_the_sum,
        (i32([12, 13], [-13, 10], [14, 1]),),
        (50, -6, 30),
    ),
    Entry(
        "frontend_test.testUseDummyVariableForPrimop",
        dummy_from_function,
        (i32(12, 13, 14),),
        ((13, 14, 15), (14, 15, 16)),
    ),
    Entry(
        "frontend_test.testUseDummyVariableForCall",
        dummy_from_program,
        (i32(12, 13, 14),),
        ((13, 14, 15), (14, 15, 16)),
    ),
    Entry(
        "frontend_test.testBroadcastInputsToBatchSize",
        seven_arguments,
        (i32(12, 13, 14), np.int32(2), np.int32(3), np.int32(4), 5, 6, 7),
        (39, 40, 41),
        in_axes=(0, None, None, None, None, None, None),
    ),
    Entry(
        "frontend_test.testSelfTailCallOptimization",
        sum_to,
        (i32(12, -13, 100), i32(0, 0, 0)),
        (78, 0, 5050),
    ),
    Entry(
        "frontend_test.testParameterSwapping",
        subtracting_gcd,
        (i32(7, 12, 49), i32(9, 9, 56)),
        (1, 3, 7),
    ),
    Entry(
        "frontend_test.testCalmerAnf", literal_condition, (i32(1, 5, 60, 3, 7),), (2, 6, 61, 4, 8)
    ),
    Entry("frontend_test.testFieldReference", fields, (i32(1, 5, 60, 3, 7),), (11, 15, 70, 13, 17)),
    Entry(
        "frontend_test.testOneArmedAndNestedIf",
        one_armed_nested,
        (i32(1, 5, 60, 3, 7),),
        (1, 3, 5, 1, 3),
    ),
    Entry(
        "frontend_test.testCallingUntaggedFunctions",
        untagged_callee,
        (i32([1, 2], [5, 6], [60, 61]),),
        ((4, 5), (16, 17), (181, 182)),
    ),
    Entry(
        "frontend_test.testReferToEnclosingScope",
        enclosing_scope,
        (i32(12, -13, 14),),
        (16, -9, 18),
    ),
)
