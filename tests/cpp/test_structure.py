"""Loops and branches found again in graphs, and that what is written goes where the graph goes."""

from __future__ import annotations

import random

import pytest

from lanewise.cpp.emit.structure import (
    HALT,
    Code,
    Leave,
    Loop,
    Mark,
    Node,
    Run,
    Structure,
    structure,
)

STEPS = 60


def found(edges: dict[Node, list[Node]], weight: int, pausing: bool) -> Structure:
    return structure(edges, [0], dict.fromkeys(edges, weight), pausing=pausing)


def walk(what: Structure, start: Node, choose: random.Random) -> list[Node]:
    """The nodes that running the code visits, deciding branches by `choose`: an interpreter of the written form."""
    visited: list[Node] = []
    pause = random.Random(0)

    class Stop(Exception):
        pass

    def run(code: Code) -> tuple[str, Node] | None:
        """Run code; gives the jump that leaves it, if one does."""
        position = 0
        while position < len(code):
            part = code[position]
            position += 1
            left: tuple[str, Node] | None = None
            if isinstance(part, Leave):
                left = (part.how, part.node)
            elif isinstance(part, Run):
                visited.append(what.origin[part.node])
                if len(visited) > STEPS:
                    raise Stop
                left = run(part.ways[choose.randrange(len(part.ways))]) if part.ways else None
            elif isinstance(part, Loop):
                while True:
                    if part.pauses and pause.random() < 0.3:
                        left = ("dispatch", part.node)
                        break
                    left = run(part.body)
                    if left is None or left in (("continue", part.node), ("again", part.node)):
                        continue
                    break
                if left[0] == "break":
                    left = None
            if left is not None:
                marks = [i for i, p in enumerate(code) if p == Mark(left[1])]
                if left[0] == "goto" and marks and marks[0] >= position:
                    position = marks[0]
                    continue
                return left
        return None

    head = start
    try:
        while True:
            left = run(what.code[head])
            if left is None or left == ("goto", HALT):
                break
            assert left[0] == "dispatch", left
            head = left[1]
    except Stop:
        pass
    return visited


def walk_graph(edges: dict[Node, list[Node]], start: Node, choose: random.Random) -> list[Node]:
    visited: list[Node] = []
    node = start
    while node != HALT and len(visited) <= STEPS:
        visited.append(node)
        node = edges[node][choose.randrange(len(edges[node]))]
    return visited


def check(edges: dict[Node, list[Node]], weight: int = 1) -> Structure:
    for pausing in (True, False):
        what = found(edges, weight, pausing)
        for seed in range(20):
            walked = walk(what, 0, random.Random(seed))
            assert walked == walk_graph(edges, 0, random.Random(seed))
    return what


def test_a_while_loop() -> None:
    what = check({0: [1], 1: [3, 2], 2: [1], 3: [HALT]})
    assert what.heads == (0,) and not what.labels


def test_nested_loops_with_an_exit_out_of_both() -> None:
    what = check({0: [1], 1: [2, 5], 2: [3, 4], 3: [2, 6], 4: [1], 5: [6], 6: [HALT]})
    assert what.heads == (0,)


def test_a_loop_with_two_entries_has_one_copied() -> None:
    what = check({0: [1, 2], 1: [2, 3], 2: [1, 3], 3: [HALT]})
    assert what.heads == (0,) and len(what.origin) == 5


def test_a_loop_with_two_entries_too_long_to_copy_is_dispatched() -> None:
    what = check({0: [1, 2], 1: [2, 3], 2: [1, 3], 3: [HALT]}, weight=10_000)
    assert len(what.heads) > 1


def test_an_outer_loop_entered_inside_its_inner_loop() -> None:
    what = check({0: [4, 3], 1: [2], 2: [4, 3], 3: [4, 2], 4: [5, 1], 5: [HALT]})
    assert what.heads == (0,)


@pytest.mark.parametrize("seed", range(60))
def test_any_graph(seed: int) -> None:
    choose = random.Random(seed)
    size = choose.randrange(2, 9)
    nodes = [*range(size), HALT]
    edges = {
        node: choose.sample(nodes, choose.choice((1, 2, 2, 3)) if len(nodes) > 2 else 1)
        for node in range(size)
    }
    check(edges, weight=choose.choice((1, 1, 60)))
