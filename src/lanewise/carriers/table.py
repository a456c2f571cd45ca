"""All carriers. Each is imported when a job is first offered to it: together they are a third of Lanewise.

`plain`, `local`, `levels` and `fork` are not carriers by name: a user asks for them as schedules of `ticks`. Other code
runs them.
"""

from __future__ import annotations

from lanewise.job.plan import Carrier, Plan

# The carriers that run each lane on its own, and where.
ALONE = {"native": "cpu", "kernel": "gpu"}


def carrier_of(name: str, schedule: str) -> Carrier:
    """What carries a job by this carrier and schedule."""
    if name == "native":
        from lanewise.carriers import native as found
    elif name == "kernel":
        from lanewise.carriers import kernel as found
    elif schedule == "plain":
        from lanewise.carriers import plainly as found
    elif schedule == "local":
        from lanewise.carriers import locally as found
    elif schedule == "levels":
        from lanewise.carriers import levels as found
    elif schedule == "fork":
        from lanewise.carriers import forking as found
    else:
        from lanewise.carriers import ticks as found
    return found


def carrier_for(plan: Plan) -> Carrier:
    """What runs a plan."""
    return carrier_of(plan.carrier, plan.schedule)
