"""A mistake of ours says so, and brings what a report of it needs."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import lanewise as lw
from lanewise.blocks import simplify
from lanewise.blocks.form import BlockProgram


def without_its_last_block(program: BlockProgram) -> BlockProgram:
    entry = program.functions[program.entry]
    shorter = replace(entry, blocks=entry.blocks[:-1])
    return replace(program, functions={**program.functions, program.entry: shorter})


@pytest.fixture
def broken_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplify, "THREADING", (without_its_last_block,))


@pytest.mark.usefixtures("broken_pass")
@pytest.mark.parametrize("inside_jit", [False, True])
def test_the_verifier_can_be_switched_on_and_its_errors_show_the_program(
    inside_jit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANEWISE_VERIFY", "1")

    @lw.program
    def unverified(x):
        n = 0
        while x > 1:
            x, n = x / 2, n + 1
        return n

    run = lw.vmap(unverified, carrier="ticks", schedule="lowest")
    with pytest.raises(lw.errors.InternalError) as raised:
        (jax.jit(run) if inside_jit else run)(jnp.arange(4.0))
    first, *rest = str(raised.value).splitlines()
    # A name that an earlier program has gets a number.
    assert re.fullmatch(
        r"This is a bug in Lanewise: unverified[.\d]*, block \d+ goes to .* not there", first
    )
    assert "lanewise doctor" in rest[0]
    assert sum(line.startswith("unverified") for line in rest) == 1, "the program's text, once"
