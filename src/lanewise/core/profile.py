"""What things cost on a platform: one set of thresholds for each, which travels with the job.

Costs are in *operations*: an operation of a lane by itself, about an eighth of a nanosecond on two cores of a CPU. On a
GPU the same unit counts what all its threads do, so what the host does there costs many of them. Values were found by
running the suite of `benchmarks/control.py` and its parts: those of `CPU` on two x86-64 cores with JAX 0.10, those of
`GPU` on an H200 with JAX 0.11. They need the right order of magnitude only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Profile:
    """The thresholds of a platform."""

    # The carrier that runs each lane by itself here; none where code may run anywhere.
    alone: str | None
    # A guard (a predicate that decides whether a block runs): below this a block runs whatever lanes are there.
    guard_operations: int
    # Running any block, whatever it does.
    block_operations: int
    # A tick: deciding what runs.
    tick_operations: int
    # Whether the host reads a predicate before it goes on. Then blocks that lanes cannot go round without have none,
    # and a branch is a `cond`: a loop of at most one turn, which a CPU prefers for its state in place, reads twice.
    host_reads_guards: bool
    # What a tile of lanes must be worth, many times what it costs to start one, and the most that its lanes keep: with
    # twice as much as a core's cache holds a matrix product took twice as long.
    tile_operations: float
    most_tile_bytes: float
    # Whether a machine narrows as its lanes end. A CPU runs blocks tile by tile, which adapts too.
    narrows: bool
    # A thread that walks by itself through a longer array is slower than all threads together.
    most_elements_a_thread: float
    # An operation of a matrix product, done for a lane by itself and for all lanes together. On a CPU both have vector
    # instructions: `benchmarks/device_profile.py` has 0.7 to 1.8 times from 16 to 256 rows, the suite up to 2.5.
    product_alone: float
    product_together: float
    # Taking an element of a lane out of its row by index, and putting it back.
    move_operations: float
    # The most scratch memory of a lane beside its stacks. A GPU has very many lanes in flight; a CPU one on each core,
    # where tapes and adjoints of large arrays may be.
    most_lane_bytes: int
    # Capacities of levels (`dynamic/envelope.py`) from one power of two to the next. On a CPU each row costs its work;
    # a GPU does thin levels at no cost, and XLA measures each new product before it compiles it.
    level_steps: int
    # From how many operations in the products of a call on a recursion is better off by levels than where lanes meet.
    # (Tree-LSTMs of widths 64, 128 and 256 train in 0.7, 0.46 and 0.45 of the time on a CPU; of 32, native is better.
    # On an H200 one of width 256 takes 3.2 ms forward where lanes that meet take 8.4, one of width 32 2.3 and 7.4.)
    level_products: float
    # From how many operations in the products of a block on, and up to how many lanes, calls that do not wait for one
    # another are made at the same time where values decide about calls. (Generation of trees, widths 128 and 256:
    # 1.4 to 2.2 times as fast as where lanes meet with up to 64 lanes, training 1.3 to 1.7 times; as fast with 256,
    # slower at a width of 64. Tree-LSTMs, whose trees are thin, are no faster with 16 lanes and slower with 64.)
    fork_products: float
    most_forking_lanes: int
    # Levels with fewer rows than this, from some level up to the last one, are run by a loop: on a CPU that takes no
    # longer, and compiles sooner than as many levels written out. On a GPU a turn of a loop costs many launches.
    thin_level: int
    # XLA's options for code of levels that is compiled separately. (On an H200 an envelope of a Tree-LSTM and its
    # gradient compile in 3 s without Triton's products, in 30 s with them, and run as fast. XLA for a CPU takes vectors
    # of 256 bits; with those of 512 that products take anyway, where there are such, a Tree-LSTM of width 32 takes 0.74
    # of the time forward and 0.89 in training, one of width 256 0.97.)
    level_options: tuple[tuple[str, bool | int], ...] = ()


CPU = Profile(
    alone="native",
    guard_operations=100_000,
    block_operations=2_000,
    tick_operations=10_000,
    host_reads_guards=False,
    tile_operations=2e6,
    most_tile_bytes=2 << 20,
    narrows=False,
    most_elements_a_thread=math.inf,
    product_alone=0.28,
    product_together=0.11,
    move_operations=8.0,
    most_lane_bytes=1 << 28,
    level_steps=16,
    level_products=1e5,
    fork_products=5e4,
    most_forking_lanes=32,
    thin_level=64,
    level_options=(("xla_cpu_prefer_vector_width", 512),),
)
GPU = Profile(
    alone="kernel",
    guard_operations=300_000_000,
    block_operations=100_000_000,
    tick_operations=3_000_000_000,
    host_reads_guards=True,
    tile_operations=3e10,
    most_tile_bytes=math.inf,
    narrows=True,
    most_elements_a_thread=1024,
    product_alone=1.0,
    product_together=1 / 12,
    move_operations=8.0,
    most_lane_bytes=1 << 18,
    level_steps=2,
    level_products=1e4,
    fork_products=math.inf,
    most_forking_lanes=0,
    thin_level=0,
    level_options=(("xla_gpu_enable_triton_gemm", False),),
)
# Other accelerators are started by a host, too; they have no carrier of their own.
_OTHER = replace(GPU, alone=None, level_options=())
# Code that may run anywhere, or is inside a lane of other code.
_ANYWHERE = replace(CPU, alone=None, level_options=())


def profile_of(platform: str | None) -> Profile:
    """The profile of a platform, by JAX's name for it; of none in particular without one.

    >>> profile_of("cpu").alone, profile_of("gpu").alone, profile_of(None).alone
    ('native', 'kernel', None)
    """
    if platform is None:
        return _ANYWHERE
    return {"cpu": CPU, "gpu": GPU}.get(platform, _OTHER)
