"""Functions that are programs: `@program` for Python control flow, `lift` for what JAX traces already.

Under `jax.disable_jit()` a program is plain Python: real values, so that `print` and `pdb` work. A call runs the
function as it is written. Under `jax.vmap` that would meet a whole batch as one tracer, of which Python's `if` cannot
ask anything; so there a call is one primitive whose batching rule calls the function once for each example. Derivatives
need nothing: JAX takes them with real values anyway.

A program that its module holds under its own name is pickled as a function is: by that name. `pickle` can do no more.
`cloudpickle` keeps functions that have no such name (lambdas, closures, all of `__main__`) by value, and so a program
is kept as its function and its options, with the text of the file, for a program is made from source and the process
that loads it may not have the file. Traces and compilations stay behind. A copy of a function is the function itself,
to `copy.deepcopy` too; and so is that of a program.
"""

from __future__ import annotations

import functools
import linecache
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import batching
from lanewise.core.errors import OptionError, TransformError
from lanewise.core.objects import held_again, seen_plainly, taken
from lanewise.core.options import NAMES, Options, refuse_unknown
from lanewise.core.outcomes import Outcomes, Stats, counts
from lanewise.core.program import program_p, throw_p
from lanewise.tracing.replay import Replays
from lanewise.tracing.signature import DYNAMIC, CallStatics, Signature, split_leaves
from lanewise.tracing.staging import (
    Entry,
    Source,
    Staged,
    call_in_progress,
    inside_a_program,
    stage,
)

T = TypeVar("T")
_plain_p = _jax.primitive("plain_python")


