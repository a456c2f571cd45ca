"""Programs pickled and copied.

A program that its module holds under its own name is pickled as a function is: by that name. `pickle` can do no more.
`cloudpickle` keeps functions that have no such name (lambdas, closures, all of `__main__`) by value, and so a program
is kept as its function and its options, with the text of the file, for a program is made from source and the process
that loads it may not have the file. Traces and compilations stay behind.

A copy of a function is the function itself, to `copy.deepcopy` too; and so is that of a program.
"""

from __future__ import annotations

import linecache
import sys
from typing import Any


def by_name(program: Any, same: Any) -> Any:
    """What stands in its module under the program's name, if `same` holds for it; else None."""
    found: Any = sys.modules.get(program.__module__)
    for part in getattr(program, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found if found is not None and same(found) else None


def by_value(module: str) -> bool:
    """Whether who is pickling wants what this module holds by value.

    `cloudpickle` does of `__main__`, which another process does not have. It asks nobody but functions and classes, so
    we look at who asks: a pickler runs in C, and the frame below ours is the one that started it.
    """
    if module != "__main__":
        return False
    frame = sys._getframe(2)
    # Some libraries have a copy of their own: `joblib.externals.cloudpickle`, `ray.cloudpickle`.
    return "cloudpickle" in str(frame.f_globals.get("__name__", "")).split(".")


def file_of(fun: Any) -> tuple[str, str] | None:
    """The name and the text of the file a function was written in."""
    code = getattr(fun, "__code__", None)
    if code is None:
        return None
    return code.co_filename, "".join(linecache.getlines(code.co_filename, fun.__globals__))


def remember_file(file: tuple[str, str] | None) -> None:
    """Have a function's source found that was written in another process."""
    if file is None:
        return
    name, text = file
    if text and "".join(linecache.getlines(name)) != text:
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
