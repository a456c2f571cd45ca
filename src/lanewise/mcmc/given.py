"""Models, keys and devices, as callers give them."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from lanewise import _jax
from lanewise.core.errors import OptionError
from lanewise.mcmc.by_pymc import from_pymc, is_pymc
from lanewise.mcmc.models import Model


def model_of(given: Any) -> Model:
    """A model, a PyMC model, or a log density.

    >>> model_of(abs).logdensity
    <built-in function abs>
    """
    if isinstance(given, Model):
        return given
    return from_pymc(given) if is_pymc(given) else Model(given)


def typed_key(key: Any) -> Key[Array, ""]:
    """One typed key; a seed, an int, and old keys, two numbers, are taken too.

    >>> bool(typed_key(7) == jax.random.key(7))
    True
    """
    try:
        if isinstance(key, numbers.Integral) and not isinstance(key, bool):
            return jax.random.key(int(key))
        is_typed = isinstance(key, jax.Array) and _jax.is_key(jax.typeof(key))
        key = key if is_typed else jax.random.wrap_key_data(jnp.asarray(key, jnp.uint32))
        if key.shape == ():
            return key
    except (TypeError, ValueError, OverflowError):
        pass
    raise OptionError(
        f"key={key!r} is not one random key; make one with jax.random.key(0), or give a seed."
    )


def accepting(sampler: Any, target_accept: float | None) -> Any:
    """The sampler with another `target_accept`, if one is given."""
    if target_accept is None:
        return sampler
    if dataclasses.is_dataclass(sampler) and not isinstance(sampler, type):
        with contextlib.suppress(TypeError):
            return dataclasses.replace(sampler, target_accept=target_accept)
    raise OptionError(
        f"target_accept= is for samplers that take it, and sampler={sampler!r} is none of them: set it there."
    )


@contextlib.contextmanager
def on_device(device: Any) -> Iterator[None]:
    """Run on a device, or on a platform's first."""
    if device is None:
        yield
        return
    if isinstance(device, str):
        try:
            device = jax.local_devices(backend=device)[0]
        except RuntimeError as error:
            known = ", ".join(sorted({d.platform for d in jax.devices()}))
            raise OptionError(
                f"device={device!r} is not there: {error}. Here are: {known}."
            ) from None
    if not isinstance(device, jax.Device):
        raise OptionError(f'device={device!r} must be a JAX device, or "cpu" or "gpu".')
    with jax.default_device(device):
        yield
