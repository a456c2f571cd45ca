"""Placed parts and offloaded loops on a GPU.

An LSTM whose saved state is four times what the process is allowed of the device's memory, with `offload="host"`,
against one that fits, in time per step of the sequence; what `checkpoints="sqrt"` takes, and what the copies take
alone, are printed beside it. Then one program with places on the CPU and on the GPU: its answers and gradients
against one device, round trips a second, and an actor-learner loop against control on the host.

    python benchmarks/place_gpu.py [--only offload places] [--small] [--repeats 3] [--seconds 540]

The first case says whether copies overlap with what is computed: with streams of XLA's for copies and without, an
iteration a turn and two (`place/two_at_a_time.py`), and which streams did what. It takes less than two minutes:

    python benchmarks/place_gpu.py --only offload --case 0 --repeats 3 --seconds 115

Each setting of a case is a process of its own, with its own limit of time; what fails is printed, and the rest goes on.
XLA ends a process at a flag that it does not have, so such flags are left out. With OUT set, compiled code and profiles
are written to that folder. `--small` is for trying it without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _harness import Claim, report

HERE = Path(__file__).parent
SOURCES = HERE.parent / "src"
# Copies begin as early as they can and end as late.
HIDING = "--xla_gpu_enable_latency_hiding_scheduler=true"
# They have streams to run on beside the one that computes.
STREAMS = "--xla_gpu_executable_num_compute_streams=4"
BYTES = 4
# Of what a step saves: four gates and the memory.
SAVED_ROWS = 5


@dataclass(frozen=True)
class Setting:
    """How an LSTM is compiled, and what is measured with it, in a process of its own."""

    name: str = ""
    flags: str = f"{HIDING} {STREAMS}"
    modes: tuple[str, ...] = ("fits", "offload", "sqrt", "copies alone")
    profile: bool = False


@dataclass(frozen=True)
class Case:
    """An LSTM. `saved` is how many bytes it saves, of which a quarter is allowed."""

    name: str
    width: int
    precision: str
    saved: float
    settings: tuple[Setting, ...] = (Setting(),)
    batch: int = 512
    limited: bool = True
    target: str | None = "<= 1.15"

    @property
    def steps(self) -> int:
        """One more than the iterations of its loop, which are even."""
        return int(self.saved / (SAVED_ROWS * self.batch * self.width * BYTES)) | 1


BOTH = ("fits", "offload", "offload, two a turn")

# In float32 as in Yu et al. 2018. With the tensor cores' 19 bits a product takes a sixth of the time, and a step
# computes for less time than its copies take unless it is much wider.
CASES = (
    Case(
        "width 2048, float32",
        2048,
        "highest",
        12e9,
        (
            Setting("streams for copies", modes=BOTH, profile=True),
            Setting("no streams for copies", HIDING, BOTH),
        ),
    ),
    Case(
        "width 2048, float32, without the scheduler",
        2048,
        "highest",
        12e9,
        (Setting(flags="", modes=("fits", "offload", "copies alone")),),
        target=None,
    ),
    Case("width 512, float32", 512, "highest", 8e9),
    Case(
        "width 2048, float32, pipelined by XLA",
        2048,
        "highest",
        12e9,
        (
            Setting(
                flags=f"{HIDING} {STREAMS} --xla_gpu_enable_pipelined_host_offloading=true",
                modes=("fits", "offload", "JAX's own offloading"),
            ),
        ),
        target=None,
    ),
    Case("width 4096, default precision", 4096, "default", 16e9),
    Case(
        "width 2048, float32, no limit",
        2048,
        "highest",
        12e9,
        (Setting(modes=("all on the device", "offload", "JAX's own offloading")),),
        limited=False,
        target=None,
    ),
    Case(
        "width 2048, float32, what else",
        2048,
        "highest",
        12e9,
        (Setting(modes=("fits", "offload", "sqrt", "copies alone", "all on the device")),),
    ),
)


def known(flags: str) -> str:
    """Those of the flags that the installed XLA has."""
    found = flags.split()
    for library in libraries():
        with (
            library.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
        ):
            if text.find(b"xla_gpu_enable_latency_hiding_scheduler") < 0:
                continue
            for flag in list(found):
                if text.find(flag.partition("=")[0].removeprefix("--").encode()) < 0:
                    print(f"{library.name} has no flag {flag}: left out", flush=True)
                    found.remove(flag)
    return " ".join(found)


def libraries() -> list[Path]:
    """The libraries that read flags of XLA."""
    found: list[Path] = []
    for name, inside in (("jaxlib", "*.so"), ("jax_plugins", "*/*.so")):
        spec = importlib.util.find_spec(name)
        for folder in (spec and spec.submodule_search_locations) or ():
            found += sorted(Path(folder).glob(inside))
    return found


def device_bytes() -> float:
    """The memory of the GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return float(found.stdout.split()[0]) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 143771 * 2**20


