"""Lanes taken out of a machine's state, and put into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from lanewise.machine.state import State

_LANES_FIRST = ("pc", "registers", "depth", "steps", "code", "site", "life")


_LANES_SECOND = ("stacks", "returns")


def lanes_of(state: State, lanes: Any) -> State:
    """A state with these lanes of another."""
    first = {name: _map(lambda x: x[lanes], getattr(state, name)) for name in _LANES_FIRST}
    second = {name: _map(lambda x: x[:, lanes], getattr(state, name)) for name in _LANES_SECOND}
    return state.with_(**first, **second)


def put_lanes(state: State, lanes: Any, rows: State) -> State:
    """A state with `rows` at these lanes; beyond the last lane, a row is dropped."""
    first = {
        name: _map(
            lambda x, row: x.at[lanes].set(row, mode="drop"),
            getattr(state, name),
            getattr(rows, name),
        )
        for name in _LANES_FIRST
    }
    second = {
        name: _map(
            lambda x, row: x.at[:, lanes].set(row, mode="drop"),
            getattr(state, name),
            getattr(rows, name),
        )
        for name in _LANES_SECOND
    }
    return state.with_(**first, **second)


def with_lanes(state: State, takes: Any, rows: State) -> State:
    """A state with `rows` for the lanes of `takes`."""
    lanes = takes.shape[0]
    return put_lanes(state, jnp.where(takes, jnp.arange(lanes), lanes), rows)


def _map(change: Callable[..., Any], *trees: Any) -> Any:
    return jax.tree.map(change, *trees)
