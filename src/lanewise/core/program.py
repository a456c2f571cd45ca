"""A program is a table of jaxprs behind one JAX primitive.

`Program` maps function names to jaxprs and names an entry. Structured control flow inside them is JAX's
own `while`, `cond` and `scan`; recursion, which JAX lacks, is the one new primitive, `call`, that names
a function of the table. Calling a decorated function (`tracing/decorator.py`) traces it once for each signature
(`tracing/staging.py`) and binds `program_p`; `rules/` has that primitive's rules.

An `assert` is the primitive `check`. It takes one boolean and gives nothing back; it carries an effect so that no
dead-code pass drops it. It never reaches XLA as itself: flattening turns it into a branch to a block that ends the lane
with the outcome that the check names, and a program that holds a check is never lowered structured. The values that its
message formats are operands too. Nothing is done with them until a lane has failed, and then only outside `jit`
(`rules/explain.py`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import ad, batching
from lanewise.core.errors import Location, OptionError, Outcome, TransformError
from lanewise.core.options import Options
from lanewise.core.outcomes import Site

call_p = _jax.primitive("call")
program_p = _jax.primitive("program")
throw_p = _jax.primitive("throw")
# A region with a name; `parts.py` has its rules.
part_p = _jax.primitive("part")

_machine_inside: Callable[[_jax.JaxprEqn], _jax.Jaxpr] | None = None


def on_machine_inside(rule: Callable[[_jax.JaxprEqn], _jax.Jaxpr]) -> None:
    """Register the rule of `program_p` that `machine_inside` applies."""
    global _machine_inside
    _machine_inside = rule


def machine_inside(eqn: _jax.JaxprEqn) -> _jax.Jaxpr:
    """The code of a program under `jax.vmap` inside another program: a machine of its own."""
    assert _machine_inside is not None, "the rules of program_p are registered in rules/"
    return _machine_inside(eqn)


@dataclass(frozen=True, eq=False)
class Function:
    """One function of the table: its jaxpr's inputs are the captures it names, then its parameters.

    `threads`: parameters that are state of the whole run (tapes of records), each with the result that it is when the
    function is done; they are read only after all calls, so calls that run at the same time may share them.
    """

    name: str
    jaxpr: _jax.Jaxpr
    captures: tuple[int, ...] = ()
    threads: tuple[tuple[int, int], ...] = ()

    @property
    def params(self) -> tuple[_jax.Var, ...]:
        return tuple(self.jaxpr.invars[len(self.captures) :])


@dataclass(frozen=True, eq=False)
class Program:
    """Functions and an entry. Operands are `num_captures` captured values, then the entry's parameters.

    `sums`: the types of the accumulators that its code adds to (`accumulate.py`); all lanes share them. `whole`: it is
    a batch of these lanes as a program of one lane (`rules/whole.py`), or derived from one.
    """

    functions: dict[str, Function]
    entry: str
    num_captures: int = 0
    sums: tuple[_jax.ShapedArray, ...] = ()
    whole: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name of the function it was made from: the entry's, without the number of its trace."""
        return re.sub(r"\.\d+(?=\)*$)", "", self.entry)

    @functools.cached_property
    def out_avals(self) -> tuple[_jax.ShapedArray, ...]:
        return tuple(atom.aval for atom in self.functions[self.entry].jaxpr.outvars)

    @property
    def num_results(self) -> int:
        """How many answers and accumulators it gives."""
        return len(self.out_avals) + len(self.sums)

    @functools.cached_property
    def capture_avals(self) -> tuple[_jax.ShapedArray, ...]:
        found = {
            index: var.aval
            for function in self.functions.values()
            for index, var in zip(function.captures, function.jaxpr.invars, strict=False)
        }
        return tuple(found[i] for i in range(self.num_captures))

    @functools.cached_property
    def operand_avals(self) -> tuple[_jax.ShapedArray, ...]:
        """The types of its operands, captures first."""
        params = self.functions[self.entry].params
        return (*self.capture_avals, *(var.aval for var in params))

    def equations(self, inside: Callable[..., Any] = _jax.subjaxprs) -> Iterator[_jax.JaxprEqn]:
        """Those of all functions, at any depth of what `inside` gives; see `_jax.equations`."""
        codes = (function.jaxpr for function in self.functions.values())
        return _jax.equations((eqn for code in codes for eqn in code.eqns), inside)

    @functools.cached_property
    def num_operands(self) -> int:
        return self.num_captures + len(self.functions[self.entry].params)

    @functools.cached_property
    def sites(self) -> tuple[Site, ...]:
        """Where a lane can fail an assertion, programs called inside included."""
        found: dict[Site, None] = {}
        for eqn in self.equations():
            if eqn.primitive is check_p and eqn.params["outcome"] is Outcome.ASSERTION_FAILED:
                found[site_of(eqn)] = None
            elif eqn.primitive is program_p:
                found.update(dict.fromkeys(eqn.params["program"].sites))
        return tuple(found)

    @functools.cached_property
    def has_tapes(self) -> bool:
        """Whether a lane can run out of room on a tape, programs called inside included."""
        return any(
            (eqn.primitive is check_p and eqn.params["outcome"] is Outcome.TAPE_FULL)
            or (eqn.primitive is program_p and eqn.params["program"].has_tapes)
            for eqn in self.equations()
        )

    @functools.cached_property
    def formats(self) -> bool:
        """Whether an assertion's message formats values."""
        return any(site.formatted for site in self.sites)

    @functools.cached_property
    def recursive(self) -> bool:
        """Whether any function, of this program or one called inside, calls back into itself."""
        return any(
            eqn.primitive is call_p
            or (eqn.primitive is program_p and eqn.params["program"].recursive)
            for eqn in self.equations()
        )

    @functools.cached_property
    def parts(self) -> tuple[_jax.JaxprEqn, ...]:
        """The calls of other programs inside this one that become part of it: those with no lanes of their own."""
        return tuple(filter(is_part, self.equations()))

    def refuse_bounds_of_parts(self, options: Options) -> None:
        """Raise if a program called inside this one has bounds that do not hold there, run with these options.

        Steps and frames are counted for the whole, and a lane that fails has failed for good. The schedule and the
        carrier of the whole count too, silently: they change no answer.
        """
        for eqn in self.parts:
            inner, name = eqn.params["options"], eqn.params["program"].name
            for bound in ("max_steps", "max_depth"):
                wanted = getattr(inner, bound)
                if wanted not in (None, getattr(options, bound)):
                    raise OptionError(
                        f"`{name}` has {bound}={wanted} and is called inside the program `{self.name}`"
                        f" ({_jax.user_line(eqn)}), where the bound of the whole counts. Give {bound} to `{self.name}`,"
                        f" and call `{name}.with_options({bound}=None)` inside."
                    )
            if not inner.throw:
                raise OptionError(
                    f"`{name}` has throw=False and is called inside the program `{self.name}`"
                    f" ({_jax.user_line(eqn)}), where a lane that fails has failed for good. Give throw=False to"
                    f" `{self.name}`, and call `{name}.with_options(throw=True)` inside."
                )

    def can_fail(self, options: Options) -> bool:
        """Whether a lane can end other than done."""
        return bool(self.recursive or self.sites or self.has_tapes or options.max_steps)

    def gives_outcomes(self, options: Options) -> bool:
        """Whether `program_p` gives outcome codes and sites beside the answers."""
        return self.can_fail(options) or not options.throw

    @property
    def text(self) -> str:
        """Every function's jaxpr."""
        return "\n".join(f"{name} = {function.jaxpr}" for name, function in self.functions.items())

    def __repr__(self) -> str:
        return f"<program {self.entry}: {', '.join(self.functions)}>"


