"""RSBench: cross sections from poles of resonances, differentiated in the poles.

A nuclide's energy range is divided into windows of about ten poles each; a lookup sums a complex function of its
distance to each pole of its window over the poles of all nuclides of its material. Far from a pole, which is nearly
always, the function is a short rational one; within six units it is a long sum (the originals' fast forms of the
Faddeeva function, Tramm et al., https://github.com/ANL-CESAR/RSBench, with temperature). The derivative is that of a
sum of all answers, with random weights, in the poles, as Schenck et al. 2022 take it (10.2 million lookups on a GPU;
here 10,000, 1,000 poles and 100 windows a nuclide on average). float64.

Ours is a program of one pole's contribution with a real branch, whose lanes are all poles that any lookup sums.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from ad.case import Case, Entry, Pair, Torch, cotangent, weighted_sum
from ad.reactor import NUCLIDES, draw
from lanewise import arrays

POLES, WINDOWS, ORDERS = 1000, 100, 4
SCALE = 152.5  # spreads the poles so that one in two hundred is near
NEAR = 6.0
TERMS = (
    (2.758402e-01, 9.869604e00),
    (2.245740e-01, 3.947842e01),
    (1.594149e-01, 8.882644e01),
    (9.866577e-02, 1.579137e02),
    (5.324414e-02, 2.467401e02),
    (2.505215e-02, 3.553058e02),
    (1.027747e-02, 4.836106e02),
    (3.676164e-03, 6.316547e02),
    (1.146494e-03, 7.994380e02),
    (3.117570e-04, 9.869604e02),
)
# Complex numbers are pairs: every system and carrier differentiates these alike.
Complex = tuple[Any, Any]


def times(a: Complex, b: Complex) -> Complex:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def over(a: Complex, b: Complex) -> Complex:
    size = b[0] * b[0] + b[1] * b[1]
    return (a[0] * b[0] + a[1] * b[1]) / size, (a[1] * b[0] - a[0] * b[1]) / size


def far(z: Complex) -> Complex:
    """The rational form."""
    square = times(z, z)
    first = over((0.5124242247547685, 0.0), (square[0] - 0.27525512860841095, square[1]))
    second = over((0.05176535879298782, 0.0), (square[0] - 2.724744871391589, square[1]))
    return times((-z[1], z[0]), (first[0] + second[0], first[1] + second[1]))


def quick_exp(x: Any) -> Any:
    """(1 + x / 4096) to the 4096th, as the original has it."""
    x = 1.0 + x * 0.000244140625
    for _ in range(12):
        x = x * x
    return x


def near(z: Complex, xp: Any) -> Complex:
    """The sum of ten terms."""
    size = quick_exp(-12.0 * z[1])
    wave = size * xp.cos(12.0 * z[0]), size * xp.sin(12.0 * z[0])
    first = over((wave[1], 1.0 - wave[0]), (12.0 * z[0], 12.0 * z[1]))
    square = times(z, z)
    sums: Complex = (0.0, 0.0)
    for n, (weight, left) in enumerate(TERMS):
        sign = 1.0 if n % 2 else -1.0
        term = over(
            (sign * wave[0] - 1.0, sign * wave[1]), (left - 144.0 * square[0], -144.0 * square[1])
        )
        sums = sums[0] + weight * term[0], sums[1] + weight * term[1]
    rest = times((0.0, 81.2433), times(z, sums))
    return first[0] + rest[0], first[1] + rest[1]


def contribution(pole: Any, factor: Any, faddeeva: Complex) -> tuple[Any, Any, Any]:
    """To the total, absorption and fission cross sections."""
    turned = times(faddeeva, (factor[0], factor[1]))
    return (
        times((pole[2], pole[3]), turned)[0],
        times((pole[4], pole[5]), faddeeva)[0],
        times((pole[6], pole[7]), faddeeva)[0],
    )


# -- ours --------------------------------------------------------------------------------------------


@lw.program
def of_one_pole(energy, pole, factor, concentration):
    z = 0.5 * (energy - pole[0]), -0.5 * pole[1]
    if z[0] * z[0] + z[1] * z[1] < NEAR * NEAR:
        faddeeva = near(z, jnp)
    else:
        faddeeva = far(z)
    parts = contribution(pole, factor, faddeeva)
    return concentration * jnp.stack([*parts, parts[0] - parts[1]])


def lookups(
    poles: Any, energies: Any, which: Any, lookup: Any, factors: Any, concentration: Any, base: Any
) -> Any:
    """Total, absorption, fission and elastic cross sections of each lookup."""
    each = lw.vmap(of_one_pole)(energies[lookup], poles[which], factors, concentration)
    return base + arrays.histogram(jnp.add, lookup, each, energies.shape[0])


# -- plain JAX ---------------------------------------------------------------------------------------


def lookups_jax(
    poles: Any, energies: Any, which: Any, lookup: Any, factors: Any, concentration: Any, base: Any
) -> Any:
    def of_one(energy: Any, pole: Any, factor: Any, concentration: Any) -> Any:
        z = 0.5 * (energy - pole[0]), -0.5 * pole[1]
        close = z[0] * z[0] + z[1] * z[1] < NEAR * NEAR
        # Each form is kept where it is finite: a derivative that is not taken must not be infinite.
        inside = tuple(jnp.where(close, part, 1.0) for part in z)
        outside = tuple(jnp.where(close, NEAR, part) for part in z)
        chosen = [jnp.where(close, a, b) for a, b in zip(near(inside, jnp), far(outside))]
        parts = contribution(pole, factor, (chosen[0], chosen[1]))
        return concentration * jnp.stack([*parts, parts[0] - parts[1]])

    each = jax.vmap(of_one)(energies[lookup], poles[which], factors, concentration)
    return base + jax.ops.segment_sum(each, lookup, energies.shape[0], indices_are_sorted=True)


# -- PyTorch -----------------------------------------------------------------------------------------


def torch_pair(torch: Any, compile: Any) -> Torch:
    def primal(
        poles: Any, energies: Any, which: Any, lookup: Any, factors: Any, share: Any, base: Any
    ) -> Any:
        pole, factor = poles[which].unbind(1), factors.unbind(1)
        z = 0.5 * (energies[lookup] - pole[0]), -0.5 * pole[1]
        close = z[0] * z[0] + z[1] * z[1] < NEAR * NEAR
        inside = tuple(torch.where(close, part, 1.0) for part in z)
        outside = tuple(torch.where(close, NEAR, part) for part in z)
        chosen = [torch.where(close, a, b) for a, b in zip(near(inside, torch), far(outside))]
        parts = contribution(pole, factor, (chosen[0], chosen[1]))
        each = share[:, None] * torch.stack([*parts, parts[0] - parts[1]], 1)
        return base.index_add(0, lookup, each)

    primal = compile(primal)

    def gradient(poles: Any, *rest: Any) -> Any:
        answers = primal(poles, *rest[:-1])
        return torch.autograd.grad(answers, poles, rest[-1])

    def prepare(*arguments: Any) -> list[Any]:
        seed = cotangent((len(arguments[1]), 4))
        return [*arguments, torch.as_tensor(seed, device=arguments[0].device)]

    return Torch(lambda *arguments: primal(*arguments[:-1]), gradient, (0,), prepare)


# -- data --------------------------------------------------------------------------------------------


def phase_factors(energies: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """What turns a pole's contribution to the total, for each order: (pairs, orders, 2)."""
    phase = radius * np.sqrt(energies)[:, None]
    phase[:, 1] -= -np.arctan(phase[:, 1])
    phase[:, 2] -= np.arctan(3.0 * phase[:, 2] / (3.0 - phase[:, 2] ** 2))
    square = phase[:, 3] ** 2
    phase[:, 3] -= np.arctan(phase[:, 3] * (15.0 - square) / (15.0 - 6.0 * square))
    return np.stack([np.cos(2.0 * phase), -np.sin(2.0 * phase)], axis=-1)


