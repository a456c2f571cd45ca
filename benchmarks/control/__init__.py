"""The control-flow suite: programs whose lanes part ways, each beside its `jax.vmap` twin.

Every program is written three times: as plain Python for Lanewise (or, where it is a library's, lifted
as it is), in `lax` form for `jax.vmap`, and, where it is natural, by hand for the machine itself (Numba
in `numba_limits`, CUDA C in `cuda_limits`). `benchmarks/control.py` runs them; `case.py` says what a
program of the suite is.
"""

from control import decoding, games, iteration, networks, nuts, recursion, sampling, solving, steady
from control.case import Case, Entry

SUITE: tuple[Entry, ...] = (
    *iteration.ENTRIES,
    *recursion.ENTRIES,
    *solving.ENTRIES,
    *sampling.ENTRIES,
    *nuts.ENTRIES,
    *games.ENTRIES,
    *decoding.ENTRIES,
    *networks.ENTRIES,
    *steady.ENTRIES,
)

__all__ = ["SUITE", "Case", "Entry"]