@functools.lru_cache(maxsize=1024)
def with_options_inside(program: Program, options: Options) -> Program:
    """The same program, with programs called inside it run as its own options say; itself if that changes nothing.

    Most calls inside become part of the whole. Those that do not are a call under JAX's own batching
    (`schedule="plain"`) and one for a batch, which is a machine of its own.
    """

    def change(eqn: _jax.JaxprEqn) -> _jax.JaxprEqn:
        if eqn.primitive is not program_p:
            return eqn
        inner, own = eqn.params["program"], eqn.params["options"]
        wanted = options.inside(own, bool(eqn.params["lanes"]) or own.stats)
        found = with_options_inside(inner, wanted)
        if wanted is own and found is inner:
            return eqn
        return eqn.replace(params={**eqn.params, "program": found, "options": wanted})

    return with_equations(program, change)


def with_equations(program: Program, change: Callable[[_jax.JaxprEqn], _jax.JaxprEqn]) -> Program:
    """The same program with each equation changed; itself where none is."""
    functions = {
        name: replace(function, jaxpr=_jax.with_eqns(function.jaxpr, change))
        for name, function in program.functions.items()
    }
    if all(functions[n].jaxpr is program.functions[n].jaxpr for n in functions):
        return program
    return replace(program, functions=functions)


