"""A bar says how far a run is, seldom enough, wherever it is drawn, and never fails the run."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lanewise.watch.progress import Bar


class Clock:
    """Time as a test wants it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


class Broken(Terminal):
    def write(self, text: str) -> int:
        raise OSError("no such terminal")


def shown(file: io.StringIO) -> list[str]:
    """What stood on the terminal's line, one after the other."""
    return [part.replace("\x1b[K", "") for part in file.getvalue().split("\r")[1:]]


def test_a_terminal_shows_one_line_that_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    clock, file = Clock(), Terminal()
    with Bar(200, "chains", "draws", file=file, clock=clock) as bar:
        clock.now = 2.0
        bar.update(50, divergences=3, step_size=0.125)
    first, middle, last = shown(file)
    assert first.startswith("chains   0% |")
    assert "25%" in middle and "50/200 draws" in middle
    assert "[00:02<00:06, 25/s], divergences 3, step size 0.125" in middle
    assert last.endswith("\n") and "<" not in last


def test_at_most_ten_updates_a_second() -> None:
    clock, file = Clock(), Terminal()
    with Bar(10_000, file=file, clock=clock) as bar:
        for done in range(10_000):
            clock.now = done / 5000
            bar.update(done)
    assert 15 <= len(shown(file)) <= 22  # two seconds, the first and the last
    assert "9,999/10,000" in shown(file)[-1]


def test_a_log_gets_a_plain_line_now_and_then() -> None:
    clock, file = Clock(), io.StringIO()
    with Bar(100, "fit", "steps", file=file, clock=clock) as bar:
        for done in range(101):
            clock.now = done * 0.25
            bar.update(done)
    lines = file.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0] == "fit: 40 of 100 steps (40%) in 00:10, 4/s"
    assert lines[-1] == "fit: 100 of 100 steps (100%) in 00:25, 4/s"
    assert "\r" not in file.getvalue()


def test_without_a_total_it_counts() -> None:
    clock, file = Clock(), Terminal()
    with Bar(file=file, clock=clock) as bar:
        clock.now = 4.0
        bar.advance(1000)
        bar.advance(1000)
    assert "2,000 examples [00:04, 500/s]" in shown(file)[-1]


def test_a_run_that_raises_leaves_where_it_stopped() -> None:
    file = Terminal()
    with pytest.raises(ZeroDivisionError), Bar(10, file=file) as bar:
        bar.update(4)
        raise ZeroDivisionError
    assert "4/10" in shown(file)[-1] and "stopped" in shown(file)[-1]


def test_a_narrow_terminal_keeps_it_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    file = Terminal()
    with Bar(10, "a label of some length", file=file) as bar:
        bar.update(3, figure_of_many_words=1.5)
    assert all(len(line.rstrip("\n")) < 40 for line in shown(file))


def test_a_terminal_without_block_characters_gets_others() -> None:
    file = Terminal()
    file.encoding = "ascii"  # type: ignore[misc]
    with Bar(2, file=file) as bar:
        bar.update(1)
    assert "|####" in shown(file)[-1] and shown(file)[-1].isascii()


def closed() -> io.StringIO:
    file = Terminal()
    file.close()
    return file


@pytest.mark.parametrize(
    "file", [Broken(), closed(), SimpleNamespace()], ids=lambda file: type(file).__name__
)
def test_nothing_that_happens_to_the_terminal_raises(file: Any) -> None:
    with Bar(10, file=file) as bar:
        bar.update(5, odd=object(), none=None)
    bar.update(6)
    bar.close()


def test_no_stderr_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with Bar(10) as bar:
        bar.update(5)


def test_a_bar_inside_another_is_silent() -> None:
    outer, inner = Terminal(), Terminal()
    with Bar(2, file=outer) as whole:
        with Bar(10, file=inner) as part:
            part.update(10)
        whole.update(2)
    assert not inner.getvalue()
    assert "2/2" in shown(outer)[-1]
    with Bar(10, file=inner):
        pass
    assert inner.getvalue()


def test_a_bar_that_was_left_open_silences_no_other_for_long() -> None:
    clock, left, other = Clock(), Terminal(), Terminal()
    abandoned = Bar(2, file=left, clock=clock).open()
    clock.now = 61.0
    with Bar(10, file=other, clock=clock) as bar:
        bar.update(10)
    abandoned.close()
    assert "10/10" in shown(other)[-1]


def test_a_notebook_updates_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    class ZMQInteractiveShell:
        pass

    outputs: list[str] = []

    def keep(data: dict[str, str], raw: bool) -> None:
        assert raw
        outputs.append(data["text/plain"])

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Any:
        assert raw and display_id
        return SimpleNamespace(update=keep)

    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: ZMQInteractiveShell())
    )
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with Bar(4, "notebook") as bar:
        bar.update(4)
    assert "4/4" in outputs[-1] and "\r" not in outputs[-1]
