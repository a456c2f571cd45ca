"""The edges: loops that no lane enters, empty arrays, constants, every dtype, odd but honest syntax."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from programs.case import Case, flags, floats, inputs, ints, keys, normals


@lw.program
def never_entered(x):
    """No lane ever enters this loop."""
    while x > 1e6:
        x = x * 0.5
    for _ in range(0):
        x = x + 1.0
    return x


@lw.program
def sometimes_entered(x, n):
    """Zero trips for some lanes, and an `else` that always runs."""
    total = x
    for i in range(n):
        total = total * 2 + i
    else:
        total = total + 100
    return total


def sometimes_entered_lax(x, n):
    return lax.fori_loop(0, n, lambda i, total: total * 2 + i, x) + 100


@lw.program
def forever_until(x):
    """`while True` around two different exits."""
    n = 0
    while True:
        n += 1
        if x % 7 == 3:
            return -n
        if x > 50:
            break
        x = 2 * x + 1
    return n


@lw.program
def while_else(values, target):
    i = 0
    while i < values.shape[0]:
        if values[i] == target:
            where = i
            break
        i += 1
    else:
        where = -1
    return where


@lw.program
def identity(x):
    return x


@lw.program
def always_two(x):
    """Ignores its argument: a result that is the same for every lane."""
    answer = 1
    answer = answer + 1
    return answer


@lw.program
def straight_line(x, y):
    a = jnp.sin(x) + y
    return {"sum": a + 1.0, "pair": (a * y, -x)}


@lw.program
def nothing_comes_back(x):
    """A tuple without leaves beside one that has some."""
    if x > 0:
        x = -x
    return (), x, None


@lw.program
def empty_arrays(x, n):
    """Arrays with no elements are carried, returned and looped over."""
    total = jnp.float32(0.0)
    for row in x:
        total += jnp.sum(row) + 1.0
    while n > 0:
        x = x + 1.0
        n -= 1
    return x, total, jnp.sum(x) + n


@lw.program
def low_precision(x, y):
    """bfloat16 and float16 with values they hold exactly."""
    n = jnp.int8(0)
    while x < 16:
        x = x * 2
        y = y + 1 if n % 2 == 0 else y * 2
        n += jnp.int8(1)
    return x, y, n


def low_precision_lax(x, y):
    def body(s):
        x, y, n = s
        return x * 2, jnp.where(n % 2 == 0, y + 1, y * 2), n + jnp.int8(1)

    return lax.while_loop(lambda s: s[0] < 16, body, (x, y, jnp.int8(0)))


@lw.program
def boolean_state(bits):
    """Bools as numbers, as state and as answers."""
    parity = False
    seen = False
    for bit in bits:
        if bit:
            parity = not parity
        seen = seen or bit
    return parity, seen, not seen and not parity


def boolean_state_lax(bits):
    seen, parity = jnp.any(bits), jnp.sum(bits) % 2 == 1
    return parity, seen, ~seen & ~parity


@lw.program
def complex_rotation(z, turns):
    """A quarter turn at a time, with a branch on the imaginary part."""
    total = z
    while turns > 0:
        z = z * 1j
        if z.imag > 0:
            total = total + z
        turns -= 1
    return total, jnp.conj(z)


@lw.program
def carry_key(key, n):
    """A typed key as loop state, as a result, and as something chosen by a branch."""
    other = jax.random.fold_in(key, 7)
    while n > 0:
        if n % 2 == 0:
            key = jax.random.fold_in(key, n)
        else:
            key, other = other, key
        n -= 1
    return key, jax.random.bits(key, (), jnp.uint32)


@lw.program
def choose_key(key, flag):
    first, second = jax.random.split(key)
    chosen = first if flag else second
    return jax.random.key_data(chosen)


@lw.program
def mixed_widths(a, b, c):
    """Promotion across int8, uint8, int16, int32 and float16, decided lane by lane."""
    total = a.astype(jnp.int32)
    if b > 100:
        total = total + b
    elif c > 0:
        total = total - c
    ratio = (a + jnp.float16(0.5)) * 2
    return total, ratio, a * jnp.int8(2), b >> jnp.uint8(1), c


@lw.program
def python_branches(x):
    """Conditions that plain Python knows are decided while tracing."""
    sizes = [1, 2, 3]
    if len(sizes) == 3 and x.ndim == 0:
        for size in sizes:
            if size % 2 == 0:
                continue
            if x > size:
                x = x - size
    else:
        raise ValueError("never reached")
    names = {"add": lambda v: v + 1, "double": lambda v: v * 2}
    for name, function in names.items():
        x = function(x) if name == "add" or x > 0 else x
    return x


@lw.program
def checked(x):
    """Assertions that hold on every lane."""
    assert x.shape == ()
    assert x > 0, "x must be positive"
    n = 0
    while x > 1:
        x = x // 2
        assert x >= 0
        n += 1
    return n


@lw.program
def nested_choice(x, y):
    """Conditional expressions in arguments, subscripts and conditions."""
    table = jnp.array([10, 20, 30], jnp.int32)
    value = jnp.maximum(x if x > y else -x, table[0 if y > 3 else 2])
    return value + (1 if (x > 0 if y > 0 else x < 0) else -1)


@lw.program
def falls_through(x):
    """Branches inside branches, some of which return and some of which fall through."""
    if x > 10:
        if x > 20:
            return x
        x = x + 5
        if x > 22:
            return -x
    else:
        if x < -10:
            x = -x
        elif x == 0:
            return jnp.int32(1000)
    y = x * 2
    if y > 30:
        return y
    return y + 1


@lw.program
def deep_break(n):
    """Three nested loops; the innermost `break`, the middle `continue`, the outer `return`."""
    total = 0
    for i in range(n):
        j = 0
        while j < i:
            j += 1
            if (i + j) % 3 == 0:
                continue
            for k in range(j):
                if k * k > i:
                    break
                total += 1
                if total > 40:
                    return total, i, j, k
        total += 100 if i == 4 else 0
    return total, -1, -1, -1


@lw.program
def int_and_float(x, n):
    """A Python number becomes whatever the loop makes of it."""
    total = 0
    scale = 1
    for i in range(n):
        total = total + x * i
        scale = scale / 2
    return total, scale


SLOPES = np.array([0.5, 2.0, 3.0], np.float32)


@jax.custom_jvp
def swayed(x):
    return jnp.sin(x)


@swayed.defjvp
def _swayed_jvp(primals, tangents):
    """The rule holds an array, which is in no program before it is differentiated."""
    (x,), (t,) = primals, tangents
    return jnp.sin(x), jnp.sum(jnp.asarray(SLOPES)) / 5.5 * jnp.cos(x) * t


@lw.program
def rule_with_array(x, n):
    """A derivative rule with an array of its own, in a loop inside a recursion."""
    if n == 0:
        return x
    while x < 1.0:
        x = x + 0.5 + 0.2 * swayed(x)
    return 0.7 * rule_with_array(swayed(x), n - 1)


@lw.program
def counted_by_reference(x, n):
    """A reference that begins and ends in the program, written in a loop and under a branch."""
    powers = jax.new_ref(jnp.zeros(4))

    def step(i, x):
        powers[i % 4] = powers[i % 4] + x
        return 0.5 * x

    lax.fori_loop(0, n, step, x)
    lax.cond(x > 1.0, lambda: powers.__setitem__(0, powers[0] + 5.0), lambda: None)
    found = jax.freeze(powers)
    while found[0] > 2.0:
        found = 0.5 * found
    return found


@lw.program
def squashed(x):
    """Functions with custom derivatives, nested `jit`, and `scan` inside a branch."""
    if x > 0.5:
        x = jax.nn.softplus(x)
    elif x > 0.0:
        x, _ = lax.scan(lambda c, w: (c * w + 0.1, None), x, jnp.arange(1.0, 4.0, dtype=x.dtype))
    else:
        x = jax.jit(jax.nn.gelu)(x) - jax.nn.relu6(x)
    return x


@lw.program
def large_state(x, n):
    """A register wide enough that copying it for every lane and branch would show."""
    i = jnp.int32(0)
    while i < n:
        if x[i % 8, 0] > 0.0:
            x = x.at[i % 8].multiply(-0.5)
        else:
            x = x.at[(3 * i) % 8].add(1.0)
        i += 1
    return x


def large_state_lax(x, n):
    def body(i, x):
        down = lambda x: x.at[i % 8].multiply(-0.5)  # noqa: E731
        up = lambda x: x.at[(3 * i) % 8].add(1.0)  # noqa: E731
        return lax.cond(x[i % 8, 0] > 0.0, down, up, x)

    return lax.fori_loop(0, n, body, x)


def _small_floats(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    x = rng.choice([0.25, 0.5, 1.0, 2.0, 16.0], n)
    return x.astype(jnp.bfloat16), rng.integers(0, 4, n).astype(np.float16)


@lw.program
def little_machine(code, x):
    """A machine whose instructions are matched with the state they meet."""
    a, b, pc = x, 0, 0
    while pc < code.shape[0]:
        match (code[pc], a % 2):
            case (0, _):
                a += 1
            case (1, 0) | (0, 1):
                a = a // 2
            case (1, odd):
                a = 3 * a + odd
            case (2 as op, odd) if odd == 1 and pc > 2:
                b += a * op
                pc += 1
            case (op, _) if op > 5:
                return a, -b
            case [op, *rest]:
                b += op + rest[0]
        pc += 1
    return a, b


class Shape(NamedTuple):
    kind: str
    size: Any
    inner: Any = None


@lw.program
def areas(size, other, n):
    """Structure is plain, sizes are not."""
    shape: Any = Shape("disc", size, {"hole": other})
    total = 0.0
    while n > 0:
        for part in (shape, Shape("square", other), (size, other)):
            match part:
                case Shape("disc", r, {"hole": h}) if h < r:
                    total += 3.0 * (r * r - h * h)
                case Shape(kind="disc", size=r):
                    total += 3.0 * r * r
                case Shape("square", s, None):
                    total += s * s
                case (a, b) if a > b:
                    total -= a
        n -= 1
        size = size * 0.5
        shape = Shape("disc", size, {"hole": other})
    return total


def _complex(rng: np.random.Generator, n: int) -> np.ndarray:
    return (rng.uniform(1, 2, n) + 1j * rng.uniform(-2, -1, n)).astype(np.complex64)


CASES = (
    Case("never_entered", never_entered, inputs(floats(0.0, 9.0)), lax_form=lambda x: x),
    Case(
        "sometimes_entered",
        sometimes_entered,
        inputs(ints(0, 9), ints(-3, 5)),
        lax_form=sometimes_entered_lax,
    ),
    Case("forever_until", forever_until, inputs(ints(0, 60))),
    Case("while_else", while_else, inputs(ints(0, 9, 6), ints(0, 9))),
    Case("identity", identity, inputs(normals(3)), lax_form=lambda x: x, differentiable=(0,)),
    Case("always_two", always_two, inputs(ints(0, 9)), lax_form=lambda x: 2),
    Case(
        "straight_line",
        straight_line,
        inputs(normals(), floats(1.0, 2.0)),
        lax_form=lambda x, y: {
            "sum": jnp.sin(x) + y + 1.0,
            "pair": ((jnp.sin(x) + y) * y, -x),
        },
        differentiable=(0, 1),
    ),
    Case("nothing_comes_back", nothing_comes_back, inputs(ints(-5, 5))),
    Case("empty_arrays", empty_arrays, inputs(floats(0.0, 1.0, 3, 0), ints(0, 4))),
    Case("low_precision", low_precision, _small_floats, lax_form=low_precision_lax, rtol=0),
    Case("boolean_state", boolean_state, inputs(flags(5)), lax_form=boolean_state_lax),
    Case("complex_rotation", complex_rotation, inputs(_complex, ints(0, 7))),
    Case("carry_key", carry_key, inputs(keys(), ints(0, 6))),
    Case("choose_key", choose_key, inputs(keys(), flags())),
    Case(
        "mixed_widths",
        mixed_widths,
        inputs(
            ints(-60, 60, dtype=np.int8),
            ints(0, 255, dtype=np.uint8),
            ints(-3000, 3000, dtype=np.int16),
        ),
    ),
    Case("python_branches", python_branches, inputs(ints(-3, 9))),
    Case("checked", checked, inputs(ints(1, 3000))),
    Case("little_machine", little_machine, inputs(ints(0, 6, 9), ints(-9, 30))),
    Case(
        "areas",
        areas,
        inputs(floats(0.5, 3.0), floats(0.1, 2.0), ints(0, 6)),
        differentiable=(0, 1),
    ),
    Case("nested_choice", nested_choice, inputs(ints(-40, 40), ints(-5, 5))),
    Case("falls_through", falls_through, inputs(ints(-30, 30))),
    Case("deep_break", deep_break, inputs(ints(0, 8))),
    Case("int_and_float", int_and_float, inputs(floats(0.0, 1.0), ints(0, 5))),
    Case(
        "rule_with_array",
        rule_with_array,
        inputs(floats(0.0, 0.3), ints(0, 3)),
        rtol=1e-4,
        differentiable=(0,),
    ),
    Case(
        "counted_by_reference",
        counted_by_reference,
        inputs(floats(0.1, 3.0), ints(0, 7)),
        differentiable=(0,),
    ),
    Case("squashed", squashed, inputs(floats(-2.0, 2.0)), rtol=1e-4, differentiable=(0,)),
    Case(
        "large_state",
        large_state,
        inputs(normals(8, 4), ints(0, 16)),
        lax_form=large_state_lax,
        differentiable=(0,),
    ),
)
