"""Placed parts and offloaded loops on a GPU.

An LSTM whose saved state is four times what the process is allowed of the device's memory, with `offload="host"`,
against one that fits, in time per step of the sequence; what `checkpoints="sqrt"` takes, and what the copies take
alone, are printed beside it. Then one program with places on the CPU and on the GPU: its answers and gradients
against one device, round trips a second, and an actor-learner loop against control on the host.

    python benchmarks/place_gpu.py [--only offload places] [--small] [--repeats 3] [--seconds 540]

Each case is a process of its own, with its own limit of time; what fails is printed, and the rest goes on. With OUT
set, compiled code is written to that folder. `--small` is for trying it without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
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
# Copies begin as early as they can and end as late, and have a stream to run on beside the one that computes.
HIDING = "--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_executable_num_compute_streams=4"
BYTES = 4
# Of what a step saves: four gates and the memory.
SAVED_ROWS = 5


@dataclass(frozen=True)
class Case:
    """An LSTM and how it is compiled. `saved` is how many bytes it saves, of which a quarter is allowed."""

    name: str
    width: int
    precision: str
    saved: float
    flags: str = HIDING
    batch: int = 512
    limited: bool = True
    modes: tuple[str, ...] = ("fits", "offload", "sqrt", "copies alone", "all on the device")
    target: str | None = "<= 1.15"
    profile: bool = False

    @property
    def steps(self) -> int:
        return int(self.saved / (SAVED_ROWS * self.batch * self.width * BYTES))


# In float32 as in Yu et al. 2018. With the tensor cores' 19 bits a product takes a sixth of the time, and a step
# computes for less time than its copies take unless it is much wider.
CASES = (
    Case("width 2048, float32", 2048, "highest", 12e9),
    Case(
        "width 2048, float32, without the scheduler",
        2048,
        "highest",
        12e9,
        flags="",
        modes=("fits", "offload", "copies alone"),
        target=None,
    ),
    Case(
        "width 512, float32", 512, "highest", 8e9, modes=("fits", "offload", "sqrt", "copies alone")
    ),
    Case(
        "width 2048, float32, pipelined by XLA",
        2048,
        "highest",
        12e9,
        flags=f"{HIDING} --xla_gpu_enable_pipelined_host_offloading=true",
        modes=("fits", "offload", "JAX's own offloading"),
        target=None,
    ),
    Case(
        "width 4096, default precision",
        4096,
        "default",
        16e9,
        modes=("fits", "offload", "sqrt", "copies alone"),
    ),
    Case(
        "width 2048, float32, no limit",
        2048,
        "highest",
        12e9,
        limited=False,
        modes=("all on the device", "offload", "JAX's own offloading"),
        target=None,
    ),
)


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


def offloaded(case: Case, whole: float, small: bool, repeats: int, seconds: float) -> list[Claim]:
    steps = 64 if small else case.steps
    asked = {
        "label": case.name,
        "width": 32 if small else case.width,
        "batch": 8 if small else case.batch,
        "steps": steps,
        "fits": steps // 16,
        "profile": case.profile,
        "precision": case.precision,
        "modes": case.modes,
        "repeats": repeats,
    }
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"} if case.limited else {}
    if case.limited and not small:
        environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{case.saved / 4 / whole:.5f}"
    if not small:
        environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {case.flags}".strip()
    command = [sys.executable, "-m", "place.offloaded", json.dumps(asked)]
    began = time.perf_counter()
    lines = ran(f"LSTM, {case.name}, {steps} steps", command, environment, seconds)
    took = {line["name"]: line["seconds"] for line in lines if "seconds" in line}
    for name, found in took.items():
        print(f"  {name}: {1e6 * found:.1f} µs a step of the sequence", flush=True)
    both = took.get("offload"), took.get("fits") or took.get("all on the device")
    if both[0] and both[1]:
        moved = 2 * SAVED_ROWS * asked["batch"] * asked["width"] * BYTES
        print(
            f"  offload over what fits: {both[0] / both[1]:.3f}; {moved / both[0] / 1e9:.1f} GB/s there and"
            f" back together; {time.perf_counter() - began:.0f} s in all",
            flush=True,
        )
    if both[0] is None or both[1] is None or case.target is None:
        return []
    return [Claim(f"offload: LSTM, {case.name}, over one that fits", both[0], both[1], case.target)]


def places(repeats: int, seconds: float) -> list[Claim]:
    command = [sys.executable, "-m", "place.mixed", str(repeats)]
    lines = ran(
        "places on the CPU and the GPU",
        command,
        {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        seconds,
    )
    return [Claim(line["claim"], line["ours"], line["peer"], line["target"]) for line in lines]


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
    parser.add_argument("--flags", help="of XLA, in place of each case's own")
    parser.add_argument("--saved", type=float, help="bytes, in place of each case's own")
    parser.add_argument("--no-limit", action="store_true", help="allow all of the memory")
    parser.add_argument("--modes", nargs="*", help="contenders, in place of each case's own")
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
            case = dataclasses.replace(CASES[number], profile=options.profile)
            if options.flags is not None:
                case = dataclasses.replace(case, flags=options.flags)
            if options.no_limit:
                case = dataclasses.replace(case, limited=False, target=None)
            if options.saved is not None:
                case = dataclasses.replace(case, saved=options.saved)
            if options.modes is not None:
                case = dataclasses.replace(case, modes=tuple(options.modes))
            left = until - time.monotonic()
            if left < 20:
                print(f"LSTM, {case.name}: no time is left for it", flush=True)
                continue
            claims += offloaded(case, whole, options.small, options.repeats, min(left, 170.0))
    report(claims)


if __name__ == "__main__":
    main()
