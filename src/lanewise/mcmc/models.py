"""What is sampled: a log density, where chains start, the quantities that a position stands for, and the data.

`from_numpyro` (`by_numpyro.py`) and `from_pymc` (`by_pymc.py`) make a `Model` from a model in those languages. Their
own unconstrained coordinates and densities are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Array, Float, Key

Position = Any  # any pytree of arrays of floats


@dataclass(frozen=True)
class Model:
    """A density to sample.

    * `logdensity` takes a position, any pytree of arrays, and gives a number.
    * `init` makes a position from a key.
    * `shown` turns a position into the named quantities that are kept; None keeps the position itself.
    * `unconstrained` turns such quantities, those that are free, into the position they stand for.
    * `log_likelihood` gives the log likelihood of each observation at a position, by the name of what was observed.
    * `predictive` draws predicted observations from a key and a position; `prior` draws all quantities from the prior,
      and predicted observations, from a key.
    * `observed` and `constant` are the data, by name. `dims` names the axes of quantities and data, `coords` the places
      along them, as ArviZ has both.

    >>> import jax
    >>> normal = Model(lambda x: -0.5 * x @ x, init=lambda key: jax.random.normal(key, (3,)))
    >>> normal.logdensity(normal.init(jax.random.key(0))).shape
    ()
    """

    logdensity: Callable[[Position], Float[Array, ""]]
    init: Callable[[Key[Array, ""]], Position] | None = None
    shown: Callable[[Position], dict[str, Array]] | None = None
    unconstrained: Callable[[dict[str, Array]], Position] | None = None
    log_likelihood: Callable[[Position], dict[str, Array]] | None = None
    predictive: Callable[[Key[Array, ""], Position], dict[str, Array]] | None = None
    prior: Callable[[Key[Array, ""]], dict[str, Array]] | None = None
    observed: Mapping[str, Any] = field(default_factory=dict)
    constant: Mapping[str, Any] = field(default_factory=dict)
    dims: Mapping[str, Sequence[str]] = field(default_factory=dict)
    coords: Mapping[str, Any] = field(default_factory=dict)
