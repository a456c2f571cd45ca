"""What a piece of code costs a lane: operations and bytes, counted from its equations.

Counts are for choosing between ways to run a block, so they need the right order of magnitude only. A loop of
unknown length counts as `ASSUMED_TRIPS` iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.core.accumulate import accumulate_p

ASSUMED_TRIPS = 16

# A lane's own index makes a gather or scatter of what would be a slice.
INDEXED_OPERATIONS = 40.0

CALLBACK_OPERATIONS = 1e7

FREE = frozenset(
    "reshape squeeze expand_dims broadcast_in_dim slice copy copy_p stop_gradient optimization_barrier"
    " bitcast_convert_type pvary unfilled".split()
)
TRANSCENDENTAL = frozenset(
    "exp exp2 expm1 log log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh logistic pow"
    " sqrt rsqrt cbrt erf erfc erf_inv lgamma digamma igamma igammac bessel_i0e bessel_i1e polygamma zeta".split()
)
_DIVISIONS = frozenset("div rem integer_pow".split())
_CUBIC = frozenset(
    "cholesky triangular_solve eigh eig svd qr lu geqrf householder_product schur".split()
)


@dataclass(frozen=True)
class Cost:
    """Scalar operations and bytes written, for one lane.

    `products` are those of the operations that belong to matrix products; `shared` are operations beside them whose
    operands are the same for all lanes, so that all lanes together may do them once.
    """

    operations: float = 0.0
    bytes: float = 0.0
    products: float = 0.0
    shared: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.operations + other.operations,
            self.bytes + other.bytes,
            self.products + other.products,
            self.shared + other.shared,
        )

    def __mul__(self, times: float) -> Cost:
        return Cost(
            self.operations * times, self.bytes * times, self.products * times, self.shared * times
        )

    def __str__(self) -> str:
        return f"{self.operations:,.0f} ops, {self.bytes:,.0f} bytes"


def size_of(atom: object) -> int:
    return math.prod(atom.aval.shape)  # type: ignore[attr-defined]


def bytes_of(atom: object) -> int:
    dtype = atom.aval.dtype  # type: ignore[attr-defined]
    return size_of(atom) * getattr(dtype, "itemsize", 8)


def holds_while(eqns: Iterable[JaxprEqn]) -> bool:
    """Whether a loop of unknown length lies inside: run on values that are not there yet, it might never end."""
    return any(
        eqn.primitive.name == "while"
        or any(holds_while(inner.eqns) for inner in _jax.subjaxprs(eqn))
        for eqn in eqns
    )


def cost_of(eqns: Iterable[JaxprEqn]) -> Cost:
    """The cost of running equations once."""
    total = Cost()
    for eqn in eqns:
        total = total + eqn_cost(eqn)
    return total


def cost_with_shared(eqns: Iterable[JaxprEqn], is_uniform: Callable[[Var], bool]) -> Cost:
    """The cost of a block's equations when these variables are the same for all lanes at its start.

    A read of a shared array at the lane's own place costs the lane its index: lanes that agree read together.
    """
    total = Cost()
    defined: dict[Var, bool] = {}

    def same(atom: Atom) -> bool:
        if isinstance(atom, Literal):
            return True
        return defined[atom] if atom in defined else is_uniform(atom)

    for eqn in eqns:
        cost = eqn_cost(eqn)
        everywhere = all(map(same, eqn.invars)) and not eqn.effects
        if everywhere:
            total = total + Cost(shared=cost.operations)
        elif eqn.primitive.name in ("gather", "dynamic_slice") and same(eqn.invars[0]):
            total = total + Cost(INDEXED_OPERATIONS / 2, cost.bytes)
        else:
            total = total + cost
        defined.update((var, everywhere) for var in eqn.outvars)
    return total


def eqn_cost(eqn: JaxprEqn) -> Cost:
    """The cost of one equation, what it holds included."""
    name = eqn.primitive.name
    written = sum(map(bytes_of, eqn.outvars))
    out_size = sum(map(size_of, eqn.outvars))
    if name in FREE:
        return Cost(0.0, 0.0)
    if name == "cond":
        branches = [cost_of(branch.eqns) for branch in eqn.params["branches"]]
        return max(branches, key=lambda c: c.operations) + Cost(out_size, written)
    if name == "while":
        once = cost_of(eqn.params["body_jaxpr"].eqns) + cost_of(eqn.params["cond_jaxpr"].eqns)
        return once * ASSUMED_TRIPS
    if name == "scan":
        return cost_of(eqn.params["jaxpr"].eqns) * max(eqn.params["length"], 1)
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        depth = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
        operations = 2.0 * out_size * depth
        return Cost(operations, written, operations)
    if name == "conv_general_dilated":
        operations = 2.0 * out_size * size_of(eqn.invars[1]) / max(eqn.outvars[0].aval.shape[-1], 1)
        return Cost(operations, written, operations)
    if name in _CUBIC:
        shape = eqn.invars[0].aval.shape
        return Cost(float(size_of(eqn.invars[0]) * shape[-1]), written)
    if name in ("sort", "top_k"):
        in_size = sum(map(size_of, eqn.invars))
        return Cost(4.0 * in_size * max(math.log2(max(in_size, 2)), 1.0), written)
    if name in ("threefry2x32", "random_bits", "random_split", "random_fold_in", "random_seed"):
        return Cost(100.0 * max(out_size, 1), written)
    if name.startswith("scatter") or name == "dynamic_update_slice":
        update = eqn.invars[1 if name == "dynamic_update_slice" else 2]
        return Cost(INDEXED_OPERATIONS + 4.0 * size_of(update), 0.0)
    if name in ("gather", "dynamic_slice"):
        return Cost(INDEXED_OPERATIONS / 2 + 2.0 * out_size, written)
    if eqn.primitive is accumulate_p:
        *_, added = eqn.invars if eqn.params["places"] else eqn.invars[:1]
        return Cost(float(size_of(added)) + INDEXED_OPERATIONS * (len(eqn.invars) > 1), 0.0)
    if "callback" in name:
        # It must run only where a lane is: expensive enough never to be run for nobody.
        return Cost(CALLBACK_OPERATIONS, written)
    inner = list(_jax.subjaxprs(eqn))
    if inner and name not in ("reduce", "reduce_window", "reduce_precision"):
        return max((cost_of(j.eqns) for j in inner), key=lambda c: c.operations)
    if name.startswith(("reduce", "arg", "cum")):
        return Cost(float(sum(map(size_of, eqn.invars))), written)
    weight = 10.0 if name in TRANSCENDENTAL else 4.0 if name in _DIVISIONS else 1.0
    return Cost(weight * out_size, written)
