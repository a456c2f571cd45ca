"""A program is a table of jaxprs behind one JAX primitive.

`Program` maps function names to jaxprs and names an entry. Structured control flow inside them is JAX's
own `while`, `cond` and `scan`; recursion, which JAX lacks, is the one new primitive, `call`, that names
a function of the table. Calling a decorated function traces it once for each signature and binds
`program_p`; `bind.py` holds that primitive's rules.

How recursion is traced
-----------------------
A call met while its own function is still being traced cannot be traced again: it becomes a `call`
equation, whose result type must be known. The first round does not know it, so the call raises
`ResultUnknown`; branch tracing takes the type from the side that does not recurse. The next round
assumes that type, and so on until the type that comes out is the type that went in (weak types and
promotions may need a round more). Functions that call each other settle together: the outermost of
them owns the table, as in Tarjan's strongly connected components. A function that calls nothing in
progress is a program of its own, and its call is an ordinary nested `program_p`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax, promotion
from lanewise.check import check_p
from lanewise.errors import (
    OptionError,
    ProgramError,
    ResultTypeError,
    ResultUnknown,
    TransformError,
)
from lanewise.frontend import python as python_frontend
from lanewise.options import Options
from lanewise.outcomes import Outcomes, Site, Stats
from lanewise.signature import DYNAMIC, CallStatics, Signature, StaticLeaves, split_leaves

MAX_ROUNDS = 12

call_p = _jax.Primitive("call")
call_p.multiple_results = True

program_p = _jax.Primitive("program")
program_p.multiple_results = True

throw_p = _jax.Primitive("throw")
throw_p.multiple_results = True


@dataclass(frozen=True, eq=False)
class Function:
    """One function of the table: its jaxpr's inputs are the captures it names, then its parameters."""

    name: str
    jaxpr: _jax.Jaxpr
    captures: tuple[int, ...] = ()

    @property
    def params(self) -> tuple[_jax.Var, ...]:
        return tuple(self.jaxpr.invars[len(self.captures) :])


@dataclass(frozen=True, eq=False)
class Program:
    """Functions and an entry. Operands are `num_captures` captured values, then the entry's parameters."""

    functions: dict[str, Function]
    entry: str
    num_captures: int = 0

    @functools.cached_property
    def out_avals(self) -> tuple[_jax.ShapedArray, ...]:
        return tuple(atom.aval for atom in self.functions[self.entry].jaxpr.outvars)

    @functools.cached_property
    def num_operands(self) -> int:
        return self.num_captures + len(self.functions[self.entry].params)

    @functools.cached_property
    def sites(self) -> tuple[Site, ...]:
        """Where a lane can fail an assertion, programs called inside included."""
        found = dict.fromkeys(
            site for function in self.functions.values() for site in _sites_in(function.jaxpr)
        )
        return tuple(found)

    @functools.cached_property
    def recursive(self) -> bool:
        """Whether any function, of this program or one called inside, calls back into itself."""
        return any(_recurses(function.jaxpr) for function in self.functions.values())

    def can_fail(self, options: Options) -> bool:
        """Whether a lane can end other than done."""
        return bool(self.recursive or self.sites or options.max_steps)

    def gives_outcomes(self, options: Options) -> bool:
        """Whether `program_p` gives outcome codes and sites beside the answers."""
        return self.can_fail(options) or not options.throw

    @property
    def text(self) -> str:
        """Every function's jaxpr."""
        return "\n".join(f"{name} = {function.jaxpr}" for name, function in self.functions.items())

    def __repr__(self) -> str:
        return f"<program {self.entry}: {', '.join(self.functions)}>"


@call_p.def_abstract_eval
def _call_abstract(*args: Any, name: str, out_avals: Sequence[Any], jvp_of: Any) -> Any:
    del args, name, jvp_of
    return list(out_avals)


def _call_under_vmap(axis_data: Any, args: Any, dims: Any, *, name: str, **params: Any) -> Any:
    raise TransformError(
        f"`{name}` calls itself under jax.vmap inside its own body. Lanes come from outside: loop over the axis"
        " with `for`, or make the inner call a program that is not part of the recursion."
    )


