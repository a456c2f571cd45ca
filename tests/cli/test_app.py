"""The command line: what each command prints, what it refuses and how, and its exit status."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import jax
import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner, Result

import lanewise.cli
from lanewise.cli import bench, doctor
from lanewise.cli.app import app
from lanewise.cpp.toolchain import device, foreign

PROGRAMS = """
import jax.numpy as jnp
import lanewise as lw

CONSTANT = 3

@lw.program
def halvings(n):
    count = 0
    while n > 1:
        n = n // 2
        count += 1
    return count

@lw.program
def power(x, n):
    if n == 0:
        return 1.0
    return x + power(x * 0.5, n - 1)

def doubled(x):
    return 2 * x

def branchy(x):
    return x if x > 0 else -x

@lw.program
def yields(x):
    yield x

@lw.program
def misfit(x):
    return x + jnp.ones(2) @ jnp.ones(3)

if __name__ == "__main__":
    raise SystemExit("not as a script")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "programs.py"
    path.write_text(PROGRAMS)
    return path


def lanewise_(*arguments: object) -> Result:
    # As wide as a terminal may be, so that no message is folded.
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, [str(a) for a in arguments])


# -- show ------------------------------------------------------------------------------------------


def test_show_gives_blocks_storage_costs_and_plan(file: Path) -> None:
    done = lanewise_("show", f"{file}:power", "--args", "jnp.ones(4), 3", "--in-axes", "0, None")
    assert done.exit_code == 0, done.output
    # A name that other tests have traced before has a number.
    text = re.sub(r"power\.\d+", "power", done.stdout)
    for part in ("carrier", "why", "4 lanes", "power(", "call power, then", "stacks", "ops", "▶"):
        assert part in text, part
    assert " = mul" not in done.stdout


def test_show_takes_options_and_keywords_and_prints_code(file: Path) -> None:
    done = lanewise_(
        *("show", f"{file}:halvings", "--args", "n=jnp.arange(CONSTANT)", "--carrier", "ticks"),
        *("--schedule", "most", "--lanes", 2, "--code", "--jaxpr"),
    )
    assert done.exit_code == 0, done.output
    text = re.sub(r"halvings\.\d+", "halvings", done.stdout)
    for part in ("most", "2 lanes for 3 examples", "block 0 (halvings)", "lambda ; a:i32[]"):
        assert part in text, part


def test_show_takes_plain_functions_and_lone_calls(file: Path) -> None:
    done = lanewise_("show", f"{file}:doubled", "--args", "1.5", "--in-axes", "None")
    assert done.exit_code == 0 and "one lane" in done.stdout, done.output


def test_show_draws(file: Path, tmp_path: Path) -> None:
    drawing = tmp_path / "blocks.svg"
    place = f"{file}:halvings"
    done = lanewise_("show", place, "--args", "jnp.arange(3)", "--svg", drawing)
    assert done.exit_code == 0 and drawing.read_text().lstrip().startswith("<svg"), done.output
    nowhere = tmp_path / "none" / "blocks.svg"
    done = lanewise_("show", place, "--args", "jnp.arange(3)", "--svg", nowhere)
    assert done.exit_code == 1 and "cannot be written" in done.stderr


@pytest.mark.parametrize(
    ("place", "arguments", "status", "said"),
    [
        ("nowhere.py:f", "", 2, ("no file 'nowhere.py'", "fix: ")),
        ("{file}", "", 2, ("names no function", "programs are halvings, power, yields, misfit")),
        ("{file}:halving", "", 2, ("has no 'halving'", "programs are halvings")),
        ("{file}:CONSTANT", "", 2, ("of type int", "programs are halvings")),
        ("{file}:halvings", "", 2, ("halvings(n) does not take", "missing a required argument")),
        ("{file}:halvings", "1 +", 2, ("is not Python", "what would stand in a call")),
        ("{file}:halvings", "ones(3)", 2, ("NameError: name 'ones'", "fix: ")),
        ("{file}:halvings", "5", 2, ("in_axes=0 maps axis 0", "in_axes=None for a lone call")),
        (
            "{file}:branchy",
            "jnp.ones(2)",
            1,
            ("is no program", "put @lw.program above `def branchy`"),
        ),
        ("{file}:yields", "jnp.ones(2)", 1, ("programs.py:", "yield")),
        (
            "{file}:misfit",
            "jnp.ones(2)",
            1,
            ("cannot be traced: TypeError", "return x + jnp.ones(2) @"),
        ),
        ("{file}:halvings", "exit(3)", 2, ("SystemExit: 3", "fix: ")),
    ],
)
def test_show_refuses_with_the_fix(
    file: Path, place: str, arguments: str, status: int, said: tuple[str, ...]
) -> None:
    done = lanewise_("show", place.format(file=file), "--args", arguments)
    assert done.exit_code == status, done.output
    assert not done.stdout
    for part in said:
        assert part in done.stderr, (part, done.stderr)


