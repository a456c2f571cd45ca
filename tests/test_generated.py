"""Random programs: Lanewise gives what plain Python gives, lane by lane and bit for bit.

Reproducible by default: the same programs at every run. Switches, by environment variable:

* `LANEWISE_PROGRAMS` (60, or 520 in `make test-full`): how many programs;
* `LANEWISE_RANDOM=1`: new programs at each run; the seeds are printed with a failure;
* `LANEWISE_SHRINK=1`: look for a smaller failing program (slow: every try compiles).

Every second program is compared under one schedule, the schedules taking turns, so that every shard meets them all; the
others through the carrier `native`. Every tenth is also called alone, every tenth under `jax.disable_jit`, one in each
shard through `schedule="local"`. Of a few more, gradients by reverse mode are compared with forward mode, in all lanes.
"""

from __future__ import annotations

import collections
import os
import secrets
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

import lanewise as lw
import needs
from generate import LANES, Generated, float_total, load, programs, run_plainly, substantial

PROGRAMS = int(os.environ.get("LANEWISE_PROGRAMS", "520" if needs.FULL else "60"))
RANDOM = os.environ.get("LANEWISE_RANDOM", "") not in ("", "0")
SHRINK = os.environ.get("LANEWISE_SHRINK", "") not in ("", "0")
SHARDS = max(1, min(20, PROGRAMS // 20))
PER_SHARD = -(-PROGRAMS // SHARDS)
GRADIENTS = max(PROGRAMS // 26, 1)
SCHEDULES = ("auto", "lowest", "most", "sweep")

UNHURRIED = (HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large)


def assert_lane(got: Any, want: Any, program: Generated, how: str, lane: int) -> None:
    ours, theirs = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(ours) == len(theirs)
    for mine, plain in zip(ours, theirs):
        dtype = np.asarray(plain).dtype
        same = mine.dtype == dtype and np.array_equal(
            mine, np.asarray(plain), equal_nan=dtype.kind == "f"
        )
        if not same:
            raise AssertionError(
                f"{how}, lane {lane}: {mine!r} ({mine.dtype}); plain Python: {plain!r} ({dtype})"
                f"\n{program!r}"
            )


def way_to_run(serial: int) -> dict[str, str]:
    """Every second program runs one lane at a time, in compiled code; for the others the schedules take turns."""
    if serial % 2:
        return {"carrier": "native"}
    return {"schedule": SCHEDULES[(serial // 2) % len(SCHEDULES)]}


def check(program: Generated, serial: int) -> None:
    want = run_plainly(program)
    main = load(program.source, lw.program, f"program {serial}")

    def batched(**how: Any) -> Any:
        return lw.vmap(main, in_axes=program.in_axes, **how)

    how = way_to_run(serial)
    got = jax.device_get(jax.jit(batched(**how))(*program.arguments))
    for lane in range(LANES):
        answer = jax.tree.map(lambda leaf: leaf[lane], got)
        assert_lane(answer, want[lane], program, f"{how}", lane)

    if serial % 10 == 0:
        lone = jax.jit(main)
        for lane in range(LANES):
            answer = jax.device_get(lone(*program.lane(lane)))
            assert_lane(answer, want[lane], program, "a lone call", lane)
    if serial % 10 == 1:
        with jax.disable_jit():
            answer = jax.device_get(main(*(jax.numpy.asarray(a) for a in program.lane(0))))
        values = jax.tree.map(lambda a, b: np.asarray(a, np.asarray(b).dtype), answer, want[0])
        assert_lane(values, want[0], program, "under disable_jit", 0)
    if serial == 2:
        got = jax.device_get(batched(schedule="local")(*program.arguments))
        for lane in range(LANES):
            answer = jax.tree.map(lambda leaf: leaf[lane], got)
            assert_lane(answer, want[lane], program, "schedule 'local'", lane)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_generated_programs(shard: int) -> None:
    seed = secrets.randbits(32) if RANDOM else shard
    seen: set[str] = set()
    failed: dict[str, int] = {}
    schedules: collections.Counter[str] = collections.Counter()

    @hypothesis.seed(seed)
    @settings(
        max_examples=PER_SHARD,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if SHRINK else (Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=UNHURRIED,
    )
    @hypothesis.given(programs())
    def compare(program: Generated) -> None:
        if not SHRINK and program.source not in failed:
            hypothesis.assume(substantial(program.source) and program.source not in seen)
        seen.add(program.source)
        # Hypothesis runs a failing program again before it reports it, and smaller ones where it shrinks: they all
        # run the way the first of them failed.
        serial = next(iter(failed.values()), len(seen))
        how = way_to_run(serial)
        if "schedule" in how:
            schedules[how["schedule"]] += 1
        hypothesis.note(f"seed {seed}, {how}\n{program!r}")
        failed[program.source] = serial
        check(program, serial)
        del failed[program.source]

    compare()
    jax.clear_caches()
    assert len(seen) >= PER_SHARD
    if PER_SHARD >= 2 * len(SCHEDULES):
        assert set(schedules) == set(SCHEDULES), schedules


def check_gradients(program: Generated, serial: int) -> bool:
    """Whether there is anything to compare: reverse mode and forward mode, by the float arguments, in every lane."""
    main = load(program.source, lw.program, f"gradient {serial}").with_options(
        checkpoints=("auto", "all", "sqrt", 3)[serial % 4], tape=64
    )
    active, total = float_total(program, main)
    axes = list(program.in_axes)
    args = [jax.numpy.asarray(a) for a in program.arguments]
    moved, moved_axes = [args[at] for at in active], [axes[at] for at in active]

    @jax.jit
    def both(moved: list[Any], args: list[Any]) -> Any:
        ones = [jax.numpy.ones_like(x) for x in moved]
        each = jax.vmap(total, (moved_axes, axes), axis_size=LANES)
        slopes = jax.jvp(lambda moved: each(moved, args), (moved,), (ones,))[1]
        rows = jax.vmap(jax.grad(total), (moved_axes, axes), axis_size=LANES)(moved, args)
        return slopes, sum(row.reshape(LANES, -1).sum(1) for row in rows)

    slopes, found = jax.device_get(both(moved, args)) if active else (np.zeros(1),) * 2
    fine = np.isfinite(slopes)
    np.testing.assert_allclose(
        found[fine], slopes[fine], rtol=1e-4, atol=1e-4, err_msg=repr(program)
    )
    return bool(np.any(slopes[fine] != 0))


@pytest.mark.slow
def test_gradients_of_generated_programs() -> None:
    nonzero = 0

    @hypothesis.seed(secrets.randbits(32) if RANDOM else 1000)
    @settings(
        max_examples=GRADIENTS,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=UNHURRIED,
    )
    @hypothesis.given(programs())
    def compare(program: Generated) -> None:
        nonlocal nonzero
        hypothesis.assume(substantial(program.source))
        hypothesis.assume(any(a.dtype == np.float32 for a in program.arguments))
        nonzero += check_gradients(program, nonzero)

    compare()
    assert nonzero >= GRADIENTS // 3


def test_the_generator_covers_its_language() -> None:
    """Every construct appears in a good share of programs, and lanes give different answers."""
    sources: list[str] = []
    varied: list[bool] = []

    @hypothesis.seed(0)
    @settings(
        max_examples=200,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=UNHURRIED,
    )
    @hypothesis.given(programs())
    def collect(program: Generated) -> None:
        hypothesis.assume(substantial(program.source))
        sources.append(program.source)
        varied.append(len({repr(answer) for answer in run_plainly(program)}) > 1)

    collect()
    share = {
        construct: sum(construct in source for source in sources) / len(sources)
        for construct in (
            *(
                "while (",
                "while True",
                "for each_",
                "in range(",
                "break",
                "continue",
                "elif",
                "else:",
            ),
            *(" if ", " and ", " or ", "not (", "f0(", "f1(", ".at[", ".set(", "uint8(", '["n"]'),
            *("        return", " += ", "float32(", "int32("),
        )
    }
    assert min(share.values()) > 0.05, share
    assert sum(varied) > 0.9 * len(varied)
