"""A C++ compiler that is missing, killed, out of memory or hanging is no bug, and `auto` does without it."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise.core.errors import CompilerError, OptionError
from lanewise.cpp.toolchain import cache as kept
from lanewise.cpp.toolchain import foreign, host
from lanewise.plan import choose
from seeing import forget_plans

TEXT = 'extern "C" int answer() { return 42; }\n'
FLAGS = ("-O0", "-fPIC", "-shared")

pytestmark = needs.compiler


@pytest.fixture
def cxx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Make a script the compiler; "real" in it is the compiler that is there. Nothing is compiled yet."""
    real = " ".join(host.command())
    path = tmp_path / "cxx"

    def use(script: str) -> Path:
        path.write_text(f'#!/bin/sh\nreal() {{ {real} "$@"; }}\n{script}\n')
        path.chmod(0o700)
        monkeypatch.setenv("CXX", str(path))
        return path

    def forget() -> None:
        caches = (host._loaded, host._first_that_works, host.obstacle, host.load_soon)
        for cache in caches:
            cache.cache_clear()
        forget_plans()
        choose._given_up.clear()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield use
    forget()


def test_arguments_of_the_compiler(cxx: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch):
    script = cxx('shift; real "$@"')
    monkeypatch.setenv("CXX", f"{script} 'an argument'")
    assert host.command() == (str(script), "an argument")
    assert host.load(TEXT, FLAGS).answer() == 42
    spaced = script.with_name("my cxx")
    spaced.write_text("#!/bin/sh\nexit 1\n")
    spaced.chmod(0o700)
    monkeypatch.setenv("CXX", str(spaced))
    assert host.commands()[0] == (str(spaced),)
    monkeypatch.setenv("CXX", "no-such-compiler 'unbalanced")
    assert host.commands()[0][0] in host.COMPILERS


def test_another_compiler_takes_the_place_of_one_that_rejects_a_trivial_program(
    cxx: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    works = cxx('real "$@"').rename(tmp_path / "works")
    broken = cxx("case $* in *-nostdinc++*) echo 'error: no stdlib.h' >&2; exit 1;; esac; real $*")
    monkeypatch.setattr(host, "COMPILERS", (str(works),))
    with pytest.warns(UserWarning, match=rf"{broken} does not compile.*so {works} compiles"):
        assert host.command() == (str(works),)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert foreign.available()
        assert host.load(TEXT, FLAGS).answer() == 42


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -9 $$", "was killed, or had no memory left"),
        ("echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1", "Killed"),
        ("echo 'cc1plus: out of memory allocating 65536 bytes' >&2; exit 1", "out of memory"),
        ("exit 127", "status 127"),
    ],
)
def test_a_compiler_that_is_killed(cxx: Callable[[str], Path], script: str, said: str) -> None:
    cxx(script)
    with pytest.raises(CompilerError, match=said):
        host.load(TEXT, FLAGS)


