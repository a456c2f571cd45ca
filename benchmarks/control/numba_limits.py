"""The scalar programs by hand for the CPU: Numba, `prange` over the lanes, one source for each.

A limit takes the same arguments as the program, as NumPy arrays, and gives the same answers. Constants
are made 32-bit by name, as Numba would otherwise compute in 64 bits. Importing this file needs Numba.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

# Numba's idle threads spin by default, which costs milliseconds a call where cores are shared; the limit
# is taken at its best, so they sleep. It is read when Numba starts its threads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from numba import njit, prange

from control.iteration import KEPLER_TOLERANCE, KEPLER_TRIES
from control.recursion import SIMPSON_DEPTH
from control.solving import ABSOLUTE, MOST_STEPS, RELATIVE

f32 = np.float32
u32 = np.uint32


def for_each_number(one: Callable[..., Any]) -> Callable[..., Any]:
    """The limit of a program from one int32 to one int32, from its Numba function for one lane."""

    @njit(parallel=True)
    def limit(numbers):
        out = np.empty(numbers.size, np.int32)
        for lane in prange(numbers.size):
            out[lane] = one(numbers[lane])
        return out

    return limit


# -- iteration -------------------------------------------------------------------------------------


@njit(parallel=True)
def escape_time(real, imaginary, limit):
    out = np.empty(real.size, np.int32)
    for lane in prange(real.size):
        x, y = f32(0.0), f32(0.0)
        count = 0
        while x * x + y * y <= f32(4.0) and count < limit:
            x, y = x * x - y * y + real[lane], f32(2.0) * x * y + imaginary[lane]
            count += 1
        out[lane] = count
    return out


@njit
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@njit
def coprimes(n):
    found = 0
    for k in range(1, n):
        a, b = n, k
        while b != 0:
            a, b = b, a % b
        found += a == 1
    return found


@njit(parallel=True)
def newton_hard_starts(means, eccentricities):
    angles = np.empty(means.size, np.float32)
    for lane in prange(means.size):
        mean, eccentricity = means[lane], eccentricities[lane]
        angle, step = mean, f32(1.0)
        tries = 0
        while abs(step) > f32(KEPLER_TOLERANCE) and tries < KEPLER_TRIES:
            slope = f32(1.0) - eccentricity * np.cos(angle)
            step = (angle - eccentricity * np.sin(angle) - mean) / slope
            angle -= step
            tries += 1
        angles[lane] = angle
    return angles


@njit
def gamma_share(shape, x, log_norm):
    term, total, below = f32(1.0), f32(1.0), shape
    while term > f32(1e-6) * total:
        below += f32(1.0)
        term = term * x / below
        total += term
    return total * np.exp(shape * np.log(x) - x - log_norm)


@njit(parallel=True)
def bisection_tolerance(shapes, shares, tolerances):
    out = np.empty(shapes.size, np.float32)
    for lane in prange(shapes.size):
        shape, share, tolerance = shapes[lane], shares[lane], tolerances[lane]
        log_norm = f32(math.lgamma(shape + f32(1.0)))
        low, high = f32(0.0), shape
        while gamma_share(shape, high, log_norm) < share:
            low = high
            high = f32(2.0) * high
        while high - low > tolerance * high:
            middle = f32(0.5) * (low + high)
            if gamma_share(shape, middle, log_norm) < share:
                low = middle
            else:
                high = middle
        out[lane] = f32(0.5) * (low + high)
    return out


# -- recursion and trees ---------------------------------------------------------------------------


@njit
def fibonacci(n):
    if n <= 1:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


@njit
def recursive_fibonacci(n):
    return fibonacci(np.int64(n))


@njit
def resonance(x, centre, width):
    away = (x - centre) / width
    return f32(1.0) / (f32(1.0) + away * away) + f32(0.1) * np.sin(f32(5.0) * x)


@njit
def simpson(low, high, f_low, f_middle, f_high):
    return (high - low) / f32(6.0) * (f_low + f32(4.0) * f_middle + f_high)


@njit
def refine(low, high, f_low, f_middle, f_high, whole, tolerance, depth, centre, width):
    middle = f32(0.5) * (low + high)
    f_left = resonance(f32(0.5) * (low + middle), centre, width)
    f_right = resonance(f32(0.5) * (middle + high), centre, width)
    left = simpson(low, middle, f_low, f_left, f_middle)
    right = simpson(middle, high, f_middle, f_right, f_high)
    error = left + right - whole
    if depth == 0 or abs(error) <= f32(15.0) * tolerance:
        return left + right + error / f32(15.0)
    half = f32(0.5) * tolerance
    return refine(
        low, middle, f_low, f_left, f_middle, left, half, depth - 1, centre, width
    ) + refine(middle, high, f_middle, f_right, f_high, right, half, depth - 1, centre, width)


@njit(parallel=True)
def recursive_simpson(centres, widths, tolerances):
    out = np.empty(centres.size, np.float32)
    for lane in prange(centres.size):
        centre, width = centres[lane], widths[lane]
        low, high = f32(0.0), f32(1.0)
        f_low = resonance(low, centre, width)
        f_middle = resonance(f32(0.5), centre, width)
        f_high = resonance(high, centre, width)
        whole = simpson(low, high, f_low, f_middle, f_high)
        out[lane] = refine(
            low,
            high,
            f_low,
            f_middle,
            f_high,
            whole,
            tolerances[lane],
            SIMPSON_DEPTH,
            centre,
            width,
        )
    return out


@njit(parallel=True)
def search_trees(all_keys, counts, all_probes):
    lanes, size = all_keys.shape
    all_found = np.empty(lanes, np.int32)
    all_seen = np.empty(lanes, np.int32)
    for lane in prange(lanes):
        keys, probes = all_keys[lane], all_probes[lane]
        left = np.full(size, -1, np.int32)
        right = np.full(size, -1, np.int32)
        for i in range(1, counts[lane]):
            node = 0
            while True:
                side = left if keys[i] < keys[node] else right
                if side[node] < 0:
                    side[node] = i
                    break
                node = side[node]
        found = 0
        seen = 0
        for probe in probes:
            node = 0
            while node >= 0:
                seen += 1
                if probe == keys[node]:
                    found += 1
                    break
                node = left[node] if probe < keys[node] else right[node]
        all_found[lane] = found
        all_seen[lane] = seen
    return all_found, all_seen


# -- RK45 ------------------------------------------------------------------------------------------


@njit
def acceleration(x, v, mu):
    return mu * (f32(1.0) - x * x) * v - x


@njit(parallel=True)
def rk45_van_der_pol(stiffness, end):
    ends = np.empty((stiffness.size, 2), np.float32)
    counts = np.empty(stiffness.size, np.int32)
    for lane in prange(stiffness.size):
        mu = stiffness[lane]
        x, v = f32(2.0), f32(0.0)
        a1, b1 = v, acceleration(x, v, mu)
        t, h = f32(0.0), f32(0.01)
        steps = 0
        while t < end and steps < MOST_STEPS:
            h = min(h, end - t)
            a2 = v + h * (b1 / f32(5))
            b2 = acceleration(x + h * (a1 / f32(5)), a2, mu)
            a3 = v + h * (f32(3 / 40) * b1 + f32(9 / 40) * b2)
            b3 = acceleration(x + h * (f32(3 / 40) * a1 + f32(9 / 40) * a2), a3, mu)
            a4 = v + h * (f32(44 / 45) * b1 - f32(56 / 15) * b2 + f32(32 / 9) * b3)
            b4 = acceleration(
                x + h * (f32(44 / 45) * a1 - f32(56 / 15) * a2 + f32(32 / 9) * a3), a4, mu
            )
            a5 = v + h * (
                f32(19372 / 6561) * b1
                - f32(25360 / 2187) * b2
                + f32(64448 / 6561) * b3
                - f32(212 / 729) * b4
            )
            x5 = x + h * (
                f32(19372 / 6561) * a1
                - f32(25360 / 2187) * a2
                + f32(64448 / 6561) * a3
                - f32(212 / 729) * a4
            )
            b5 = acceleration(x5, a5, mu)
            a6 = v + h * (
                f32(9017 / 3168) * b1
                - f32(355 / 33) * b2
                + f32(46732 / 5247) * b3
                + f32(49 / 176) * b4
                - f32(5103 / 18656) * b5
            )
            x6 = x + h * (
                f32(9017 / 3168) * a1
                - f32(355 / 33) * a2
                + f32(46732 / 5247) * a3
                + f32(49 / 176) * a4
                - f32(5103 / 18656) * a5
            )
            b6 = acceleration(x6, a6, mu)
            new_v = v + h * (
                f32(35 / 384) * b1
                + f32(500 / 1113) * b3
                + f32(125 / 192) * b4
                - f32(2187 / 6784) * b5
                + f32(11 / 84) * b6
            )
            new_x = x + h * (
                f32(35 / 384) * a1
                + f32(500 / 1113) * a3
                + f32(125 / 192) * a4
                - f32(2187 / 6784) * a5
                + f32(11 / 84) * a6
            )
            b7 = acceleration(new_x, new_v, mu)
            off_v = h * (
                f32(71 / 57600) * b1
                - f32(71 / 16695) * b3
                + f32(71 / 1920) * b4
                - f32(17253 / 339200) * b5
                + f32(22 / 525) * b6
                - f32(1 / 40) * b7
            )
            off_x = h * (
                f32(71 / 57600) * a1
                - f32(71 / 16695) * a3
                + f32(71 / 1920) * a4
                - f32(17253 / 339200) * a5
                + f32(22 / 525) * a6
                - f32(1 / 40) * new_v
            )
            off_x /= f32(ABSOLUTE) + f32(RELATIVE) * max(abs(x), abs(new_x))
            off_v /= f32(ABSOLUTE) + f32(RELATIVE) * max(abs(v), abs(new_v))
            error = np.sqrt(f32(0.5) * (off_x * off_x + off_v * off_v))
            if error <= f32(1.0):
                t += h
                x, v = new_x, new_v
                a1, b1 = new_v, b7
            change = f32(0.9) * (error + f32(1e-10)) ** f32(-0.2)
            h *= min(max(change, f32(0.2)), f32(5.0))
            steps += 1
        ends[lane, 0] = x
        ends[lane, 1] = v
        counts[lane] = steps
    return ends, counts


# -- random programs: JAX's own counter-based generator --------------------------------------------


@njit
def rotate(x, by):
    return (x << u32(by)) | (x >> u32(32 - by))


@njit
def rounds(x, y, a, b, c, d):
    x = u32(x + y)
    y = u32(rotate(y, a)) ^ x
    x = u32(x + y)
    y = u32(rotate(y, b)) ^ x
    x = u32(x + y)
    y = u32(rotate(y, c)) ^ x
    x = u32(x + y)
    y = u32(rotate(y, d)) ^ x
    return x, y


@njit
def threefry(k0, k1, x, y):
    """Twenty rounds of Threefry on two words, as `jax.random` has it."""
    k2 = u32(k0 ^ k1 ^ u32(0x1BD11BDA))
    x, y = u32(x + k0), u32(y + k1)
    x, y = rounds(x, y, 13, 15, 26, 6)
    x, y = u32(x + k1), u32(y + k2 + u32(1))
    x, y = rounds(x, y, 17, 29, 16, 24)
    x, y = u32(x + k2), u32(y + k0 + u32(2))
    x, y = rounds(x, y, 13, 15, 26, 6)
    x, y = u32(x + k0), u32(y + k1 + u32(3))
    x, y = rounds(x, y, 17, 29, 16, 24)
    x, y = u32(x + k1), u32(y + k2 + u32(4))
    x, y = rounds(x, y, 13, 15, 26, 6)
    return u32(x + k2), u32(y + k0 + u32(5))


@njit
def bits(k0, k1, index):
    x, y = threefry(k0, k1, u32(0), u32(index))
    return u32(x ^ y)


@njit
def uniform(k0, k1, index):
    return f32(bits(k0, k1, index) >> u32(9)) * f32(2.0**-23)


@njit(parallel=True)
def rejection(keys, centres, sharpnesses):
    draws = np.empty(centres.size, np.float32)
    counts = np.empty(centres.size, np.int32)
    for lane in prange(centres.size):
        k0, k1 = keys[lane, 0], keys[lane, 1]
        tries = 0
        while True:
            tries += 1
            s0, s1 = threefry(k0, k1, u32(0), u32(1))
            k0, k1 = threefry(k0, k1, u32(0), u32(0))
            draw = uniform(s0, s1, 0)
            away = draw - centres[lane]
            if uniform(s0, s1, 1) < np.exp(-sharpnesses[lane] * away * away):
                break
        draws[lane] = draw
        counts[lane] = tries
    return draws, counts


@njit(parallel=True)
def random_walks(keys, radii):
    xs = np.empty(radii.size, np.int32)
    ys = np.empty(radii.size, np.int32)
    ts = np.empty(radii.size, np.int32)
    for lane in prange(radii.size):
        k0, k1 = keys[lane, 0], keys[lane, 1]
        radius = radii[lane]
        x = 0
        y = 0
        t = 0
        while x * x + y * y < radius * radius:
            s0, s1 = threefry(k0, k1, u32(0), u32(t))
            way = bits(s0, s1, 0) >> u32(30)
            if way == 0:
                x += 1
            elif way == 1:
                x -= 1
            elif way == 2:
                y += 1
            else:
                y -= 1
            t += 1
        xs[lane] = x
        ys[lane] = y
        ts[lane] = t
    return xs, ys, ts


LIMITS: dict[str, Callable[..., Any]] = {
    "escape_time": escape_time,
    "collatz": for_each_number(collatz),
    "gcd": for_each_number(coprimes),
    "newton_hard_starts": newton_hard_starts,
    "bisection_tolerance": bisection_tolerance,
    "recursive_fibonacci": for_each_number(recursive_fibonacci),
    "recursive_simpson": recursive_simpson,
    "search_trees": search_trees,
    "rk45_van_der_pol": rk45_van_der_pol,
    "rejection": rejection,
    "random_walks": random_walks,
}
