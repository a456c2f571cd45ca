"""Every message a user can meet, and how a lane ended.

Three voices, and each keeps to itself:

* a mistake in the user's program (`ProgramError`): reported at its own file and line, with the variable,
  the types and the fix;
* a lane that ended badly at run time (`LaneError`): names the lanes and carries every outcome;
* a mistake of ours (`InternalError`): says so, and asks for the program's text.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Location:
    """A place in the user's source."""

    filename: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        where = f"{self.filename}:{self.line}"
        return f"{where}, in {self.function}" if self.function else where


class LanewiseError(Exception):
    """The base of every error Lanewise raises on purpose."""


class ProgramError(LanewiseError):
    """A mistake in the user's program, reported at its own file and line."""

    def __init__(self, message: str, location: Location | None = None) -> None:
        self.location = location
        super().__init__(f"{location}: {message}" if location else message)


class UnsupportedSyntaxError(ProgramError, SyntaxError):
    """A Python construct a program cannot hold; the message says what to write instead."""

    def __init__(self, message: str, location: Location | None = None) -> None:
        super().__init__(message, location)
        if location is not None:
            self.filename, self.lineno = location.filename, location.line

    __str__ = Exception.__str__


class UndefinedVariableError(ProgramError, UnboundLocalError):
    """A variable is read that some path through the program leaves undefined."""


class BranchTypeError(ProgramError, TypeError):
    """The two sides of a branch leave a variable with different types."""


class LoopTypeError(ProgramError, TypeError):
    """A loop body gives a variable another type than it entered with."""


class ResultTypeError(ProgramError, TypeError):
    """A program's results differ in type, or a recursive result type never settles."""


class TransformError(ProgramError, TypeError):
    """A transformation that a program does not support where it was applied."""


class OptionError(LanewiseError, ValueError):
    """An option or argument of a Lanewise function is wrong."""


class RecordError(LanewiseError, ValueError):
    """Records that cannot be packed: the message names the one that is wrong, and its field."""


class CompilerError(LanewiseError, RuntimeError):
    """The compiler that makes kernels failed for a reason that is no mistake in a program: memory, disk, time."""


class ClusterError(LanewiseError, RuntimeError):
    """A cluster cannot run a program: no worker is available, or workers run another program or another JAX."""


class OperatorError(LanewiseError, TypeError):
    """What an array operator was given to combine elements with does not fit the elements."""


class GradientError(LanewiseError, AssertionError):
    """Derivatives that `lanewise.check_grads` found to disagree."""


class InternalError(LanewiseError, AssertionError):
    """Lanewise broke one of its own rules."""

    def __init__(self, message: str, program_text: str = "") -> None:
        super().__init__(
            f"This is a bug in Lanewise: {message}\nPlease report it, with what `lanewise doctor` prints and the"
            " program's text."
        )
        self.has_text = False
        if program_text:
            self.show(program_text)

    def show(self, program_text: str) -> None:
        """Put the program's text under the message, where none is there yet."""
        if not self.has_text:
            self.has_text = True
            self.args = (f"{self.args[0]}\n\n{program_text}",)


class CapturedValueWarning(UserWarning):
    """A value that a program read from outside when it was traced has changed since."""


class RecorderWarning(RuntimeWarning):
    """A progress bar or recorder failed: the run goes on without it."""


class ResultUnknown(Exception):
    """Signal, never shown: a recursive call was met before its result type is known.

    Branch tracing catches it and takes the type from the other side.
    """


class Outcome(enum.IntEnum):
    """How a lane ended.

    `LOST` is a bug in Lanewise: the lane came to a place where the program has no code. `NOT_RUN` is for examples that
    a cluster could not run: their workers failed each time.
    """

    DONE = 0
    STEPS_EXHAUSTED = 1
    STACK_OVERFLOW = 2
    ASSERTION_FAILED = 3
    TAPE_FULL = 4
    LOST = 5
    NOT_RUN = 6

    @property
    def phrase(self) -> str:
        """The outcome in words.

        >>> Outcome.STEPS_EXHAUSTED.phrase
        'steps exhausted'
        """
        return self.name.lower().replace("_", " ")


class LaneError(LanewiseError, RuntimeError):
    """Some lanes ended badly. `outcomes` says how each lane ended."""

    def __init__(self, message: str, outcomes: Any = None) -> None:
        super().__init__(message)
        self.outcomes = outcomes


class PlaceError(LanewiseError, RuntimeError):
    """A place of a run died, hangs or failed: `place` is its number, `kind` says in what way."""

    def __init__(self, message: str, place: int | None = None, kind: str | None = None) -> None:
        super().__init__(message)
        self.place, self.kind = place, kind
