"""`break`, `continue` and `return`, anywhere."""

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from generate import load
from lanewise.core.errors import UnsupportedSyntaxError
from lanewise.frontend.python import convert

VALUES = list(itertools.product([-1, 0, 2, 5], [0, 1, 3]))


@pytest.mark.parametrize(("a", "b"), VALUES)
def test_early_returns(same, a, b):
    def f(a, b):
        if a < 0:
            return -1
        if a == 0:
            if b > 0:
                return b
            x = 10
        else:
            x = 20
        if b == 3:
            return x + b
        return x

    same(f, a, b)


@pytest.mark.parametrize(("a", "b"), VALUES)
def test_return_in_nested_loops(same, a, b):
    def f(a, b):
        count = 0
        for i in range(a):
            for j in range(b):
                count += 1
                if i * j == 2:
                    return count * 100
                if j > i:
                    break
            else:
                count += 10
            if count > 40:
                return -count
        else:
            count += 1000
        return count

    same(f, a, b)


@pytest.mark.parametrize(("a", "b"), VALUES)
def test_continue_in_the_middle(same, a, b):
    def f(a, b):
        total = 0
        i = 0
        while i < a + b:
            i += 1
            if i % 2 == 0:
                if b > 1:
                    continue
                t = 5
            else:
                t = 7
            total = total * 2 + t
            if total > 30:
                total -= 30
                continue
            total += 1
        return total

    same(f, a, b)


@pytest.mark.parametrize(("a", "b"), VALUES)
def test_all_at_once(same, a, b):
    def f(a, b):
        out = 0
        while True:
            a += 1
            for j in range(a):
                if j == b:
                    if a > 4:
                        break
                    continue
                out += j
                if out > 20:
                    return out
            else:
                out += 2
            if a > 7:
                break
            if out % 3 == 0:
                continue
            out += 1
        return -out

    same(f, a, b)


@pytest.mark.parametrize("x", [-1.0, 1.0])
def test_return_of_pytrees(same, x):
    def f(x):
        if x > 0:
            return {"a": x, "b": (x, 1)}
        return {"a": 0.0, "b": (x, 2)}

    same(f, x)


@pytest.mark.parametrize("n", [0, 3])
def test_return_of_pytrees_from_a_loop(same, n):
    def f(n):
        for i in range(n):
            if i == 2:
                return {"a": i, "b": jnp.zeros(3)}
        return {"a": -1, "b": jnp.ones(3)}

    same(f, n)


def test_statements_after_exit_are_dropped(same):
    def f(x):
        while x < 5:
            x += 1
            continue
            x += 100
        return x
        x = undefined_name  # noqa: F821

    same(f, 1)


def test_variable_assigned_on_the_path_that_stays(same):
    def f(a, b):
        if a > 0:
            if b > 0:
                return 0
            x = 1
        else:
            x = 2
        return x + 1

    for a, b in [(1, 1), (1, 0), (0, 0)]:
        same(f, a, b)


def test_variable_of_other_type_on_the_path_that_leaves(same):
    def f(a, b):
        x = None
        if a > 0:
            if b > 0:
                return 0.0
            x = jnp.ones(3)
        else:
            x = jnp.zeros(3)
        return x.sum()

    for a, b in [(1, 1), (1, 0), (0, 0)]:
        same(f, a, b)


def test_bare_return(same):
    def f(x, log=()):
        if x is None:
            return
        return x + 1

    same(f, 1)


def test_binary_search(same):
    def f(xs, x):
        low, high = 0, xs.shape[0]
        while low < high:
            middle = (low + high) // 2
            if xs[middle] == x:
                return middle
            if xs[middle] < x:
                low = middle + 1
            else:
                high = middle
        return -1

    xs = np.array([1, 3, 4, 8, 9], np.int32)
    for x in (0, 1, 4, 9, 10):
        same(f, xs, x)


def test_while_true_that_only_returns(same):
    def f(x):
        while True:
            x = x * 2
            if x > 100:
                return x
            if x < -100:
                return -x

    same(f, 3)
    same(f, -3)


def test_flags_stay_plain(jaxpr):
    def f(x, limit=2):
        for i in range(5):
            if i == limit:
                break
            x = x + i
        else:
            x = x * 100
        return x

    text = jaxpr(f, 1)
    assert "cond" not in text and "bool" not in text


def test_exit_is_a_literal(jaxpr):
    def f(n, x):
        while n > 0:
            n -= 1
            if n == x:
                break
        return n

    text = jaxpr(f, 3, 4)
    assert "True:bool[]" in text and "False:bool[]" in text


def test_return_inside_with(same):
    def f(x, flag=True):
        with contextlib.nullcontext():
            if flag:
                return x + 1
            x = x * 2
        return x

    same(f, 1)


TABLE = {"a": 3}


def test_with_that_swallows(same):
    def f(x, key="b"):
        with contextlib.suppress(KeyError):
            return x * TABLE[key]
        return x - 1

    same(f, 5)


def test_with_that_swallows_at_the_end_gives_none():
    def f(x, key="b"):
        with contextlib.suppress(KeyError):
            return x * TABLE[key]

    assert convert(f)(1) is None and convert(f)(2, "a") == 6


