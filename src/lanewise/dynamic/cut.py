"""A piece's code for many rows, forwards and in reverse, and the reverse cut in parts.

The reverse of a piece gives adjoints of rows, which the levels below wait for, and adjoints of shared operands, which
nothing waits for. Much of what it computes does not depend on adjoints at all. So its code is cut:

* `prepare` runs once before the levels, for all rows: what the rest needs of the forward direction and is not cheap
  to compute again (`tanh` of a gate).
* `rows` runs at every level: it is linear in the adjoints of results, gives those of rows, and the *cuts*: adjoints
  inside the piece from which those of shared operands are made.
* `weights` runs once after all levels, on the cuts of all rows. The gradient of a weight is there *one product* over
  all rows of the table, and that of an embedding one segment sum, where a product for each level would read and write
  the weight's adjoint each time.

The reverse reads operand rows and results from the arenas, where they still are. What else it needs is computed again
from these if it is arithmetic, and else saved by `forward`: in practice, what products gave.

How: `jax.vjp` of the piece batched over a number of rows is traced to one jaxpr, from which the codes are taken by
following what they need. To JAX it is a function of arrays, so the sum over rows in a weight's adjoint is a
contraction over the axis of rows, which no rule of ours has to find: `weights` begins where a linear equation's
result has no such axis. The rows' axis of a value is found by tracing twice, for two numbers of rows: it is the one
that differs. Where some value has none or two (a rule of JAX's merged it with another one), nothing is saved or
prepared and the cuts are the adjoints of results: all is computed again, and right.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from lanewise import _jax
from lanewise.core.primitives.facts import Effort, code_of, effort_of, is_wrapper
from lanewise.dynamic.table import Piece

# Run again wherever what they give is needed: arithmetic and shapes.
_TRIVIAL = Effort.ARITHMETIC
# Run again for all rows at once, rather than saved; what any other equation gives is saved.
_CHEAP = Effort.SUM
# Two numbers of rows that no other axis is likely to have.
_PROBES = (10_007, 10_009)


@dataclass(frozen=True)
class Codes:
    """The codes of a piece for a number of rows.

    `forward`: shared, rows -> results, saved. `prepare`: shared, rows, results, saved -> prepared. `rows`: shared,
    rows, results, saved, prepared, adjoints of results -> adjoints of rows, cuts. `weights`: shared, rows, results,
    saved, prepared, cuts -> adjoints of shared operands. `axes` are those of rows of all between shared and adjoints,
    then of cuts.
    """

    forward: _jax.Jaxpr
    prepare: _jax.Jaxpr
    rows: _jax.Jaxpr
    weights: _jax.Jaxpr
    saved: tuple[_jax.ShapedArray, ...]
    cuts: tuple[_jax.ShapedArray, ...]
    axes: tuple[int, ...]
    cut_axes: tuple[int, ...]
    again: bool  # whether all is computed again

    @property
    def saved_axes(self) -> tuple[int, ...]:
        begin = len(self.axes) - len(self.prepare.outvars) - len(self.saved)
        return self.axes[begin : begin + len(self.saved)]

    def reads(self, code: _jax.Jaxpr, shared: int) -> list[bool]:
        """Which of the values between shared and adjoints a code reads."""
        return _jax.used_inputs(code)[shared : shared + len(self.axes)]


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


def _both_directions(
    piece: Piece, size: int, rows: tuple[bool, ...], shared: tuple[bool, ...]
) -> _jax.Jaxpr:
    """Shared, rows, adjoints of results -> results, adjoints of shared, adjoints of rows."""
    fun = _batched(piece, size)
    active = [*shared, *rows]
    out_active = [t.differentiable for t in piece.results]

    def both(*args: Any) -> list[Any]:
        given, adjoints = args[: len(active)], args[len(active) :]

        def of_active(*moved: Any) -> tuple[list[Any], list[Any]]:
            turn = iter(moved)
            outs = fun(*(next(turn) if m else a for a, m in zip(given, active, strict=True)))
            return [o for o, m in zip(outs, out_active) if m], outs

        _, pull, outs = jax.vjp(of_active, *(a for a, m in zip(given, active) if m), has_aux=True)
        return [*outs, *pull(list(adjoints))]

    structs = [_struct(t) for t in piece.shared] + [t.batch(size) for t in piece.rows]
    structs += [t.batch(size) for t in piece.results if t.differentiable]
    return _jax.trace(both, structs).jaxpr


def _joint(piece: Piece, size: int, rows: tuple[bool, ...], shared: tuple[bool, ...]) -> _Joint:
    flat = _inlined(_both_directions(piece, size, rows, shared))
    flat = _without(flat, _known_repeats(piece, rows, shared))
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
    joint, axes = _joint(piece, size, rows, shared), _axes(piece, rows, shared)
    # JAX may write other code where the number of rows happens to be that of another axis.
    fits = axes is not None and len(_made(joint.jaxpr.eqns)) == len(axes)
    return _cut(joint, axes if fits else None)


@functools.lru_cache(maxsize=256)
def _axes(
    piece: Piece, rows: tuple[bool, ...], shared: tuple[bool, ...]
) -> list[int | None] | None:
    """For each value that the joint code makes its axis of rows, or None; None for all where some is unclear."""
    one, two = (_joint(piece, size, rows, shared).jaxpr.eqns for size in _PROBES)
    if [e.primitive for e in one] != [e.primitive for e in two]:
        return None
    found: list[int | None] = []
    for a, b in zip(_made(one), _made(two), strict=True):
        if a.aval.shape == b.aval.shape:
            found.append(None)
            continue
        pairs = list(zip(a.aval.shape, b.aval.shape))
        differ = [i for i, (m, n) in enumerate(pairs) if m != n]
        if len(a.aval.shape) != len(b.aval.shape) or [pairs[i] for i in differ] != [_PROBES]:
            return None
        found.append(differ[0])
    return found


def _made(eqns: Sequence[_jax.JaxprEqn]) -> list[Any]:
    return [v for eqn in eqns for v in eqn.outvars]


def _linear_parts(
    joint: _Joint, axis: dict[Any, int | None]
) -> tuple[set[Any], list[Any], list[Any]]:
    """What depends on adjoints; the cuts; and the values that do not, of which the linear equations are made."""
    makers = {v: eqn for eqn in joint.jaxpr.eqns for v in eqn.outvars}
    linear = _jax.reached(joint.jaxpr.eqns, joint.adjoints)
    cuts: dict[Any, None] = {}
    primal: dict[Any, None] = {}
    seen: set[tuple[Any, bool]] = set()
    # From each end backwards; `summed`: still after the sum over rows.
    todo = [(v, True) for v in _vars(joint.shared_adjoints)]
    todo += [(v, False) for v in _vars(joint.row_adjoints)]
    while todo:
        v, summed = todo.pop()
        if (v, summed) in seen:
            continue
        seen.add((v, summed))
        if v not in linear:
            primal[v] = None
            continue
        if summed and axis[v] is not None:
            cuts[v] = None
            summed = False
        if v in makers:
            todo += [(a, summed) for a in _vars(makers[v].invars)]
    return linear, list(cuts), list(primal)


def _chosen(joint: _Joint, axis: dict[Any, int | None]) -> tuple[list[Any], list[Any], list[Any]]:
    """The values to save, those to prepare, and the cuts."""
    makers = {v: eqn for eqn in joint.jaxpr.eqns for v in eqn.outvars}
    _, cuts, primal = _linear_parts(joint, axis)
    have = {*joint.shared, *joint.rows, *_vars(joint.results)}

    def back(start: list[Any], through: Effort) -> list[Any]:
        """What stops a walk back from some values through equations that may run again."""
        found: dict[Any, None] = {}
        seen: set[Any] = set()
        todo = list(start)
        while todo:
            v = todo.pop()
            if v in seen or v in have or v not in makers:
                continue
            seen.add(v)
            # What shared operands alone make is the same for all levels.
            if axis[v] is None or effort_of(makers[v]) <= through:
                todo += _vars(makers[v].invars)
            else:
                found[v] = None
        return list(found)

    saved = back(primal, _CHEAP)
    have.update(saved)
    prepared = back(primal, _TRIVIAL)
    place = {v: i for i, v in enumerate([*joint.adjoints, *_made(joint.jaxpr.eqns)])}
    by_place = functools.partial(sorted, key=place.__getitem__)
    return by_place(saved), by_place(prepared), by_place(cuts)


def _cut(joint: _Joint, axes: list[int | None] | None) -> Codes:
    saved, prepared, cuts = [], [], list(joint.adjoints)
    axis: dict[Any, Any] = dict.fromkeys([*joint.rows, *joint.adjoints], 0)
    if axes is not None:
        axis.update(zip(_made(joint.jaxpr.eqns), axes, strict=True))
        saved, prepared, cuts = _chosen(joint, axis)
    eqns = joint.jaxpr.eqns
    inputs = [*joint.shared, *joint.rows]
    # A result that is an operand, or another result, or a constant, is read as what it is.
    names: dict[Any, None] = dict.fromkeys(inputs)
    results = []
    for r in joint.results:
        results.append(_jax.new_var(r.aval) if isinstance(r, _jax.Literal) or r in names else r)
        names[results[-1]] = None
    known = [*inputs, *results, *saved]
    return Codes(
        _taken(eqns, inputs, [*joint.results, *saved]),
        _taken(eqns, known, prepared),
        _taken(eqns, [*known, *prepared, *joint.adjoints], [*joint.row_adjoints, *cuts]),
        _taken(eqns, [*known, *prepared, *cuts], joint.shared_adjoints),
        tuple(v.aval for v in saved),
        tuple(v.aval for v in cuts),
        (0,) * (len(joint.rows) + len(results)) + tuple(axis[v] for v in [*saved, *prepared]),
        tuple(axis[v] for v in cuts),
        axes is None,
    )


def _vars(atoms: Iterable[Any]) -> list[Any]:
    return [a for a in atoms if isinstance(a, _jax.Var)]


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

    if not any(is_wrapper(e) for e in jaxpr.eqns):
        return jaxpr
    return _inlined(_jax.trace(code, [v.aval for v in jaxpr.invars]).jaxpr)


def _evaluate(jaxpr: _jax.Jaxpr, args: Sequence[Any]) -> list[Any]:
    def rule(eqn: _jax.JaxprEqn, given: list[Any]) -> list[Any]:
        return _evaluate(code_of(eqn), given) if is_wrapper(eqn) else _jax.run_eqn(eqn, given)

    return _jax.evaluate(jaxpr, args, rule)


# By equation: its primitive's name, and the number of an earlier one that it repeats.
Repeats = tuple[tuple[str, int | None], ...]


def _repeats(jaxpr: _jax.Jaxpr) -> Repeats:
    """Which equations repeat an earlier one."""
    seen: dict[Any, int] = {}
    same: dict[Any, Any] = {}
    found: list[tuple[str, int | None]] = []

    def name(a: Any) -> Any:
        if isinstance(a, _jax.Literal):
            return (str(a.aval), str(a.val))
        return same.get(a, a)

    for i, eqn in enumerate(jaxpr.eqns):
        before = None
        try:
            key = (eqn.primitive, tuple(map(name, eqn.invars)), tuple(sorted(eqn.params.items())))
            before = None if eqn.effects else seen.setdefault(key, i)
        except TypeError:
            pass
        if before == i:
            before = None
        if before is not None:
            same.update(zip(eqn.outvars, jaxpr.eqns[before].outvars))
        found.append((eqn.primitive.name, before))
    return tuple(found)


@functools.lru_cache(maxsize=256)
def _known_repeats(piece: Piece, rows: tuple[bool, ...], shared: tuple[bool, ...]) -> Repeats:
    """Which equations of the joint code repeat others, whatever the number of rows is.

    Answered for a number that no other axis has: with 32 rows and a width of 32, more equations look alike.
    """
    return _repeats(_inlined(_both_directions(piece, _PROBES[0], rows, shared)))


def _without(jaxpr: _jax.Jaxpr, repeats: Repeats) -> _jax.Jaxpr:
    """The same code without equations that repeat others, if these are its equations."""
    if [e.primitive.name for e in jaxpr.eqns] != [name for name, _ in repeats]:
        return jaxpr
    same: dict[Any, Any] = {}
    eqns = []
    for eqn, (_, before) in zip(jaxpr.eqns, repeats, strict=True):
        if before is not None:
            # What the earlier one gives may itself be named by one before it.
            same.update(
                (v, same.get(w, w)) for v, w in zip(eqn.outvars, jaxpr.eqns[before].outvars)
            )
            continue
        eqns.append(
            eqn.replace(
                invars=[same.get(a, a) if isinstance(a, _jax.Var) else a for a in eqn.invars]
            )
        )
    outs = [same.get(a, a) if isinstance(a, _jax.Var) else a for a in jaxpr.outvars]
    return _jax.new_jaxpr(jaxpr.invars, outs, eqns)
