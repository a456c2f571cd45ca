"""Cut code in two: what the forward sweep runs, what the reverse sweep runs, and what is saved between them.

The sweeps of a piece of code are first traced as one: values and adjoints in, results and adjoints out. What does not
depend on adjoints can run in the forward sweep. Some of that the reverse sweep reads, and each such value can be saved,
or computed again from others that are. Which to save is a minimum cut: every value costs its bytes; what both sweeps
have anyway costs nothing; what is expensive to compute is never computed twice. (The same idea serves PyTorch's
compiler as its min-cut partitioner; here it decides what a loop saves for each iteration and a call for each frame, so
an array that is written in place and read one element at a time saves the elements.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lanewise import _jax
from lanewise.core.primitives.facts import (
    Effort,
    effort_of,
    eqn_cost,
    facts_of,
    is_control,
    is_matrix_work,
    results_size,
)
from lanewise.diff.calls import calls

# A product that sums few terms is cheap to compute twice: a wide array times a small matrix.
FEW_TERMS = 32
_ENDLESS = 2**30
_MOST_BYTES = 2**26


@dataclass(frozen=True)
class Split:
    """Code cut in two.

    `forward` takes the known inputs and gives the first results, then what is saved. `reverse` takes the known inputs
    that are free, what is saved, and the other inputs, and gives the other results.
    """

    forward: _jax.Jaxpr
    reverse: _jax.Jaxpr
    saved: tuple[_jax.ShapedArray, ...]


def run_again(eqn: _jax.JaxprEqn) -> bool:
    """Whether an equation outside all loops may be run again in the reverse sweep.

    What takes little computation is: to compute it twice costs less than to write and read it.
    """
    if eqn.primitive.name == "dot_general":
        (summed, _), _ = eqn.params["dimension_numbers"]
        return math.prod(eqn.invars[0].aval.shape[i] for i in summed) <= FEW_TERMS
    return effort_of(eqn) <= Effort.ARITHMETIC


def is_costly(eqn: _jax.JaxprEqn) -> bool:
    """Whether an equation, or one in its branches, takes many operations for each number that it gives."""
    if eqn.primitive.name == "cond":
        return any(is_costly(each) for code in eqn.params["branches"] for each in code.eqns)
    return is_matrix_work(eqn) and eqn_cost(eqn).operations > 2 * FEW_TERMS * results_size(eqn)


def run_again_inside(eqn: _jax.JaxprEqn) -> bool:
    """The same inside a loop: a loop inside it is run again, so that its tape does not outlive the iteration.

    So are branches, unless what takes much computation is in them, which they save as code without branches does.
    """
    return run_again(eqn) or (is_control(eqn) and not is_costly(eqn))


def run_again_from_host(eqn: _jax.JaxprEqn) -> bool:
    """The same where what is saved is in the host's memory: all that is computed element by element."""
    return run_again(eqn) or effort_of(eqn) <= Effort.FUNCTION


def run_again_in_frame(eqn: _jax.JaxprEqn) -> bool:
    """The same in a frame of a recursion: loops are run again unless they make calls."""
    return run_again_inside(eqn) and not any(calls(code) for code in _jax.subjaxprs(eqn))


def split(
    jaxpr: _jax.Jaxpr,
    known: Sequence[bool],
    free: Sequence[bool],
    num_results: int,
    again: Callable[[_jax.JaxprEqn], bool] = run_again,
) -> Split:
    """Cut code whose first `num_results` results need only the `known` inputs; the reverse has the `free` ones too."""
    jaxpr = _jax.without_unused(jaxpr)
    known_vars = {v for v, flag in zip(jaxpr.invars, known, strict=True) if flag}
    forward_eqns, reverse_eqns = _by_sweep(jaxpr, known_vars)
    results, adjoints = _jax.divided(jaxpr.outvars, num_results)
    needed = [
        a
        for a in (*(a for eqn in reverse_eqns for a in eqn.invars), *adjoints)
        if not isinstance(a, _jax.Literal) and a in known_vars
    ]
    costly = [v for v, k, f in zip(jaxpr.invars, known, free, strict=True) if k and not f]
    rounded = {v for e in forward_eqns for v in e.outvars if _jax.has_tangent(v.aval)}

    def repeats(eqn: _jax.JaxprEqn) -> bool:
        return again(eqn) and not _silent(eqn).effects and not _decides(eqn, rounded)

    saved = _cheapest(forward_eqns, costly, list(dict.fromkeys(needed)), repeats)
    available = [v for v, k, f in zip(jaxpr.invars, known, free, strict=True) if k and f]
    unknown = [v for v, k in zip(jaxpr.invars, known, strict=True) if not k]
    taken = [v for v, k in zip(jaxpr.invars, known, strict=True) if k]
    forward = _jax.new_jaxpr(taken, [*results, *saved], forward_eqns)
    # In the reverse code a saved value is an input: what computed it is dropped.
    in_reverse = set(saved)
    repeated = [_without_results(_silent(eqn), in_reverse) for eqn in forward_eqns if repeats(eqn)]
    reverse = _jax.new_jaxpr([*available, *saved, *unknown], adjoints, [*repeated, *reverse_eqns])
    return Split(
        _jax.without_unused(forward),
        _jax.without_unused(reverse),
        tuple(v.aval for v in saved),
    )


