"""`lanewise.vmap`: `jax.vmap` with a say in how the lanes run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lanewise._jax import ArrayImpl
from lanewise.api.over_mesh import over_mesh
from lanewise.core.errors import OptionError
from lanewise.core.objects import holds, is_taken, over_lanes, refuse_unpacked
from lanewise.tracing.decorator import ProgramFunction, lift
from lanewise.tracing.signature import hashable


def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    *,
    axis_size: int | None = None,
    axis_name: Any = None,
    spmd_axis_name: Any = None,
    mesh: Any = None,
    axis: Any = None,
    **options: Any,
) -> Callable[..., Any]:
    """Run a program for a whole batch; a plain function is lifted first.

    Axes are those of `jax.vmap`. Called outside `jit`, it traces the function once for each signature and caches
    the trace, as `jax.jit` does; a program under `jax.vmap` is traced by JAX at each call. Options:

    * `schedule`: which block runs next: "auto", "sweep", "meet", "most", "lowest", "fork" (calls at the same time),
      "local" (outside `jit`), or "plain" for `jax.vmap`'s own batching. "levels" (outside `jit`) runs control first and
      then the values, level by level.
    * `carrier`: what the machine is compiled to: "auto", "ticks" (XLA, all lanes at once), "native" (a CPU, lane by
      lane) or "kernel" (an NVIDIA GPU, the program as one kernel).
    * `max_steps`: end a lane after this many steps (loop iterations and calls).
    * `max_depth`: how many frames a lane may have pending.
    * `throw`: raise if a lane fails (the default); False gives `Outcomes` beside the answers.
    * `stats`: give `Stats` of the machine, last.
    * `progress`: show on stderr how many examples are done, from inside the run.
    * `lanes`: run with this many lanes, each of which takes the next example when it has ended one. Answers are the
      same; a batch of no more examples than that runs as it would without.

    With `mesh`, a `jax.sharding.Mesh`, each of its devices along `axis` runs a part of the batch; `axis` may be left
    out if the mesh has one. Then `lanes` is how many all devices have together.

    >>> import jax.numpy as jnp
    >>> import lanewise as lw
    >>> double = lambda x: jax.lax.while_loop(lambda y: y < 100, lambda y: 2 * y, x)
    >>> lw.vmap(double, schedule="most")(jnp.array([1, 30, 200])).tolist()
    [128, 120, 200]
    >>> answers, outcomes = lw.vmap(double, max_steps=4, throw=False)(jnp.array([1, 30, 200]))
    >>> outcomes.ok().tolist()
    [False, True, True]
    >>> lw.vmap(double, lanes=2)(jnp.array([1, 30, 200, 7, 50])).tolist()
    [128, 120, 200, 112, 100]
    """
    if not callable(fun):
        raise OptionError(
            f"lanewise.vmap takes a function or a program; got {type(fun).__name__}: {fun!r}"
        )
    axis_size = None if axis_size is None else _size(axis_size)
    program = fun if isinstance(fun, ProgramFunction) else lift(fun)
    program = program.with_options(**options)
    if mesh is not None and (axis_name is not None or spmd_axis_name is not None):
        raise OptionError(
            "axis_name and spmd_axis_name are for jax.vmap's own axis; with mesh, leave them out."
        )
    if mesh is not None:
        return over_mesh(program, in_axes, out_axes, axis_size, mesh, axis)
    if axis is not None:
        raise OptionError(f"axis={axis!r} names an axis of a mesh: give mesh too.")
    chosen = program.options
    extra = ([] if chosen.throw else [0]) + ([None] if chosen.stats else [])
    axes: dict[str, Any] = {
        "in_axes": in_axes,
        "out_axes": (out_axes, *extra) if extra else out_axes,
        "axis_size": axis_size,
        "axis_name": axis_name,
        "spmd_axis_name": spmd_axis_name,
    }
    batched = jax.vmap(program, **axes)
    replays = program.replays(batched, hashable(axes))

    @functools.wraps(batched)
    def call(*args: Any, **kwargs: Any) -> Any:
        chosen = replays
        for arg in args:  # rarely more than arrays, so checked one by one
            if isinstance(arg, ArrayImpl):
                continue
            if holds(arg):
                args, found = over_lanes(args, in_axes)
                batched_by = {**axes, "in_axes": found}
                chosen = program.replays(jax.vmap(program, **batched_by), hashable(batched_by))
                break
            _check_packed(arg)
        try:
            return chosen(args, kwargs)
        except ValueError as error:
            # JAX names the axis, not the argument that asked for it.
            if "out of bounds for array of dimension" not in str(error) or out_axes == 0:
                raise
            raise OptionError(
                f"out_axes={out_axes!r} does not fit the answers: {error}. An answer has the axes it has for one"
                " example, and one more."
            ) from error

    return call


def _check_packed(arg: Any) -> None:
    """Records come packed."""
    refuse_unpacked(arg)
    if is_taken(arg):
        raise OptionError(
            f"a record {type(arg).__name__} is one example: give `lanewise.pack(records)` for a batch, and"
            " `lanewise.pack([record])[0]`, with None in in_axes, for one that all lanes share."
        )


def _size(axis_size: Any) -> int:
    if isinstance(axis_size, bool) or not isinstance(axis_size, int | np.integer) or axis_size < 0:
        raise OptionError(f"axis_size={axis_size!r} must be an int, the number of examples.")
    return int(axis_size)
