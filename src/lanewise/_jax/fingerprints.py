"""What a traced function computes, as a digest: equal for equal code on equal constants.

Everything that decides what is computed goes in: primitives, their parameters, bodies, shapes and types, literals and
the bytes of constants. A parameter that is a function, or prints as an address, has no digest, and neither has the
whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise._jax.jaxprs import ClosedJaxpr, Jaxpr, Literal


class _Unknown(Exception):
    pass


def fingerprint(fun: Callable[..., Any], *like: Any) -> str | None:
    """The digest of a function of such arguments; None where it has none, or cannot be traced.

    >>> import jax.numpy as jnp
    >>> one, other = (fingerprint(lambda x: jnp.sin(x) * 2.0, 1.0) for _ in range(2))
    >>> one == other and one is not None
    True
    >>> one == fingerprint(lambda x: jnp.sin(x) * 3.0, 1.0)
    False
    """
    try:
        closed, shape = jax.make_jaxpr(fun, return_shape=True)(*like)
        digest = hashlib.sha256()
        digest.update(str(jax.tree.structure(shape)).encode())
        _closed(closed, digest)
    except Exception:
        return None
    return digest.hexdigest()


def _closed(closed: Any, digest: Any) -> None:
    _body(closed.jaxpr, digest)
    for const in closed.consts:
        _value(const, digest)


def _body(jaxpr: Jaxpr, digest: Any) -> None:
    numbers: dict[Any, int] = {}

    def atom(found: Any) -> None:
        if isinstance(found, Literal):
            digest.update(b"literal")
            _value(found.val, digest)
        else:
            digest.update(b"var%d" % numbers.setdefault(found, len(numbers)))
        _aval(found.aval, digest)

    for var in (*jaxpr.constvars, *jaxpr.invars):
        atom(var)
    for eqn in jaxpr.eqns:
        if eqn.effects:
            raise _Unknown
        digest.update(b"eqn" + eqn.primitive.name.encode())
        for found in (*eqn.invars, *eqn.outvars):
            atom(found)
        _value(eqn.params, digest)
    digest.update(b"out")
    for found in jaxpr.outvars:
        atom(found)


def _aval(aval: Any, digest: Any) -> None:
    digest.update(f"{aval}{getattr(aval, 'weak_type', None)};".encode())


def _value(value: Any, digest: Any) -> None:
    digest.update(type(value).__qualname__.encode())
    if isinstance(value, ClosedJaxpr):
        _closed(value, digest)
    elif isinstance(value, Jaxpr):
        _body(value, digest)
    elif isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        digest.update(str(jax.random.key_impl(value)).encode())
        _value(jax.random.key_data(value), digest)
    elif isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise _Unknown
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    elif isinstance(value, jax.sharding.Mesh):
        # A mesh is callable, as a decorator; its devices and axes identify it. The empty one has no device.
        numbers = [getattr(device, "id", None) for device in value.devices.flat]
        _value((value.axis_names, value.devices.shape, numbers), digest)
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            _value(key, digest)
            _value(value[key], digest)
    elif isinstance(value, tuple | list):
        digest.update(b"%d" % len(value))
        for part in value:
            _value(part, digest)
    else:
        text = repr(value)
        if not isinstance(value, str) and (callable(value) and not isinstance(value, type)):
            raise _Unknown
        if not isinstance(value, str) and " at 0x" in text:
            raise _Unknown
        digest.update(text.encode() + b";")
