"""Arrays on disk, as xarray reads them: a part at a time, when it is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing


class OnDisk(BackendArray):
    """Anything with a shape, a type and slices, such as an array of Zarr or h5py; nothing is read before it is needed.

    >>> import xarray
    >>> rows = xarray.Variable(("row",), lazily(np.arange(10)))
    >>> rows[2:4].values
    array([2, 3])
    """

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape = tuple(array.shape)
        self.dtype = np.dtype(array.dtype)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        basic = indexing.IndexingSupport.BASIC
        return indexing.explicit_indexing_adapter(key, self.shape, basic, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        return self.array[key]


def lazily(array: Any) -> Any:
    """The array as the values of an xarray `Variable`."""
    return indexing.LazilyIndexedArray(OnDisk(array))
