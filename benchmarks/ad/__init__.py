"""The benchmarks of the AD literature, each in our form beside plain JAX and PyTorch.

`benchmarks/ad.py` runs them; `case.py` says what a benchmark is, each other module has one of them with the
recipe of its data and a check of its gradient.
"""

from ad import ba, dlstm, gmm, hand, kmeans, lbm, lstm, rsbench, sparse_kmeans, xsbench
from ad.case import Case, Entry, Pair

SUITE: tuple[Entry, ...] = (
    *ba.ENTRIES,
    *dlstm.ENTRIES,
    *gmm.ENTRIES,
    *hand.ENTRIES,
    *kmeans.ENTRIES,
    *sparse_kmeans.ENTRIES,
    *xsbench.ENTRIES,
    *rsbench.ENTRIES,
    *lbm.ENTRIES,
    *lstm.ENTRIES,
)

__all__ = ["SUITE", "Case", "Entry", "Pair"]
