"""Write a program for one example, with real control flow and recursion; run it for a whole batch."""

from lanewise import bind as _bind  # registers the rules of the program primitive
from lanewise import errors
from lanewise.decorator import ProgramFunction, lift, program
from lanewise.errors import LaneError, LanewiseError, Outcome, ProgramError
from lanewise.inspect import Inspection, inspect
from lanewise.outcomes import Failure, Outcomes, Stats
from lanewise.program import Program
from lanewise.stream import stream
from lanewise.transform import vmap

del _bind

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
    "errors",
    "inspect",
    "lift",
    "program",
    "stream",
    "vmap",
]
