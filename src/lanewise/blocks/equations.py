"""Equations: the code inside one, how it writes by index, and what a program holds of them.

Inside. Third-party code wraps its control flow in `jit`, `remat`, `custom_jvp` and friends; flattening and the analyses
look through all of them with one table. Some primitives look at the whole batch under `jax.vmap` (Equinox's
`unvmap_any` and the like): a lane's answer must not depend on its neighbours, so they are given their one-lane
meaning, which is their own implementation on one lane.

Indexed writes. A block that writes one element of a per-lane array must not rewrite the whole array to keep the lanes
that are not at the block as they were: the write itself is masked. A lane that is not at the block gets an index out of
range, and the scatter drops it. `masked_update` does that for the indexed writes JAX has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise._jax import Atom, Jaxpr, JaxprEqn, Literal, Var
from lanewise.core.errors import TransformError
from lanewise.core.primitives.facts import code_of, is_call, is_update, looks_at_batch
from lanewise.core.program import Program, codes_inside, machine_inside, program_p, throw_p

T = TypeVar("T")

# -- code inside ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inside:
    """Code that an equation runs, on these of its operands. `consts` go to the jaxpr's constvars."""

    jaxpr: Jaxpr
    operands: tuple[Atom, ...]
    consts: tuple[object, ...] = ()

    def divided(self, eqn: JaxprEqn, given: Iterable[T]) -> list[T]:
        """What there is for each of these operands, given what there is for each of the equation's."""
        at = {id(atom): value for atom, value in zip(eqn.invars, given, strict=True)}
        return [at[id(atom)] for atom in self.operands]


def inside(eqn: JaxprEqn) -> Inside | None:
    """The code a call-like equation runs; None for every other equation."""
    if is_call(eqn):
        jaxpr = code_of(eqn)
        return Inside(jaxpr, tuple(eqn.invars), _jax.attached_consts(jaxpr))
    if eqn.primitive is program_p:
        program = eqn.params["program"]
        if eqn.params["lanes"] or eqn.params["options"].stats:
            return Inside(machine_inside(eqn), tuple(eqn.invars))
        if not program.recursive:
            function = program.functions[program.entry]
            captured = eqn.invars[: program.num_captures]
            operands = [captured[i] for i in function.captures] + list(
                eqn.invars[program.num_captures :]
            )
            return Inside(function.jaxpr, tuple(operands))
        return None
    if eqn.primitive.name == "custom_linear_solve":
        return _linear_solve(eqn)
    return Inside(_traced(eqn).jaxpr, tuple(eqn.invars)) if looks_at_batch(eqn) else None


def is_throw(eqn: JaxprEqn) -> bool:
    """A throw inside a program passes its answers on: the lane's own outcome reports the failure."""
    return eqn.primitive is throw_p


def tests_many(eqn: JaxprEqn) -> bool:
    """Whether a `while` has a test for each element of an inner `jax.vmap`: it runs until all are done."""
    if eqn.primitive.name != "while":
        return False
    return bool(_jax.While.of(eqn, eqn.invars).test.outvars[0].aval.shape)


def with_one_test(eqn: JaxprEqn) -> _jax.Traced:
    """The same loop with one test for all elements, those that are done kept as they are."""

    def run(*operands: Any) -> list[Any]:
        loop = _jax.While.of(eqn, operands)

        def turn(carry: list[Any]) -> list[Any]:
            goes_on, after = loop.holds(carry), loop.after(carry)
            return [
                jnp.where(lax.expand_dims(goes_on, range(goes_on.ndim, new.ndim)), new, old)
                for new, old in zip(after, carry, strict=True)
            ]

        return lax.while_loop(lambda carry: loop.holds(carry).any(), turn, list(loop.init))

    return _jax.trace(run, [atom.aval for atom in eqn.invars])


def as_on_one_lane(eqn: JaxprEqn) -> JaxprEqn:
    """What looks at the batch as a call of what it does on one lane; other equations as they are.

    A callback that does not say how it batches is called lane by lane.
    """
    if eqn.primitive.name == "pure_callback" and eqn.params.get("vmap_method") is None:
        return eqn.replace(params={**eqn.params, "vmap_method": "sequential"})
    if not looks_at_batch(eqn):
        return eqn
    code = _jax.close_jaxpr(_traced(eqn).jaxpr)
    return eqn.replace(primitive=_jax.closed_call_p, params={"call_jaxpr": code})


def _linear_solve(eqn: JaxprEqn) -> Inside:
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    start = lengths.matvec + lengths.vecmat
    consts = eqn.invars[start : start + lengths.solve]
    rest = eqn.invars[start + lengths.solve + lengths.transpose_solve :]
    return Inside(solve, (*consts, *rest), _jax.attached_consts(solve))


def _traced(eqn: JaxprEqn) -> _jax.Traced:
    def run(*args: object) -> Sequence[object]:
        out = eqn.primitive.impl(*args, **eqn.params)
        return list(out) if eqn.primitive.multiple_results else [out]

    return _jax.trace(run, [atom.aval for atom in eqn.invars])


