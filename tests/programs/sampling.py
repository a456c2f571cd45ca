"""Samplers: a random key for each lane, and loops that end by chance."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random

import lanewise as lw
from programs.case import Case, constant, floats, inputs, ints, keys


@lw.program
def point_in_disk(key):
    """Rejection: draw from the square until the point falls inside the circle."""
    tries = jnp.int32(0)
    while True:
        key, sub = random.split(key)
        point = random.uniform(sub, (2,), jnp.float32, -1.0, 1.0)
        tries += 1
        if point @ point <= 1.0:
            break
    return point, tries


def point_in_disk_lax(key):
    def body(state):
        key, _, tries = state
        key, sub = random.split(key)
        return key, random.uniform(sub, (2,), jnp.float32, -1.0, 1.0), tries + 1

    start = (key, jnp.full(2, 2.0, jnp.float32), jnp.int32(0))
    return lax.while_loop(lambda s: s[1] @ s[1] > 1.0, body, start)[1:]


@lw.program
def truncated_normal(key, low):
    """Robert's exponential rejection far out in the tail, plain rejection near the middle."""
    for _ in range(40):
        key, first, second = random.split(key, 3)
        if low > 0.5:
            x = low + random.exponential(first, (), jnp.float32) / low
            accept = random.uniform(second, (), jnp.float32) < jnp.exp(-0.5 * (x - low) ** 2)
        else:
            x = random.normal(first, (), jnp.float32)
            accept = x > low
        if accept:
            return x
    return low


@lw.program
def poisson(key, rate):
    """Knuth's product of uniforms."""
    limit = jnp.exp(-rate)
    count = 0
    product = random.uniform(key, (), jnp.float32)
    while product > limit:
        key, sub = random.split(key)
        product *= random.uniform(sub, (), jnp.float32)
        count += 1
    return count


def poisson_lax(key, rate):
    def body(state):
        key, product, count = state
        key, sub = random.split(key)
        return key, product * random.uniform(sub, (), jnp.float32), count + 1

    start = (key, random.uniform(key, (), jnp.float32), jnp.int32(0))
    return lax.while_loop(lambda s: s[1] > jnp.exp(-rate), body, start)[2]


@lw.program
def random_walk(key, barrier):
    """Steps left or right until it meets the barrier; the path is kept as a history."""
    path = jnp.zeros(24, jnp.int8)
    position = jnp.int8(0)
    t = 0
    while jnp.abs(position) < barrier and t < 24:
        step = random.bernoulli(random.fold_in(key, t))
        position = position + jnp.where(step, 1, -1).astype(jnp.int8)
        path = path.at[t].set(position)
        t += 1
    return path, t


def random_walk_lax(key, barrier):
    def body(state):
        path, position, t = state
        step = random.bernoulli(random.fold_in(key, t))
        position = position + jnp.where(step, 1, -1).astype(jnp.int8)
        return path.at[t].set(position), position, t + 1

    def unfinished(state):
        return (jnp.abs(state[1]) < barrier) & (state[2] < 24)

    start = (jnp.zeros(24, jnp.int8), jnp.int8(0), jnp.int32(0))
    path, _, t = lax.while_loop(unfinished, body, start)
    return path, t


@lw.program
def branching_process(key, depth):
    """Descendants of one ancestor: a loop over children, a call and a key for each."""
    if depth == 0:
        return jnp.int32(1)
    key, sub = random.split(key)
    total = jnp.int32(1)
    for child in range(random.randint(sub, (), 0, 3, jnp.int32)):
        total += branching_process(random.fold_in(key, child), depth - 1)
    return total


def log_density(x):
    """A correlated Gaussian with a gentle quartic."""
    return -0.5 * (x @ x) - 0.3 * x[0] * x[1] - 0.02 * jnp.sum(x**4)


@lw.program
def metropolis(key, x, steps):
    accepted = jnp.int32(0)
    for i in range(steps):
        first, second = random.split(random.fold_in(key, i))
        proposal = x + 0.8 * random.normal(first, x.shape, x.dtype)
        ratio = log_density(proposal) - log_density(x)
        if jnp.log(random.uniform(second, (), jnp.float32)) < ratio:
            x = proposal
            accepted += 1
    return x, accepted


def metropolis_lax(key, x, steps):
    def body(i, state):
        x, accepted = state
        first, second = random.split(random.fold_in(key, i))
        proposal = x + 0.8 * random.normal(first, x.shape, x.dtype)
        ratio = log_density(proposal) - log_density(x)
        accept = jnp.log(random.uniform(second, (), jnp.float32)) < ratio
        return jnp.where(accept, proposal, x), accepted + accept

    return lax.fori_loop(0, steps, body, (x, jnp.int32(0)))


