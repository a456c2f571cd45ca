"""Which code a kernel between meetings can have, and which the threads of a warp can run together: see `between.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lanewise._jax import JaxprEqn
from lanewise.blocks.analysis import writes_in_order
from lanewise.blocks.equations import inside
from lanewise.blocks.form import Block, Call, TailCall
from lanewise.blocks.link import Linked
from lanewise.cpp.emit.rules import Unsupported
from lanewise.cpp.emit.writer import LONG

# What threads that run a lane together may each do to a long array: it writes without reading what it writes over.
DONE_TWICE = frozenset(
    "add add_any sub mul div rem neg abs sign max min clamp square integer_pow pow sqrt rsqrt cbrt exp exp2 expm1 log"
    " log1p logistic tanh sinh cosh sin cos tan asin acos atan atan2 erf erfc erf_inv lgamma digamma floor ceil round"
    " is_finite nextafter and or not xor eq ne lt le gt ge select_n shift_left shift_right_logical"
    " shift_right_arithmetic population_count clz convert_element_type bitcast_convert_type copy copy_p stop_gradient"
    " broadcast_in_dim reshape squeeze expand_dims slice transpose rev concatenate pad iota unfilled dynamic_slice"
    " dynamic_update_slice scatter dot_general reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or"
    " random_bits random_split random_fold_in random_wrap random_unwrap random_seed threefry2x32".split()
)


def work_together(linked: Linked, expensive: Sequence[int]) -> bool:
    """Whether a GPU's threads can run a lane together: whatever is done to long arrays, each may do it all."""
    cheap = [
        item
        for pc, item in enumerate(linked.order)
        if isinstance(item, Block) and pc not in expensive
    ]
    return all(_may_be_done_twice(eqn) for block in cheap for eqn in block.eqns)


def _may_be_done_twice(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name in DONE_TWICE:
        return True
    if all(math.prod(atom.aval.shape) < LONG for atom in (*eqn.invars, *eqn.outvars)):
        return True
    called = inside(eqn)
    return called is not None and all(_may_be_done_twice(e) for e in called.jaxpr.eqns)


def _writes_shared(linked: Linked, block: Block) -> bool:
    written = set(writes_in_order(block)) & set(linked.storage.live_out[block.label])
    if isinstance(block.terminator, Call | TailCall):
        written |= {var for var, atom in block.terminator.arguments if var is not atom}
    return bool(written & set(linked.uniforms))


def refuse_between(linked: Linked, expensive: Sequence[int]) -> None:
    """Raise if the blocks beside the expensive ones cannot be a kernel on a machine's state."""
    if linked.waiting:
        raise Unsupported("a tape that may grow")
    for pc, item in enumerate(linked.order):
        if isinstance(item, Block) and pc not in expensive and _writes_shared(linked, item):
            raise Unsupported("a value that all lanes share is written between expensive blocks")
