"""Random programs as Python source, and how to run them in plain Python.

The programs use what a program may hold: nested branches, loops with `break`, `continue` and `else`,
early returns, short-circuit logic, conditional expressions, several dtypes, small arrays, tuples and
dicts as variables, recursion and mutual recursion. Three rules keep every one of them honest:

* *It ends.* A `while` counts its iterations against a small bound, a recursive function spends a unit of
  `fuel` at every call (two inside a loop) and returns at once when none is left.
* *It is defined.* A variable is declared at the top of its function, or is read only in the block that
  declares it; indices are taken modulo the length; divisors are non-zero constants.
* *It is exact.* NumPy scalars and XLA agree bit for bit on what is used: wrapping integer arithmetic,
  comparison, minimum and maximum, and on floats only what is rounded the same whether or not a compiler
  contracts a product and a sum (products are by powers of two).

So the same text runs twice: in plain Python on NumPy scalars (`run_plainly`), which says what the answer
is, and as Lanewise programs (`load`). Types are one letter: `i` int32, `u` uint8, `f` float32, `b` bool,
`A` int32[4], `T` an (i, f) tuple, `D` a dict of an i and a b. An expression of a type is always strongly
typed; counters are plain Python ints and appear only as right operands, so that weak types mix in.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

LANES = 5
LENGTH = 4
MAX_FUEL = 4

Draw = Callable[[st.SearchStrategy], Any]


@dataclass(frozen=True)
class Signature:
    """A function's name, parameter types and result types; `fuel` comes last and is not listed."""

    name: str
    params: str
    results: str

    def parameter_names(self) -> list[str]:
        """
        >>> Signature("f0", "iif", "i").parameter_names()
        ['i_0', 'i_1', 'f_2', 'fuel']
        """
        return [*(f"{kind}_{at}" for at, kind in enumerate(self.params)), "fuel"]


@dataclass(frozen=True)
class Generated:
    """A program's source with a batch of arguments."""

    source: str
    arguments: tuple[np.ndarray, ...]
    in_axes: tuple[int | None, ...]

    def lane(self, index: int) -> tuple[Any, ...]:
        """The arguments of one lane."""
        return tuple(
            argument[index] if axis == 0 else argument
            for argument, axis in zip(self.arguments, self.in_axes)
        )

    def __repr__(self) -> str:
        values = "\n".join(
            f"  {axis}: {value!r}" for axis, value in zip(self.in_axes, self.arguments)
        )
        return f"arguments by axis:\n{values}\n{self.source}"


# -- running -------------------------------------------------------------------------------------


class Cells(np.ndarray):
    """A NumPy array with JAX's functional `.at[i].set(v)` and `.at[i].add(v)`."""

    @property
    def at(self) -> _At:
        return _At(self)


@dataclass(frozen=True)
class _At:
    cells: Cells
    index: Any = None

    def __getitem__(self, index: Any) -> _At:
        return _At(self.cells, index)

    def set(self, value: Any) -> Cells:
        new = self.cells.copy()
        new[self.index] = value
        return new

    def add(self, value: Any) -> Cells:
        return self.set(self.cells[self.index] + value)


def _namespace(library: Any, decorator: Callable[..., Any]) -> dict[str, Any]:
    names = ("int32", "uint8", "float32", "minimum", "maximum")
    return {"program": decorator, **{name: getattr(library, name) for name in names}}


def run_plainly(program: Generated) -> list[Any]:
    """Every lane's answer by plain Python on NumPy scalars."""
    namespace = _namespace(np, lambda fun: fun)
    exec(compile(program.source, "<plain>", "exec"), namespace)
    with np.errstate(all="ignore"):
        return [
            namespace["main"](*(a.view(Cells) if np.ndim(a) else a for a in program.lane(lane)))
            for lane in range(LANES)
        ]


def load(source: str, decorator: Callable[..., Any], name: str) -> Any:
    """`main` of the source, each function decorated; `inspect.getsource` finds the text."""
    filename = f"<generated {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = _namespace(jnp, decorator)
    exec(compile(source, filename, "exec"), namespace)
    return namespace["main"]


