"""Errors that are not ours, raised while a program is traced: the user's file and line come first.

JAX says what is wrong with an operation, but not which of the user's lines asked for it: that is somewhere in the
traceback, among frames of JAX and of ours. The innermost frame that is neither, nor a library's, is the line to name.
"""

from __future__ import annotations

import dis
import os
import site
import sysconfig
import traceback
from types import FrameType

import jax

from lanewise import _jax
from lanewise.core.errors import LanewiseError, Location, RecordError, ResultUnknown

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(_OURS)) + os.sep
_LIBRARIES = tuple(
    {
        os.path.abspath(path) + os.sep
        for path in (
            *site.getsitepackages(),
            site.getusersitepackages(),
            *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
            # Where JAX is, libraries are, whatever put them there.
            os.path.dirname(os.path.dirname(jax.__file__)),
        )
    }
)
# A function of the user's with this many frames of its own calls itself.
_DEEP = 20
_RAISE = dis.opmap["RAISE_VARARGS"]


def name_the_line(error: Exception) -> None:
    """Put the place in the user's source in front of an error's message, once.

    What the user's own code raises is left as it is, and so are our errors, which name their place themselves: all but
    those of references, which are values of the user's code.
    """
    ours = isinstance(error, LanewiseError | ResultUnknown) and not isinstance(error, RecordError)
    if ours or hasattr(error, "lanewise_location"):
        return
    frames = list(traceback.walk_tb(error.__traceback__))
    users = [(frame, line) for frame, line in frames if _is_users(frame)]
    if not users:
        return
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    assert last is not None
    innermost = last.tb_frame
    raised = innermost.f_code.co_code[last.tb_lasti] == _RAISE
    if innermost.f_code.co_filename.startswith(_OURS) or (raised and _is_users(innermost)):
        return
    frame, line = users[-1]
    location = Location(frame.f_code.co_filename, line, _name([frame for frame, _ in users]))
    error.lanewise_location = location  # type: ignore[attr-defined]
    if error.args and isinstance(error.args[0], str) and str(error) == error.args[0]:
        codes = [frame.f_code for frame, _ in users]
        calls_itself = codes.count(users[-1][0].f_code) > _DEEP
        error.args = (f"{location}: {_said(error, calls_itself)}", *error.args[1:])
    else:
        error.add_note(f"Lanewise: at {location}")


def _said(error: Exception, calls_itself: bool) -> str:
    """What an error says; of an array that is traced JAX names its own class."""
    if isinstance(error, RecursionError) and calls_itself:
        return (
            f"{error.args[0]}. A plain function that calls itself never ends while it is traced if a value that is only"
            " known at run time decides when: make it a program of its own, with `@lanewise.program`"
        )
    if isinstance(error, AttributeError) and isinstance(error.obj, _jax.Tracer):
        aval = _jax.aval_of(error.obj)
        shape = ",".join(map(str, aval.shape))
        return f"an array {aval.dtype}[{shape}] has no attribute {error.name!r}"
    return error.args[0]


def _name(frames: list[FrameType]) -> str:
    """The function of the innermost frame; what a condition or an operand was wrapped in belongs to the one around."""
    codes = [frame.f_code for frame in reversed(frames)]
    wrapped = (c for c in codes if c.co_name != "<lambda>" or c.co_argcount)
    return next((c.co_name for c in wrapped if c.co_filename == codes[0].co_filename), "<lambda>")


def _is_users(frame: FrameType) -> bool:
    filename = frame.f_code.co_filename
    return not filename.startswith((_PACKAGE, *_LIBRARIES, "<frozen"))