def data(mean_poles: int, mean_windows: int, count: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(9)
    drawn = draw(rng, count)
    num_poles = 1 + rng.multinomial((mean_poles - 1) * NUCLIDES, np.full(NUCLIDES, 1 / NUCLIDES))
    num_windows = 1 + rng.multinomial(
        (mean_windows - 1) * NUCLIDES, np.full(NUCLIDES, 1 / NUCLIDES)
    )
    first = np.concatenate([[0], np.cumsum(num_poles)[:-1]])
    poles = rng.random((num_poles.sum(), 8))
    poles[:, [0, 1, 2, 4, 6]] *= SCALE
    orders = rng.integers(0, ORDERS, num_poles.sum())
    energy = drawn.energies[drawn.lookup]
    windows = num_windows[drawn.nuclide]
    window = np.minimum((energy * windows).astype(np.int64), windows - 1)
    space, rest = np.divmod(num_poles[drawn.nuclide], windows)
    begin = first[drawn.nuclide] + window * space + np.minimum(window, rest)
    lengths = np.maximum(space + (window < rest) - 1, 0)
    pair = np.repeat(np.arange(len(lengths)), lengths)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    which = begin[pair] + within
    factors = phase_factors(energy, rng.random((NUCLIDES, ORDERS))[drawn.nuclide])
    background = rng.random((NUCLIDES, mean_windows * 3, 3))[
        drawn.nuclide, window % (mean_windows * 3)
    ]
    share = background * (energy * drawn.concentration)[:, None]
    share = np.concatenate([share, share[:, :1] - share[:, 1:2]], axis=1)
    base = np.zeros((count, 4))
    np.add.at(base, drawn.lookup, share)
    return (
        poles,
        drawn.energies,
        which.astype(np.int32),
        drawn.lookup[pair],
        factors[pair, orders[which]],
        drawn.concentration[pair],
        base,
    )


def case(small: bool) -> Case:
    return Case(
        Pair(lookups, jax.grad(weighted_sum(lookups))),
        Pair(lookups_jax, jax.grad(weighted_sum(lookups_jax))),
        torch_pair,
        data(12, 3, 8) if small else data(POLES, WINDOWS, 10_000),
        double=True,
        rtol=1e-5,
        atol=1e-9,
    )


ENTRIES = (Entry("RSBench", "10,000 lookups", case, "<= 3.5"),)
