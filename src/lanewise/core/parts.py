"""Parts: regions of a program that have a name, so that a placement can say where they run.

`lw.placed(f, "encoder")` outlines a call of `f` as one equation, `part`, which carries the name. Its derivatives are
parts of the same name: the JVP is a part that also gives what the tangents need and a part that is linear in the
tangents, and the transpose of that one is a part again. So the name follows the work through `jax.grad`, `vmap` and
control flow, and the adjoint of what the encoder did is computed where the encoder is.

`with lw.on("decoder"):` names what is traced inside it, without an outline: the name is in JAX's name stack, which
derivatives keep too.

Run by anything but `lw.run`, a part is the code that it holds, and costs nothing.

A part with an index, `lw.placed(f, "expert", i)`, is one of a family: place number `i` of those that the family has
runs it. The index is the first operand and decides the place alone; the code never sees it. Under `vmap` it may have
an axis of lanes.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise._jax import ad, batching, mlir
from lanewise.core.errors import OptionError
from lanewise.core.program import codes_inside, part_p

_SCOPE = "lanewise.on:"

# Names of families and how many places each has, while a program is traced for its places. JAX and programs trace
# again where it differs.
families = jax.make_user_context(default_value=())
_NAME = re.compile(r"[A-Za-z_][\w.-]*")


def check_name(name: Any) -> str:
    """A part's name, or an error."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(
            f"the name of a part must be a str of letters, digits, '_', '-' and '.', like \"encoder\"; got {name!r}."
        )
    return name


def placed(
    fun: Callable[..., Any] | Sequence[Callable[..., Any]], name: str, index: Any = None
) -> Callable[..., Any]:
    """`fun` as a part of the program that calls it: `lw.run` runs it where the part `name` is placed.

    With `index`, an integer that may be computed, it is one of a family: it runs at place number `index` of those
    that the placement gives the name, a sequence of them. An index out of range is clipped, as `jax.lax.switch` does.
    A sequence of functions in place of `fun` has one for each index; each then takes its own captured weights along,
    and no other's.

    >>> import jax.numpy as jnp
    >>> double = placed(lambda x: 2 * x, "encoder")
    >>> float(double(jnp.float32(3)))
    6.0
    """
    check_name(name)
    if isinstance(fun, Sequence):
        return _one_of(fun, name, index)
    if not callable(fun):
        raise OptionError(f"lanewise.placed takes a function; got {type(fun).__name__}: {fun!r}")

    @functools.wraps(fun, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        is_array = [_is_array(x) for x in leaves]
        trees: list[Any] = []

        def flat(*whole: Any) -> list[Any]:
            args, kwargs = jax.tree.unflatten(tree, whole)
            outs, out_tree = jax.tree.flatten(fun(*args, **kwargs))
            trees.append(out_tree)
            return [jnp.asarray(x) for x in outs]

        of_arrays, arrays = _jax.restricted(flat, leaves, is_array)
        operands = list(map(jnp.asarray, arrays))
        traced = _jax.trace_at(of_arrays, operands)
        first = () if index is None else (_as_index(index, name),)
        outs = part_p.bind(
            *first,
            *traced.captures,
            *operands,
            jaxpr=_jax.close_jaxpr(traced.jaxpr),
            name=name,
            indexed=index is not None,
        )
        return jax.tree.unflatten(trees[-1], outs)

    return call


class On(contextlib.AbstractContextManager[None]):
    """A context that names what is traced inside it: a part."""

    def __init__(self, name: str) -> None:
        self._scope = jax.named_scope(f"{_SCOPE}{check_name(name)}")

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._scope.__exit__(*raised)


def on(name: str) -> On:
    """A context: what is traced inside it is of the part `name`. Branches and loops may be inside.

    >>> import jax.numpy as jnp
    >>> with on("decoder"):
    ...     y = jnp.sin(1.0)
    """
    return On(name)


def scope_of(eqn: _jax.JaxprEqn) -> str | None:
    """The part that the innermost `on` around an equation names."""
    found = re.findall(rf"{re.escape(_SCOPE)}({_NAME.pattern})", str(eqn.source_info.name_stack))
    return found[-1] if found else None


def parts_in(jaxpr: _jax.Jaxpr) -> Iterator[str]:
    """The names of the parts that equations of a jaxpr have, at any depth. Families are named without an index."""
    for eqn in _jax.equations(jaxpr.eqns, codes_inside):
        scope = scope_of(eqn)
        if scope is not None:
            yield scope
        if eqn.primitive is part_p:
            yield eqn.params["name"]


def _one_of(funs: Sequence[Callable[..., Any]], name: str, index: Any) -> Callable[..., Any]:
    """One of several functions by a computed index, each at its own place of the family."""
    if not funs or not all(map(callable, funs)):
        raise OptionError(f"lanewise.placed takes functions; got {funs!r}")
    if index is None:
        raise OptionError(
            f"lanewise.placed got {len(funs)} functions for the part {name!r} and no index: which one runs?"
            f' Give it: lanewise.placed(functions, "{name}", index).'
        )

    def call(*args: Any) -> Any:
        which = jnp.clip(_as_index(index, name), 0, len(funs) - 1)
        runs = [placed(fun, name, number) for number, fun in enumerate(funs)]
        types = jax.eval_shape(runs[0], *args)

        def nothing() -> Any:
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), types)

        # A branch for each, and not one `switch` for all: that one's derivative has one result for what any of its
        # sides saves, which could be at one place only. Picking sends an answer only where it is taken.
        found = [
            jax.lax.cond(which == number, functools.partial(run, *args), nothing)
            for number, run in enumerate(runs)
        ]
        return jax.lax.switch(which, [lambda answer=answer: answer for answer in found])

    return call


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)