_jax.batching.fancy_primitive_batchers[call_p] = _call_under_vmap


@dataclass(frozen=True)
class ResultType:
    """The structure and the types of a function's results."""

    tree: Any
    static: StaticLeaves
    avals: tuple[_jax.ShapedArray, ...]

    def join(self, other: ResultType, name: str) -> ResultType:
        if (self.tree, self.static) != (other.tree, other.static):
            raise ResultTypeError(
                f"the result of `{name}` changes its structure with the path taken: {self} on one, {other} on another."
                " Return the same structure everywhere."
            )
        joined = [promotion.join(a, b) for a, b in zip(self.avals, other.avals, strict=True)]
        for before, after, both in zip(self.avals, other.avals, joined, strict=True):
            if both is None:
                raise ResultTypeError(
                    f"the result type of `{name}` never settles: a path that does not recurse gives"
                    f" {promotion.show(before)}, and with it the recursive path gives {promotion.show(after)}."
                    " Convert the result, e.g. with `.astype`, so that both agree."
                )
        return ResultType(
            self.tree, self.static, tuple(aval for aval in joined if aval is not None)
        )

    def __str__(self) -> str:
        leaves = [promotion.show(aval) for aval in self.avals]
        return str(jax.tree.unflatten(self.tree, self.static.join(leaves)))


@dataclass(eq=False)
class _Entry:
    """A function being traced, at one signature."""

    name: str
    depth: int
    result: ResultType | None = None
    traced: _jax.Traced | None = None
    trace: Any = None
    lowest_called: int = 0


class _Build(threading.local):
    """What is being traced on this thread; `stack` holds the entries in progress, outermost first."""

    def __init__(self) -> None:
        self.entries: dict[Hashable, _Entry] = {}
        self.stack: list[_Entry] = []
        # Entries of the last round: their names and types are where the next round starts.
        self.remembered: dict[Hashable, _Entry] = {}
        self.unknowns = 0


_build = _Build()
_names_taken: dict[str, int] = {}
_names_lock = threading.Lock()


def _fresh_name(base: str) -> str:
    with _names_lock:
        count = _names_taken.get(base, 0)
        _names_taken[base] = count + 1
    return f"{base}.{count}" if count else base


@dataclass(frozen=True, eq=False)
class Staged:
    """A program traced at one signature, the values it captured, and how to rebuild its result."""

    program: Program
    captures: tuple[Any, ...]
    result: ResultType


