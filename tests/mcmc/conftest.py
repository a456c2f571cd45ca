"""Samplers are compiled for each density they are tried on: here by a C++ compiler that does not try hard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lanewise.machine.kernel import host


def quick_compiler(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(host, "FLAGS", tuple("-O1" if f == "-O3" else f for f in host.FLAGS))


@pytest.fixture(autouse=True, scope="session")
def _quick_compiler() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quick_compiler(patch)
        yield
