#!/usr/bin/env bash
# Every check that wants a GPU, in one go: the corpus as kernels and under the machine, then the benchmarks.
# Run it from the root of a checkout on a machine whose python3 has JAX for its GPU. Packages that python3 lacks
# (pytest, pytest-xdist, equinox, blackjax, ...) may be in a folder named by LANEWISE_PACKAGES.
#
#   benchmarks/gpu.sh [all | tests | bench | dynamic]
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="src:tests:benchmarks${LANEWISE_PACKAGES:+:$LANEWISE_PACKAGES}"
export XLA_PYTHON_CLIENT_PREALLOCATE=false
export PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
workers=${WORKERS:-8}
what=${1:-all}

"$python" -c 'import jax; print("jax", jax.__version__, jax.devices())'
if [ "$what" = all ] || [ "$what" = tests ]; then
  # Answers are compared lane by lane: matrix products at full precision.
  export JAX_DEFAULT_MATMUL_PRECISION=highest
  run() { "$python" -m pytest -q -n "$workers" -p no:cacheprovider --durations=5 "$@"; }
  run tests/cpp/test_device.py tests/machine/test_narrowing.py tests/machine/test_meet.py tests/core/test_profile.py tests/diff/test_accumulate.py
  run tests/test_corpus.py -k "sweep or lax_form"
  XLA_PYTHON_CLIENT_PREALLOCATE=false "$python" -m pytest -q -p no:cacheprovider tests/place/test_on_gpu.py
  run tests/test_tfp_programs.py -k "sweep or most"
  unset JAX_DEFAULT_MATMUL_PRECISION
fi
if [ "$what" = all ] || [ "$what" = bench ]; then
  "$python" benchmarks/control.py --device gpu
  "$python" benchmarks/growth.py --device gpu
  "$python" benchmarks/refill.py --device gpu
  "$python" benchmarks/ticks.py
  for chains in 1024 4096 16384 65536; do
    "$python" -W ignore benchmarks/nuts.py --device gpu --chains "$chains" --repeats 3
  done
  JAX_DEFAULT_MATMUL_PRECISION=highest "$python" benchmarks/ad.py --device gpu
  "$python" benchmarks/place_gpu.py --seconds 560
fi
if [ "$what" = all ] || [ "$what" = dynamic ]; then
  # PyTorch is the peer. The parser comes last, as its two sweeps take longest to compile.
  for width in 256 32 512; do
    "$python" benchmarks/dynamic.py --device gpu --widths "$width" --trees 256 --no-nodes --repeats 7
  done
  "$python" benchmarks/early_exit.py --device gpu --repeats 3
  for model in drnn transition_parser; do
    "$python" benchmarks/dynamic_models.py --device gpu --instances 256 --widths 256 --models "$model" --repeats 2
  done
fi
