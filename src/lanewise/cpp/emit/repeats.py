"""Runs of numbers that stand at several places, found by sorting.

Sequences are put in one row, each with an end of its own, and all suffixes of the row are sorted: those that begin
alike are then adjacent. Where neighbours of the sorted order have a prefix in common, that prefix is a run that
repeats; the stretch of neighbours that share it are its places. There are at most as many such stretches as numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def repeats(
    sequences: Sequence[Sequence[int]],
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """All runs that stand at two places or more and are longer than others at the same places.

    A run is its length and where it begins: pairs of a sequence's number and a position in it.

    >>> list(repeats([[5, 6, 7], [6, 7], [7]]))
    [(2, [(0, 1), (1, 0)]), (1, [(0, 2), (1, 1), (2, 0)])]
    """
    starts = np.cumsum([0, *(len(sequence) + 1 for sequence in sequences)])
    row = np.empty(starts[-1], np.int64)
    for number, sequence in enumerate(sequences):
        row[starts[number] : starts[number + 1] - 1] = sequence
        # No end is like another, or like a number.
        row[starts[number + 1] - 1] = -1 - number
    if len(row) < 2:
        return
    order = _sorted_suffixes(row)
    common = _common(row, order)
    for length, first, last in _stretches(common):
        found = np.sort(order[first : last + 1])
        which = np.searchsorted(starts, found, "right") - 1
        yield length, list(zip(which.tolist(), (found - starts[which]).tolist(), strict=True))


def _sorted_suffixes(row: np.ndarray) -> np.ndarray:
    """Where the suffixes of a row begin, in their order: by the first number, the first two, four, eight, ..."""
    _, rank = np.unique(row, return_inverse=True)
    reach = 1
    while True:
        after = np.full(len(row), -1, np.int64)
        after[:-reach] = rank[reach:]
        order = np.lexsort((after, rank))
        changes = (np.diff(rank[order]) != 0) | (np.diff(after[order]) != 0)
        rank = np.empty(len(row), np.int64)
        rank[order] = np.concatenate([[0], np.cumsum(changes)])
        reach *= 2
        if rank[order[-1]] == len(row) - 1 or reach >= len(row):
            return order


def _common(row: np.ndarray, order: np.ndarray) -> list[int]:
    """How many numbers each suffix has in common with the one before it in the order (Kasai et al. 2001)."""
    numbers, before = row.tolist(), [-1] * len(row)
    place = [0] * len(row)
    last = -1
    for i, start in enumerate(order.tolist()):
        place[start], before[start], last = i, last, start
    common = [0] * len(row)
    length = 0
    for start, other in enumerate(before):
        if other < 0:
            length = 0
            continue
        limit = len(row) - max(start, other)
        while length < limit and numbers[start + length] == numbers[other + length]:
            length += 1
        common[place[start]] = length
        length = max(length - 1, 0)
    return common


def _stretches(common: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Each length with the stretches of the order, first and last, whose suffixes have that much in common."""
    open_: list[tuple[int, int]] = []
    for i, length in enumerate([*common[1:], 0], start=1):
        first = i - 1
        while open_ and open_[-1][0] > length:
            longer, first = open_.pop()
            yield longer, first, i - 1
        if length and (not open_ or open_[-1][0] < length):
            open_.append((length, first))