def _as_index(index: Any, name: str) -> Any:
    if isinstance(index, int) and not isinstance(index, bool):
        # As a literal it says at once which place it is.
        return np.int32(index)
    array = jnp.asarray(index)
    if not jnp.issubdtype(array.dtype, jnp.integer) or array.ndim:
        raise OptionError(
            f"the index of the part {name!r} must be one integer; got an array of type"
            f" {array.dtype}{list(array.shape)}."
        )
    return array


# -- the primitive -----------------------------------------------------------------------------------


@part_p.def_effectful_abstract_eval
def _part_abstract(*operands: Any, jaxpr: Any, name: str, indexed: bool) -> Any:
    del operands, name, indexed
    return [atom.aval for atom in jaxpr.outvars], jaxpr.effects


def _run_part(*operands: Any, jaxpr: Any, name: str, indexed: bool) -> list[Any]:
    with on(name):
        return _jax.eval_closed(jaxpr, *operands[int(indexed) :])


part_p.def_impl(jax.jit(_run_part, static_argnames=("jaxpr", "name", "indexed")))
mlir.register_lowering(part_p, mlir.lower_fun(_run_part, multiple_results=True))


def _batch_part(
    axis_data: Any,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    jaxpr: Any,
    name: str,
    indexed: bool,
) -> tuple[list[Any], list[int | None]]:
    own, given = dims[int(indexed) :], operands[int(indexed) :]
    one = functools.partial(_jax.eval_closed, jaxpr)
    types = [_jax.shape_dtype_struct(v.aval) for v in jaxpr.invars]
    varies = _jax.batched_outputs(one, types, [d is not None for d in own])
    out_axes = [0 if flag else None for flag in varies]
    run = one
    if any(varies):
        run = jax.vmap(one, tuple(own), out_axes, axis_size=axis_data.size)
    traced = _jax.trace_at(run, given)
    first = list(operands[: int(indexed)])
    if indexed and dims[0]:
        first = [jnp.moveaxis(first[0], dims[0], 0)]
    outs = part_p.bind(
        *first,
        *traced.captures,
        *given,
        jaxpr=_jax.close_jaxpr(traced.jaxpr),
        name=name,
        indexed=indexed,
    )
    return outs, out_axes


batching.fancy_primitive_batchers[part_p] = _batch_part


