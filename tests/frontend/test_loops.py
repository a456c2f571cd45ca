"""`while` and `for`."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.frontend.python import convert


@pytest.mark.parametrize("n", [1, 2, 7, 27])
def test_while(same, n):
    def collatz(n):
        steps = 0
        while n != 1:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            steps += 1
        return steps

    same(collatz, n)


@pytest.mark.parametrize("n", [0, 3])
def test_while_else(same, n):
    def f(n):
        total = 0
        while n > 0:
            total += n
            n -= 1
        else:
            total += 100
        return total

    same(f, n)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_while_else_break(same, n):
    def f(n):
        total = 0
        while n > 0:
            total += n
            if total > 7:
                break
            n -= 1
        else:
            total += 100
        return total

    same(f, n)


@pytest.mark.parametrize("n", [0, 1, 6])
def test_range(same, n):
    def f(n):
        total = 0
        for i in range(n):
            total += i * i
        return total

    same(f, n)


@pytest.mark.parametrize(("a", "b", "c"), [(0, 5, 1), (2, 9, 3), (9, 2, -2), (3, 3, 1), (5, 1, 1)])
def test_range_three(same, a, b, c):
    def f(a, b, c):
        total = 0
        for i in range(a, b, c):
            total = total * 3 + i
        return total

    same(f, a, b, c)


@pytest.mark.parametrize(("a", "b"), [(0, 5), (7, 2), (9, 0), (-3, 4)])
def test_range_static_step(same, a, b):
    def f(a, b):
        up = down = 0
        for i in range(a, b, 2):
            up = up * 3 + i
        for i in range(a, b, -3):
            down = down * 3 + i
        return up, down

    same(f, a, b)


def test_loop_variable_is_a_python_int(same):
    def f(x, n):
        for i in range(n):
            x = x + i
        return x

    same(f, jnp.int8(1), 3)
    same(f, jnp.bfloat16(1), 3)


def test_loop_variable_assigned_in_body(same):
    def f(n):
        total = 0
        for i in range(n):
            i = i * 2
            total += i
        return total

    same(f, 5)


def test_loop_variable_after_the_loop(same):
    def f(n):
        i = -1
        for i in range(n):
            pass
        return i

    same(f, 4)
    same(f, 0)


def test_for_over_array(same, jaxpr):
    def f(xs):
        total = 0.0
        for x in xs:
            total = total * 0.5 + x
        return total

    same(f, np.arange(5, dtype=np.float32))
    assert "scan" in jaxpr(f, jnp.arange(5.0))
    assert "while" not in jaxpr(f, jnp.arange(5.0))


def test_for_over_matrix_rows(same):
    def f(m):
        acc = jnp.zeros(3)
        for row in m:
            acc = acc + row
        return acc

    same(f, np.ones((4, 3), np.float32))


def test_for_over_array_with_break(same):
    def f(xs, stop):
        total = 0.0
        for x in xs:
            if x == stop:
                break
            total += x
        return total

    same(f, np.arange(5, dtype=np.float32), 3.0)
    same(f, np.arange(5, dtype=np.float32), 9.0)


def test_for_over_empty_array(same):
    def f(xs):
        total = 1.0
        for x in xs:
            total += x
        return total

    same(f, np.zeros((0,), np.float32))


def test_zip_and_enumerate_over_arrays(same):
    def f(xs, ys):
        total = 0.0
        for i, (x, y) in enumerate(zip(xs, ys, strict=False)):
            total += i * x + y
        for j, x in enumerate(xs, 5):
            total += j * x
        for k, y in zip(range(3), ys, strict=False):
            total += k * y
        for x in reversed(xs):
            total = total * 0.5 + x
        return total

    same(f, np.arange(4, dtype=np.float32), np.ones(6, np.float32))


def test_python_sequences_unroll(same, jaxpr):
    def f(x):
        for name, w in {"a": 1.0, "b": 2.0}.items():
            x = x * w + len(name)
        for w, v in zip([1.0, 2.0], (3.0, 4.0), strict=True):
            x = x + w * v
        for i, w in enumerate([1.0, 5.0]):
            x = x + [w, i][i]
        for i in range(3):
            x = x + [1.0, 2.0, 3.0][i]
        return x

    same(f, 2.0)
    text = jaxpr(f, 2.0)
    assert "while" not in text and "scan" not in text


def test_python_sequence_with_traced_break(same):
    def f(x):
        total = 0.0
        for w in [1.0, 2.0, 3.0, 4.0]:
            if total > x:
                break
            total += w
        else:
            total += 100.0
        return total

    for x in (-1.0, 0.5, 2.0, 50.0):
        same(f, x)


def test_python_sequence_with_traced_continue_and_return(same):
    def f(x):
        total = 0.0
        for w in [1.0, 2.0, 3.0, 4.0]:
            if w == x:
                continue
            total += w
            if total > 6:
                return -total
        return total

    for x in (1.0, 2.0, 3.0, 4.0, 0.0):
        same(f, x)


def test_long_plain_range_is_staged(same, jaxpr):
    def f(x):
        for i in range(100):
            x = x * 0.5 + i
        return x

    same(f, 1.0)
    text = jaxpr(f, 1.0)
    assert "scan" in text
    assert len(text) < 1500


def test_long_plain_range_falls_back_to_unrolling(same):
    def f(x):
        table = list(range(40))
        for i in range(40):
            x = x + table[i]
        return x

    same(f, 1)


def test_long_plain_range_that_fills_a_list(same):
    def f(x):
        out = []
        for i in range(40):
            out.append(x + i)
        return jnp.stack(out)

    same(f, 1)


def test_long_range_with_break(same):
    def f(x):
        k = 0
        for i in range(1000):
            if x > 50:
                k = i
                break
            x = x + i
        return x, k

    same(f, 1)


def test_plain_while_is_unrolled(jaxpr):
    def f(x):
        i = 0
        while i < 3:
            x = x + [1, 2, 3][i]
            i += 1
        return x

    text = jaxpr(f, 1)
    assert "while" not in text and text.count("add") == 3


@pytest.mark.parametrize("x", [0.1, 5.0])
def test_while_true_with_traced_break(same, jaxpr, x):
    def f(x):
        while True:
            y = x * 2
            if y > 10:
                break
            x = x + 1
        return y

    same(f, x)
    assert jaxpr(f, x).count("mul") == 1


def test_flag_that_starts_plain(same, jaxpr):
    def f(x):
        done = False
        count = 0
        while not done:
            x = x * 1.5
            count += 1
            done = x > 10
        return x, count

    same(f, 1.0)
    assert jaxpr(f, 1.0).count("mul") == 1


def test_error_that_starts_plain(same):
    def newton(a):
        x, err = a, 1.0
        while err > 1e-4:
            new = 0.5 * (x + a / x)
            err = abs(new - x)
            x = new
        return x

    same(newton, 2.0)


def test_while_inside_while(same):
    def f(n):
        total = 0
        i = 0
        while i < n:
            j = 0
            while j < i:
                total += i * j
                j += 1
            i += 1
        return total

    same(f, 6)


def test_walrus_in_a_test(same):
    def f(x):
        count = 0
        while (y := x * 2) < 100:
            x = y + 1
            count += 1
        return x, y, count

    same(f, 3)


def test_zero_trip(same):
    def f(n, xs):
        total = 0.0
        while n > 100:
            n = n + 1
        for i in range(n - 50):
            total += i
        return total, n

    same(f, 3, np.zeros(2, np.float32))


def test_grad_through_scan():
    def f(x, ws):
        for w in ws:
            x = jnp.sin(x * w)
        return x

    ws = jnp.array([1.0, 2.0, 3.0])
    g = jax.grad(convert(f))(0.3, ws)
    assert jnp.allclose(g, jax.grad(f)(0.3, ws))


def test_vmapped_loop():
    def f(n):
        total = 0
        while n > 0:
            total += n
            n -= 1
        return total

    out = jax.vmap(convert(f))(jnp.arange(6))
    assert out.tolist() == [0, 1, 3, 6, 10, 15]


def test_loop_in_jitted_inner_function(same):
    def f(x):
        @jax.jit
        def step(y):
            while y < 10:
                y = y + x
            return y

        return step(x) + step(x + 1)

    same(f, 3)


def test_numpy_arrays(same, jaxpr):
    short, long = np.arange(3), np.arange(100.0, dtype=np.float32)

    def f(x):
        for k in short:
            x = x + [1.0, 2.0, 3.0][k]
        for v in long:
            x = x * 0.5 + v
        return x

    same(f, 1.0)
    assert "scan" in jaxpr(f, 1.0)


def test_keys_are_iterated(same):
    def f(keys, stop):
        total = 0.0
        for key in keys:
            total += jax.random.uniform(key)
            if total > stop:
                break
        return total

    same(f, jax.random.split(jax.random.key(0), 5), 1.0)


def test_endless_iterable():
    import itertools

    from lanewise.core.errors import ProgramError

    def f(x):
        for i in itertools.repeat(1):
            if x > 0:
                break
        return x

    import lanewise.frontend.control as control

    before, control._ENDLESS = control._ENDLESS, 20
    try:
        with pytest.raises(ProgramError, match=r"unrolled.*Use `while`"):
            jax.jit(convert(f))(1)
    finally:
        control._ENDLESS = before


LAYERS = np.random.default_rng(3).standard_normal((6, 128, 128)).astype(np.float32) / 12.0


def scans_and_products(f: Callable[..., Any], *args: Any) -> tuple[int, int]:
    """How many loops and matrix products a program is made of; its answers are those of plain Python."""
    staged, _ = lw.program(f).stage(*args)
    names = re.findall(r"\b(scan|dot_general)\[", str(staged.program.functions))
    np.testing.assert_allclose(lw.program(f)(*args), f(*args), rtol=1e-5, atol=1e-6)
    return names.count("scan"), names.count("dot_general")


def test_a_short_loop_around_large_products_is_a_loop() -> None:
    def network(x, layers):
        for i in range(layers.shape[0]):
            x = x + jax.nn.gelu(jnp.tanh(x @ layers[i]))
        return x

    x, layers = jnp.ones(128), jnp.asarray(LAYERS)
    assert scans_and_products(network, x, layers) == (1, 1)
    assert scans_and_products(network, x, layers[:4]) == (0, 4)
    assert scans_and_products(network, x[:64], layers[:, :64, :64]) == (0, 6)
    by_hand = jax.grad(lambda x: network(x, layers).sum())(x)
    ours = jax.grad(lambda x: lw.program(network)(x, layers).sum())(x)
    np.testing.assert_allclose(ours, by_hand, rtol=1e-4, atol=1e-5)


def test_turns_that_differ_are_written_out() -> None:
    def residual_but_first(x, layers):
        for i in range(6):
            x = jnp.tanh(x @ layers[i]) if i == 0 else x + jnp.tanh(x @ layers[i])
        return x

    def last_is_linear(x, layers):
        for i in range(6):
            x = x @ layers[i]
            if i < 5:
                x = jnp.tanh(x)
        return x

    def powers(x, layers):
        for i in range(6):
            x = jnp.tanh(x @ layers[i]) ** (i + 1)
        return x

    def damped(x, layers):
        for i in range(6):
            x = x + 0.7**i * jnp.tanh(x @ layers[i])
        return x

    def shorter_and_shorter(x, layers):
        for i in range(6):
            x = jnp.tanh(x[: 128 - i] @ layers[i][: 128 - i])
        return x

    x, layers = jnp.ones(128), jnp.asarray(LAYERS)
    for differ in (residual_but_first, last_is_linear, powers, damped, shorter_and_shorter):
        assert scans_and_products(differ, x, layers) == (0, 6), differ.__name__

    kept = list(LAYERS)

    def from_a_list(x):
        for i in range(6):
            x = jnp.tanh(x @ kept[i])
        return x

    assert scans_and_products(from_a_list, x) == (0, 6)

    def kept_apart(x, layers):
        outs = []
        for i in range(6):
            x = jnp.tanh(x @ layers[i])
            outs.append(x)
        return sum(outs)

    assert scans_and_products(kept_apart, x, layers) == (0, 6)
