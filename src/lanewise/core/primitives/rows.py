"""The rows: importing this fills the table. To add a primitive, see CONTRIBUTING.md."""

from __future__ import annotations

from typing import Any

from lanewise.core.primitives import cost, limits
from lanewise.core.primitives.facts import DIVISION, FUNCTION, Effort, Kind, Vector, Wraps, declare

# -- elementwise -------------------------------------------------------------------------------------

_ELEMENTWISE, _VECTOR = Kind.ELEMENTWISE, Vector.ALL
declare("copy copy_p stop_gradient pvary pcast name", _ELEMENTWISE, 0, vector=_VECTOR, linear=True)
declare("bitcast_convert_type random_clone", _ELEMENTWISE, 0, vector=_VECTOR)
# Here numbers may move between memories or devices.
_moves: dict[str, Any] = {"vector": _VECTOR, "effort": Effort.WORK}
declare("optimization_barrier device_put reshard sharding_constraint", _ELEMENTWISE, 0, **_moves)
declare("add add_any", _ELEMENTWISE, vector=_VECTOR, adds=True)
declare("neg", _ELEMENTWISE, vector=_VECTOR, linear=True)
declare("eq ne lt le gt ge", _ELEMENTWISE, vector=_VECTOR, compares=True)
declare("sub mul abs sign max min clamp square floor ceil round", _ELEMENTWISE, vector=_VECTOR)
declare("and or xor not is_finite select_n convert_element_type", _ELEMENTWISE, vector=_VECTOR)
declare("shift_left shift_right_logical shift_right_arithmetic", _ELEMENTWISE, vector=_VECTOR)
declare("real imag conj complex", _ELEMENTWISE)
_several: dict[str, Any] = {"effort": Effort.EXACT}
declare("nextafter population_count clz mulhi eq_to lt_to le_to", _ELEMENTWISE, **_several)
declare("reduce_precision", _ELEMENTWISE, **_several)
declare("integer_pow", _ELEMENTWISE, DIVISION, vector=_VECTOR, effort=Effort.ARITHMETIC)
declare("div", _ELEMENTWISE, DIVISION, vector=Vector.QUOTIENT)
declare("rem", _ELEMENTWISE, DIVISION, vector=Vector.REMAINDER)
declare("sqrt rsqrt", _ELEMENTWISE, FUNCTION, vector=_VECTOR)
# Those of which our C++ for `float32` is straight arithmetic (`cpp/emit/rules/functions.py`).
_straight: dict[str, Any] = {"vector": Vector.FLOAT32}
declare("exp exp2 expm1 log log1p log2 logistic pow tanh", _ELEMENTWISE, FUNCTION, **_straight)
declare("sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh", _ELEMENTWISE, FUNCTION)
declare("cbrt erf erfc erf_inv lgamma digamma polygamma zeta", _ELEMENTWISE, FUNCTION)
declare("bessel_i0e bessel_i1e", _ELEMENTWISE, FUNCTION)
# A loop for each element.
_loop: dict[str, Any] = {"effort": Effort.WORK, "repeatable": False}
declare("igamma igammac igamma_grad_a", _ELEMENTWISE, 20 * FUNCTION, **_loop)
declare("regularized_incomplete_beta", _ELEMENTWISE, 20 * FUNCTION, **_loop)
# Written as what they are made of, which reads an element several times.
declare("one_minus_square", _ELEMENTWISE, 3, effort=Effort.ARITHMETIC, fuses=False)
declare("polynomial", _ELEMENTWISE, FUNCTION, fuses=False)

# -- layout ------------------------------------------------------------------------------------------

declare("reshape squeeze expand_dims slice", Kind.LAYOUT, 0, renames=True, linear=True)
declare("broadcast_in_dim", Kind.LAYOUT, 0, linear=True)
declare("transpose rev", Kind.LAYOUT, renames=True, linear=True)
declare("concatenate pad", Kind.LAYOUT, renames=True, text=2)
declare("stack", Kind.LAYOUT, renames=True)
declare("split unstack tile", Kind.LAYOUT)
declare("iota iota_2x32_shape", Kind.LAYOUT, passes=False, text=0)
declare("unfilled empty empty2", Kind.LAYOUT, 0)

# -- reductions --------------------------------------------------------------------------------------

_short: dict[str, Any] = {"text": 2, "one_function": limits.is_reduced_in_code}
_total: dict[str, Any] = {"effort": Effort.SUM, "fuses": True, **_short}
declare("reduce_sum", Kind.REDUCTION, repeatable=True, linear=True, **_total)
declare("reduce_prod reduce_max reduce_min", Kind.REDUCTION, repeatable=True, **_total)
declare("reduce_and reduce_or reduce_xor", Kind.REDUCTION, repeatable=True, **_total)
declare("argmax argmin", Kind.REDUCTION, **_total)
declare("reduce", Kind.REDUCTION, **_short)
_windows: dict[str, Any] = {"cost": cost.of_window, **_short}
declare("reduce_window reduce_window_sum reduce_window_max", Kind.REDUCTION, **_windows)
declare("reduce_window_min", Kind.REDUCTION, **_windows)
declare("select_and_scatter_add select_and_gather_add", Kind.REDUCTION, **_windows)
# What they read is stored: computed in their loops, which go in order, it would be no vector code.
declare("cumsum cumprod cummax cummin", Kind.CUMULATIVE, **_short)
declare("cumlogsumexp", Kind.CUMULATIVE, 2 * FUNCTION, **_short)

# -- indices -----------------------------------------------------------------------------------------

