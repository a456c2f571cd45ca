"""Numerical methods whose amount of work depends on the data."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from programs.case import Case, floats, inputs, ints


@lw.program
def newton_sqrt(x):
    guess = jnp.maximum(x, 1.0)
    error = jnp.abs(guess * guess - x)
    while error > 1e-3 * x:
        guess = 0.5 * (guess + x / guess)
        error = jnp.abs(guess * guess - x)
    return guess


def newton_sqrt_lax(x):
    def unfinished(guess):
        return jnp.abs(guess * guess - x) > 1e-3 * x

    return lax.while_loop(unfinished, lambda g: 0.5 * (g + x / g), jnp.maximum(x, 1.0))


@lw.program
def newton_root(f_shift, start):
    """Newton's method with a derivative taken inside the program; gives up after 30 steps."""

    def f(x):
        return x**3 + x - f_shift

    x = start
    for step in range(30):
        value, slope = jax.value_and_grad(f)(x)
        if jnp.abs(value) < 1e-2:
            return x, step
        x = x - value / slope
    return x, -1


@lw.program
def bisection(target):
    low, high = jnp.float32(0.0), jnp.float32(8.0)
    steps = jnp.int32(0)
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        if middle * jnp.exp(0.25 * middle) < target:
            low = middle
        else:
            high = middle
        steps += 1
    return low, steps


def bisection_lax(target):
    def body(state):
        low, high, steps = state
        middle = 0.5 * (low + high)
        below = middle * jnp.exp(0.25 * middle) < target
        low, high = jnp.where(below, middle, low), jnp.where(below, high, middle)
        return low, high, steps + 1

    start = (jnp.float32(0.0), jnp.float32(8.0), jnp.int32(0))
    low, _, steps = lax.while_loop(lambda s: s[1] - s[0] > 1e-3, body, start)
    return low, steps


@lw.program
def geometric_mean(a, b):
    """The arithmetic-geometric mean; lanes need one to six rounds."""
    while jnp.abs(a - b) > 1e-3 * jnp.abs(a):
        a, b = 0.5 * (a + b), jnp.sqrt(a * b)
    return a


def geometric_mean_lax(a, b):
    def body(s):
        return 0.5 * (s[0] + s[1]), jnp.sqrt(s[0] * s[1])

    return lax.while_loop(lambda s: jnp.abs(s[0] - s[1]) > 1e-3 * jnp.abs(s[0]), body, (a, b))[0]


@lw.program
def exponential_series(x):
    term = jnp.ones_like(x)
    total = term
    n = 1.0
    while jnp.abs(term) > 1e-4:
        term = term * x / n
        total += term
        n += 1.0
    return total


def exponential_series_lax(x):
    def body(state):
        total, term, n = state
        term = term * x / n
        return total + term, term, n + 1.0

    start = (jnp.ones_like(x), jnp.ones_like(x), jnp.float32(1.0))
    return lax.while_loop(lambda s: jnp.abs(s[1]) > 1e-4, body, start)[0]


@lw.program
def escape_time(c):
    """The Mandelbrot iteration on complex64."""
    z = jnp.zeros_like(c)
    n = jnp.int32(0)
    while n < 40 and jnp.abs(z) <= 2.0:
        z = z * z + c
        n += 1
    return n


def escape_time_lax(c):
    def unfinished(state):
        z, n = state
        return (n < 40) & (jnp.abs(z) <= 2.0)

    start = (jnp.zeros_like(c), jnp.int32(0))
    return lax.while_loop(unfinished, lambda s: (s[0] * s[0] + c, s[1] + 1), start)[1]


@lw.program
def matrix_power(matrix, exponent):
    answer = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    while exponent > 0:
        if exponent % 2 == 1:
            answer = answer @ matrix
        exponent //= 2
        if exponent > 0:
            matrix = matrix @ matrix
    return answer


def matrix_power_lax(matrix, exponent):
    def body(state):
        answer, square, exponent = state
        answer = lax.cond(exponent % 2 == 1, lambda a: a @ square, lambda a: a, answer)
        return answer, square @ square, exponent // 2

    start = (jnp.eye(matrix.shape[0], dtype=matrix.dtype), matrix, exponent)
    return lax.while_loop(lambda s: s[2] > 0, body, start)[0]