@lw.program
def slice_sample(key, x):
    """One slice update: step out, then shrink until a point is accepted."""
    key, k1, k2 = random.split(key, 3)
    height = log_density(x) - random.exponential(k1, (), jnp.float32)
    axis = jnp.array([1.0, 0.5], jnp.float32)
    low = -random.uniform(k2, (), jnp.float32)
    high = low + 1.0
    while log_density(x + low * axis) > height:
        low -= 1.0
    while log_density(x + high * axis) > height:
        high += 1.0
    for _ in range(30):
        key, sub = random.split(key)
        shift = low + (high - low) * random.uniform(sub, (), jnp.float32)
        if log_density(x + shift * axis) > height:
            return x + shift * axis
        if shift < 0.0:
            low = shift
        else:
            high = shift
    return x


def leapfrog(x, momentum, step):
    momentum = momentum + 0.5 * step * jax.grad(log_density)(x)
    x = x + step * momentum
    return x, momentum + 0.5 * step * jax.grad(log_density)(x)


@lw.program
def hamiltonian(key, x, step):
    """Hamiltonian Monte Carlo with trajectories of random length."""
    for i in range(3):
        k1, k2, k3 = random.split(random.fold_in(key, i), 3)
        momentum = random.normal(k1, x.shape, x.dtype)
        before = log_density(x) - 0.5 * momentum @ momentum
        new, speed = x, momentum
        for _ in range(random.randint(k2, (), 1, 9, jnp.int32)):
            new, speed = leapfrog(new, speed, step)
        after = log_density(new) - 0.5 * speed @ speed
        if jnp.log(random.uniform(k3, (), jnp.float32)) < after - before:
            x = new
    return x


def hamiltonian_lax(key, x, step):
    def update(i, x):
        k1, k2, k3 = random.split(random.fold_in(key, i), 3)
        momentum = random.normal(k1, x.shape, x.dtype)
        before = log_density(x) - 0.5 * momentum @ momentum
        length = random.randint(k2, (), 1, 9, jnp.int32)
        new, speed = lax.fori_loop(
            0, length, lambda _, s: leapfrog(s[0], s[1], step), (x, momentum)
        )
        after = log_density(new) - 0.5 * speed @ speed
        accept = jnp.log(random.uniform(k3, (), jnp.float32)) < after - before
        return jnp.where(accept, new, x)

    return lax.fori_loop(0, 3, update, x)


class Tree(NamedTuple):
    """A trajectory of the no-U-turn sampler: its two ends, a draw, its weight, and its health."""

    x_left: jax.Array
    p_left: jax.Array
    x_right: jax.Array
    p_right: jax.Array
    draw: jax.Array
    weight: jax.Array
    going: jax.Array


def straight(tree: Tree):
    """Whether the two ends still move apart."""
    span = tree.x_right - tree.x_left
    return (span @ tree.p_left >= 0.0) & (span @ tree.p_right >= 0.0)


def join(a: Tree, b: Tree, forward, draw):
    """The tree of `a` and `b`, where `b` was grown forward or backward from `a`."""
    return Tree(
        x_left=jnp.where(forward, a.x_left, b.x_left),
        p_left=jnp.where(forward, a.p_left, b.p_left),
        x_right=jnp.where(forward, b.x_right, a.x_right),
        p_right=jnp.where(forward, b.p_right, a.p_right),
        draw=draw,
        weight=jnp.logaddexp(a.weight, b.weight),
        going=a.going & b.going,
    )


@lw.program
def build_tree(key, x, momentum, forward, depth, step, start_energy):
    """Doubles a trajectory by calling itself twice; the second call only if the first went well."""
    if depth == 0:
        new, speed = leapfrog(x, momentum, jnp.where(forward, step, -step))
        weight = log_density(new) - 0.5 * speed @ speed - start_energy
        return Tree(new, speed, new, speed, new, weight, weight > -100.0)
    k1, k2, k3 = random.split(key, 3)
    tree = build_tree(k1, x, momentum, forward, depth - 1, step, start_energy)
    if tree.going:
        if forward:
            x, momentum = tree.x_right, tree.p_right
        else:
            x, momentum = tree.x_left, tree.p_left
        more = build_tree(k2, x, momentum, forward, depth - 1, step, start_energy)
        share = jnp.exp(more.weight - jnp.logaddexp(tree.weight, more.weight))
        take = random.uniform(k3, (), jnp.float32) < share
        tree = join(tree, more, forward, jnp.where(take, more.draw, tree.draw))
        tree = tree._replace(going=tree.going & straight(tree))
    return tree


@lw.program
def recursive_nuts(key, x, step):
    """One draw of the no-U-turn sampler, by recursive doubling."""
    key, sub = random.split(key)
    momentum = random.normal(sub, x.shape, x.dtype)
    energy = log_density(x) - 0.5 * momentum @ momentum
    tree = Tree(x, momentum, x, momentum, x, jnp.float32(0.0), jnp.array(True))
    depth = jnp.int32(0)
    while tree.going and depth < 4:
        key, k1, k2, k3 = random.split(key, 4)
        forward = random.bernoulli(k1)
        if forward:
            more = build_tree(k2, tree.x_right, tree.p_right, forward, depth, step, energy)
        else:
            more = build_tree(k2, tree.x_left, tree.p_left, forward, depth, step, energy)
        take = random.uniform(k3, (), jnp.float32) < jnp.exp(more.weight - tree.weight)
        draw = jnp.where(more.going & take, more.draw, tree.draw)
        tree = join(tree, more, forward, draw)
        tree = tree._replace(going=tree.going & straight(tree))
        depth += 1
    return tree.draw, depth


