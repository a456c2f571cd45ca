"""An interrupt (Ctrl-C) at any call of a function leaves nothing broken: the next call works."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise.dynamic.record import STATE

ROOT = str(Path(lw.__file__).parent)


@lw.op
def grow(weight: Any, x: Any) -> Any:
    return jnp.tanh(weight * x) + x


@lw.op
def both(weight: Any, x: Any, y: Any) -> Any:
    return weight * (x - y)


def walk(weight: Any, x: float) -> Any:
    value = grow(weight, x)
    for _ in range(3):
        if value > 2.0:
            break
        value = both(weight, grow(weight, value), -1.0)
    return value


def interrupted(fun: Callable[[], Any], after: int) -> bool:
    """Whether Ctrl-C came, at this call of one of our functions."""
    left = after

    def see(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(see)
    try:
        fun()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("suspended", [True, False])
def test_lazy_map(suspended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if suspended:
        needs.library("greenlet")
    else:
        monkeypatch.setattr("lanewise.dynamic.instances.greenlets", lambda: None)
    weight, numbers = jnp.float32(0.5), [0.1, 1.0, 3.0]

    def run() -> Any:
        return jax.value_and_grad(lambda w: lw.lazy_map(lambda x: walk(w, x), numbers).sum())(
            weight
        )

    expected = jax.value_and_grad(lambda w: sum(walk(w, x) for x in numbers))(weight)
    points = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610]
    came = 0
    for point in points:
        came += interrupted(run, point)
        assert STATE.recorder is None
        np.testing.assert_allclose(run(), expected, rtol=1e-5)
    assert came >= 8


def test_an_interrupt_in_an_instance_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait are left: what they hold is cleaned up, by `finally` and `with`."""
    needs.library("greenlet")
    weight, left = jnp.float32(0.5), []

    def fun(x: float) -> Any:
        try:
            if x > 2.0:
                raise KeyboardInterrupt
            return grow(weight, x).item()
        finally:
            left.append(x)

    with pytest.raises(KeyboardInterrupt):
        lw.lazy_map(fun, [1.0, 2.0, 3.0])
    assert sorted(left) == [1.0, 2.0, 3.0]
    np.testing.assert_allclose(
        lw.lazy_map(fun, [1.0, 2.0]), [np.tanh(0.5) + 1, np.tanh(1.0) + 2], rtol=1e-6
    )


@lw.record
class Chain:
    label: int
    rest: Chain | None = None


@lw.program
def length(chain):
    n = 0
    while chain is not None:
        chain = chain.rest
        n += 1
    return n


def test_pack() -> None:
    chains = [Chain(1), Chain(2, Chain(3, Chain(4)))]
    came = 0
    for point in (1, 2, 3, 5, 8, 13, 21, 34, 55):
        came += interrupted(lambda: lw.pack(chains), point)
        forest = lw.pack(chains)
        assert forest[1].rest.rest.label == 4
    assert came >= 3
    assert lw.vmap(length)(forest).tolist() == [1, 3]
