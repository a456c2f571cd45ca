"""The gradient of a product of a million numbers, over the product itself, and beside JAX's.

    python -m ad.product     (in benchmarks/; `python benchmarks/array_operators.py` runs it too)

JAX differentiates `jnp.prod` through a scan of partial products. `lw.arrays.reduce` divides where it may; the same
with a factor that is zero is timed too.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from _harness import Claim, compile_seconds, medians, report

LENGTH = 10**6


def product(x: Any) -> Any:
    return lw.arrays.reduce(jnp.multiply, x)


def numbers(length: int = LENGTH) -> Any:
    return jnp.asarray(np.random.default_rng(0).uniform(0.999, 1.001, length), jnp.float32)


def measure(length: int = LENGTH, repeats: int = 15) -> list[Claim]:
    arguments = (numbers(length),)
    functions = {
        "primal": product,
        "ours": jax.grad(product),
        "jax primal": jnp.prod,
        "jax": jax.grad(jnp.prod),
    }
    compiled = {}
    for name, function in functions.items():
        compiled[name], seconds = compile_seconds(function, arguments)
        print(f"{name}: compiled in {seconds:.2f} s", flush=True)
    np.testing.assert_allclose(compiled["ours"](*arguments), compiled["jax"](*arguments), rtol=1e-3)
    took = medians(compiled, arguments, repeats)
    one_zero = (arguments[0].at[length // 2].set(0.0),)
    with_zero = medians({"ours": compiled["ours"], "primal": compiled["primal"]}, one_zero, repeats)
    for name, seconds in took.items():
        print(f"{name}: {1e3 * seconds:.3f} ms", flush=True)
    overhead = took["jax"] / took["jax primal"]
    print(f"gradient over product: JAX {overhead:.1f}, ours {took['ours'] / took['primal']:.1f}")
    return [
        Claim(
            "gradient of a product of 10^6, over the product", took["ours"], took["primal"], "<= 4"
        ),
        Claim("gradient of a product of 10^6, beside jax.grad", took["ours"], took["jax"], ">= 1"),
        Claim(
            "gradient of a product of 10^6 with a zero, over the product",
            with_zero["ours"],
            with_zero["primal"],
            "<= 4",
        ),
    ]


if __name__ == "__main__":
    report(measure())
