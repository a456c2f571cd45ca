"""State that is a pytree: dicts, tuples, named tuples, dataclasses, Equinox modules; and the ways a
program may be called: methods, closures, keywords, defaults, static arguments."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from programs.case import Case, constant, floats, inputs, ints, normals


@lw.program
def bank(account, amounts):
    """A dict as the state of a loop, rebuilt where it changes."""
    for amount in amounts:
        if account["balance"] + amount < 0:
            account = {**account, "refused": account["refused"] + 1}
        else:
            account = dict(account, balance=account["balance"] + amount)
        if account["refused"] >= 2:
            break
    return account


def bank_lax(account, amounts):
    def body(account, amount):
        live = account["refused"] < 2
        refuse = account["balance"] + amount < 0
        return {
            "balance": account["balance"] + jnp.where(live & ~refuse, amount, 0),
            "refused": account["refused"] + (live & refuse),
        }, None

    return lax.scan(body, account, amounts)[0]


class Ball(NamedTuple):
    """A ball above the floor."""

    height: jax.Array
    speed: jax.Array


@lw.program
def bounce(ball, spring):
    """A named tuple as state, with `_replace`; counts bounces until the ball is slow."""
    bounces = jnp.int32(0)
    for _ in range(60):
        ball = Ball(ball.height + 0.1 * ball.speed, ball.speed - 0.5)
        if ball.height < 0.0:
            ball = ball._replace(height=-ball.height, speed=-spring * ball.speed)
            bounces += 1
            if ball.speed < 1.0:
                return ball, bounces
    return ball, -bounces


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Interval:
    """A dataclass JAX knows."""

    low: jax.Array
    high: jax.Array

    def middle(self):
        return 0.5 * (self.low + self.high)


@lw.program
def shrink(interval, target):
    """A dataclass as state, changed by `dataclasses.replace`, with an ordinary method."""
    while interval.high - interval.low > 0.01:
        if interval.middle() ** 3 < target:
            interval = dataclasses.replace(interval, low=interval.middle())
        else:
            interval = dataclasses.replace(interval, high=interval.middle())
    return interval


def shrink_lax(interval, target):
    def body(v):
        below = v.middle() ** 3 < target
        return Interval(jnp.where(below, v.middle(), v.low), jnp.where(below, v.high, v.middle()))

    return lax.while_loop(lambda v: v.high - v.low > 0.01, body, interval)


class Polynomial(eqx.Module):
    """A module with a static field, an array, and programs for methods."""

    coefficients: jax.Array
    rounds: int = eqx.field(static=True)

    @lw.program
    def __call__(self, x):
        total = jnp.zeros_like(x)
        for c in self.coefficients:
            total = total * x + c
        return total

    @lw.program
    def escape(self, x):
        """Iterates the polynomial until it leaves the unit interval."""
        for i in range(self.rounds):
            if jnp.abs(x) > 1.0:
                return x, i
            x = self(x)
        return x, -1

    @lw.program
    def nested(self, x, depth):
        """A method that calls itself."""
        if depth <= 0:
            return x
        return self(0.5 * self.nested(x, depth - 1))


@lw.program
def two_escapes(first, second, x):
    """Modules as arguments; the one to iterate is chosen by data."""
    if x < 0.0:
        y, i = first.escape(-x)
    else:
        y, i = second.escape(x)
    return y, i


@lw.program(static_argnames=("order", "mode"))
def smooth(x, order, mode="mean"):
    """`order` and `mode` are static: plain Python decides."""
    total = jnp.zeros_like(x)
    for i in range(order):
        if mode == "mean":
            total += jnp.sin((i + 1) * x) / order
        elif x > 1.0:
            total = jnp.maximum(total, jnp.cos((i + 1) * x))
    return total


@lw.program
def smooth_both(x):
    if x < 0.5:
        return smooth(x, order=3)
    return smooth(x, 4, mode="max")


@lw.program
def decay(x, rate=0.5, *, floor=0.1, limit=20):
    """Defaults and keyword-only arguments."""
    n = 0
    while x > floor and n < limit:
        x = x * rate
        n += 1
    return x, n


@lw.program
def decays(x, rate):
    x1, n1 = decay(x)
    x2, n2 = decay(x, rate)
    x3, n3 = decay(x, floor=1.0, rate=rate)
    return x1 + x2 + x3, n1 * 100 + n2 * 10 + n3


@lw.program
def options(x, scale=None, transform=jnp.tanh):
    """`None` and functions are static; what depends on them is plain Python."""
    if scale is not None:
        x = x * scale
    if x > 0.0:
        return transform(x)
    return -x


@lw.program
def options_user(x):
    return options(x), options(x, 3.0), options(x, transform=lambda v: v * v)


TABLE = jnp.array([0.5, 1.5, -1.0, 2.0], jnp.float32)


@lw.program
def closures(x, n):
    """Inner functions close over arguments, loop state and a global array."""
    weights = TABLE * x

    def pick(i):
        return weights[i % 4]

    bump = lambda v: v + pick(n)  # noqa: E731
    total = jnp.zeros_like(x)
    for i in range(n):
        total = bump(total) if pick(i) > 0.0 else total + 1.0
    return total


def make_counter(step):
    """A program made inside a function closes over its maker's array."""

    @lw.program
    def count_up(limit):
        total, n = jnp.zeros_like(step[0]), 0
        while total < limit:
            total = total + step[n % step.shape[0]]
            n += 1
        return n

    return count_up


count_by_table = make_counter(jnp.array([1.0, 0.25, 2.0], jnp.float32))


