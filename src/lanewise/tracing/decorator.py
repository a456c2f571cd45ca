"""Functions that are programs: `@program` for Python control flow, `lift` for what JAX traces already."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise.core.errors import OptionError, TransformError
from lanewise.core.objects import held_again, taken
from lanewise.core.options import NAMES, Options, refuse_unknown
from lanewise.core.outcomes import Outcomes, Stats, counts
from lanewise.core.program import program_p, throw_p
from lanewise.tracing import copies
from lanewise.tracing.plain import call_plainly, has_values
from lanewise.tracing.replay import Replays
from lanewise.tracing.signature import DYNAMIC, CallStatics, Signature
from lanewise.tracing.staging import (
    Entry,
    Source,
    Staged,
    call_in_progress,
    inside_a_program,
    stage,
)

T = TypeVar("T")


class ProgramFunction:
    """A function that is a program: call it, or give it to `jax.jit`, `jax.vmap`, `jax.jvp`.

    Made by `lanewise.program` and `lanewise.lift`. Under `jax.disable_jit()` a call runs the original
    function as plain Python, each example of a batch by itself. `copy.deepcopy` gives the program itself; `pickle`
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
        if not copies.by_value(self.__module__):
            if copies.by_name(self, lambda found: found is self):
                return getattr(self, "__qualname__", self.__name__)
            twin = copies.by_name(self, lambda found: getattr(found, "python", None) is self.python)
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
            "file": copies.file_of(self.python) if source.from_source else None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        signature = state.pop("signature")
        copies.remember_file(state.pop("file"))
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
        if has_values(dynamic):
            return self._with_extras(call_plainly(self.python, statics, dynamic))
        # Nobody looks at values here (`jax.eval_shape`, the gradient of each example): compiled, as ever.
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
        """Calls of `fun`, which is this program transformed in the way that `how` tells, kept with the program."""
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
        """Of what there is for each leaf of the arguments, that of the leaves that are traced."""
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
        result = staged.result
        answers = program_p.bind(
            *_jax.varying_alike([*staged.captures, *arguments]),
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
            code, site = outcomes
            outputs.append(Outcomes(code, site, sites))
        if options.stats:
            outputs.append(Stats(*stats))
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