def test_show_refuses_wrong_axes_and_options(file: Path) -> None:
    place = f"{file}:halvings"
    axes = lanewise_("show", place, "--args", "jnp.ones(2)", "--in-axes", "first")
    assert axes.exit_code == 2 and "--in-axes 'first' is no axis" in axes.stderr
    carrier = lanewise_("show", place, "--args", "jnp.ones(2)", "--carrier", "train")
    assert carrier.exit_code == 2 and "choose one of 'auto', 'ticks'" in carrier.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_the_kind", "No module named 'nothing_of_the_kind'"),
        ("x = 1\ny = x / 0", "line 2: y = x / 0"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_show_reports_where_a_file_does_not_run(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    done = lanewise_("show", f"{path}:f")
    assert done.exit_code == 1 and said in done.stderr and "Traceback" not in done.output


# -- bench -----------------------------------------------------------------------------------------

BENCHMARK = '''"""Sums, ours against theirs.

More of it.
"""
import sys
print("compiling", *sys.argv[1:])
print('{"claim": "sums", "ours": 0.5, "peer": 1.25, "ratio": 2.5, "target": ">= 2", "met": true}')
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "_harness.py").touch()
    (folder / "sums.py").write_text(BENCHMARK)
    (folder / "broken.py").write_text('"""Breaks."""\nraise SystemExit(5)')
    return tmp_path


def test_bench_lists_and_runs(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    listed = lanewise_("bench", "--directory", checkout)
    assert listed.exit_code == 0 and "Sums, ours against theirs." in listed.stdout
    assert "_harness" not in listed.stdout and "More of it" not in listed.stdout
    out = checkout / "claims.jsonl"
    done = lanewise_("bench", "--directory", checkout, "--out", out, "sums", "--", "--repeats", 3)
    assert done.exit_code == 0, done.output
    assert "compiling --repeats 3" in done.stdout and '"claim"' not in done.stdout
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("sums")]
    assert row == ["sums", "0.5", "1.25", "2.5", ">=", "2", "yes"]
    assert json.loads(out.read_text())["ratio"] == 2.5


def test_bench_goes_on_after_one_that_breaks_and_fails(checkout: Path) -> None:
    done = lanewise_("bench", "--all", "--directory", checkout)
    assert done.exit_code == 1 and "2.5" in done.stdout
    assert "did not run to the end: broken" in done.stderr


def test_bench_refuses_what_is_not_there(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = lanewise_("bench", "sum", "--directory", checkout)
    assert done.exit_code == 2 and "choose one of broken, sums" in done.stderr
    assert lanewise_("bench", "sums", "--all", "--directory", checkout).exit_code == 2
    # As if installed: no checkout around the package, and none here.
    installed = SimpleNamespace(
        __file__=str(tmp_path / "lib" / "site" / "lanewise" / "__init__.py")
    )
    monkeypatch.setattr(bench, "lanewise", installed)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = lanewise_("bench")
    assert done.exit_code == 2 and "an installed package has no benchmarks" in done.stderr


def test_bench_finds_its_own_checkout() -> None:
    done = lanewise_("bench")
    assert done.exit_code == 0 and "refill" in done.stdout and "control" in done.stdout


# -- doctor ----------------------------------------------------------------------------------------


def test_doctor_tries_the_carriers() -> None:
    done = lanewise_("doctor")
    assert done.exit_code == 0, done.output
    assert jax.__version__ in done.stdout and "All that is essential works." in done.stdout
    for carrier in ("ticks", "native", "kernel"):
        assert carrier in done.stdout


def states(check: Callable[[], Iterator[doctor.Finding]]) -> dict[str, doctor.Finding]:
    return {one.what: one for one in check()}


def test_doctor_fails_where_a_carrier_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, carrier: str, **__: object) -> Callable[..., object]:
        if carrier == "native":
            raise RuntimeError("out of order\nat length")
        return lambda numbers: numbers

    monkeypatch.setattr(doctor.lw, "vmap", broken)
    done = lanewise_("doctor")
    assert done.exit_code == 1 and "Does not work: ticks, native." in done.stdout
    assert "RuntimeError: out of order" in done.stdout and "wrong answers" in done.stdout


def test_doctor_where_jax_finds_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("no backend")

    monkeypatch.setattr(jax, "devices", none)
    monkeypatch.setenv("JAX_PLATFORMS", "quantum")
    done = lanewise_("doctor")
    assert done.exit_code == 1 and "Does not work: JAX, carriers." in done.stdout
    assert "JAX_PLATFORMS='quantum' is not there: RuntimeError: no backend" in done.stdout


def test_doctor_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "obstacle", lambda: "there is none")
    monkeypatch.setattr(doctor, "_tried", lambda name, detail, fix="": well(name, detail))
    native = states(doctor.carriers)["native"]
    assert native.state is doctor.State.WORSE and "install g++ or clang++" in native.fix


def well(name: str, detail: str) -> doctor.Finding:
    return doctor.Finding(name, doctor.State.WELL, detail)


def test_doctor_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(platform="gpu", id=0, device_kind="a GPU")
    monkeypatch.setattr(jax, "devices", lambda *_: [gpu])
    monkeypatch.setattr(device, "available", lambda: False)
    kernel = doctor._kernel()
    assert kernel.state is doctor.State.WORSE and "lanewise[cuda]" in kernel.fix
    monkeypatch.setattr(device, "available", lambda: True)
    monkeypatch.setattr(doctor, "_tried", lambda name, detail, fix="": well(name, detail))
    assert "NVRTC" in doctor._kernel().detail


def test_doctor_reports_versions_and_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = [
        Requirement("jax>=99"),
        Requirement("no-such-package>=1"),
        Requirement("rich>=1; extra == 'cli'"),
        Requirement("no-such-package; extra == 'watch'"),
    ]
    monkeypatch.setattr(doctor, "requirements", lambda: needed)
    monkeypatch.setattr(importlib.metadata, "version", _version_of(importlib.metadata.version))
    found = states(doctor.versions)
    assert found["jax"].state is doctor.State.BROKEN and "jax>=99 is needed" in found["jax"].detail
    assert found["no-such-package"].detail == "not installed"
    extras = states(doctor.extras)
    assert extras["cli"].state is doctor.State.WELL
    assert extras["watch"].fix == 'pip install "lanewise[watch]"'
    monkeypatch.setattr(doctor, "requirements", lambda: None)
    assert states(doctor.versions)["lanewise"].state is doctor.State.WORSE


def _version_of(real: Callable[[str], str]) -> Callable[[str], str]:
    """As if Lanewise were installed, wherever these tests run."""
    return lambda name: "0" if name == "lanewise" else real(name)


# -- demo, and the whole ---------------------------------------------------------------------------


def test_demo_runs_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}
    module = ModuleType("lanewise.mcmc.demo")
    module.run = given.update  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lanewise.mcmc", ModuleType("lanewise.mcmc"))
    monkeypatch.setitem(sys.modules, "lanewise.mcmc.demo", module)
    done = lanewise_("demo", "--chains", 8, "--draws", 5, "--warmup", 4, "--report", "a.html")
    assert done.exit_code == 0, done.output
    assert given == {"chains": 8, "draws": 5, "warmup": 4, "report": "a.html"}
    assert lanewise_("demo", "--chains", 0).exit_code == 2


def test_demo_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lanewise.mcmc", ModuleType("lanewise.mcmc"))
    monkeypatch.setitem(sys.modules, "lanewise.mcmc.demo", None)
    done = lanewise_("demo")
    assert done.exit_code == 1 and "lanewise[cli,mcmc,watch]" in done.stderr


def test_help_teaches_each_command() -> None:
    for command in ("demo", "show", "bench", "doctor"):
        assert command in lanewise_("--help").stdout
        assert lanewise_(command, "--help").exit_code == 0
    assert (
        'lanewise show program.py:collatz --args "jnp.arange' in lanewise_("show", "--help").stdout
    )
    assert lanewise_("shew").exit_code == 2


def test_without_its_extra_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lanewise.cli, "NEEDS", ("typer", "no_such_module"))
    with pytest.raises(SystemExit) as ended:
        lanewise.cli.main([])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "needs no_such_module" in said and 'pip install "lanewise[cli]"' in said


def test_as_a_process(file: Path) -> None:
    command = [sys.executable, "-m", "lanewise.cli", "show", f"{file}:halvings"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*command, "--args", "jnp.arange(5)"],
        capture_output=True,
        text=True,
        timeout=120,
        env=ascii_only,
    )
    assert done.returncode == 0 and "halvings(" in done.stdout, done.stderr
    assert not done.stderr
