"""A stream over a cluster: what it feeds there, for one stream or for several with the same workers."""

from __future__ import annotations

import itertools
import os
from typing import Any

import jax
import numpy as np

from lanewise import _jax
from lanewise.api.worker import (
    Traveling,
    digest_of_program,
    settings_here,
    versions,
    with_shared,
)
from lanewise.core.errors import OptionError
from lanewise.feed.fed import kept_row
from lanewise.place.cluster.chunked import Chunked
from lanewise.place.cluster.cluster import Cluster, cluster_of
from lanewise.place.cluster.crew import Crew
from lanewise.place.cluster.engine import Greeting
from lanewise.place.cluster.log import Log
from lanewise.tracing.decorator import ProgramFunction
from lanewise.tracing.staging import Staged

# The options that decide outcomes: a run that goes on must have the same. The carrier is that of the log.
DECIDING = ("max_steps", "max_depth", "tape")


class OnCluster:
    """The workers of a cluster, for streams of one program. `keeps`: they stay after a stream, until `close`."""

    def __init__(
        self,
        cluster: str | Cluster,
        resume: str | os.PathLike[str] | None = None,
        keeps: bool = False,
    ) -> None:
        if resume is not None and not isinstance(resume, str | os.PathLike):
            raise OptionError(f"resume={resume!r} must be the path of a directory.")
        self.cluster = cluster_of(cluster)
        self.resume = resume
        self.keeps = keeps
        self.crew: Crew | None = None
        self.log: Log | None = None
        self.sessions = itertools.count()

    def fed(
        self,
        program: ProgramFunction,
        staged: Staged,
        shared: tuple[Any, ...],
        example: tuple[Any, ...],
        total: int | None,
    ) -> Chunked:
        """What a stream feeds: workers that run the program, with these arguments for all examples."""
        arrays = [np.asarray(_jax.stored(x, _jax.aval_of(x))) for x in jax.tree.leaves(shared)]
        whole = with_shared(staged.program, len(arrays))
        kept = [kept_row(aval) for aval in staged.result.avals]
        lanes = program.options.lanes or 1
        if self.crew is None:
            digest = digest_of_program(whole, staged.captures)
            expected = Greeting("", digest, versions(), "this process")
            if self.resume is not None:
                self.log = Log(self.resume, _described(program, expected, kept), kept)
            try:
                recipe = Traveling(program, shared, example, settings_here())
                carrier = self.log.carrier if self.log is not None else None
                engine = self.cluster.engine(recipe)
                self.crew = Crew(engine, expected, carrier, self.cluster.limit)
            except BaseException:
                self.close()
                raise
        return Chunked(
            self.crew,
            whole.operand_avals[whole.num_captures :],
            kept,
            lanes=lanes,
            most=self.cluster.chunk,
            total=total,
            shared=arrays,
            session=next(self.sessions),
            log=self.log,
        )

    def stream_ended(self) -> None:
        """One stream has ended."""
        if not self.keeps:
            self.close()

    def close(self) -> None:
        """Release the workers, and the log."""
        crew, self.crew = self.crew, None
        log, self.log = self.log, None
        try:
            if crew is not None:
                crew.close()
        finally:
            if log is not None:
                log.close()


def _described(program: ProgramFunction, expected: Greeting, kept: list[Any]) -> dict[str, Any]:
    """What distinguishes a run from others."""
    return {
        "program": program.__name__,
        "hash": expected.digest,
        "versions": expected.versions,
        "answers": [f"{row.dtype}{list(row.shape)}" for row in kept],
        **{name: getattr(program.options, name) for name in DECIDING},
    }
