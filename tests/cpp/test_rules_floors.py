"""Division that rounds down by a power of two: a shift or a mask, for every number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from cpp.checking import check, kernel_of

NUMBERS = np.r_[-70:70, -(2**31) : -(2**31) + 9, 2**31 - 9 : 2**31].astype(np.int32)

BY_POWERS: dict[str, Callable[[Any], Any]] = {
    "quotient": lambda n: n // 4,
    "remainder": lambda n: n % 8,
    "both": lambda n: (n // 2, n % 2),
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "not a power": lambda n: (n // 5, n % 6),
    "a negative power": lambda n: (n // -4, n % -8),
    "another remainder": lambda n: jnp.where((n < 0) & (n % 4 != 0), n % 8 + 4, n % 8),
}


@pytest.mark.parametrize("name", [*BY_POWERS, *OTHERS])
def test_every_number(name: str) -> None:
    check({**BY_POWERS, **OTHERS}[name], NUMBERS)


@pytest.mark.parametrize("name", BY_POWERS)
def test_powers_are_shifts_and_masks(name: str) -> None:
    text = kernel_of(BY_POWERS[name], [np.int32(1)], [True]).text
    body = text[text.index("lanewise_kernel(") :]
    assert " >> " in body or " & 1)" in body or " & 7)" in body
