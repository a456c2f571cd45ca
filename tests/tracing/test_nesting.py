"""Code that is nested deeply: a long `elif`, many early returns."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import lanewise as lw
from lanewise._jax import FRAMES, ROOM

CASES = 60


@pytest.fixture(autouse=True)
def _pythons_own_limit() -> Iterator[None]:
    """Libraries set another."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


def interpreter(path: Path) -> Any:
    """A program with more cases than Python's own limit has frames for, in a file: a program has source."""
    cases = "".join(
        f"        {'elif' if i else 'if'} code == {i}: x = x * 2 + {i}\n" for i in range(CASES)
    )
    text = f"def interpreter(code, x):\n    while code < {CASES}:\n{cases}        code += 7\n    return x\n"
    path.write_text(text)
    found: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), found)
    return found["interpreter"]


def test_an_interpreter_with_many_cases(tmp_path: Path) -> None:
    plain = interpreter(tmp_path / "interpreter.py")
    codes = [0, 3, CASES - 1, CASES]
    found = lw.vmap(lw.program(plain), in_axes=(0, None))(jnp.array(codes), 1)
    assert found.tolist() == [plain(code, 1) for code in codes]
    assert sys.getrecursionlimit() < FRAMES


def test_the_last_to_leave_sets_the_limit_back() -> None:
    before = sys.getrecursionlimit()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with ROOM:
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with ROOM, ROOM:
        thread.start()
        assert inside.wait(60)
    assert sys.getrecursionlimit() == FRAMES
    leave.set()
    thread.join()
    assert sys.getrecursionlimit() == before


def test_a_recursion_without_an_end_still_ends() -> None:
    def falls(x: Any) -> Any:
        return max([x], key=lambda x: falls(x))

    with pytest.raises(RecursionError, match=r"calls itself never ends"):
        lw.program(falls)(1.0)
