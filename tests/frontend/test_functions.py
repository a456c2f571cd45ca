"""Functions of every kind: closures, methods, defaults, lambdas; where source and lines come from."""

import contextlib
import functools
import traceback
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.core.errors import UnsupportedSyntaxError
from lanewise.frontend.python import convert


def test_signature_survives():
    def f(a, /, b=2, *rest, c=3, **more):
        if a > 0:
            a = a + b
        return a + c + sum(rest) + sum(more.values())

    g = convert(f)
    assert jax.jit(lambda a: g(a))(1) == f(1)
    assert jax.jit(lambda a: g(a, 5, 6, c=7, d=8))(1) == f(1, 5, 6, c=7, d=8)
    assert g.__name__ == "f" and g.__qualname__ == f.__qualname__


def test_closures_are_late_bound():
    scale = 2

    def f(x):
        if x > 0:
            return x * scale
        return x

    g = convert(f)
    assert jax.jit(lambda x: g(x))(3) == 6
    scale = 5
    assert jax.jit(lambda x: g(x))(3) == 15


def test_recursion_through_a_cell():
    def fact(n):
        if n == 0:
            return 1
        return n * fact(n - 1)

    plain, fact = fact, convert(fact)
    assert fact(5) == 120
    assert plain(3) == 6


def test_nested_functions_see_assignments(same):
    def f(n):
        total = 0

        def bump(x):
            if x > 2:
                return total + x
            return total

        while n > 0:
            total = bump(n) + 1
            n -= 1
        return total

    same(f, 5)


def test_nested_function_defined_in_a_loop(same):
    def f(n):
        x = 1
        while n > 0:

            def g(y, n=n):
                return y * 2 if n > 2 else y + 1

            x = g(x)
            n -= 1
        return x

    same(f, 4)


def test_lambdas(same):
    def f(x):
        clip = lambda v, top=3: top if v > top else v  # noqa: E731
        return clip(x), (lambda: x or 4)(), list(map(lambda v: v and x, [0, 1]))  # noqa: C417

    same(f, 5)
    same(f, 0)


def test_recursive_nested_function(same):
    def f(x):
        def power(n):
            if n == 0:
                return 1
            return x * power(n - 1)

        return power(4)

    same(f, 3)


def test_program_from_a_lambda():
    f = convert(lambda x: x if x > 0 else -x)
    assert jax.jit(f)(-3) == 3


def test_lambdas_inside_each_other_on_one_line():
    # fmt: off
    outer = lambda f, g=(lambda x: 9 if x > 0 else 8): (f(lambda x: f(lambda y: y if y > x else -x)), f(lambda x: 0 if x > 0 else 1), g)  # noqa: E501, E731
    # fmt: on
    for forget in (lambda f: f, _without_columns):
        middle, beside, default = outer(lambda f: f)
        inner = middle(3)
        for made, at, expected in ((inner, 5, 5), (inner, 2, -3), (beside, 2, 0), (default, 2, 9)):
            assert jax.jit(convert(forget(made)))(at) == expected
        again = convert(forget(outer))(lambda f: f)[0](3)
        assert again(5) == 5 and again(2) == -3
        assert convert(forget(middle))(4)(1) == -4


AT_TOP = (lambda x: x if x > 0 else -x), (lambda x: 1 if x > 0 else 0)


def test_lambdas_outside_functions_on_one_line():
    for forget in (lambda f: f, _without_columns):
        f, g = map(convert, map(forget, AT_TOP))
        assert f(-2) == 2 and g(-2) == 0


def test_lambdas_alike_on_one_line():
    # Which of the two it is cannot be seen without columns, and makes no difference.
    f, g = (lambda x: x if x > 0 else -x), (lambda x: x if x > 0 else -x)
    for made in (f, g, _without_columns(f), _without_columns(g)):
        assert jax.jit(convert(made))(-2) == 2


def test_constants_that_are_equal_and_not_the_same():
    f, g = (lambda x: x if x > 0 else 0.0), (lambda x: x if x > 0 else -0.0)
    for forget in (lambda f: f, _without_columns):
        assert not np.signbit(convert(forget(f))(-1.0)) and np.signbit(convert(forget(g))(-1.0))


def _without_columns(f):
    """The function as Python makes it under `-X no_debug_ranges`."""
    code = f.__code__
    bare = code.replace(co_linetable=b"", co_firstlineno=code.co_firstlineno)
    assert not any(column for _, _, column, _ in bare.co_positions())
    return types.FunctionType(bare, f.__globals__, f.__name__, f.__defaults__, f.__closure__)


def test_two_lambdas_on_one_line():
    f, g = convert(lambda x: x if x > 0 else -x), convert(lambda x: 1 if x > 0 else 0)
    assert jax.jit(f)(-3) == 3 and jax.jit(g)(-3) == 0


