"""`lanewise doctor`: what is installed, what is there to run on, and which carriers really run here.

Each check gives findings; a finding that is not well says how to fix it. What is essential is what every user meets:
versions in the declared range, a device, `ticks`, and the carrier that `auto` would pick on this device. A missing
extra, or a machine without a GPU, is reported and is no failure.
"""

from __future__ import annotations

import enum
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from packaging.requirements import Requirement
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

import lanewise as lw
from lanewise.cpp.toolchain import cache, device, foreign, host

LEAST_PYTHON = (3, 11)
# The extras that a user of the library may want; the others are for working on it.
EXTRAS = ("cli", "watch", "mcmc", "cuda")
EXAMPLES = 12


class State(enum.Enum):
    """How a thing is: the mark it is shown with, and its style."""

    WELL = ("✓", "green")
    ABSENT = ("–", "dim")
    WORSE = ("!", "yellow")
    BROKEN = ("✗", "bold red")


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    what: str
    state: State
    detail: str
    fix: str = ""


@lw.program
def fibonacci(n: Any) -> Any:
    """A small program with all that a carrier must manage: a branch, recursion and stacks."""
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


def checks() -> dict[str, Callable[[], Iterator[Finding]]]:
    """What is checked, by the heading it is shown under."""
    return {"versions": versions, "devices": devices, "carriers": carriers, "extras": extras}