@lw.program
def power_iteration(matrix):
    """The largest eigenvalue of a positive matrix, to the accuracy each lane needs."""
    vector = jnp.ones(matrix.shape[0], matrix.dtype)
    value = jnp.float32(0.0)
    for _ in range(60):
        product = matrix @ vector
        new = jnp.max(product)
        vector = product / new
        if jnp.abs(new - value) < 1e-4 * new:
            break
        value = new
    return value


@lw.program
def conjugate_gradients(matrix, target):
    x = jnp.zeros_like(target)
    residual = target
    direction = residual
    size = residual @ residual
    while size > 1e-4:
        image = matrix @ direction
        along = size / (direction @ image)
        x = x + along * direction
        residual = residual - along * image
        new_size = residual @ residual
        direction = residual + (new_size / size) * direction
        size = new_size
    return x


def conjugate_gradients_lax(matrix, target):
    def body(state):
        x, residual, direction, size = state
        image = matrix @ direction
        along = size / (direction @ image)
        residual = residual - along * image
        new_size = residual @ residual
        return x + along * direction, residual, residual + new_size / size * direction, new_size

    start = (jnp.zeros_like(target), target, target, target @ target)
    return lax.while_loop(lambda s: s[3] > 1e-4, body, start)[0]


@lw.program
def golden_section(center, width):
    ratio = 0.618034
    low, high = center - width, center + 2.0 * width
    while high - low > 0.05:
        a = high - ratio * (high - low)
        b = low + ratio * (high - low)
        low, high = (low, b) if jnp.cosh(a - center) < jnp.cosh(b - center) else (a, high)
    return 0.5 * (low + high)


def _van_der_pol(stiffness, y):
    return jnp.stack([y[1], stiffness * (1.0 - y[0] ** 2) * y[1] - y[0]])


@lw.program
def runge_kutta_45(stiffness, y, end):
    """Fehlberg's pair with step control: rejected steps are tried again, smaller."""
    t = jnp.zeros_like(end)
    h = jnp.full_like(end, 0.1)
    accepted = jnp.int32(0)
    while t < end and accepted < 200:
        h = jnp.minimum(h, end - t)
        k1 = _van_der_pol(stiffness, y)
        k2 = _van_der_pol(stiffness, y + h * (k1 / 4))
        k3 = _van_der_pol(stiffness, y + h * (3 * k1 + 9 * k2) / 32)
        k4 = _van_der_pol(stiffness, y + h * (1932 * k1 - 7200 * k2 + 7296 * k3) / 2197)
        k5 = _van_der_pol(
            stiffness, y + h * (439 / 216 * k1 - 8 * k2 + 3680 / 513 * k3 - 845 / 4104 * k4)
        )
        k6 = _van_der_pol(
            stiffness,
            y + h * (2 * k2 - 8 / 27 * k1 - 3544 / 2565 * k3 + 1859 / 4104 * k4 - 11 / 40 * k5),
        )
        error = h * jnp.max(
            jnp.abs(k1 / 360 - 128 / 4275 * k3 - 2197 / 75240 * k4 + k5 / 50 + 2 / 55 * k6)
        )
        if error <= 1e-2:
            y = y + h * (25 / 216 * k1 + 1408 / 2565 * k3 + 2197 / 4104 * k4 - k5 / 5)
            t = t + h
            accepted += 1
        h = h * jnp.clip(0.9 * (1e-2 / (error + 1e-8)) ** 0.2, 0.2, 4.0)
    return y


@lw.program
def backtracking_descent(start, tilt):
    """Gradient descent; an inner loop halves the step until it descends enough."""

    def f(x):
        return jnp.sum(tilt * x**2 + 0.1 * x**4)

    x = start
    for _ in range(8):
        value, slope = jax.value_and_grad(f)(x)
        square = slope @ slope
        if square < 1e-2:
            break
        step = 1.0
        while f(x - step * slope) > value - 0.3 * step * square:
            step = 0.5 * step
            if step < 1e-3:
                break
        x = x - step * slope
    return x, f(x)