@pytest.mark.parametrize("key", ["a", "b"])
def test_with_that_may_swallow_under_plain_conditions(same, key):
    def f(x, flag=True):
        y = 0
        if x > 3:
            y = x + 1
        if flag:
            with contextlib.suppress(KeyError):
                return x * TABLE[key] + y
        else:
            y = 7
        return x - y

    for x in (1, 5):
        same(f, x)


@pytest.mark.parametrize("key", ["a", "b"])
def test_with_that_may_swallow_in_a_plain_loop(same, key):
    def f(x):
        for name in ("c", key, "a"):
            with contextlib.suppress(KeyError):
                x = x * TABLE[name]
                break
            x = x + 1
        while True:
            x = x + 1
            with contextlib.suppress(KeyError):
                return x + TABLE[key]
            return x

    same(f, 2)


@pytest.mark.parametrize("x", [1, 3, 5])
def test_with_that_exits_under_traced_conditions(same, x):
    def f(x):
        if x > 3:
            with contextlib.nullcontext():
                return x * 2
        else:
            y = x + 1
        while y < 9:
            if y == 4:
                with contextlib.nullcontext():
                    break
            else:
                z = y * 3
            y = y + z
        return y

    same(f, x)


@pytest.mark.parametrize("x", [1, 5])
def test_what_only_swallowing_leads_to_is_not_traced(same, x):
    def f(x):
        if x > 3:
            with contextlib.nullcontext():
                return x * 2
        else:
            while True:
                x = x + 1
                if x > 7:
                    return x
        return "no array, and never returned"

    same(f, x)


def test_swallowing_under_a_traced_condition_is_refused():
    def f(x):
        if x > 3:
            if True:
                with contextlib.suppress(KeyError):
                    return x * TABLE["b"]
        else:
            y = x
        return y

    line = f.__code__.co_firstlineno
    with pytest.raises(UnsupportedSyntaxError, match=f"`if` of line {line + 1}") as caught:
        jax.jit(convert(f))(1)
    assert caught.value.location is not None and caught.value.location.line == line + 3


def test_return_inside_try(same):
    def f(x, flag=True):
        try:
            if flag:
                return x + 1
            x = x * 2
        finally:
            x = 0
        return x

    same(f, 1)


def test_body_that_never_comes_round(same):
    def f(x, y):
        for i in range(x):
            if y > 2:
                return y
            if y > x:
                x = x + 1
            else:
                y += i
            return i - 5
        return x + y

    for x, y in [(0, 1), (3, 1), (3, 5), (1, 2)]:
        same(f, x, y)


def test_flags_pass_by_what_is_skipped(same):
    def f(x, y):
        for i in range(y):
            if y <= i:
                if y < 3:
                    return 1
            elif y + i > 4:
                if x - i <= x:
                    return 2
            if y == 100:
                return 3
            break
        return 4

    for x, y in [(-2, 5), (0, 0), (1, 3), (1, 100)]:
        same(f, x, y)


def test_else_of_a_loop_that_only_returns(same):
    def f(x, n):
        if x > 0:
            for i in range(n):
                if i == 3:
                    return i
            else:
                c = x
            x = c + 1
        return x

    for x, n in [(0, 1), (2, 2), (2, 5)]:
        same(f, x, n)


def test_nothing_follows_a_loop_that_never_ends_normally(same):
    def f(x, values):
        if x > 1:
            for value in values:
                return value + x
            else:
                x = x + 1
                return x
            y = x * 2
            x = y + x
        return x

    def g(x, n):
        while x < n:
            if x == 3:
                return 30
            x += 1
        else:
            x = x * 2
            return x
        return x - 1

    for x in (0, 2, 3):
        same(f, x, np.arange(4))
        for n in (0, 3, 5):
            same(g, x, n)


def test_code_that_no_path_comes_to(same):
    def f(x, n):
        while True:
            if x > n:
                y = x
                return y
            elif x == n:
                return 0
            x += 2
            continue
            break
        else:
            x = y + 1
        return x - y

    def g(x, n):
        match x:
            case 0:
                z = 1
                return z
            case _:
                for i in range(3):
                    if i == n:
                        return i
                    break
                else:
                    return 7
                return x
        return z

    for x in (0, 1, 4):
        for n in (0, 2, 5):
            same(f, x, n)
            same(g, x, n)


LEAVES_IN_ITS_FIRST_TURN = """
def main(x, n, values):
    k = {start}
    {loop}:
        {first}
        for value in values:
            if value > n:
                k = value
                return k
        else:
            k = n + 1
            return k + x
    return x
"""


@pytest.mark.parametrize(
    ("start", "loop", "first"),
    [("1", "while k > 0", "pass"), ("x", "for i in range(3)", "k = k + i")],
    ids=["while", "unrolled for"],
)
def test_loop_that_always_leaves(same, start, loop, first):
    source = LEAVES_IN_ITS_FIRST_TURN.format(start=start, loop=loop, first=first)
    f = load(source, lambda fun: fun, loop)
    for x, n in [(0, 0), (1, 2), (1, 9)]:
        same(f, x, n, np.arange(5))
