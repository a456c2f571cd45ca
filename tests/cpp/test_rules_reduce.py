"""Rules of reductions, running reductions and windows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from cpp.cases import FLOATS, Case, check, numbers

PADDINGS = ("SAME", "VALID", ((2, 1), (0, 1)))


def _reductions(dtype: str) -> list[Case]:
    x = numbers(dtype, 4, 5)
    cases = []
    for axes in ((0,), (0, 1)):

        def all_(x: Any, axes: tuple[int, ...] = axes) -> Any:
            return lax.reduce_max(x, axes), lax.reduce_min(x, axes)

        def totals(x: Any, axes: tuple[int, ...] = axes) -> Any:
            return lax.reduce_sum(x, axes), lax.reduce_prod(x, axes)

        cases += [
            Case(f"{dtype} extremes {axes}", all_, (x,), 0),
            Case(f"{dtype} totals {axes}", totals, (numbers(dtype, 4, 5, special=False),), 8, True),
        ]
    for axis in (0, 1):

        def places(x: Any, axis: int = axis) -> Any:
            return lax.argmax(x, axis, np.int32), lax.argmin(x, axis, np.int32)

        cases.append(Case(f"{dtype} places {axis}", places, (x,)))
        for reverse in (False, True):

            def running(x: Any, axis: int = axis, reverse: bool = reverse) -> Any:
                return lax.cummax(x, axis, reverse), lax.cummin(x, axis, reverse)

            def totalling(x: Any, axis: int = axis, reverse: bool = reverse) -> Any:
                return lax.cumsum(x, axis, reverse), lax.cumprod(x, axis, reverse)

            plain = numbers(dtype, 4, 5, seed=1, special=False)
            cases += [
                Case(f"{dtype} running {axis} {reverse}", running, (x,), 0),
                Case(f"{dtype} totalling {axis} {reverse}", totalling, (plain,), 8, True),
            ]
    return cases


def test_extremes_of_long_rows() -> None:
    """In parts, of which some are short; a NaN or a zero of either sign anywhere."""
    cases = []
    for dtype in ("float32", "float64", "int32", "uint8"):
        for size in (16, 17, 40, 95):
            x = numbers(dtype, 3, size)
            if dtype.startswith("float"):
                x[1] = np.where(np.arange(size) % 5 == 2, 0.0, -0.0)

            def both(x: Any) -> Any:
                return lax.reduce_max(x, (1,)), lax.reduce_min(x, (1,))

            cases.append(Case(f"{dtype} {size}", both, (x,), 0))
    with jax.enable_x64(True):
        check(cases)


def test_sums_and_extremes_by_rows_and_in_parts() -> None:
    """Along the first axis, the middle one, several: beside few other results and beside many."""
    cases = []
    shapes = ((37, 3), (3, 37), (19, 20), (4, 9, 17), (2, 18, 3), (5, 6, 7))
    for dtype in ("float32", "float64", "int32"):
        for shape in shapes:
            ranges = [(a, b) for a in range(len(shape)) for b in range(a, len(shape))]
            for axes in (tuple(range(a, b + 1)) for a, b in ranges):

                def extremes(x: Any, axes: Any = axes) -> Any:
                    return lax.reduce_max(x, axes), lax.reduce_min(x, axes)

                def totals(x: Any, axes: Any = axes) -> Any:
                    beside = x[:1] * 2  # An operand that is not as long as the sum.
                    return lax.reduce_sum(x, axes), lax.reduce_sum(x * beside, axes)

                plain = numbers(dtype, *shape, special=False)
                label = f"{dtype} {shape} {axes}"
                cases.append(Case(f"extremes {label}", extremes, (numbers(dtype, *shape),), 0))
                cases.append(Case(f"totals {label}", totals, (plain,), 64, True))
    with jax.enable_x64(True):
        check(cases)


@pytest.mark.parametrize(
    "dtypes", [FLOATS, ("int8", "int32", "uint16", "uint64")], ids=["floats", "ints"]
)
def test_reductions(dtypes: tuple[str, ...]) -> None:
    with jax.enable_x64(True):
        check([case for dtype in dtypes for case in _reductions(dtype)])


def test_logic_complex_and_any_operator() -> None:
    def joined(x: Any, y: Any) -> Any:
        return lax.reduce(
            (x, y),
            (np.float32(0), np.int32(-9)),
            lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])),
            (1,),
        )

    logic = lambda b: (  # noqa: E731
        jnp.all(b, 1),
        jnp.any(b, 0),
        lax.reduce_xor(b, (0,)),
        jnp.argmax(b, 1),
        jnp.max(b),
    )
    bits = lambda i: (  # noqa: E731
        lax.reduce_and(i, (0,)),
        lax.reduce_or(i, (1,)),
        lax.reduce_xor(i, (0, 1)),
    )
    x, i = numbers("float32", 3, 4, special=False), numbers("int32", 3, 4)
    check(
        [
            Case("bool", logic, (numbers("bool", 3, 4),)),
            Case("int32", bits, (i,)),
            Case("uint8", bits, (numbers("uint8", 3, 4),)),
            Case("any operator", joined, (x, i), 8, True),
            Case(
                "complex",
                lambda z: (z.sum(0), z.prod(1), jnp.cumsum(z)),
                (numbers("complex64", 3, 4),),
                16,
            ),
            Case(
                "logsumexp",
                lambda x: (lax.cumlogsumexp(x, 1), lax.cumlogsumexp(x, 0, True)),
                (x,),
                16,
            ),
            Case("logsumexp of extremes", lax.cumlogsumexp, (numbers("float32", 9),), 16),
            Case(
                "of nothing", lambda x: (x[:, :0].sum(1), x[:0].prod(0), jnp.all(x[:0] > 0)), (x,)
            ),
        ]
    )


def test_windows() -> None:
    x = numbers("float32", 5, 6, special=False)
    low, high = np.float32(-np.inf), np.float32(np.inf)
    cases = []
    for padding in PADDINGS:
        for dilation in (1, 2):

            def pooled(x: Any, padding: Any = padding, dilation: int = dilation) -> Any:
                wide = {"window_dilation": (dilation, 1)}
                return (
                    lax.reduce_window(x, np.float32(0), lax.add, (2, 3), (1, 2), padding, **wide),
                    lax.reduce_window(x, low, lax.max, (2, 3), (2, 1), padding, **wide),
                    lax.reduce_window(x, high, lax.min, (2, 3), (2, 1), padding),
                    lax.reduce_window(
                        x,
                        np.float32(1),
                        lax.mul,
                        (2, 3),
                        (2, 1),
                        padding,
                        base_dilation=(2, dilation),
                    ),
                )

            cases.append(Case(f"{padding} {dilation}", pooled, (x,), 8, True))

        def pool(x: Any, padding: Any = padding) -> Any:
            return lax.reduce_window(x, low, lax.max, (2, 3), (1, 2), padding)

        cases += [
            Case(
                f"gradient {padding}",
                lambda x, f=pool: jax.grad(lambda y: (f(y) ** 2).sum())(x),
                (x,),
                16,
            ),
            Case(f"derivative {padding}", lambda x, f=pool: jax.jvp(f, (x,), (x * 2,)), (x,), 16),
        ]
    check(cases)
