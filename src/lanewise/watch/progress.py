"""A progress bar for a long run: one line that is written over, no more often than the eye can follow.

`Bar` draws where it is: over and over on one line of a terminal, in one output of a notebook's cell, and elsewhere (a
log file, a pipe) as a plain line now and then. Whatever becomes of the place it draws on (closed, broken, unable to
print a character), a run goes on: drawing never raises.

A bar that is opened while another is open stays silent: one line cannot show two, and the outer one says how far the
whole is. If the outer one has had no update for a minute, its run may have died and left it open: then the new bar
draws.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from lanewise.core import compiling, events

# At most ten updates a second where the line is written over, one in ten seconds where every line stays.
SECONDS_BETWEEN_UPDATES = 0.1
SECONDS_BETWEEN_LINES = 10.0
SECONDS_UNHEARD = 60.0
BAR_WIDTH = 24
FALLBACK_COLUMNS = 100
_EIGHTHS = " ▏▎▍▌▋▊▉█"

_lock = threading.Lock()
_open: list[Bar] = []


class Bar:
    """How far a run is: `with Bar(total=100, label="draws") as bar: bar.update(50, divergences=0)`.

    `total` may be None where it is unknown. `update` takes how much is done in all, and any figures to show beside it;
    it is cheap to call often, from any thread. `clock` is there for tests.

    >>> import io
    >>> out = io.StringIO()
    >>> with Bar(total=4, label="squares", unit="numbers", file=out) as bar:
    ...     for done in range(4):
    ...         bar.update(done + 1, largest=done**2)
    >>> print(out.getvalue().splitlines()[-1].split(" in ")[0])
    squares: 4 of 4 numbers (100%)
    """

    def __init__(
        self,
        total: int | None = None,
        label: str = "",
        unit: str = "examples",
        *,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.total = total
        self.label = label
        self.unit = unit
        self.done = 0
        self.figures: dict[str, Any] = {}
        self._clock = clock
        self._began = self._heard = clock()
        self._file = sys.stderr if file is None else file
        self._place: _Place | None = None
        self._next = self._began
        self._closed = False
        self._since = (self._began, 0)
        self._restarted = False

    def __enter__(self) -> Bar:
        return self.open()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close(finished=kind is None)

    def open(self) -> Bar:
        """Begin; the same as `with`."""
        self._began = self._next = self._heard = self._clock()
        self._since = (self._began, 0)
        with _lock:
            first = all(self._began - bar._heard > SECONDS_UNHEARD for bar in _open)
            _open.append(self)
        if first:
            self._place = _never_raising(lambda: _place_for(self._file))
            if self._place is not None:
                # A terminal shows at once that something has begun; a log waits for something to report.
                self._next += self._place.wait_first
                self._draw_if_due()
        return self

    def update(self, done: int | None = None, *, total: int | None = None, **figures: Any) -> None:
        """Say how much is done, in all; figures stay until they are given again."""
        self._heard = self._clock()
        if done is not None:
            self.done = done
        if total is not None:
            self.total = total
        if figures:
            self.figures = self.figures | figures
        self._draw_if_due()

    def advance(self, more: int = 1, **figures: Any) -> None:
        """Say how much has been done since the last time."""
        self.update(self.done + more, **figures)

    def restart(self, label: str, done: int) -> None:
        """A phase with another label begins after this much: the rate and the time left are of this phase."""
        self.label, self.done, self._restarted = label, done, True
        self._since = (self._clock(), done)
        self._draw_if_due()

    def close(self, finished: bool = True) -> None:
        """End, and leave the last state standing; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        with _lock:
            if self in _open:
                _open.remove(self)
        place = self._place
        if place is not None:
            _never_raising(lambda: place.last(self._text(place, ended=True, finished=finished)))

    def _draw_if_due(self) -> None:
        place, now = self._place, self._clock()
        if place is None or now < self._next or self._closed:
            return
        with _lock:
            if now < self._next:
                return
            self._next = now + place.pause
        _never_raising(lambda: place.draw(self._text(place)))

    def _text(self, place: _Place, *, ended: bool = False, finished: bool = True) -> str:
        elapsed = max(self._clock() - self._began, 1e-9)
        since, before = self._since
        rate = (self.done - before) / max(self._clock() - since, 1e-9)
        figures = [f"{name.replace('_', ' ')} {_figure(x)}" for name, x in self.figures.items()]
        how_ended = [] if finished else ["stopped"]
        if not place.rewrites:
            if self._restarted and self.total and rate and not ended:
                figures.append(f"about {_time((self.total - self.done) / rate)} left")
            return self._sentence(elapsed, rate, [*how_ended, *figures])
        head = f"{self.label} " if self.label else ""
        if self.total:
            share = min(self.done / self.total, 1.0)
            bar = _drawn_bar(share, min(BAR_WIDTH, place.columns // 5), place.blocks)
            head += f"{share:4.0%} {bar} {self.done:,}/{self.total:,} {self.unit}"
            left = "" if ended or not rate else f"<{_time((self.total - self.done) / rate)}"
        else:
            head += f"{self.done:,} {self.unit}"
            left = ""
        tail = [f"[{_time(elapsed)}{left}, {_figure(rate)}/s]", *how_ended, *figures]
        return _cut(" ".join([head, tail[0]]) + "".join(f", {x}" for x in tail[1:]), place.columns)

    def _sentence(self, elapsed: float, rate: float, more: list[str]) -> str:
        label = f"{self.label}: " if self.label else ""
        of = "" if self.total is None else f" of {self.total:,}"
        share = f" ({min(self.done / self.total, 1.0):.0%})" if self.total else ""
        parts = [f"{self.done:,}{of} {self.unit}{share} in {_time(elapsed)}", f"{_figure(rate)}/s"]
        return label + ", ".join([*parts, *more])


class Note:
    """One line that says that a program is being compiled, gone when it is; a log has it every ten seconds."""

    def __init__(
        self,
        name: str,
        *,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._name = name
        self._clock = clock
        self._began = self._next = clock()
        self._drawn = False
        with _lock:
            silent = bool(_open)  # one line cannot show two
        where = sys.stderr if file is None else file
        self._place = None if silent else _never_raising(lambda: _place_for(where))
        if self._place is not None:
            self._next += self._place.wait_first

    def update(self) -> None:
        place, now = self._place, self._clock()
        if place is None or now < self._next:
            return
        self._next, self._drawn = now + place.pause, True
        text = f"{self._name}: compiling, {_time(now - self._began)}"
        _never_raising(lambda: place.draw(_cut(text, place.columns)))

    def close(self) -> None:
        place = self._place
        if place is not None and place.rewrites and self._drawn:
            _never_raising(lambda: place.draw(""))
        self._place = None


class _Place:
    """Where a bar draws. `rewrites`: one line is written over; otherwise every line stays."""

    rewrites = True
    blocks = True
    pause = SECONDS_BETWEEN_UPDATES
    wait_first = 0.0

    @property
    def columns(self) -> int:
        return FALLBACK_COLUMNS

    def draw(self, text: str) -> None:
        raise NotImplementedError

    def last(self, text: str) -> None:
        self.draw(text)


class _Terminal(_Place):
    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.blocks = _can_print(file, _EIGHTHS)

    @property
    def columns(self) -> int:
        return max(shutil.get_terminal_size((FALLBACK_COLUMNS, 24)).columns - 1, 20)

    def draw(self, text: str) -> None:
        # To the line's start, the text, and away with what is left of a longer one.
        self.file.write(f"\r{text}\x1b[K")
        self.file.flush()

    def last(self, text: str) -> None:
        self.draw(text)
        self.file.write("\n")
        self.file.flush()


class _Lines(_Place):
    rewrites = False
    pause = wait_first = SECONDS_BETWEEN_LINES

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def draw(self, text: str) -> None:
        self.file.write(f"{text}\n")
        self.file.flush()


class _Notebook(_Place):
    """One output of the cell, updated in place."""

    def __init__(self) -> None:
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        self.handle = display({"text/plain": ""}, raw=True, display_id=True)

    def draw(self, text: str) -> None:
        self.handle.update({"text/plain": text}, raw=True)


def _place_for(file: TextIO) -> _Place:
    if file is sys.stderr and _in_notebook():
        return _Notebook()
    return _Terminal(file) if file.isatty() else _Lines(file)


def _in_notebook() -> bool:
    """Whether this process is a notebook's kernel; IPython is asked only where it is loaded already."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def _never_raising(draw: Callable[[], Any]) -> Any:
    """What `draw` gives, or None: a broken terminal must not end a run of an hour."""
    try:
        return draw()
    except Exception:
        return None


def _can_print(file: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(file, "encoding", None) or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


def _drawn_bar(share: float, width: int, blocks: bool) -> str:
    """A bar that is filled by this share.

    >>> _drawn_bar(0.5, 24, True)
    '|████████████            |'
    >>> _drawn_bar(0.5, 24, False)
    '|############            |'
    """
    eighths = int(share * width * 8)
    if not blocks:
        return f"|{'#' * (eighths // 8):<{width}}|"
    filled = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return f"|{filled:<{width}}|"


def _time(seconds: float) -> str:
    """A time as a clock has it.

    >>> _time(75), _time(3723)
    ('01:15', '1:02:03')
    """
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes:02}:{left:02}"


def _figure(value: Any) -> str:
    """A figure in a few characters.

    >>> _figure(12345.6), _figure(0.01234), _figure(7), _figure("all")
    ('12,346', '0.0123', '7', 'all')
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    if number.is_integer() or abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def _cut(text: str, columns: int) -> str:
    """A text that fits, so that a line that is written over stays one line.

    >>> _cut("draws 100%", 8)
    'draws 1~'
    """
    return text if len(text) <= columns else text[: columns - 1] + "~"


events.show_bars_with(lambda total, label: Bar(total, label).open())
compiling.show_notes_with(Note)
