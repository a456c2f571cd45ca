"""What ends a kernel before its lanes do; `test_interrupts.py` has the interrupts themselves."""

from __future__ import annotations

import ctypes
import threading
from contextlib import nullcontext

import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise.core.options import Options
from lanewise.cpp.kernels import kernel_for
from lanewise.cpp.toolchain import device, host, waiting
from programs.recursion import fibonacci


@lw.program
def counts(n, step):
    total = n
    while n > 0:
        total = total * 3 + 1
        n -= step
    return total


@lw.program
def calls(n, step):
    total = n
    while n > 0:
        total += fibonacci(3)
        n -= step
    return total


@needs.compiler
@pytest.mark.parametrize("program", [counts, calls], ids=["loop", "recursion"])
def test_a_kernel_that_looks_at_a_flag_ends_when_it_is_set(program: lw.ProgramFunction) -> None:
    """The text that a GPU gets outside `jit`, with its pauses, on the host's threads."""
    staged, _ = program.stage(np.int32(3), np.int32(1))
    emitted = kernel_for(staged.program, (True, True), Options()).stopped_by_flag(10)
    flags = (*host.FLAGS, "-DLW_TURNS=16")
    steps = np.array([1, 0], np.int32)

    def run(steps: np.ndarray) -> host.Ran:
        return host.run(emitted, [np.full(2, 3, np.int32), steps], 2, capacity=8, flags=flags)

    right = run(np.ones(2, np.int32)).answers[0]
    flag = ctypes.c_int.in_dll(host.load(emitted.text, flags), "lw_stop")
    # The second lane never ends.
    thread = threading.Thread(target=run, args=(steps,))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    flag.value = 1
    thread.join(60.0)
    assert not thread.is_alive()
    flag.value = 0
    np.testing.assert_array_equal(run(np.ones(2, np.int32)).answers[0], right)


class Answer:
    """What stands for an answer that a GPU has not computed yet, while an interrupt comes."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.ready = self.deleted = False

    def is_deleted(self) -> bool:
        return self.deleted

    def is_ready(self) -> bool:
        assert not self.deleted
        self.looks -= 1
        if self.looks == 0:
            raise KeyboardInterrupt
        return self.ready

    def block_until_ready(self) -> None:
        self.ready = True


class Impatient(Answer):
    """The same, with another interrupt while Python waits for the kernel to end."""

    def block_until_ready(self) -> None:
        raise KeyboardInterrupt


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What flags were set to."""
    found: list[int] = []
    monkeypatch.setattr(device, "set_flags", found.append)
    monkeypatch.setattr(waiting, "_in_flight", [])
    return found


def run(answer: Answer, waits: bool = True) -> list[Answer]:
    with nullcontext() if waits else waiting.not_waiting():
        return waiting.stoppable(lambda: [answer])()


def test_an_interrupt_sets_the_flags_of_kernels_if_no_other_runs(flags: list[int]) -> None:
    one = Answer(5)
    with pytest.raises(KeyboardInterrupt):
        run(one)
    assert flags == [1, 0] and one.ready
    # One that is not waited for would end too, and its answers be wrong.
    other, third = Answer(1000), Answer(5)
    assert run(other, waits=False) == [other]
    with pytest.raises(KeyboardInterrupt):
        run(third)
    assert flags == [1, 0] and not third.ready
    other.ready, third.ready = True, True
    with pytest.raises(KeyboardInterrupt):
        run(Answer(5))
    assert flags == [1, 0, 1, 0]
    # Flags that stayed set would end every later kernel.
    with pytest.raises(KeyboardInterrupt):
        run(Impatient(5))
    assert flags == [1, 0, 1, 0, 1, 0]


def test_a_kernel_that_was_started_while_flags_were_set_starts_again(flags: list[int]) -> None:
    found: list[Answer] = []

    def started() -> list[Answer]:
        found.append(Answer(1000))
        found[-1].ready = True
        if len(found) == 1:  # on another thread, an interrupt meanwhile
            with pytest.raises(KeyboardInterrupt):
                run(Answer(5))
        return [found[-1]]

    assert waiting.stoppable(started)() == [found[1]] and len(found) == 2


def test_answers_are_their_owners(flags: list[int]) -> None:
    answer = Answer(1000)
    answer.ready = True
    run(answer)
    assert waiting._in_flight == []
    run(answer, waits=False)
    answer.deleted = True  # as an array that was donated is
    run(Answer(1000), waits=False)
