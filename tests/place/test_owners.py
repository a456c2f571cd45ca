"""Where operations that no part names run, by the messages that a program then needs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from lanewise.place.placement import placement_from
from lanewise.place.prepared import ask
from lanewise.place.project import dry_run
from lanewise.place.text import Edge, traffic


def edges(fun: Any, placement: dict[str, int], *args: Any) -> dict[str, Edge]:
    """What goes from which place to which; the results are those of the function."""
    leaves, tree = jax.tree.flatten((args, {}))
    prepared = ask(fun, fun.__name__, placement_from(placement), leaves, tree).divided(False)
    places = prepared.placement.everywhere
    counts, outs = dry_run(prepared.actions, places, [*prepared.captured, *leaves])
    np.testing.assert_allclose(outs[0], fun(*args), rtol=1e-6)
    found = traffic(prepared.actions, prepared.placement, counts)
    short = {prepared.placement.called(place): str(place) for place in places}
    return {f"{short[e.source]} -> {short[e.target]}": e for e in found.edges}


def test_a_part_that_is_not_taken_gets_nothing_and_sends_nothing() -> None:
    """The other side's value stays where it is, and is sent only where the part needs it."""

    @lw.program
    def solve(x, n):
        for i in range(n):
            x = lw.placed(lambda x: 0.5 * x, "solver")(x)
            if i % 4 == 0:
                x = lw.placed(lambda x: x + 1.0, "corrector")(x)
            x = lw.placed(jnp.tanh, "solver")(x)
        return x

    found = edges(solve, {"solver": 0, "corrector": 1}, jnp.ones(8), jnp.int32(12))
    assert {way: edge.messages for way, edge in found.items()} == {"0 -> 1": 3, "1 -> 0": 3}


def test_what_a_branch_changes_stays_where_it_is_used() -> None:
    @lw.program
    def play(p, x, n):
        for i in range(n):
            x = lw.placed(lambda x: jnp.cos(x), "world")(x)
            if i % 2 == 0:
                p = lw.placed(lambda p, x: p - 0.1 * x, "network")(p, x)
            x = lw.placed(lambda p, x: p * x, "network")(p, x)
        return x

    found = edges(play, {"world": 0, "network": 1}, jnp.ones(8), jnp.ones(8), jnp.int32(6))
    assert {way: edge.messages for way, edge in found.items()} == {"0 -> 1": 6, "1 -> 0": 6}


def test_what_no_part_names_runs_where_most_bytes_are() -> None:
    def both(x, y):
        small = lw.placed(jnp.sin, "first")(x)
        return lw.placed(jnp.cos, "second")(y) @ small

    for placement, way in (
        ({"first": 0, "second": 1}, "0 -> 1"),
        ({"first": 1, "second": 0}, "1 -> 0"),
    ):
        found = edges(both, placement, jnp.ones(8), jnp.ones((4, 8)))
        assert [(each, edge.bytes) for each, edge in found.items()] == [(way, 32)]
