"""Rules of products, convolutions and small solves."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cpp.cases import Case, check, numbers

CONVOLUTIONS: tuple[tuple[Any, ...], ...] = (
    # strides, padding, dilations of both sides, groups of features and of the batch
    ((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1, 1),
    ((2, 1), ((1, 2), (0, 1)), (1, 1), (1, 1), 1, 1),
    ((1, 2), ((1, 1), (1, 1)), (2, 1), (1, 2), 1, 1),
    ((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 2, 1),
    ((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1, 2),
    ((1, 1), ((-1, 1), (1, -1)), (1, 1), (1, 1), 1, 1),
)


def _plain(kind: str, *shape: int, seed: int = 0) -> np.ndarray:
    return numbers(kind, *shape, seed=seed, special=False)


def test_products_of_every_dtype() -> None:
    def products(a: Any, b: Any) -> Any:
        return (
            lax.dot_general(a, b, (((2,), (2,)), ((0,), (0,)))),
            jnp.einsum("aij,bkj->abik", a, b),
            jnp.einsum("aij,aij->", a, a),
            a[0] @ b[0].T,
            a[0, 0] @ b[1, 1],
            a[:, :0].sum() + jnp.einsum("aij,akj->ik", a[:0], b[:0]),
        )

    def wider(a: Any, b: Any, to: str) -> Any:
        return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=to)

    kinds = ("float32", "float64", "int32", "int8", "uint16", "float16", "bfloat16", "complex64")
    with jax.enable_x64(True):
        cases = [
            Case(kind, products, (_plain(kind, 2, 3, 4), _plain(kind, 2, 5, 4, seed=1)), 64, True)
            for kind in kinds
        ]
        for kind, to in (("float16", "float32"), ("bfloat16", "float32"), ("int8", "int32")):
            args = (_plain(kind, 3, 4), _plain(kind, 4, 2))
            cases.append(
                Case(f"{kind} to {to}", lambda a, b, to=to: wider(a, b, to), args, 64, True)
            )
        large = (_plain("float32", 20, 30), _plain("float32", 30, 10))
        cases.append(Case("large", lambda a, b: a @ b, large, 64, True))
        # Long enough for vectors, with remainders, along either axis; sums over two axes; values computed on the way.
        for kind in ("float32", "float64", "bfloat16"):
            a, b, v = (_plain(kind, *shape) for shape in ((2, 18, 21), (2, 21, 19), (21,)))
            forms = (
                lambda a, b, v: (a @ v, v @ b[0], a[0] @ b[0], a @ b, a[1, 3] @ v),
                lambda a, b, v: (
                    jnp.einsum("aij,aij->a", a, a),
                    a[0].T @ (2 * a[1]),
                    b[1].T @ b[0],
                ),
                lambda a, b, v: jnp.einsum("aij,ajk->k", a, b) + (v * v) @ b[1],
            )
            cases += [Case(f"long {kind}", form, (a, b, v), 64, True) for form in forms]
        check(cases)


def test_convolutions() -> None:
    cases = []
    for form in CONVOLUTIONS:
        features = form[4]

        def convolved(a: Any, b: Any, form: Any = form) -> Any:
            strides, padding, left, right, features, batches = form
            return lax.conv_general_dilated(
                a,
                b,
                strides,
                padding,
                left,
                right,
                feature_group_count=features,
                batch_group_count=batches,
            )

        args = (_plain("float32", 4, 4, 5, 6), _plain("float32", 4, 4 // features, 2, 3))
        cases.append(Case(str(form), convolved, args, 64, True))
    names = ("NHWC", "HWIO", "NHWC")
    last = lambda a, b: lax.conv_general_dilated(a, b, (1, 1), "SAME", dimension_numbers=names)  # noqa: E731
    cases += [
        Case(
            "channels last",
            last,
            (_plain("float32", 2, 5, 6, 3), _plain("float32", 2, 3, 3, 4)),
            64,
            True,
        ),
        Case(
            "one axis",
            lambda a, b: jnp.convolve(a, b),
            (_plain("float32", 9), _plain("float32", 4)),
            64,
            True,
        ),
    ]
    check(cases)


def test_factorizations_and_solves() -> None:
    def solved(a: Any, b: Any) -> Any:
        return jnp.linalg.solve(a, b), jnp.linalg.inv(a), jnp.linalg.det(a), jnp.linalg.slogdet(a)

    def by_cholesky(p: Any, b: Any) -> Any:
        return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(p), True), b)

    cases = []
    with jax.enable_x64(True):
        for kind in ("float32", "float64"):
            a = _plain(kind, 2, 4, 4) + 6 * np.eye(4, dtype=kind)
            positive = a @ np.swapaxes(a, -1, -2)
            b = _plain(kind, 2, 4, 3)
            cases += [
                Case(f"cholesky {kind}", jnp.linalg.cholesky, (positive,), 256, True),
                Case(f"not positive {kind}", jnp.linalg.cholesky, (positive - 60,), 256, True),
                Case(f"solve by cholesky {kind}", jax.vmap(by_cholesky), (positive, b), 4096, True),
                Case(f"lu {kind}", lax.linalg.lu, (a,), 256, True),
                Case(f"wide lu {kind}", lax.linalg.lu, (_plain(kind, 3, 5),), 256, True),
                Case(f"tall lu {kind}", lax.linalg.lu, (_plain(kind, 5, 3),), 256, True),
                Case(f"solve {kind}", solved, (a, b), 1024, True),
            ]
            for left, lower, transposed, unit in itertools.product((False, True), repeat=4):

                def triangular(a: Any, b: Any, how: Any = (left, lower, transposed, unit)) -> Any:
                    left, lower, transposed, unit = how
                    return lax.linalg.triangular_solve(
                        a,
                        b,
                        left_side=left,
                        lower=lower,
                        transpose_a=transposed,
                        unit_diagonal=unit,
                    )

                right = b if left else np.swapaxes(b, -1, -2)
                label = f"triangular {kind} {left} {lower} {transposed} {unit}"
                cases.append(Case(label, triangular, (a, right), 4096, True))
        check(cases)


def test_factors_and_solves_by_rows() -> None:
    """Of matrices whose rows are vectors, of which the last one is short; one right side, and several."""
    cases = []
    with jax.enable_x64(True):
        for kind, size in (("float32", 8), ("float32", 41), ("float64", 19)):
            a = _plain(kind, 2, size, size) / size + 3 * np.eye(size, dtype=kind)
            positive = a @ np.swapaxes(a, -1, -2)
            name = f"{kind} of {size}"
            cases += [
                Case(f"cholesky {name}", jnp.linalg.cholesky, (positive,), 256, True),
                Case(f"not positive {name}", jnp.linalg.cholesky, (positive - 9,), 256, True),
                # A factor that takes the place of its matrix.
                Case(f"twice {name}", _cholesky_again, (positive,), 4096, True),
            ]
            flags = itertools.product((False, True), repeat=5)
            for several, left, lower, transposed, unit in flags:
                sides = 5 if several else 1
                b = _plain(kind, 2, size, sides)
                right = b if left else np.swapaxes(b, -1, -2)
                solve = functools.partial(
                    lax.linalg.triangular_solve,
                    left_side=left,
                    lower=lower,
                    transpose_a=transposed,
                    unit_diagonal=unit,
                )
                scaled = a / 3 if unit else a
                label = f"triangular {name} {sides} {left} {lower} {transposed} {unit}"
                cases.append(Case(label, solve, (scaled, right), 4096, True))
        check(cases)


def _cholesky_again(matrix: Any) -> Any:
    def again(_: Any, matrix: Any) -> Any:
        factor = jnp.linalg.cholesky(matrix)
        return factor @ jnp.swapaxes(factor, -1, -2) + jnp.eye(matrix.shape[-1], dtype=matrix.dtype)

    return lax.fori_loop(0, 2, again, matrix)


def test_orthogonal_tridiagonal_and_fourier() -> None:
    cases = []
    for shape in ((4, 3), (3, 4), (2, 3, 3), (1, 3), (3, 1)):
        for mode in ("reduced", "complete"):
            case = lambda a, mode=mode: jnp.linalg.qr(a, mode=mode)  # noqa: E731
            cases.append(Case(f"qr {shape} {mode}", case, (_plain("float32", *shape),), 64, True))
    off, middle = _plain("float32", 2, 5), _plain("float32", 2, 5) + 9
    solve = lambda a, d, b: lax.linalg.tridiagonal_solve(a, d, a, b)  # noqa: E731
    cases.append(Case("tridiagonal", solve, (off, middle, _plain("float32", 2, 5, 2)), 64, True))
    z, x = _plain("complex64", 4, 6), _plain("float32", 4, 6)
    forth = lambda z: (jnp.fft.fft(z), jnp.fft.ifft(z), jnp.fft.fft2(z), jnp.fft.ifft2(z))  # noqa: E731
    real = lambda x: (jnp.fft.rfft(x), jnp.fft.rfft(x[:, :5]), jnp.fft.rfft2(x))  # noqa: E731
    back = lambda z: (jnp.fft.irfft(z), jnp.fft.irfft(z, 7), jnp.fft.irfft2(z))  # noqa: E731
    cases += [
        Case("fft", forth, (z,), 64, True),
        Case("rfft", real, (x,), 64, True),
        Case("irfft", back, (z,), 64, True),
        Case(
            "approximate top k", lambda x: (lax.approx_max_k(x, 2), lax.approx_min_k(x, 3)), (x,), 0
        ),
        Case("derivative of tanh", lambda x: jax.jvp(jnp.tanh, (x,), (x,)), (x / 9,), 16),
    ]
    check(cases)
