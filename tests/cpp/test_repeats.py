"""Runs that repeat are all found, with all their places."""

from __future__ import annotations

import random

from lanewise.cpp.emit.repeats import repeats


def all_runs(sequences: list[list[int]]) -> dict[tuple[int, ...], set[tuple[int, int]]]:
    """Every run that stands at two places, unless a longer one begins at the same places."""
    places: dict[tuple[int, ...], set[tuple[int, int]]] = {}
    for number, sequence in enumerate(sequences):
        for start in range(len(sequence)):
            for end in range(start + 1, len(sequence) + 1):
                places.setdefault(tuple(sequence[start:end]), set()).add((number, start))
    longer = {(run[:-1], frozenset(where)) for run, where in places.items()}
    return {
        run: where
        for run, where in places.items()
        if len(where) > 1 and (run, frozenset(where)) not in longer
    }


def test_the_runs_are_those_that_trying_all_finds() -> None:
    rng = random.Random(0)
    for _ in range(200):
        sequences = [
            [rng.randrange(3) for _ in range(rng.randrange(12))] for _ in range(rng.randrange(4))
        ]
        found = {}
        for length, places in repeats(sequences):
            number, start = places[0]
            numbers = tuple(sequences[number][start : start + length])
            assert len(numbers) == length and numbers not in found
            found[numbers] = set(places)
        assert found == all_runs(sequences)
