"""Transfers between host and device that are ours: explicit, so that `jax.transfer_guard` lets them pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax._src import config as _config


def to_host(value: Any) -> np.ndarray:
    """An array's values. `jax.device_get` is twenty times as slow; a call of a program does this once or twice."""
    if _config.transfer_guard_device_to_host.value in (None, "allow"):
        return np.asarray(value)
    with jax.transfer_guard_device_to_host("allow"):
        return np.asarray(value)


@contextlib.contextmanager
def our_transfers() -> Iterator[None]:
    """Where the host has a part in a run: what goes back and forth is not the user's. Also a decorator."""
    with jax.transfer_guard("allow"):
        yield


def to_device(value: Any) -> Any:
    """A constant of the code as JAX's array, put there once and not at each call; arrays and tracers as they are."""
    if isinstance(value, jax.Array):
        return value
    with jax.ensure_compile_time_eval():
        return jax.device_put(value)
