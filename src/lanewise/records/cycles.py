"""Whether records are part of themselves.

Only where a record is referred to twice can there be a cycle. Records that nothing refers to are removed, then those
that only these referred to, and so on; if any are left, they have a cycle.
"""

from __future__ import annotations

import numpy as np

from lanewise.records.walk import Walk


def has_cycle(walked: Walk) -> bool:
    parents, children = _references(walked)
    size = sum(map(len, walked.records))
    order = np.argsort(parents, kind="stable")
    children = children[order]
    ends = np.cumsum(np.bincount(parents, minlength=size))
    starts = np.concatenate([[0], ends[:-1]])
    waiting = np.bincount(children, minlength=size)
    free = np.flatnonzero(waiting == 0)
    gone = 0
    while len(free):
        gone += len(free)
        sizes = ends[free] - starts[free]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        reached, times = np.unique(
            children[np.repeat(starts[free], sizes) + within], return_counts=True
        )
        waiting[reached] -= times
        free = reached[waiting[reached] == 0]
    return gone < size


def _references(walked: Walk) -> tuple[np.ndarray, np.ndarray]:
    """Which records refer to which, by one numbering of all kinds."""
    schema = walked.schema
    offsets = np.cumsum([0, *map(len, walked.records)]) - 1
    parents, children = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for cls, columns in walked.columns.items():
        rows = walked.rows_of(cls) + offsets[schema.kind_of[cls]]
        for column in columns:
            if not column.rows:
                continue
            found = np.concatenate(column.rows)
            owners = np.repeat(rows, np.concatenate(column.sizes)) if column.sizes else rows
            parents.append(owners[found >= 0])
            target = schema.target(column.field.item or column.field)
            children.append(found[found >= 0] + offsets[target])
    return np.concatenate(parents), np.concatenate(children)