class ProgramFunction:
    """A function that is a program: call it, or give it to `jax.jit`, `jax.vmap`, `jax.jvp`.

    Made by `lanewise.program` and `lanewise.lift`. Under `jax.disable_jit()` a call runs the original
    function as plain Python.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        from_source: bool,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Sequence[str] | None = None,
        options: Options = Options(),
    ) -> None:
        if not callable(fun):
            raise OptionError(
                f"a program is made from a function; got {type(fun).__name__}: {fun!r}"
            )
        self.python = fun
        self.options = options
        self._from_source = from_source
        self._signature = Signature.of(fun, static_argnums, static_argnames)
        self._cache: dict[Hashable, Staged] = {}
        functools.update_wrapper(self, fun, updated=())
        # A partial or a callable object has no name of its own.
        self.__name__ = getattr(fun, "__name__", None) or getattr(
            getattr(fun, "func", None), "__name__", type(fun).__name__
        )

    @functools.cached_property
    def _traceable(self) -> Callable[..., Any]:
        return python_frontend.convert(self.python) if self._from_source else self.python

    def __repr__(self) -> str:
        return f"<lanewise program {getattr(self.python, '__qualname__', self.python)!r}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def with_options(self, **changes: Any) -> ProgramFunction:
        """The same program, with the same traces, run with other options."""
        twin = object.__new__(ProgramFunction)
        twin.__dict__.update(self.__dict__)
        twin.options = self.options.updated(**changes)
        return twin

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if jax.config.jax_disable_jit:
            return self.python(*args, **kwargs)
        staged, operands = self._staged(args, kwargs)
        if isinstance(staged, _Entry):
            return self._call_in_progress(staged, operands)
        return self._bind(staged, operands)

    def stage(self, *args: Any, **kwargs: Any) -> tuple[Staged, list[Any]]:
        """Trace at the types of these arguments; gives the program and its operands."""
        staged, operands = self._staged(args, kwargs)
        if isinstance(staged, _Entry):
            raise TransformError(
                f"`{staged.name}` cannot be staged while it is itself being traced."
            )
        return staged, [*staged.captures, *operands]

    def dynamic(
        self, flags: Sequence[bool], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[bool]:
        """Of one flag for each leaf of the arguments, those of the leaves that are traced."""
        _, static = self._signature.split(args, kwargs)
        leaves = jax.tree.leaves((args, kwargs))
        if len(leaves) != len(static.leaves.leaves):
            raise OptionError("inspect does not take declared static arguments that are pytrees.")
        return [f for f, leaf in zip(flags, static.leaves.leaves, strict=True) if leaf is DYNAMIC]

    def _staged(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Staged | _Entry, list[Any]]:
        dynamic, static = self._signature.split(args, kwargs)
        operands = [_as_array(leaf) for leaf in dynamic]
        key = (static, tuple(_jax.aval_of(leaf) for leaf in operands), _jax.trace_context())
        found = _build.entries.get((id(self._cache), key)) or self._cache.get(key)
        if found is not None:
            return found, operands
        for (cache, (other_static, avals, context)), entry in _build.entries.items():
            # A recursive call with Python scalars takes the types of the recursion it is part of.
            if (cache, other_static, context) == (id(self._cache), static, key[2]) and _fits(
                key[1], avals
            ):
                return entry, [
                    promotion.convert(x, aval) for x, aval in zip(operands, avals, strict=True)
                ]
        return self._stage(key, static), operands

    def _bind(self, staged: Staged, arguments: Sequence[Any]) -> Any:
        options = self.options
        result = staged.result
        answers = program_p.bind(
            *staged.captures,
            *arguments,
            program=staged.program,
            lanes=(),
            mapped=((),) * staged.program.num_operands,
            options=options,
        )
        num_answers = len(result.avals)
        num_outcomes = 2 * staged.program.gives_outcomes(options)
        answers, extra = answers[:num_answers], answers[num_answers:]
        outcomes, stats = extra[:num_outcomes], extra[num_outcomes:]
        sites = staged.program.sites
        if options.throw and outcomes:
            answers = throw_p.bind(*answers, *outcomes, sites=sites, name=self.__name__)
        value = jax.tree.unflatten(result.tree, result.static.join(answers))
        outputs: list[Any] = [value]
        if not options.throw:
            outputs.append(Outcomes(*outcomes, sites))
        if options.stats:
            outputs.append(Stats(*stats))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _call_in_progress(self, entry: _Entry, operands: Sequence[Any]) -> Any:
        _note_call(entry.depth)
        if entry.result is None:
            _build.unknowns += 1
            raise ResultUnknown(entry.name)
        result = entry.result
        answers = call_p.bind(*operands, name=entry.name, out_avals=result.avals, jvp_of=None)
        return jax.tree.unflatten(result.tree, result.static.join(answers))

    def _stage(self, key: Any, static: CallStatics) -> Staged | _Entry:
        """Trace to a fixed point. Gives a `Staged`, or the entry if it belongs to an outer recursion."""
        depth = len(_build.stack)
        entry_key = (id(self._cache), key)
        last = _build.remembered.get(entry_key)
        entry = (
            _Entry(last.name, depth, last.result)
            if last
            else _Entry(_fresh_name(self.__name__), depth)
        )
        inner_keys: list[Hashable] = []
        _build.stack.append(entry)
        try:
            for _ in range(MAX_ROUNDS):
                self._discard(inner_keys)
                entry.lowest_called = depth
                _build.entries[entry_key] = entry
                known_before = set(_build.entries)
                unknowns = _build.unknowns
                try:
                    result = self._trace_once(entry, static, key[1])
                except ResultUnknown:
                    inner_keys = [k for k in _build.entries if k not in known_before]
                    if entry.lowest_called < depth:
                        # The outer function's type will tell; it traces this one again then.
                        raise
                    raise ResultTypeError(
                        f"the result type of `{entry.name}` cannot be inferred: every path through it recurses."
                        " Add a branch that returns without calling itself.",
                        python_frontend.location_of(self.python),
                    ) from None
                inner_keys = [k for k in _build.entries if k not in known_before]
                settled = entry.result == result
                recursive = any(_calls(entry.traced.jaxpr, entry.name)) if entry.traced else False
                entry.result = (
                    result if entry.result is None else entry.result.join(result, entry.name)
                )
                resolved = _build.unknowns == unknowns
                if resolved and (
                    settled or not (recursive or inner_keys or entry.lowest_called < depth)
                ):
                    break
                if entry.lowest_called < depth and entry.result == result and settled:
                    break
            else:
                raise ResultTypeError(
                    f"the result type of `{entry.name}` never settles: after {MAX_ROUNDS} rounds it still changes"
                    f" ({entry.result}). Convert the result to one type.",
                    python_frontend.location_of(self.python),
                )
            if entry.lowest_called < depth:
                # Part of an outer recursion: stays in that one's table.
                _note_call(entry.lowest_called)
                return entry
            members = [entry] + [_build.entries[k] for k in inner_keys]
            staged = Staged(*_assemble(members), entry.result)
            self._discard([entry_key, *inner_keys])
            if not any(isinstance(value, jax.core.Tracer) for value in staged.captures):
                self._cache[key] = staged
            return staged
        except BaseException:
            self._discard([entry_key, *inner_keys])
            raise
        finally:
            _build.stack.pop()
            if not _build.stack:
                _build.remembered.clear()

    @staticmethod
    def _discard(keys: Sequence[Hashable]) -> None:
        for key in keys:
            entry = _build.entries.pop(key, None)
            if entry is not None:
                _build.remembered[key] = entry

    def _trace_once(self, entry: _Entry, static: CallStatics, avals: Sequence[Any]) -> ResultType:
        trees: list[Any] = []

        def flat(*leaves: Any) -> Sequence[Any]:
            entry.trace = _jax.current_trace()
            args, kwargs = static.join(leaves)
            value = self._traceable(*args, **kwargs)
            dynamic, static_out, tree = split_leaves(value)
            trees.append((tree, static_out))
            if entry.result is not None and (entry.result.tree, entry.result.static) == (
                tree,
                static_out,
            ):
                wanted = [
                    promotion.join(_jax.aval_of(x), a)
                    for x, a in zip(dynamic, entry.result.avals, strict=True)
                ]
                dynamic = [
                    x if aval is None else promotion.convert(x, aval)
                    for x, aval in zip(dynamic, wanted, strict=True)
                ]
            return [_as_array(leaf) for leaf in dynamic]

        try:
            entry.traced = _jax.trace(flat, avals)
        except jax.errors.TracerBoolConversionError as error:
            error.add_note(
                f"Lanewise: while tracing the program `{entry.name}`. Only the program's own source is converted: put"
                " @lanewise.program on the helper function that holds this `if` or `while` too."
                if self._from_source
                else f"Lanewise: `{entry.name}` was lifted, so its Python `if` and `while` run while tracing: use"
                " @lanewise.program to convert its source."
            )
            raise
        tree, static_out = trees[-1]
        # Shape, dtype and weak type only: under a mesh, types carry shardings that rounds need not agree on.
        avals = tuple(_jax.shaped(a.shape, a.dtype, a.weak_type) for a in entry.traced.out_avals)
        return ResultType(tree, static_out, avals)


def _sites_in(jaxpr: _jax.Jaxpr) -> Iterator[Site]:
    for eqn in jaxpr.eqns:
        if eqn.primitive is check_p:
            yield Site(eqn.params["message"], eqn.params["location"])
        elif eqn.primitive is program_p:
            yield from eqn.params["program"].sites
        for inner in _jax.subjaxprs(eqn):
            yield from _sites_in(inner)


def _recurses(jaxpr: _jax.Jaxpr) -> bool:
    return any(
        eqn.primitive is call_p
        or (eqn.primitive is program_p and eqn.params["program"].recursive)
        or any(_recurses(inner) for inner in _jax.subjaxprs(eqn))
        for eqn in jaxpr.eqns
    )


def _fits(given: Sequence[Any], wanted: Sequence[Any]) -> bool:
    return len(given) == len(wanted) and all(
        promotion.join(g, w) == w for g, w in zip(given, wanted, strict=True)
    )


def _as_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)


def _note_call(depth: int) -> None:
    for entry in _build.stack[depth:]:
        entry.lowest_called = min(entry.lowest_called, depth)


def _calls(jaxpr: _jax.Jaxpr, name: str) -> Any:
    for eqn in jaxpr.eqns:
        if eqn.primitive is call_p and eqn.params["name"] == name:
            yield eqn
        for inner in _jax.subjaxprs(eqn):
            yield from _calls(inner, name)


def _assemble(members: Sequence[_Entry]) -> tuple[Program, tuple[Any, ...]]:
    """One table of functions that recurse together; what they capture is shared by identity."""
    captures: list[Any] = []
    index: dict[int, int] = {}
    functions = {}
    for member in members:
        assert member.traced is not None
        for value in member.traced.captures:
            if isinstance(value, jax.core.Tracer) and any(
                _jax.trace_of(value) is m.trace for m in members
            ):
                raise ProgramError(
                    f"`{member.name}` closes over a value computed inside a function with which it is mutually"
                    " recursive. Pass the value as an argument instead."
                )
            if id(value) not in index:
                index[id(value)] = len(captures)
                captures.append(value)
        ids = tuple(index[id(value)] for value in member.traced.captures)
        functions[member.name] = Function(member.name, member.traced.jaxpr, ids)
    return Program(functions, members[0].name, len(captures)), tuple(captures)


def program(
    fun: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    **options: Any,
) -> Any:
    """Make a program of a Python function: its `if`, `while`, `for` and recursion work on traced values.

    Options are those of `lanewise.vmap` (`schedule`, `max_steps`, `max_depth`, `throw`, `stats`).

    >>> import jax, jax.numpy as jnp
    >>> @program
    ... def halvings(n):
    ...     count = 0
    ...     while n > 1:
    ...         n = n // 2
    ...         count += 1
    ...     return count
    >>> jax.vmap(halvings)(jnp.array([1, 8, 1000])).tolist()
    [0, 3, 9]
    """
    if fun is None:
        return functools.partial(
            program, static_argnums=static_argnums, static_argnames=static_argnames, **options
        )
    return ProgramFunction(
        fun,
        from_source=True,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        options=make_options(options),
    )


def lift(
    fun: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    **options: Any,
) -> ProgramFunction:
    """Make a program of any function JAX can trace; the `lax` control flow inside it is what counts.

    >>> import jax, jax.numpy as jnp
    >>> root = lift(lambda a: jax.lax.while_loop(lambda x: abs(x * x - a) > 1e-3, lambda x: (x + a / x) / 2, a))
    >>> jax.vmap(root)(jnp.array([4.0, 9.0])).round(2).tolist()
    [2.0, 3.0]
    """
    if isinstance(fun, ProgramFunction):
        return fun.with_options(**options)
    return ProgramFunction(
        fun,
        from_source=False,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        options=make_options(options),
    )


def make_options(options: dict[str, Any]) -> Options:
    """Check option names, and make `Options`."""
    known = Options.__dataclass_fields__
    for name in options:
        if name not in known:
            raise OptionError(
                f"{name!r} is not an option of a program; options are {', '.join(known)}."
            )
    return Options(**options)
