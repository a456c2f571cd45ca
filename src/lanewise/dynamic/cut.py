"""A piece's code for many rows, forwards and in reverse, and the reverse cut in two.

The reverse of a piece gives adjoints of rows, which the levels below wait for, and adjoints of shared operands, which
nobody waits for. So its code is cut:

* `rows` runs at every level: the equations that adjoints of rows need. It also gives the *cuts*: the values that the
  rest needs of it.
* `weights` runs once after all levels, on the cuts of all rows. The gradient of a weight is there *one product* over all
  rows of the table, and that of an embedding one segment sum, where a product for each level would read and write
  the weight's adjoint each time.

The reverse reads operand rows from the arenas, where they still are, and results too. What else it needs is computed again
from these if it is cheap (arithmetic, shapes), and else saved by `forward`: in practice, what products gave.

How: `jax.vjp` of the piece batched over a number of rows is traced to one jaxpr, from which the three codes are taken by
following what they need. To JAX it is a function of arrays, so the sum over rows in a weight's adjoint is a contraction
over the axis of rows, which no rule of ours has to find. The rows' axis of each saved value and cut is found by tracing
twice, for two numbers of rows: it is the one that differs. Where some value has no such axis (a rule of JAX's merged it
with another one), nothing is saved and the cuts are the adjoints of results: all is computed again, and right.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from lanewise import _jax
from lanewise.dynamic.table import Piece

# Equations that the reverse runs again rather than reads what they gave; calls to others are saved.
_CHEAP = frozenset(
    """abs add add_any and atan2 broadcast_in_dim bitcast_convert_type ceil clamp concatenate convert_element_type copy
    copy_p cos cosh div dynamic_slice eq erf exp exp2 expand_dims expm1 floor gather ge gt imag integer_pow iota is_finite
    le log log1p logistic lt max min mul ne neg nextafter not or pad population_count pow real reduce_and reduce_max
    reduce_min reduce_or reduce_prod reduce_sum rem reshape rev round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh slice split sqrt square squeeze stop_gradient sub tan tanh transpose xor""".split()
)
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "custom_lin")
# Two numbers of rows that no other axis is likely to have.
_PROBES = (10_007, 10_009)


@dataclass(frozen=True)
class Codes:
    """The codes of a piece for a number of rows.

    `forward`: shared, rows -> results, saved. `rows`: shared, rows, results, saved, adjoints of results -> adjoints of
    rows, cuts. `weights`: shared, rows, results, saved, cuts -> adjoints of shared operands. Saved values and cuts have
    their rows along `saved_axes` and `cut_axes`.
    """

    forward: _jax.Jaxpr
    rows: _jax.Jaxpr
    weights: _jax.Jaxpr
    saved_axes: tuple[int, ...]
    cut_axes: tuple[int, ...]
    saved: tuple[_jax.ShapedArray, ...]
    cuts: tuple[_jax.ShapedArray, ...]
    # Which rows, results and saved values `weights` reads.
    reads: tuple[tuple[bool, ...], tuple[bool, ...], tuple[bool, ...]]


@functools.lru_cache(maxsize=1024)
def forward_code(piece: Piece, size: int) -> _jax.Jaxpr:
    """The piece for this many rows: shared, rows -> results."""
    structs = [_struct(t) for t in piece.shared] + [t.batch(size) for t in piece.rows]
    return _jax.trace(_batched(piece, size), structs).jaxpr


def _struct(type_: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(type_.shape, type_.dtype)


def _batched(piece: Piece, size: int) -> Any:
    num = len(piece.shared)

    def run(*args: Any) -> list[Any]:
        shared, rows = args[:num], args[num:]

        def one(*row: Any) -> list[Any]:
            return _jax.eval_jaxpr(piece.code, *shared, *row)

        return jax.vmap(one, axis_size=size)(*rows)

    return run


@dataclass
class _Joint:
    """Both directions of a piece in one code, with what its inputs and outputs are."""

    jaxpr: _jax.Jaxpr
    shared: list[Any]
    rows: list[Any]
    adjoints: list[Any]
    results: list[Any]
    row_adjoints: list[Any]
    shared_adjoints: list[Any]


def _joint(piece: Piece, size: int, rows: Sequence[bool], shared: Sequence[bool]) -> _Joint:
    fun = _batched(piece, size)
    moving = [*shared, *rows]
    out_moving = [t.differentiable for t in piece.results]

    def both(*args: Any) -> list[Any]:
        given, adjoints = args[: len(moving)], args[len(moving) :]

        def of_moving(*moved: Any) -> tuple[list[Any], list[Any]]:
            turn = iter(moved)
            outs = fun(*(next(turn) if m else a for a, m in zip(given, moving, strict=True)))
            return [o for o, m in zip(outs, out_moving) if m], outs

        _, pull, outs = jax.vjp(
            of_moving, *(a for a, m in zip(given, moving) if m), has_aux=True
        )
        return [*outs, *pull(list(adjoints))]

    structs = [_struct(t) for t in piece.shared] + [t.batch(size) for t in piece.rows]
    structs += [t.batch(size) for t in piece.results if t.differentiable]
    flat = _without_repeats(_inlined(_jax.trace(both, structs).jaxpr))
    ins, outs = list(flat.invars), list(flat.outvars)
    first, second = len(piece.shared), len(piece.shared) + len(piece.rows)
    results, adjoints = outs[: len(piece.results)], outs[len(piece.results) :]
    return _Joint(
        flat,
        ins[:first],
        ins[first:second],
        ins[second:],
        results,
        adjoints[sum(shared) :],
        adjoints[: sum(shared)],
    )


@functools.lru_cache(maxsize=1024)
def codes(piece: Piece, size: int, rows: tuple[bool, ...], shared: tuple[bool, ...]) -> Codes:
    """The codes for this many rows, with adjoints for those rows and shared operands."""
    axes = _axes(piece, rows, shared)
    return _cut(_joint(piece, size, rows, shared), axes)


@functools.lru_cache(maxsize=256)
def _axes(
    piece: Piece, rows: tuple[bool, ...], shared: tuple[bool, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The axes of rows of saved values and cuts; None where these cannot be known."""
    joints = [_joint(piece, size, rows, shared) for size in _PROBES]
    (saved, cuts), (saved_too, cuts_too) = map(_chosen, joints)
    if len(saved) != len(saved_too) or len(cuts) != len(cuts_too):
        return None
    found: list[tuple[int, ...]] = []
    for values, others in ((saved, saved_too), (cuts, cuts_too)):
        of_values = []
        for a, b in zip(values, others):
            differ = [
                i
                for i, (m, n) in enumerate(zip(a.aval.shape, b.aval.shape))
                if (m, n) == _PROBES
            ]
            if len(differ) != 1 or a.aval.ndim != b.aval.ndim:
                return None
            of_values.append(differ[0])
        found.append(tuple(of_values))
    return found[0], found[1]


