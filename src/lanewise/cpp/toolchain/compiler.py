"""The host's C++ compiler, as a process that may fail in ways that are nobody's bug.

It may be missing, lack headers, be killed for want of memory, find its disk full, or never end. A kernel that it
rejects is a bug in Lanewise (`InternalError`). Everything else is a `CompilerError`, upon which `auto` runs the program
some other way; where only the folder is at fault (`OSError`), another is tried first.

The compiler has a session of its own: who gives up kills all of it, the programs that it has started as well.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from lanewise.core.errors import CompilerError, InternalError, OptionError
from lanewise.cpp.toolchain import cache

FOR_THIS_CPU = "-march=native"
# Those looked for beside the one of the environment.
COMPILERS = ("c++", "g++", "clang++")
# A compiler that takes longer hangs.
MOST_SECONDS = 900.0
# How much of what a compiler says an error repeats.
MOST_SAID = 2000
# What starts a compiler: it is killed, with all that it has started, when nobody holds the other end of the input any
# more. So it ends when this process does, however that ends.
_GUARDED = """
exec 3<&0 </dev/null
"$@" 3<&- & work=$!
{ read _; kill -9 -$$; } <&3 >/dev/null 2>&1 & guard=$!
wait $work; status=$?
kill -9 $guard
exit $status
"""
GIVING_WAY = ("nice", "-n", "15")


def commands() -> tuple[tuple[str, ...], ...]:
    """The C++ compilers that are found here, `CXX` first; it may hold arguments ("ccache g++")."""
    given = (_words(name or "") for name in (os.environ.get("CXX"), *COMPILERS))
    found = tuple(words for words in given if words and shutil.which(words[0]))
    if not found:
        raise OptionError(
            "No C++ compiler was found to compile a kernel for the host; install g++ or clang++, or set CXX."
        )
    return found


def _words(given: str) -> tuple[str, ...]:
    # A path with a space in it is one word.
    if shutil.which(given):
        return (given,)
    try:
        return tuple(shlex.split(given))
    except ValueError:
        return ()


@functools.cache
def this_cpu() -> str | None:
    """What distinguishes this CPU from one that lacks some of its instructions; None where it is not known."""
    try:
        first, *_ = Path("/proc/cpuinfo").read_text().split("\n\n")
    except OSError:
        return platform.processor() or None
    # What changes from one moment or core to the next says nothing about the instructions.
    varies = ("processor", "cpu mhz", "bogomips", "core id", "apicid", "initial apicid")
    return "\n".join(line for line in first.splitlines() if not line.lower().startswith(varies))


# The compilers at work, and whether this process is about to end: then none is started.
_at_work: set[Compilation] = set()
_ending = threading.Event()


class Compilation:
    """A compiler at work, in a folder of its own. With `beside` it gives way to others."""

    def __init__(
        self, words: Sequence[str], text: str, folder: Path, *, beside: bool = False
    ) -> None:
        self.words, self.text, self._beside = tuple(words), text, beside
        self._work = tempfile.TemporaryDirectory(
            prefix=cache.WORK, dir=folder, ignore_cleanup_errors=True
        )
        self._library = Path(self._work.name) / "made.so"
        self._source = Path(self._work.name) / "made.cpp"
        self._started: subprocess.Popen[str] | None = None
        try:
            self._source.write_text(text)
        except BaseException:
            self._work.cleanup()
            raise

    def content(self, seconds: float | None = None) -> bytes:
        """The library that the compiler makes, for this very CPU, or, by one that cannot, for any of its kind."""
        said = ""
        _at_work.add(self)
        try:
            for target in ((FOR_THIS_CPU,) if this_cpu() else (), ()):
                status, said = self._run(target, MOST_SECONDS if seconds is None else seconds)
                if not status and self._library.exists():
                    return self._library.read_bytes()
                self._judge(status, said)
        finally:
            _at_work.discard(self)
            self._work.cleanup()
        raise InternalError(
            f"{self.words[0]} does not compile the kernel:\n{said[:MOST_SAID]}\n{self.text}"
        )

    def stop(self) -> None:
        """Kill the compiler and all that it has started."""
        if self._started is not None and self._started.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._started.pid, signal.SIGKILL)

    def _run(self, target: tuple[str, ...], seconds: float) -> tuple[int, str]:
        nice = GIVING_WAY if self._beside else ()
        line = [*nice, *self.words, str(self._source), "-o", str(self._library), *target]
        # Compilers write to the folder for temporary files as well; and what they say is looked at, so it is English.
        if _ending.is_set():
            raise CompilerError("the process is about to end")
        about = {"TMPDIR": self._work.name, "LC_ALL": "C"}
        theirs, ours = os.pipe()
        try:
            process = self._started = subprocess.Popen(
                ["sh", "-c", _GUARDED, "sh", *line],
                env=os.environ | about,
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            try:
                _, said = process.communicate(timeout=seconds)
            except BaseException:
                self.stop()
                process.communicate()
                raise
        except subprocess.TimeoutExpired as error:
            raise CompilerError(
                f"the C++ compiler {self.words[0]} did not end within {seconds:g} seconds"
            ) from error
        except OSError as error:
            raise CompilerError(
                f"the C++ compiler {self.words[0]} cannot be started: {error}"
            ) from error
        finally:
            os.close(theirs)
            os.close(ours)
        return process.returncode, said

    def _judge(self, status: int, said: str) -> None:
        """Raise for a failure that another target would not help."""
        full = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO)
        said_errors = [os.strerror(number) for number in full]
        if any(word in said for word in (*said_errors, "File size limit exceeded")):
            raise OSError(errno.ENOSPC, f"{self.words[0]}: {_last_line(said)}")
        memory = ("out of memory", "memory exhausted", os.strerror(errno.ENOMEM))
        killed = "terminated program" in said or status < 0 or status > 125
        if killed or any(word in said for word in memory):
            raise CompilerError(
                f"the C++ compiler {self.words[0]} was killed, or had no memory left"
                f" ({_last_line(said) or f'status {status}'})"
            )


def _last_line(said: str) -> str:
    lines = [line for line in said.splitlines() if "error" in line.lower()] or said.splitlines()
    return lines[-1].strip() if lines else ""


def compiled(words: Sequence[str], text: str, *, beside: bool = False) -> bytes:
    """A library made of a text by the compiler with its flags, in the first folder that has room for the work."""
    obstacles: list[str] = []
    for folder in cache.folders(obstacles):
        try:
            return Compilation(words, text, folder, beside=beside).content()
        except OSError as error:
            obstacles.append(cache.described(error, folder))
    raise CompilerError(f"no folder has room to compile in: {'; '.join(obstacles)}")


def stop_all() -> None:
    """Kill every compiler at work, and start no other."""
    _ending.set()
    for one in list(_at_work):
        one.stop()


# A forked child has none of its parent's processes to kill.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_at_work.clear)
