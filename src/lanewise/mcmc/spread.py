"""The program of a chain over the workers of a cluster.

A call is a stream of chains. Values that all chains share in a stretch of draws (the scale, the task) go to a worker
with each chunk and not with each chain. Workers stay from one stretch to the next, with their compiled code.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from lanewise.api.on_cluster import OnCluster
from lanewise.api.stream import Streaming
from lanewise.core.errors import Outcome
from lanewise.core.outcomes import Failure, Outcomes, Site
from lanewise.tracing.decorator import ProgramFunction, lift

# This many chains are in flight on a worker, unless `lanes` is given.
MOST_LANES = 1024


class Spread:
    """A chain's program, called for all chains. `alone`: each has a scale of its own."""

    def __init__(
        self,
        program: ProgramFunction,
        cluster: Any,
        chains: int,
        alone: bool,
        *,
        lanes: int | None,
        **options: Any,
    ) -> None:
        def chain(shared: Any, own: Any) -> Any:
            space, task = shared
            key, carried, draws, own_space = own
            return program(key, carried, draws, own_space if alone else space, task)

        self.program = lift(chain, lanes=lanes or min(chains, MOST_LANES), **options)
        self.on_cluster = OnCluster(cluster, keeps=True)
        self.chains, self.alone = chains, alone

    def __call__(
        self, keys: Any, carried: Any, draws: Any, space: Any, task: Any
    ) -> tuple[Any, Outcomes]:
        """The results of each chain, with an axis of chains in front, and how each ended."""
        own_space = space if self.alone else None
        rows = jax.tree.map(np.asarray, (carried, draws, own_space))
        shared = (None if self.alone else space, task)

        def own(i: int) -> tuple[Any, ...]:
            return ((keys[i], *jax.tree.map(lambda leaf: leaf[i], rows)),)

        streaming = Streaming(
            self.program,
            map(own, range(self.chains)),
            ordered=False,
            progress=None,
            total=self.chains,
            on_cluster=self.on_cluster,
            shared=(shared,),
        )
        answers = dict(streaming.answers())
        assert streaming.first is not None
        result = streaming.first.staged.result
        blank = jax.tree.unflatten(
            result.tree, result.static.join([np.zeros(a.shape, a.dtype) for a in result.avals])
        )
        code, site = np.zeros(self.chains, np.int32), np.full(self.chains, -1, np.int32)
        sites: list[Site] = []
        for i, value in answers.items():
            if isinstance(value, Failure):
                answers[i] = blank
                code[i] = int(value.outcome)
                if value.outcome is Outcome.ASSERTION_FAILED and value.site is not None:
                    sites += [value.site] if value.site not in sites else []
                    site[i] = sites.index(value.site)
        columns = [answers[i] for i in range(self.chains)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *columns), Outcomes(
            code, site, tuple(sites)
        )

    def close(self) -> None:
        """Release the workers."""
        self.on_cluster.close()
