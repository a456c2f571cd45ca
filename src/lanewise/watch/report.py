"""`lanewise.report`: a page for the browser about everything that ran inside a `with`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lanewise.core import events
from lanewise.core.errors import OptionError
from lanewise.watch.recording import Recording


class Report:
    """A report that is open: what was recorded, and sections about sampling."""

    def __init__(self, path: Path, title: str) -> None:
        self.path = path
        self.title = title
        self.recording = Recording()
        self.sampling: list[str] = []


_open: list[Report] = []


@contextlib.contextmanager
def report(path: str | os.PathLike[str], *, title: str = "Lanewise report") -> Iterator[Report]:
    """Record everything that Lanewise runs inside, and write one self-contained page about it.

    The page shows what ran, what carried it and why, how full the lanes were, which block ran when for how many of
    them, how long examples lived, how deep stacks were, how lanes were refilled, what compiling and running took, and
    the block graph. It opens in any browser, without a network. What runs inside is compiled again, with recording,
    and waits for its answers; what runs outside is not touched. An exception inside still writes the page.

    >>> import tempfile, pathlib
    >>> import jax.numpy as jnp
    >>> import lanewise as lw
    >>> @lw.program
    ... def halvings(n):
    ...     count = 0
    ...     while n > 1:
    ...         n = n // 2
    ...         count += 1
    ...     return count
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with lw.report(f"{folder}/run.html"):
    ...         answers = lw.vmap(halvings, carrier="ticks", schedule="sweep")(jnp.arange(100))
    ...     "Which block ran when" in pathlib.Path(folder, "run.html").read_text()
    True
    """
    opened = Report(writable(path, "report"), title)
    _open.append(opened)
    error = None
    try:
        with events.recording(opened.recording):
            yield opened
            opened.recording.close()
    except BaseException as raised:
        error = f"Ended by {type(raised).__name__}: {raised}"
        opened.recording.close()
        raise
    finally:
        _open.remove(opened)
        from lanewise.watch.page import page

        opened.path.write_text(
            page(opened.recording, opened.title, opened.sampling, error), encoding="utf-8"
        )


def add_sampling(
    inference_data: Any, *, title: str = "Sampling", findings: Sequence[Any] | None = None
) -> None:
    """Add draws to the reports that are open; does nothing where none is.

    Takes ArviZ's `InferenceData` or, from ArviZ 1.0 on, its `DataTree`. `findings` are those of a diagnosis, objects
    with `kind`, `text` and `advice`, which the page shows at its top; None means that nothing was diagnosed.
    """
    if not _open:
        return
    from lanewise.watch.sampling import sampling_section

    section = sampling_section(inference_data, title, findings)
    for opened in _open:
        opened.sampling.append(section)


def writable(path: str | os.PathLike[str], what: str) -> Path:
    """A path that can be written to; an error before a run of an hour is better than one after it."""
    try:
        found = Path(path)
        with found.open("a", encoding="utf-8"):
            return found
    except (TypeError, OSError) as error:
        raise OptionError(
            f"lanewise.{what}({path!r}) cannot be written: {error}. Give a file in a folder that exists."
        ) from error
