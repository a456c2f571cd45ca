"""`lanewise.stream`: a program for each of any number of examples, answers as they finish.

Continuous batching for anything. Under `ticks` a machine of a fixed number of lanes runs in segments (see
`feed/segments.py`); between them the host hands out answers and fills the lanes that have ended. The carriers that
run each lane by itself get batches (`feed/batches.py`). While the device runs, the host converts the next examples,
and the caller works on the last answers.

Memory is bounded: at most twice as many examples as lanes are held under `ticks`, and eight times as many otherwise;
and with `ordered=True` answers that wait for an earlier one, until with them `MOST_HELD` times as many are held, when
no example is taken before the earlier one is done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from lanewise import _jax
from lanewise.api.streaming import Streaming
from lanewise.core.errors import OptionError
from lanewise.core.objects import is_taken
from lanewise.core.options import flag
from lanewise.tracing.decorator import ProgramFunction, lift
from lanewise.watch.progress import Bar


def stream(
    fun: Callable[..., Any],
    examples: Iterable[Any],
    *,
    lanes: int = 1024,
    ordered: bool = False,
    throw: bool = False,
    progress: bool = False,
    **options: Any,
) -> Generator[tuple[int, Any], None, None]:
    """Run a program for every example of an iterable; yields `(index, value)` as they finish.

    `examples` may be of any length, or endless; it is read as lanes come free, on the caller's own thread. Each item is
    the argument of `fun`, or a tuple of them if it takes several (a lone argument that is itself a tuple is given as a
    tuple of one). All examples have the same structure, shapes and types as the first. What all of them share is
    closed over, and is then held once: `lw.stream(lambda x: f(x, weights), examples)`. Answers are NumPy arrays.

    * `lanes`: how many examples are in flight at once. The carriers `native` and `kernel` get batches of up to four
      times as many, and answer when a batch has ended.
    * `ordered`: yield in the order of the examples.
    * `throw`: False (the default) yields `(index, Failure)` for an example that fails, and goes on; True raises.
    * `progress`: show on stderr how many are done.
    * other options are those of `lanewise.vmap`, but for `stats`.

    On `KeyboardInterrupt` no more examples are taken; what has finished so far is yielded (with `ordered=True` in
    order, with gaps where one has not finished), then the interrupt is raised again. If the iterable itself raises, or
    an example does not fit, all examples taken before it are finished and yielded first.

    >>> import lanewise as lw
    >>> @lw.program
    ... def collatz(n):
    ...     steps = 0
    ...     while n != 1:
    ...         n = n // 2 if n % 2 == 0 else 3 * n + 1
    ...         steps += 1
    ...     return steps
    >>> for index, steps in lw.stream(collatz, range(1, 8), lanes=4, ordered=True):
    ...     print(index, steps, end="; ")
    0 0; 1 1; 2 7; 3 2; 4 5; 5 8; 6 16;
    >>> dict(lw.stream(collatz, [27, 1], lanes=2, max_steps=50))[0].outcome.phrase
    'steps exhausted'
    """
    if not callable(fun):
        raise OptionError(
            f"lanewise.stream takes a function or a program; got {type(fun).__name__}: {fun!r}"
        )
    program = fun if isinstance(fun, ProgramFunction) else lift(fun)
    ordered, progress = flag("ordered", ordered), flag("progress", progress)
    progress = progress or program.options.progress
    program = program.with_options(**options, lanes=lanes, throw=throw, progress=False)
    if program.options.lanes is None:
        raise OptionError("lanes=None is no number of lanes; a stream runs with a fixed number.")
    if program.options.stats:
        raise OptionError("stats=True is for lanewise.vmap; a stream gives no statistics.")
    try:
        source = iter(examples)
    except TypeError:
        raise OptionError(
            f"examples is of type {type(examples).__name__} and cannot be iterated over;"
            " give a list, a generator or another iterable of arguments."
        ) from None
    source = map(_example, source)
    if _jax.jit_disabled():
        return _plainly(program.with_options(throw=True), source)
    total = len(examples) if hasattr(examples, "__len__") else None  # type: ignore[arg-type]
    shown = Bar(total, program.__name__) if progress else None
    return Streaming(program, source, ordered, shown).answers()


def _example(example: Any) -> Any:
    if any(map(is_taken, example if type(example) is tuple else (example,))):
        raise OptionError(
            "examples are records, of which each has arrays of its own size. Pack them, and give their numbers:"
            " `lanewise.stream(lambda i: f(forest[i]), range(len(forest)))`."
        )
    return example


def _plainly(
    program: ProgramFunction, source: Iterator[Any]
) -> Generator[tuple[int, Any], None, None]:
    """Under `jax.disable_jit()`: plain Python, an example after the other."""
    for index, example in enumerate(source):
        args = example if type(example) is tuple else (example,)
        yield index, program(*args)
