"""Blocks as people read them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import lanewise as lw
from lanewise.blocks.text import _letters, print_program
from seeing import blocks_of, linked_of

INT = jnp.int32(3)


@lw.program
def fib(n):
    assert n < 40, "large"
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)


def test_names_go_on_after_z() -> None:
    assert [_letters(i) for i in (0, 25, 26, 51, 52, 701, 702)] == [
        "a",
        "z",
        "aa",
        "az",
        "ba",
        "zz",
        "aaa",
    ]


def test_calls_show_what_they_push_and_pop() -> None:
    linked = linked_of(fib, INT)
    text = print_program(linked.program, linked.storage)
    calls = [line for line in text.splitlines() if line.strip().startswith("call fib")]
    assert len(calls) == 2 and all(
        "push" in line and "pop" in line and "then" in line for line in calls
    )
    assert "fail 0" in text
    assert text.count(": stack") == 2
    assert "return" in text and text.startswith("inputs a:int32[]")


def test_tail_calls_and_branches() -> None:
    @lw.program
    def count(n, total):
        if n == 0:
            return total
        return count(n - 1, total + n)

    text = print_program(blocks_of(count, INT, INT))
    assert "become count" in text and "call count" not in text
    assert " | " in next(line for line in text.splitlines() if "branch" in line)


def test_blocks_show_cost_and_steps() -> None:
    def loop(n):
        return jax.lax.while_loop(lambda n: n > 0, lambda n: n - 1, n)

    text = print_program(blocks_of(loop, INT))
    assert "ops" in text and "bytes" in text and ", 1 step\n" in text


def test_uniform_storage_is_shown() -> None:
    def grow(x, w):
        return jax.lax.while_loop(lambda x: x < 10, lambda x: x + w, x)

    linked = linked_of(grow, INT, INT, varying=[True, False])
    storage = print_program(linked.program, linked.storage).split("storage\n")[1]
    assert "register, uniform" in storage


def test_printing_is_the_same_every_time() -> None:
    first, second = (linked_of(fib, INT) for _ in range(2))
    assert print_program(first.program, first.storage) == print_program(
        second.program, second.storage
    )
