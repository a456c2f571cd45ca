"""AD overhead: the time of a gradient over the time of its function, ours beside plain JAX and PyTorch.

    python benchmarks/ad.py [--programs ba gmm_1k_d64_k200] [--repeats 5] [--cpu-time] [--device cpu]

One line a benchmark: each system's gradient over its own function and, in brackets, over the fastest function among
the systems. Then the claims. PyTorch is measured as it is and, where that works, by `torch.compile`. Benchmarks
marked large run only where they are named, or on a GPU. The benchmarks are in the package of the same name, which
`import ad` finds first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import jax

import _plot
from _harness import Claim, report, use_device, usual_arguments
from ad import SUITE, Entry
from ad.measure import COMPILED, EAGER, Disagree, Measured, measure
from lanewise.core.errors import LanewiseError


def chosen(programs: Sequence[str]) -> list[Entry]:
    """The benchmarks asked for; all that are not too large for this device if none is named."""
    unknown = set(programs) - {entry.key for entry in SUITE}
    if unknown:
        known = " ".join(entry.key for entry in SUITE)
        raise SystemExit(f"--programs: no {', '.join(sorted(unknown))} here; there are: {known}")
    if programs:
        return [entry for entry in SUITE if entry.key in programs]
    return [entry for entry in SUITE if not entry.large or jax.default_backend() == "gpu"]


def main() -> None:
    parser = usual_arguments(__doc__)
    parser.add_argument("--programs", nargs="*", default=[], help="names as ba or hand_simple")
    parser.add_argument(
        "--cpu-time", action="store_true", help="time that threads had a core: for a busy machine"
    )
    parser.add_argument("--eager", action="store_true", help="leave out torch.compile")
    options = parser.parse_args()
    use_device(options.device)

    results: list[Measured] = []
    claims: list[Claim] = []
    device = jax.default_backend()
    clock = time.process_time if options.cpu_time else time.perf_counter
    for entry in chosen(options.programs):
        try:
            measured = measure(entry, options.repeats, clock, not options.eager)
        except (LanewiseError, Disagree) as refused:
            print(f"{entry.name}: left out, {refused}", flush=True)
            continue
        print(measured.line(), flush=True)
        results.append(measured)
        claims += measured.claims(device)
    if options.plot:
        for who in ("ours", "JAX", EAGER, COMPILED):
            ratios = {m.entry.name: m.overhead(who) for m in results if who in m.times}
            title = f"gradient over function, {who}, {device}"
            _plot.bars(f"ad_{device}_{who.lower()}", title, ratios, None, "overhead")
    report(claims)


if __name__ == "__main__":
    main()