def test_no_source():
    space = {}
    exec("def f(x):\n    return x\n", space)
    with pytest.raises(UnsupportedSyntaxError, match=r"source of `f` cannot be found.*lift"):
        convert(space["f"])


def test_not_a_function():
    with pytest.raises(UnsupportedSyntaxError, match="not a Python function"):
        convert(functools.partial(max, 1))


class Base:
    scale = 3

    def run(self, x):
        return x * self.scale


class Derived(Base):
    __private = 7

    def run(self, x):
        y = 0
        if x > 1:
            y = super().run(x) + self.__private
        while y > 100:
            y = y - super().run(1)
        return y + __class__.__private

    @classmethod
    def make(cls, x):
        if x > 0:
            return x + cls.scale
        return x

    @staticmethod
    def free(x):
        return x if x > 0 else -x


def test_methods():
    d = Derived()
    g = convert(d.run)
    for x in (0, 2, 50):
        assert jax.jit(g)(x) == d.run(x)
    assert jax.jit(convert(Derived.make))(2) == 5
    assert jax.jit(convert(Derived.free))(-2) == 2


def test_closure_over_arrays(same):
    weights = jnp.arange(3.0)

    def f(x, n):
        while n > 0:
            x = jnp.tanh(weights * x)
            n -= 1
        return x

    same(f, np.ones(3, np.float32), 3)


def test_comprehensions_and_generators(same):
    def f(xs):
        squares = [x * x if x > 0 else x for x in xs]
        table = {i: s + 0 for i, s in enumerate(squares)}
        return sum(s + 1 for s in squares), table[0], [i for i in range(4) if i % 2 and i > 1]

    same(f, np.arange(3))


def test_unpacking(same):
    def f(x, n):
        first, *others = [x, x + 1, x + 2]
        (a, b), c = (first, others[0]), others[-1]
        while n > 0:
            a, (b, *rest) = b, (c, a, n)
            c = rest[0]
            n -= 1
        return a, b, c

    same(f, 1, 3)


def test_imports_and_classes_inside(same):
    def f(x):
        import math
        from functools import reduce

        class Pair:
            def total(self):
                return reduce(lambda a, b: a + b, [1, 2])

        if x > 0:
            x = x + Pair().total() + int(math.sqrt(4))
        return x

    same(f, 1)


def test_with_inside_a_branch(same):
    def f(x):
        if x > 0:
            with jax.named_scope("inner"):
                x = x + 1
        return x

    same(f, 1)


def test_try_without_traced_control_flow(same):
    def f(x):
        try:
            import no_such_module  # pyright: ignore[reportMissingImports]

            y = no_such_module.value
        except ImportError as error:
            y = len(str(error)) * 0 + 2
        else:
            y = 3
        if x > 0:
            x = x + y
        return x

    same(f, 1)


def test_traceback_shows_the_users_line():
    def f(x, n):
        while n > 0:
            if x > 0:
                x = x + [1, 2][n]
            n -= 1
        return x

    with pytest.raises(TypeError) as caught:
        jax.jit(convert(f))(1, 2)
    frames = [
        frame
        for frame in traceback.extract_tb(caught.value.__traceback__)
        if frame.filename == __file__ and frame.name == "f"
    ]
    first = f.__code__.co_firstlineno
    assert [frame.lineno for frame in frames] == [first + 1, first + 2, first + 3]
    assert frames[-1].line == "x = x + [1, 2][n]"


def test_decorators_do_not_shift_the_lines_of_a_traceback():
    def twice(fun):
        return fun

    @twice
    @twice
    def f(x):
        y = x + 1
        return y + [1, 2][x]

    with pytest.raises(TypeError) as caught:
        jax.jit(convert(f))(1)
    lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "return y + [1, 2][x]" in lines


def test_equations_bear_the_users_line():
    def f(n):
        while n > 3:
            n = n - 2
        return n

    text = jax.make_jaxpr(convert(f))(7).pretty_print(source_info=True)
    first = f.__code__.co_firstlineno
    assert f"test_functions.py:{first + 2}" in text
    assert f"test_functions.py:{first + 1}" in text


def test_conversion_is_cached():
    def f(x):
        return x if x > 0 else -x

    assert convert(f).__code__ is convert(f).__code__
    assert convert(convert(f)).__code__ is convert(f).__code__


def test_nested_converted_function_is_not_converted_again(same):
    def f(x):
        def g(y):
            if y > 0:
                return y
            return -y

        return convert(g)(x)

    same(f, -3)


def line_of(function, offset):
    return function.__code__.co_firstlineno + offset


