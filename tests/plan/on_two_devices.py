"""Arguments that are split over two devices, in a process that has two; `test_sharded.py` reads what this prints.

A line for each case: its name, then "right", "wrong", or the type and text of the error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lanewise as lw
from corpus import case_named

collatz, power, fibonacci = (case_named(name).program for name in ("collatz", "power", "fibonacci"))


@lw.program
def checked(n):
    assert n > 0, "not positive"
    return fibonacci(n)


def powers(x: Any) -> Any:
    return lw.vmap(power, in_axes=(0, None), carrier="ticks")(x, 5).sum()


def mesh_of(kind: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((2,), ("i",), axis_types=(kind,))


def split(values: Any, kind: AxisType, *axes: str) -> jax.Array:
    return jax.device_put(values, NamedSharding(mesh_of(kind), P(*axes)))


def report(name: str, run: Callable[[Any], Any], given: Any, expected: Any) -> None:
    try:
        found = np.asarray(run(given))
        print(f"{name}: {'right' if np.allclose(found, expected) else 'wrong'}", flush=True)
    except Exception as error:
        print(f"{name}: {type(error).__name__} {error}".replace("\n", " "), flush=True)


def main() -> None:
    numbers = np.arange(1, 9, dtype=np.int32)
    reals = np.linspace(0.5, 1.5, 8, dtype=np.float32)
    ticked = lw.vmap(collatz, schedule="sweep")
    runs = {
        "machine": (ticked, numbers),
        "refill": (lw.vmap(collatz, carrier="ticks", lanes=2), numbers),
        "recursion": (lw.vmap(fibonacci, carrier="ticks"), numbers),
        "assertion": (lw.vmap(checked, carrier="ticks"), numbers),
        "gradient": (jax.grad(powers), reals),
        "native": (lw.vmap(collatz, carrier="native"), numbers),
    }
    counts = np.array([0, 1, 7, 2, 5, 8, 16, 3])
    calls = np.array([1, 2, 3, 5, 8, 13, 21, 34])
    expected = {
        **dict.fromkeys(("machine", "refill", "native"), counts),
        **dict.fromkeys(("recursion", "assertion"), calls),
        "gradient": 5.0 * reals**4,
    }
    for name, (run, given) in runs.items():
        for kind in (AxisType.Auto, AxisType.Explicit):
            report(f"{name} {kind.name}", run, split(given, kind, "i"), expected[name])
            report(f"{name} {kind.name} jit", jax.jit(run), split(given, kind, "i"), expected[name])
    plain = lw.vmap(collatz, schedule="plain")
    report("plain Auto", plain, split(numbers, AxisType.Auto, "i"), counts)
    report("plain Explicit", plain, split(numbers, AxisType.Explicit, "i"), counts)

    def inside(x: Any) -> Any:
        sharding = NamedSharding(mesh_of(AxisType.Auto), P("i"))
        return ticked(jax.lax.with_sharding_constraint(x + 0, sharding))

    report("split inside jit", jax.jit(inside), numbers, counts)
    report("copied", ticked, split(numbers, AxisType.Auto), counts)
    for name in ("machine", "assertion", "gradient"):
        run, given = runs[name]
        kind = AxisType.Explicit if name == "assertion" else AxisType.Auto
        mapped = jax.shard_map(run, mesh=mesh_of(kind), in_specs=P("i"), out_specs=P("i"))
        report(f"{name} shard_map", jax.jit(mapped), split(given, kind, "i"), expected[name])
    of_each = jax.pmap(ticked)(jnp.asarray(numbers).reshape(2, 4))
    report("pmap", lambda x: x.reshape(8), of_each, counts)


if __name__ == "__main__":
    main()
