"""Which cluster, and how much of it: what a caller says."""

from __future__ import annotations

from dataclasses import dataclass

from lanewise.core.errors import OptionError
from lanewise.core.options import positive_or_none
from lanewise.place.cluster.engine import Engine, Recipe


@dataclass(frozen=True)
class Cluster:
    """A cluster that examples are spread over: `lw.stream(f, examples, cluster=lw.Cluster("auto", workers=4))`.

    * `address`: that of a Ray cluster, such as "10.0.0.1:6379", or "auto": the one that `RAY_ADDRESS` names, or that
      `ray start` started on this machine. Where there is none, "auto" starts one of this machine alone, which ends with
      this process.
    * `workers`: how many processes run examples. By default there is one for each GPU, or where there are none one for
      each machine, which uses all of its cores.
    * `chunk`: the most examples that a worker gets at a time. By default as many as take it about two seconds. A chunk
      is what is run again when a worker dies, and what is reported when that happens three times.
    * `limit`: how many seconds a chunk may take, compilation included. A worker that takes longer is ended, as one that
      hangs has to be. By default there is no limit: a worker that dies is noticed, one that hangs is not.
    """

    address: str = "auto"
    workers: int | None = None
    chunk: int | None = None
    limit: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.address, str) or not self.address:
            raise OptionError(
                f'cluster={self.address!r} must be "auto", the address of a Ray cluster or a lanewise.Cluster.'
            )
        for name in ("workers", "chunk"):
            object.__setattr__(self, name, positive_or_none(name, getattr(self, name)))
        if self.limit is not None and not (isinstance(self.limit, int | float) and self.limit > 0):
            raise OptionError(
                f"limit={self.limit!r} must be a positive number of seconds, or None."
            )

    def engine(self, recipe: Recipe) -> Engine:
        """What starts workers, which the recipe makes."""
        # Only callers that ask for a cluster need it.
        from lanewise.place.cluster.by_ray import ByRay

        return ByRay(self.address, self.workers, recipe)


def cluster_of(given: object) -> Cluster:
    """What `cluster=` means."""
    return given if isinstance(given, Cluster) else Cluster(given)  # type: ignore[arg-type]
