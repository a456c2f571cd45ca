"""Products that are made for a sum alone stand just before it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import Var
from lanewise.core.accumulate import accumulate
from lanewise.cpp.emit.late import late

VECTOR = _jax.shaped((4,), jnp.float32.dtype)


def names(code: Any, *, kept: bool = False) -> list[str]:
    """The primitives of code of two vectors, in their new order; `kept`: its results are read afterwards."""
    jaxpr = _jax.trace(code, [VECTOR] * 2).jaxpr
    wanted = {v for v in jaxpr.outvars if kept and isinstance(v, Var)}
    return [eqn.primitive.name for eqn in late(jaxpr.eqns, wanted)]


def products_first(a: Any, b: Any) -> list[Any]:
    product, turned = jnp.outer(a, b), jnp.outer(b, a).T
    scaled = jnp.sin(b)
    accumulate(0, scaled)
    accumulate(1, product)
    accumulate(2, turned)
    return [product]


def test_a_product_goes_where_it_is_added() -> None:
    found = names(products_first)
    assert found[:2] == ["sin", "accumulate"]
    assert found[-1] == "accumulate" and found.count("mul") == 2
    between = found[2 : found.index("accumulate", 2)]
    assert between.count("mul") == 1


def test_what_others_read_stays() -> None:
    found = names(products_first, kept=True)
    assert found.index("mul") < found.index("sin") and found.count("mul") == 2

    def read(a: Any, b: Any) -> list[Any]:
        product = jnp.outer(a, b)
        other = jnp.sum(product, 0)
        accumulate(0, jnp.sin(other))
        accumulate(1, product)
        return []

    found = names(read)
    assert found.index("mul") < found.index("reduce_sum")
