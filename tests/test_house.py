"""The house rules that a type checker does not hold: no import cycles, few imports a module, short files and functions.

Imports inside functions count like any other, and so do those for type checkers alone. `import-linter` holds the order
of the rooms (pyproject.toml); what is here holds inside each of them. Each exception says why.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import apart
import lanewise
import needs

ROOT = Path(lanewise.__file__).parent
MOST_IMPORTS = 12
MOST_LINES = 500
# Lines of code in a function, and parameters of a private one.
MOST_CODE = 60
MOST_PARAMETERS = 6
# The modules whose functions a first `jax.vmap` of a program runs on `native`.
MOST_ON_THE_WAY = 58
# Which backend is the default, or which devices there are.
PLATFORM = re.compile(
    r"\b(default_backend|default_platform|platform_of|local_devices|jax\.devices)\("
)
# Where a call of the user's comes in: what is asked there travels with the job.
ASKS = ("_jax", "api", "cli", "dynamic", "mcmc", "rules", "watch")

# Words that JAX's and Equinox's documentation has plainer ones for: expensive, fix, reported, shows, learned, n.
GONE = re.compile(r"\b(dear|mend(s|ed|ing)?|told|tells of|learnt|so many)\b")
PROSE = {".py", ".md", ".h", ".cpp", ".js", ".css"}

# Exceptions: module -> why.
MAY_IMPORT_MORE: dict[str, str] = {}
MAY_BE_LONGER: dict[str, str] = {}
MAY_HAVE_MORE_CODE: dict[str, str] = {
    "lanewise.mcmc.pathfinder.path_of": "to be taken apart",
    "lanewise.mcmc.sample.sample": "a line for each of its options",
}
MAY_TAKE_MORE: dict[str, str] = {}
MAY_ASK_FOR_A_PLATFORM: dict[str, str] = {}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


@functools.cache
def imports_of(module: str) -> frozenset[str]:
    """The modules of ours that a module names in its imports, wherever they stand."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            base = node.module or package
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.add(whole if whole in MODULES else base)
    return frozenset(found & MODULES.keys()) - {module}


def cycles() -> Iterator[list[str]]:
    """Each set of modules that import each other, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> Iterator[list[str]]:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in sorted(imports_of(module)):
            if other not in number:
                yield from visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            at = stack.index(module)
            found = stack[at:]
            del stack[at:]
            if len(found) > 1:
                yield found

    for module in MODULES:
        if module not in number:
            yield from visit(module)


def test_no_import_cycle() -> None:
    assert list(cycles()) == []


def test_no_module_imports_many_others() -> None:
    many = {
        module: len(imports_of(module))
        for module in MODULES
        if len(imports_of(module)) > MOST_IMPORTS and MODULES[module].name != "__init__.py"
    }
    assert many.keys() == MAY_IMPORT_MORE.keys(), many


def test_no_file_is_long() -> None:
    long = {
        module: lines
        for module, path in MODULES.items()
        if (lines := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert long.keys() == MAY_BE_LONGER.keys(), long


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(module: str) -> Iterator[tuple[str, Function, bool]]:
    """The functions of a module by name, and whether others may call them: they are no function's own."""

    def inside(node: ast.AST, name: str, own: bool) -> Iterator[tuple[str, Function, bool]]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, Function | ast.ClassDef):
                yield from inside(child, name, own)
                continue
            whole = f"{name}.{child.name}"
            if isinstance(child, Function):
                yield whole, child, own
            yield from inside(child, whole, own or isinstance(child, Function))

    yield from inside(ast.parse(MODULES[module].read_text()), module, False)


def lines_of_code(module: str) -> set[int]:
    """The numbers of a module's lines that are code: no comment, no docstring, not blank."""
    text = MODULES[module].read_text()
    none = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in none:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def test_no_function_is_long() -> None:
    long = {
        name: size
        for module in MODULES
        if (code := lines_of_code(module))
        for name, function, _ in functions_of(module)
        if (size := len(code & {*range(function.lineno, (function.end_lineno or 0) + 1)}))
        > MOST_CODE
    }
    assert long.keys() == MAY_HAVE_MORE_CODE.keys(), long


def test_no_private_function_takes_many_parameters() -> None:
    """Of those that a decorator or a function around them gives to others, these decide what they take."""
    many = {}
    for module in MODULES:
        for name, function, inner in functions_of(module):
            if function.name.startswith("_") and not (function.name.endswith("__") or inner):
                a = function.args
                taken = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
                number = sum(p is not None and p.arg not in ("self", "cls") for p in taken)
                if number > MOST_PARAMETERS and not function.decorator_list:
                    many[name] = number
    assert many.keys() == MAY_TAKE_MORE.keys(), many


def test_nothing_below_the_public_functions_asks_for_a_platform() -> None:
    asking = {
        module
        for module, path in MODULES.items()
        if PLATFORM.search(path.read_text()) and module.split(".")[1:2] not in [[a] for a in ASKS]
    }
    assert asking == MAY_ASK_FOR_A_PLATFORM.keys()


FIRST_CALL = """
import sys, threading
import jax, jax.numpy as jnp, lanewise as lw
from pathlib import Path

root, seen = str(Path(lw.__file__).parent), set()

def see(frame, event, argument):
    code = frame.f_code
    # The code of a function is optimized; that of a module or a class is run by its import.
    if event == "call" and code.co_filename.startswith(root) and code.co_flags & 1:
        seen.add(code.co_filename[len(root) + 1 :])

@lw.program
def collatz(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps = steps + 1
    return steps

sys.setprofile(see)
threading.setprofile(see)
jax.vmap(collatz.with_options(carrier="native"))(jnp.arange(1, 9)).block_until_ready()
sys.setprofile(None)
for module in sorted(seen):
    print(f"{module}: on the way")
"""


@needs.compiler
def test_the_way_of_one_call_is_short(tmp_path: Path) -> None:
    """Counted with an empty cache, so that the compiler is on the way."""
    script = tmp_path / "first.py"
    script.write_text(FIRST_CALL)
    modules = apart.cases_of(script, XDG_CACHE_HOME=str(tmp_path))
    assert len(modules) <= MOST_ON_THE_WAY, sorted(modules)


def test_the_exceptions_say_why() -> None:
    lists = (MAY_IMPORT_MORE, MAY_BE_LONGER, MAY_HAVE_MORE_CODE, MAY_TAKE_MORE)
    for exceptions in (*lists, MAY_ASK_FOR_A_PLATFORM):
        assert all(exceptions.values())


def test_what_contributing_names_is_there() -> None:
    """A file or folder named there is one of the package or of the checkout."""
    checkout = ROOT.parent.parent
    text = (checkout / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`([a-z_]+/[\w/.]*)`", text)) - {"site/"}
    assert len(named) > 40
    gone = {n for n in named if not any((base / n).exists() for base in (ROOT, checkout))}
    assert not gone


def test_words_that_are_gone_do_not_come_back() -> None:
    checkout = ROOT.parent.parent
    rooms = [ROOT, *(checkout / name for name in ("docs", "examples", "benchmarks"))]
    files = [path for room in rooms for path in room.rglob("*") if path.suffix in PROSE]
    files += [checkout / "README.md", checkout / "CONTRIBUTING.md"]
    found = {
        f"{path.relative_to(checkout)}:{number}: {line.strip()}"
        for path in files
        if path.name != "RESULTS.md"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if GONE.search(line)
    }
    assert not found