_reads: dict[str, Any] = {"cost": cost.of_lookup}
declare("dynamic_slice", Kind.LOOKUP, effort=Effort.MOVE, repeatable=True, text=2, **_reads)
declare("gather", Kind.LOOKUP, effort=Effort.EXACT, text=3, **_reads)
declare("dynamic_update_slice", Kind.UPDATE, cost=cost.of_slice_update, repeatable=True, text=2)
_at: dict[str, Any] = {
    "cost": cost.of_scatter,
    "one_function": limits.is_scattered_in_code,
    "text": 4,
}
declare("scatter", Kind.UPDATE, repeatable=True, **_at)
declare("scatter-add scatter_add", Kind.UPDATE, adds=True, **_at)
declare("scatter-sub scatter_sub scatter-mul scatter_mul", Kind.UPDATE, **_at)
declare("scatter-min scatter_min scatter-max scatter_max", Kind.UPDATE, **_at)
declare("accumulate", Kind.OTHER, cost=cost.of_accumulation)

# -- matrices ----------------------------------------------------------------------------------------

_library: dict[str, Any] = {"one_function": False}
_product: dict[str, Any] = {"one_function": limits.is_product_in_code, "text": 4}
declare("dot_general", Kind.PRODUCT, cost=cost.of_product, repeatable=True, **_product)
declare("ragged_dot ragged_dot_general", Kind.PRODUCT, cost=cost.of_ragged_product, **_library)
_convolution: dict[str, Any] = {"cost": cost.of_convolution, "largest": limits.convolution}
declare("conv_general_dilated", Kind.PRODUCT, text=12, **_convolution, **_library)
_rows: dict[str, Any] = {"cost": cost.of_factorization, "largest": limits.factorization, **_library}
declare("cholesky", Kind.FACTORIZATION, text=12, **_rows)
declare("lu", Kind.FACTORIZATION, text=20, **_rows)
declare("qr", Kind.FACTORIZATION, text=30, **_rows)
# Without a rule in C++.
declare("householder_product eigh svd eig schur", Kind.FACTORIZATION, **_rows)
declare("geqrf geqp3 hessenberg tridiagonal", Kind.FACTORIZATION, **_rows)
_solve: dict[str, Any] = {"cost": cost.of_triangular_solve, "largest": limits.triangular_solve}
declare("triangular_solve", Kind.FACTORIZATION, text=12, **_solve, **_library)
declare("tridiagonal_solve", Kind.FACTORIZATION, FUNCTION, **_library)
declare("lu_pivots_to_permutation", Kind.OTHER, **_library)
declare("fft", Kind.FFT, cost=cost.of_fft, largest=limits.fft, **_library)
declare("sort top_k approx_top_k", Kind.SORT, cost=cost.of_sort, text=12, **_library)

# -- random numbers ----------------------------------------------------------------------------------

_keys: dict[str, Any] = {"repeatable": True, "passes": False}
declare("random_wrap random_unwrap", Kind.RANDOM, 0, effort=Effort.MOVE, **_keys)
declare("random_seed", Kind.RANDOM, 100, effort=Effort.EXACT, **_keys)
declare("random_split", Kind.RANDOM, 100, effort=Effort.EXACT, draws=True, **_keys)
_keys_in_step: dict[str, Any] = {"draws": True, "vector": _VECTOR, **_keys}
declare("random_fold_in", Kind.RANDOM, 100, effort=Effort.EXACT, **_keys_in_step)
declare("random_bits", Kind.RANDOM, 100, **_keys_in_step)
declare("threefry2x32", Kind.RANDOM, 100, **_keys)
declare("rng_bit_generator", Kind.RANDOM, 100)
declare("random_gamma", Kind.RANDOM, 1000, draws=True)
declare("rng_uniform", Kind.RANDOM, 100, **_library)

# -- code --------------------------------------------------------------------------------------------

declare("jit pjit", Kind.CALL, code=("jaxpr",), wraps=Wraps.NOTHING)
# `eval_jaxpr`: what `closed_call` is since JAX 0.11.
declare("closed_call core_call eval_jaxpr", Kind.CALL, code=("call_jaxpr",), wraps=Wraps.NOTHING)
declare("remat remat2 checkpoint", Kind.CALL, code=("jaxpr",), wraps=Wraps.RECOMPUTATION)
declare("custom_jvp_call", Kind.CALL, code=("call_jaxpr",), wraps=Wraps.JVP)
declare("custom_vjp_call", Kind.CALL, code=("call_jaxpr",), wraps=Wraps.VJP)
declare("custom_vjp_call_jaxpr", Kind.CALL, code=("fun_jaxpr",), wraps=Wraps.VJP)
declare("cond", Kind.CONTROL, cost=cost.of_cond, code=("branches",))
declare("while", Kind.CONTROL, cost=cost.of_while, code=("cond_jaxpr", "body_jaxpr"))
declare("scan", Kind.CONTROL, cost=cost.of_scan, code=("jaxpr",))
declare("unvmap_any unvmap_all unvmap_max nonbatchable select_if_vmap noinline", Kind.BATCH)
declare("composite", Kind.BATCH, code=("jaxpr",))
declare("linear_call", Kind.BATCH, code=("callee",))
_callback: dict[str, Any] = {"cost": cost.of_callback, **_library}
declare("pure_callback io_callback debug_callback debug_print", Kind.CALLBACK, **_callback)
declare("call_hi_primitive", Kind.OTHER, **_library)
declare("platform_index", Kind.OTHER, 0)
# Code that is not in a parameter, and what is ours.
declare("custom_linear_solve program shared throw", Kind.OTHER)