def generator(x):
    yield x


def uses_global(x):
    global SOMETHING
    SOMETHING = x
    return x


async def coroutine(x):
    return x


def make_nonlocal():
    count = 0

    def f(x):
        nonlocal count
        count += 1
        return x

    return f, count


def nested_generator(x):
    def g():
        yield x

    return list(g())


@pytest.mark.parametrize(
    ("function", "offset", "text"),
    [
        (generator, 1, "generator.*Collect the values"),
        (uses_global, 1, "`global`.*argument.*return"),
        (coroutine, 0, "async"),
        (make_nonlocal()[0], 1, "`nonlocal`.*return"),
        (nested_generator, 2, "generator"),
    ],
)
def test_refused_at_conversion(function, offset, text):
    with pytest.raises(UnsupportedSyntaxError, match=text) as caught:
        convert(function)
    assert caught.value.location and caught.value.location.line == line_of(function, offset)
    assert caught.value.location and caught.value.location.filename == __file__


def test_try_around_traced_control_flow():
    def f(x):
        try:
            if x > 0:
                x = x + 1
        finally:
            pass
        return x

    with pytest.raises(UnsupportedSyntaxError, match="`try` surrounds the `if` of line") as caught:
        jax.jit(convert(f))(1)
    assert caught.value.location and caught.value.location.line == line_of(f, 1)


def test_with_around_traced_control_flow():
    def f(x):
        with jax.named_scope("a"):
            while x > 0:
                x = x - 1
        return x

    with pytest.raises(UnsupportedSyntaxError, match="`with` surrounds the `while`") as caught:
        jax.jit(convert(f))(1)
    assert caught.value.location and caught.value.location.line == line_of(f, 1)


def test_raise_under_a_traced_condition():
    def f(x):
        if x < 0:
            raise ValueError("negative")
        return x

    with pytest.raises(UnsupportedSyntaxError, match=r"`raise`.*assert") as caught:
        jax.jit(convert(f))(1)
    assert caught.value.location and caught.value.location.line == line_of(f, 2)


def test_raise_under_a_plain_condition():
    def f(x, flag=True):
        if x > 0:
            if flag:
                raise ValueError("flag")
            x = x + 1
        return x

    with pytest.raises(ValueError, match="flag"):
        jax.jit(convert(f))(1)


def test_annotated_assignment(same):
    def f(x: int, n: "int") -> int:
        y: int = 0
        z: float
        while n > 0:
            y: int = y + x
            n -= 1
        if y > 3:
            z: float = 1.0
        else:
            z = 2.0
        return y * z  # type: ignore[return-value]

    same(f, 2, 3)


def test_statements_of_all_sorts(same):
    def f(x, *, flags=("a", "b")):
        total = 0
        for i, flag in enumerate(flags):
            try:
                total += {"a": 1}[flag]
            except KeyError:
                continue
            finally:
                total += 10
        table = {}
        table["x"], (low, *_) = x, (1, 2, 3)
        table |= {"low": low}
        if x > 0:
            table["x"] **= 2
            del table["low"]
        else:
            table.pop("low")
        return total, table["x"], f"{len(table)}" == "1"

    same(f, 3)


def test_star_arguments_and_decorated_inner():
    def f(x, *ys):
        @functools.lru_cache
        def size(k: int = 3) -> int:
            return k * 2

        @functools.partial(jax.vmap, in_axes=(0, None))
        def add(a, b):
            if a > b:
                return a
            return b

        return add(jnp.arange(3), max(*ys, x)) + size()

    assert jax.jit(convert(f))(1, 0, 2).tolist() == [8, 8, 8]
    assert jax.jit(convert(f))(1, 0).tolist() == [7, 7, 8]


def test_names_of_parts_around_traced_control_flow(same):
    def f(x):
        while x < 20:
            with lw.on("decoder"):
                if x > 4:
                    x = x + 2
                x = x + 1
        with lw.on("encoder"):
            for _ in range(3):
                if x % 2 == 0:
                    return x
                x = x + 1
        return -x

    same(f, 3)
    same(f, 4)


def test_a_manager_inside_a_name_of_a_part():
    def f(x):
        with lw.on("decoder"):
            with contextlib.nullcontext():
                if x > 4:
                    x = x + 2
        return x

    with pytest.raises(UnsupportedSyntaxError, match="`with` surrounds the `if`") as caught:
        jax.jit(convert(f))(1)
    assert caught.value.location and caught.value.location.line == line_of(f, 2)


def test_a_with_around_plain_control_flow_in_a_loop(same):
    def f(x):
        while x < 10:
            with contextlib.nullcontext():
                for step in (1, 2):
                    if step > 1:
                        x = x + step
        return x

    same(f, 3)
