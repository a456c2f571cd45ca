"""From a program and its operands to the answers of all lanes, by a kernel: on a GPU, or on the host's cores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise.blocks.inside import Expand
from lanewise.errors import OptionError
from lanewise.machine.kernel.emit import Emitted
from lanewise.machine.kernel.lower import kernel_blocks, kernel_of
from lanewise.machine.kernel.support import obstacles
from lanewise.machine.state import stored
from lanewise.options import Options
from lanewise.program import Program

# Runs a kernel: the kernel, operands, how many examples, how many frames a stack holds. Gives answers, codes, sites,
# and (all steps, most frames pending).
Run = Callable[[Emitted, Sequence[Any], int, int], tuple[list[Any], Any, Any, Any]]


@functools.lru_cache(maxsize=512)
def kernel_for(
    program: Program, varying: tuple[bool, ...], options: Options, expand: Expand
) -> Emitted:
    """The program's kernel, remembered; an error that names the operation if it cannot be one."""
    found = obstacles(kernel_blocks(program, varying, options, expand), varying, expand)
    if found:
        raise OptionError(f'carrier="kernel" cannot carry {found[0]}. Use carrier="ticks".')
    return kernel_of(program, varying, options, expand)


def run_kernel(
    program: Program,
    operands: Sequence[Any],
    varying: Sequence[bool],
    examples: int,
    options: Options,
    expand: Expand,
    capacity: int,
    run: Run,
) -> tuple[list[Any], Any, Any, list[Any]]:
    """Answers, codes, sites and statistics of all examples; a stack holds `capacity` frames."""
    emitted = kernel_for(program, tuple(varying), options, expand)
    given = [stored(x, _jax.aval_of(x)) for x in operands]
    values, code, site, totals = run(emitted, given, examples, capacity)
    answers = [
        _jax.wrap_key(value, aval) if _jax.is_key(aval) else value
        for value, aval in zip(values, program.out_avals, strict=True)
    ]
    # A lane never waits for another, so it is never offered what it does not run.
    counts = [jnp.int32(examples), *[jnp.float32(examples)] * 3]
    return answers, code, site, [*counts, totals[0], totals[1].astype(jnp.int32)]
