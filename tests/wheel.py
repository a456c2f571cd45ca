"""What a user installs works without the checkout (`make wheel`).

A wheel is built and installed in a new environment, first alone, then with the extras of `lanewise demo`. In an
empty folder the README's first example runs and prints what its comment says, `lanewise doctor` finds the carriers,
and `lanewise demo` writes its report.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEMO = ("demo", "--chains", "16", "--draws", "50", "--warmup", "50", "--report", "report.html")
# What is no Python and belongs to the package all the same.
DATA = re.compile(r"\.(cpp|h|cuh|cu|css|js)$|py\.typed$")


def run(*command: str | Path, folder: Path) -> str:
    """Run a command in a folder, without the checkout on its path; what it printed."""
    about = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=about, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def first_example() -> tuple[str, str]:
    """The README's first block of Python, and what its last comment says it prints."""
    code = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)[0]
    return code, code.rstrip().rpartition("  # ")[2]


def whole(wheel: Path) -> None:
    """Every file of the package is in the wheel."""
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    files = {
        path.relative_to(source).as_posix()
        for path in (source / "lanewise").rglob("*")
        if path.suffix == ".py" or DATA.search(path.name)
    }
    if missing := files - packed:
        raise SystemExit(f"{wheel.name} lacks {', '.join(sorted(missing))}")


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        here = folder / "elsewhere"
        here.mkdir()
        pip = (sys.executable, "-m", "pip", "-qq")
        run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT, folder=here)
        (wheel,) = folder.glob("*.whl")
        whole(wheel)
        run(sys.executable, "-m", "venv", folder / "venv", folder=here)
        python = folder / "venv" / "bin" / "python"
        run(python, "-m", "pip", "-qq", "install", wheel, folder=here)
        code, says = first_example()
        (here / "first.py").write_text(code)
        printed = run(python, "first.py", folder=here)
        if printed.split() != says.split():
            raise SystemExit(f"The README's first example printed {printed!r}, not {says!r}")
        print("README: right, with the core's dependencies alone")
        run(python, "-m", "pip", "-qq", "install", f"{wheel}[demo]", folder=here)
        command = folder / "venv" / "bin" / "lanewise"
        print(run(command, "doctor", folder=here))
        run(command, *DEMO, folder=here)
        report = (here / "report.html").read_text()
        if not report.rstrip().endswith("</html>"):
            raise SystemExit("lanewise demo wrote no whole report")
        print(f"{wheel.name}: doctor and demo ran; the report has {len(report):,} characters")


if __name__ == "__main__":
    main()
