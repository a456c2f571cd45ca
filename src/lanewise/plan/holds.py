"""What a program's code holds, as far as it decides how the program can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lanewise import _jax
from lanewise._jax import Jaxpr, JaxprEqn
from lanewise.blocks.cost import holds_while
from lanewise.blocks.inside import looks_at_batch
from lanewise.core.errors import TransformError
from lanewise.core.program import Program, program_p


def any_eqn(program: Program, test: Callable[[JaxprEqn], bool]) -> bool:
    """Whether the test holds for an equation of the program, or of one called inside."""

    def inside(jaxpr: Jaxpr) -> bool:
        return any(
            test(eqn)
            or (eqn.primitive is program_p and any_eqn(eqn.params["program"], test))
            or any(map(inside, _jax.subjaxprs(eqn)))
            for eqn in jaxpr.eqns
        )

    return any(inside(function.jaxpr) for function in program.functions.values())


def sees_batch(program: Program) -> bool:
    """Whether code looks at the batch it is in, so that a lane would see its neighbours."""
    return any_eqn(program, looks_at_batch)


def guards_a_loop(program: Program) -> bool:
    """Whether a branch decides if a loop runs: under `jax.vmap` it would run for the others too, and might not end."""
    return any_eqn(program, lambda eqn: eqn.primitive.name == "cond" and _holds_loop([eqn]))


def _holds_loop(eqns: Sequence[JaxprEqn]) -> bool:
    return holds_while(eqns) or any(
        (eqn.primitive is program_p and any_eqn(eqn.params["program"], lambda e: holds_while([e])))
        or any(_holds_loop(inner.eqns) for inner in _jax.subjaxprs(eqn))
        for eqn in eqns
    )


def refuse_collectives(program: Program) -> None:
    """Raise if the program talks to other lanes."""
    for function in program.functions.values():
        for eqn in _collectives(function.jaxpr):
            raise TransformError(
                f"{eqn.primitive.name} talks to the other lanes, which are at another place of the program:"
                f" {_jax.user_line(eqn)}. Take the collective out of the program, and apply it to its answers."
            )


def _collectives(jaxpr: Jaxpr) -> list[JaxprEqn]:
    found = []
    for eqn in jaxpr.eqns:
        if any(type(effect).__name__ == "NamedAxisEffect" for effect in eqn.effects) and not list(
            _jax.subjaxprs(eqn)
        ):
            found.append(eqn)
        for inner in _jax.subjaxprs(eqn):
            found += _collectives(inner)
    return found