def _jvp_part(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, name: str, indexed: bool
) -> tuple[list[Any], list[Any]]:
    """The part with what its tangents need, and a part that is linear in those."""
    first, primals = list(primals[: int(indexed)]), primals[int(indexed) :]
    tangents = tangents[int(indexed) :]
    active = [type(t) is not ad.Zero for t in tangents]
    size = dict(families.value).get(name, 1) if indexed else 1
    if size > 1 and isinstance(first[0], _jax.Tracer) and not np.ndim(first[0]):
        return _jvp_at_each(size, name, first[0], jaxpr, primals, tangents)
    trees: list[Any] = []

    def ahead(*args: Any) -> list[Any]:
        of_active, moved = _jax.restricted(functools.partial(_jax.eval_closed, jaxpr), args, active)
        outs, linear = jax.linearize(of_active, *moved)
        saved, tree = jax.tree.flatten(linear)
        trees.append(tree)
        return [*outs, *saved]

    params = {"name": name, "indexed": indexed}
    forward = _jax.trace_at(ahead, primals)
    # Rules may hold constants: those are operands.
    inputs = [*forward.captures, *primals]
    code, where = _without_copies(forward.jaxpr, len(jaxpr.outvars))
    outs = part_p.bind(*first, *inputs, jaxpr=_jax.close_jaxpr(code), **params)
    answers = outs[: len(jaxpr.outvars)]
    saved = [inputs[at] if of_input else outs[at] for of_input, at in where]
    moved = [t for t, flag in zip(tangents, active, strict=True) if flag]

    def back(*args: Any) -> list[Any]:
        linear = jax.tree.unflatten(trees[-1], args[: len(saved)])
        outs = linear(*args[len(saved) :])
        return [t for t, x in zip(outs, answers, strict=True) if _jax.has_tangent(_jax.aval_of(x))]

    linear = _jax.trace_at(back, [*saved, *moved])
    given = [*linear.captures, *saved, *moved]
    found = iter(part_p.bind(*first, *given, jaxpr=_jax.close_jaxpr(linear.jaxpr), **params))
    return answers, [
        next(found) if _jax.has_tangent(_jax.aval_of(x)) else _jax.zero_tangent(x) for x in answers
    ]


ad.primitive_jvps[part_p] = _jvp_part


def _jvp_at_each(
    size: int,
    name: str,
    index: Any,
    jaxpr: Any,
    primals: Sequence[Any],
    tangents: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """The same with code of its own for each place of a family.

    What the tangents need is then saved by the place that made it; one code for all would have one place for it.
    """
    active = [type(t) is not ad.Zero for t in tangents]
    run = functools.partial(_jax.eval_closed, jaxpr)
    of_active, moved = _jax.restricted(_one_of([run] * size, name, index), primals, active)
    answers, found = jax.jvp(
        of_active, moved, [t for t, flag in zip(tangents, active, strict=True) if flag]
    )
    outs = [
        t if _jax.has_tangent(_jax.aval_of(x)) else _jax.zero_tangent(x)
        for t, x in zip(found, answers, strict=True)
    ]
    return list(answers), outs


def _without_copies(
    code: _jax.Jaxpr, num_answers: int
) -> tuple[_jax.Jaxpr, list[tuple[bool, int]]]:
    """Code without results, after its answers, that are an input or another result; and where each of those is.

    A weight that tangents need is there already: a loop would save it once for each iteration.
    """
    inputs = {v: i for i, v in enumerate(code.invars)}
    kept: list[_jax.Atom] = list(code.outvars[:num_answers])
    places = {v: i for i, v in enumerate(kept) if isinstance(v, _jax.Var)}
    where = []
    for atom in code.outvars[num_answers:]:
        if isinstance(atom, _jax.Var) and atom in inputs:
            where.append((True, inputs[atom]))
            continue
        if not (isinstance(atom, _jax.Var) and atom in places):
            if isinstance(atom, _jax.Var):
                places[atom] = len(kept)
            where.append((False, len(kept)))
            kept.append(atom)
            continue
        where.append((False, places[atom]))
    return _jax.new_jaxpr(code.invars, kept, code.eqns), where


def _transpose_part(
    cts: Sequence[Any], *operands: Any, jaxpr: Any, name: str, indexed: bool
) -> list[Any]:
    first, operands = list(operands[: int(indexed)]), operands[int(indexed) :]
    linear = [ad.is_undefined_primal(x) for x in operands]
    known = [x for x, flag in zip(operands, linear, strict=True) if not flag]
    nonzero = [type(ct) is not ad.Zero for ct in cts]
    given = [ct for ct, flag in zip(cts, nonzero, strict=True) if flag]
    types = [
        _jax.shape_dtype_struct(x.aval) for x, flag in zip(operands, linear, strict=True) if flag
    ]

    def back(*args: Any) -> list[Any]:
        fixed, adjoints = args[: len(known)], args[len(known) :]

        def forward(*values: Any) -> list[Any]:
            outs = _jax.eval_closed(jaxpr, *_jax.merge(linear, values, fixed))
            return [x for x, flag in zip(outs, nonzero, strict=True) if flag]

        return list(jax.linear_transpose(forward, *types)(list(adjoints)))

    traced = _jax.trace_at(back, [*known, *given])
    code = _jax.close_jaxpr(traced.jaxpr)
    inputs = [*traced.captures, *known, *given]
    found = iter(part_p.bind(*first, *inputs, jaxpr=code, name=name, indexed=indexed))
    return [*[None] * len(first), *(next(found) if flag else None for flag in linear)]


ad.primitive_transposes[part_p] = _transpose_part
