"""Write a program for one example, with real control flow and recursion; run it for a whole batch."""

from typing import TYPE_CHECKING, Any

from lanewise import errors
from lanewise import rules as _rules  # registers the rules of the program primitive
from lanewise.api.fixed_point import fixed_point
from lanewise.api.gradient import check_grads, grad, recomputed, value_and_grad
from lanewise.api.inspect import inspect
from lanewise.api.inspection import Inspection
from lanewise.api.stream import stream
from lanewise.api.vmap import vmap
from lanewise.core.errors import LaneError, LanewiseError, Outcome, ProgramError
from lanewise.core.outcomes import Failure, Outcomes, Stats, lane_errors
from lanewise.core.program import Program
from lanewise.tracing.decorator import ProgramFunction, lift, program
from lanewise.watch.report import report
from lanewise.watch.trace import trace

if TYPE_CHECKING:
    from lanewise import arrays
    from lanewise.dynamic.instances import lazy_map
    from lanewise.dynamic.lazy import lazy, op

del _rules

__all__ = [
    "Failure",
    "Inspection",
    "LaneError",
    "LanewiseError",
    "Outcome",
    "Outcomes",
    "Program",
    "ProgramError",
    "ProgramFunction",
    "Stats",
    "arrays",
    "check_grads",
    "errors",
    "fixed_point",
    "grad",
    "inspect",
    "lane_errors",
    "lazy",
    "lazy_map",
    "lift",
    "op",
    "program",
    "recomputed",
    "report",
    "stream",
    "trace",
    "value_and_grad",
    "vmap",
]


_LATER = {
    "arrays": "lanewise.arrays",
    "lazy": "lanewise.dynamic.lazy",
    "lazy_map": "lanewise.dynamic.instances",
    "op": "lanewise.dynamic.lazy",
}


def __getattr__(name: str) -> Any:
    """Parts that many programs do not need are imported when they are first named."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(_LATER[name])
    return module if name == "arrays" else getattr(module, name)