def float_total(program: Generated, main: Any) -> tuple[list[int], Callable[..., Any]]:
    """Which arguments are floats, and a weighted sum of all float results, a function of these and of all arguments."""
    active = [at for at, a in enumerate(program.arguments) if a.dtype == np.float32]

    def total(moved: list[Any], args: Sequence[Any]) -> Any:
        given = list(args)
        for at, value in zip(active, moved, strict=True):
            given[at] = value
        floats = [x for x in jax.tree.leaves(main(*given)) if x.dtype == np.float32]
        return sum((x.sum() * (0.5 + at) for at, x in enumerate(floats)), jnp.float32(0))

    return active, total


def substantial(source: str) -> bool:
    """Whether there is enough in a program to be worth compiling."""
    lines = source.splitlines()
    control = sum(line.lstrip().startswith(("if ", "while ", "for ")) for line in lines)
    return control >= 2 and 12 <= len(lines) <= 60


# -- writing -------------------------------------------------------------------------------------


@dataclass
class _Function:
    """Writes one function. `scope` maps a type to the names readable here, innermost last."""

    draw: Draw
    signature: Signature
    callees: Sequence[Signature]
    lines: list[str] = field(default_factory=list)
    budget: int = 0
    calls: int = 2
    made: int = 0

    # Choosing.

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.draw(st.integers(0, len(options) - 1))]

    def chance(self, one_in: int) -> bool:
        return self.draw(st.integers(0, one_in - 1)) == one_in - 1

    def fresh(self, kind: str) -> str:
        self.made += 1
        return f"{kind}{self.made}"

    def put(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    # Expressions.

    def expression(self, kind: str, scope: dict[str, list[str]], size: int = 2) -> str:
        if size > 0 and self.chance(6):
            condition = self.expression("b", scope, size - 1)
            yes, no = (self.expression(kind, scope, size - 1) for _ in range(2))
            return f"({yes} if {condition} else {no})"
        return getattr(self, f"_{kind}")(scope, size)

    def operand(self, scope: dict[str, list[str]]) -> str:
        """A right operand of integer arithmetic that does not decide its type."""
        options = [str(self.pick((1, 2, 3, 7, -1, -5))), *scope["c"], *scope["u"]]
        return self.pick(options)

    def index(self, scope: dict[str, list[str]]) -> str:
        return f"({self._i(scope, 1)}) % {LENGTH}"

    def _i(self, scope: dict[str, list[str]], size: int) -> str:
        leaves = list(scope["i"])
        leaves += [f"int32({name})" for name in (*scope["u"], *scope["b"], *scope["c"])]
        leaves += [f"{name}[0]" for name in scope["T"]] + [f'{name}["n"]' for name in scope["D"]]
        if size <= 0 or self.chance(3):
            return self.pick(leaves)
        if scope["A"] and self.chance(4):
            return f"{self.pick(scope['A'])}[{self.index(scope)}]"
        left = self.expression("i", scope, size - 1)
        form = self.pick(("bin", "bin", "const", "weak", "extreme"))
        if form == "const":
            return f"({left} {self.pick(('//', '%'))} {self.pick((2, 3, 5, -7))})"
        if form == "weak":
            return f"({left} {self.pick(('+', '-', '*'))} {self.operand(scope)})"
        right = self.expression("i", scope, size - 1)
        if form == "extreme":
            return f"{self.pick(('minimum', 'maximum'))}({left}, {right})"
        return f"({left} {self.pick(('+', '-', '*', '&', '|', '^'))} {right})"

    def _u(self, scope: dict[str, list[str]], size: int) -> str:
        leaves = [*scope["u"], f"uint8({self._i(scope, 0)} & 255)"]
        if size <= 0 or self.chance(2):
            return self.pick(leaves)
        left = self._u(scope, size - 1)
        if self.chance(2):
            return f"({left} {self.pick(('+', '*', '//', '%'))} {self.pick((2, 3, 7))})"
        return f"({left} {self.pick(('+', '-', '*', '^', '&'))} {self._u(scope, size - 1)})"

    def _f(self, scope: dict[str, list[str]], size: int) -> str:
        leaves = [*scope["f"], *(f"{name}[1]" for name in scope["T"])]
        if size <= 0 or self.chance(3):
            return self.pick([*leaves, f"float32({self._i(scope, 0)})"])
        left = self.expression("f", scope, size - 1)
        form = self.pick(("bin", "weak", "scale", "extreme"))
        if form == "weak":
            return f"({left} {self.pick(('+', '-'))} {self.pick((0.25, 1.5, 1))})"
        if form == "scale":
            return f"({left} * {self.pick((0.5, 2.0, -1.0))})"
        right = self.expression("f", scope, size - 1)
        if form == "extreme":
            return f"{self.pick(('minimum', 'maximum'))}({left}, {right})"
        return f"({left} {self.pick(('+', '-'))} {right})"

    def _b(self, scope: dict[str, list[str]], size: int) -> str:
        if scope["b"] and (size <= 0 or self.chance(4)):
            leaves = [*scope["b"], *(f'{name}["p"]' for name in scope["D"])]
            return self.pick(leaves)
        form = self.pick(("compare", "compare", "chain", "and", "or", "not"))
        if size <= 0 or form == "compare":
            kind = self.pick("iifu")
            left = getattr(self, f"_{kind}")(scope, size - 1)
            relation = self.pick(("<", "<=", ">", ">=", "==", "!="))
            right = self.pick((0, 1, 3)) if self.chance(2) else self.pick_leaf(kind, scope)
            return f"{left} {relation} {right}"
        if form == "chain":
            low, high = self._i(scope, 0), self._i(scope, 0)
            return f"{low} {self.pick(('<', '<='))} {self._i(scope, 1)} < {high}"
        left = self._b(scope, size - 1)
        if form == "not":
            return f"(not ({left}))"
        return f"({left} {form} {self._b(scope, size - 1)})"

    def pick_leaf(self, kind: str, scope: dict[str, list[str]]) -> str:
        return getattr(self, f"_{kind}")(scope, 0)

    def _A(self, scope: dict[str, list[str]], size: int) -> str:
        array = self.pick(scope["A"])
        form = self.pick(("name", "set", "add", "all"))
        if form == "name" or size <= 0:
            return array
        if form == "all":
            return f"({array} {self.pick(('+', '-', '^'))} {self._i(scope, 1)})"
        return f"{array}.at[{self.index(scope)}].{form}({self.expression('i', scope, 1)})"

    def _T(self, scope: dict[str, list[str]], size: int) -> str:
        if scope["T"] and self.chance(3):
            return self.pick(scope["T"])
        return f"({self._i(scope, size - 1)}, {self._f(scope, size - 1)})"

    def _D(self, scope: dict[str, list[str]], size: int) -> str:
        if scope["D"] and self.chance(3):
            return self.pick(scope["D"])
        return f'{{"n": {self._i(scope, size - 1)}, "p": {self._b(scope, size - 1)}}}'

    # Statements. `loops` is how many loops are around; `fuel` is what a call may pass on.

    def block(self, depth: int, scope: dict[str, list[str]], loops: int) -> None:
        """One to three statements; the block may end by leaving the loop or the function."""
        scope = {kind: list(names) for kind, names in scope.items()}
        for _ in range(self.draw(st.integers(1, 3))):
            self.statement(depth, scope, loops)
        if depth > 1 and self.chance(4):
            leave = self.pick(("return", "break", "continue", "continue") if loops else ("return",))
            self.put(depth, self.result(scope) if leave == "return" else leave)

    def statement(self, depth: int, scope: dict[str, list[str]], loops: int) -> None:
        self.budget -= 1
        forms = ["assign", "augment", "swap", "local"]
        if self.budget > 0 and depth < 4:
            forms += ["if", "if", "if", "while", "for", "while" if loops < 1 else "if"]
        if self.callees and self.calls > 0 and loops < 2:
            forms += ["call", "call", "call"]
        form = self.pick(forms)
        if form in ("while", "for") and loops >= 2:
            form = "if"
        getattr(self, f"_{form}")(depth, scope, loops)

    def targets(self, scope: dict[str, list[str]], kind: str) -> list[str]:
        """What may be assigned: not the fuel, and not a loop's own variable."""
        return [name for name in scope[kind] if name != "fuel" and not name.startswith("each")]

    def target(self, scope: dict[str, list[str]], kinds: str) -> tuple[str, str]:
        kind = self.pick([kind for kind in kinds if self.targets(scope, kind)])
        return self.pick(self.targets(scope, kind)), kind

    def _assign(self, depth: int, scope: dict[str, list[str]], loops: int) -> None:
        name, kind = self.target(scope, "iifubATD")
        self.put(depth, f"{name} = {self.expression(kind, scope)}")

    def _local(self, depth: int, scope: dict[str, list[str]], loops: int) -> None:
        kind = self.pick("ifbu")
        text = self.expression(kind, scope)
        name = self.fresh(f"local_{kind}")
        self.put(depth, f"{name} = {text}")
        scope[kind].append(name)

    def _augment(self, depth: int, scope: dict[str, list[str]], loops: int) -> None:
        name, kind = self.target(scope, "iif")
        operators = ("+=", "-=") if kind == "f" else ("+=", "-=", "*=", "^=")
        self.put(depth, f"{name} {self.pick(operators)} {self.expression(kind, scope, 1)}")

    def _swap(self, depth: int, scope: dict[str, list[str]], loops: int) -> None:
        (left, kind), (right, other) = self.target(scope, "ifb"), self.target(scope, "iA")
        if left == right:
            return self._assign(depth, scope, loops)
        values = f"{self.expression(kind, scope, 1)}, {self.expression(other, scope, 1)}"
        self.put(depth, f"{left}, {right} = {values}")

    def _if(self, depth: int, scope: dict[str, list[str]], loops: int) -> None:
        condition = self.expression("b", scope)
        callees = [callee for callee in self.callees if callee.results == "i"]
        if callees and self.calls > 0 and loops < 2 and self.chance(3):
            # The call happens only on the lanes whose left side leaves the question open.
            call = self.call(self.pick(callees), scope, loops)
            condition = f"({condition}) {self.pick(('and', 'or'))} {call} > {self._i(scope, 0)}"
        self.put(depth, f"if {condition}:")
        self.block(depth + 1, scope, loops)
        if self.chance(4):
            self.put(depth, f"elif {self.expression('b', scope)}:")
            self.block(depth + 1, scope, loops)
        if self.chance(2):
            self.put(depth, "else:")
            self.block(depth + 1, scope, loops)

    def _while(self, depth: int, scope: dict[str, list[str]], loops: int) -> None:
        counter = self.fresh("count_")
        bound = self.pick(("1", "2", "3", f"({self._i(scope, 0)} & 3)"))
        self.put(depth, f"{counter} = 0")
        inside = {**scope, "c": [*scope["c"], counter]}
        if self.chance(4):
            self.put(depth, "while True:")
            self.put(depth + 1, f"{counter} += 1")
            self.put(depth + 1, f"if {counter} > {bound}:")
            self.put(depth + 2, "break")
            self.block(depth + 1, inside, loops + 1)
        else:
            tests = [f"{counter} < {bound}", self.expression("b", scope, 1)]
            if self.chance(2):
                tests.reverse()
            self.put(depth, f"while {' and '.join(f'({test})' for test in tests)}:")
            self.put(depth + 1, f"{counter} += 1")
            self.block(depth + 1, inside, loops + 1)
            self._else(depth, scope, loops)
        scope["c"].append(counter)

    def _for(self, depth: int, scope: dict[str, list[str]], loops: int) -> None:
        form = self.pick(("traced", "traced", "between", "down", "static", "array"))
        name, kind = self.fresh("each_"), "c"
        low, high = self._i(scope, 0), self._i(scope, 0)
        over = {
            "traced": f"range({high} & 3)",
            "between": f"range({low} % 3, {high} % 4)",
            "down": f"range({high} & 3, -1, -2)",
            "static": "range(2)",
        }.get(form, "")
        if form == "array":
            over, kind = self.pick(scope["A"]), "i"
        self.put(depth, f"for {name} in {over}:")
        self.block(depth + 1, {**scope, kind: [*scope[kind], name]}, loops + 1)
        self._else(depth, scope, loops)

    def _else(self, depth: int, scope: dict[str, list[str]], loops: int) -> None:
        if self.chance(6):
            self.put(depth, "else:")
            self.block(depth + 1, scope, loops)

    def call(self, callee: Signature, scope: dict[str, list[str]], loops: int) -> str:
        self.calls -= 1
        given = [self.expression(kind, scope, 1) for kind in callee.params]
        return f"{callee.name}({', '.join([*given, f'fuel - {1 + loops}'])})"

    def _call(self, depth: int, scope: dict[str, list[str]], loops: int) -> None:
        callee = self.pick(self.callees)
        text = self.call(callee, scope, loops)
        names = [self.fresh(f"got_{kind}") for kind in callee.results]
        if callee.results == "i" and self.chance(2):
            name, _ = self.target(scope, "i")
            return self.put(depth, f"{name} = {self._i(scope, 0)} + {text}")
        self.put(depth, f"{', '.join(names)} = {text}")
        for name, kind in zip(names, callee.results):
            scope[kind].append(name)
        return None

    def result(self, scope: dict[str, list[str]]) -> str:
        values = [self.expression(kind, scope, 1) for kind in self.signature.results]
        return f"return {', '.join(values)}"

    def digest(self, scope: dict[str, list[str]]) -> str:
        """The last return: made of every variable, so that none is dead."""
        ints = [*scope["i"], *(f"int32({name})" for kind in "bcu" for name in scope[kind])]
        values = {
            "i": " ^ ".join(ints),
            "f": " + ".join(scope["f"] or ["float32(fuel)"]),
            "b": " or ".join(scope["b"] or ["fuel > 1"]),
            "A": self._A(scope, 2),
        }
        return f"return {', '.join(values[kind] for kind in self.signature.results)}"

    def write(self) -> str:
        scope: dict[str, list[str]] = {kind: [] for kind in "iufbATDc"}
        for name, kind in zip(self.signature.parameter_names(), self.signature.params):
            scope[kind].append(name)
        scope["i"].append("fuel")
        self.put(0, "@program")
        self.put(0, f"def {self.signature.name}({', '.join(self.signature.parameter_names())}):")
        if self.signature.name != "main":
            self.put(1, "if fuel <= 0:")
            self.put(2, self.result(scope))
        for kind in self.pick(("b", "u", "T", "D", "ub", "bT")):
            name, text = self.fresh(f"var_{kind}"), self.expression(kind, scope, 1)
            self.put(1, f"{name} = {text}")
            scope[kind].append(name)
        self.budget = self.draw(st.integers(4, 10))
        while self.budget > 0:
            self.statement(1, scope, 0)
        if self.signature.name == "main" and self.callees and self.calls == 2:
            self._call(1, scope, 0)
        self.put(1, self.digest(scope))
        return "\n".join(self.lines) + "\n"


# -- drawing -------------------------------------------------------------------------------------

VALUES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "i": lambda rng: rng.integers(-6, 9, LANES).astype(np.int32),
    "f": lambda rng: (rng.integers(-16, 17, LANES) / 4).astype(np.float32),
    "b": lambda rng: rng.integers(0, 2, LANES).astype(bool),
    "u": lambda rng: rng.integers(0, 256, LANES).astype(np.uint8),
    "A": lambda rng: rng.integers(-3, 6, (LANES, LENGTH)).astype(np.int32),
}


