"""`lanewise.run`: a program whose parts run at different devices or processes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lanewise import _jax
from lanewise.core.errors import OptionError
from lanewise.place.groups import in_groups
from lanewise.place.held import Held, given_leaves, held
from lanewise.place.placement import Placement, placement_from
from lanewise.place.prepared import Asked, Prepared, ask
from lanewise.place.project import dry_run
from lanewise.place.running import Running, check_leaves, running
from lanewise.place.saved import Saving
from lanewise.place.stretches import cuts
from lanewise.place.text import Traffic, traffic
from lanewise.place.transports.launched import launched


def run(
    fun: Callable[..., Any],
    placement: Any,
    *,
    in_flight: int = 8,
    timeout: float = 30.0,
    groups: int | None = None,
    in_axes: Any = 0,
    gather: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
) -> Placed:
    """`fun` with its parts where `placement` says; call it as `fun` is called.

    Parts are named by `lanewise.placed` and `lanewise.on`. `placement` gives each name a device of this process, or
    the rank of a process that `lanewise launch` started; families have a sequence of them. What no part names runs
    where most of its operands are. Placement never changes what is computed.

    * `in_flight`: how many iterations of a loop may be under way at once. Messages that wait are bounded by it.
    * `timeout`: seconds without a sign of life after which a process counts as hanging.
    * `groups`: run a batch in this many groups of lanes, one after the other: while one place has a group, the place
      before it has the next. `fun` takes a batch, as what `lanewise.vmap` gives does; `in_axes` says which
      arguments have lanes, in front. Results have lanes in front.
    * `gather`: with ranks, whether each process gets all results. False: results stay where they are made, as
      `lanewise.Held`, and may be arguments of a later call: the weights of a part never leave it.
    * `checkpoint`, `every`: save the state of the program's outermost loops in this folder every `every` iterations,
      and go on from there when the same call is made again (extra `place`).

    Between processes, each calls it with the same arguments, and each gets all results unless `gather=False`. Between
    devices, results stay on the device that made them.

    >>> import jax, jax.numpy as jnp, lanewise as lw
    >>> def model(x):
    ...     return lw.placed(jnp.sin, "encoder")(x) + 1
    >>> float(lw.run(model, {"encoder": jax.devices()[0]})(jnp.float32(0)))
    1.0
    """
    if not callable(fun):
        raise OptionError(
            f"lanewise.run takes a function or a program; got {type(fun).__name__}: {fun!r}"
        )
    if isinstance(in_flight, bool) or not isinstance(in_flight, int) or in_flight < 1:
        raise OptionError(f"in_flight={in_flight!r} must be a positive int.")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise OptionError(f"timeout={timeout!r} must be a positive number of seconds.")
    for name, value in (("groups", groups), ("every", every)):
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or value < 1
        ):
            raise OptionError(f"{name}={value!r} must be a positive int.")
    if (checkpoint is None) != (every is None):
        raise OptionError(
            "checkpoint= and every= belong together: the folder, and after how many iterations the state is saved."
        )
    if groups is not None:
        fun = in_groups(fun, groups, in_axes)
    saved = None if checkpoint is None or every is None else (Path(checkpoint), every)
    return Placed(fun, placement, in_flight, float(timeout), saved, bool(gather), groups)


class Placed:
    """A function with a placement. Made by `lanewise.run`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        placement: Any,
        in_flight: int,
        timeout: float,
        saved: tuple[Path, int] | None,
        gather: bool,
        groups: int | None = None,
    ) -> None:
        functools.update_wrapper(self, fun, updated=())
        self._fun, self._in_flight, self._timeout, self._saved = fun, in_flight, timeout, saved
        self._gather, self._groups = gather, groups
        self._name = getattr(fun, "__name__", type(fun).__name__)
        self._launched = None
        self._given = placement
        self._derivatives: dict[Any, Callable[..., Any]] = {}
        self._placement: Placement = placement_from(placement)
        if not self._placement.devices:
            # A dry run with ranks needs no other process.
            self._launched = launched()
            if self._launched is not None:
                self._placement = placement_from(placement, self._launched.size)
        self._asked: dict[Any, Asked] = {}
        self._prepared: dict[Asked, Prepared] = {}
        self._saving: dict[Asked, Saving] = {}
        self._running: dict[Prepared, Running] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._has_ranks and self._launched is None:
            raise OptionError(
                "placement= has ranks, and this process was not started as one of several. Start the script with"
                f" `lanewise launch -n {self._placement.size} script.py`, or place parts on devices of this process, as"
                ' in {"encoder": jax.devices()[0]}. dry_run and inspect need no other process.'
            )
        leaves, tree = jax.tree.flatten((args, kwargs))
        if any(map(_jax.has_derivative, leaves)) and self._launched is None and not _jax.stages():
            return self._differentiated(tree)(*leaves)
        return self._called(args, kwargs)

    def _called(self, args: Any, kwargs: Any) -> Any:
        asked, leaves = self._ask(args, kwargs)
        if self._saved is None:
            last = self._divided(asked)
            results = self._runs(last)([*last.captured, *leaves])
        else:
            saving = self._in_stretches(asked)
            last = saving.cuts.after
            results = saving(leaves)
        asked.raise_if_failed(results, self._groups)
        count = asked.out_tree.num_leaves
        homes, atoms = last.actions.outs[:count], last.actions.code.region.outs[:count]
        if self._gather or not self._has_ranks:
            outs = [results[i] for i in range(len(homes))]
        else:
            outs = [
                held(results.get(i), atom.aval, places, self._placement)
                for i, (atom, places) in enumerate(zip(atoms, homes, strict=True))
            ]
        return jax.tree.unflatten(asked.out_tree, outs)

    def _differentiated(self, tree: Any) -> Callable[..., Any]:
        """The call as JAX differentiates it in reverse: what is saved stays on the devices that made it."""
        if self._saved is not None:
            raise OptionError(
                "checkpoint= saves the loop of a run, and a gradient around lanewise.run is two runs. Take the gradient"
                " inside: lanewise.run(jax.grad(f), placement, checkpoint=...)."
            )
        found = self._derivatives.get(tree)
        if found is not None:
            return found

        def flat(*leaves: Any) -> Any:
            args, kwargs = jax.tree.unflatten(tree, leaves)
            return self._fun(*args, **kwargs)

        placement, settings = self._given, (self._in_flight, self._timeout, None, True)
        forward = Placed(lambda *leaves: jax.vjp(flat, *leaves), placement, *settings)

        def pulled(pull: Any, cts: Any) -> list[Any]:
            return [ct for ct in pull(cts) if ct.dtype != jax.dtypes.float0]

        reverse = Placed(pulled, placement, *settings)
        run = jax.custom_vjp(lambda *leaves: self._called(*jax.tree.unflatten(tree, leaves)))

        def pull_back(saved: Any, cts: Any) -> tuple[Any, ...]:
            pull, types = saved
            found = iter(reverse._called((pull, cts), {}))
            return tuple(
                next(found) if moves else np.zeros(np.shape(leaf), jax.dtypes.float0)
                for leaf, moves in types
            )

        def ahead(*leaves: Any) -> tuple[Any, Any]:
            outs, pull = forward._called(leaves, {})
            types = [(leaf, _jax.has_tangent(_jax.aval_of(leaf))) for leaf in leaves]
            return outs, (pull, types)

        run.defvjp(ahead, pull_back)
        self._derivatives[tree] = run
        return run

    def dry_run(self, *args: Any, **kwargs: Any) -> Traffic:
        """How many messages and bytes go over each edge with these arguments: run in this process, with no message.

        Any process can ask for it; nothing is started. With ranks it needs no launcher: one process can count for a
        thousand.
        """
        asked, leaves = self._ask(args, kwargs)
        if any(leaf is None for leaf in leaves):
            raise OptionError(
                "dry_run runs the whole program in this process, and an argument is held by another. Give arrays."
            )
        prepared = self._divided(asked)
        whole = [*prepared.captured, *leaves]
        counts, _ = dry_run(prepared.actions, prepared.placement.everywhere, whole)
        return traffic(prepared.actions, prepared.placement, counts)

    def inspect(self, *args: Any, **kwargs: Any) -> str:
        """What runs where, which values travel, and why places may or may not be iterations apart, as text."""
        return self._divided(self._ask(args, kwargs)[0]).text

    def close(self) -> None:
        """End the sessions with other processes; the next call opens new ones."""
        for each in self._running.values():
            each.close()

    @property
    def _has_ranks(self) -> bool:
        return not self._placement.devices

    def _ask(self, args: Any, kwargs: Any) -> tuple[Asked, list[Any]]:
        leaves, tree = jax.tree.flatten((args, kwargs))
        check_leaves(leaves, self._name)
        if not self._has_ranks:
            leaves = [leaf.value if isinstance(leaf, Held) else leaf for leaf in leaves]
        avals, values, homes = given_leaves(leaves, self._placement.everywhere)
        key = (tree, tuple(avals), tuple(homes), _jax.trace_context())
        found = self._asked.get(key)
        if found is None:
            found = ask(self._fun, self._name, self._placement, leaves, tree)
            self._asked[key] = found
        return found, values

    def _divided(self, asked: Asked) -> Prepared:
        found = self._prepared.get(asked)
        if found is None:
            found = asked.divided(everywhere=self._has_ranks and self._gather)
            self._prepared[asked] = found
        return found

    def _runs(self, prepared: Prepared) -> Running:
        found = self._running.get(prepared)
        if found is None:
            device = jax.local_devices()[0]
            found = running(prepared, self._in_flight, self._timeout, self._launched, device)
            self._running[prepared] = found
        return found

    def _in_stretches(self, asked: Asked) -> Saving:
        found = self._saving.get(asked)
        if found is None:
            assert self._saved is not None
            folder, every = self._saved
            rank = None if self._launched is None else self._launched.rank
            whole = cuts(asked, self._has_ranks and self._gather)
            found = Saving(whole, folder, every, rank, self._runs)
            self._saving[asked] = found
        return found