def _bowl(x, center):
    u = x - center
    return u[0] ** 2 + 2.0 * u[1] ** 2 + 0.5 * u[0] * u[1] + 0.1 * jnp.sum(u**4)


@lw.program
def nelder_mead(start, center):
    """A dozen moves of the simplex in the plane: reflect, contract or shrink."""
    points = jnp.stack([start, start + jnp.array([0.9, 0.1]), start + jnp.array([-0.2, 1.1])])
    points = points.astype(start.dtype)
    values = jnp.stack([_bowl(p, center) for p in points])
    moves = jnp.int32(0)
    while jnp.max(values) - jnp.min(values) > 0.05 and moves < 12:
        order = jnp.argsort(values)
        points, values = points[order], values[order]
        middle = 0.5 * (points[0] + points[1])
        reflected = 2.0 * middle - points[2]
        value = _bowl(reflected, center)
        if value < values[0]:
            further = 3.0 * middle - 2.0 * points[2]
            further_value = _bowl(further, center)
            if further_value < value:
                reflected, value = further, further_value
            points, values = points.at[2].set(reflected), values.at[2].set(value)
        elif value < values[1]:
            points, values = points.at[2].set(reflected), values.at[2].set(value)
        else:
            inner = 0.5 * (middle + points[2])
            inner_value = _bowl(inner, center)
            if inner_value < values[2]:
                points, values = points.at[2].set(inner), values.at[2].set(inner_value)
            else:
                points = 0.5 * (points + points[0])
                values = jax.vmap(lambda p: _bowl(p, center))(points)
        moves += 1
    best = jnp.argmin(values)
    return points[best], values[best], moves


@lw.program
def lbfgs_direction(slope, moves, changes, count):
    """The two-loop recursion over the newest `count` pairs of a history of four."""
    direction = slope
    weights = jnp.zeros(4, slope.dtype)
    for i in range(count - 1, -1, -1):
        weight = (moves[i] @ direction) / (changes[i] @ moves[i])
        weights = weights.at[i].set(weight)
        direction = direction - weight * changes[i]
    if count > 0:
        newest = changes[count - 1]
        direction = direction * (moves[count - 1] @ newest) / (newest @ newest)
    for i in range(count):
        other = (changes[i] @ direction) / (changes[i] @ moves[i])
        direction = direction + moves[i] * (weights[i] - other)
    return -direction


def lbfgs_direction_lax(slope, moves, changes, count):
    def first(k, state):
        direction, weights = state
        i = count - 1 - k
        weight = (moves[i] @ direction) / (changes[i] @ moves[i])
        return direction - weight * changes[i], weights.at[i].set(weight)

    direction, weights = lax.fori_loop(0, count, first, (slope, jnp.zeros(4, slope.dtype)))
    last = jnp.maximum(count - 1, 0)
    scale = (moves[last] @ changes[last]) / (changes[last] @ changes[last])
    direction = jnp.where(count > 0, scale, 1.0) * direction

    def second(i, direction):
        other = (changes[i] @ direction) / (changes[i] @ moves[i])
        return direction + moves[i] * (weights[i] - other)

    return -lax.fori_loop(0, count, second, direction)


