"""What ends a kernel before its lanes do; `test_interrupts.py` has the interrupts themselves."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise.machine.execute import expand
from lanewise.machine.kernel import device, host, waiting
from lanewise.machine.kernel.carry import kernel_for
from lanewise.options import Options
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
    emitted = kernel_for(staged.program, (True, True), Options(), expand).stopped_by_flag(10)
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
        self.ready = False

    def is_ready(self) -> bool:
        self.looks -= 1
        if self.looks == 0:
            raise KeyboardInterrupt
        return self.ready

    def block_until_ready(self) -> None:
        self.ready = True


def test_an_interrupt_sets_the_flags_of_kernels_if_no_other_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[int] = []
    monkeypatch.setattr(device, "set_flags", told.append)
    monkeypatch.setattr(waiting, "_in_flight", [])
    one = Answer(5)
    with pytest.raises(KeyboardInterrupt):
        waiting.stoppable(lambda: [one], lambda: True)()
    assert told == [1, 0] and one.ready
    # One that nobody waits for would end as well, and its answers be wrong.
    other, third = Answer(1000), Answer(5)
    assert waiting.stoppable(lambda: [other], lambda: False)() == [other]
    with pytest.raises(KeyboardInterrupt):
        waiting.stoppable(lambda: [third], lambda: True)()
    assert told == [1, 0] and not third.ready
    other.ready, third.ready = True, True
    last = Answer(5)
    with pytest.raises(KeyboardInterrupt):
        waiting.stoppable(lambda: [last], lambda: True)()
    assert told == [1, 0, 1, 0]
