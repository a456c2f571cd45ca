"""Where a kernel begins on a host, and where answers go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.values import Scalar, Stored


def answer_slot(name: str, shape: Sequence[int], dtype: Any) -> Scalar | Stored:
    """An example's place in an array of outputs."""
    if not shape:
        return Scalar((), dtype, f"{name}[example]", place=True)
    size = int(np.prod(shape, dtype=np.int64))
    return Stored(tuple(shape), dtype, f"({name} + example * {size})")


def blank(dtype: Any) -> Scalar:
    """What a failed lane answers."""
    kind = dtypes.ctype(dtype)
    if kind == "key2":
        return Scalar((), dtype, "key2{{0u, 0u}}")
    inexact = dtypes.is_float(dtype) or dtypes.is_complex(dtype)
    value = complex(np.nan, 0.0) if dtypes.is_complex(dtype) else np.nan if inexact else 0
    return Scalar((), dtype, dtypes.literal(value, dtype))


def host_entry(arguments: Sequence[str]) -> str:
    """What a thread of the host calls: it has scratch memory of its own, and takes examples from all that are left."""
    *buffers, _, _ = arguments
    given = ", ".join(
        f"({buffer.rsplit('*', 1)[0].strip()}*)run->arguments[{i}]"
        for i, buffer in enumerate(buffers)
    )
    return f"""
#ifndef __CUDACC__
struct lw_thread {{
  lw_run* run;
  char* scratch;
}};
static void lw_run_lanes(void* data) {{
  lw_run* run = ((lw_thread*)data)->run;
  lw_share share = {{run, 0, 0, 1, 0, 0}};
  lanewise_kernel({given}, &share, ((lw_thread*)data)->scratch, run->examples, run->capacity);
}}
extern "C" void lanewise_work(lw_run* run) {{
  lw_thread own = {{run, (char*)malloc(run->lane_bytes + 1)}};
  if (!own.scratch) return;
  if (run->stoppable) run->stoppable(lw_run_lanes, &own, run->begun);
  else lw_run_lanes(&own);
  free(own.scratch);
}}
#endif""".strip()