def _points_near_circle(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    c = rng.uniform(-2.0, 0.6, n) + 1j * rng.uniform(-1.2, 1.2, n)
    return (c.astype(np.complex64),)


def _contractions(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    matrix = rng.uniform(0.05, 0.55, (n, 3, 3)).astype(np.float32)
    return matrix, rng.integers(0, 12, n).astype(np.int32)


def _positive_definite(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    root = rng.normal(size=(n, 4, 4)) * rng.choice([0.0, 0.1, 0.4], (n, 1, 1))
    matrix = np.eye(4) + root @ np.swapaxes(root, 1, 2)
    return matrix.astype(np.float32), rng.uniform(0.5, 2.0, (n, 4)).astype(np.float32)


def _histories(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    moves = rng.normal(size=(n, 4, 3))
    changes = moves * rng.uniform(0.5, 2.0, (n, 1, 3))
    slope, count = rng.normal(size=(n, 3)), rng.integers(0, 5, n).astype(np.int32)
    return *(x.astype(np.float32) for x in (slope, moves, changes)), count


def rough(x):
    """A smooth energy of a chain of points, too long to be compiled at every place it is used."""
    bonds = x[1:] - x[:-1]
    bends = bonds[1:] * bonds[:-1]
    wells = jnp.sum(jnp.log1p(x * x)) + 0.3 * jnp.sum(jnp.sin(x) * jnp.cos(0.5 * x))
    pulls = jnp.sum(jnp.exp(-0.1 * bonds * bonds)) - 0.05 * jnp.sum(bends * bends)
    return wells - pulls + 0.2 * jnp.tanh(x @ jnp.linspace(0.0, 1.0, x.size, dtype=x.dtype))


@lw.program
def rough_pieces(x, depth):
    """A recursion that asks for the energy at its leaves and on its way back, along two ways."""
    if depth == 0:
        return rough(x)
    near = rough_pieces(0.7 * x, depth - 1)
    if near > 3.0:
        return near + 0.5 * rough(jnp.flip(x))
    return near - 0.25 * rough(x + near) + rough_pieces(1.1 * x + 0.1, depth - 1)


CASES = (
    Case(
        "newton_sqrt",
        newton_sqrt,
        inputs(floats(0.01, 900.0)),
        lax_form=newton_sqrt_lax,
        differentiable=(0,),
    ),
    Case(
        "newton_root",
        newton_root,
        inputs(floats(-30.0, 30.0), floats(-2.0, 6.0)),
        rtol=1e-4,
        differentiable=(0,),
    ),
    Case("bisection", bisection, inputs(floats(0.1, 40.0)), lax_form=bisection_lax, rtol=1e-4),
    Case(
        "geometric_mean",
        geometric_mean,
        inputs(floats(0.1, 1.0), floats(1.0, 500.0)),
        lax_form=geometric_mean_lax,
        differentiable=(0, 1),
    ),
    Case(
        "exponential_series",
        exponential_series,
        inputs(floats(0.0, 6.0)),
        lax_form=exponential_series_lax,
        differentiable=(0,),
    ),
    Case("escape_time", escape_time, _points_near_circle, lax_form=escape_time_lax),
    Case(
        "matrix_power",
        matrix_power,
        _contractions,
        lax_form=matrix_power_lax,
        differentiable=(0,),
    ),
    Case("power_iteration", power_iteration, inputs(floats(0.1, 1.0, 3, 3)), rtol=1e-3),
    Case(
        "conjugate_gradients",
        conjugate_gradients,
        _positive_definite,
        lax_form=conjugate_gradients_lax,
        rtol=1e-3,
        differentiable=(0, 1),
    ),
    Case("golden_section", golden_section, inputs(floats(-2.0, 2.0), floats(0.01, 2.0)), rtol=1e-3),
    Case(
        "runge_kutta_45",
        runge_kutta_45,
        inputs(floats(0.1, 2.0), floats(0.5, 2.0, 2), floats(0.0, 3.0)),
        rtol=1e-3,
        differentiable=(0, 1),
        heavy=True,
    ),
    Case(
        "backtracking_descent",
        backtracking_descent,
        inputs(floats(0.2, 3.0, 3), floats(0.3, 3.0, 3)),
        rtol=1e-3,
        differentiable=(0, 1),
    ),
    Case(
        "nelder_mead",
        nelder_mead,
        inputs(floats(0.5, 3.0, 2), floats(-1.0, 0.0, 2)),
        rtol=1e-3,
        heavy=True,
    ),
    Case(
        "lbfgs_direction",
        lbfgs_direction,
        _histories,
        lax_form=lbfgs_direction_lax,
        rtol=1e-3,
        differentiable=(0, 1, 2),
    ),
    Case(
        "rough_pieces",
        rough_pieces,
        inputs(floats(-1.0, 1.0, 12), ints(0, 3)),
        rtol=1e-4,
        differentiable=(0,),
        recursive=True,
        heavy=True,
    ),
)