@lw.program
def iterative_nuts(key, x, step):
    """The same sampler without recursion: left ends of open subtrees wait in a small table.

    Leaf `i` of a subtree is even where it opens subtrees and odd where it closes as many as it has
    trailing one bits; each of those is checked against the left end stored for it.
    """
    key, sub = random.split(key)
    momentum = random.normal(sub, x.shape, x.dtype)
    energy = log_density(x) - 0.5 * momentum @ momentum
    tree = Tree(x, momentum, x, momentum, x, jnp.float32(0.0), jnp.array(True))
    depth = jnp.int32(0)
    while tree.going and depth < 4:
        key, k1, k2, k3 = random.split(key, 4)
        forward = random.bernoulli(k1)
        at = tree.x_right if forward else tree.x_left
        speed = tree.p_right if forward else tree.p_left
        signed = jnp.where(forward, step, -step)
        xs, ps = jnp.zeros((4, *x.shape), x.dtype), jnp.zeros((4, *x.shape), x.dtype)
        draw = at
        weight = jnp.float32(-jnp.inf)
        going = jnp.array(True)
        leaf = jnp.int32(0)
        while going and leaf < (1 << depth):
            at, speed = leapfrog(at, speed, signed)
            new = log_density(at) - 0.5 * speed @ speed - energy
            going = new > -100.0
            weight = jnp.logaddexp(weight, new)
            if random.uniform(random.fold_in(k2, leaf), (), jnp.float32) < jnp.exp(new - weight):
                draw = at
            slot = lax.population_count(leaf >> 1)
            if leaf % 2 == 0:
                xs, ps = xs.at[slot].set(at), ps.at[slot].set(speed)
            else:
                closing = leaf
                while going and closing % 2 == 1:
                    span = (at - xs[slot]) * jnp.sign(signed)
                    going = span @ ps[slot] >= 0.0 and span @ speed >= 0.0
                    slot -= 1
                    closing = closing >> 1
            leaf += 1
        more = Tree(at, speed, at, speed, draw, weight, going)
        take = random.uniform(k3, (), jnp.float32) < jnp.exp(weight - tree.weight)
        tree = join(tree, more, forward, jnp.where(going & take, draw, tree.draw))
        tree = tree._replace(going=tree.going & straight(tree))
        depth += 1
    return tree.draw, depth


@lw.program
def hardware_walk(key, n):
    """A walk by XLA's own generator: JAX draws for a batch of such keys from the first of them."""
    place = 0.0
    while n > 0 and abs(place) < 3.0:
        key, step = jax.random.split(key)
        place += jax.random.normal(step)
        if jax.random.bernoulli(jax.random.fold_in(step, n)):
            place -= jax.random.uniform(key)
        n -= 1
    return place


CASES = (
    Case(
        "hardware_walk",
        hardware_walk,
        inputs(keys("unsafe_rbg"), ints(0, 12)),
        ticks_only=True,
    ),
    Case("point_in_disk", point_in_disk, inputs(keys()), lax_form=point_in_disk_lax),
    Case("truncated_normal", truncated_normal, inputs(keys(), floats(-2.0, 4.0)), rtol=1e-4),
    Case("poisson", poisson, inputs(keys(), floats(0.1, 8.0)), lax_form=poisson_lax),
    Case(
        "random_walk",
        random_walk,
        inputs(keys(), ints(1, 6)),
        lax_form=random_walk_lax,
    ),
    Case("branching_process", branching_process, inputs(keys(), ints(0, 4)), recursive=True),
    Case(
        "metropolis",
        metropolis,
        inputs(keys(), floats(-1.0, 1.0, 3), ints(0, 8)),
        lax_form=metropolis_lax,
        rtol=1e-4,
    ),
    Case("slice_sample", slice_sample, inputs(keys(), floats(-2.0, 2.0, 2)), rtol=1e-3),
    Case(
        "hamiltonian",
        hamiltonian,
        inputs(keys(), floats(-1.0, 1.0, 4), floats(0.05, 0.4)),
        lax_form=hamiltonian_lax,
        rtol=1e-3,
        heavy=True,
    ),
    Case(
        "recursive_nuts",
        recursive_nuts,
        inputs(keys(), floats(-1.0, 1.0, 3), floats(0.1, 0.9)),
        rtol=1e-3,
        recursive=True,
        heavy=True,
    ),
    Case(
        "iterative_nuts",
        iterative_nuts,
        inputs(keys(), floats(-1.0, 1.0, 3), constant(jnp.float32(0.3))),
        in_axes=(0, 0, None),
        rtol=1e-3,
        heavy=True,
    ),
)