class ProgramFunction:
    """A function that is a program: call it, or give it to `jax.jit`, `jax.vmap`, `jax.jvp`.

    Made by `lanewise.program` and `lanewise.lift`. Under `jax.disable_jit()` a call runs the original
    function as plain Python, each example of a batch separately. `copy.deepcopy` gives the program itself; `pickle`
    keeps one that its module holds by name, `cloudpickle` any.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        from_source: bool,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Sequence[str] | None = None,
        options: Options,
    ) -> None:
        if not callable(fun):
            raise OptionError(
                f"a program is made from a function; got {type(fun).__name__}: {fun!r}"
            )
        self.python = fun
        self.options = options
        self._signature = Signature.of(fun, static_argnums, static_argnames)
        functools.update_wrapper(self, fun, updated=())
        # A partial or a callable object has no name of its own.
        self.__name__ = getattr(fun, "__name__", None) or getattr(
            getattr(fun, "func", None), "__name__", type(fun).__name__
        )
        self._source = Source(self.__name__, fun, from_source)
        self._replays: dict[Hashable, Replays] = {}

    def __repr__(self) -> str:
        return f"<lanewise program {getattr(self.python, '__qualname__', self.python)!r}>"

    def __deepcopy__(self, memo: Any) -> ProgramFunction:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not _by_value(self.__module__):
            if _by_name(self, lambda found: found is self):
                return getattr(self, "__qualname__", self.__name__)
            twin = _by_name(self, lambda found: getattr(found, "python", None) is self.python)
            if twin is not None:
                return _with_options, (twin, self.options)
        return _nothing_yet, (), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        source = self._source
        return {
            "fun": self.python,
            "from_source": source.from_source,
            "options": self.options,
            "signature": self._signature,
            "file": _file_of(self.python) if source.from_source else None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        signature = state.pop("signature")
        _remember_file(state.pop("file"))
        self.__init__(**state)
        self._signature = signature

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def with_options(self, **changes: Any) -> ProgramFunction:
        """The same program, with the same traces, run with other options."""
        twin = object.__new__(ProgramFunction)
        twin.__dict__.update(self.__dict__)
        twin.options = self.options.updated(**changes)
        return twin

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = taken(args, kwargs)
        if _jax.outside_traces():
            return self.replays(self._traced)(args, kwargs)
        if not _jax.jit_disabled():
            return self._traced(*args, **kwargs)
        dynamic, statics = self._signature.split(args, kwargs)
        if _has_values(dynamic):
            return self._with_extras(_call_plainly(self.python, statics, dynamic))
        # There are no values here (`jax.eval_shape`, the gradient of each example): compiled, as usual.
        with jax.disable_jit(False):
            return self._traced(*args, **kwargs)

    def _with_extras(self, value: Any) -> Any:
        """What plain Python gave, and as much of outcomes and statistics as there is: it would have raised."""
        outputs = [value]
        if not self.options.throw:
            outputs.append(Outcomes(jnp.int32(0), jnp.int32(-1), ()))
        if self.options.stats:
            outputs.append(Stats(*counts(0, 0, 0, 0, 0, 0)))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def replays(self, fun: Callable[..., Any], how: Hashable = None) -> Replays:
        """Calls of `fun`, which is this program transformed in the way that `how` names, cached with the program."""
        key = (self.options, how)
        found = self._replays.get(key)
        if found is None:
            found = self._replays[key] = Replays(fun, self._signature, self._source.places)
        return found

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        staged, operands = self._stage(args, kwargs)
        if isinstance(staged, Entry):
            return held_again(call_in_progress(staged, operands), (args, kwargs))
        value = self._bind(staged, operands)
        return held_again(value, (args, kwargs)) if inside_a_program() else value

    def stage(self, *args: Any, **kwargs: Any) -> tuple[Staged, list[Any]]:
        """Trace at the types of these arguments; gives the program and its operands."""
        staged, operands = self._stage(*taken(args, kwargs))
        if isinstance(staged, Entry):
            raise TransformError(
                f"`{staged.name}` cannot be staged while it is itself being traced."
            )
        return staged, [*staged.captures, *operands]

    def split(self, *args: Any) -> tuple[list[Any], CallStatics]:
        """The leaves of these arguments that are traced, and everything else about them, hashable."""
        return self._signature.split(args, {})

    def dynamic(self, each: Sequence[T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[T]:
        """From what there is for each leaf of the arguments, that of the leaves that are traced."""
        _, static = self._signature.split(args, kwargs)
        leaves = jax.tree.leaves((args, kwargs))
        if len(leaves) != len(static.leaves.leaves):
            raise OptionError("inspect does not take declared static arguments that are pytrees.")
        return [x for x, leaf in zip(each, static.leaves.leaves, strict=True) if leaf is DYNAMIC]

    def _stage(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Staged | Entry, list[Any]]:
        dynamic, statics = self._signature.split(args, kwargs)
        return stage(self._source, statics, dynamic)

    def _bind(self, staged: Staged, arguments: Sequence[Any]) -> Any:
        options = self.options
        staged.program.refuse_bounds_of_parts(options)
        results = program_p.bind(
            *_jax.varying_alike([*staged.captures, *arguments]),
            program=staged.program,
            lanes=(),
            mapped=((),) * staged.program.num_operands,
            options=options,
        )
        if options.throw and staged.program.gives_outcomes(options):
            num = len(staged.result.avals)
            given, outcomes, stats = results[:num], results[num : num + 2], results[num + 2 :]
            sites = staged.program.sites
            checked = throw_p.bind(*given, *outcomes, sites=sites, name=self.__name__)
            results = [*checked, *outcomes, *stats]
        return self.returned(staged, results)

    def returned(self, staged: Staged, results: Sequence[Any]) -> Any:
        """What a call returns, of the program's results: answers, then outcomes and statistics where there are any."""
        options, result = self.options, staged.result
        num = len(result.avals)
        outputs: list[Any] = [jax.tree.unflatten(result.tree, result.static.join(results[:num]))]
        extra = results[num:]
        if staged.program.gives_outcomes(options):
            (code, site), extra = extra[:2], extra[2:]
            if not options.throw:
                outputs.append(Outcomes(code, site, staged.program.sites))
        if options.stats:
            outputs.append(Stats(*extra))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _nothing_yet() -> ProgramFunction:
    """A program whose state is to come: its function may refer to it."""
    return object.__new__(ProgramFunction)


def _with_options(program: ProgramFunction, options: Options) -> ProgramFunction:
    return program.with_options(**{name: getattr(options, name) for name in NAMES})


