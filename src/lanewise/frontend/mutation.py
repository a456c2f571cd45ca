"""Objects changed in place while a branch or a loop is staged.

Local containers that are pytrees are no trouble: each side works on a copy of its own, and the merge
puts the two together. What cannot be copied so is refused, at the line that changes it: objects that are
no pytrees, objects from outside the function, and containers known under two names (a copy each would
make them two).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from jax import tree_util

from lanewise.core.errors import UnsupportedSyntaxError
from lanewise.frontend import values
from lanewise.frontend.operators import Operators
from lanewise.frontend.values import Site, Undefined


class Mutation(Operators):
    """The part of a `Runtime` that watches over changes in place."""

    @property
    def _uncopied(self) -> list[dict[int, Any]]:
        """Objects that every side of what is being staged would share, by id."""
        if not hasattr(self._local, "uncopied"):
            self._local.uncopied = []
        return self._local.uncopied

    def begin(self, site: Site, held: Sequence[Any]) -> None:
        """Before a statement is staged: look at the objects that it changes. `end` comes after."""
        uncopied: dict[int, Any] = {}
        if site.stored:
            named = dict(zip(site.names, held, strict=True))
            refuse_shared(site, named)
            for name in site.stored:
                for leaf in values.take_apart(named.get(name)).leaves:
                    if not values.is_array(leaf):
                        uncopied[id(leaf)] = leaf
        self._uncopied.append(uncopied)

    def end(self) -> None:
        self._uncopied.pop()

    def own(self, k: int, name: str, target: Any) -> Any:
        """An object is about to be changed by the function it belongs to."""
        if any(id(target) in shared for shared in self._uncopied):
            around = self.sites[self.staged[-1]]
            raise UnsupportedSyntaxError(
                f"{values.type_text(target)} in `{name}` is changed in place inside the {around.what} of "
                f"line {around.line}, whose condition is only known at run time; it is no pytree, so each "
                "side cannot have a copy. Make it a dataclass, a dict or a list, or keep the part in a "
                "local variable",
                self.sites[k].location,
            )
        return target

    def outside(self, k: int, name: str) -> None:
        """An object from outside of its function is about to be changed."""
        if self.staged:
            around = self.sites[self.staged[-1]]
            raise UnsupportedSyntaxError(
                f"`{name}` comes from outside this function and is changed in place inside the "
                f"{around.what} of line {around.line}, whose condition is only known at run time. Keep "
                "it in a local variable, and return it",
                self.sites[k].location,
            )


def refuse_shared(site: Site, named: dict[str, Any]) -> None:
    """Refuse to stage where a container that is changed is known under two names."""
    owners: dict[int, str] = {}
    for name, value in named.items():
        for container in set(map(id, _containers(value))):
            other = owners.setdefault(container, name)
            if other != name and (name in site.stored or other in site.stored):
                raise UnsupportedSyntaxError(
                    f"`{other}` and `{name}` hold the same object, which is changed in place inside the "
                    f"{site.what} of line {site.line}, whose condition is only known at run time. "
                    "Change it under one name only, or make a copy first",
                    site.location,
                )


def _containers(value: Any) -> Iterator[Any]:
    """The parts of a pytree that can be changed in place."""
    if value is None or isinstance(value, Undefined) or values.is_array(value):
        return
    changeable = isinstance(value, list | dict) or (
        dataclasses.is_dataclass(value)
        and not isinstance(value, type)
        and not type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]
    )
    if changeable:
        yield value
    children = tree_util.tree_leaves(value, is_leaf=lambda x: x is not value)
    for child in children:
        if child is not value:
            yield from _containers(child)
