"""The only package that touches JAX internals; what differs between 0.10 and 0.12 is here.

What `jax.extend.core` offers is imported from its source: importing `jax.extend` imports Pallas, which costs as
much as a third of Lanewise.
"""

from __future__ import annotations

import os

import jax.interpreters.ad as ad
import jax.interpreters.batching as batching
import jax.interpreters.mlir as mlir
from jax._src import source_info_util as _source_info_util
from jax._src.array import ArrayImpl
from jax.core import ShapedArray, Tracer

from lanewise._jax.fingerprints import fingerprint
from lanewise._jax.jaxprs import (
    DIGAMMA_AT_ZERO_IS_INFINITE,
    FRAMES,
    ROOM,
    Atom,
    ClosedJaxpr,
    DropVar,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Traced,
    Var,
    attached_consts,
    batched_outputs,
    broadcast_axes,
    close_jaxpr,
    closed_call_p,
    current_trace,
    definition,
    eval_closed,
    eval_jaxpr,
    flat_jaxpr,
    has_derivative,
    has_value,
    in_place_of,
    is_batched,
    is_linearized,
    is_there,
    jit_disabled,
    looks_for_nan,
    new_eqn,
    new_jaxpr,
    new_var,
    no_effects,
    outside_traces,
    primitive,
    replace_eqns,
    run_eqn,
    runs_now,
    select_n_p,
    stages,
    storage_struct,
    subjaxprs,
    threefry_partitionable,
    trace,
    trace_at,
    trace_context,
    trace_of,
    used_inputs,
    user_line,
    with_eqns,
    without_derivative,
    without_effects,
    without_unused,
)
from lanewise._jax.meshes import (
    Spec,
    devices_of_lowering,
    everywhere,
    free_axes,
    is_split,
    lower_alike,
    lower_split,
    lower_unsplit,
    may_be_split,
    needs_devices,
    resharded,
    split_axes,
    stored_ndim,
    typed_as_split,
)
from lanewise._jax.processes import Processes, processes
from lanewise._jax.rules import (
    Effect,
    allow_effect,
    calls_host,
    differentiated_as,
    forget_failed_effects,
    linearized,
    lower_host_call,
    lower_unchecked,
    lowered_as,
    lowering_platforms,
    lowers_for_export,
    on_linearize,
    on_partial_evaluation,
)
from lanewise._jax.values import (
    DEVICE,
    HOST,
    aval_of,
    convert_to_aval,
    default_platform,
    device_memory,
    has_platform,
    has_tangent,
    in_memory_of,
    is_extended,
    is_key,
    is_symbolic,
    key_implementation,
    loaded,
    on_host_cpu,
    our_transfers,
    placed,
    shape_dtype_struct,
    shaped,
    stored,
    stored_aval,
    strong,
    tangent_aval,
    to_device,
    to_host,
    typed_without_mesh,
    unchecked,
    varying_alike,
    varying_as,
    varying_untold,
    without_mesh,
    wrap_key,
    zero_tangent,
    zeros,
)
from lanewise._jax.walk import (
    Cond,
    Environment,
    Flags,
    Forward,
    Found,
    Scan,
    While,
    divided,
    equations,
    evaluate,
    itself,
    merge,
    partition,
    reached,
    restricted,
    settled,
)

# JAX, too, reports the user's line for an equation, not one of ours.
_source_info_util.register_exclusion(os.path.dirname(os.path.dirname(__file__)))
