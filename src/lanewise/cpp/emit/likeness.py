"""Which equations are written alike, and how much text they make.

Two equations are alike if a kernel's text for one is that for the other under other names: the same primitive on
operands of the same types, the same literals, the same parameters, with code among these compared by what it does. What
a kernel does not look at (a `custom_jvp`'s derivative, shardings, names, lines) does not count.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from lanewise import _jax
from lanewise._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from lanewise.blocks.equations import CALL_LIKE, FREE, TRANSCENDENTAL, size_of, tests_many

# Parameters that hold code which is written where the equation is.
_CODE = {name: (param,) for name, param in CALL_LIKE.items()} | {
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "cond": ("branches",),
}
# What the text of an equation weighs, in loops of elementwise code; those of primitives by how their names begin.
_SCALAR, _FUNCTION_OF_SCALAR, _CONTROL = 0.1, 0.5, 2.0
_WEIGHTS = {
    "dot_general": 4.0,
    "gather": 3.0,
    "dynamic_slice": 2.0,
    "dynamic_update_slice": 2.0,
    "concatenate": 2.0,
    "pad": 2.0,
    "sort": 12.0,
    "top_k": 12.0,
    "conv_general_dilated": 12.0,
    "cholesky": 12.0,
    "triangular_solve": 12.0,
    "lu": 20.0,
    "eigh": 30.0,
    "svd": 30.0,
    "qr": 30.0,
    "householder_product": 20.0,
    "scatter": 4.0,
    "reduce_": 2.0,
    "arg": 2.0,
    "cum": 2.0,
}


def held_code(eqn: JaxprEqn) -> tuple[Jaxpr, ...]:
    """The code that an equation holds and a kernel writes in its place, as the equation's parameters have it."""
    if tests_many(eqn):
        return ()
    found: list[Jaxpr] = []
    for name in _CODE.get(eqn.primitive.name, ()):
        value = eqn.params[name]
        found += value if isinstance(value, tuple | list) else [value]
    return tuple(found)


def with_code(eqn: JaxprEqn, code: Iterable[Jaxpr]) -> JaxprEqn:
    """The equation with other code in these places."""
    left = iter(code)
    params = dict(eqn.params)
    for name in _CODE[eqn.primitive.name]:
        value = params[name]
        several = isinstance(value, tuple | list)
        params[name] = type(value)(next(left) for _ in value) if several else next(left)
    return eqn.replace(params=params)


class Likeness:
    """Numbers for equations and code: equal for those that are written alike."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        # What is looked at is kept: while it is here, nothing else gets its id.
        self._of_eqn: dict[int, tuple[JaxprEqn, int]] = {}
        self._of_code: dict[int, tuple[Jaxpr, int]] = {}
        self._weights: dict[int, tuple[JaxprEqn, float]] = {}

    def eqn(self, eqn: JaxprEqn) -> int:
        found = self._of_eqn.get(id(eqn))
        if found is None:
            found = self._of_eqn[id(eqn)] = (eqn, self._number(self._key(eqn)))
        return found[1]

    def code(self, jaxpr: Jaxpr | ClosedJaxpr) -> int:
        found = self._of_code.get(id(jaxpr))
        if found is None:
            found = self._of_code[id(jaxpr)] = (jaxpr, self._number(self._code_key(jaxpr)))
        return found[1]

    def weight(self, eqn: JaxprEqn) -> float:
        """How much text an equation makes, beside what the equations around it make."""
        found = self._weights.get(id(eqn))
        if found is None:
            found = self._weights[id(eqn)] = (eqn, self._weigh(eqn))
        return found[1]

    def weights(self, eqns: Iterable[JaxprEqn]) -> float:
        return sum(map(self.weight, eqns))

    def _weigh(self, eqn: JaxprEqn) -> float:
        name = eqn.primitive.name
        if name in _CODE:
            around = 0.0 if name in CALL_LIKE else _CONTROL
            return around + sum(self.weights(code.eqns) for code in held_code(eqn))
        if name in FREE or name == "iota":
            return 0.0
        largest = max((size_of(atom) for atom in (*eqn.invars, *eqn.outvars)), default=1)
        if largest <= 1 and name not in _WEIGHTS:
            return _FUNCTION_OF_SCALAR if name in TRANSCENDENTAL else _SCALAR
        # Short arrays are scalars in a row.
        share = min(1.0, _SCALAR * largest)
        kind = next((known for known in _WEIGHTS if name.startswith(known)), "")
        return share * _WEIGHTS.get(kind, 1.0)

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _key(self, eqn: JaxprEqn) -> Hashable:
        name = eqn.primitive.name
        if eqn.effects:
            return ("alone", id(eqn))
        if name in CALL_LIKE:
            params: Hashable = self.code(eqn.params[CALL_LIKE[name]])
        else:
            params = tuple((key, self._param(eqn.params[key])) for key in sorted(eqn.params))
        layout = _jax.threefry_partitionable(eqn) if name.startswith(("random", "three")) else None
        return (
            name,
            params,
            layout,
            tuple(map(_operand, eqn.invars)),
            tuple((var.aval.shape, var.aval.dtype) for var in eqn.outvars),
        )

    def _param(self, value: Any) -> Hashable:
        if isinstance(value, Jaxpr | ClosedJaxpr):
            return ("code", self.code(value))
        if isinstance(value, tuple | list):
            return (type(value), *map(self._param, value))
        if isinstance(value, np.ndarray):
            return (value.shape, value.dtype.str, value.tobytes())
        try:
            hash(value)
        except TypeError:
            return ("alone", id(value))
        return (type(value), value)

    def _code_key(self, jaxpr: Jaxpr | ClosedJaxpr) -> Hashable:
        numbers: dict[Var, int] = {}

        def name(atom: Atom) -> Hashable:
            return _operand(atom) if isinstance(atom, Literal) else numbers[atom]

        def define(variables: Iterable[Var]) -> None:
            numbers.update((var, len(numbers) + i) for i, var in enumerate(list(variables)))

        given = [*jaxpr.constvars, *jaxpr.invars]
        define(given)
        eqns = []
        for eqn in jaxpr.eqns:
            eqns.append((self.eqn(eqn), tuple(map(name, eqn.invars))))
            define(eqn.outvars)
        return (
            tuple((var.aval.shape, var.aval.dtype) for var in given),
            tuple(map(id, _jax.attached_consts(jaxpr))),
            tuple(eqns),
            tuple(map(name, jaxpr.outvars)),
        )


def _operand(atom: Atom) -> Hashable:
    kind = (atom.aval.shape, atom.aval.dtype)
    if isinstance(atom, Literal):
        return (*kind, np.asarray(atom.val).astype(atom.aval.dtype).tobytes())
    return kind
