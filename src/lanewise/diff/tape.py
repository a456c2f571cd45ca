"""Tapes of unknown length: stacks of records that the forward sweep pushes and the reverse sweep pops.

A tape has room for a number of records. A lane that needs more ends with `Outcome.TAPE_FULL`; outside `jit` the
gradient is then run again with twice the room, as stacks grow.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from lanewise.check import check
from lanewise.errors import Location
from lanewise.outcomes import Site

# To a program's code a full tape is a failed check; `vjp.py` tells it apart by this site.
FULL = Site("the tape of a gradient is full", Location("lanewise", 0))


def check_room(used: Any, records: int) -> None:
    """End the lane if a tape has no room for one more record."""
    check(jnp.less(used, records), FULL.message, FULL.location)
