"""Tapes of unknown length: stacks of records that the forward sweep pushes and the reverse sweep pops.

A tape has room for a number of records. A lane that needs more ends with `Outcome.TAPE_FULL` inside `jit`. Outside, a
machine by `ticks` lets it wait there, and it goes on when the host has given it a longer tape
(`machine/larger.py`); where lanes run by themselves, those that ended so run again (`machine/rerun.py`).
"""

from __future__ import annotations

from typing import Any

from lanewise.check import check
from lanewise.outcomes import FULL_TAPE


def check_room(fits: Any) -> None:
    """End the lane, or let it wait, unless one more record fits on a tape."""
    check(fits, FULL_TAPE.message, FULL_TAPE.location)
