"""Types that join, types that do not, and variables that may be undefined."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanewise.core.errors import (
    BranchTypeError,
    LoopTypeError,
    ResultTypeError,
    UndefinedVariableError,
)
from lanewise.frontend.python import convert


def test_weak_gives_way(same):
    def f(x):
        y = 0
        if x > 0:
            y = x
        return y

    same(f, jnp.float32(2))
    assert jax.jit(convert(f))(jnp.bfloat16(2)).dtype == jnp.bfloat16
    assert jax.jit(convert(f))(jnp.int8(2)).dtype == jnp.int8
    assert jax.jit(convert(f))(jnp.complex64(2).real).dtype == jnp.float32


def test_weak_types_promote():
    def f(x):
        if x > 0:
            y = 1
        else:
            y = 0.5
        return y * jnp.float16(2)

    assert jax.jit(convert(f))(1.0).dtype == jnp.float16


def test_loop_entry_is_promoted(same):
    def f(xs, n):
        total = 0
        i = 0
        while i < n:
            total += xs[i]
            i += 1
        return total

    same(f, np.ones(4, np.float32), 4)
    out = jax.jit(convert(f))(jnp.ones(4, jnp.complex64), 0)
    assert out.dtype == jnp.complex64


def test_promotion_runs_through_several_variables(same):
    def f(x, n):
        a = b = c = 0
        while n > 0:
            a, b, c = b, c, x
            n -= 1
        return a + 0 * x, b + 0 * x, c + 0 * x

    same(f, 1.5, 2)


def test_x64():
    def f(n):
        total = 0
        for i in range(n):
            total += i
        y = 0
        if n > 2:
            y = 0.5
        return total, y

    with jax.enable_x64(True):
        total, y = jax.jit(convert(f))(5)
        assert total.dtype == jnp.int64 and total == 10 and y.dtype == jnp.float64
        total, y = jax.jit(convert(f))(jnp.int32(5))
        assert total.dtype == jnp.int64


def test_strong_types_differ():
    def f(x):
        y = jnp.int32(1)
        if x > 0:
            y = x
        return y

    with pytest.raises(BranchTypeError, match=r"`y` is float32\[\] .*int32\[\].*astype") as caught:
        jax.jit(convert(f))(1.0)
    line = f.__code__.co_firstlineno + 2
    assert caught.value.location and caught.value.location.line == line
    assert f"test_types.py:{line}, in f" in str(caught.value)


def test_weak_float_does_not_fit_an_int():
    def f(x):
        y = jnp.int32(1)
        if x > 0:
            y = 0.5
        return y

    with pytest.raises(BranchTypeError, match=r"`y` is float32\[\].*int32\[\]"):
        jax.jit(convert(f))(1.0)


def test_shapes_differ():
    def f(x):
        y = jnp.zeros(3)
        if x > 0:
            y = jnp.zeros(4)
        return y

    with pytest.raises(BranchTypeError, match=r"`y` is float32\[4\] .*float32\[3\]"):
        jax.jit(convert(f))(1.0)


def test_loop_types_differ():
    def f(x, n):
        while n > 0:
            x = jnp.concatenate([x, x])
            n -= 1
        return x

    with pytest.raises(
        LoopTypeError, match=r"`x` is float32\[2\] before the `while` and float32\[4\] after"
    ) as caught:
        jax.jit(convert(f))(jnp.zeros(2), 3)
    assert caught.value.location and caught.value.location.line == f.__code__.co_firstlineno + 1


def test_loop_dtype_differs():
    def f(k, n):
        for _ in range(n):
            k = k / 2
        return k

    with pytest.raises(LoopTypeError, match=r"`k` is int32\[\] before the `for` and float32\[\]"):
        jax.jit(convert(f))(jnp.int32(3), 3)


def test_none_and_array():
    def f(x):
        y = None
        if x > 0:
            y = x
        return y

    with pytest.raises(BranchTypeError, match=r"`y` is float32\[\] .* and None"):
        jax.jit(convert(f))(1.0)


def test_result_falls_off_the_end():
    def f(x):
        if x > 0:
            return x

    with pytest.raises(ResultTypeError, match=r"float32\[\] .* on one path and None .*on another"):
        jax.jit(convert(f))(1.0)


def test_results_differ():
    def f(x):
        if x > 0:
            return jnp.zeros(2)
        return x

    with pytest.raises(ResultTypeError) as caught:
        jax.jit(convert(f))(1.0)
    first = f.__code__.co_firstlineno
    assert (
        f"is float32[2] (line {first + 2}) on one path and float32[] (line {first + 3}) on another"
    ) in str(caught.value)


def test_results_differ_in_a_loop():
    def f(x, n):
        for i in range(n):
            if i == 2:
                return (x, x)
        return x

    with pytest.raises(ResultTypeError, match=r"a tuple of 2.*float32\[\]"):
        jax.jit(convert(f))(1.0, 3)


def test_undefined_on_one_side():
    def f(x):
        if x > 0:
            y = x
        return y

    with pytest.raises(UndefinedVariableError) as caught:
        jax.jit(convert(f))(1.0)
    first = f.__code__.co_firstlineno
    assert caught.value.location and caught.value.location.line == first + 3
    assert (
        f"`y` may be undefined here: the `if` of line {first + 1} leaves it undefined when its "
        in (str(caught.value))
    )
    assert "Assign `y` on both sides, or before" in str(caught.value)


def test_undefined_but_never_read(same):
    def f(x):
        if x > 0:
            y = x
            x = y + 1
        return x

    same(f, 1.0)


def test_undefined_after_a_loop():
    def f(n):
        while n > 0:
            y = n
            n -= 1
        return y

    with pytest.raises(UndefinedVariableError, match=r"`y`.*`while`.*may run zero times"):
        jax.jit(convert(f))(3)


def test_undefined_in_the_first_iteration():
    def f(n):
        while n > 0:
            if n < 3:
                n = n - last  # noqa: F821
            last = 1  # noqa: F841
            n -= 1
        return n

    with pytest.raises(UndefinedVariableError, match="`last` may be undefined") as caught:
        jax.jit(convert(f))(3)
    assert caught.value.location and caught.value.location.line == f.__code__.co_firstlineno + 3


def test_defined_where_a_loop_runs_once_at_least(same):
    def f(xs):
        for x in xs:
            y = x * 2
        for i in range(40):
            z = i + xs[0]
        return y, z, i

    same(f, np.arange(3, dtype=np.float32))


def test_deleted_variable():
    def f(x):
        y = x
        if x > 0:
            x = x + 1
            del y
        return y

    with pytest.raises(UndefinedVariableError, match=r"`y`.*line .* deletes it"):
        jax.jit(convert(f))(1.0)


def test_deleted_and_not_read(same):
    def f(x):
        y = x
        if x > 0:
            x = x + y
            del y
        return x

    same(f, 1.0)


def test_augmented_read_of_undefined():
    def f(x):
        if x > 0:
            y = x
        y += 1
        return y

    with pytest.raises(UndefinedVariableError, match="`y`"):
        jax.jit(convert(f))(1.0)


def test_range_of_floats():
    def f(x):
        for i in range(x):
            x = x + i
        return x

    with pytest.raises(LoopTypeError, match=r"`range` is given float32\[\]"):
        jax.jit(convert(f))(1.5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "uint8", "int16", "bool", "complex64"])
def test_dtypes_pass(dtype, same):
    def f(x, n):
        y = x
        while n > 0:
            y, x = x, y
            n -= 1
        if n == 0:
            y = x
        return y

    same(f, jnp.ones(2, dtype), 3)


def test_zero_size(same):
    def f(x, n):
        while n > 0:
            x = x * 2
            n -= 1
        return x

    same(f, np.zeros((0, 3), np.float32), 2)


def test_assigned_only_after_an_exit():
    def f(x):
        if x > 0:
            return x
            y = 1
        return y  # pyright: ignore[reportUndefinedVariable]

    with pytest.raises(UndefinedVariableError, match=r"`y` may be undefined here: no assignment"):
        jax.jit(convert(f))(1.0)