def count_by_table_lax(limit):
    step = jnp.array([1.0, 0.25, 2.0], jnp.float32)

    def body(state):
        return state[0] + step[state[1] % 3], state[1] + 1

    return lax.while_loop(lambda s: s[0] < limit, body, (jnp.float32(0.0), jnp.int32(0)))[1]


@lw.program
def unpacking(pair, n):
    """Nested tuples taken apart and put together; starred targets; swaps."""
    (a, b), (c, *rest) = pair
    while n > 0:
        (a, b), c = (b, c), a + b
        rest = [r + 1 for r in rest]
        n -= 1
    first, *others = a, b, c
    return (first, others), rest


@lw.program
def minimum_maximum(x, low, high):
    """Recursion that returns a dict, by halves of the range."""
    if high - low == 1:
        return {"min": x[low], "max": x[low], "where": (low, low)}
    middle = (low + high) // 2
    a = minimum_maximum(x, low, middle)
    b = minimum_maximum(x, middle, high)
    small = a if a["min"] <= b["min"] else b
    large = a if a["max"] >= b["max"] else b
    where = (small["where"][0], large["where"][1])
    return {"min": small["min"], "max": large["max"], "where": where}


def minimum_maximum_lax(x, low, high):
    i = jnp.arange(x.shape[0])
    inside = (low <= i) & (i < high)
    down, up = jnp.where(inside, x, jnp.inf), jnp.where(inside, x, -jnp.inf)
    where = (jnp.argmin(down).astype(jnp.int32), jnp.argmax(up).astype(jnp.int32))
    return {"min": jnp.min(down), "max": jnp.max(up), "where": where}


def _accounts(rng: np.random.Generator, n: int) -> tuple:
    account = {"balance": rng.integers(0, 30, n, np.int32), "refused": np.zeros(n, np.int32)}
    return account, rng.integers(-20, 12, (n, 8)).astype(np.int32)


def _balls(rng: np.random.Generator, n: int) -> tuple:
    height = rng.uniform(0.1, 2.0, n).astype(np.float32)
    ball = Ball(jnp.asarray(height), jnp.zeros(n, jnp.float32))
    return ball, rng.uniform(0.2, 0.8, n).astype(np.float32)


def _intervals(rng: np.random.Generator, n: int) -> tuple:
    high = rng.uniform(1.0, 4.0, n).astype(np.float32)
    interval = Interval(jnp.zeros(n, jnp.float32), jnp.asarray(high))
    return interval, rng.uniform(0.0, 1.0, n).astype(np.float32)


def _polynomial(rng: np.random.Generator, *shape: int) -> Polynomial:
    coefficients = rng.uniform(-1.5, 1.5, (*shape, 3)).astype(np.float32)
    return Polynomial(jnp.asarray(coefficients), 6)


def _escapes(rng: np.random.Generator, n: int) -> tuple:
    x = rng.uniform(-0.9, 0.9, n).astype(np.float32)
    return _polynomial(rng, n), _polynomial(rng), x


def _nests(rng: np.random.Generator, n: int) -> tuple:
    x = rng.uniform(0.1, 0.9, n).astype(np.float32)
    return (
        Polynomial(jnp.array([0.2, 0.5, 0.4], jnp.float32), 6),
        x,
        rng.integers(0, 6, n, np.int32),
    )


def _pairs(rng: np.random.Generator, n: int) -> tuple:
    draw = lambda: rng.integers(0, 5, n).astype(np.int32)  # noqa: E731
    return ((draw(), draw()), (draw(), draw(), draw())), rng.integers(0, 8, n, np.int32)


def _halves(rng: np.random.Generator, n: int) -> tuple:
    low = rng.integers(0, 4, n).astype(np.int32)
    return rng.permuted(np.tile(np.arange(10, dtype=np.float32), (n, 1)), axis=1), low, low + 6


CASES = (
    Case("bank", bank, _accounts, lax_form=bank_lax),
    Case("bounce", bounce, _balls, rtol=1e-4),
    Case("shrink", shrink, _intervals, lax_form=shrink_lax),
    Case("two_escapes", two_escapes, _escapes, in_axes=(0, None, 0), rtol=1e-3),
    Case(
        "module_method",
        Polynomial.nested,
        _nests,
        in_axes=(None, 0, 0),
        differentiable=(1,),
        recursive=True,
    ),
    Case("smooth_both", smooth_both, inputs(floats(-1.0, 2.0)), differentiable=(0,)),
    Case("decays", decays, inputs(floats(0.05, 9.0), floats(0.3, 0.9)), differentiable=(0, 1)),
    Case("options_user", options_user, inputs(normals()), differentiable=(0,)),
    Case("closures", closures, inputs(floats(0.5, 2.0), ints(0, 9)), differentiable=(0,)),
    Case(
        "count_by_table",
        count_by_table,
        inputs(floats(-1.0, 20.0)),
        lax_form=count_by_table_lax,
    ),
    Case("unpacking", unpacking, _pairs),
    Case(
        "minimum_maximum",
        minimum_maximum,
        _halves,
        lax_form=minimum_maximum_lax,
        recursive=True,
    ),
    Case(
        "shared_dict",
        lw.program(lambda weights, x: x @ weights["w"] + weights["b"]),
        inputs(constant({"w": np.ones((2, 3), np.float32), "b": np.float32(0.5)}), normals(2)),
        in_axes=({"w": None, "b": None}, 0),
        lax_form=lambda weights, x: x @ weights["w"] + weights["b"],
        differentiable=(1,),
    ),
)