def implementation(eqn: JaxprEqn) -> _jax.Traced | None:
    """What a library's own primitive does, in other primitives, if its implementation is JAX code.

    JAX's own primitives are implemented by themselves, and some by code that wants real arrays: None for those.
    """
    try:
        traced = _traced(eqn)
    except Exception:
        return None
    held = _jax.equations(traced.jaxpr.eqns)
    return None if any(e.primitive is eqn.primitive for e in held) else traced


# -- indexed writes -------------------------------------------------------------------------------


def update_chain(eqns: Sequence[JaxprEqn], start: Any, atom: Any) -> list[JaxprEqn]:
    """The equations by which `atom` is `start` written at some places, last one first; empty if it is not."""
    made_by = {out: eqn for eqn in eqns for out in eqn.outvars}
    chain: list[JaxprEqn] = []
    while atom is not start:
        eqn = None if isinstance(atom, Literal) else made_by.get(atom)
        if eqn is None or not is_update(eqn) or _jax.is_extended(atom.aval.dtype):
            return []
        chain.append(eqn)
        atom = eqn.invars[0]
    return chain


def before_updates(eqns: Sequence[JaxprEqn], atom: Atom) -> Var | None:
    """The variable that `atom` is, apart from indexed writes; None if they are into a constant."""
    made_by = {out: eqn for eqn in eqns for out in eqn.outvars}
    while isinstance(atom, Var):
        eqn = made_by.get(atom)
        if eqn is None or not is_update(eqn):
            return atom
        atom = eqn.invars[0]
    return None


def masked_update(eqn: JaxprEqn, args: Sequence[Any], mask: Any) -> Any:
    """What the equation does where `mask` holds, and nothing elsewhere."""
    if eqn.primitive.name == "dynamic_update_slice":
        operand, update, *starts = args
        limits = [size - width for size, width in zip(operand.shape, update.shape, strict=True)]
        if not starts:
            return jnp.where(mask, update, operand)
        # Each in its own type, which may hold numbers that no other does; once inside, all fit the same.
        clamped = [
            jnp.clip(s, 0, min(limit, int(jnp.iinfo(s.dtype).max))).astype(jnp.int32)
            for s, limit in zip(starts, limits, strict=True)
        ]
        indices = jnp.where(mask, jnp.stack(clamped), jnp.iinfo(jnp.int32).max)
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(operand.ndim)),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=tuple(range(operand.ndim)),
        )
        return lax.scatter(
            operand,
            indices,
            update,
            numbers,
            indices_are_sorted=True,
            unique_indices=True,
            mode=lax.GatherScatterMode.FILL_OR_DROP,
        )
    operand, indices, update = args
    params = dict(eqn.params)
    numbers, mode = params["dimension_numbers"], lax.GatherScatterMode.from_any(params["mode"])
    if indices.dtype.itemsize < 4:
        # The largest number of the type must be outside of any array.
        indices = indices.astype(jnp.int32)
    if mode == lax.GatherScatterMode.CLIP:
        indices = _clipped(operand, indices, update, numbers)
    outside = jnp.asarray(jnp.iinfo(indices.dtype).max, indices.dtype)
    indices = jnp.where(mask, indices, outside)
    params["mode"] = lax.GatherScatterMode.FILL_OR_DROP
    return eqn.primitive.bind(operand, indices, update, **params)


def _clipped(operand: Any, indices: Any, update: Any, numbers: Any) -> Any:
    """Indices brought into range, as the `clip` mode does on its own."""
    collapsed = set(numbers.inserted_window_dims) | set(numbers.operand_batching_dims)
    windows = iter(numbers.update_window_dims)
    width = {d: 1 if d in collapsed else update.shape[next(windows)] for d in range(operand.ndim)}
    limits = [operand.shape[d] - width[d] for d in numbers.scatter_dims_to_operand_dims]
    return jnp.clip(indices, 0, jnp.asarray(limits, indices.dtype))


# -- what a program holds -------------------------------------------------------------------------


def holds_while(eqns: Iterable[JaxprEqn]) -> bool:
    """Whether a loop of unknown length is inside: run on values that are not there yet, it might never end."""
    return any(eqn.primitive.name == "while" for eqn in _jax.equations(eqns))


def any_eqn(program: Program, test: Callable[[JaxprEqn], bool]) -> bool:
    """Whether the test holds for an equation of the program, or of one called inside."""
    return any(map(test, program.equations(codes_inside)))


def sees_batch(program: Program) -> bool:
    """Whether code looks at the batch it is in, so that a lane would see its neighbours."""
    return any_eqn(program, looks_at_batch)


def guards_a_loop(program: Program) -> bool:
    """Whether a branch decides if a loop runs: under `jax.vmap` it would run for the others too, and might not end."""
    branches = (e for e in program.equations(codes_inside) if e.primitive.name == "cond")
    return any(e.primitive.name == "while" for e in _jax.equations(branches, codes_inside))


def refuse_collectives(program: Program) -> None:
    """Raise if the program communicates with other lanes."""
    for eqn in program.equations():
        talks = any(type(effect).__name__ == "NamedAxisEffect" for effect in eqn.effects)
        if talks and not any(True for _ in _jax.subjaxprs(eqn)):
            raise TransformError(
                f"{eqn.primitive.name} communicates with the other lanes, which are at another place of the program:"
                f" {_jax.user_line(eqn)}. Take the collective out of the program, and apply it to its answers."
            )