def _chosen(joint: _Joint) -> tuple[list[Any], list[Any]]:
    """The values to save, and the cuts."""
    makers = {v: eqn for eqn in joint.jaxpr.eqns for v in eqn.outvars}
    linear = _reached(joint.jaxpr.eqns, joint.adjoints)
    of_rows = _reached(joint.jaxpr.eqns, joint.rows)
    # What adjoints of rows need of the linear part; the rest of it is for weights alone.
    needed: set[Any] = set()
    todo = [v for v in _vars(joint.row_adjoints) if v in linear]
    while todo:
        v = todo.pop()
        if v in needed:
            continue
        needed.add(v)
        if v in makers:
            todo += [a for a in _vars(makers[v].invars) if a in linear]
    needed |= set(joint.adjoints)
    cuts: dict[Any, None] = {}
    seen: set[Any] = set()
    todo = _vars(joint.shared_adjoints)
    primal: list[Any] = []
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        if v in needed:
            cuts[v] = None
        elif v not in linear:
            primal.append(v)
        elif v in makers:
            todo += _vars(makers[v].invars)
    for v in needed:
        if v in makers:
            primal += [a for a in _vars(makers[v].invars) if a not in linear]
    primal += [v for v in _vars(joint.row_adjoints) if v not in linear]
    have = {*joint.shared, *joint.rows, *_vars(joint.results)}
    saved: set[Any] = set()
    seen = set()
    while primal:
        v = primal.pop()
        if v in seen or v in have or v not in makers:
            continue
        seen.add(v)
        eqn = makers[v]
        # What shared operands alone make is the same for all levels.
        if v in of_rows and eqn.primitive.name not in _CHEAP:
            saved.add(v)
        else:
            primal += _vars(eqn.invars)
    in_order = [v for eqn in joint.jaxpr.eqns for v in eqn.outvars]
    place = {v: i for i, v in enumerate([*joint.adjoints, *in_order])}
    by_place = functools.partial(sorted, key=place.__getitem__)
    return by_place(saved), by_place(cuts)


