"""Run the tests under the other Python/JAX pairs found on this machine (`make test-matrix`).

A pair is a Python version and a JAX series. Each pair gets a virtual environment of its own,
`.venv-PYTHON-jaxSERIES`, with the newest JAX of the series that the package index offers. What runs
is every test of `make test`, with fewer generated programs; linters and types run in `make test`
only. A pair whose interpreter is absent, or whose JAX does not exist for that interpreter, is named
as absent and is no failure.

`--pair 3.13/0.12` (more than once if need be) runs these pairs alone. `--short` runs the files that a
new Python or JAX is most likely to break: JAX's own interfaces, the front end, one file a carrier,
derivatives. Other arguments are pytest's.

Interpreters are looked for on the path and, where pyenv is installed, among its versions.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = "60"
# What `--short` runs.
SHORT = (
    *(
        "tests/rules/test_bind.py",
        "tests/tracing/test_program.py",
        "tests/tracing/test_replay.py",
        "tests/core/test_outcomes.py",
    ),
    *("tests/api/test_gradient.py", "tests/diff/test_recursion.py", "tests/diff/test_vjp.py"),
    *("tests/core/test_summed.py", "tests/diff/test_accumulate.py"),
    *(
        "tests/frontend",
        "tests/blocks",
        "tests/carriers/test_native.py",
        "tests/machine/test_ticking.py",
    ),
    *("tests/machine/test_meet.py", "tests/arrays/test_scan.py", "tests/mcmc/test_nuts.py"),
    *(
        "tests/mcmc/test_by_pymc.py",
        "tests/mcmc/test_inference.py",
        "tests/mcmc/test_predict.py",
    ),
    "tests/test_third_party.py",
)


@dataclass(frozen=True)
class Pair:
    """A Python version and a JAX series, as `major.minor`."""

    python: str
    jax: str

    @property
    def requirement(self) -> str:
        """What pip is asked for.

        >>> Pair("3.12", "0.11").requirement
        'jax>=0.11,<0.12'
        """
        major, minor = self.jax.split(".")
        return f"jax>={self.jax},<{major}.{int(minor) + 1}"

    @property
    def venv(self) -> Path:
        return ROOT / f".venv-{self.python}-jax{self.jax}"

    def __str__(self) -> str:
        return f"Python {self.python} with JAX {self.jax}"


PAIRS = (
    Pair("3.11", "0.10"),
    Pair("3.12", "0.10"),
    Pair("3.12", "0.11"),
    Pair("3.12", "0.12"),
    Pair("3.13", "0.12"),
    Pair("3.14", "0.12"),
)


def runs_as(candidate: Path, version: str) -> bool:
    """Whether `candidate` starts and is that Python (a pyenv shim may do neither)."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def find_python(version: str) -> Path | None:
    """An interpreter of that version, on the path or in pyenv."""
    candidates: list[Path] = []
    if (on_path := shutil.which(f"python{version}")) is not None:
        candidates.append(Path(on_path))
    if (pyenv := shutil.which("pyenv")) is not None:
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True).stdout.strip()
        candidates += sorted(Path(root, "versions").glob(f"{version}.*/bin/python"), reverse=True)
    return next((found for found in candidates if runs_as(found, version)), None)


def present_pair() -> Pair | None:
    """The pair of `make test`'s own environment, which `make test` covers."""
    code = "import sys, jax; print('%d.%d' % sys.version_info[:2], *jax.__version__.split('.')[:2])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode != 0:
        return None
    python, major, minor = done.stdout.split()
    return Pair(python, f"{major}.{minor}")


def prepare(pair: Pair, python: Path) -> str | None:
    """Make and fill the pair's environment; a reason when that cannot be done."""
    if not runs_as(pair.venv / "bin" / "python", pair.python):
        subprocess.run([python, "-m", "venv", "--clear", pair.venv], check=True)
    pip = [pair.venv / "bin" / "python", "-m", "pip", "install", "-qq"]
    jax = subprocess.run([*pip, "--dry-run", "--no-deps", pair.requirement], capture_output=True)
    if jax.returncode != 0:
        return f"the package index has no {pair.requirement} for Python {pair.python}"
    done = subprocess.run([*pip, "-e", f"{ROOT}[test]", pair.requirement])
    return None if done.returncode == 0 else "the test tools cannot be installed beside it"


def parsed(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own arguments, and pytest's.

    >>> ours, others = parsed(["--short", "--pair", "3.13/0.12", "-x"])
    >>> ours.pair, ours.short, others
    ([Pair(python='3.13', jax='0.12')], True, ['-x'])
    """
    parser = argparse.ArgumentParser(description="Run the tests under other Python/JAX pairs.")
    parser.add_argument("--pair", action="append", metavar="PYTHON/JAX", type=named_pair)
    parser.add_argument("--short", action="store_true", help="a few files only")
    return parser.parse_known_args(arguments)


def named_pair(text: str) -> Pair:
    """The pair of a name such as `3.13/0.12`."""
    python, slash, series = text.partition("/")
    if not slash or Pair(python, series) not in PAIRS:
        known = ", ".join(f"{pair.python}/{pair.jax}" for pair in PAIRS)
        raise argparse.ArgumentTypeError(f"{text!r} is none of {known}")
    return Pair(python, series)


def main(arguments: list[str]) -> int:
    ours, others = parsed(arguments)
    wanted = ours.pair or [pair for pair in PAIRS if pair != present_pair()]
    what = SHORT if ours.short else ()
    passed, failed, absent = [], [], []
    for pair in wanted:
        python = find_python(pair.python)
        reason = f"no Python {pair.python} here" if python is None else prepare(pair, python)
        if reason is not None:
            print(f"== {pair}: absent ({reason})", flush=True)
            absent.append(pair)
            continue
        print(f"== {pair}: {'a few files' if what else 'the tests of `make test`'}", flush=True)
        tests = [pair.venv / "bin" / "python", "-m", "pytest", "-n2", "--dist=worksteal", "-q"]
        environment = {**os.environ, "LANEWISE_PROGRAMS": PROGRAMS}
        done = subprocess.run([*tests, *what, *others], cwd=ROOT, env=environment)
        (passed if done.returncode == 0 else failed).append(pair)
    for word, pairs in (("passed", passed), ("failed", failed), ("absent", absent)):
        print(f"{word}: {', '.join(map(str, pairs)) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
