"""A placement: which place each part of a program runs at.

A *place* is a number. It is a device of this process, or a process (a rank). Several parts may share a place; a
family of parts, such as experts, has a sequence of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from lanewise.core.errors import OptionError
from lanewise.core.parts import check_name


@dataclass(frozen=True)
class Placement:
    """Places by the names of parts. `devices` are the places themselves, in order, or nothing if they are ranks."""

    places: Mapping[str, tuple[int, ...]]
    size: int
    devices: tuple[Any, ...] = ()

    @property
    def everywhere(self) -> frozenset[int]:
        return frozenset(range(self.size))

    @property
    def families(self) -> tuple[tuple[str, int], ...]:
        """The names that have several places, and how many."""
        return tuple((name, len(found)) for name, found in self.places.items() if len(found) > 1)

    def place_of(self, name: str) -> int:
        """The place of a part that is no family."""
        place, *others = self._of(name)
        if others:
            raise OptionError(
                f"the part {name!r} has {1 + len(others)} places and is used without an index. Give one place, or say"
                f' which with lanewise.placed(f, "{name}", index).'
            )
        return place

    def family(self, name: str) -> tuple[int, ...]:
        """The places of a family of parts."""
        return self._of(name)

    def _of(self, name: str) -> tuple[int, ...]:
        if name not in self.places:
            raise OptionError(
                f"the program has a part {name!r}, and placement= gives no place for it; it has"
                f" {_listed(self.places)}. Add {name!r}."
            )
        return self.places[name]

    def refuse_unused(self, used: Iterable[str]) -> None:
        """Raise if a name belongs to no part of the program."""
        known = set(used)
        for name in self.places:
            if name not in known:
                raise OptionError(
                    f"placement= has {name!r}, which is no part of the program; its parts are {_listed(known)}."
                    " A name that is never used would be ignored silently: remove it, or name the part with"
                    f' lanewise.placed(f, "{name}").'
                )

    def called(self, place: int) -> str:
        """What a place is called in messages.

        >>> placement_from({"gate": 1, "expert": [0, 1, 0]}, ranks=2).called(0)
        'part expert[0,2] (rank 0)'
        """
        names = []
        for name, found in self.places.items():
            if place in found:
                own = ",".join(str(i) for i, other in enumerate(found) if other == place)
                names.append(name if len(found) == 1 else f"{name}[{own}]")
        what = f"part{'s' if len(names) > 1 else ''} {', '.join(names)}" if names else "no part"
        where = str(self.devices[place]) if self.devices else f"rank {place}"
        return f"{what} ({where})"


def placement_from(given: Any, ranks: int | None = None) -> Placement:
    """The placement that a user gives: names to devices or to ranks, or to sequences of them for families.

    `ranks`: how many processes there are, where places are ranks; every one of them is a place then.

    >>> placement_from({"encoder": 0, "expert": [0, 1]}, ranks=2).family("expert")
    (0, 1)
    """
    if not isinstance(given, Mapping) or not given:
        raise OptionError(
            f'placement= must be a dict from names of parts to places, like {{"encoder": device}} or'
            f' {{"encoder": 0}}; got {given!r}.'
        )
    listed = {check_name(name): _as_list(name, value) for name, value in given.items()}
    flat = [place for found in listed.values() for place in found]
    kinds = {isinstance(place, jax.Device) for place in flat}
    if len(kinds) > 1:
        raise OptionError(
            "placement= mixes devices and ranks. Use devices of this process, or ranks of processes that"
            " `lanewise launch` started."
        )
    if kinds == {True}:
        devices = list(dict.fromkeys(flat))
        places = {name: tuple(map(devices.index, found)) for name, found in listed.items()}
        return Placement(places, len(devices), tuple(devices))
    size = max(flat) + 1 if ranks is None else ranks
    if max(flat) >= size:
        raise OptionError(
            f"placement= has the rank {max(flat)}, and there are {size} processes: ranks are 0 to {size - 1}."
        )
    return Placement({name: tuple(found) for name, found in listed.items()}, size)


def _as_list(name: str, value: Any) -> list[Any]:
    found = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    for place in found:
        rank = isinstance(place, int) and not isinstance(place, bool) and place >= 0
        if not rank and not isinstance(place, jax.Device):
            raise OptionError(
                f"placement[{name!r}] must be a device of this process, the rank of a process (0, 1, …), or a"
                f" sequence of them for a family; got {place!r}."
            )
    if not found:
        raise OptionError(f"placement[{name!r}] is an empty sequence: give at least one place.")
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(repr, names))) or "none"
