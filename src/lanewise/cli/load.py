"""`FILE:FUNCTION` and `--args`: the function that is meant, and what it is called with.

Arguments are Python, as they would stand in a call (`jnp.arange(8), rate=0.5`), evaluated where the file's own names,
`jax`, `jnp`, `np` and `lw` are known. The file runs as a module does on import, so code that it keeps for
`if __name__ == "__main__"` does not run. What is typed here is the user's own, as the file is: nothing is kept out.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise
from lanewise.cli.complaints import Complaint, Misuse
from lanewise.tracing.decorator import ProgramFunction

KNOWN = {"jax": jax, "jnp": jnp, "np": np, "lw": lanewise}


def function_named(place: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that `FILE:FUNCTION` names, and the names its arguments may use."""
    file, colon, name = place.rpartition(":")
    if not colon or name.endswith(".py"):
        file, name = place, ""
    path = Path(file)
    if not path.is_file():
        raise Misuse(
            f"there is no file {file!r}.",
            "name a Python file and a function of it, as in `lanewise show program.py:collatz`.",
        )
    module = _module(path)
    if not name:
        raise Misuse(f"{place!r} names no function.", f"write {path}:FUNCTION; {_choices(module)}")
    fun: Any = module
    for part in name.split("."):
        fun = getattr(fun, part, None)
    if fun is None:
        raise Misuse(f"{path} has no {name!r}.", _choices(module))
    if not callable(fun):
        raise Misuse(
            f"{name!r} in {path} is no function but of type {type(fun).__name__}.",
            _choices(module),
        )
    return fun, {**KNOWN, **vars(module)}


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"lanewise_shown_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise Misuse(f"{path} is no Python file.", "name a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    # Found by what looks classes and sources up by module; and the file's neighbours, as when Python runs it.
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise Complaint(
            f"{path} does not run: {type(error).__name__}: {error}\n{line_of(error, path)}".rstrip(),
            f"make `python {path}` run first; what only a script should do belongs under"
            ' `if __name__ == "__main__":`.',
        ) from None
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def line_of(error: BaseException, path: Path) -> str:
    """The line of a file that led to an error, if one did."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    return f"  line {own[-1].lineno}: {own[-1].line}" if own else ""


def _choices(module: ModuleType) -> str:
    programs = [name for name, value in vars(module).items() if isinstance(value, ProgramFunction)]
    if programs:
        return f"its programs are {', '.join(programs)}."
    functions = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    if functions:
        return f"it has no program; its functions are {', '.join(functions)}."
    return "it has no function; put @lw.program above one."


def arguments_of(
    fun: Callable[..., Any], text: str, names: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `--args TEXT` stands for, checked against the function's parameters."""
    args, kwargs = _evaluated(text, names)
    python = getattr(fun, "python", fun)
    try:
        inspect.signature(python).bind(*args, **kwargs)
    except TypeError as error:
        wanted = inspect.signature(python)
        raise Misuse(
            f"{getattr(fun, '__name__', 'the function')}{wanted} does not take --args {text!r}: {error}.",
            'give a batch for each parameter, as in --args "jnp.arange(8), jnp.ones((8, 3))".',
        ) from None
    except ValueError:  # a callable without a signature: calling it will show
        pass
    return args, kwargs


def _evaluated(text: str, names: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    fix = 'write what would stand in a call, as in --args "jnp.arange(8), rate=0.5".'
    try:
        return eval(f"_({text}\n)", {**names, "_": lambda *args, **kwargs: (args, kwargs)})
    except SyntaxError as error:
        raise Misuse(f"--args {text!r} is not Python: {error.msg}.", fix) from None
    except (Exception, SystemExit) as error:
        raise Misuse(
            f"--args {text!r} cannot be evaluated: {type(error).__name__}: {error}.", fix
        ) from None


def axes_of(text: str) -> Any:
    """What `--in-axes TEXT` stands for: an int, None, or a tuple of these and of trees of them.

    >>> axes_of("0, None")
    (0, None)
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise Misuse(
            f"--in-axes {text!r} is no axis.",
            'write an int, None, or a tuple with one for each argument, as in --in-axes "0, None".',
        ) from None
