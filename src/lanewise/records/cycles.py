"""Whether records are part of themselves.

Only where a record is referred to twice can there be a cycle. Records that nothing refers to are taken away, then
those that only these referred to, and so on; what is left, if anything, has a cycle.
"""

from __future__ import annotations

import numpy as np

from lanewise.records.walk import Walk, rows_in_order


def has_cycle(walked: Walk) -> bool:
    parents, children = _references(walked)
    size = sum(walked.counts)
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
    """Who refers to whom, all kinds numbered through."""
    schema = walked.schema
    offsets = np.cumsum([0, *walked.counts]) - 1
    parents, children = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for cls, columns in walked.columns.items():
        rows = rows_in_order(walked.blocks[cls]) + offsets[schema.kind_of[cls]]
        for column in columns:
            kept = column.field.item or column.field
            if kept.what != "one" or not column.ids:
                continue
            target = schema.target(kept)
            found = walked.rows_of(column, target)
            owners = np.repeat(rows, np.concatenate(column.sizes)) if column.sizes else rows
            parents.append(owners[found >= 0])
            children.append(found[found >= 0] + offsets[target])
    return np.concatenate(parents), np.concatenate(children)