def test_a_compiler_that_hangs_is_killed_with_all_it_started(
    cxx: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cxx(f"sleep 1000 & echo $! > {tmp_path}/pid; wait")
    monkeypatch.setattr(host, "MOST_SECONDS", 0.5)
    with pytest.raises(CompilerError, match=r"did not end within 0\.5 seconds"):
        host.load(TEXT, FLAGS)
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert [path.suffix for path in kept.wanted().iterdir()] == []


def is_alive(pid: int) -> bool:
    """Whether a process goes on a while after it was killed."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
            # One that has ended stays in the table until its parent has asked.
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return False
        except (ProcessLookupError, FileNotFoundError):
            return False
        time.sleep(0.05)
    return True


def test_a_disk_that_is_full_for_the_compiler(cxx: Callable[[str], Path]) -> None:
    folder = kept.wanted()
    cxx(f"""
case $TMPDIR in {folder}/*) echo 'as: cannot write: No space left on device' >&2; exit 1;; esac
real "$@"
""")
    assert host.load(TEXT, FLAGS).answer() == 42
    assert host.loaded_if_found(host.command(), FLAGS, TEXT) is not None


KERNELS_FAIL = """
for each in "$@"; do case $each in *.cpp) grep -q lanewise_kernel $each && kill -9 $$;; esac; done
real "$@"
"""


@lw.program
def steps_to_one(n):
    steps = 0
    while n > 1:
        n, steps = jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1
    return steps


@needs.on_cpu
@pytest.mark.parametrize("inside", [False, True], ids=["outside jit", "inside jit"])
def test_auto_runs_by_ticks_where_a_kernel_cannot_be_compiled(
    cxx: Callable[[str], Path], inside: bool
) -> None:
    cxx(KERNELS_FAIL)
    n = jnp.arange(1, 8)
    before = lw.inspect(steps_to_one, n).plan
    assert before.carrier == "native"
    run = lw.vmap(steps_to_one)
    run = jax.jit(run) if inside else run
    assert run(n).tolist() == run(n).tolist() == [0, 1, 7, 2, 5, 8, 16]
    after = lw.inspect(steps_to_one, n).plan
    assert after.carrier == "ticks"
    assert "not each lane on its own: No kernel could be compiled" in after.why
    assert "was killed, or had no memory left" in after.why
    with pytest.raises(CompilerError, match=r'was killed.*use carrier="ticks"'):
        lw.vmap(steps_to_one, carrier="native")(n)


@lw.program
def depth(n):
    return 0 if n <= 0 else 1 + depth(n - 1)


@lw.program
def depths(n):
    total = 0
    while n > 0:
        total += jax.vmap(depth)(n + jnp.arange(3)).sum()
        n = n - 1
    return total


@needs.on_cpu
def test_a_program_that_options_change_inside_runs_by_ticks_too(cxx: Callable[[str], Path]) -> None:
    """Its bound holds for the machine inside: what is planned is another program than what was traced."""
    cxx(KERNELS_FAIL)
    n = jnp.arange(4)
    bounded = depths.with_options(max_depth=50)
    assert lw.inspect(bounded, n).plan.carrier == "native"
    assert jax.jit(lw.vmap(bounded))(n).tolist() == [0, 6, 15, 27]


@needs.on_cpu
def test_a_compiler_that_does_not_work_is_named(
    cxx: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cxx("exit 1")
    monkeypatch.setattr(host, "COMPILERS", ())
    assert not foreign.available()
    assert f"{path} does not compile a trivial program" in (foreign.obstacle() or "")
    found = lw.inspect(steps_to_one.with_options(carrier="native"), jnp.arange(3)).plan
    assert found.path == "XLA" and str(path) in found.why

    @lw.program
    def factors(matrix):
        while matrix[0, 0] > 1.0:
            matrix = matrix * 0.5 * jnp.linalg.eigh(matrix)[0][0]
        return matrix

    with pytest.raises(OptionError, match="does not compile a trivial program"):
        lw.vmap(factors, carrier="native")(jnp.ones((2, 2, 2)))


WEIGHTS = np.random.default_rng(0).standard_normal((192, 192)).astype(np.float32) / 14.0


@lw.program
def branching(x, depth):
    if depth == 0:
        return jnp.tanh(WEIGHTS @ x)
    return branching(x, depth - 1) + branching(0.5 * x, depth - 1)


@needs.on_cpu
def test_lanes_that_would_meet_are_swept(cxx: Callable[[str], Path]) -> None:
    cxx(KERNELS_FAIL)
    # Enough for a meeting to pay, and too few for lanes of one core alone to meet.
    x, depth = jnp.eye(48, 192), jnp.arange(48) % 3
    assert lw.inspect(branching, x, depth).plan.schedule == "meet"
    found = lw.vmap(branching)(x, depth)
    assert lw.inspect(branching, x, depth).plan.schedule == "sweep"
    column = [np.tanh(WEIGHTS[:, 2] * scale) for scale in (1.0, 0.5, 0.25)]
    np.testing.assert_allclose(
        found[2], column[0] + 2 * column[1] + column[2], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(found[0], np.tanh(WEIGHTS[:, 0]), rtol=1e-4, atol=1e-5)