def _cut(joint: _Joint, axes: Any) -> Codes:
    if axes is None:
        saved, cuts = [], list(joint.adjoints)
        axes = (), (0,) * len(cuts)
    else:
        saved, cuts = _chosen(joint)
    inputs = [*joint.shared, *joint.rows]
    results = list(joint.results)
    # A result that is an operand, or another result, or a constant, is read as what it is.
    names: dict[Any, None] = dict.fromkeys(inputs)
    places = []
    for r in results:
        fresh = isinstance(r, _jax.Literal) or r in names
        places.append(_jax.new_var(r.aval) if fresh else r)
        names[places[-1]] = None
    eqns = joint.jaxpr.eqns
    forward = _taken(eqns, inputs, [*results, *saved])
    rows = _taken(eqns, [*inputs, *places, *saved, *joint.adjoints], [*joint.row_adjoints, *cuts])
    weights = _taken(eqns, [*inputs, *places, *saved, *cuts], joint.shared_adjoints)
    read = _jax.used_inputs(weights)
    one, two = len(joint.shared), len(inputs)
    three = two + len(places)
    return Codes(
        forward,
        rows,
        weights,
        *axes,
        tuple(v.aval for v in saved),
        tuple(v.aval for v in cuts),
        (
            tuple(read[one:two]),
            tuple(read[two:three]),
            tuple(read[three : three + len(saved)]),
        ),
    )


def _vars(atoms: Iterable[Any]) -> list[Any]:
    return [a for a in atoms if isinstance(a, _jax.Var)]


def _reached(eqns: Sequence[_jax.JaxprEqn], start: Iterable[Any]) -> set[Any]:
    """All that depends on these."""
    found = set(start)
    for eqn in eqns:
        if any(a in found for a in _vars(eqn.invars)):
            found.update(eqn.outvars)
    return found


def _taken(eqns: Sequence[_jax.JaxprEqn], inputs: Sequence[Any], outs: Sequence[Any]) -> _jax.Jaxpr:
    """The equations that make `outs` of these inputs."""
    have, need = set(inputs), set(_vars(outs))
    kept = []
    for eqn in reversed(eqns):
        if any(v in need and v not in have for v in eqn.outvars):
            kept.append(eqn)
            need.update(_vars(eqn.invars))
    return _jax.new_jaxpr(inputs, outs, kept[::-1])


def _inlined(jaxpr: _jax.Jaxpr) -> _jax.Jaxpr:
    """The same code with the calls of functions that `jax.jit` leaves written out."""

    def code(*args: Any) -> list[Any]:
        return _evaluate(jaxpr, args)

    if not any(e.primitive.name in _CALLS for e in jaxpr.eqns):
        return jaxpr
    return _inlined(_jax.trace(code, [v.aval for v in jaxpr.invars]).jaxpr)


def _evaluate(jaxpr: _jax.Jaxpr, args: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.invars, args, strict=True))

    def read(a: Any) -> Any:
        return a.val if isinstance(a, _jax.Literal) else values[a]

    for eqn in jaxpr.eqns:
        given = [read(a) for a in eqn.invars]
        inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        if eqn.primitive.name in _CALLS and inner is not None:
            consts = _jax.attached_consts(inner)
            outs = _evaluate(_jax.flat_jaxpr(inner), [*consts, *given])
        else:
            outs = _jax.run_eqn(eqn, given)
        values.update(zip(eqn.outvars, outs, strict=True))
    return [read(a) for a in jaxpr.outvars]


def _without_repeats(jaxpr: _jax.Jaxpr) -> _jax.Jaxpr:
    """The same code in which no equation repeats an earlier one."""
    seen: dict[Any, list[Any]] = {}
    same: dict[Any, Any] = {}
    eqns = []

    def name(a: Any) -> Any:
        if isinstance(a, _jax.Literal):
            return (str(a.aval), str(a.val))
        return same.get(a, a)

    for eqn in jaxpr.eqns:
        new = eqn.replace(invars=[same.get(a, a) if isinstance(a, _jax.Var) else a for a in eqn.invars])
        try:
            key = (eqn.primitive, tuple(map(name, eqn.invars)), tuple(sorted(eqn.params.items())))
            before = None if eqn.effects else seen.get(key)
        except TypeError:
            eqns.append(new)
            continue
        if before is not None:
            same.update(zip(eqn.outvars, before))
            continue
        seen[key] = eqn.outvars
        eqns.append(new)
    outs = [same.get(a, a) if isinstance(a, _jax.Var) else a for a in jaxpr.outvars]
    return _jax.new_jaxpr(jaxpr.invars, outs, eqns)