def split_costly(jaxpr: _jax.Jaxpr, known: int, most_bytes: int) -> Split | None:
    """Cut code, whose first inputs are known in both sweeps, so that what is costly is not run again.

    What is saved takes at most `most_bytes`: of what is costly, what costs most for its bytes comes first. None if
    nothing is saved.
    """
    jaxpr = _jax.without_unused(jaxpr)
    forward, _ = _by_sweep(jaxpr, set(jaxpr.invars[:known]))
    chosen = [eqn for eqn in forward if is_costly(eqn)]
    chosen.sort(key=lambda eqn: -eqn_cost(eqn).operations / max(results_size(eqn), 1))
    flags = [i < known for i in range(len(jaxpr.invars))]
    while chosen:
        kept = {v for eqn in chosen for v in eqn.outvars}
        cut = split(jaxpr, flags, flags, 0, lambda eqn, kept=kept: kept.isdisjoint(eqn.outvars))
        if sum(map(bytes_of, cut.saved)) <= most_bytes:
            return cut if cut.saved else None
        chosen = chosen[: len(chosen) // 2]
    return None


def _by_sweep(
    jaxpr: _jax.Jaxpr, known: set[_jax.Var]
) -> tuple[list[_jax.JaxprEqn], list[_jax.JaxprEqn]]:
    """The equations that can run in the forward sweep, and the others; what the first give is added to `known`."""
    forward, reverse = [], []
    for eqn in jaxpr.eqns:
        ahead = all(isinstance(a, _jax.Literal) or a in known for a in eqn.invars)
        (forward if ahead else reverse).append(eqn)
        if ahead:
            known.update(eqn.outvars)
    return forward, reverse


def _decides(eqn: _jax.JaxprEqn, rounded: set[_jax.Var]) -> bool:
    """Whether an equation compares numbers so that another rounding, a second time, would make a difference.

    A branch must go back the way it came. And JAX's derivative of a maximum looks for the entry that equals it.
    """
    name = eqn.primitive.name
    if not facts_of(eqn).compares or (eqn.outvars[0].aval.shape and name not in ("eq", "ne")):
        return False
    return any(not isinstance(a, _jax.Literal) and a in rounded for a in eqn.invars)


def _silent(eqn: _jax.JaxprEqn) -> _jax.JaxprEqn:
    """An equation without what it holds for effects alone: in the reverse sweep these have already happened."""
    if not eqn.effects or not eqn.outvars:
        return eqn
    inputs = [a for a in eqn.invars if not isinstance(a, _jax.Literal)]
    return _jax.without_effects(_jax.new_jaxpr(inputs, eqn.outvars, [eqn])).eqns[0]


def _without_results(eqn: _jax.JaxprEqn, taken: set[_jax.Var]) -> _jax.JaxprEqn:
    """An equation that is run again only for those of its results that are not saved."""
    outvars = [_jax.new_var(v.aval) if v in taken else v for v in eqn.outvars]
    return eqn.replace(outvars=outvars)


def _cheapest(
    eqns: Sequence[_jax.JaxprEqn],
    costly: Sequence[_jax.Var],
    needed: Sequence[_jax.Var],
    repeats: Callable[[_jax.JaxprEqn], bool],
) -> list[_jax.Var]:
    """The values to save, of the fewest bytes, from which all that is needed can be had."""
    # Each value is an edge, from its own node to the next, of the capacity of its bytes.
    number: dict[_jax.Var, int] = {}
    edges: list[tuple[int, int, int]] = []
    source, sink = 0, 1

    def node(var: _jax.Var) -> int:
        if var not in number:
            number[var] = 2 + 2 * len(number)
            edges.append((number[var], number[var] + 1, _capacity(var.aval)))
        return number[var]

    for var in costly:
        edges.append((source, node(var), _ENDLESS))
    for eqn in eqns:
        inputs = [a for a in eqn.invars if not isinstance(a, _jax.Literal)]
        for var in eqn.outvars:
            if repeats(eqn):
                edges += [(number[a] + 1, node(var), _ENDLESS) for a in inputs if a in number]
            else:
                edges.append((source, node(var), _ENDLESS))
    wanted = [var for var in needed if var in number]
    if not wanted:
        return []
    edges += [(number[var] + 1, sink, _ENDLESS) for var in wanted]
    reached = _source_side(edges, 2 + 2 * len(number), source, sink)
    return [var for var, at in number.items() if reached[at] and not reached[at + 1]]


def _source_side(edges: Sequence[tuple[int, int, int]], nodes: int, source: int, sink: int) -> Any:
    """Which nodes lie on the source's side of a minimum cut: of all such cuts, the one nearest the sink."""
    # SciPy comes with JAX; imported here as most programs that import Lanewise do not differentiate.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    capacity: dict[tuple[int, int], int] = {}
    for tail, head, most in edges:
        capacity[tail, head] = max(capacity.get((tail, head), 0), most)
    tails, heads = np.array(list(capacity), np.int32).T
    graph = csr_array(
        (np.array(list(capacity.values()), np.int32), (tails, heads)), shape=(nodes, nodes)
    )
    flow = maximum_flow(graph, source, sink).flow
    left = graph - flow
    left.data = (left.data > 0).astype(np.int32)
    left.eliminate_zeros()
    # Values nearest the sink are the most finished: fewer of them are computed again.
    towards = breadth_first_order(left.T.tocsr(), sink, return_predecessors=False)
    reached = np.ones(nodes, bool)
    reached[towards] = False
    return reached


def bytes_of(aval: _jax.ShapedArray) -> int:
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 8)


def _capacity(aval: _jax.ShapedArray) -> int:
    return min(max(bytes_of(aval), 1), _MOST_BYTES)
