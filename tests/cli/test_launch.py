"""`lanewise launch`: processes are started, watched, stopped together and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lanewise.cli import launch
from lanewise.cli.complaints import Misuse

SCRIPT = """
import os, signal, subprocess, sys, time
from pathlib import Path

rank, what, folder = int(os.environ["LANEWISE_RANK"]), sys.argv[1], Path(sys.argv[2])
print(f"rank {rank} of {os.environ['LANEWISE_SIZE']} {what}")
print("to stderr", file=sys.stderr)
(folder / f"{os.environ['LANEWISE_SECRET'][:8]}-{rank}").write_text(os.environ["LANEWISE_ADDRESS"])
if what == "fails" and rank == 1:
    sys.exit(7)
if what == "killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if what == "once" and rank == 1 and not (folder / "seen").exists():
    (folder / "seen").touch()
    sys.exit(3)
if what == "stopped" and rank == 1:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(folder)])
    os.kill(os.getpid(), signal.SIGSTOP)
if what in ("fails", "killed", "sleeps"):
    time.sleep(600)
if what == "stopped" and rank == 0:
    time.sleep(0.2)
    sys.exit(4)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "NOTICE_SECONDS", 0.2)


def test_all_end(script: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.launch(3, script, ["well", str(tmp_path)], 0) == 0
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == [f"[{k}] rank {k} of 3 well" for k in range(3)]
    assert sorted(err.splitlines()) == [f"[{k}] to stderr" for k in range(3)]
    # One secret and one address for all.
    given = [path for path in tmp_path.iterdir() if path.name[-2] == "-"]
    assert len(given) == 3 and len({path.read_text() for path in given}) == 1


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("fails", 7, "rank 1 ended with status 7; stopping the others"),
        ("killed", 128 + 9, "rank 1 was killed by SIGKILL; stopping the others"),
        ("stopped", 4, "rank 0 ended with status 4; stopping the others"),
    ],
)
def test_one_that_fails_stops_all(
    script: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    what: str,
    status: int,
    said: str,
) -> None:
    assert launch.launch(2, script, [what, str(tmp_path)], 0) == status
    assert said in capfd.readouterr().err
    # What a process has started is stopped with it.
    deadline = time.monotonic() + 60
    while running(str(tmp_path)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def running(word: str) -> list[str]:
    """The processes whose command has a word in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
    return found


def test_all_start_again(script: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.launch(2, script, ["once", str(tmp_path)], 2) == 0
    out, err = capfd.readouterr()
    assert out.count("[0] rank 0 of 2 once") == out.count("[1] rank 1 of 2 once") == 2
    assert "rank 1 ended with status 3" in err and "starting all again (1 of 2)" in err
    # With another secret.
    assert len({path.name[:8] for path in tmp_path.iterdir() if path.name[-2] == "-"}) == 2


def test_restarts_end(script: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.launch(2, script, ["fails", str(tmp_path)], 1) == 7
    assert capfd.readouterr().err.count("rank 1 ended with status 7") == 2


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="there is no file"):
        launch.launch(2, tmp_path / "absent.py", [], 0)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "lanewise.cli", "launch", *arguments]


def test_an_interrupt_stops_all(script: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("-n", "2", str(script), "sleeps", str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while len([path for path in tmp_path.iterdir() if path.name[-2] == "-"]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "SIGINT: stopping all" in err and err.count("KeyboardInterrupt") == 2


def test_processes_find_each_other() -> None:
    """Two real processes in a loop over sockets; the script's own arguments are its own."""
    script = Path(__file__).parents[1] / "place" / "on_launch.py"
    ran = subprocess.run(
        command("-n", "2", str(script), "500"),
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["[0] counted 1000", "[1] ended"]
