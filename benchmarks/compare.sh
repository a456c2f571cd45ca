#!/usr/bin/env bash
# Two commits on one machine: control, nuts, ad, compile and overhead of each, in turns, and the geometric mean of new
# over old for every claim that both make. A claim is a ratio to a peer in the same process, so that other work on it
# cancels; one that is the difference to a peer (what a call takes over `jax.jit`) may be nothing, so the differences are
# compared with 10 µs, or 0.1 s, added.
#
#   benchmarks/compare.sh OLD NEW [cpu | gpu] [ROUNDS]
#   JOBS=control.py benchmarks/compare.sh OLD NEW      some of them alone, a line each
#
# Both commits are checked out beside this one and run by the same Python (PYTHON, or .venv/bin/python), each with its own
# sources. A folder with a checkout will do in place of a commit, where there is no git. On a GPU packages that it lacks may be in a folder named by LANEWISE_PACKAGES.
set -euo pipefail
cd "$(dirname "$0")/.."
old=$1 new=$2 device=${3:-cpu} rounds=${4:-2}
python=${PYTHON:-$PWD/.venv/bin/python}
work=$(mktemp -d)
touch "$work/old.jsonl" "$work/new.jsonl"
trap 'for side in old new; do [ -L "$work/$side" ] || git worktree remove --force "$work/$side"; done; rm -rf "$work"' EXIT
check_out() { if [ -d "$2" ]; then ln -s "$(realpath "$2")" "$work/$1"; else git worktree add -q --detach "$work/$1" "$2"; fi; }
check_out old "$old"
check_out new "$new"
if [ "$device" = gpu ]; then
  jobs=("control.py --device gpu" "nuts.py --device gpu --chains 16384 --repeats 3" "compile.py --only control" "overhead.py --carriers ticks kernel")
else
  jobs=("control.py" "nuts.py --repeats 3" "ad.py" "compile.py --only gradients" "overhead.py --carriers ticks native")
fi
if [ -n "${JOBS:-}" ]; then mapfile -t jobs <<< "$JOBS"; fi
so_far() {  # printed after every job: a run that is cut short has shown what it measured
  "$python" - "$work/old.jsonl" "$work/new.jsonl" <<'END'
import json, math, statistics, sys


def claims(path):
    """By claim how good it is: the median ratio of the better to the worse direction."""
    found = {}
    for line in open(path):
        claim = json.loads(line)
        ratio = float(claim["ratio"])
        if " over jax" in claim["claim"]:
            ratio = max(ratio, 0) + (10 if "microseconds" in claim["claim"] else 0.1)
        if ratio > 0:
            faster = claim["target"].startswith(">=")
            found.setdefault(claim["claim"], []).append(ratio if faster else 1 / ratio)
    return {name: statistics.median(values) for name, values in found.items()}


old, new = (claims(path) for path in sys.argv[1:])
shared = [name for name in old if name in new]
if not shared:
    sys.exit("no claim that both sides made so far")
for name in shared:
    print(f"{new[name] / old[name]:6.3f}  {name}  ({old[name]:.3g} -> {new[name]:.3g})")
mean = math.exp(statistics.fmean(math.log(new[name] / old[name]) for name in shared))
print(f"{mean:6.3f}  geometric mean over {len(shared)} claims: new over old, more is better")
END
}
for round in $(seq "$rounds"); do
  for job in "${jobs[@]}"; do
    for side in old new; do
      echo "== round $round, $side: $job" >&2
      (
        cd "$work/$side"
        PYTHONPATH="src:tests:benchmarks${LANEWISE_PACKAGES:+:$LANEWISE_PACKAGES}" XLA_PYTHON_CLIENT_PREALLOCATE=false \
          "$python" -W ignore benchmarks/$job || echo "(failed: $job)" >&2
      ) | grep '^{' >> "$work/$side.jsonl" || true
    done
    so_far || true
  done
done