def ran(name: str, command: list[str], environment: dict[str, str], seconds: float) -> list[Any]:
    """What a process measures, which prints as it goes and has a limit in seconds."""
    print(f"{name}:", flush=True)
    paths = os.pathsep.join(map(str, (HERE, SOURCES)))
    inherited = {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command,
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    found: list[Any] = []
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("MEASURED "):
            found.append(json.loads(line.removeprefix("MEASURED ")))
        else:
            print(line.rstrip()[:400], flush=True)
    status = process.wait()
    timer.cancel()
    if status:
        print(f"  it ended with status {status}, after at most {seconds:.0f} s", flush=True)
    return found


def offloaded(
    case: Case, setting: Setting, whole: float, small: bool, repeats: int, seconds: float
) -> list[Claim]:
    steps = 65 if small else case.steps
    label = ", ".join(filter(None, (case.name, setting.name)))
    asked = {
        "label": label,
        "width": 32 if small else case.width,
        "batch": 8 if small else case.batch,
        "steps": steps,
        "fits": steps // 16,
        "profile": setting.profile,
        "precision": case.precision,
        "modes": setting.modes,
        "repeats": repeats,
    }
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"} if case.limited else {}
    if case.limited and not small:
        environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{case.saved / 4 / whole:.5f}"
    flags = known(setting.flags)
    environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    command = [sys.executable, "-m", "place.offloaded", json.dumps(asked)]
    began = time.perf_counter()
    lines = ran(
        f"LSTM, {label}, {steps} steps, {flags or 'no flags'}", command, environment, seconds
    )
    took = {line["name"]: line["seconds"] for line in lines if "seconds" in line}
    for name, found in took.items():
        print(f"  {name}: {1e6 * found:.1f} µs a step of the sequence", flush=True)
    print(f"  {time.perf_counter() - began:.0f} s in all", flush=True)
    least = took.get("fits") or took.get("all on the device")
    claims: list[Claim] = []
    for name in ("offload", "offload, two a turn"):
        if least is None or name not in took:
            continue
        moved = 2 * SAVED_ROWS * asked["batch"] * asked["width"] * BYTES
        print(
            f"  {name} over what fits: {took[name] / least:.3f}; {moved / took[name] / 1e9:.1f} GB/s there and back"
            " together",
            flush=True,
        )
        if case.target is not None:
            about = f"{name}: LSTM, {label}, over one that fits"
            claims.append(Claim(about, took[name], least, case.target))
    return claims


def places(repeats: int, seconds: float) -> list[Claim]:
    command = [sys.executable, "-m", "place.mixed", str(repeats)]
    lines = ran(
        "places on the CPU and the GPU",
        command,
        {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        seconds,
    )
    return [Claim(line["claim"], line["ours"], line["peer"], line["target"]) for line in lines]


def changed(case: Case, options: argparse.Namespace) -> Case:
    """A case as the command line wants it."""
    new: dict[str, Any] = {}
    if options.profile:
        new["profile"] = True
    if options.flags is not None:
        new["flags"] = options.flags
    if options.modes is not None:
        new["modes"] = tuple(options.modes)
    settings = tuple(dataclasses.replace(setting, **new) for setting in case.settings)
    case = dataclasses.replace(case, settings=settings)
    if options.no_limit:
        case = dataclasses.replace(case, limited=False, target=None)
    return case if options.saved is None else dataclasses.replace(case, saved=options.saved)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--only", nargs="*", choices=("offload", "places"), default=("offload", "places")
    )
    parser.add_argument(
        "--case", type=int, nargs="*", default=range(len(CASES)), help="of the LSTM, by number"
    )
    parser.add_argument("--profile", action="store_true", help="show which streams do what")
    parser.add_argument("--flags", help="of XLA, in place of each setting's own")
    parser.add_argument("--saved", type=float, help="bytes, in place of each case's own")
    parser.add_argument("--no-limit", action="store_true", help="allow all of the memory")
    parser.add_argument("--modes", nargs="*", help="contenders, in place of each setting's own")
    parser.add_argument("--small", action="store_true", help="small sizes, for any device")
    parser.add_argument("--seconds", type=float, default=540.0, help="for all of it")
    options = parser.parse_args()
    if not options.small and not any(Path("/dev").glob("nvidia[0-9]*")):
        # JAX is not asked: it would take the memory that a case is to have.
        print("there is no NVIDIA GPU here; --small tries it on any device")
        return
    until = time.monotonic() + options.seconds
    claims: list[Claim] = []
    if "places" in options.only:
        claims += places(options.repeats, min(150.0, options.seconds))
    if "offload" in options.only:
        whole = device_bytes()
        print(f"the device has {whole / 1e9:.1f} GB", flush=True)
        for number in options.case:
            case = changed(CASES[number], options)
            for number, setting in enumerate(case.settings, 1):
                left = until - time.monotonic() - 35 * (len(case.settings) - number)
                if left < 20:
                    print(f"LSTM, {case.name}, {setting.name}: no time is left for it", flush=True)
                    continue
                claims += offloaded(
                    case, setting, whole, options.small, options.repeats, min(left, 170.0)
                )
    report(claims)


if __name__ == "__main__":
    main()
