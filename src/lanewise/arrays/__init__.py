"""Array operators with any associative operator: `map`, `reduce`, `scan`, `histogram`, `scatter`, and by segments.

They are ordinary JAX functions: differentiate them in any mode and order, batch them, nest them in each other, in loops
and in programs. What they have in common:

* an *element* is a row of an array, or the tree of rows of a tree of arrays of one length;
* an *operator* takes two elements and gives one of the same type. It must be associative. It may close over values;
* operators that are known by what they compute (+, ×, min, max, logaddexp, and, or, leaf by leaf; 2 × 2 products,
  affine maps and others that are linear in each operand) have fast forms;
* indices out of range are dropped.
"""

from lanewise.arrays.histogram import histogram
from lanewise.arrays.map import map
from lanewise.arrays.ragged import Ragged
from lanewise.arrays.reduce import reduce
from lanewise.arrays.scan import scan
from lanewise.arrays.scatter import scatter
from lanewise.arrays.segmented import segmented_reduce, segmented_scan

__all__ = [
    "Ragged",
    "histogram",
    "map",
    "reduce",
    "scan",
    "scatter",
    "segmented_reduce",
    "segmented_scan",
]
