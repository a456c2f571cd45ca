"""The carrier `native`: one lane at a time on a CPU, with real loops and branches.

Three paths lead there.

* `C++`: the kernel's text (`machine/kernel/`) compiled by the host's C++ compiler and called by XLA inside `jit`. Loop
  variables live in machine registers, and the examples are spread over all cores.
* `C++, 16 lanes in step`: the same for a program that is one loop of scalar arithmetic, which a core runs for several
  lanes at once with its vector instructions (`machine/kernel/tiles.py`).
* `XLA`: XLA:CPU's own code for a whole computation as one function (`one_function.py`), where there is no C++
  compiler or an operation has no rule in the kernel's table. XLA keeps loop variables in memory and runs one call on
  one core, so it is two to four times slower; and its one-function code has no matrix products, large sums, sorts,
  factorizations or scatters of many updates. A program with one of these has no `native` path here.

What was considered: several CPU devices under `shard_map` need a flag before JAX starts; a pool of Python threads that
each run a part works outside `jit` only; several calls in one computation are compiled once each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise._jax import JaxprEqn
from lanewise.blocks.cost import size_of
from lanewise.blocks.inside import Expand
from lanewise.errors import OptionError
from lanewise.machine import observe
from lanewise.machine.kernel import foreign
from lanewise.machine.kernel.carry import (
    blocks_for,
    kernel_for,
    kernel_or_obstacle,
    run_kernel,
)
from lanewise.machine.kernel.emit import Emitted
from lanewise.machine.kernel.lower import kernel_blocks
from lanewise.machine.kernel.tiles import TILE, might_be_tiled, tiled
from lanewise.machine.link import Linked
from lanewise.machine.state import initial_state, stored
from lanewise.machine.ticks import answers, run_ticks, statistics
from lanewise.one_function import as_one_function
from lanewise.options import Options
from lanewise.program import Program
from lanewise.watchers import Site

# XLA:CPU hands float reductions over more elements than this to a library, which its one-function code cannot call.
MOST_REDUCED = 1024
# What XLA:CPU's one-function code has no instructions for. (`linear_solve` is Lineax's, and holds a factorization.)
_NOT_IN_ONE_FUNCTION = frozenset(
    "cholesky lu lu_pivots_to_permutation geqrf geqp3 qr householder_product eigh eig svd schur triangular_solve"
    " tridiagonal tridiagonal_solve hessenberg fft sort top_k approx_top_k rng_uniform ragged_dot ragged_dot_general"
    " conv_general_dilated pure_callback io_callback debug_callback debug_print ffi_call custom_call"
    " call_hi_primitive linear_solve".split()
)
_ARRAY_REDUCTIONS = ("reduce", "arg", "cum")


CPP = "C++"
IN_STEP = f"C++, {TILE} lanes in step"
XLA = "XLA"


def native_path(
    program: Program, varying: Sequence[bool], options: Options, expand: Expand
) -> tuple[str, str]:
    """What compiles the program for one lane at a time, and why that; an error if nothing can."""
    varying = tuple(varying)
    obstacle = foreign.obstacle()
    if obstacle is None:
        if _in_step(program, varying, options.unwatched().of_kernel(), expand) is not None:
            return IN_STEP, "one loop of scalar arithmetic, which vector instructions run"
        found = kernel_or_obstacle(program, varying, options, expand)
        if isinstance(found, Emitted):
            return CPP, ""
        obstacle = str(found)
    linked = blocks_for(program, varying, options, expand)
    missing = next(_unavailable(_all_eqns(linked)), None)
    if missing is None:
        return XLA, f"by a C++ compiler it cannot be: {obstacle}"
    raise OptionError(
        f'carrier="native" cannot run this program. By a C++ compiler: {obstacle}. By XLA: {missing} has no code for'
        ' one lane at a time. Use carrier="ticks".'
    )


@functools.lru_cache(maxsize=512)
def _in_step(
    program: Program, varying: tuple[bool, ...], options: Options, expand: Expand
) -> Emitted | None:
    """The kernel for several lanes in step, if the program has one."""
    # Lanes in step do not stop one by one, and are not counted.
    if options.stats or options.max_steps is not None:
        return None
    # Most programs have nothing of the kind, which is seen before the work of making branches selects.
    if not might_be_tiled(blocks_for(program, varying, options, expand)):
        return None
    return tiled(kernel_blocks(program, varying, options, expand, selects=True), varying, expand)


def run_native(
    program: Program,
    operands: Sequence[Any],
    varying: Sequence[bool],
    lanes: int,
    options: Options,
    expand: Expand,
    path: str,
    capacity: int,
    site: Site | None = None,
    stops: bool = False,
) -> tuple[list[Any], Any, Any, list[Any]]:
    """Answers, codes, sites and statistics of all lanes; a stack holds `capacity` frames.

    `site` is for who watches; `stops`: an interrupt cuts the run short (by the C++ paths alone).
    """
    varying = tuple(varying)
    if path == XLA:
        linked = blocks_for(program, varying, options.unwatched(), expand)
        return _by_xla(linked, operands, varying, lanes, options, capacity, site)
    if path == IN_STEP:
        emitted = _in_step(program, varying, options.unwatched().of_kernel(), expand)
    else:
        emitted = kernel_for(program, varying, options, expand)
    assert emitted is not None
    call = functools.partial(foreign.call, site=site, counts=path != IN_STEP, stops=stops)
    return run_kernel(emitted, program, operands, lanes, capacity, call)


def _by_xla(
    linked: Linked,
    operands: Sequence[Any],
    varying: tuple[bool, ...],
    lanes: int,
    options: Options,
    capacity: int,
    watched: Site | None,
) -> tuple[list[Any], Any, Any, list[Any]]:
    """A machine of one lane, run for one example after the other; stacks are handed on as they are."""
    kept = [stored(x, _jax.aval_of(x)) for x in operands]
    avals = [_jax.aval_of(x) for x in operands]

    def all_lanes(*kept: Any) -> list[Any]:
        shared = [x for x, flag in zip(kept, varying, strict=True) if not flag]
        own = [x for x, flag in zip(kept, varying, strict=True) if flag]

        def one(stacks: Any, row: list[Any]) -> Any:
            rows, rest = iter(row), iter(shared)
            values = [
                _as_lane(next(rows), aval) if flag else _as_shared(next(rest), aval)
                for aval, flag in zip(avals, varying, strict=True)
            ]
            state = initial_state(linked, values, varying, 1, capacity)
            if stacks is not None:
                state = state.with_(stacks=stacks[0], returns=stacks[1])
            state = run_ticks(linked, state, 1, options, "lowest")
            found, code, site = answers(linked, state)
            out = [*(stored(x, _jax.aval_of(x)) for x in found), code, site, *statistics(state)]
            return (state.stacks, state.returns), out

        first = jax.eval_shape(lambda row: one(None, row)[0], [x[0] for x in own])
        empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), first)
        _, out = lax.scan(one, empty, own, length=lanes)
        return out

    whole = None if watched is None else observe.Whole(watched, kept)
    out = as_one_function(all_lanes, *kept)
    count = len(linked.program.entry_function.results)
    values = [
        _jax.wrap_key(x[:, 0], var.aval) if _jax.is_key(var.aval) else x[:, 0]
        for x, var in zip(out[:count], linked.program.entry_function.results, strict=True)
    ]
    code, site = (x[:, 0] for x in out[count : count + 2])
    ticks, *sums, deepest = out[count + 2 :]
    if whole is not None:
        whole.ended(code, code, sums[-1].astype(jnp.int32), deepest)
    sums = [x.sum(dtype=jnp.float32) for x in sums]
    return values, code, site, [ticks.sum(dtype=jnp.int32), *sums, deepest.max(initial=0)]


def _as_lane(row: Any, aval: Any) -> Any:
    """A row of kept words as a batch of one value."""
    return _as_shared(row[None], aval)


def _as_shared(value: Any, aval: Any) -> Any:
    return _jax.wrap_key(value, aval) if _jax.is_key(aval) else value


def _all_eqns(linked: Linked) -> Iterable[JaxprEqn]:
    for _, block in linked.program.all_blocks():
        yield from block.eqns


def _unavailable(eqns: Iterable[JaxprEqn], around: str = "") -> Iterator[str]:
    """The operations, and their lines, that XLA:CPU's one-function code cannot have."""
    for eqn in eqns:
        name, line = eqn.primitive.name, _jax.user_line(eqn) or around
        if (
            name in _NOT_IN_ONE_FUNCTION
            or (name in _TESTS and _TESTS[name](eqn))
            or (name.startswith("scatter") and _num_updates(eqn) > 1)
            or (name.startswith(_ARRAY_REDUCTIONS) and _most_elements(eqn) > MOST_REDUCED)
        ):
            yield f"{name} ({line})"
        for inner in _jax.subjaxprs(eqn):
            yield from _unavailable(inner.eqns, line)


def _most_elements(eqn: JaxprEqn) -> int:
    return max(map(size_of, eqn.invars))


def _is_matrix_product(eqn: JaxprEqn) -> bool:
    """Whether both sides of a product have rows of their own: XLA calls a library for it."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    free = [
        eqn.invars[0].aval.ndim - len(left) - len(left_batch),
        eqn.invars[1].aval.ndim - len(right) - len(right_batch),
    ]
    return all(free) or _most_elements(eqn) > MOST_REDUCED**2 // 16


def _num_updates(eqn: JaxprEqn) -> int:
    *places, _ = eqn.invars[1].aval.shape or (1,)
    count = 1
    for size in places:
        count *= size
    return count


_TESTS: dict[str, Callable[[JaxprEqn], bool]] = {"dot_general": _is_matrix_product}
