"""C++ types and literals for the dtypes of jaxprs, memory for arrays of them, and the threads that work on them.

The kernel's text names types as NumPy does (`int32`, `float32`, `bfloat16`, ...); `cpp/runtime` defines them. A typed
random key is one element: a struct `key2` of two `uint32`, so that everything that moves elements moves keys. `float16`
and `bfloat16` are two bytes in memory, computed with as `float32` and rounded after every operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import numpy as np

from lanewise import _jax

# Names of dtypes a kernel can hold, and the bytes an element takes.
SIZES = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64", "key2"), 8),
}
_KEYS = {"threefry2x32": "key2"}
# Larger arrays go to the scratch memory.
LOCAL_BYTES = 1024
_ALIGNMENT = 16


def ctype(dtype: Any) -> str:
    """The C++ type of an element; a name that is not in `SIZES` if a kernel cannot hold it.

    >>> ctype(np.dtype("float32"))
    'float32'
    """
    if _jax.is_extended(dtype):
        return _KEYS.get(_jax.key_implementation(dtype), str(dtype))
    return np.dtype(dtype).name


def held(dtype: Any) -> bool:
    """Whether a kernel can hold elements of this dtype."""
    return ctype(dtype) in SIZES


def element_bytes(dtype: Any) -> int:
    return SIZES[ctype(dtype)]


def is_float(dtype: Any) -> bool:
    return not _jax.is_extended(dtype) and bool(jnp.issubdtype(dtype, jnp.floating))


def is_narrow(dtype: Any) -> bool:
    """Whether the dtype is a 16-bit float, whose arithmetic is that of `float32`, rounded."""
    return ctype(dtype) in ("float16", "bfloat16")


def is_complex(dtype: Any) -> bool:
    return not _jax.is_extended(dtype) and bool(jnp.issubdtype(dtype, jnp.complexfloating))


def is_signed(dtype: Any) -> bool:
    return not _jax.is_extended(dtype) and bool(jnp.issubdtype(dtype, jnp.signedinteger))


def is_unsigned(dtype: Any) -> bool:
    return not _jax.is_extended(dtype) and bool(jnp.issubdtype(dtype, jnp.unsignedinteger))


def is_bool(dtype: Any) -> bool:
    return not _jax.is_extended(dtype) and np.dtype(dtype) == np.dtype(bool)


def literal(value: Any, dtype: Any) -> str:
    """The exact C++ literal of a number.

    >>> literal(0.1, np.dtype("float32")), literal(-(2**31), np.dtype("int32")), literal(True, np.dtype(bool))
    ('0.1f', 'int32(-2147483647 - 1)', 'true')
    """
    name = ctype(dtype)
    if name == "bool":
        return "true" if value else "false"
    if name == "complex64":
        number = np.complex64(value)
        parts = (literal(part, np.dtype("float32")) for part in (number.real, number.imag))
        return f"complex64({', '.join(parts)})"
    if name in ("float16", "bfloat16"):
        return f"{name}({literal(np.asarray(value, dtype).astype(np.float32)[()], np.dtype('float32'))})"
    if name in ("float32", "float64"):
        return _float(np.dtype(name).type(value))
    number = int(value)
    if name in ("int32", "int64") and number == np.iinfo(name).min:
        suffix = "ll" if name == "int64" else ""
        return f"{name}({number + 1}{suffix} - 1)"
    suffixes = {"int32": "", "int64": "ll", "uint32": "u", "uint64": "ull"}
    if name not in suffixes:
        return f"{name}({number})"
    return f"({number}{suffixes[name]})" if number < 0 else f"{number}{suffixes[name]}"


def _float(number: Any) -> str:
    wide = number.dtype.itemsize == 8
    if math.isfinite(number):
        text = (
            repr(number.item())
            if wide
            else np.format_float_scientific(number, trim="-", min_digits=0)
        )
        if (not wide and 1e-4 <= abs(number) < 1e7) or number == 0:
            text = np.format_float_positional(number, trim="0")
        if not any(mark in text for mark in ".e"):
            text += ".0"
        text = text if wide else f"{text}f"
        return f"({text})" if number < 0 else text
    if math.isnan(number):
        return "lw_float64(0x7ff8000000000000ull)" if wide else "lw_float32(0x7fc00000u)"
    bits = (
        ("0x7ff0000000000000ull", "0xfff0000000000000ull")
        if wide
        else ("0x7f800000u", "0xff800000u")
    )
    return f"lw_float{64 if wide else 32}({bits[int(number < 0)]})"


# -- threads of a lane: which work on its arrays -----------------------------------------------------------

# Arrays of at least this many elements are the work of all threads that run a lane together.
LONG = 32


class OneThread:
    """A thread runs a lane on its own, on a host and on a GPU."""

    number = 1
    # Its arrays are its own: rules may point into them, and have forms that take vectors of their elements.
    own_arrays = True
    # A loop over examples: which is the first, and which comes next.
    examples = ("LW_FIRST(next)", "LW_NEXT(next)")
    # A loop over a long array: where a thread begins, and its steps.
    part = ("0", "1")

    def shares(self, size: int) -> bool:
        """Whether an array of `size` elements is the work of all threads."""
        return False

    def joined(self, sums: Sequence[str]) -> list[str]:
        """The lines that make whole sums, each of which is a thread's `part`."""
        return []


class Warp(OneThread):
    """The threads of a warp run a lane together; on a host it is one thread all the same.

    All of them go the same way. Scalars are computed by each; long arrays are in memory that they share, and each does
    a part of the work on them.
    """

    number = 32
    own_arrays = False
    # A block of threads has the lane of its number alone.
    examples = (
        "LW_PLATFORM(blockIdx.x, LW_FIRST(next))",
        "LW_PLATFORM(examples, LW_NEXT(next))",
    )
    part = ("LW_PART", "LW_PARTS")

    def shares(self, size: int) -> bool:
        return size >= LONG

    def joined(self, sums: Sequence[str]) -> list[str]:
        return [f"{total} = lw_sum_of_parts({total});" for total in sums]


# -- memory of a lane: where its arrays are ---------------------------------------------------------------


class Layout:
    """Hands out memory, in scopes. `most` is what all that is alive at one time takes at worst, in bytes a lane."""

    def __init__(self) -> None:
        self.used = 0
        self.most = 0

    def declare(self, kind: str, name: str, size: int) -> str:
        """The declaration of an array of a lane's own."""
        if not self.strides(kind, size):
            return f"{kind} {name}[{max(size, 1)}];"
        offset = self.lend(size * SIZES[kind])
        self.used += _aligned(size * SIZES[kind])
        return f"const lw_strided<{kind}> {name}(scratch + {offset} * lanes, lane, lanes);"

    @staticmethod
    def strides(kind: str, size: int) -> bool:
        """Whether such an array is in the scratch memory."""
        return size * SIZES[kind] > LOCAL_BYTES

    def lend(self, wanted: int) -> int:
        """Where this many bytes are free at this moment."""
        self.most = max(self.most, self.used + _aligned(wanted))
        return self.used

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is handed out inside is free again after."""
        used = self.used
        yield
        self.used = used


def _aligned(wanted: int) -> int:
    return -(-wanted // _ALIGNMENT) * _ALIGNMENT
