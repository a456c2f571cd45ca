"""What the converted code tells its run-time about one statement of the user's source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lanewise.core.errors import Location, UnsupportedSyntaxError
from lanewise.frontend.values import Undefined

RESULT = "_lw_result"  # the variable that holds a function's return value
FLAG = "_lw_flag_"  # how the names of the flags that exits set begin


@dataclass(frozen=True)
class Site:
    """One control-flow statement or expression.

    `names` are the variables it may modify; the first `live` of them matter afterwards, the others are
    temporaries. `dead_then` and `dead_else` are those whose value nobody reads when that side ran (it
    ended in a jump past every read); `dead_entry` those whose value at a loop's entry nobody reads.
    """

    location: Location
    what: str
    names: tuple[str, ...] = ()
    live: int = 0
    dead_then: frozenset[str] = frozenset()
    dead_else: frozenset[str] = frozenset()
    dead_entry: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()  # those of `names` whose objects it changes in place
    inside: tuple[str, int] | None = None  # an enclosing `try` or `with`, and its line
    binds: tuple[tuple[str, int], ...] = ()  # `:=` in operands that may not be computed
    acts: bool = False  # its body may act on Python objects other than through `names`
    once: bool = False  # a loop whose body always leaves it

    @property
    def line(self) -> int:
        return self.location.line

    def at(self, line: int) -> Location:
        return Location(self.location.filename, line, self.location.function)

    def forbid_staging(self) -> None:
        """Raise if the statement cannot be traced because of where it is or what it assigns."""
        if self.inside is not None:
            what, line = self.inside
            raise UnsupportedSyntaxError(
                f"this `{what}` surrounds the {self.what} of line {self.line}, whose condition is only "
                f"known at run time. Move the `{what}` inside the branch or loop body, or around the "
                "call of the whole program",
                self.at(line),
            )
        for name, line in self.binds:
            raise UnsupportedSyntaxError(
                f"`{name} := ...` inside the {self.what} of line {self.line} may or may not run, and "
                f"that is only known at run time. Assign `{name}` in a statement of its own",
                self.at(line),
            )


@dataclass(frozen=True)
class Variables:
    """The variables of one statement, as cells of the running function."""

    site: Site
    get: Callable[[], tuple[Any, ...]]
    set: Callable[[tuple[Any, ...]], None]

    def read(self) -> list[Any]:
        """The variables that matter after the statement."""
        return list(self.get()[: self.site.live])

    def write(self, values: list[Any]) -> None:
        """Give the variables that matter their values; the temporaries become undefined."""
        temporaries = self.site.names[self.site.live :]
        self.set((*values, *(Undefined(name) for name in temporaries)))