def looked(title: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """What a check finds, if need be that it could not be ended."""
    found: list[Finding] = []
    try:
        found.extend(check())
    except Exception as error:
        found.append(Finding(title, State.BROKEN, first_line(error), "fix what is shown above."))
    return found


def versions() -> Iterator[Finding]:
    """Python, Lanewise and what it needs, against the ranges that the package declares."""
    if sys.version_info >= LEAST_PYTHON:
        yield Finding("Python", State.WELL, platform.python_version())
    else:
        least = ".".join(map(str, LEAST_PYTHON))
        yield Finding(
            "Python", State.BROKEN, platform.python_version(), f"install Python {least} or newer."
        )
    needed = requirements()
    if needed is None:
        yield Finding(
            "lanewise",
            State.WORSE,
            "not installed as a package: imported from a source tree",
            "pip install -e . in that tree; what it needs is then checked too.",
        )
        needed = [Requirement(name) for name in ("jax", "numpy", "equinox")]
    else:
        yield Finding("lanewise", State.WELL, importlib.metadata.version("lanewise"))
    core = [need for need in needed if need.marker is None]
    for need in [*core, Requirement("jaxlib")]:
        yield _version(need, State.BROKEN)


def requirements() -> list[Requirement] | None:
    """What the installed package says it needs; None where there is no installed package."""
    try:
        declared = importlib.metadata.requires("lanewise")
    except importlib.metadata.PackageNotFoundError:
        return None
    return [Requirement(text) for text in declared or ()]


def _version(need: Requirement, if_not: State) -> Finding:
    wanted = f"{need.name}{need.specifier}"
    install = f'pip install "{wanted}"'
    try:
        found = importlib.metadata.version(need.name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(need.name, if_not, "not installed", install)
    if not need.specifier.contains(found, prereleases=True):
        return Finding(need.name, if_not, f"{found}, and {wanted} is needed", install)
    return Finding(need.name, State.WELL, found)


def devices() -> Iterator[Finding]:
    """What JAX can run on."""
    try:
        found = jax.devices()
    except Exception as error:
        asked = os.environ.get("JAX_PLATFORMS")
        why = f"JAX_PLATFORMS={asked!r} is not there" if asked else "JAX finds no device"
        fix = "unset JAX_PLATFORMS, or " if asked else ""
        yield Finding(
            "JAX",
            State.BROKEN,
            f"{why}: {first_line(error)}",
            f"{fix}install the JAX that fits this machine.",
        )
        return
    for one in found:
        yield Finding(f"{one.platform} {one.id}", State.WELL, one.device_kind)
    if not any(one.platform == "gpu" for one in found) and _has_nvidia_driver():
        yield Finding(
            "NVIDIA GPU",
            State.WORSE,
            "a driver is there, and JAX sees no GPU",
            'pip install "lanewise[cuda]"',
        )


def _has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or bool(shutil.which("nvidia-smi"))


def carriers() -> Iterator[Finding]:
    """Each carrier, tried on a small recursive program against plain Python."""
    yield _tried("ticks", f"runs on {jax.default_backend()}")
    with jax.default_device(jax.devices("cpu")[0]):
        yield _native()
    yield _kernel()
    yield _cached_kernels()


def _tried(carrier: str, detail: str, fix: str = "") -> Finding:
    """Run a program on a carrier; what comes out must be what Python says."""
    numbers = np.arange(EXAMPLES, dtype=np.int32)
    expected = [0, 1]
    while len(expected) < EXAMPLES:
        expected.append(expected[-1] + expected[-2])
    try:
        answers = np.asarray(lw.vmap(fibonacci, carrier=carrier)(numbers)).tolist()
    except Exception as error:
        return Finding(carrier, State.BROKEN, first_line(error), fix or _report(carrier))
    if answers != expected:
        return Finding(carrier, State.BROKEN, f"wrong answers: {answers}", _report(carrier))
    return Finding(carrier, State.WELL, detail)


def _report(carrier: str) -> str:
    other = "ticks" if carrier != "ticks" else "native"
    return f'report it with this output; carrier="{other}" may run meanwhile.'


def _native() -> Finding:
    if foreign.available():
        return _tried("native", f"runs on the CPU, compiled by {' '.join(host.command())}")
    tried = _tried("native", "runs on the CPU by XLA's own code, two to four times slower")
    if tried.state is not State.WELL:
        return tried
    why = f"not by a C++ compiler: {foreign.obstacle()}"
    fix = "install g++ or clang++ with its C headers, or set CXX to one that works."
    return Finding("native", State.WORSE, f"{tried.detail}: {why}", fix)


def _kernel() -> Finding:
    if not any(one.platform == "gpu" for one in jax.devices()):
        return Finding("kernel", State.ABSENT, "there is no NVIDIA GPU here")
    if not device.available():
        return Finding(
            "kernel",
            State.WORSE,
            "there is a GPU, and NVIDIA's cuda-bindings are missing",
            'pip install "lanewise[cuda]"',
        )
    fix = 'bring driver and CUDA packages to one version: pip install -U "lanewise[cuda]"'
    return _tried("kernel", "runs on the GPU, compiled by NVRTC", fix)


def _cached_kernels() -> Finding:
    """Where compiled programs are cached: tried by writing a file."""
    problem = cache.problem()
    if problem is None:
        return Finding("cached kernels", State.WELL, str(cache.wanted()))
    return Finding(
        "cached kernels",
        State.WORSE,
        f"the cache folder cannot be used, so programs are compiled again in each process: {problem}",
        "set XDG_CACHE_HOME to a folder of yours.",
    )


def extras() -> Iterator[Finding]:
    """Which optional parts are installed."""
    needed = requirements()
    if needed is None:
        yield Finding("extras", State.ABSENT, "known for an installed package only")
        return
    for extra in EXTRAS:
        wanted = [
            need
            for need in needed
            if need.marker is not None
            and need.marker.evaluate({"extra": extra})
            and not need.marker.evaluate({"extra": ""})
        ]
        amiss = [one for one in (_version(need, State.ABSENT) for need in wanted) if one.fix]
        if amiss:
            names = ", ".join(
                f"{one.what} ({one.detail})" if "," in one.detail else one.what for one in amiss
            )
            yield Finding(
                extra, State.ABSENT, f"not installed: {names}", f'pip install "lanewise[{extra}]"'
            )
        else:
            yield Finding(extra, State.WELL, "installed")


def first_line(error: BaseException) -> str:
    """An error in a line.

    >>> first_line(ValueError("no such thing\\n  more"))
    'ValueError: no such thing'
    """
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".rstrip(": ")


def table(title: str, found: Iterable[Finding]) -> RenderableType:
    """Findings under a heading, with what to do about those that are not well."""
    shown = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        show_header=False,
        padding=(0, 2, 0, 0),
    )
    shown.add_column(no_wrap=True)
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    for one in found:
        detail = Text(one.detail)
        if one.fix:
            detail.append(
                f"\n→ {one.fix}", style="yellow" if one.state is not State.ABSENT else "dim"
            )
        shown.add_row(Text(*one.state.value), Text(one.what), detail)
    return shown