@call_p.def_abstract_eval
def _call_abstract(*args: Any, name: str, out_avals: Sequence[Any], jvp_of: Any) -> Any:
    del args, name, jvp_of
    return list(out_avals)


def _call_under_vmap(axis_data: Any, args: Any, dims: Any, *, name: str, **params: Any) -> Any:
    raise TransformError(
        f"`{name}` calls itself under jax.vmap inside its own body. Lanes come from outside: loop over the axis"
        " with `for`, or make the inner call a program that is not part of the recursion."
    )


batching.fancy_primitive_batchers[call_p] = _call_under_vmap


def without_part(eqn: _jax.JaxprEqn) -> _jax.JaxprEqn:
    """The same equation as a plain call of the code that it holds; other equations as they are."""
    if eqn.primitive is not part_p:
        return eqn
    jaxpr = eqn.params["jaxpr"]
    return eqn.replace(
        primitive=_jax.closed_call_p,
        params={"call_jaxpr": jaxpr},
        invars=eqn.invars[int(eqn.params["indexed"]) :],
    )


def site_of(check: _jax.JaxprEqn) -> Site:
    """The place of a check; its message has holes if it is written when the lane has failed."""
    params = check.params
    return Site(params["message"], params["location"], params["writes"] is not None)


def is_part(eqn: _jax.JaxprEqn) -> bool:
    """Whether an equation calls a program that becomes part of the one that it is in.

    With statistics or lanes of its own it is a machine of its own, which has its own options.
    """
    return eqn.primitive is program_p and not (eqn.params["lanes"] or eqn.params["options"].stats)


def codes_inside(eqn: _jax.JaxprEqn) -> Iterator[_jax.Jaxpr]:
    """The code that an equation holds, that of a program it calls included."""
    if eqn.primitive is program_p:
        yield from (function.jaxpr for function in eqn.params["program"].functions.values())
    yield from _jax.subjaxprs(eqn)


# -- check: `assert` inside a program ----------------------------------------------------------------

Writes = Callable[[Sequence[Any]], str]


class CheckEffect(_jax.Effect):
    """Keeps checks alive."""

    def __str__(self) -> str:
        return "check"


check_effect = CheckEffect()
_jax.allow_effect(CheckEffect)

check_p = _jax.primitive("check")


@check_p.def_effectful_abstract_eval
def _check_abstract(ok: Any, *values: Any, **params: Any) -> Any:
    del ok, values, params
    return [], {check_effect}


def check(
    ok: Any,
    message: str,
    location: Location,
    writes: Writes | None = None,
    values: Sequence[Any] = (),
) -> None:
    """End the lane with `assertion failed` unless `ok` holds; `writes` makes the message of the values."""
    check_outcome(ok, Outcome.ASSERTION_FAILED, message, location, writes, values)


def check_outcome(
    ok: Any,
    outcome: Outcome,
    message: str = "",
    location: Location | None = None,
    writes: Writes | None = None,
    values: Sequence[Any] = (),
    *,
    waits: bool = False,
) -> None:
    """End the lane with an outcome unless `ok` holds; `waits`: a host may make it hold, and the lane go on."""
    params = {"message": message, "location": location, "writes": writes}
    check_p.bind(jnp.asarray(ok, bool), *values, outcome=outcome, waits=waits, **params)


def _batch_check(args: Any, dims: Any, **params: Any) -> Any:
    # An inner array axis: the lane's assertion holds when it holds all along the axis.
    ok, *values = args
    check_p.bind(jnp.all(ok), *values, **params)
    return [], []


batching.primitive_batchers[check_p] = _batch_check


def _jvp_check(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    check_p.bind(*primals, **params)
    return [], []


ad.primitive_jvps[check_p] = _jvp_check