@st.composite
def programs(draw: Draw) -> Generated:
    """Programs with a batch of arguments, some of them shared by all lanes."""
    helpers = tuple(
        Signature(f"f{at}", draw(st.sampled_from(("i", "if", "ii", "iA", "ib"))), results)
        for at, results in enumerate(
            draw(st.lists(st.sampled_from(("i", "i", "f", "if", "bi")), max_size=2))
        )
    )
    main = Signature(
        "main", *draw(st.sampled_from((("ifA", "if"), ("iifbA", "ifA"), ("ifuA", "biA"))))
    )
    # Every array variable of a helper comes from its caller, so that one without any makes none.
    helpers = tuple(
        helper
        if "A" in helper.params
        else Signature(helper.name, helper.params + "A", helper.results)
        for helper in helpers
    )
    source = "\n\n".join(_Function(draw, s, helpers).write() for s in (*helpers, main))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    values = [VALUES[kind](rng) for kind in main.params]
    in_axes: list[int | None] = [0] * len(values)
    if draw(st.integers(0, 3)) == 3:
        shared = draw(st.integers(1, len(values) - 1))
        values[shared], in_axes[shared] = values[shared][0], None
    fuel = rng.integers(0, MAX_FUEL + 1, LANES).astype(np.int32)
    return Generated(source, (*values, fuel), (*in_axes, 0))
