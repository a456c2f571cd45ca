"""What functions of a recursion close over: its adjoint is one sum, handed from call to call and added to in place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.blocks.equations import update_chain
from lanewise.blocks.form import Block, Call, TailCall
from lanewise.blocks.link import Linked, link
from lanewise.core.options import Options
from lanewise.diff.checkpoint import Checkpoints
from lanewise.diff.vjp import vjp_program
from lanewise.job.job import blocks_of

SIZE, RECORDS = 1009, 1021
TABLE = jnp.sin(jnp.arange(SIZE, dtype=jnp.float32))
XS, LENGTHS = jnp.array([0.7, 0.4, 1.1]), (4, 0, 2)


def walked(table: Any, x: Any, n: Any, **options: Any) -> Any:
    """Reads before, between and after calls, and where there are none."""

    @lw.program
    def walk(i, depth):
        if depth <= 0:
            return table[i % SIZE] * x
        left = walk(i * 2 + 1, depth - 1)
        here = jnp.sin(left) * table[(i * 7) % SIZE]
        return here + walk(i * 2 + 2, depth - 1) * table[i % SIZE]

    return walk.with_options(**options)(3, n)


def plain_walk(table: Any, x: Any, n: int, i: int = 3) -> Any:
    if n <= 0:
        return table[i % SIZE] * x
    here = jnp.sin(plain_walk(table, x, n - 1, 2 * i + 1)) * table[(i * 7) % SIZE]
    return here + plain_walk(table, x, n - 1, 2 * i + 2) * table[i % SIZE]


def looped(table: Any, x: Any, n: Any, **options: Any) -> Any:
    """Two functions, one of which reads nothing itself; calls in a loop, whose test calls, too."""

    @lw.program
    def small(k):
        if k <= 0:
            return table[0] > -9.0
        return small(k - 1)

    @lw.program
    def outer(i, depth):
        total = x * 0.5
        k = 0
        while small(1) & (k < 2):
            total = total + inner(i + k, depth - 1) * total
            k += 1
        return total

    @lw.program
    def inner(i, depth):
        if depth <= 0:
            return table[i % SIZE]
        return outer(i * 3, depth) * 0.5

    return outer.with_options(**options)(2, n)


def plain_loop(table: Any, x: Any, n: int, i: int = 2) -> Any:
    total = x * 0.5
    for k in range(2):
        below = table[(i + k) % SIZE] if n <= 1 else plain_loop(table, x, n - 1, (i + k) * 3) * 0.5
        total = total + below * total
    return total


@pytest.mark.parametrize(
    ("ours", "plain", "carrier"),
    [(walked, plain_walk, "ticks"), (walked, plain_walk, "native"), (looped, plain_loop, "native")],
)
def test_sums_are_those_of_all_calls(ours: Any, plain: Any, carrier: str) -> None:
    def total(table: Any, xs: Any) -> Any:
        run = jax.vmap(lambda x, n: ours(table, x, n, carrier=carrier))
        return jnp.sum(run(xs, jnp.array(LENGTHS)) * jnp.array([1.0, 2.0, 3.0]))

    def plainly(table: Any, xs: Any) -> Any:
        return sum(
            w * plain(table, x, n) for w, x, n in zip((1.0, 2.0, 3.0), xs, LENGTHS, strict=True)
        )

    found = jax.jit(jax.grad(total, (0, 1)))(TABLE, XS)
    for a, b in zip(found, jax.jit(jax.grad(plainly, (0, 1)))(TABLE, XS), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def linked_sweeps(fun: Any) -> tuple[Linked, Linked]:
    """The forward and the reverse program of a function of a table, a number and a length."""
    (eqn,) = (
        eqn
        for eqn in jax.make_jaxpr(fun)(TABLE, 0.5, 3).jaxpr.eqns
        if eqn.primitive.name == "program"
    )
    program = eqn.params["program"]
    active = tuple(jnp.issubdtype(a.dtype, jnp.inexact) for a in program.operand_avals)
    found = vjp_program(program, active, Checkpoints(records=RECORDS))

    def linked(program: Any) -> Linked:
        varying = tuple(i >= program.num_captures for i in range(program.num_operands))
        return link(blocks_of(program, varying, Options()), varying)

    return linked(found.forward.program), linked(found.reverse.program)


def writes_in_place(linked: Linked, first_axis: int) -> int:
    """How often an array of this length is written by index; beside the entry no block makes, adds or copies one."""
    assert linked.entered_once is not None
    written = 0
    for pc, block in enumerate(linked.order):
        if not isinstance(block, Block) or pc == linked.entered_once:
            continue
        assert linked.costs[pc].operations < first_axis
        end = block.terminator
        given = end.arguments if isinstance(end, Call | TailCall) else ()
        for var, atom in (*block.assigns, *given):
            if var.aval.shape[:1] == (first_axis,) and var is not atom:
                assert update_chain(block.eqns, var, atom), (
                    f"{var} is copied in block {block.label}"
                )
                written += 1
    assert not any(var.aval.shape[:1] == (first_axis,) for var in linked.storage.stacks)
    return written


def test_a_call_touches_one_element_of_the_sum_and_one_record() -> None:
    forward, reverse = linked_sweeps(walked)
    assert writes_in_place(reverse, SIZE) >= 3  # once for each place that reads
    assert writes_in_place(forward, RECORDS) >= 1
    assert writes_in_place(reverse, RECORDS) == 0
