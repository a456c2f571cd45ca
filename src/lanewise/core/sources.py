"""Files of the package that are no Python: C++ for compilers, and what a report is made of.

They lie beside the code that reads them. Editors and `clang-format` know them by their names, and `tests/cpp` compiles
each on its own.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Sequence
from importlib import resources

# How a file of C++ includes another one of ours; those of the system and of XLA are in angle brackets.
_OURS = re.compile(r'^#include "(.*)"\n|^#pragma once\n', re.MULTILINE)


@functools.cache
def source(path: str) -> str:
    """The text of a file, by its path in the package.

    >>> source("dynamic/passes.cpp")[:2]
    '//'
    """
    return resources.files("lanewise").joinpath(path).read_text(encoding="utf-8")


def composed(path: str, known: Sequence[str] = ()) -> str:
    """A file of C++ in which each file of ours stands where it is included first, except those `known` already.

    A compiler then gets one text, which is all that its library depends on.
    """
    seen = {path, *known}

    def whole(path: str) -> str:
        def included(match: re.Match[str]) -> str:
            name = match[1] and posixpath.normpath(f"{posixpath.dirname(path)}/{match[1]}")
            if not name or name in seen:
                return ""
            seen.add(name)
            return whole(name)

        return _OURS.sub(included, source(path))

    return whole(path)
