"""What every test shares."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator, Sequence

# Most of the time of the tests goes into compiling small programs that run once: LLVM need not try hard. What XLA makes
# of a program is the same. Flags that are set already come last, and win.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
    " --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters=true"
)
os.environ["XLA_FLAGS"] = f"{QUICK} {os.environ.get('XLA_FLAGS', '')}"

import jax  # noqa: E402
import pytest  # noqa: E402

import needs  # noqa: E402
from lanewise.cpp.toolchain import host  # noqa: E402

# Tracing makes many objects that live on: to look through all of them as often as Python does takes a sixth of it.
gc.set_threshold(100_000, 20, 100)


def quick_compiler(patch: pytest.MonkeyPatch) -> None:
    """Let the C++ compiler not try hard, either; the answers are the same bits."""
    patch.setattr(host, "FLAGS", tuple("-O1" if f == "-O3" else f for f in host.FLAGS))


@pytest.fixture(autouse=True, scope="session")
def _quick_compiler() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quick_compiler(patch)
        yield


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_code() -> Iterator[None]:
    """Drop compiled code after each file: thousands of executables would exhaust memory maps."""
    yield
    jax.clear_caches()


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Skip what is marked `slow`, unless LANEWISE_FULL is set."""
    if not needs.FULL:
        for item in items:
            if item.get_closest_marker("slow") is not None:
                item.add_marker(pytest.mark.skip(reason=needs.FULL_REASON))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped, why, and how to run them."""
    skipped = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    )
    if skipped:
        terminalreporter.section("skipped here, and how to run it")
    for reason, count in skipped.most_common():
        terminalreporter.line(f"{count:5d}  {reason}")
