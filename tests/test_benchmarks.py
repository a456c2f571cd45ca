"""The control-flow suite of `benchmarks/` computes what it claims: all forms of a program agree.

At few lanes and small sizes; nothing is timed here. The CUDA sources run through the host's C++ compiler,
a lane at a time, with a few lines in place of CUDA's own words.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest

import needs
from _models import MODELS
from control import SUITE, Entry
from control.cuda_limits import LIMITS as CUDA_LIMITS
from control.measure import check, on_host, ours

LANES = 8

CUDA_WORDS = r"""
#include <math.h>
struct uint2 { unsigned x, y; };
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static unsigned __funnelshift_l(unsigned low, unsigned high, int by) {
  return high << by | low >> (32 - by);
}
struct Index { int x; };
static Index blockIdx{0}, blockDim{1}, threadIdx{0};
extern "C" void select_lane(int lane) { blockIdx.x = lane; }
#define __global__
#define __device__ static
#define __noinline__
#define __forceinline__ inline
"""


def by_key(key: str) -> Entry:
    return next(entry for entry in SUITE if entry.key == key)


@pytest.mark.parametrize("entry", needs.in_turns(SUITE), ids=lambda entry: entry.key)
def test_ours_equals_the_twin(entry: Entry) -> None:
    if entry.needs is not None:
        needs.library(entry.needs)
    case = entry.make(LANES, True)
    twin = jax.jit(jax.vmap(case.twin, in_axes=case.in_axes))
    check(entry, case, ours(case)(*case.arguments), twin(*case.arguments), "ours")


def test_every_program_has_its_tags() -> None:
    """The rows of the targets are chosen by them: one of each kind, and no key twice."""
    for entry in SUITE:
        assert len(entry.tags & {"diverges", "steady"}) == 1, entry.name
        assert len(entry.tags & {"scalar", "small", "matrix"}) == 1, entry.name
    assert len({entry.key for entry in SUITE}) == len(SUITE)


@pytest.mark.slow
def test_the_limits_in_numba_agree() -> None:
    needs.library("numba")
    from control.numba_limits import LIMITS

    for key, limit in LIMITS.items():
        entry = by_key(key)
        case = entry.make(LANES, True)
        expected = jax.vmap(case.twin, in_axes=case.in_axes)(*case.arguments)
        check(entry, case, limit(*map(on_host, case.arguments)), expected, "Numba")


@pytest.mark.parametrize("key", CUDA_LIMITS)
def test_the_limits_in_cuda_agree(key: str, tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip(needs.COMPILER_REASON)
    limit, entry = CUDA_LIMITS[key], by_key(key)
    source, library = tmp_path / "limit.cpp", tmp_path / "limit.so"
    source.write_text(CUDA_WORDS + limit.source)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    kernel = ctypes.CDLL(str(library))

    case = entry.make(LANES, True)
    arguments = [np.ascontiguousarray(on_host(argument)) for argument in case.arguments]
    answers = [np.zeros(LANES, dtype) for dtype in limit.answers]
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*arguments, *answers)]
    for lane in range(LANES):
        kernel.select_lane(lane)
        kernel.limit(*pointers, ctypes.c_int(LANES))
    expected = jax.vmap(case.twin, in_axes=case.in_axes)(*case.arguments)
    check(entry, case, answers, expected, "CUDA")


def test_models_are_the_same_to_numpyro() -> None:
    """Plain densities and NumPyro's differ by a constant; a scale is known by its logarithm in both."""
    needs.library("numpyro")
    from numpyro.infer.util import potential_energy

    def energies(key: jax.Array) -> list[jax.Array]:
        found = []
        for make in MODELS.values():
            model = make()
            position = model.init(key)
            renamed = {name.removeprefix("log_"): value for name, value in position.items()}
            potential = potential_energy(model.numpyro(), (), {}, renamed)
            found.append(potential + model.logdensity(position))
        return found

    # Two positions of each in one compilation.
    keys = jax.random.split(jax.random.key(0))
    for name, sums in zip(MODELS, jax.jit(jax.vmap(energies))(keys), strict=True):
        assert np.isfinite(sums).all(), name
        np.testing.assert_allclose(sums[0], sums[1], atol=2e-2, err_msg=name)
