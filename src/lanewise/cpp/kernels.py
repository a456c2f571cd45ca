"""From a program and its operands to the answers of all lanes, by a kernel: on a GPU, or on the host's cores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from lanewise import _jax
from lanewise._jax import stored
from lanewise.blocks.flatten import flatten
from lanewise.blocks.leaf import leaf_calls
from lanewise.blocks.link import Linked, link
from lanewise.blocks.simplify import simplify
from lanewise.core.errors import OptionError
from lanewise.core.options import Options
from lanewise.core.outcomes import counts
from lanewise.core.program import Program
from lanewise.cpp.emit.emit import written
from lanewise.cpp.emit.emitted import Emitted, Obstacle
from lanewise.cpp.variants.tiles import might_be_tiled, tiled

# Runs a kernel: the kernel, operands, how many examples, how many frames a stack holds. Gives answers, codes, sites,
# and totals: all steps, most frames pending and, where it is measured, the lanes' busy seconds and those there were.
Run = Callable[[Emitted, Sequence[Any], int, int], tuple[list[Any], Any, Any, Any]]


def kernel_blocks(
    program: Program,
    varying: Sequence[bool],
    options: Options,
    *,
    selects: bool = False,
) -> Linked:
    """The blocks a kernel is written from: those of `ticks`, but for branches.

    Where every lane has a program counter of its own, skipping code is cheaper than running it and selecting, and
    arrays that only one side changes are not copied. Lanes in step (`tiles.py`) want cheap branches as `selects`.
    """
    blocks = flatten(program, varying, every_loop=options.max_steps is not None)
    return link(simplify(blocks, selects=selects), varying)


def blocks_for(program: Program, varying: tuple[bool, ...], options: Options) -> Linked:
    """The blocks of the program's kernel, cached."""
    return _blocks(program, varying, options.of_kernel())


def kernel_or_obstacle(
    program: Program, varying: tuple[bool, ...], options: Options
) -> Emitted | Obstacle:
    """The program's kernel, cached, or the first thing that keeps it from being one."""
    return _kernel_or_obstacle(program, varying, options.of_kernel())


# Of the options, the key holds only what a kernel's text depends on: planning and running have different ones.
_blocks = functools.lru_cache(maxsize=512)(kernel_blocks)


@functools.lru_cache(maxsize=512)
def _kernel_or_obstacle(
    program: Program, varying: tuple[bool, ...], options: Options
) -> Emitted | Obstacle:
    linked = blocks_for(program, varying, options)
    if linked.has_calls:
        linked = link(leaf_calls(linked.program), varying)
    found = written(linked, varying, options)
    return found if isinstance(found, Emitted) else found[0]


def kernel_for(program: Program, varying: tuple[bool, ...], options: Options) -> Emitted:
    """The program's kernel; an error that names the operation if it cannot be one."""
    found = kernel_or_obstacle(program, varying, options)
    if isinstance(found, Obstacle):
        raise OptionError(f'carrier="kernel" cannot carry {found}. Use carrier="ticks".')
    return found


def run_kernel(
    emitted: Emitted,
    program: Program,
    operands: Sequence[Any],
    examples: int,
    capacity: int,
    run: Run,
) -> tuple[list[Any], Any, Any, list[Any]]:
    """Answers, codes, sites and statistics of all examples; a stack holds `capacity` frames."""
    given = [stored(x, _jax.aval_of(x)) for x in operands]
    values, code, site, totals = run(emitted, given, examples, capacity)
    answers = [
        _jax.wrap_key(value, aval) if _jax.is_key(aval) else value
        for value, aval in zip(values, (*program.out_avals, *program.sums), strict=True)
    ]
    # A lane never waits for another, so it is never offered what it does not run.
    each = (examples, examples, examples, examples)
    return answers, code, site, counts(*each, *totals)


def kernel_in_step(program: Program, varying: tuple[bool, ...], options: Options) -> Emitted | None:
    """The kernel for several lanes in step, cached, if the program has one. It counts nothing that is observed."""
    return _kernel_in_step(program, varying, options.unwatched().of_kernel())


@functools.lru_cache(maxsize=512)
def _kernel_in_step(
    program: Program, varying: tuple[bool, ...], options: Options
) -> Emitted | None:
    # Lanes in step do not stop one by one, are not counted, and add to no sum.
    if options.stats or options.max_steps is not None or program.sums:
        return None
    # Most programs have nothing of the kind, which is seen before the work of making branches selects.
    if not might_be_tiled(blocks_for(program, varying, options)):
        return None
    return tiled(kernel_blocks(program, varying, options, selects=True), varying)
