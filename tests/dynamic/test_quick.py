"""Calls whose arguments hold others are recorded the quick way, and only while they are what they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.dynamic.lazy import Op


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ops whose calls were recorded the slow way."""
    seen: list[str] = []
    plain = Op._record

    def record(self: Op, *args: Any) -> Any:
        seen.append(self.name)
        return plain(self, *args)

    monkeypatch.setattr(Op, "_record", record)
    return seen


@lw.op
def affine(params: Any, x: Any) -> Any:
    return params["inner"]["w"] * x + params["b"] * params["list"][1]


def some(b: float) -> Any:
    return {"inner": {"w": jnp.float32(2)}, "b": jnp.float32(b), "list": [None, jnp.float32(1)]}


def test_weights_in_dictionaries(slow: list[str]) -> None:
    params = some(1)

    def chain(x: float) -> Any:
        for _ in range(3):
            x = affine(params, x)
        return x

    assert lw.lazy_map(chain, [1.0, 0.0, 2.0]).tolist() == [15.0, 7.0, 23.0]
    # Once for a number, once for a lazy value.
    assert slow == ["affine", "affine"]


def test_a_dictionary_that_changes_is_seen(slow: list[str]) -> None:
    params = some(1)
    with lw.lazy():
        first = affine(params, 1.0)
        params["inner"]["w"] = jnp.float32(3)
        second = affine(params, 1.0)
        params["b"] = 10.0
        third = affine(params, 1.0)
        params["unused"] = 1.0
        fourth = affine(params, 1.0)
        del params["inner"]
        with pytest.raises(KeyError):
            affine(params, 1.0)
    assert [v.item() for v in (first, second, third, fourth)] == [3.0, 4.0, 13.0, 13.0]
    assert len(slow) == 5


@lw.op
def total(scale: Any, parts: Any) -> Any:
    return scale * sum(parts)


def test_lists_of_several_lengths(slow: list[str]) -> None:
    scale = jnp.float32(0.5)

    def tree(n: int) -> Any:
        return total(scale, [tree(i) for i in range(n)] or [1.0, 1.0])

    def plain(n: int) -> float:
        return 0.5 * (sum(plain(i) for i in range(n)) if n else 2.0)

    assert lw.lazy_map(tree, range(5)).tolist() == [plain(n) for n in range(5)]
    assert len(slow) == 5


class Module(eqx.Module):
    weight: jax.Array
    parts: tuple[jax.Array, ...]
    name: str = eqx.field(static=True)
    use: Any = jnp.tanh

    @lw.op
    def __call__(self, x: Any) -> Any:
        return self.use(self.weight * x + self.parts[0])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Frozen:
    held: Any

    @lw.op
    def __call__(self, x: Any) -> Any:
        held = self.held["w"] if isinstance(self.held, dict) else self.held
        return held * x


def test_modules_that_cannot_change_are_one_object(slow: list[str]) -> None:
    module, other = (Module(jnp.float32(w), (jnp.float32(1),), "m") for w in (2, 3))
    frozen = Frozen(jnp.float32(4))

    def f(x: float) -> Any:
        return frozen(module(x) + other(x))

    found = lw.lazy_map(f, [1.0, 2.0, 3.0])
    expected = [4 * (np.tanh(2 * x + 1) + np.tanh(3 * x + 1)) for x in (1, 2, 3)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert slow == ["__call__", "__call__", "add", "__call__"]
    gradient = eqx.filter_grad(lambda m: lw.lazy_map(lambda x: m(x), [0.0, 0.5]).sum())(module)
    expected = sum(x / np.cosh(2 * x + 1) ** 2 for x in (0, 0.5))
    np.testing.assert_allclose(gradient.weight, expected, rtol=1e-4)


def test_modules_that_hold_what_can_change_are_looked_into(slow: list[str]) -> None:
    held = {"w": jnp.float32(2)}
    module = Frozen(held)
    with lw.lazy():
        first = module(1.0)
        held["w"] = jnp.float32(5)
        second = module(1.0)
        data = [Frozen(np.float32(i))(2.0) for i in range(3)]
    assert (first.item(), second.item()) == (2.0, 5.0)
    assert [d.item() for d in data] == [0.0, 2.0, 4.0]
    assert len(slow) == 5
