"""Rules of what JAX itself defines by simpler primitives: the rule traces that definition and writes it.

So are the incomplete gamma and beta functions, which are loops: theirs are written for one element, inside a loop over
the elements. (Special functions with a formula are helpers; see `elementwise`.)
"""

from __future__ import annotations

from lanewise import _jax
from lanewise._jax import JaxprEqn
from lanewise.cpp.emit.rules import rule
from lanewise.cpp.emit.writer import Writer


@rule("igamma", "igammac", "igamma_grad_a", "regularized_incomplete_beta")
def by_definition(w: Writer, eqn: JaxprEqn) -> None:
    values, (out,) = [w.value(atom) for atom in eqn.invars], eqn.outvars
    jaxpr = _jax.definition(eqn, [_jax.shaped((), value.dtype) for value in values])
    room = w.store(out)
    with w.loops(room.shape) as indices, w.block():
        args = [w.let(v.at(indices if v.shape else ()), v.dtype) for v in values]
        (result,) = w.run(jaxpr, args)
        w.put(room, indices, result.at(()))


@rule("random_gamma", "call_hi_primitive")
def expanded(w: Writer, eqn: JaxprEqn) -> None:
    w.inline(_jax.definition(eqn, [atom.aval for atom in eqn.invars]), eqn.invars, eqn.outvars)
