"""Compilation that takes long is shown, and says once where the time goes."""

from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import pytest

import lanewise as lw
from lanewise.core import compiling
from lanewise.watch.progress import Note


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # What an earlier test has left to be looked at is over.
    while compiling._looking:
        time.sleep(0.05)
    monkeypatch.setattr(compiling, "SLOW_SECONDS", 0.2)
    monkeypatch.setattr(compiling, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(compiling, "SECONDS_ELSEWHERE", 0.1)
    monkeypatch.setattr(compiling, "SECONDS_UNSHOWN", 0.05)
    yield
    while compiling._looking:
        time.sleep(0.05)


def inside(path: str) -> Callable[[Callable[[], bool]], None]:
    """A function in a file of this name that waits until something holds."""
    names: dict[str, Any] = {"time": time}
    text = """
def wait(until):
    end = time.perf_counter() + 60.0
    while not until():
        assert time.perf_counter() < end, "it never holds"
        time.sleep(0.01)
"""
    exec(compile(text, path, "exec"), names)
    return names["wait"]


def waits(seconds: float) -> Callable[[], bool]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() > end


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/lib/jax/_src/compiler.py", ["in XLA", "jax_compilation_cache_dir"]),
        ("/lib/lanewise/cpp/toolchain/host.py", ["in the C++ compiler", 'carrier="ticks"']),
        ("/lib/lanewise/tracing/staging.py", ["in tracing", "make its bound an argument"]),
    ],
)
def test_it_says_once_where_the_time_goes(
    path: str, says: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    name = f"slow by {path}"
    for _ in range(2):
        compiling.watch(name, "carrier native, schedule sweep: it pays")
        inside(path)(lambda: name in compiling._reported)
    (record,) = [r for r in caplog.records if name in r.getMessage()]
    assert record.name == "lanewise" and record.levelno == logging.WARNING
    for words in [*says, "carrier native, schedule sweep: it pays", "lanewise.inspect"]:
        assert words in record.getMessage()


def test_a_long_run_is_no_compilation(caplog: pytest.LogCaptureFixture) -> None:
    compiling.watch("long run")
    inside("/lib/lanewise/grow/growing.py")(waits(0.5))
    assert "long run" not in caplog.text and threading.get_ident() not in compiling._watched


def test_a_note_is_shown_while_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Seen:
        def __init__(self, name: str) -> None:
            shown.append(f"open {name}")

        def update(self) -> None: ...

        def close(self) -> None:
            shown.append("close")

    monkeypatch.setattr(compiling, "_new_note", [Seen])
    compiling.watch("quiet")
    inside("/lib/jax/_src/compiler.py")(waits(0.2))
    assert shown == []
    while compiling._looking:
        time.sleep(0.02)
    compiling.watch("shown", progress=True)
    inside("/lib/jax/_src/compiler.py")(lambda: bool(shown))
    compiling.begun()
    assert shown == ["open shown", "close"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_note_is_one_line_and_goes() -> None:
    out, now = Terminal(), [0.0]
    note = Note("f", file=out, clock=lambda: now[0])
    note.update()
    now[0] = 75.0
    note.update()
    note.close()
    assert "\rf: compiling, 00:00" in out.getvalue() and "\rf: compiling, 01:15" in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[K") and "\n" not in out.getvalue()
    log = io.StringIO()
    note = Note("f", file=log, clock=lambda: now[0])
    note.update()
    now[0] += 11.0
    note.update()
    note.close()
    assert log.getvalue() == "f: compiling, 00:11\n"


def test_a_program_says_what_was_chosen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiling, "SLOW_SECONDS", 0.0)

    @lw.program
    def settles_slowly(x):
        while jnp.sin(x) > 0.01:
            x = jnp.where(x > 1.0, jnp.cos(x * 0.51), x * 0.253)
        return x

    lw.vmap(settles_slowly, carrier="ticks", schedule="sweep")(jnp.ones(4))
    # Compiling takes longer than a look, whichever of its parts that finds.
    said = [r.getMessage() for r in caplog.records if "settles_slowly" in r.getMessage()]
    assert len(said) == 1 and ("carrier ticks" in said[0] or "tracing" in said[0])


def test_the_thread_that_looks_ends_before_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_ending", threading.Event())
    monkeypatch.setattr(compiling, "SECONDS_ELSEWHERE", 60.0)
    compiling.watch("unending")
    (thread,) = compiling._looking
    compiling._stop()
    assert not thread.is_alive()
    compiling._looking.clear()
    compiling._watched.clear()
