#!/usr/bin/env bash
# Every check that wants a GPU, in one go: the corpus under the machine, then the benchmarks.
# Run it from the root of a checkout on a machine whose python3 has JAX for its GPU. Packages that python3 lacks
# (pytest, pytest-xdist, equinox, blackjax, ...) may lie in a folder named by LANEWISE_PACKAGES.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="src:tests:benchmarks${LANEWISE_PACKAGES:+:$LANEWISE_PACKAGES}"
export XLA_PYTHON_CLIENT_PREALLOCATE=false
# Answers are compared lane by lane: matrix products at full precision.
export JAX_DEFAULT_MATMUL_PRECISION=highest
export PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
workers=${WORKERS:-8}
what=${1:-all}

"$python" -c 'import jax; print("jax", jax.__version__, jax.devices())'
if [ "$what" = all ] || [ "$what" = tests ]; then
  "$python" -m pytest -q -n "$workers" -p no:cacheprovider tests/test_corpus.py -k "sweep or lax_form" --durations=5
  "$python" -m pytest -q -n "$workers" -p no:cacheprovider tests/test_tfp_programs.py -k "sweep or most" --durations=5
fi
if [ "$what" = all ] || [ "$what" = bench ]; then
  for file in benchmarks/[a-z]*.py; do
    "$python" "$file"
  done
fi