def program(
    fun: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    **options: Any,
) -> Any:
    """Make a program of a Python function: its `if`, `while`, `for` and recursion work on traced values.

    Options are those of `lanewise.vmap` (`schedule`, `max_steps`, `max_depth`, `throw`, `stats`, `progress`). A program
    called inside another becomes part of it: the options of the outer one count. Bounds of an inner one that the outer
    one does not have, and `throw=False` on an inner one, raise `OptionError`.

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
    return _made(fun, True, static_argnums, static_argnames, options)


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
    return _made(fun, False, static_argnums, static_argnames, options)


def _made(
    fun: Callable[..., Any],
    from_source: bool,
    static_argnums: int | Sequence[int] | None,
    static_argnames: str | Sequence[str] | None,
    options: dict[str, Any],
) -> ProgramFunction:
    """A program of a function, or a program again with other options."""
    if isinstance(fun, ProgramFunction):
        if static_argnums is not None or static_argnames is not None:
            raise OptionError(
                "static_argnums and static_argnames belong where a program is first made; this function"
                f" is a program already: {fun!r}."
            )
        return fun.with_options(**options)
    return ProgramFunction(
        fun,
        from_source=from_source,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        options=make_options(options),
    )


def make_options(options: dict[str, Any]) -> Options:
    """Check option names, and make `Options`."""
    refuse_unknown(options)
    return Options(**options)


# -- as plain Python ---------------------------------------------------------------------------------


def _has_values(leaves: Sequence[Any]) -> bool:
    """Whether plain Python can run with these: values are there, perhaps those of a batch."""
    return all(_jax.has_value(leaf) or _jax.is_batched(leaf) for leaf in leaves)


def _call_plainly(fun: Callable[..., Any], statics: CallStatics, dynamic: Sequence[Any]) -> Any:
    """`fun` of these arguments, of each example of a batch separately."""
    found: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = seen_plainly(*statics.join(leaves))
        arrays, rest, tree = split_leaves(fun(*args, **kwargs))
        found.append((rest, tree))
        return [jnp.asarray(x) for x in arrays]

    if not any(map(_jax.is_batched, dynamic)):
        args, kwargs = seen_plainly(*statics.join(dynamic))
        return fun(*args, **kwargs)
    answers = _plain_p.bind(*map(jnp.asarray, dynamic), fun=flat)
    rest, tree = found[-1]
    return jax.tree.unflatten(tree, rest.join(answers))


def _each_by_itself(
    axis_data: Any, args: Sequence[Any], dims: Sequence[int | None], *, fun: Callable[..., Any]
) -> tuple[list[Any], list[int]]:
    def one(i: int) -> list[Any]:
        taken = [
            x if dim is None else jax.lax.index_in_dim(x, i, dim, keepdims=False)
            for x, dim in zip(args, dims, strict=True)
        ]
        return _plain_p.bind(*taken, fun=fun) if any(map(_jax.is_batched, taken)) else fun(*taken)

    columns = [jnp.stack(c) for c in zip(*map(one, range(axis_data.size)), strict=True)]
    return columns, [0] * len(columns)


batching.fancy_primitive_batchers[_plain_p] = _each_by_itself


# -- copies ------------------------------------------------------------------------------------------


def _by_name(program: Any, same: Any) -> Any:
    """What stands in its module under the program's name, if `same` holds for it; else None."""
    found: Any = sys.modules.get(program.__module__)
    for part in getattr(program, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found if found is not None and same(found) else None


def _by_value(module: str) -> bool:
    """Whether the pickler wants what this module holds by value.

    `cloudpickle` does of `__main__`, which another process does not have, and of modules that were registered with it
    for that. It asks functions and classes only, so we look at the caller: a pickler runs in C, and the frame below
    ours is the one that started it.
    """
    caller = sys._getframe(2).f_globals
    # Some libraries have a copy of their own: `joblib.externals.cloudpickle`, `ray.cloudpickle`.
    if "cloudpickle" not in str(caller.get("__name__", "")).split("."):
        return False
    registered = caller.get("list_registry_pickle_by_value", set)()
    return module == "__main__" or any(
        module == name or module.startswith(f"{name}.") for name in registered
    )


def _file_of(fun: Any) -> tuple[str, str] | None:
    """The name and the text of the file a function was written in."""
    code = getattr(fun, "__code__", None)
    if code is None:
        return None
    return code.co_filename, "".join(linecache.getlines(code.co_filename, fun.__globals__))


def _remember_file(file: tuple[str, str] | None) -> None:
    """Have a function's source found that was written in another process."""
    if file is None:
        return
    name, text = file
    if text and "".join(linecache.getlines(name)) != text:
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
