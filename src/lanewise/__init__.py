"""Write a program for one example, with real control flow and recursion; run it for a whole batch."""

from typing import TYPE_CHECKING, Any

from lanewise import errors, records
from lanewise import rules as _rules  # registers the rules of the program primitive
from lanewise.api.fixed_point import fixed_point
from lanewise.api.gradient import check_grads, grad, recomputed, value_and_grad
from lanewise.api.inspect import inspect
from lanewise.api.inspection import Inspection
from lanewise.api.stream import NOT_YET, stream
from lanewise.api.vmap import vmap
from lanewise.core.errors import LaneError, LanewiseError, Outcome, PlaceError, ProgramError
from lanewise.core.outcomes import Failure, Outcomes, Stats, lane_errors
from lanewise.core.parts import on, placed
from lanewise.core.program import Program
from lanewise.place.cluster.cluster import Cluster
from lanewise.records.forest import Forest
from lanewise.records.pack import pack
from lanewise.records.reference import Reference
from lanewise.records.schema import record
from lanewise.tracing.decorator import ProgramFunction, lift, program
from lanewise.watch.report import report
from lanewise.watch.timeline import timeline

if TYPE_CHECKING:
    from lanewise import arrays
    from lanewise.api.prepare import prepare
    from lanewise.api.run import run
    from lanewise.dynamic.instances import lazy_map
    from lanewise.dynamic.lazy import lazy, op
    from lanewise.dynamic.memory import keep_pages
    from lanewise.dynamic.total import lazy_sum
    from lanewise.feed.ahead import ahead
    from lanewise.place.held import Held

del _rules

__all__ = [
    "NOT_YET",
    "Cluster",
    "Failure",
    "Forest",
    "Held",
    "Inspection",
    "LaneError",
    "LanewiseError",
    "Outcome",
    "Outcomes",
    "PlaceError",
    "Program",
    "ProgramError",
    "ProgramFunction",
    "Reference",
    "Stats",
    "ahead",
    "arrays",
    "check_grads",
    "errors",
    "fixed_point",
    "grad",
    "inspect",
    "keep_pages",
    "lane_errors",
    "lazy",
    "lazy_map",
    "lazy_sum",
    "lift",
    "on",
    "op",
    "pack",
    "placed",
    "prepare",
    "program",
    "recomputed",
    "record",
    "records",
    "report",
    "run",
    "stream",
    "timeline",
    "value_and_grad",
    "vmap",
]


_LATER = {
    "Held": "lanewise.place.held",
    "ahead": "lanewise.feed.ahead",
    "arrays": "lanewise.arrays",
    "keep_pages": "lanewise.dynamic.memory",
    "lazy": "lanewise.dynamic.lazy",
    "lazy_map": "lanewise.dynamic.instances",
    "lazy_sum": "lanewise.dynamic.total",
    "op": "lanewise.dynamic.lazy",
    "prepare": "lanewise.api.prepare",
    "run": "lanewise.api.run",
}


def __getattr__(name: str) -> Any:
    """Parts that many programs do not need are imported when they are first named."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(_LATER[name])
    return module if name == "arrays" else getattr(module, name)
