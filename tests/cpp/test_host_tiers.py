"""A large kernel begins on a quick tier; the optimized library takes over, and both compute the same bits."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from comparing import lanes_of, take
from corpus import CORPUS, Case
from cpp.checking import words
from cpp.test_corpus import FRAMES, SIZE, operands_of
from cpp.test_emit import kernel
from cpp.test_host import is_alive
from lanewise.core.options import Options
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.kernels import kernel_or_obstacle
from lanewise.cpp.toolchain import cache as kept
from lanewise.cpp.toolchain import foreign, host
from test_corpus import batch

pytestmark = needs.compiler

BEST = (host.BEST, *host.FLAGS[1:])


@pytest.fixture
def two_tiers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Every kernel is large, the quick tier is not optimized at all, and nothing is compiled yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(host, "LARGE", 0)
    monkeypatch.setattr(host, "_turns", threading.BoundedSemaphore(1))
    monkeypatch.setattr(host, "_beside", [])
    monkeypatch.setattr(host, "QUICK", ("-O0",))
    monkeypatch.setattr(host, "FLAGS", BEST)
    caches = (host._loaded, host.obstacle, host.load_soon)
    for cache in caches:
        cache.cache_clear()
    yield tmp_path / "lanewise" / "kernels"
    assert host.wait(60.0)
    for cache in caches:
        cache.cache_clear()


# Answers 1 more than its argument on a quick tier and 2 more when optimized: so that a test sees which one ran.
SHOWING = """
#ifdef __OPTIMIZE__
#define LW_TIER 2
#else
#define LW_TIER 1
#endif
"""


def showing(salt: int) -> Emitted:
    """A kernel that shows its tier; each is another, for XLA knows a kernel by its text for good."""
    emitted = kernel(lambda x: x + 7654321, np.int32(0))
    assert emitted.text.count("7654321") == 1
    text = emitted.text.replace("7654321", "LW_TIER")
    return replace(emitted, text=f"// {salt}\n{SHOWING}{text}")


def runs(emitted: Emitted) -> Callable[[jax.Array], list[int]]:
    """The kernel, compiled by XLA once."""
    run = jax.jit(lambda x: foreign.call(emitted, [x], len(x), 0)[0][0])
    return lambda x: run(x).tolist()


@needs.on_cpu
def test_the_optimized_library_takes_over(two_tiers: Path) -> None:
    x = jnp.arange(3, dtype=jnp.int32)
    emitted = showing(1)
    # Held back until the quick tier has been seen.
    with host._turns:
        run = runs(emitted)
        assert run(x) == [1, 2, 3]
    assert host.wait(60.0)
    assert run(x) == [2, 3, 4]
    text, flags = foreign.with_entry(emitted.text), foreign._flags()
    for effort in (host.QUICK, host.OPTIMIZED):
        name = host._name(host.command(), host.tuned(flags, effort), text)
        assert kept.found(name) == two_tiers / name


@needs.on_cpu
def test_only_what_has_worked_for_long_is_optimized(
    two_tiers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = jnp.arange(1000, dtype=jnp.int32)
    monkeypatch.setattr(host, "WORTH_SECONDS", 1e6)
    seldom = runs(showing(8))
    assert seldom(x)[0] == 1
    monkeypatch.setattr(host, "WORTH_SECONDS", 1e-6)
    often = runs(showing(9))
    assert often(x)[0] in (1, 2)
    host._beside[-1].join(60.0)
    assert often(x)[0] == 2
    assert seldom(x)[0] == 1
    assert [thread.is_alive() for thread in host._beside] == [True, False]


def test_a_later_process_begins_with_the_optimized_library(
    two_tiers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = foreign.with_entry(showing(2).text)
    first = host.load_soon(text, foreign._flags())
    assert host.wait(60.0)
    host.load_soon.cache_clear()
    host._loaded.cache_clear()
    monkeypatch.setattr(host, "compiled", None)
    later = host.load_soon(text, foreign._flags())
    assert later._name != first._name and not host._beside[-1].is_alive()


@needs.on_cpu
def test_where_the_optimized_library_cannot_be_made_the_quick_one_stays(
    two_tiers: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "cxx"
    probe = 'for each in "$@"; do case $each in *.cpp) grep -q LW_TIER $each && exit 1;; esac; done'
    real = " ".join(host.command())
    script.write_text(f'#!/bin/sh\ncase " $* " in *" -O3 "*) {probe};; esac\n{real} "$@"\n')
    script.chmod(0o700)
    monkeypatch.setenv("CXX", str(script))
    run = runs(showing(3))
    x = jnp.arange(2, dtype=jnp.int32)
    assert run(x) == [1, 2]
    assert host.wait(60.0)
    assert run(x) == [1, 2]


@needs.on_cpu
def test_optimized_at_once(two_tiers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWISE_COMPILE", "optimized")
    before = list(host._beside)
    assert runs(showing(4))(jnp.zeros(1, jnp.int32)) == [2]
    assert host._beside == before


@needs.on_cpu
def test_small_kernels_are_compiled_once(two_tiers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "LARGE", 1 << 30)
    before = list(host._beside)
    assert runs(showing(5))(jnp.zeros(1, jnp.int32)) == [2]
    assert host._beside == before


def test_a_run_under_way_takes_no_more_examples_from_what_is_superseded(two_tiers: Path) -> None:
    text = foreign.with_entry(showing(6).text)
    flags = foreign._flags()
    old, better = host.load(text, host.tuned(flags, host.QUICK)), host.load(text, flags)
    examples = 4_000_000
    x = np.zeros(examples, np.int32)
    given = [x, np.zeros_like(x), *(np.zeros_like(x) for _ in range(2))]
    arrays = [*given, np.zeros(examples, np.int64), np.zeros_like(x)]
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    run = host._Run(pointers, examples, 0, 0, 1, 0, 0)
    thread = threading.Thread(target=old.lanewise_work, args=(ctypes.byref(run),))
    thread.start()
    while not run.done and thread.is_alive():
        time.sleep(0)
    old.lanewise_take_over(ctypes.cast(better.lanewise_work, ctypes.c_void_p))
    thread.join()
    taken = run.next
    assert run.done == min(taken, examples)
    better.lanewise_work(ctypes.byref(run))
    assert run.done == examples
    answers = arrays[1]
    assert (answers[:taken] == 1).all() and (answers[taken:] == 2).all()


# Starts a compiler that would run for long, says so, and ends.
LEAVING = """
import os, signal, sys, threading, time
from pathlib import Path
from lanewise.cpp.toolchain import host
# It may have been started where interrupts are ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
host.LARGE, host.QUICK = 0, ("-O0",)
host.WORTH_SECONDS = 0.0
text = 'extern "C" { void lanewise_work() {} void lanewise_await_work(long long) {} void lanewise_hurry() {} }'
host.load_soon(text, ("-O3", "-shared", "-fPIC"))
pid = Path(sys.argv[1])
while not pid.exists() or not pid.read_text().strip():
    time.sleep(0.01)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "interrupted":
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    time.sleep(60)
"""


def test_the_compiler_beside_ends_with_the_process(tmp_path: Path) -> None:
    script = tmp_path / "leaving.py"
    script.write_text(LEAVING)
    ways = {"leaves": 0, "killed": -signal.SIGKILL, "interrupted": -signal.SIGINT}
    started = {}
    for way in ways:
        folder = tmp_path / way
        folder.mkdir()
        cxx = folder / "cxx"
        slow = f"sleep 1000 & echo $! > {folder}/pid; wait"
        real = " ".join(host.command())
        # What shows that the compiler knows its flags is soon there.
        cxx.write_text(
            '#!/bin/sh\nfor each in "$@"; do case $each in *.cpp) src=$each;; esac; done\n'
            f'case " $* " in *" -O3 "*) grep -q lanewise_probe $src || {{ {slow}; }};; esac\n'
            f'{real} "$@"\n'
        )
        cxx.chmod(0o700)
        about = {
            "CXX": str(cxx),
            "XDG_CACHE_HOME": str(folder),
            "PYTHONPATH": str(Path(lw.__file__).parents[1]),
        }
        started[way] = subprocess.Popen(
            [sys.executable, str(script), str(folder / "pid"), way],
            env={**os.environ, **about},
            stderr=subprocess.DEVNULL,
        )
    for way, status in ways.items():
        assert started[way].wait(120) == status
        assert not is_alive(int((tmp_path / way / "pid").read_text()))
        left = [path.suffix for path in (tmp_path / way / "lanewise" / "kernels").iterdir()]
        # A killed process cannot clean up.
        assert way == "killed" or set(left) == {".so"}


def test_a_forked_child_has_no_compilers(two_tiers: Path) -> None:
    with host._turns:
        host.load_soon(foreign.with_entry(showing(7).text), foreign._flags())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if not child:
            os._exit(0 if host.wait(0) and not host._at_work else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not host.wait(0)


def bits(case: Case, flags: tuple[str, ...]) -> list[bytes]:
    args = take(case.in_axes, batch(case.name), slice(SIZE))
    program, operands, varying = operands_of(case, args)
    emitted = kernel_or_obstacle(program, tuple(varying), Options())
    if not isinstance(emitted, Emitted):
        pytest.skip(f"it is no kernel: {emitted}")
    given = [words(x) for x in operands]
    ran = host.run(emitted, given, lanes_of(case.in_axes, args), capacity=FRAMES, flags=flags)
    return [answer.tobytes() for answer in (*ran.answers, ran.code, ran.steps)]


FEW = ("collatz", "newton_root", "recursive_nuts", "complex_rotation")
SAME_BITS = [
    pytest.param(case, id=case.name, marks=[] if case.name in FEW else [pytest.mark.slow])
    for case in CORPUS
]


@pytest.mark.parametrize("case", SAME_BITS)
def test_both_tiers_compute_the_same_bits(case: Case) -> None:
    best = bits(case, BEST)
    assert best == bits(case, host.tuned(BEST, host.OPTIMIZED))
    assert best == bits(case, host.tuned(BEST, host.QUICK))
