"""The shared set of programs: every carrier, schedule and transformation is tested over them.

Each program is written for one example in plain Python control flow, and means the same four ways:
plain Python on concrete scalars, the one-lane reference, a machine of many lanes, and, where JAX
can express it, `jax.vmap` of the same function in `jax.lax` form. The themes live in `programs/`.
"""

from __future__ import annotations

from programs import (
    array_operators,
    arrays,
    children,
    edges,
    integers,
    learning,
    numerics,
    placed,
    pytrees,
    recursion,
    sampling,
    search,
    trees,
)
from programs.case import Case

__all__ = ["CORPUS", "Case", "case_named"]

CORPUS: tuple[Case, ...] = (
    *integers.CASES,
    *recursion.CASES,
    *search.CASES,
    *numerics.CASES,
    *sampling.CASES,
    *arrays.CASES,
    *array_operators.CASES,
    *pytrees.CASES,
    *learning.CASES,
    *edges.CASES,
    *trees.CASES,
    *placed.CASES,
    *children.CASES,
)


def case_named(name: str) -> Case:
    """The case with that name.

    >>> case_named("gcd").name
    'gcd'
    """
    return next(case for case in CORPUS if case.name == name)
